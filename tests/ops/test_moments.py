from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.ops import moments
from midreel.ops.moments import Curve, Moments, ScoredMoment, find_moments, fused, joined

WEIGHTS = {"clip": 1, "frame": 3}
NOTHING = -np.inf


def drawn(*rows: list[float], spans: np.ndarray | None = None) -> Curve:
    """Curves over tokens of equal length."""
    scores = np.array(rows, np.float64)
    if spans is None:
        edges = np.arange(scores.shape[1] + 1) / scores.shape[1]
        spans = np.broadcast_to(np.stack((edges[:-1], edges[1:]), -1), (*scores.shape, 2))
    return Curve(scores=scores, spans=spans)


def tokens_of(found: Moments, num_tokens: int) -> list[list[tuple[int, int]]]:
    """The first token of each moment and the token after its last one."""
    return [
        [tuple(round(edge * num_tokens) for edge in span) for span, score in zip(*row, strict=True) if score > NOTHING]
        for row in zip(found.spans.tolist(), found.scores.tolist(), strict=True)
    ]


# ---------------------------------------------------------------- fusion of branches

CLIPS = Curve(
    scores=np.array([[0.2, 0.6, NOTHING]]),
    spans=np.array([[[0.0, 0.25], [0.25, 1.0], [0.0, 0.0]]]),
)


def test_branches_are_fused_by_hand() -> None:
    frames = drawn([0.0, 0.4, 0.8, 0.4])
    even = fused({"clip": CLIPS, "frame": frames}, {"clip": 1, "frame": 1})
    assert even.scores[0].tolist() == pytest.approx([0.1, 0.5, 0.7, 0.5])
    assert np.array_equal(even.spans, frames.spans)
    weighted = fused({"clip": CLIPS, "frame": frames}, WEIGHTS)
    assert weighted.scores[0].tolist() == pytest.approx([0.05, 0.45, 0.75, 0.45])
    assert np.array_equal(fused({"clip": CLIPS, "frame": frames}, {"clip": 0, "frame": 1}).scores, frames.scores)
    assert np.array_equal(fused({"clip": CLIPS}, WEIGHTS).scores, CLIPS.scores)


def test_a_branch_without_a_token_contributes_its_lowest_score() -> None:
    holes = Curve(scores=CLIPS.scores, spans=np.array([[[0.0, 0.25], [0.5, 1.0], [0.0, 0.0]]]))
    found = fused({"clip": holes, "frame": drawn([0.0, 0.0, 0.0, 0.0])}, {"clip": 1, "frame": 1})
    assert found.scores[0].tolist() == pytest.approx([0.1, 0.1, 0.3, 0.3])


def test_padding_of_the_grid_stays_padding() -> None:
    found = fused({"clip": CLIPS, "frame": drawn([0.0, 0.4, 0.8, NOTHING])}, WEIGHTS)
    assert found.scores[0, 3] == NOTHING


PROPOSALS = np.array([[[0.0, 0.5], [0.5, 1.0], [0.0, 1.0], [0.25, 0.75]]])


def test_overlapping_tokens_on_the_grid_of_another_branch_by_hand() -> None:
    """Each quarter takes the best of the proposals that contain its middle."""
    clips, frames = drawn([0.1, 0.6, 0.3, 0.5], spans=PROPOSALS), drawn([1.0, 2.0, 3.0, 4.0])
    curve = fused({"clip": clips, "frame": frames}, {"clip": 1, "frame": 0})
    assert curve.spans.tolist() == frames.spans.tolist()
    assert curve.scores.tolist() == [[0.3, 0.5, 0.6, 0.6]]
    assert fused({"clip": clips, "frame": frames}, WEIGHTS).scores[0] == pytest.approx([0.825, 1.625, 2.4, 3.15])


def test_overlapping_tokens_alone_by_hand() -> None:
    curve = fused({"clip": drawn([0.1, 0.6, 0.3, 0.5], spans=PROPOSALS)}, {"clip": 2})
    assert curve.spans.tolist() == [[[0.0, 0.25], [0.25, 0.5], [0.5, 0.75], [0.75, 1.0]]]
    assert curve.scores.tolist() == [[0.3, 0.5, 0.6, 0.6]]


