"""From how well each token of a video fits a query to the parts of the video that the query describes.

A branch's curve says how well each of its tokens fits. All branches together make one curve over the finest grid, and
a moment is a peak of it with as much around it as pays: see `find_moments`. Pure functions of tensors, over many
queries at a time, each with its own video.

Axes: Q queries, B videos, S tokens, D model width, K moments, W windows of one video, G tokens of a grid.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadBatch, BadSetting, expect_axes
from midreel.types import Tokens

# By measurement: docs/results/moments.md.
LEVEL = 0.45
MOST = 5


@dataclass(frozen=True, kw_only=True)
class Curve:
    """For each query, how well each token of its own video fits, and the part (start, end) that the token stands for.

    Parts are fractions of the video, or seconds where a function says so. A token that is not real scores -inf.
    """

    scores: Float[Tensor, "Q S"]
    spans: Float[Tensor, "Q S 2"]


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

    spans: Float[Tensor, "Q K 2"]
    peaks: Float[Tensor, "Q K"]
    scores: Float[Tensor, "Q K"]

    def listed(self, starts: Float[Tensor, " Q"], ends: Float[Tensor, " Q"]) -> list[list[ScoredMoment]]:
        """Those of each query, in seconds of its video; `starts` and `ends` say which part of that was encoded."""
        expect_axes(scores=(self.scores, "Q K"), starts=(starts, "Q"), ends=(ends, "Q"))
        times = torch.cat((self.spans, self.peaks[..., None]), -1).to(starts)
        seconds = starts[:, None, None] + times * (ends - starts)[:, None, None]
        return [
            [
                ScoredMoment(start=start, end=end, peak=peak, score=score)
                for (start, end, peak), score, is_real in zip(*rows, strict=True)
                if is_real
            ]
            for rows in zip(seconds.tolist(), self.scores.tolist(), self.scores.isfinite().tolist(), strict=True)
        ]


# ---------------------------------------------------------------- curves


def token_scores(
    queries: Float[Tensor, "Q D"],
    tokens: Float[Tensor, "B S D"],
    mask: Bool[Tensor, "B S"],
    video_of_query: Int[Tensor, " Q"],
) -> Float[Tensor, "Q S"]:
    """The cosine of each query and each token of its own video; the best of them is the branch's retrieval score.

    All queries meet all tokens and the own ones are picked: gathering the tokens first would hold (Q, S, D), which is
    larger than (Q, B, S) for any batch with fewer videos than channels.
    """
    expect_axes(queries=(queries, "Q D"), tokens=(tokens, "B S D"), mask=(mask, "B S"))
    expect_axes(queries=(queries, "Q D"), video_of_query=(video_of_query, "Q"))
    products = F.normalize(queries, dim=-1) @ F.normalize(tokens, dim=-1).flatten(0, 1).T
    rows = torch.arange(len(queries), device=queries.device)
    own = products.view(len(queries), *tokens.shape[:2])[rows, video_of_query]
    return own.masked_fill(~mask[video_of_query], -torch.inf)


def curves(
    queries: Mapping[str, Float[Tensor, "Q D"]], videos: Mapping[str, Tokens], video_of_query: Int[Tensor, " Q"]
) -> dict[str, Curve]:
    """Each branch's curve of each query over its own video."""
    return {
        branch: Curve(
            scores=token_scores(queries[branch], tokens.vectors, tokens.mask, video_of_query),
            spans=tokens.spans[video_of_query],
        )
        for branch, tokens in videos.items()
    }


def fused(curves: Curves, weights: Mapping[str, float | int]) -> Curve:
    """One curve on the grid of the branch with most tokens: at each of these, the branches' weighted mean.

    `weights` are by branch, as a method's `curve_weights`.

    A branch with longer tokens contributes the best of those that the middle of the grid's token lies in; where there
    is none, its worst.
    """
    if not curves:
        raise BadBatch("there is no curve to look at, expected that of one branch or more; encode the video first")
    total = sum(weights.get(branch, 0.0) for branch in curves)
    if not total > 0 or min(weights.values()) < 0:
        raise BadSetting(
            f"weights is {dict(weights)}, expected 0 or more for each of {', '.join(curves)}, and not all 0"
        )
    grid = max(curves.values(), key=lambda curve: curve.scores.shape[1])
    scores = torch.zeros_like(grid.scores)
    for branch, curve in curves.items():
        if weights.get(branch):
            scores = scores + weights[branch] / total * (curve.scores if curve is grid else _on_grid(curve, grid))
    return Curve(scores=scores.masked_fill(~grid.scores.isfinite(), -torch.inf), spans=grid.spans)


def _on_grid(curve: Curve, grid: Curve) -> Float[Tensor, "Q G"]:
    middle = grid.spans.mean(-1, keepdim=True)  # (Q, G, 1)
    starts, ends = curve.spans[:, None].unbind(-1)  # (Q, 1, S)
    real = curve.scores.isfinite()
    inside = (starts <= middle) & (middle < ends) & real[:, None]
    worst = curve.scores.masked_fill(~real, torch.inf).amin(1)
    best = curve.scores[:, None].expand(inside.shape).masked_fill(~inside, -torch.inf).amax(-1)
    return torch.where(inside.any(-1), best, worst[:, None])


