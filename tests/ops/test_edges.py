import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.ops.edges import PLAYHOUSE, EdgeCalibration, calibrated, edge_ranges, slopes, with_ranges
from midreel.ops.moments import LEVEL, Curve, Moments, find_moments

LOW, HIGH = LEVEL - 0.1, LEVEL + 0.1


def in_seconds(*rows: list[float], length: float = 2.0) -> Curve:
    """Curves over tokens of two seconds."""
    edges = np.arange(len(rows[0]) + 1) * length
    spans = np.broadcast_to(np.stack((edges[:-1], edges[1:]), -1), (len(rows), len(rows[0]), 2))
    return Curve(scores=np.array(rows, np.float64), spans=spans)


# ---------------------------------------------------------------- slopes and ranges, by hand


def test_a_sharp_edge_has_the_slope_of_a_frame() -> None:
    curve = in_seconds([0, 0, 0, 1, 1, 0, 0, 0])
    assert slopes(curve, find_moments(curve, most=1)).tolist() == [[[[2, 2], [2, 2]]]]
    assert slopes(curve, find_moments(curve, most=1), 5.0).tolist() == [[[[5, 5], [5, 5]]]]


def test_a_soft_edge_is_wide_on_the_side_of_the_slope() -> None:
    # The moment is from 8 to 14 s. The curve is clearly high from 10 s on, and clearly low before 6 and after 18 s.
    curve = in_seconds([0, 0, 0, 0.4, 0.5, 1, 1, 0.44, 0.4, 0, 0, 0, 0])
    moments = find_moments(curve, most=1)
    assert moments.spans.tolist() == [[[8, 14]]]
    assert slopes(curve, moments).tolist() == [[[[2 + 2, 2 + 2], [2, 4 + 2]]]]


def test_without_a_low_token_the_slope_reaches_the_end_of_the_video() -> None:
    curve = in_seconds([0.4, 1, 0.4, 0, 0, 0, 0])
    ((((before, _), _),),) = slopes(curve, find_moments(curve, most=1)).tolist()
    assert before == 2 + 2


def test_a_low_second_moment_has_no_high_token_but_its_best() -> None:
    curve = in_seconds([0, 0, 1, 0, 0, 0.46, 0.5, 0, 0, 0])
    moments = find_moments(curve, most=2)
    assert moments.spans[0, 1].tolist() == [10, 14]
    assert slopes(curve, moments)[0, 1].tolist() == [[2, 2 + 2], [2, 2]]


def test_ranges_by_hand() -> None:
    curve = in_seconds([0, 0, 0, 1, 1, 0, 0, 0])
    wide = EdgeCalibration(start=(0.5, 1.0), end=(0.0, 4.0))
    (found,) = with_ranges(curve, find_moments(curve), wide).listed()
    assert (found[0].start_range, found[0].end_range) == ((5, 8), (10, 16))  # the video ends after 16 s
    assert found[0].to_dict()["start_range"] == [5, 8]


def test_ranges_keep_the_order_of_start_and_end() -> None:
    video = np.array([[0.0, 20.0]])
    narrow = EdgeCalibration(start=(3.0, 3.0), end=(0.5, 0.5))
    ((start, end),) = edge_ranges(np.array([[8.0, 10.0]]), np.full((1, 2, 2), 2.0), video, narrow).tolist()
    assert (start, end) == ([2, 11], [9, 11])


def test_padding_has_no_range() -> None:
    curve = in_seconds([0, 1, 0, 0, 0], [1, 0, 0, 1, -math.inf])
    found = with_ranges(curve, find_moments(curve, most=2))
    assert found.ranges is not None
    assert found.ranges[0, 1].tolist() == [[0, 0], [0, 0]]
    assert [len(row) for row in found.listed()] == [1, 2]
    assert found.ranges[1, 0, 1, 1] <= 8  # the padding is not part of the video


# ---------------------------------------------------------------- twin and properties


