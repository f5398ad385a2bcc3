import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch
from midreel.ops.combine import LEVEL, STEEPNESS, all_of, any_of, in_order, normalised, without

values = st.floats(0.01, 0.99)


@st.composite
def curves(draw: st.DrawFn, parts: int | None = None, most: int = 7) -> np.ndarray:
    number, length = parts or draw(st.integers(1, 3)), draw(st.integers(1, most))
    return np.array(
        draw(st.lists(st.lists(values, min_size=length, max_size=length), min_size=number, max_size=number))
    )


# ---------------------------------------------------------------- slow twins


def slow_normalised(score: float, background: list[float]) -> float:
    mean = sum(background) / len(background)
    spread = math.sqrt(sum((each - mean) ** 2 for each in background) / len(background))
    return 1 / (1 + math.exp(-STEEPNESS * ((score - mean) / spread - LEVEL)))


def slow_in_order(curves: np.ndarray) -> float:
    best = 0.0
    for tokens in itertools.combinations(range(curves.shape[1]), len(curves)):
        best = max(best, math.prod(curves[part, token] for part, token in enumerate(tokens)))
    return best


# ---------------------------------------------------------------- normalised scores


def test_a_hand_computed_case() -> None:
    """The background 0, 0, 2, 2 has mean 1 and standard deviation 1."""
    assert normalised(np.array([1 + LEVEL]), np.array([0.0, 0, 2, 2]))[0] == pytest.approx(0.5)
    two_thirds = 1 + LEVEL + math.log(2) / STEEPNESS
    assert normalised(np.array([two_thirds]), np.array([0.0, 0, 2, 2]))[0] == pytest.approx(2 / 3)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9), st.lists(st.floats(-5, 5), min_size=1, max_size=9))
def test_normalised_scores_are_those_of_the_twin_and_keep_their_order(
    background: list[float], scores: list[float]
) -> None:
    found = normalised(np.array(scores), np.array(background))
    assert ((found > 0) & (found < 1)).all()
    assert (np.diff(found[np.argsort(scores, kind="stable")]) >= 0).all()
    if np.std(background) > 0.1:
        assert found == pytest.approx([slow_normalised(score, background) for score in scores], rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9), st.floats(0.1, 10), st.floats(-5, 5))
def test_a_query_with_other_units_has_the_same_values(scores: list[float], scale: float, offset: float) -> None:
    background = np.array([-1.0, 0.5, 2.0])
    ours = normalised(np.array(scores), background)
    assert normalised(scale * np.array(scores) + offset, scale * background + offset) == pytest.approx(ours, abs=1e-6)


def test_a_background_without_spread() -> None:
    for background in ([0.3], [0.3, 0.3, 0.3], [0.1 + 0.2, 0.3]):
        low, high = normalised(np.array([0.2, 0.3]), np.array(background))
        assert 0 < low < high < 1
    with pytest.raises(BadBatch, match="empty"):
        normalised(np.array([0.3]), np.array([]))


# ---------------------------------------------------------------- any, all, without


@given(curves())
def test_any_of_is_idempotent_and_at_least_each_part(parts: np.ndarray) -> None:
    assert (any_of(np.concatenate((parts, parts))) == any_of(parts)).all()
    assert (any_of(parts) >= parts).all()
    assert (any_of(parts[::-1]) == any_of(parts)).all()


@given(st.lists(values, min_size=1, max_size=5))
def test_all_of_is_symmetric_between_the_extremes_and_rises_with_each_part(parts: list[float]) -> None:
    whole = all_of(np.array(parts))
    assert all_of(np.array(sorted(parts))) == pytest.approx(whole)
    assert min(parts) - 1e-9 <= whole <= max(parts) + 1e-9
    assert all_of(np.array([*parts[:-1], parts[-1] + 0.005])) > whole
    assert all_of(np.array(parts * 2)) == pytest.approx(whole)


@given(curves(parts=2))
def test_without_only_lowers(parts: np.ndarray) -> None:
    wanted, unwanted = parts
    assert (without(wanted, np.zeros_like(wanted)) == wanted).all()
    assert (without(wanted, unwanted) < wanted).all()
    assert (without(wanted, unwanted + 0.005) < without(wanted, unwanted)).all()


# ---------------------------------------------------------------- in order


def test_order_matters() -> None:
    """A at token 0, B at token 2: the product is 0.9 × 0.8. In the other order the best pair is tokens 1 and 2."""
    a, b = [0.9, 0.1, 0.2], [0.1, 0.3, 0.8]
    assert in_order(np.array([a, b])) == (pytest.approx(0.72), [0, 2])
    assert in_order(np.array([b, a])) == (pytest.approx(0.06), [1, 2])


def test_one_token_cannot_be_two_moments() -> None:
    assert in_order(np.array([[0.9], [0.9]]))[0] == 0
    assert in_order(np.array([[0.5, 0.9], [0.5, 0.9]])) == (pytest.approx(0.45), [0, 1])


@given(curves())
def test_in_order_is_the_best_of_all_choices(parts: np.ndarray) -> None:
    product, tokens = in_order(parts)
    assert product == pytest.approx(slow_in_order(parts))
    if parts.shape[1] >= len(parts):
        assert tokens == sorted(set(tokens))
        assert math.prod(parts[part, token] for part, token in enumerate(tokens)) == pytest.approx(product)


@given(curves(parts=2), st.integers(0, 5))
def test_moving_the_later_part_further_back_never_lowers_the_product(parts: np.ndarray, by: int) -> None:
    """B is delayed by some tokens, and A goes on for as long at its lowest value."""
    first, second = parts
    later = np.stack((np.pad(first, (0, by), constant_values=0.01), np.pad(second, (by, 0), constant_values=0.01)))
    assert in_order(later)[0] >= in_order(parts)[0] - 1e-12


@given(curves())
def test_a_sequence_is_at_most_as_good_as_its_parts_at_any_time(parts: np.ndarray) -> None:
    assert in_order(parts)[0] <= math.prod(parts.max(1)) + 1e-12
    assert in_order(parts[:1])[0] == parts[0].max()
