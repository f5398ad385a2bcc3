"""Moments: the parts of a video that a query describes, from its token scores.

A branch's curve gives the score of each token over time. `fused` combines the curves of all branches into one curve on
the finest grid, and `find_moments` returns the peaks of that curve with their extents. All functions are pure functions
of numpy arrays. They process many queries at a time, each with its own video.

Axes: Q queries, S tokens, K moments, W windows of one video, G tokens of a grid.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from midreel.errors import BadBatch, BadSetting

# Measured on the benchmarks: docs/results/moments.md.
LEVEL = 0.45
FLOOR = 0.0
MOST = 5
_MOST_PAIRS = 2**23  # of a token and a token of the grid that are compared at a time, to limit the memory
_SAME_TIME = 1e-5  # a smaller difference of times, as a share of the last time, is a rounding error


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The scores of a video's tokens over time, for each query and its own video.

    Attributes:
        scores: the score of each token, -inf for padding.
        spans: the start and end of each token, as fractions of the video, or in seconds where a function says so.
    """

    scores: Float[np.ndarray, "Q S"]
    spans: Float[np.ndarray, "Q S 2"]

    def __post_init__(self) -> None:
        if self.scores.ndim != 2 or self.spans.shape != (*self.scores.shape, 2):
            raise BadBatch(
                f"scores and spans have shapes {self.scores.shape} and {self.spans.shape}, expected (Q, S) and "
                f"(Q, S, 2). Add the query axis: scores[None]"
            )


Curves = Mapping[str, Curve]  # by branch


@dataclass(frozen=True, kw_only=True)
class ScoredMoment:
    """A part of a video in seconds.

    Attributes:
        start: the start.
        end: the end.
        score: the score of its best token.
        peak: the time of that token.
        start_range: the range that contains the true start with 80 % confidence (`ops.edges`); None if unknown.
        end_range: the range that contains the true end with 80 % confidence; None if unknown.
    """

    start: float | int
    end: float | int
    score: float | int
    peak: float | int
    start_range: tuple[float, float] | None = None
    end_range: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the moment as JSON values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


@dataclass(frozen=True, kw_only=True)
class Moments:
    """For each query, up to K parts of its video, best first. They do not overlap.

    Times have the unit of the curve: fractions of the video, or seconds. A query with fewer than K moments is padded
    with the score -inf and the span (0, 0).

    Attributes:
        spans: the start and end of each moment.
        peaks: the time of the best token in each moment.
        scores: the score of that token.
        ranges: the ranges of the true start and the true end (`ops.edges.with_ranges`), or None.
    """

    spans: Float[np.ndarray, "Q K 2"]
    peaks: Float[np.ndarray, "Q K"]
    scores: Float[np.ndarray, "Q K"]
    ranges: Float[np.ndarray, "Q K 2 2"] | None = None

    def listed(self) -> list[list[ScoredMoment]]:
        """Return the moments of each query without padding. The spans of the curve must be seconds."""
        ranges = [[(None, None)] * row.size for row in self.scores] if self.ranges is None else self.ranges.tolist()
        return [
            [
                ScoredMoment(
                    start=start,
                    end=end,
                    peak=peak,
                    score=score,
                    start_range=None if of_start is None else tuple(of_start),
                    end_range=None if of_end is None else tuple(of_end),
                )
                for (start, end), peak, score, (of_start, of_end) in zip(*rows, strict=True)
                if isfinite(score)
            ]
            for rows in zip(self.spans.tolist(), self.peaks.tolist(), self.scores.tolist(), ranges, strict=True)
        ]


# ---------------------------------------------------------------- curves


