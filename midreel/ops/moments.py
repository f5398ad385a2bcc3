"""From how well each token of a video fits a query to the parts of the video that the query describes.

A branch's curve says how well each of its tokens fits. All branches together make one curve over the finest grid, and
a moment is a peak of it with as much around it as pays: see `find_moments`. Pure functions of numpy arrays, over many
queries at a time, each with its own video.

Axes: Q queries, S tokens, K moments, W windows of one video, G tokens of a grid.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from midreel.errors import BadBatch, BadSetting

# By measurement: docs/results/moments.md.
LEVEL = 0.45
MOST = 5


@dataclass(frozen=True, kw_only=True)
class Curve:
    """For each query, how well each token of its own video fits, and the part (start, end) that the token stands for.

    Parts are fractions of the video, or seconds where a function says so. A token that is not real scores -inf.
    """

    scores: Float[np.ndarray, "Q S"]
    spans: Float[np.ndarray, "Q S 2"]

    def __post_init__(self) -> None:
        if self.scores.ndim != 2 or self.spans.shape != (*self.scores.shape, 2):
            raise BadBatch(
                f"scores and spans have the shapes {self.scores.shape} and {self.spans.shape}, expected (Q, S) and "
                f"(Q, S, 2); add the query axis: scores[None]"
            )


Curves = Mapping[str, Curve]  # by branch


@dataclass(frozen=True, kw_only=True)
class ScoredMoment:
    """A part of a video in seconds, how well its best instant fits, and when that is."""

    start: float | int
    end: float | int
    score: float | int
    peak: float | int


@dataclass(frozen=True, kw_only=True)
class Moments:
    """For each query, parts of its video, best first. They do not overlap.

    Times are the curve's: fractions of the video, or seconds. Where a query has fewer than K, the score is -inf and the
    part is (0, 0).
    """

    spans: Float[np.ndarray, "Q K 2"]
    peaks: Float[np.ndarray, "Q K"]
    scores: Float[np.ndarray, "Q K"]

    def listed(self) -> list[list[ScoredMoment]]:
        """Those of each query, for a curve whose spans are seconds."""
        return [
            [
                ScoredMoment(start=start, end=end, peak=peak, score=score)
                for (start, end), peak, score in zip(*rows, strict=True)
                if np.isfinite(score)
            ]
            for rows in zip(self.spans.tolist(), self.peaks.tolist(), self.scores.tolist(), strict=True)
        ]


# ---------------------------------------------------------------- curves


def fused(curves: Curves, weights: Mapping[str, float | int]) -> Curve:
    """One curve on the grid of the branch with most tokens: at each of these, the branches' weighted mean.

    `weights` are by branch, as a method's `curve_weights`. A branch with longer tokens contributes the best of those
    that the middle of the grid's token lies in; where there is none, its worst.

    Raises BadBatch without curves, BadSetting for weights that no mean can be made of.
    """
    if not curves:
        raise BadBatch("there is no curve to look at, expected that of one branch or more; encode the video first")
    total = sum(weights.get(branch, 0.0) for branch in curves)
    if not total > 0 or min(weights.values()) < 0:
        raise BadSetting(
            f"weights is {dict(weights)}, expected 0 or more for each of {', '.join(curves)}, and not all 0"
        )
    grid = max(curves.values(), key=lambda curve: curve.scores.shape[1])
    scores = np.zeros_like(grid.scores)
    for branch, curve in curves.items():
        if weights.get(branch):
            share = scores.dtype.type(weights[branch] / total)
            scores = scores + share * (curve.scores if curve is grid else _on_grid(curve, grid))
    return Curve(scores=np.where(np.isfinite(grid.scores), scores, -np.inf), spans=grid.spans)


def _on_grid(curve: Curve, grid: Curve) -> Float[np.ndarray, "Q G"]:
    middle = grid.spans.mean(-1, keepdims=True)  # (Q, G, 1)
    starts, ends = curve.spans[:, None, :, 0], curve.spans[:, None, :, 1]  # (Q, 1, S)
    real = np.isfinite(curve.scores)
    inside = (starts <= middle) & (middle < ends) & real[:, None]
    worst = np.where(real, curve.scores, np.inf).min(1, keepdims=True)
    best = np.where(inside, curve.scores[:, None], -np.inf).max(-1)
    return np.where(inside.any(-1), best, worst)


def joined(curve: Curve, starts: Float[np.ndarray, " W"], ends: Float[np.ndarray, " W"]) -> Curve:
    """One query's curve over the windows of a long video, of which each row is one, as one curve over the whole video.

    `starts` and `ends` are the windows' seconds, in order of time; the new spans are seconds too. Where two windows
    overlap, each has the half that lies deeper in it, where it sees more of what is around.

    Raises BadBatch for windows that are empty or not in order.
    """
    if not (starts.shape == ends.shape == curve.scores.shape[:1]):
        raise BadBatch(f"{len(curve.scores)} windows, but {len(starts)} starts and {len(ends)} ends; pass one for each")
    if not ((starts < ends).all() and (starts[1:] >= starts[:-1]).all() and (ends[1:] >= ends[:-1]).all()):
        raise BadBatch(
            f"windows begin at {starts.tolist()} and end at {ends.tolist()} s, expected them in order of time and none "
            f"empty; sort them"
        )
    borders = (starts[1:] + ends[:-1]) / 2
    left, right = np.concatenate((starts[:1], borders)), np.concatenate((borders, ends[-1:]))
    seconds = starts[:, None, None] + curve.spans.astype(starts.dtype) * (ends - starts)[:, None, None]
    seconds = seconds.clip(left[:, None, None], right[:, None, None])
    kept = np.isfinite(curve.scores) & (seconds[..., 0] < seconds[..., 1])
    return Curve(scores=curve.scores[kept][None], spans=seconds[kept][None])


# ---------------------------------------------------------------- moments


def find_moments(curve: Curve, *, most: int = MOST, level: float | int = LEVEL) -> Moments:
    """The peaks of a curve, highest first, each with as much around it as pays.

    What lies above a threshold pays, what lies below it costs, both by how far and for how long; a moment is the part
    around a peak that pays most. So it ends where the curve falls for good, and takes in a neighbour if the dip on the
    way costs less than the neighbour pays. The threshold lies at `level` of the way from the curve's median to its
    highest peak: neither the curve's height nor its scale matters. Further moments need peaks above the threshold.

    Of parts that pay the same the longest is taken; of a constant curve that is the whole video.

    Raises BadSetting for a number or a level that cannot be, BadBatch for a curve without a real token.
    """
    if most < 1:
        raise BadSetting(f"most is {most}, expected at least 1 moment for each query")
    if not 0 < level < 1:
        raise BadSetting(f"level is {level}, expected between 0, the median, and 1, the peak; try {LEVEL}")
    real = np.isfinite(curve.scores)
    if not real.any(1).all():
        raise BadBatch("a curve has no real token, expected at least one for each query; leave out empty videos")
    background = _lower_median(np.where(real, curve.scores, np.inf), real.sum(1))
    threshold = background + curve.scores.dtype.type(level) * (curve.scores.max(1) - background)
    threshold = threshold[:, None]
    lengths = curve.spans[..., 1] - curve.spans[..., 0]
    # In double precision: over hours, sums of singles lose what a moment of seconds pays.
    gains = np.where(real, np.where(real, curve.scores - threshold, 0) * lengths, 0).astype(np.float64)
    # What no moment may reach across: it costs more than all the rest pays.
    wall = -1 - np.abs(gains).sum(1, keepdims=True)
    rows, place = np.arange(len(real))[:, None], np.arange(real.shape[1])
    free = real
    found = []
    for number in range(most):
        scores = np.where(free, curve.scores, -np.inf)
        peak = scores.argmax(1)[:, None]
        score = scores[rows, peak]
        first, last = _extent(np.where(free, gains, wall), peak)
        wanted = free.any(1, keepdims=True) & ((score > threshold) | (number == 0))
        if not wanted.any():
            break
        free = free & ~(wanted & (first <= place) & (place <= last))
        start, end = curve.spans[rows, first, 0], curve.spans[rows, last, 1]
        middle = curve.spans[rows, peak].mean(-1)
        parts = np.where(wanted, np.concatenate((start, end, middle), 1), 0)
        found.append(np.concatenate((parts, np.where(wanted, score, -np.inf)), 1))
    nothing = np.broadcast_to(np.array([0, 0, 0, -np.inf], found[0].dtype), (len(free), 4))
    table = np.stack(found + [nothing] * (most - len(found)), 1)
    return Moments(spans=table[..., :2], peaks=table[..., 2], scores=table[..., 3])


def _lower_median(scores: Float[np.ndarray, "Q S"], counts: Int[np.ndarray, " Q"]) -> Float[np.ndarray, " Q"]:
    """Of the first `counts` of each sorted row: the lower one of two in the middle."""
    return np.sort(scores, 1)[np.arange(len(scores)), (counts - 1) // 2]


def _extent(
    gains: Float[np.ndarray, "Q S"], peak: Int[np.ndarray, "Q 1"]
) -> tuple[Int[np.ndarray, "Q 1"], Int[np.ndarray, "Q 1"]]:
    """First and last token of the part with the largest sum that holds the peak; of equal ones, the longest."""
    sums = np.concatenate((np.zeros((len(gains), 1)), gains.cumsum(1)), 1)  # sums[k]: of all before token k
    place = np.arange(sums.shape[1])
    first = np.where(place > peak, np.inf, sums).argmin(1)[:, None]
    after = np.where(place <= peak, -np.inf, sums)
    last = sums.shape[1] - 1 - after[:, ::-1].argmax(1)[:, None]
    return first, last - 1
