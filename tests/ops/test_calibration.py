import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.ops.calibration import (
    MIDPOINT,
    SLOPE,
    Background,
    auroc,
    background,
    confidence,
    keeping,
    reliability,
)

SCORES = st.lists(st.floats(-3, 3), min_size=1, max_size=30)
SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


# ---------------------------------------------------------------- slow twins


def middle(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def slow_background(values: list[float]) -> tuple[float, float]:
    location = middle(values)
    return location, max(1.4826 * middle([abs(value - location) for value in values]), 1e-6)


def slow_confidence(score: float, location: float, scale: float) -> float:
    logit = SLOPE * ((score - location) / scale - MIDPOINT)
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def slow_auroc(present: list[float], absent: list[float]) -> float:
    points = [1.0 if p > a else 0.5 if p == a else 0.0 for p in present for a in absent]
    return sum(points) / len(points)


def slow_keeping(values: list[float], share: float) -> float:
    fitting = [t for t in values if sum(value >= t for value in values) >= share * len(values) - 1e-9]
    return max(fitting)


# ---------------------------------------------------------------- background and confidence


def test_a_background_by_hand() -> None:
    # The median is 0.3. The distances from it are 0.2, 0.1, 0, 0.1 and 0.6, whose median is 0.1.
    found = background(np.array([0.1, 0.2, 0.3, 0.4, 0.9]))
    assert (found.location, found.scale) == pytest.approx((0.3, 0.14826))


def test_confidences_by_hand() -> None:
    at = Background(location=0.5, scale=0.1)
    scores = 0.5 + 0.1 * (MIDPOINT + np.array([0, math.log(3) / SLOPE, -math.log(3) / SLOPE]))
    assert confidence(scores, at) == pytest.approx([0.5, 0.75, 0.25])


@given(SCORES)
def test_a_background_is_that_of_its_twin(values: list[float]) -> None:
    found = background(np.array(values))
    assert (found.location, found.scale) == pytest.approx(slow_background(values))


@given(SCORES, st.floats(-1, 1), st.floats(0.01, 2))
def test_a_confidence_is_that_of_its_twin(values: list[float], location: float, scale: float) -> None:
    found = confidence(np.array(values), Background(location=location, scale=scale))
    assert found == pytest.approx([slow_confidence(value, location, scale) for value in values], abs=1e-12)


@given(SCORES, st.floats(-1, 1), st.floats(1e-6, 2))
def test_a_confidence_is_a_probability_that_never_falls_with_the_score(
    values: list[float], location: float, scale: float
) -> None:
    found = confidence(np.sort(values), Background(location=location, scale=scale))
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=20, unique=True), st.floats(-2, 2), st.floats(0.5, 4))
def test_a_confidence_does_not_depend_on_the_unit_of_scores(values: list[float], shift: float, factor: float) -> None:
    scores = np.round(values, 3)
    found = background(scores)
    if found.scale <= 1e-5:  # the least scale is a number of this unit
        return
    again = background(factor * scores + shift)
    assert confidence(factor * scores + shift, again) == pytest.approx(confidence(scores, found), abs=1e-6)


def test_a_few_sentences_that_match_hardly_change_the_background() -> None:
    scores = np.linspace(0.4, 0.6, 100)
    found, mixed = background(scores), background(np.concatenate((scores, np.full(5, 0.9))))
    assert mixed.location == pytest.approx(found.location, abs=0.01)
    assert mixed.scale == pytest.approx(found.scale, rel=0.1)


def test_equal_background_scores_do_not_divide_by_zero() -> None:
    assert confidence(np.array([0.1, 0.5, 0.9]), background(np.full(9, 0.5))) == pytest.approx([0, 0.025, 1], abs=0.01)


@pytest.mark.parametrize("scores", [[], [0.1, math.nan], [math.inf]])
def test_a_background_needs_finite_scores(scores: list[float]) -> None:
    with pytest.raises(BadBatch):
        background(np.array(scores))


@pytest.mark.parametrize(("location", "scale"), [(0.0, 0.0), (0.0, -1.0), (math.nan, 1.0), (0.0, math.inf)])
def test_a_background_has_a_scale(location: float, scale: float) -> None:
    with pytest.raises(BadSetting):
        Background(location=location, scale=scale)


# ---------------------------------------------------------------- quality


def test_an_auroc_by_hand() -> None:
    # 0.9 beats both. 0.4 loses against 0.5 and ties with 0.4: (1 + 1 + 0 + 0.5) / 4.
    assert auroc(np.array([0.9, 0.4]), np.array([0.5, 0.4])) == 0.625


@given(SHARES, SHARES)
def test_an_auroc_is_that_of_its_twin_and_turns_round(present: list[float], absent: list[float]) -> None:
    found = auroc(np.array(present), np.array(absent))
    assert found == pytest.approx(slow_auroc(present, absent))
    assert auroc(np.array(absent), np.array(present)) == pytest.approx(1 - found)


def test_an_auroc_needs_both() -> None:
    with pytest.raises(BadBatch):
        auroc(np.array([0.5]), np.zeros(0))


def test_a_threshold_by_hand() -> None:
    assert [keeping(np.array([0.9, 0.7, 0.6, 0.1]), share) for share in (1.0, 0.75, 0.6, 0.1)] == [0.1, 0.6, 0.6, 0.9]


@given(SHARES, st.floats(0.01, 1))
def test_a_threshold_is_that_of_its_twin_and_keeps_the_share(values: list[float], share: float) -> None:
    found = keeping(np.array(values), share)
    assert found == slow_keeping(values, share)
    assert (np.array(values) >= found).mean() >= share - 1e-9


@pytest.mark.parametrize("share", [0.0, -1.0, 1.1, math.nan])
def test_a_share_is_above_zero(share: float) -> None:
    with pytest.raises(BadSetting):
        keeping(np.array([0.5]), share)


def test_a_reliability_by_hand() -> None:
    found = reliability(np.array([0.1, 0.3, 0.8, 1.0]), np.array([False, True, True, True]), num_bins=2)
    assert found.stated == pytest.approx([0.2, 0.9])
    assert found.observed == pytest.approx([0.5, 1.0])
    assert found.weights == pytest.approx([2, 2])
    assert found.error() == pytest.approx((0.3 + 0.1) / 2)
    weighted = reliability(np.array([0.1, 0.3]), np.array([False, True]), np.array([3.0, 1.0]), num_bins=2)
    assert (weighted.stated[0], weighted.observed[0]) == pytest.approx((0.15, 0.25))
    assert math.isnan(weighted.observed[1])
    assert weighted.error() == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.floats(0.1, 3)), min_size=1, max_size=30))
def test_a_reliability_is_that_of_its_twin(rows: list[tuple[float, bool, float]]) -> None:
    stated, truths, weights = (np.array(column) for column in zip(*rows, strict=True))
    found = reliability(stated, truths, weights, num_bins=4)
    for number in range(4):
        inside = [row for row in rows if min(int(row[0] * 4), 3) == number]
        total = sum(weight for _, _, weight in inside)
        assert found.weights[number] == pytest.approx(total)
        if inside:
            assert found.stated[number] == pytest.approx(sum(p * w for p, _, w in inside) / total)
            assert found.observed[number] == pytest.approx(sum(w for _, is_match, w in inside if is_match) / total)
    assert 0 <= found.error() <= 1


@pytest.mark.parametrize("stated", [1.5, -0.1, math.nan])
def test_a_reliability_needs_probabilities(stated: float) -> None:
    with pytest.raises(BadBatch):
        reliability(np.array([stated]), np.array([True]))
