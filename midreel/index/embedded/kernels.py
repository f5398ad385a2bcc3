"""Products of eight-bit vectors, by numkong if installed, otherwise by numpy. All kernels return the same numbers.

A product of two eight-bit vectors is an integer, and a float32 represents it exactly up to a width of 1,040. So neither
the order of additions nor the number type of a kernel matters.
"""

import importlib.util
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numpy as np

from midreel.errors import BadSetting, UnknownName
from midreel.index.embedded.quantise import Array

Item = TypeVar("Item")
Result = TypeVar("Result")
Kernel = Callable[[Array, Array], Array]  # rows [N, D] and a query [D], both int8 -> their products [N], float32

_BLOCK = 512  # rows converted to float32 at a time, so that they stay in the CPU cache


def by_numpy(rows: Array, query: Array) -> Array:
    """Compute the products with numpy, which has no fast integer product, in float32."""
    wide, products = query.astype(np.float32), np.empty(len(rows), np.float32)
    block = np.empty((_BLOCK, len(query)), np.float32)
    for start in range(0, len(rows), _BLOCK):
        part = rows[start : start + _BLOCK]
        np.copyto(block[: len(part)], part)
        np.dot(block[: len(part)], wide, out=products[start : start + len(part)])
    return products


def by_numkong(rows: Array, query: Array) -> Array:
    """Compute the products with numkong's integer instructions."""
    import numkong

    if not len(rows):
        return np.zeros(0, np.float32)
    return np.asarray(numkong.cdist(query[None], rows, "dot"))[0].astype(np.float32)


KERNELS: dict[str, Kernel] = {"numkong": by_numkong, "numpy": by_numpy}


def choose(name: str | None = None) -> Kernel:
    """Return the kernel with a name. Default: the fastest one installed.

    Raises:
        UnknownName: No kernel has this name.
        BadSetting: The kernel's package is not installed.
    """
    if name is None:
        name = "numkong" if importlib.util.find_spec("numkong") else "numpy"
    if name not in KERNELS:
        raise UnknownName.among("kernel", name, KERNELS)
    if name == "numkong" and not importlib.util.find_spec("numkong"):
        raise BadSetting("kernel is 'numkong', which is not installed. Install midreel[fast], or use 'numpy'.")
    return KERNELS[name]


def num_threads() -> int:
    """Return the number of threads for a search: OMP_NUM_THREADS, or the number of available cores."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdecimal() and int(setting):
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Call a function for each item, on `num_threads` threads including this one, and return the results in order.

    Do not nest calls: the inner one could wait forever for a thread of the pool.
    """
    number = min(num_threads(), len(items)) if len(items) > 1 else 1
    if number < 2:
        return [do(item) for item in items]

    def share(first: int) -> list[Result]:
        return [do(item) for item in items[first::number]]

    others = [pool().submit(share, first) for first in range(1, number)]
    results: list[Any] = [None] * len(items)
    results[0::number] = share(0)
    for first, other in enumerate(others, 1):
        results[first::number] = other.result()
    return results


@cache
def pool() -> ThreadPoolExecutor:
    """Return the thread pool of all indexes in this process."""
    return ThreadPoolExecutor(thread_name_prefix="midreel-index")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.cache_clear)  # a forked process has no threads of its parent
