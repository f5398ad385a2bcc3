"""Inner products of rows with the rows after them: a narrow band of a Gram matrix, for which no library has a call.

On a CPU it is compiled (neighbours.c) when midreel is installed. Where there was no compiler numpy does the same in
up to twice the time. A GPU multiplies blocks.
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

# Fills an array of products, out[i, k] = rows[i] · rows[i + k], from rows that are at least reach - 1 more.
Kernel = Callable[[Float[Tensor, "M C"], Float[Tensor, "N R"]], None]

MIN_ROWS_OF_A_THREAD = 1024


def neighbour_products(rows: Float[Tensor, "N C"], reach: int) -> Float[Tensor, "N {reach}"]:
    """The inner products of each row with itself and with the `reach` - 1 rows after it, 0 beyond the last one."""
    rows = rows.detach().contiguous()
    return by_dots(rows, reach) if rows.device.type == "cpu" else by_blocks(rows, reach)


def by_dots(rows: Float[Tensor, "N C"], reach: int, kernel: Kernel | None = None) -> Float[Tensor, "N {reach}"]:
    """One dot product after the other, each of rows that are still in cache: on a CPU the rows are read once."""
    kernel = kernel or (compiled() if rows.dtype == torch.float32 else None) or by_numpy
    products = rows.new_empty(len(rows), reach)
    starts = max(len(rows) - reach + 1, 0)  # rows that have all their successors
    kernel(F.pad(rows[starts:], (0, 0, 0, reach - 1)), products[starts:])
    # A thread costs more than it saves on the rows of a video or two.
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
    """One product per block of `reach` rows against the two blocks that begin there, whose diagonals are the answer."""
    num_blocks = -(-len(rows) // reach)
    whole = max(len(rows) // reach - 1, 0)  # blocks whose two blocks of rows exist
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
    windows = rows.as_strided((*out.shape, rows.shape[1]), (rows.stride(0), *rows.stride()), rows.storage_offset())
    np.vecdot(rows[: len(out), None].numpy(), windows.numpy(), out=out.numpy())


@functools.cache
def compiled() -> Kernel | None:
    """neighbours.c, for float32; None where midreel was installed without a compiler, or for another system."""
    spec = importlib.util.find_spec("midreel.ops._neighbours")
    if spec is None or spec.origin is None:
        return None
    try:
        function = ctypes.CDLL(spec.origin).neighbour_products  # a call by ctypes lets other threads run
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
    function.restype = None

    def kernel(rows: Float[Tensor, "M C"], out: Float[Tensor, "N R"]) -> None:
        function(rows.data_ptr(), len(out), rows.shape[1], out.shape[1], out.data_ptr())

    return kernel
