"""Quantise vectors to eight bits with a scale each, to nine bits for tokens, and pool windows to a few vectors.

Products of eight-bit vectors are integers, so every kernel computes exactly the same numbers.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Scale = TypeVar("Scale", float, Array)

LEVELS = 127
_DEVIATIONS = 6  # standard deviations of the rounding error that `tolerance` allows


def quantised(vectors: Array) -> tuple[Array, Array]:
    """Quantise vectors to eight bits.

    Returns:
        int8 rows, and the scale of each row. Row × scale approximates the vector. A zero vector has scale 0.
    """
    scales = np.abs(vectors).max(1) / LEVELS
    return np.rint(vectors * _inverse(scales)).astype(np.int8), scales.astype(np.float32)


def in_nine_bits(units: Array) -> tuple[Array, Array, Array]:
    """Quantise unit vectors to nine bits.

    The ninth bit tells whether a value is above or below its eight-bit value. It halves the rounding error.

    Returns:
        int8 rows, packed ninth bits, and scales.
    """
    scales = np.abs(units).max(1) / LEVELS
    steps = units * _inverse(scales)
    rows = np.rint(steps)
    is_above = steps >= rows
    # The scale normalises the quantised vector to length 1 again.
    lengths = np.linalg.norm(rows + _quarter(is_above), axis=1) * (scales > 0)
    return rows.astype(np.int8), np.packbits(is_above, axis=1), _inverse(lengths)[:, 0].astype(np.float32)


def restored(rows: Array, bits: Array, scales: Array) -> Array:
    """Return the vectors that `in_nine_bits` quantised.

    Args:
        rows: int8 [rows, width].
        bits: The packed ninth bits, uint8 [rows, width / 8 rounded up].
        scales: float32 [rows].
    """
    vectors = rows.astype(np.float32)
    vectors += _QUARTERS.take(bits, 0).reshape(len(bits), -1)[:, : rows.shape[1]]
    vectors *= scales[:, None]
    return vectors


def tolerance(token_scale: Scale, query_scale: float) -> Scale:
    """Return the expected maximum error of a cosine computed from eight-bit rows."""
    # A rounded value has the variance step² / 12, and both vectors have length 1.
    return _DEVIATIONS * ((token_scale**2 + query_scale**2) / 12) ** 0.5


def unit(vectors: Array) -> Array:
    """Normalise rows to length 1. Zero rows stay zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


def directions(vectors: Array) -> tuple[Array, Array]:
    """Return the direction of each row, a unit vector, and its length. A zero row has the direction zero."""
    wide = vectors.astype(np.float64)  # a float32 would overflow for long vectors
    norms = np.linalg.norm(wide, axis=-1)
    units = np.divide(wide, norms[..., None], out=np.zeros_like(wide), where=norms[..., None] > 0)
    return units.astype(np.float32), norms.astype(np.float32)


def pooled(vectors: Array, number: int, norms: Array | None = None) -> Array:
    """Return `number` vectors for a window: means of neighbouring tokens, or repeated tokens if it has fewer.

    Args:
        vectors: The tokens of the window.
        number: The number of results.
        norms: The length of each token. A result has the length of its longest token. Default: length 1.
    """
    edges = np.arange(number + 1) * len(vectors) // number
    starts, ends = edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)
    sums = np.concatenate((np.zeros((1, vectors.shape[1]), np.float64), np.cumsum(vectors, 0, dtype=np.float64)))
    if norms is None:
        return unit((sums[ends] - sums[starts]).astype(np.float32))
    return directions(sums[ends] - sums[starts])[0] * np.maximum.reduceat(norms, starts)[:, None]


def _quarter(is_above: Array) -> Array:
    """Return 0.25 for a set ninth bit, and -0.25 otherwise: the middle of each half step."""
    return is_above * np.float32(0.5) - np.float32(0.25)


# The quarters of each byte of packed ninth bits: looking them up is twice as fast as unpacking the bits.
_QUARTERS = _quarter(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1))


def _inverse(scales: Array) -> Array:
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)[:, None]
