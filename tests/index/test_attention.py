"""The numpy attention equals a slow twin, and the score that training and evaluation use."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.index.attention import attended_cosine, best_guide
from midreel.index.base import Array
from midreel.index.embedded.quantise import directions
from midreel.ops import scoring


def slow_attention(query: Array, guides: Array, keys: Array, values: Array) -> float:
    """The attention of one window, in loops over Python numbers."""

    def dot(left: list[float], right: list[float]) -> float:
        return sum(a * b for a, b in zip(left, right, strict=True))

    def cosine(left: list[float], right: list[float]) -> float:
        lengths = math.sqrt(dot(left, left)) * math.sqrt(dot(right, right))
        return dot(left, right) / lengths if lengths else 0.0

    asked, best = query.tolist(), guides.tolist()[0]
    for guide in guides.tolist():
        if cosine(asked, guide) > cosine(asked, best):
            best = guide
    logits = [dot(key, best) for key in keys.tolist()]
    shares = [math.exp(logit - max(logits)) for logit in logits]
    mean = [dot(shares, column) / sum(shares) for column in values.T.tolist()]
    return cosine(asked, mean)


def fast(query: Array, guides: Array, keys: Array, values: Array) -> float:
    unit, lengths = directions(guides)
    asked = directions(query[None])[0][0]
    best = best_guide(asked, unit)
    return attended_cosine(asked, (unit[best], float(lengths[best])), directions(keys), directions(values))


def window(seed: int, guides: int, tokens: int, width: int = 8) -> tuple[Array, Array, Array, Array]:
    """A query and a window whose tokens have different lengths."""
    random = np.random.default_rng(seed)

    def vectors(number: int) -> Array:
        return (random.standard_normal((number, width)) * random.uniform(0, 4, (number, 1))).astype(np.float32)

    return vectors(1)[0], vectors(guides), vectors(tokens), vectors(tokens)


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 12))
def test_equals_the_loop_and_torch(seed: int, guides: int, tokens: int) -> None:
    parts = window(seed, guides, tokens)
    found = fast(*parts)
    assert found == pytest.approx(slow_attention(*parts), abs=2e-5)
    query, *video = (torch.from_numpy(part)[None] for part in parts)
    assert found == pytest.approx(scoring.attended_cosine(query, *video).item(), abs=2e-5)


def test_one_value_gets_all_the_weight_of_a_long_guide() -> None:
    query, guides, keys, values = window(1, 4, 6)
    best = guides[best_guide(directions(query[None])[0][0], directions(guides)[0])]
    chosen = values[(keys @ best).argmax()]
    alone = query @ chosen / np.linalg.norm(query) / np.linalg.norm(chosen)
    assert fast(query, 1e30 * guides, 1e25 * keys, values) == pytest.approx(alone, abs=1e-6)
    assert fast(query, guides, 0 * keys, values) == pytest.approx(fast(query, 0 * guides, keys, values))


def test_lengths_of_values_near_the_limit() -> None:
    query, guides, keys, values = window(2, 3, 5)
    scores = [fast(query, guides, keys, np.float32(factor) * values) for factor in (1, 1e29, 1e-29)]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-6)


def test_zero_vectors() -> None:
    query, guides, keys, values = window(3, 3, 5)
    assert fast(query, guides, keys, 0 * values) == 0
    assert fast(0 * query, guides, keys, values) == 0
    opposite = np.array([[1, 0], [-1, 0]], np.float32)
    assert fast(opposite[0], opposite, 0 * opposite, opposite) == 0
