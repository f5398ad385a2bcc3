"""Products of eight-bit vectors, by whatever is installed. All kernels give the same numbers.

A product of two eight-bit vectors is an integer that a float32 holds exactly up to a width of 1,040, so it does not
matter in which order, or in which kind of number, a kernel adds it up.
"""

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
import torch

from midreel.errors import BadSetting, UnknownName
from midreel.index.quantise import Array

Kernel = Callable[[Array, Array], Array]  # rows [N, D] and a query [D], both int8 -> their products [N], float32

_BLOCK = 512  # rows that are widened at a time, so that they stay in cache
_SHARE = 2**14  # rows that are worth a thread of their own


def by_numpy(rows: Array, query: Array) -> Array:
    """Widens the rows block by block; needs nothing but what midreel needs anyway."""
    wide, products = query.astype(np.float32), np.empty(len(rows), np.float32)
    block = np.empty((_BLOCK, len(query)), np.float32)
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        np.copyto(block[: len(part)], part)
        np.dot(block[: len(part)], wide, out=products[start : start + len(part)])
    return products


def by_numkong(rows: Array, query: Array) -> Array:
    import numkong

    products = np.empty((len(rows), 1), np.float32)
    if len(rows):
        numkong.cdist(rows, query[None], "dot", out=products, out_dtype="float32")
    return products[:, 0]


KERNELS: dict[str, Kernel] = {"numkong": by_numkong, "numpy": by_numpy}


def choose(name: str | None = None) -> Kernel:
    """The kernel of that name, or the fastest that is installed, on as many threads as torch uses."""
    if name is None:
        name = "numkong" if importlib.util.find_spec("numkong") else "numpy"
    if name not in KERNELS:
        raise UnknownName.among("kernel", name, KERNELS)
    if name == "numkong" and not importlib.util.find_spec("numkong"):
        raise BadSetting("kernel is 'numkong', which is not installed; install midreel[fast], or take 'numpy'")
    return shared(KERNELS[name])


def shared(kernel: Kernel) -> Kernel:
    """The same kernel, many rows divided among threads."""

    def run(rows: Array, query: Array) -> Array:
        number = min(torch.get_num_threads(), len(rows) // _SHARE)
        if number < 2:
            return kernel(rows, query)
        edges = np.arange(number + 1) * len(rows) // number
        parts = [rows[start:end] for start, end in pairwise(edges)]
        others = [pool().submit(kernel, part, query) for part in parts[1:]]
        return np.concatenate([kernel(parts[0], query), *(other.result() for other in others)])

    return run


@cache
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="midreel-index")
