"""Inner products of each row with the next rows, a band of the Gram matrix.

No library computes only the band. On a CPU, C code computes it (neighbours.c, compiled when midreel is installed).
Without a compiler numpy computes it in up to twice the time. On a GPU, matrix products of blocks compute it.

Axes: N rows, C columns, R the width of the band (`reach`), M = N + R - 1.
"""

import ctypes
import functools
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# Writes out[i, k] = rows[i] · rows[i + k]. It reads R - 1 more rows than it writes.
Kernel = Callable[[Float[Tensor, "M C"], Float[Tensor, "N R"]], None]

MIN_ROWS_OF_A_THREAD = 1024  # below that a thread costs more than it saves


def neighbour_products(rows: Float[Tensor, "N C"], reach: int) -> Float[Tensor, "N {reach}"]:
    """Return the inner products of each row with itself and with the next `reach` - 1 rows, 0 after the last row.

    >>> neighbour_products(torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]]), 2)
    tensor([[ 1.,  2.],
            [ 4.,  6.],
            [10.,  0.]])
    """
    rows = rows.detach().contiguous()
    return by_dots(rows, reach) if rows.device.type == "cpu" else by_blocks(rows, reach)


def by_dots(rows: Float[Tensor, "N C"], reach: int, kernel: Kernel | None = None) -> Float[Tensor, "N {reach}"]:
    """Return `neighbour_products` from single dot products. Memory is read once, because the rows stay in cache.

    Args:
        rows: contiguous rows on the CPU.
        reach: the width of the band.
        kernel: computes the dot products. Default: C for float32 where it is compiled, else numpy.
    """
    kernel = kernel or (compiled() if rows.dtype == torch.float32 else None) or by_numpy
    products = rows.new_empty(len(rows), reach)
    starts = max(len(rows) - reach + 1, 0)  # the number of rows with `reach` - 1 rows after them
    kernel(F.pad(rows[starts:], (0, 0, 0, reach - 1)), products[starts:])
    parts = max(min(torch.get_num_threads(), starts // MIN_ROWS_OF_A_THREAD), 1)
    bounds = [starts * part // parts for part in range(parts + 1)]
    jobs = [(rows[start : end + reach - 1], products[start:end]) for start, end in pairwise(bounds)]
    if parts == 1:
        kernel(*jobs[0])
    else:
        with ThreadPoolExecutor(parts) as pool:
            for job in [pool.submit(kernel, *job) for job in jobs]:
                job.result()
    return products


def by_blocks(rows: Float[Tensor, "N C"], reach: int) -> Float[Tensor, "N {reach}"]:
    """Return `neighbour_products` from matrix products, one for each block of `reach` rows.

    A block of rows is multiplied with itself and the next block. The result is R × 2R, and the band is its first R
    diagonals, which `as_strided` reads without a copy: a row step of 2R + 1 moves down and right.
    """
    num_blocks = -(-len(rows) // reach)
    whole = max(len(rows) // reach - 1, 0)  # blocks that have a full block after them; the rest need padding
    tail = F.pad(rows[whole * reach :], (0, 0, 0, (num_blocks + 1) * reach - len(rows)))
    inner = rows.new_empty(num_blocks, reach, 2 * reach)
    for source, target in ((rows, inner[:whole]), (tail, inner[whole:])):
        shape, strides = (len(target), 2 * reach, rows.shape[1]), (reach * rows.shape[1], rows.shape[1], 1)
        windows = source.as_strided(shape, strides, source.storage_offset())
        torch.bmm(windows[:, :reach], windows.mT, out=target)
    return inner.as_strided((num_blocks, reach, reach), (2 * reach * reach, 2 * reach + 1, 1)).flatten(0, 1)[
        : len(rows)
    ]


def by_numpy(rows: Float[Tensor, "M C"], out: Float[Tensor, "N R"]) -> None:
    """Compute the band with numpy, one dot product at a time. The windows are views that share memory."""
    windows = rows.as_strided((*out.shape, rows.shape[1]), (rows.stride(0), *rows.stride()), rows.storage_offset())
    np.vecdot(rows[: len(out), None].numpy(), windows.numpy(), out=out.numpy())


@functools.cache
def compiled() -> Kernel | None:
    """Return the kernel of neighbours.c for float32, or None if it was not compiled for this system."""
    spec = importlib.util.find_spec("midreel.ops._neighbours")
    if spec is None or spec.origin is None:
        return None
    try:
        function = ctypes.CDLL(spec.origin).neighbour_products  # ctypes releases the GIL during the call
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
    function.restype = None

    def kernel(rows: Float[Tensor, "M C"], out: Float[Tensor, "N R"]) -> None:
        function(rows.data_ptr(), len(out), rows.shape[1], out.shape[1], out.data_ptr())

    return kernel
