"""Segmentations: one integer for each frame, and what the paper derives from it.

A segmentation is `segment_of_frame`, the paper's δ: the number of each frame's segment, 0, 1, 2, … without gaps.
Uniform clips, order-preserving merging and bipartite merging only differ in how they fill this vector. A clip token is
the mean of a segment, its size is a count, and two merges compose by indexing. All functions process a batch of videos.

Axes: B videos, T frames (L_f in the paper), S segments (L_c), C feature width (d_v), P pairs of neighbouring tokens.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from midreel.errors import BadBatch, BadSetting, UnknownName
from midreel.ops.checks import expect_axes, expect_labels
from midreel.ops.neighbours import neighbour_products
from midreel.ops.precision import at_least_single
from midreel.ops.schedules import expect_at_least, expect_rate
from midreel.ops.schedules import levels as levels
from midreel.ops.schedules import merge_schedule as merge_schedule

Similarity = Literal["cosine", "dot"]


# ---------------------------------------------------------------- any number of frames to a fixed number


def resample(
    frames: Float[Tensor, "B T C"],
    length: int = 128,
    num_frames: Int[Tensor, " B"] | None = None,
    *,
    grid: torch.dtype = torch.float32,
) -> Float[Tensor, "B {length} C"]:
    """Average the frames of each video over `length` equal windows. A shorter video repeats its frames.

    Window k starts at frame round(k T / length) and ends before the start of the next window. If the two starts are
    equal, the window is that one frame. The bounds are clamped to T - 1, as in the released code, so a long video loses
    its last frame.

    Args:
        frames: the features of each video, padded at the end.
        length: the number of windows.
        num_frames: the number of real frames of each video. Default: all frames are real.
        grid: the type of k / length. It matters where a bound is near the middle between two frames. All types are
            exact if `length` is a power of two.

    Raises:
        BadSetting: `length` or `num_frames` is out of range.
        BadBatch: the shapes do not fit together, or features are NaN or infinite.

    >>> resample(torch.tensor([[[0.0], [2.0], [4.0], [6.0], [8.0]]]), 2)[0, :, 0]
    tensor([1., 5.])
    """
    expect_axes(frames=(frames, "B T C"))
    expect_at_least("length", length, 1)
    batch, total, width = frames.shape
    _expect_frames(total)
    if num_frames is None:
        averaged = _window_means(frames, length, grid)
    else:
        # Each video alone, without its padding. BLAS splits a long sum into parts, and the number of terms decides
        # where, so the product of a padded video would round differently from that of the video alone.
        averaged = frames.new_empty(batch, length, width)
        for number, num_real in enumerate(_num_real_frames(frames, num_frames).tolist()):
            averaged[number] = _window_means(frames[number, None, :num_real], length, grid)[0]
    _expect_finite(averaged)
    return averaged


def _window_means(frames: Float[Tensor, "B T C"], length: int, grid: torch.dtype) -> Float[Tensor, "B {length} C"]:
    """Return the means that `resample` returns, for videos without padding."""
    batch, total, width = frames.shape
    share = torch.arange(length + 1, device=frames.device, dtype=grid) / length
    num_frames = torch.full((batch, 1), total, device=frames.device)
    bounds = (share * num_frames).round().long().minimum(num_frames - 1)
    position = torch.arange(total, device=frames.device).expand(batch, total).contiguous()
    window_of_frame = torch.searchsorted(bounds, position, right=True) - 1  # `length` if the frame is in no window
    windows = torch.arange(length, device=frames.device)[:, None]
    members = window_of_frame[:, None, :] == windows
    counts = members.sum(-1, keepdim=True)
    first = frames.gather(1, bounds[:, :-1, None].expand(batch, length, width))
    precise = at_least_single(frames)  # the sum of a long window would overflow half precision
    means = members.to(precise.dtype) @ precise / counts.clamp_min(1)
    return torch.where(counts > 0, means.to(frames.dtype), first)


def cap(
    frames: Float[Tensor, "B T C"], length: int = 128, num_frames: Int[Tensor, " B"] | None = None
) -> tuple[Float[Tensor, "B {length} C"], Bool[Tensor, "B {length}"]]:
    """Limit each video to `length` frames: resample a longer one, pad a shorter one with zeros.

    The errors are those of `resample`.

    Args:
        frames: the features of each video, padded at the end.
        length: the number of frames to return.
        num_frames: the number of real frames of each video. Default: all frames are real.

    Returns:
        The frames, and a mask that is True for real frames.
    """
    averaged = resample(frames, length, num_frames, grid=torch.float64)
    num_real = _num_real_frames(frames, num_frames)
    mask = torch.arange(length, device=frames.device) < num_real[:, None]
    padding = max(length - frames.shape[1], 0)
    kept = F.pad(frames[:, :length], (0, 0, 0, padding)).masked_fill(~mask[..., None], 0)
    return torch.where((num_real <= length)[:, None, None], kept, averaged), mask


def interpolate(
    frames: Float[Tensor, "B T C"], length: int = 32, num_frames: Int[Tensor, " B"] | None = None
) -> Float[Tensor, "B {length} C"]:
    """Sample the straight lines between neighbouring frames in `length` equal windows, as BGM-Net does.

    On an axis from 0 to `length`, frame i is at u_i = (i + 1/2) length / T. Window k is the part of [k, k + 1] between
    the first and the last frame, 1e-4 inside. Its result is the mean of the lines at its start, middle and end. A
    window that ends before the first frame, or starts after the last one, is a row of zeros. A single frame fills all
    windows. The computation is in double precision.

    Args:
        frames: the features of each video, padded at the end.
        length: the number of windows.
        num_frames: the number of real frames of each video. Default: all frames are real.

    Raises:
        BadSetting: `length` or `num_frames` is out of range.
        BadBatch: the shapes do not fit together, or features are NaN or infinite.

    >>> interpolate(torch.tensor([[[0.0], [4.0]]]), 4)[0, :, 0].round(decimals=2)  # the frames are at 1 and 3
    tensor([0., 1., 3., 4.])
    """
    expect_axes(frames=(frames, "B T C"))
    expect_at_least("length", length, 1)
    batch, total, width = frames.shape
    _expect_frames(total)
    count = _num_real_frames(frames, num_frames).double()[:, None]
    # The order of these operations is that of the released code. It decides whether a border of a window that is equal
    # to the position of a frame is before or after it.
    step = length / count
    first, last = step / 2, step / 2 + (count - 1) * step
    borders = torch.arange(length + 1, device=frames.device, dtype=torch.float64) * (1 / length) * length
    start, end = (first + 1e-4).maximum(borders[:-1]), (last - 1e-4).minimum(borders[1:])
    points = torch.stack((start, (start + end) / 2, end), -1).flatten(1)
    place = ((points - first) / step).clamp_min(0).minimum(count - 1)  # in frames
    before = place.long()
    after = (before + 1).minimum(count.long() - 1)
    share = (place - before)[..., None]
    rows = [frames.gather(1, index[..., None].expand(-1, -1, width)).double() for index in (before, after)]
    means = (rows[0] + share * (rows[1] - rows[0])).view(batch, length, 3, width).mean(2)
    outside = ((end < first) | (start > last)) & (count > 1)
    sampled = means.masked_fill(outside[..., None], 0).to(frames.dtype)
    _expect_finite(sampled)
    return sampled


def _expect_finite(prepared: Float[Tensor, "B S C"]) -> None:
    """Raise BadBatch if values of a video are NaN or infinite."""
    broken = (~prepared.isfinite().flatten(1).all(1)).nonzero().flatten().tolist()
    if broken:
        raise BadBatch(
            f"the frames of videos {broken} contain NaN or infinite values, expected finite ones. Extract them again."
        )


def _num_real_frames(frames: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None) -> Int[Tensor, " B"]:
    """Return the number of real frames of each video, after a check. Without `num_frames` all frames are real."""
    batch, total, _ = frames.shape
    if num_frames is None:
        return torch.full((batch,), total, device=frames.device)
    expect_axes(frames=(frames, "B T C"), num_frames=(num_frames, "B"))
    expect_labels("num_frames", num_frames, "the frames of a video")
    if batch and (int(num_frames.min()) < 1 or int(num_frames.max()) > total):
        raise BadSetting(
            f"num_frames is {num_frames.tolist()}, expected 1 to {total} for each video. Drop empty videos."
        )
    return num_frames


# ---------------------------------------------------------------- quantities of a segmentation


def membership(segment_of_frame: Int[Tensor, "B T"], num_segments: int) -> Bool[Tensor, "B {num_segments} T"]:
    """Return which frames belong to each segment, the sets 𝔽_i of Eq. (7): a one-hot encoding of the segmentation.

    >>> membership(torch.tensor([[0, 0, 1]]), 2).int()
    tensor([[[1, 1, 0],
             [0, 0, 1]]], dtype=torch.int32)
    """
    segments = torch.arange(num_segments, device=segment_of_frame.device)
    return segment_of_frame[:, None, :] == segments[:, None]


def segment_sizes(segment_of_frame: Int[Tensor, "B T"], num_segments: int) -> Int[Tensor, "B {num_segments}"]:
    """Return the number of frames of each segment, X_i of Eq. (7). An unused segment has 0."""
    return membership(segment_of_frame, num_segments).sum(-1)


def segment_mean(
    tokens: Float[Tensor, "B T C"],
    segment_of_token: Int[Tensor, "B T"],
    num_segments: int,
    sizes: Real[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B {num_segments} C"]:
    """Return the mean of the tokens of each segment, (s_a a + s_b b) / (s_a + s_b) for two tokens a and b (Sec. 3.3).

    Args:
        tokens: the features.
        segment_of_token: the segment of each token.
        num_segments: the number of segments. An unused segment has the mean zero.
        sizes: the weight s of each token, its number of frames. Default: all weigh the same.
    """
    expect_axes(tokens=(tokens, "B T C"), segment_of_token=(segment_of_token, "B T"))
    weights = membership(segment_of_token, num_segments).to(tokens.dtype)
    if sizes is not None:
        weights = weights * sizes[:, None, :].to(tokens.dtype)
    totals = weights.sum(-1, keepdim=True)
    return (weights / torch.where(totals > 0, totals, 1)) @ tokens


def segment_spans(segment_of_frame: Int[Tensor, "B T"], num_segments: int) -> Float[Tensor, "B {num_segments} 2"]:
    """Return the start and end of each segment as fractions of the video. An unused segment has (0, 0)."""
    members = membership(segment_of_frame, num_segments)
    total = segment_of_frame.shape[1]
    position = torch.arange(total, device=segment_of_frame.device)
    start = torch.where(members, position, total).amin(-1)
    end = torch.where(members, position + 1, 0).amax(-1)
    return torch.stack((torch.where(end > 0, start, 0), end), -1) / total


def compose(segment_of_frame: Int[Tensor, "B T"], merged_of_segment: Int[Tensor, "B S"]) -> Int[Tensor, "B T"]:
    """Return the segmentation that results from merging the segments of another: the second map indexed by the first.

    >>> compose(torch.tensor([[0, 0, 1, 2]]), torch.tensor([[0, 1, 0]]))
    tensor([[0, 0, 1, 0]])
    """
    return merged_of_segment.gather(1, segment_of_frame)


# ---------------------------------------------------------------- the number of segments of a video


def connectivity(tokens: Float[Tensor, "B S C"], threshold: float, *, transitive: bool = False) -> Float[Tensor, " B"]:
    """Return the high-similarity ratio ω of each video, Algorithm 3, stage 1.

    ω is the share of ordered token pairs i ≠ j whose cosine is above the threshold τ. A single token has ω = 0.

    Args:
        tokens: the frozen clip features V_c.
        threshold: τ.
        transitive: also count pairs that a chain of similar tokens connects, as the released code does.
    """
    expect_axes(tokens=(tokens, "B S C"))
    total = tokens.shape[1]
    unit = F.normalize(at_least_single(tokens), dim=-1)
    similar = unit @ unit.mT > threshold
    if transitive:
        similar = _transitive_closure(similar)
    off_diagonal = ~torch.eye(total, dtype=torch.bool, device=tokens.device)
    return (similar & off_diagonal).sum((1, 2)).to(unit.dtype) / max(total * (total - 1), 1)


def budget(ratio: Float[Tensor, " B"], num_levels: int) -> Int[Tensor, " B"]:
    """Return the number of merges of each video, Algorithm 3, stage 2: k* - 1, where k* = min(K, 1 + ⌊ω K⌋).

    A video of diverse clips (low ω) keeps them all. A homogeneous one is merged to the last level. The printed rule is
    reversed (docs/paper.md, deviation F5).

    Args:
        ratio: ω of each video, from `connectivity`.
        num_levels: K, the number of levels.

    >>> budget(torch.tensor([0.0, 0.5, 1.0]), 6)
    tensor([0, 3, 5])
    """
    expect_at_least("num_levels", num_levels, 1)
    return (ratio * num_levels).floor().long().clamp(0, num_levels - 1)


# ---------------------------------------------------------------- segmentations


def uniform(frames: Float[Tensor, "B T C"], target: int = 32) -> Int[Tensor, "B T"]:
    """Return clips of equal length, as the baselines of the paper have them.

    A video of fewer than `target` frames has one clip for each frame.

    Raises:
        BadSetting: there are no frames, or `target` is below 1.

    >>> uniform(torch.zeros(1, 6, 2), 3)
    tensor([[0, 0, 1, 1, 2, 2]])
    """
    expect_axes(frames=(frames, "B T C"))
    expect_at_least("target", target, 1)
    batch, total, _ = frames.shape
    _expect_frames(total)
    segment_of_frame = torch.arange(total, device=frames.device) * min(target, total) // total
    return segment_of_frame.expand(batch, total).contiguous()


@torch.no_grad()
def order_preserving(
    frames: Float[Tensor, "B T C"],
    target: int = 32,
    rate: float = 0.75,
    *,
    similarity: Similarity = "cosine",
    lengths: Sequence[int] | None = None,
) -> Int[Tensor, "B T"]:
    """Return clips of similar neighbouring frames, Algorithm 1 (OP-ToMe).

    Each step compares the disjoint pairs (0, 1), (2, 3), … and replaces the most similar ones by their size-weighted
    mean. Of equally similar pairs the earlier one is merged first if the similarity is the cosine. A video of at most
    `target` frames is not merged. The result is constant for frozen features, so compute it once.

    Args:
        frames: the frozen frame features V_f.
        target: the number of clips L_c.
        rate: N / 100, the merge rate.
        similarity: the cosine as in the paper, or the dot product as in the released code.
        lengths: the numbers of tokens after each step. Default: `merge_schedule(T, target, rate)`.

    Raises:
        BadBatch: the frames have the wrong shape or type.
        BadSetting: a number is out of range, or merging cannot reach the lengths.
        UnknownName: there is no such similarity.

    >>> order_preserving(torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [1.0, 1.0]]]), 3)
    tensor([[0, 0, 1, 2]])
    """
    expect_axes(frames=(frames, "B T C"))
    if similarity not in ("cosine", "dot"):
        raise UnknownName.among("similarity", similarity, ("cosine", "dot"))
    expect_rate(rate)
    frames = at_least_single(frames)
    batch, total, _ = frames.shape
    _expect_frames(total)
    if lengths is None:
        lengths = merge_schedule(total, target, rate)
    check_lengths(lengths, total)
    if similarity == "dot":
        return order_preserving_by_dot(frames, lengths)[1]
    # Cosines of sums of frames follow from the inner products of frames. After r steps a token has at most 2^r frames,
    # so only a narrow band of products matters: the features are read once, and each step adds numbers of the band.
    reach = min(2 ** (len(lengths) - 1), total)
    products = neighbour_products(frames.flatten(0, 1), reach).view(batch, total, reach)
    runs = products.double().cumsum(-1)  # products across two videos are in here, but never read
    segment_of_frame = torch.arange(total, device=frames.device).repeat(batch, 1)
    for length, keep in pairwise(lengths):
        merged_of_token = _join_neighbours(_pair_cosines(runs, segment_of_frame, length), length, keep)
        segment_of_frame = compose(segment_of_frame, merged_of_token)
    return segment_of_frame


@torch.no_grad()
def order_preserving_by_dot(
    frames: Float[Tensor, "B T C"], lengths: Sequence[int]
) -> tuple[Float[Tensor, "B S C"], Int[Tensor, "B T"]]:
    """Return the clip features and clips of the released OP-ToMe, which compares dot products.

    The order of operations is the released one. A video of fewer than 128 frames repeats them, and pairs of equal
    frames differ only by the rounding of their means. A faster formula rounds differently and would merge other pairs
    than the code that trained the model. Of equally similar pairs, the unstable sort of the installed torch decides
    which are merged, as in the released code.

    Args:
        frames: the frozen frame features V_f.
        lengths: the numbers of tokens before the first step and after each step.

    Returns:
        The features of the clips, and the clip of each frame.

    Raises:
        BadSetting: merging cannot reach the lengths.
    """
    expect_axes(frames=(frames, "B T C"))
    check_lengths(lengths, frames.shape[1])
    tokens, sizes = frames, torch.ones_like(frames[..., 0])
    segment_of_frame = torch.arange(frames.shape[1], device=frames.device).repeat(len(frames), 1)
    for keep in lengths[1:]:
        paired = tokens.shape[1] // 2 * 2
        score = (tokens[:, 0:paired:2] * tokens[:, 1:paired:2]).sum(-1)
        merged_of_token = _join_neighbours(score, tokens.shape[1], keep, stable=False)
        tokens, sizes = _merge_pairs(tokens, sizes, merged_of_token, keep)
        segment_of_frame = compose(segment_of_frame, merged_of_token)
    return tokens, segment_of_frame


@torch.no_grad()
def bipartite(
    tokens: Float[Tensor, "B S C"], sizes: Real[Tensor, "B S"], keep: int, *, exclusive: bool = False
) -> Int[Tensor, "B S"]:
    """Return the merged token of each token after one step of bipartite merging (ToMe), Algorithm 3, stage 3.

    Each of the tokens 0, 2, 4, … proposes to the most similar of the tokens 1, 3, 5, …. The S - keep proposals with the
    highest cosine are accepted. Several tokens may join the same token. Merged tokens are numbered by first appearance.

    Args:
        tokens: the features that are compared.
        sizes: the number of frames of each token. A token of size 0 is padding and is merged last.
        keep: the number of tokens after the step.
        exclusive: merge pairs only, greedily by cosine, and put a pair at the position of its proposer, as the released
            code does.

    Raises:
        BadSetting: `keep` cannot be reached in one step, or there are no tokens.
    """
    expect_axes(tokens=(tokens, "B S C"), sizes=(sizes, "B S"))
    batch, total, _ = tokens.shape
    expect_at_least("the number of tokens", total, 1, "Drop empty videos.")
    least = _fewest_after_a_step(total, exclusive)
    if not least <= keep <= total:
        raise BadSetting(
            f"keep is {keep}, expected {least} to {total}: a step merges at most every second token. Merge in "
            f"several steps."
        )
    unit = F.normalize(at_least_single(tokens), dim=-1)
    affinity = unit[:, 0::2] @ unit[:, 1::2].mT
    empty = sizes == 0
    affinity = affinity.masked_fill(empty[:, 0::2, None] | empty[:, None, 1::2], -math.inf)
    joined = torch.arange(total, device=tokens.device).repeat(batch, 1)
    if keep < total:
        strength, choice = _greedy_pairs(affinity) if exclusive else affinity.max(-1)
        accepted = strength.argsort(dim=-1, descending=True, stable=True)[:, : total - keep]
        proposer, receiver = 2 * accepted, 2 * choice.gather(1, accepted) + 1
        if exclusive:
            return _numbered_by_leader(joined.scatter_(1, receiver, proposer))
        joined.scatter_(1, proposer, receiver)
    return _numbered_by_first_appearance(joined)


@torch.no_grad()
def adaptive(
    tokens: Float[Tensor, "B S C"],
    sizes: Real[Tensor, "B S"],
    threshold: float,
    lengths: Sequence[int],
    *,
    transitive: bool = False,
    exclusive: bool = False,
) -> Int[Tensor, "B S"]:
    """Return the context of each clip, Algorithm 3.

    The clips of each video are merged to the level that fits how similar they are.

    Args:
        tokens: the frozen clip features V_c.
        sizes: the number of frames of each clip.
        threshold: τ, the cosine above which two clips are similar.
        lengths: the levels L_c^1, L_c^2, …, from `levels`.
        transitive: an option of `connectivity`.
        exclusive: an option of `bipartite`.

    Raises:
        BadSetting: merging cannot reach the lengths.
    """
    expect_axes(tokens=(tokens, "B S C"), sizes=(sizes, "B S"))
    check_lengths(lengths, tokens.shape[1], exclusive=exclusive)
    tokens = at_least_single(tokens)
    level = budget(connectivity(tokens, threshold, transitive=transitive), len(lengths))
    merged_of_token = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[:2])
    merged_at_level = [merged_of_token]
    # All videos take all steps in one batch, which is cheap, and each keeps the map of its own level.
    for keep in lengths[1:]:
        step = bipartite(tokens, sizes, keep, exclusive=exclusive)
        if exclusive:
            tokens, sizes = _merge_pairs(tokens, sizes, step, keep)
        else:
            tokens = segment_mean(tokens, step, keep, sizes)
            sizes = (membership(step, keep) * sizes[:, None, :]).sum(-1)
        merged_of_token = compose(merged_of_token, step)
        merged_at_level.append(merged_of_token)
    return torch.stack(merged_at_level, 1)[torch.arange(len(level), device=level.device), level]


# ---------------------------------------------------------------- steps


def _join_neighbours(
    score: Float[Tensor, "B P"], length: int, keep: int, *, stable: bool = True
) -> Int[Tensor, "B {length}"]:
    """Return the map that joins the best pairs of (0, 1), (2, 3), … and reduces `length` tokens to `keep`.

    Args:
        score: the similarity of each pair.
        length: the number of tokens.
        keep: the number of tokens after the step.
        stable: of equally similar pairs, join the earlier ones. False: join those that torch sorts first.
    """
    left = 2 * score.argsort(dim=-1, descending=True, stable=stable)[:, : length - keep]
    starts = torch.ones(len(score), length, dtype=torch.bool, device=score.device).scatter_(1, left + 1, False)
    return starts.cumsum(1) - 1


def _pair_cosines(
    runs: Float[Tensor, "B T R"], segment_of_frame: Int[Tensor, "B T"], length: int
) -> Float[Tensor, "B P"]:
    """Return the cosines of the tokens (0, 1), (2, 3), …, from the inner products of frames.

    The mean of a token is a multiple of the sum of its frames, so both have the same cosines. `runs[:, i, k]` is the
    inner product of frame i with the sum of the frames i to i + k.
    """
    batch, total, _ = runs.shape
    position = torch.arange(total, device=runs.device)
    tokens = torch.arange(length, device=runs.device).repeat(batch, 1)
    ends = torch.searchsorted(segment_of_frame, tokens, right=True)
    pair_ends = ends.gather(1, (tokens | 1).clamp_max(length - 1))

    def with_frames_up_to(end: Int[Tensor, "B S"]) -> Float[Tensor, "B T"]:
        return runs.gather(2, (end.gather(1, segment_of_frame) - 1 - position)[..., None]).squeeze(2)

    def of_tokens(of_frames: Float[Tensor, "B T"]) -> Float[Tensor, "B S"]:
        return runs.new_zeros(batch, length).scatter_add_(1, segment_of_frame, of_frames)

    inside = with_frames_up_to(ends)
    squares = of_tokens(2 * inside - runs[..., 0])  # the square of a sum has each product of two frames twice
    products = of_tokens(with_frames_up_to(pair_ends) - inside)
    squares = squares.clamp_min(0)[:, : length // 2 * 2]  # rounding may give a negative square if frames cancel
    # One root of the product, not a product of two roots: it is exact for equal frames, so that equal pairs tie.
    scale = (squares[:, 0::2] * squares[:, 1::2]).sqrt().clamp_min(torch.finfo(runs.dtype).tiny)
    return (products[:, 0 : length // 2 * 2 : 2] / scale).clamp(-1, 1)


def _merge_pairs(
    tokens: Float[Tensor, "B S C"], sizes: Real[Tensor, "B S"], merged_of_token: Int[Tensor, "B S"], keep: int
) -> tuple[Float[Tensor, "B {keep} C"], Real[Tensor, "B {keep}"]]:
    """Return (s_a a + s_b b) / (s_a + s_b) of each pair and s_a + s_b. A single token keeps its exact value."""
    members = membership(merged_of_token, keep)
    position = torch.arange(tokens.shape[1], device=tokens.device)
    first = torch.where(members, position, tokens.shape[1]).amin(-1)
    second = torch.where(members, position, -1).amax(-1)
    video = torch.arange(len(tokens), device=tokens.device)[:, None]
    of_first, of_second = sizes.gather(1, first), sizes.gather(1, second)
    both = of_first + of_second
    weight_first, weight_second, total = (
        size[..., None].to(tokens.dtype) for size in (of_first, of_second, torch.where(both > 0, both, 1))
    )
    means = (tokens[video, first] * weight_first + tokens[video, second] * weight_second) / total
    alone = first == second
    return torch.where(alone[..., None], tokens[video, first], means), torch.where(alone, of_first, both)


def _transitive_closure(linked: Bool[Tensor, "B S S"]) -> Bool[Tensor, "B S S"]:
    """Return which tokens a chain of links connects. Each squaring of the matrix doubles the length of the chains."""
    total = linked.shape[-1]
    reach = linked | torch.eye(total, dtype=torch.bool, device=linked.device)
    for _ in range(math.ceil(math.log2(total)) if total > 1 else 0):
        reach = (reach.float() @ reach.float()) > 0
    return reach


def _greedy_pairs(affinity: Float[Tensor, "B P R"]) -> tuple[Float[Tensor, "B P"], Int[Tensor, "B P"]]:
    """Return the affinity and partner of each proposer in a greedy one-to-one matching, -inf and 0 without a partner.

    Greedy matching takes the strongest free pair, again and again. Pairs that are each other's best choice do not
    compete, so all of them are taken in one round. A few rounds replace one step for each pair.
    """
    batch, proposers, receivers = affinity.shape
    order = affinity.flatten(1).argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(dim=-1).view_as(affinity)  # 0 = strongest. Ranks are unique, which breaks ties.
    taken = proposers * receivers
    strength = affinity.new_full((batch, proposers), -math.inf)
    partner = rank.new_zeros(batch, proposers)
    index = torch.arange(proposers, device=affinity.device)
    for _ in range(min(proposers, receivers)):
        best_rank, best = rank.min(2)
        mutual = (rank.min(1).indices.gather(1, best) == index) & (best_rank < taken)
        if not mutual.any():
            break
        strength = torch.where(mutual, affinity.gather(2, best[..., None]).squeeze(2), strength)
        partner = torch.where(mutual, best, partner)
        spent = membership(torch.where(mutual, best, -1), receivers).any(-1)
        rank = rank.masked_fill(mutual[:, :, None] | spent[:, None, :], taken)
    return strength, partner


def _numbered_by_first_appearance(joined: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Renumber groups, given as the position of any member, to 0, 1, 2, … by first appearance."""
    position = torch.arange(joined.shape[1], device=joined.device).expand_as(joined)
    first = torch.full_like(joined, joined.shape[1]).scatter_reduce_(1, joined, position, "amin")
    return _numbered_by_leader(first.gather(1, joined))