def joined(curve: Curve, starts: Float[Tensor, " W"], ends: Float[Tensor, " W"]) -> Curve:
    """One query's curve over the windows of a long video, of which each row is one, as one curve over the whole video.

    `starts` and `ends` are the windows' seconds, in order of time; the new spans are seconds too. Where two windows
    overlap, each has the half that lies deeper in it, for it sees more of what is around.
    """
    expect_axes(scores=(curve.scores, "W S"), starts=(starts, "W"), ends=(ends, "W"))
    if not bool((starts < ends).all() and (starts[1:] >= starts[:-1]).all() and (ends[1:] >= ends[:-1]).all()):
        raise BadBatch(
            f"windows begin at {starts.tolist()} and end at {ends.tolist()} s, expected them in order of time and none "
            f"empty; sort them"
        )
    borders = (starts[1:] + ends[:-1]) / 2
    left, right = torch.cat((starts[:1], borders)), torch.cat((borders, ends[-1:]))
    seconds = starts[:, None, None] + curve.spans.to(starts) * (ends - starts)[:, None, None]
    seconds = seconds.clamp(left[:, None, None], right[:, None, None])
    kept = curve.scores.isfinite() & (seconds[..., 0] < seconds[..., 1])
    return Curve(scores=curve.scores[kept][None], spans=seconds[kept][None])


# ---------------------------------------------------------------- moments


def find_moments(curve: Curve, *, most: int = MOST, level: float | int = LEVEL) -> Moments:
    """The peaks of a curve, highest first, each with as much around it as pays.

    What lies above a threshold pays, what lies below it costs, both by how far and for how long; a moment is the part
    around a peak that pays most. So it ends where the curve falls for good, and takes in a neighbour if the dip on the
    way costs less than the neighbour pays. The threshold lies at `level` of the way from the curve's median to its
    highest peak: neither the curve's height nor its scale matters. Further moments need peaks above the threshold.

    Of parts that pay the same the longest is taken; of a constant curve that is the whole video.
    """
    expect_axes(scores=(curve.scores, "Q S"), spans=(curve.spans, "Q S P"))
    if most < 1:
        raise BadSetting(f"most is {most}, expected at least 1 moment for each query")
    if not 0 < level < 1:
        raise BadSetting(f"level is {level}, expected between 0, the median, and 1, the peak; try {LEVEL}")
    real = curve.scores.isfinite()
    if not bool(real.any(1).all()):
        raise BadBatch("a curve has no real token, expected at least one for each query; leave out empty videos")
    background = curve.scores.masked_fill(~real, torch.nan).nanmedian(1).values
    threshold = torch.lerp(background, curve.scores.amax(1), level)[:, None]
    lengths = curve.spans[..., 1] - curve.spans[..., 0]
    # In double precision: over hours, sums of singles lose what a moment of seconds pays.
    gains = ((curve.scores - threshold) * lengths).double().masked_fill(~real, 0)
    # What no moment may reach across, for it costs more than all the rest pays.
    wall = -1 - gains.abs().sum(1, keepdim=True)
    free = real
    found = []
    for number in range(most):
        scores = curve.scores.masked_fill(~free, -torch.inf)
        score, peak = scores.max(1, keepdim=True)
        first, last = _extent(torch.where(free, gains, wall), peak)
        wanted = free.any(1, keepdim=True) & ((score > threshold) | (number == 0))
        if not bool(wanted.any()):
            break
        place = torch.arange(free.shape[1], device=free.device)
        free = free & ~(wanted & (first <= place) & (place <= last))
        start, end = curve.spans[..., 0].gather(1, first), curve.spans[..., 1].gather(1, last)
        middle = curve.spans.mean(-1).gather(1, peak)
        parts = torch.cat((start, end, middle), 1).masked_fill(~wanted, 0)
        found.append(torch.cat((parts, score.masked_fill(~wanted, -torch.inf)), 1))
    nothing = found[0].new_tensor([0, 0, 0, -torch.inf]).expand(len(free), 4)
    table = torch.stack(found + [nothing] * (most - len(found)), 1)
    return Moments(spans=table[..., :2], peaks=table[..., 2], scores=table[..., 3])


def _extent(gains: Float[Tensor, "Q S"], peak: Int[Tensor, "Q 1"]) -> tuple[Int[Tensor, "Q 1"], Int[Tensor, "Q 1"]]:
    """First and last token of the part with the largest sum that holds the peak; of equal ones, the longest."""
    sums = F.pad(gains.cumsum(1), (1, 0))  # sums[k]: of all before token k
    place = torch.arange(sums.shape[1], device=gains.device)
    before = sums.masked_fill(place > peak, torch.inf)
    after = sums.masked_fill(place <= peak, -torch.inf)
    first = before.argmin(1, keepdim=True)
    last = sums.shape[1] - 1 - after.flip(1).argmax(1, keepdim=True)
    return first, last - 1