def test_a_branch_without_weight_does_not_change_the_scores() -> None:
    clips, keys = drawn([0.1, 0.6, 0.3, 0.5], spans=PROPOSALS), drawn([9.0, -9.0, NOTHING, NOTHING])
    alone = fused({"clip": clips}, {"clip": 1})
    both = fused({"clip": clips, "key": keys}, {"clip": 1, "key": 0})
    for (start, end), score in zip(both.spans[0][:2], both.scores[0][:2], strict=True):
        inside = (alone.spans[0] <= (start + end) / 2)[:, 0].sum() - 1
        assert score == alone.scores[0][inside]


def all_clips(number: int) -> np.ndarray:
    """The spans of all clips of consecutive units, as proposals of many lengths have them: short ones first."""
    spans = [(start, start + size) for size in range(1, number + 1) for start in range(number - size + 1)]
    return np.array([spans]) / number


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**31))
def test_overlapping_tokens_equal_the_loop(number: int, units: int, seed: int) -> None:
    random, spans = np.random.default_rng(seed), all_clips(number)
    clips = drawn(random.standard_normal(spans.shape[1]).tolist(), spans=spans)
    frames = drawn(random.standard_normal(units).tolist())
    curve = fused({"clip": clips, "frame": frames}, WEIGHTS)
    grid = frames if number > 1 or units > 1 else clips
    expected = []
    for (start, end), score in zip(grid.spans[0], curve.scores[0], strict=True):
        middle = (start + end) / 2
        around = [s for (left, right), s in zip(spans[0], clips.scores[0], strict=True) if left <= middle < right]
        frame = frames.scores[0][min(int(middle * units), units - 1)]
        expected.append((max(around) + 3 * frame) / 4)
        assert score == pytest.approx(expected[-1])


def test_many_videos_are_fused_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    random, spans = np.random.default_rng(0), np.repeat(all_clips(4), 9, 0)
    clips, frames = drawn(*random.standard_normal((9, 10)), spans=spans), drawn(*random.standard_normal((9, 6)))
    whole = fused({"clip": clips, "frame": frames}, WEIGHTS)
    monkeypatch.setattr(moments, "_MOST_PAIRS", 150)
    assert np.array_equal(fused({"clip": clips, "frame": frames}, WEIGHTS).scores, whole.scores)


def test_bad_curves_and_weights() -> None:
    with pytest.raises(BadBatch, match="empty"):
        fused({}, WEIGHTS)
    for weights in ({"clip": 0.0}, {"frame": 1.0}, {"clip": -1.0}):
        with pytest.raises(BadSetting, match=r"weights is \{"):
            fused({"clip": CLIPS}, weights)


# ---------------------------------------------------------------- windows of a long video


def test_windows_are_joined_by_hand() -> None:
    windows = drawn([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, NOTHING, NOTHING])
    windows = Curve(scores=windows.scores, spans=windows.spans.copy())
    # The last window is padded: its two real tokens share it.
    windows.spans[2, :2] = np.array([[0.0, 0.5], [0.5, 1.0]])
    whole = joined(windows, np.array([0.0, 6.0, 12.0]), np.array([8.0, 14.0, 16.0]))
    assert whole.scores.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    edges = [0, 2, 4, 6, 7, 8, 10, 12, 13, 14, 16]  # 6 to 8 and 12 to 14 are in two windows
    assert whole.spans.tolist() == [[[start, end] for start, end in pairwise(edges)]]


def test_windows_that_overlap_by_more_than_a_token() -> None:
    whole = joined(drawn([1, 2, 3, 4], [5, 6, 7, 8]), np.array([0.0, 4.0]), np.array([8.0, 12.0]))
    assert whole.scores.tolist() == [[1, 2, 3, 6, 7, 8]]
    assert whole.spans[0].tolist() == [[0, 2], [2, 4], [4, 6], [6, 8], [8, 10], [10, 12]]