def fused(curves: Curves, weights: Mapping[str, float | int]) -> Curve:
    """Return the weighted mean of the curves of all branches on one grid.

    The grid is the branch with the most tokens, among those whose tokens do not overlap. If the tokens of all branches
    overlap, it consists of the intervals between their ends. Another branch contributes its best token among those
    that contain the middle of the grid's token. If no token contains it, the branch contributes its lowest score.

    Args:
        curves: one curve for each branch.
        weights: the weight of each branch, such as a method's `curve_weights`. A missing branch has weight 0.

    Raises:
        BadBatch: there are no curves.
        BadSetting: a weight is negative, or all weights are 0.
    """
    if not curves:
        raise BadBatch("curves is empty, expected the curve of at least one branch. Encode the video first.")
    total = sum(weights.get(branch, 0.0) for branch in curves)
    if not total > 0 or min(weights.values()) < 0:
        raise BadSetting(
            f"weights is {dict(weights)}, expected 0 or more for each of {', '.join(curves)}. At least one must be "
            f"above 0."
        )
    grid = _grid(curves)
    scores = np.zeros_like(grid.scores)
    for branch, curve in curves.items():
        if weights.get(branch):
            share = scores.dtype.type(weights[branch] / total)
            scores = scores + share * (curve.scores if curve is grid else _on_grid(curve, grid))
    return Curve(scores=np.where(np.isfinite(grid.scores), scores, -np.inf), spans=grid.spans)


def _grid(curves: Curves) -> Curve:
    """Return the curve whose tokens are the grid of the fused curve."""
    flat = [curve for curve in curves.values() if not _overlaps(curve)]
    if flat:
        return max(flat, key=lambda curve: curve.scores.shape[1])
    spans = np.concatenate([np.where(_real(curve), curve.spans, np.nan) for curve in curves.values()], 1)
    edges = np.sort(spans.reshape(len(spans), -1), 1)  # NaN comes last
    spans = np.stack((edges[:, :-1], edges[:, 1:]), -1)
    is_interval = spans[..., 1] > spans[..., 0] + _SAME_TIME * np.nanmax(spans)
    order = np.argsort(~is_interval, axis=1, kind="stable")[:, : max(1, int(is_interval.sum(1).max()))]
    is_interval, spans = np.take_along_axis(is_interval, order, 1), np.take_along_axis(spans, order[..., None], 1)
    dtype = next(iter(curves.values())).scores.dtype
    return Curve(
        scores=np.where(is_interval, 0, -np.inf).astype(dtype), spans=np.where(is_interval[..., None], spans, 0)
    )


def _overlaps(curve: Curve) -> bool:
    """Return whether tokens of a video overlap, or are not in the order of time."""
    rounding = _SAME_TIME * curve.spans.max(initial=0)
    both_real = _real(curve)[:, 1:, 0] & _real(curve)[:, :-1, 0]
    return bool((both_real & (curve.spans[:, 1:, 0] < curve.spans[:, :-1, 1] - rounding)).any())


def _real(curve: Curve) -> Bool[np.ndarray, "Q S 1"]:
    return np.isfinite(curve.scores)[..., None]


