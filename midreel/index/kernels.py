"""Products of eight-bit vectors, by whatever is installed. All kernels give the same numbers.

A product of two eight-bit vectors is an integer that a float32 holds exactly up to a width of 1,040, so it does not
matter in which order, or in which kind of number, a kernel adds it up.
"""

import importlib.util
from collections.abc import Callable

import numpy as np
import torch

from midreel.errors import BadSetting, UnknownName
from midreel.index.quantise import Array

Kernel = Callable[[Array, Array], Array]  # rows [N, D] and queries [Q, D], both int8 -> their products [Q, N], float32

_BLOCK = 1024  # rows that are widened at a time, so that they stay in cache


def by_torch(rows: Array, queries: Array) -> Array:
    """Widens the rows block by block; needs nothing but what midreel needs anyway."""
    wide = torch.from_numpy(queries.astype(np.float32))
    out = torch.empty(len(queries), len(rows))
    for start in range(0, len(rows), _BLOCK):
        block = torch.from_numpy(rows[start : start + _BLOCK].astype(np.float32))
        torch.mm(wide, block.T, out=out[:, start : start + _BLOCK])
    return out.numpy()


def by_numkong(rows: Array, queries: Array) -> Array:
    import numkong

    raise NotImplementedError


KERNELS: dict[str, Kernel] = {"numkong": by_numkong, "torch": by_torch}


def choose(name: str | None = None) -> Kernel:
    """The kernel of that name, or the fastest that is installed."""
    if name is None:
        return by_numkong if importlib.util.find_spec("numkong") else by_torch
    if name not in KERNELS:
        raise UnknownName.among("kernel", name, KERNELS)
    if name == "numkong" and not importlib.util.find_spec("numkong"):
        raise BadSetting("kernel is 'numkong', which is not installed; install midreel[fast], or take 'torch'")
    return KERNELS[name]
