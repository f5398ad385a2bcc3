"""Vectors as eight-bit integers with a scale each, nine bits where it counts, and a window as a few of them.

Products of eight-bit vectors are integers, so every kernel that computes them gives the same number to the last bit.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LEVELS = 127
_DEVIATIONS = 6  # of the rounding error, beyond which it is not expected


def quantised(vectors: Array) -> tuple[Array, Array]:
    """Eight-bit rows, and the scale that makes each of them a vector again; a zero vector has scale 0."""
    scales = np.abs(vectors).max(1) / LEVELS
    return np.rint(vectors * _inverse(scales)).astype(np.int8), scales.astype(np.float32)


def in_nine_bits(units: Array) -> tuple[Array, Array, Array]:
    """Unit vectors as eight-bit rows, packed ninth bits and scales.

    The ninth bit tells whether a vector lies above or below its eight-bit row, which halves the error of rounding.
    """
    scales = np.abs(units).max(1) / LEVELS
    steps = units * _inverse(scales)
    rows = np.rint(steps)
    above = steps >= rows
    # The length of what is kept becomes one again.
    lengths = np.linalg.norm(rows + _quarter(above), axis=1) * (scales > 0)
    return rows.astype(np.int8), np.packbits(above, axis=1), _inverse(lengths)[:, 0].astype(np.float32)


def restored(rows: Array, bits: Array, scales: Array) -> Array:
    """Vectors from all nine bits."""
    return (rows + _quarter(np.unpackbits(bits, axis=1, count=rows.shape[1]))) * scales[:, None]


def tolerance(token_scale: float, query_scale: float) -> float:
    """How far a product of eight-bit rows may be from the cosine that it stands for."""
    # The error of a rounded number has the variance step² / 12, and both vectors have length one.
    return _DEVIATIONS * ((token_scale**2 + query_scale**2) / 12) ** 0.5


def unit(vectors: Array) -> Array:
    """Rows of length one; zero rows stay."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


def pooled(vectors: Array, number: int) -> Array:
    """`number` unit vectors that stand for a window: directions of neighbouring tokens, or tokens again if too few."""
    edges = np.arange(number + 1) * len(vectors) // number
    starts, ends = edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)
    sums = np.concatenate((np.zeros((1, vectors.shape[1]), np.float64), np.cumsum(vectors, 0, dtype=np.float64)))
    return unit((sums[ends] - sums[starts]).astype(np.float32))


def _quarter(above: Array) -> Array:
    return above * np.float32(0.5) - np.float32(0.25)


def _inverse(scales: Array) -> Array:
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)[:, None]