def slow_slopes(curve: Curve, span: tuple[float, float], peak: float, gap: float) -> list[list[float]]:
    """One query without padding, token by token from each edge."""
    row, spans = curve.scores[0].tolist(), curve.spans[0].tolist()
    middle = sorted(row)[(len(row) - 1) // 2]
    heights = [score - middle for score in row]
    first = next(k for k, (start, _) in enumerate(spans) if start == span[0])
    last = next(k for k, (_, end) in enumerate(spans) if end == span[1])
    best = next(k for k, (start, end) in enumerate(spans) if start <= peak < end)
    top = max(row) - middle
    before = after = 0.0
    for k in range(first - 1, -1, -1):
        if heights[k] < LOW * top:
            break
        before += spans[k][1] - spans[k][0]
    for k in range(last + 1, len(row)):
        if heights[k] < LOW * top:
            break
        after += spans[k][1] - spans[k][0]
    inner_start = next(k for k in range(first, best + 1) if heights[k] >= HIGH * top or k == best)
    inner_end = next(k for k in range(last, best - 1, -1) if heights[k] >= HIGH * top or k == best)
    gaps = [max(gap, spans[k][1] - spans[k][0]) for k in (first, last)]
    return [
        [before + gaps[0], spans[inner_start][0] - span[0] + gaps[0]],
        [span[1] - spans[inner_end][1] + gaps[1], after + gaps[1]],
    ]


curve_rows = st.lists(st.integers(-16, 16).map(lambda n: n / 16), min_size=1, max_size=12)


@given(curve_rows, st.sampled_from([0.0, 0.5, 4.0]))
def test_slopes_equal_the_loop(row: list[float], gap: float) -> None:
    curve = in_seconds(row)
    found = find_moments(curve)
    widths = slopes(curve, found, gap)
    for number in np.flatnonzero(np.isfinite(found.scores[0])):
        expected = slow_slopes(curve, tuple(found.spans[0, number].tolist()), found.peaks[0, number].item(), gap)
        np.testing.assert_allclose(widths[0, number], expected, err_msg=str(number))


@given(curve_rows, st.lists(st.floats(0, 9), min_size=4, max_size=4), st.sampled_from([0.0, 3.0]))
def test_ranges_contain_the_edge_and_stay_in_the_video(row: list[float], factors: list[float], gap: float) -> None:
    curve = in_seconds(row)
    moments = find_moments(curve)
    before, after, early, late = factors
    found = with_ranges(curve, moments, EdgeCalibration(start=(before, after), end=(early, late)), gap)
    for moment in found.listed()[0]:
        assert moment.start_range is not None
        assert moment.end_range is not None
        assert 0 <= moment.start_range[0] <= moment.start <= moment.start_range[1]
        assert moment.end_range[0] <= moment.end <= moment.end_range[1] <= 2 * len(row)
        assert moment.start_range[0] <= moment.end_range[0]
        assert moment.start_range[1] <= moment.end_range[1]


@given(st.lists(curve_rows, min_size=1, max_size=4))
def test_a_batch_equals_its_queries(rows: list[list[float]]) -> None:
    length = max(map(len, rows))
    curve = in_seconds(*(row + [-math.inf] * (length - len(row)) for row in rows))
    together = with_ranges(curve, find_moments(curve)).listed()
    for number in range(len(rows)):
        alone = Curve(scores=curve.scores[number : number + 1], spans=curve.spans[number : number + 1])
        assert with_ranges(alone, find_moments(alone)).listed()[0] == together[number]


def test_the_offset_and_the_scale_of_scores_do_not_matter() -> None:
    row = [0, 0.125, 0.5, 1, 0.75, 0.375, 0.25, 0]
    plain, other = in_seconds(row), in_seconds([4 * score - 2 for score in row])
    assert np.array_equal(slopes(plain, find_moments(plain)), slopes(other, find_moments(other)))


# ---------------------------------------------------------------- calibration


def cases(number: int, seed: int) -> dict[str, Any]:
    """Edges with errors of very different sizes, on both sides, and slopes that say little about them."""
    rng = np.random.default_rng(seed)
    found = np.sort(rng.uniform(20, 80, (number, 2)), 1)
    true = found + rng.standard_t(2, (number, 2)) - 0.3
    return {"found": found, "true": true, "slopes": rng.uniform(0.5, 3, (number, 2, 2))}


def contained(of: dict[str, Any], calibration: EdgeCalibration) -> np.ndarray:
    ranges = edge_ranges(of["found"], of["slopes"], np.array([-1e9, 1e9]), calibration)
    return (ranges[..., 0] <= of["true"]) & (of["true"] <= ranges[..., 1])


def test_calibration_by_hand() -> None:
    """Of 19 errors, the 18th is the bound: (19 + 1) * 0.9."""
    errors = np.arange(19.0)
    found = np.full((19, 2), 50.0)
    true = np.stack((found[:, 0] - errors, found[:, 1] + 3 * errors), 1)
    calibration = calibrated(found, true, np.full((19, 2, 2), 2.0))
    assert calibration == EdgeCalibration(start=(8.5, 0.0), end=(0.0, 25.5))


def test_too_few_moments() -> None:
    nine = cases(9, 0)
    calibrated(**nine)
    with pytest.raises(BadBatch, match="8 moments"):
        calibrated(**{name: part[:8] for name, part in nine.items()})
    with pytest.raises(BadSetting, match="confidence is 1"):
        calibrated(**nine, confidence=1.0)


@given(st.integers(9, 60), st.integers(0, 2**31))
def test_ranges_contain_the_stated_share_of_the_moments_of_the_calibration(number: int, seed: int) -> None:
    of = cases(number, seed)
    assert (contained(of, calibrated(**of)).mean(0) >= 0.8).all()


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9])
def test_ranges_contain_the_stated_share_of_other_moments(confidence: float) -> None:
    other = cases(20_000, 1)
    shares = [contained(other, calibrated(**cases(400, seed), confidence=confidence)).mean() for seed in range(2, 12)]
    assert np.mean(shares) == pytest.approx(confidence, abs=0.015)


def test_shipped_values_are_plausible() -> None:
    assert all(0.2 < factor < 3 for factor in (*PLAYHOUSE.start, *PLAYHOUSE.end))
    assert EdgeCalibration.from_dict(PLAYHOUSE.to_dict()) == PLAYHOUSE


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_bad_calibrations(factor: float) -> None:
    with pytest.raises(BadSetting, match="end is"):
        EdgeCalibration(start=(1.0, 1.0), end=(1.0, factor))


@pytest.mark.parametrize("values", [{"start": [1, 1]}, {"start": [1], "end": [1, 1]}, {"start": None, "end": "12"}])
def test_damaged_values(values: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        EdgeCalibration.from_dict(values)


def test_moments_without_ranges() -> None:
    moments = Moments(spans=np.array([[[0.0, 1.0]]]), peaks=np.array([[0.5]]), scores=np.array([[1.0]]))
    assert moments.listed()[0][0].start_range is None