def _on_grid(curve: Curve, grid: Curve) -> Float[np.ndarray, "Q G"]:
    """Return the curve's scores at the middle of each token of the grid."""
    rows = max(1, _MOST_PAIRS // max(1, grid.scores.shape[1] * curve.scores.shape[1]))
    if len(curve.scores) > rows:
        parts = [slice(start, start + rows) for start in range(0, len(curve.scores), rows)]
        return np.concatenate([_on_grid(_part(curve, part), _part(grid, part)) for part in parts])
    middle = ((grid.spans[..., 0] + grid.spans[..., 1]) / 2)[:, None]  # (Q, 1, G)
    starts, ends = curve.spans[..., :1], curve.spans[..., 1:]  # (Q, S, 1)
    real = np.isfinite(curve.scores)
    worst = np.where(real, curve.scores, np.inf).min(1, keepdims=True)
    scores = np.where(real, curve.scores, -np.inf)[..., None]
    # The maximum over S, not over the last axis: numpy then compares whole rows at a time.
    best = np.where((starts <= middle) & (middle < ends), scores, -np.inf).max(1)
    return np.where(best > -np.inf, best, worst)


def _part(curve: Curve, rows: slice) -> Curve:
    return Curve(scores=curve.scores[rows], spans=curve.spans[rows])


def joined(
    curve: Curve,
    starts: Float[np.ndarray, " W"],
    ends: Float[np.ndarray, " W"],
    videos: Int[np.ndarray, " W"] | None = None,
) -> Curve:
    """Join the curves of the windows of long videos: one curve over the whole of each video.

    Overlapping windows meet in the middle of the overlap, so each keeps the tokens with the most context around them.

    Args:
        curve: one row for each window.
        starts: the start of each window in seconds, in order of time.
        ends: the end of each window in seconds, in order of time.
        videos: the number of the video of each window: 0, then the same or the next. Default: all belong to one.

    Returns:
        A curve of one row for each video, whose spans are seconds.

    Raises:
        BadBatch: the numbers of windows differ, or the windows are empty or not in order.
    """
    videos = np.zeros(len(starts), np.int64) if videos is None else videos
    if not (starts.shape == ends.shape == videos.shape == curve.scores.shape[:1]):
        raise BadBatch(
            f"{len(curve.scores)} windows have {len(starts)} starts, {len(ends)} ends and {len(videos)} videos, "
            f"expected one of each for every window. Pass equal numbers."
        )
    follows = videos[1:] == videos[:-1]
    in_order = (starts[1:] >= starts[:-1]) & (ends[1:] >= ends[:-1])
    if not ((starts < ends).all() and in_order[follows].all()):
        raise BadBatch(
            f"windows start at {starts.tolist()} and end at {ends.tolist()} s, expected starts before ends, in order "
            f"of time. Sort them."
        )
    borders = ((starts[1:] + ends[:-1]) / 2)[follows]
    left, right = starts.copy(), ends.copy()
    left[1:][follows] = right[:-1][follows] = borders
    seconds = starts[:, None, None] + curve.spans.astype(starts.dtype) * (ends - starts)[:, None, None]
    seconds = seconds.clip(left[:, None, None], right[:, None, None])
    kept = np.isfinite(curve.scores) & (seconds[..., 0] < seconds[..., 1])
    if len(videos) == videos[-1] + 1 and kept.all():  # videos of one window each, without padding
        return Curve(scores=curve.scores, spans=seconds)
    of_video = np.repeat(videos, kept.sum(1))
    lengths = np.bincount(of_video, minlength=videos[-1] + 1)
    place = np.arange(len(of_video)) - (np.cumsum(lengths) - lengths)[of_video]
    scores = np.full((len(lengths), lengths.max(initial=0)), -np.inf, curve.scores.dtype)
    spans = np.zeros((*scores.shape, 2), seconds.dtype)
    scores[of_video, place], spans[of_video, place] = curve.scores[kept], seconds[kept]
    return Curve(scores=scores, spans=spans)


# ---------------------------------------------------------------- moments


def find_moments(
    curve: Curve, *, most: int = MOST, level: float | int = LEVEL, floor: float | int | None = FLOOR
) -> Moments:
    """Return the peaks of a curve and the part of the video around each, highest peak first.

    Each token gains (score - threshold) × duration, which is negative below the threshold. A moment is the part around
    a peak with the largest total gain. It ends where the curve falls for good. It includes a neighbouring peak if that
    peak gains more than the dip between them loses, and no token of the dip is below the floor. Of parts with equal
    gain the longest wins, so a constant curve gives the whole video.

    The threshold is at `level` of the way from the curve's median to its highest peak. The result therefore does not
    depend on the offset or the scale of the scores.

    Args:
        curve: the scores over time.
        most: the largest number of moments of a query. All but the first need a peak above the threshold.
        level: the height of the threshold, above 0 (the median) and below 1 (the highest peak).
        floor: the height below which a token separates two moments, at most `level`. None: no token does.

    Raises:
        BadSetting: `most`, `level` or `floor` is out of range.
        BadBatch: a query has no real token.
    """
    if most < 1:
        raise BadSetting(f"most is {most}, expected at least 1. Try {MOST}.")
    if not 0 < level < 1:
        raise BadSetting(f"level is {level}, expected a number above 0 and below 1. Try {LEVEL}.")
    if floor is not None and not -np.inf < floor <= level:
        raise BadSetting(f"floor is {floor}, expected a number of at most {level}, the level. Try {FLOOR}.")
    real = np.isfinite(curve.scores)
    if not real.any(1).all():
        raise BadBatch("a curve has no real token, expected at least one for each query. Drop empty videos.")
    background = background_of(curve)[:, None]
    height = curve.scores.max(1, keepdims=True) - background
    threshold = background + curve.scores.dtype.type(level) * height
    lengths = curve.spans[..., 1] - curve.spans[..., 0]
    # In double precision, because a sum over hours in single precision loses the gain of a few seconds.
    gains = np.where(real, np.where(real, curve.scores - threshold, 0) * lengths, 0).astype(np.float64)
    # The gain of padding, of tokens below the floor and of tokens in use. It is below minus the sum of all gains, so no
    # moment crosses one.
    wall = -1 - np.abs(gains).sum(1, keepdims=True)
    if floor is not None:
        gains = np.where(curve.scores < background + curve.scores.dtype.type(floor) * height, wall, gains)
    rows, place = np.arange(len(real))[:, None], np.arange(real.shape[1])
    # Without the tokens in use: padding, and the moments found so far.
    scores, gains = np.where(real, curve.scores, -np.inf), np.where(real, gains, wall)
    found = []
    for number in range(most):
        peak = scores.argmax(1)[:, None]
        score = scores[rows, peak]
        wanted = (score > threshold) | (number == 0)
        if not wanted.any():
            break
        first, last = _extent(gains, peak)
        in_use = wanted & (first <= place) & (place <= last)
        start, end = curve.spans[rows, first, 0], curve.spans[rows, last, 1]
        middle = curve.spans[rows, peak].mean(-1)
        parts = np.where(wanted, np.concatenate((start, end, middle), 1), 0)
        found.append(np.concatenate((parts, np.where(wanted, score, -np.inf)), 1))
        np.copyto(scores, -np.inf, where=in_use)
        np.copyto(gains, wall, where=in_use)
    nothing = np.broadcast_to(np.array([0, 0, 0, -np.inf], found[0].dtype), (len(real), 4))
    table = np.stack(found + [nothing] * (most - len(found)), 1)
    return Moments(spans=table[..., :2], peaks=table[..., 2], scores=table[..., 3])


def background_of(curve: Curve) -> Float[np.ndarray, " Q"]:
    """Return the median of the scores of each query, the lower one of two in the middle."""
    real = np.isfinite(curve.scores)
    ordered = np.sort(np.where(real, curve.scores, np.inf), 1)
    return ordered[np.arange(len(ordered)), (real.sum(1) - 1) // 2]


def _extent(
    gains: Float[np.ndarray, "Q S"], peak: Int[np.ndarray, "Q 1"]
) -> tuple[Int[np.ndarray, "Q 1"], Int[np.ndarray, "Q 1"]]:
    """Return the first and last token of the part that contains the peak and has the largest sum, the longest if equal.

    The sum of the tokens i to k is sums[k + 1] - sums[i]. The start and the end can be chosen independently, because
    the part must contain the peak: the lowest prefix sum up to it, and the highest one after it.
    """
    sums = np.zeros((len(gains), 1 + gains.shape[1]))
    gains.cumsum(1, out=sums[:, 1:])
    is_after = np.arange(sums.shape[1]) > peak
    # argmin returns the first of equal minima. The last of equal maxima needs the reversed array.
    first = np.where(is_after, np.inf, sums).argmin(1)[:, None]
    after = np.where(is_after, sums, -np.inf)
    last = sums.shape[1] - 1 - after[:, ::-1].argmax(1)[:, None]
    return first, last - 1