def _numbered_by_leader(leader: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Renumber groups, given as the position of their leading member, to 0, 1, 2, … in the order of the leaders."""
    position = torch.arange(leader.shape[1], device=leader.device)
    return ((leader == position).cumsum(1) - 1).gather(1, leader)


# ---------------------------------------------------------------- checks


def check_lengths(lengths: Sequence[int], total: int, *, exclusive: bool = True) -> None:
    """Raise BadSetting unless merging can reduce `total` tokens to these numbers, one step each.

    Args:
        lengths: the numbers of tokens before the first step and after each step.
        total: the number of tokens.
        exclusive: tokens merge in pairs. Otherwise several tokens may join the same token.
    """
    falls = all(_fewest_after_a_step(before, exclusive) <= after < before for before, after in pairwise(lengths))
    if not lengths or lengths[0] != total or not falls:
        raise BadSetting(
            f"lengths is {list(lengths)}, expected to start at {total} and to fall by at most half in each step. Lower "
            f"the merge rate or omit lengths."
        )


def _fewest_after_a_step(num_tokens: int, exclusive: bool) -> int:
    """Return the smallest number of tokens after a step. An odd token cannot merge if tokens merge in pairs."""
    return max((num_tokens + exclusive) // 2, 1)


def _expect_frames(num: int) -> None:
    expect_at_least("the number of frames", num, 1, "Drop empty videos.")
