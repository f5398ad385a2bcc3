"""Vectors as eight-bit integers with a scale each, and a window as a few of them.

Products of such vectors are integers, so every kernel that computes them gives the same score to the last bit.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LEVELS = 127
FINE = 254  # a query's second part is counted in steps of 1 / FINE of the first part's


def quantised(vectors: Array) -> tuple[Array, Array]:
    """Eight-bit rows, and the scale that makes each of them a vector again; a zero vector has scale 0."""
    scales = np.abs(vectors).max(1) / LEVELS
    steps = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    return np.rint(vectors * steps[:, None]).astype(np.int8), scales.astype(np.float32)


def in_two_parts(query: Array) -> tuple[Array, float]:
    """A query as a coarse and a fine eight-bit row, sixteen bits in all, and the scale of the coarse one."""
    rows, scales = quantised(query[None])
    rest = query - rows[0] * scales[0]
    fine = np.rint(np.divide(rest * FINE, scales[0], out=np.zeros_like(rest), where=scales[0] > 0))
    return np.stack((rows[0], fine.astype(np.int8))), float(scales[0])


def cosines(products: Array, token_scales: Array, query_scale: float) -> Array:
    """From the products of tokens with a query's two parts, one row each, to cosines."""
    return (products[0] + products[1] / FINE) * (token_scales * query_scale)


def unit(vectors: Array) -> Array:
    """Rows of length one; zero rows stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


def pooled(vectors: Array, number: int) -> Array:
    """`number` unit vectors that stand for a window: directions of neighbouring tokens, or tokens again if too few."""
    edges = np.arange(number + 1) * len(vectors) // number
    starts, ends = edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)
    sums = np.concatenate((np.zeros((1, vectors.shape[1]), np.float64), np.cumsum(vectors, 0, dtype=np.float64)))
    return unit((sums[ends] - sums[starts]).astype(np.float32))