def test_a_moment_across_two_windows_is_one() -> None:
    windows = drawn([0, 0, 0, 1], [0.9, 0, 0, 0], [0, 0, 0.8, 0])
    whole = joined(windows, np.array([0.0, 8.0, 16.0]), np.array([8.0, 16.0, 24.0]))
    (found,) = find_moments(whole, level=0.5).listed()
    assert found == [
        ScoredMoment(start=6, end=10, score=1, peak=7),
        ScoredMoment(start=20, end=22, score=0.8, peak=21),
    ]


def test_one_window_is_the_video() -> None:
    curve = drawn([0, 0, 1, 0.5])
    whole = joined(curve, np.array([0.0]), np.array([8.0]))
    assert np.array_equal(whole.scores, curve.scores)
    assert np.array_equal(whole.spans, curve.spans * 8)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 99))
def test_videos_that_are_joined_together_are_joined_as_each_alone(num_windows: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = np.where(random.random((sum(num_windows), 6)) < 0.8, random.random((sum(num_windows), 6)), -np.inf)
    scores[:, 2] = 1.0
    windows = drawn(*scores.tolist())
    starts = np.concatenate([np.arange(number) * 6.0 for number in num_windows])
    videos = np.repeat(np.arange(len(num_windows)), num_windows)
    together = joined(windows, starts, starts + 8.0, videos)
    for number in range(len(num_windows)):
        own = videos == number
        alone = joined(Curve(scores=windows.scores[own], spans=windows.spans[own]), starts[own], starts[own] + 8.0)
        length = alone.scores.shape[1]
        assert np.array_equal(together.scores[number, :length], alone.scores[0])
        assert np.array_equal(together.spans[number, :length], alone.spans[0])
        assert (together.scores[number, length:] == -np.inf).all()


def test_windows_out_of_order() -> None:
    with pytest.raises(BadBatch, match=r"\[8.0, 0.0\].*\[16.0, 8.0\]"):
        joined(drawn([1], [2]), np.array([8.0, 0.0]), np.array([16.0, 8.0]))


# ---------------------------------------------------------------- moments, by hand


def test_a_moment_ends_where_the_curve_falls() -> None:
    # The median is 0 and the peak 1, so that the threshold is 0.5.
    found = find_moments(drawn([0, 0, 0.6, 1, 0.7, 0, 0, 0]), most=3, level=0.5)
    assert tokens_of(found, 8) == [[(2, 5)]]
    assert found.scores[0].tolist() == [1, NOTHING, NOTHING]
    assert found.peaks[0].tolist() == [3.5 / 8, 0, 0]
    assert found.spans[0].tolist() == [[0.25, 0.625], [0, 0], [0, 0]]


def test_neighbours_are_one_moment_if_the_dip_between_them_is_small() -> None:
    # In the first row the dip loses 0.1 and the lower neighbour gains 0.3. In the second row it is 0.4 and 0.3.
    found = find_moments(drawn([0, 0, 0, 1, 0.4, 0.8, 0, 0], [0, 0, 0, 1, 0.1, 0.8, 0, 0]), most=3, level=0.5)
    assert tokens_of(found, 8) == [[(3, 6)], [(3, 4), (5, 6)]]
    assert found.scores[1].tolist() == [1, 0.8, NOTHING]


def test_a_token_below_the_median_separates_moments() -> None:
    # The dip loses 0.55 or 0.45, and the neighbours gain 0.9. The median is 0.
    found = find_moments(drawn([0, 0, 1, 0.9, -0.05, 0.9, 1, 0, 0], [0, 0, 1, 0.9, 0.05, 0.9, 1, 0, 0]), level=0.5)
    assert tokens_of(found, 9) == [[(2, 4), (5, 7)], [(2, 7)]]


def test_the_floor_can_be_higher_or_missing() -> None:
    dips = drawn([0, 0, 1, 0.9, -0.05, 0.9, 1, 0, 0], [0, 0, 1, 0.9, 0.05, 0.9, 1, 0, 0])
    assert tokens_of(find_moments(dips, level=0.5, floor=0.1), 9) == [[(2, 4), (5, 7)]] * 2
    assert tokens_of(find_moments(dips, level=0.5, floor=None), 9) == [[(2, 7)]] * 2


def test_the_highest_peak_comes_first_even_if_another_lasts_longer() -> None:
    found = find_moments(drawn([0, 1, 0, 0, 0, 0, 0.9, 0.9, 0.9, 0]), most=3, level=0.5)
    assert tokens_of(found, 10) == [[(1, 2), (6, 9)]]


def test_long_tokens_count_for_more() -> None:
    # A dip of 0.25 below the threshold. A short dip loses less than the 0.03 after it gains, a long dip loses more.
    for dip, expected in ((0.1, [[0.2, 0.5]]), (0.4, [[0.2, 0.3], [0.7, 0.8]])):
        edges = [0.0, 0.1, 0.2, 0.3, 0.3 + dip, 0.4 + dip, 0.9, 1.0]
        spans = np.array([list(pairwise(edges))])
        found = find_moments(drawn([0, 0, 1, 0.25, 0.8, 0, 0], spans=spans), most=2, level=0.5)
        kept = found.spans[0][np.isfinite(found.scores[0])]
        np.testing.assert_allclose(kept, expected)


def test_a_constant_curve_is_the_whole_video() -> None:
    assert tokens_of(find_moments(drawn([0.3] * 7), most=2), 7) == [[(0, 7)]]


def test_one_token_is_the_whole_video() -> None:
    found = find_moments(drawn([0.3], [-0.2]))
    assert tokens_of(found, 1) == [[(0, 1)], [(0, 1)]]
    assert found.scores[:, 0].tolist() == [0.3, -0.2]


def test_a_moment_of_seconds_in_a_video_of_hours() -> None:
    """The moment follows a long one whose sum is so large that single precision would lose the seconds."""
    scores = (0.15 + 0.03 * np.random.default_rng(0).standard_normal((1, 43_200))).astype(np.float32)
    scores[0, 100:2500] += 0.35
    scores[0, 32_400:32_424] = 0.45
    edges = np.arange(43_201, dtype=np.float32) * np.float32(0.5)
    found = find_moments(Curve(scores=scores, spans=np.stack((edges[:-1], edges[1:]), -1)[None]))
    assert found.spans[0, 1].tolist() == [16_200.0, 16_212.0]


def test_padding_is_in_no_moment() -> None:
    padded = find_moments(drawn([0, 0, 0, 1, 0.9, NOTHING, NOTHING, NOTHING]), most=2, level=0.5)
    assert tokens_of(padded, 8) == [[(3, 5)]]
    split = find_moments(drawn([0, 0, 0, 0, 0, 1, NOTHING, 0.9]), most=2, level=0.5)
    assert tokens_of(split, 8) == [[(5, 6), (7, 8)]]


def test_in_seconds() -> None:
    spans = np.broadcast_to([[0.0, 2.0], [2.0, 4.0], [4.0, 6.0], [6.0, 8.0]], (2, 4, 2))
    found = find_moments(drawn([0, 0, 1, 0], [1, 0, 0, 0.75], spans=spans), most=2, level=0.5)
    assert found.listed() == [
        [ScoredMoment(start=4, end=6, score=1, peak=5)],
        [ScoredMoment(start=0, end=2, score=1, peak=1), ScoredMoment(start=6, end=8, score=0.75, peak=7)],
    ]


def test_bad_arguments() -> None:
    with pytest.raises(BadSetting, match="most is 0"):
        find_moments(drawn([1, 2]), most=0)
    with pytest.raises(BadSetting, match="level is 1"):
        find_moments(drawn([1, 2]), level=1)
    with pytest.raises(BadSetting, match=r"floor is 0\.6"):
        find_moments(drawn([1, 2]), level=0.5, floor=0.6)
    with pytest.raises(BadBatch, match="no real token"):
        find_moments(drawn([1, 2], [NOTHING, NOTHING]))


# ---------------------------------------------------------------- moments, twin and properties

# Multiples of 1/16 with a level of 1/2: sums are exact, and so ties are ties.
curve_rows = st.lists(st.integers(-16, 16).map(lambda n: n / 16), min_size=1, max_size=12)


def slow_moments(row: list[float], most: int, level: float) -> list[tuple[int, int, float]]:
    """Try every part around every peak."""
    background = sorted(row)[(len(row) - 1) // 2]
    threshold = background + level * (max(row) - background)
    free, found = set(range(len(row))), []
    while free and len(found) < most:
        peak = max(free, key=lambda token: (row[token], -token))
        if found and row[peak] <= threshold:
            break
        parts = [
            (first, last)
            for first in range(peak + 1)
            for last in range(peak, len(row))
            if free.issuperset(range(first, last + 1)) and min(row[first : last + 1]) >= background
        ]
        first, last = max(
            parts, key=lambda part: (sum(row[k] - threshold for k in range(part[0], part[1] + 1)), part[1] - part[0])
        )
        free -= set(range(first, last + 1))
        found.append((first, last + 1, row[peak]))
    return found


@given(curve_rows, st.integers(1, 4))
def test_equals_the_loop(row: list[float], most: int) -> None:
    found = find_moments(drawn(row), most=most, level=0.5)
    expected = slow_moments(row, most, 0.5)
    assert tokens_of(found, len(row)) == [[(first, last) for first, last, _ in expected]]
    assert [score for score in found.scores[0].tolist() if score > NOTHING] == [score for *_, score in expected]


@given(curve_rows, st.integers(1, 6), st.floats(0.05, 0.95))
def test_moments_are_disjoint_and_contain_their_peaks(row: list[float], most: int, level: float) -> None:
    found = find_moments(drawn(row), most=most, level=level)
    real = np.isfinite(found.scores[0])
    assert real[0]
    spans, peaks, scores = found.spans[0][real], found.peaks[0][real], found.scores[0][real]
    assert (spans[:, 0] >= 0).all()
    assert (spans[:, 1] <= 1).all()
    assert (spans[:, 0] < peaks).all()
    assert (peaks < spans[:, 1]).all()
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)
    in_time = spans[spans[:, 0].argsort()]
    assert (in_time[:-1, 1] <= in_time[1:, 0]).all()
    assert scores[0] == max(row)


@given(curve_rows, st.integers(-8, 8), st.sampled_from([0.25, 2.0, 8.0]))
def test_offset_and_scale_do_not_matter(row: list[float], height: int, scale: float) -> None:
    plain = find_moments(drawn(row), level=0.5)
    other = find_moments(drawn([scale * score + height for score in row]), level=0.5)
    assert np.array_equal(other.spans, plain.spans)
    assert np.array_equal(other.peaks, plain.peaks)


@given(curve_rows.filter(lambda row: len(set(row)) == len(row)))
def test_a_reversed_curve_has_reversed_moments(row: list[float]) -> None:
    there = tokens_of(find_moments(drawn(row), level=0.5), len(row))[0]
    back = tokens_of(find_moments(drawn(row[::-1]), level=0.5), len(row))[0]
    assert back == [(len(row) - end, len(row) - start) for start, end in there]


@given(st.lists(curve_rows, min_size=1, max_size=5))
def test_a_batch_equals_its_queries(rows: list[list[float]]) -> None:
    length = max(map(len, rows))
    padded = [row + [NOTHING] * (length - len(row)) for row in rows]
    together = find_moments(drawn(*padded), most=3)
    for number, row in enumerate(padded):
        alone = find_moments(drawn(row), most=3)
        assert np.array_equal(together.spans[number], alone.spans[0])
        assert np.array_equal(together.scores[number], alone.scores[0])


@given(curve_rows)
def test_more_moments_do_not_change_the_first(row: list[float]) -> None:
    few, many = find_moments(drawn(row), most=1), find_moments(drawn(row), most=4)
    assert np.array_equal(many.spans[:, :1], few.spans)
