"""Segmentations: one integer per frame, and everything the paper derives from it.

A segmentation is `segment_of_frame`, an integer per frame counted 0, 1, 2, … without a gap. Uniform clips,
order-preserving merging and bipartite merging differ only in how they fill that vector; a clip token is a segment mean,
its size a count, and two merges compose by indexing. All functions work on a batch of videos at once.

Axes: B videos, T frames, S segments, C feature width.
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

Similarity = Literal["cosine", "dot"]


# ---------------------------------------------------------------- frames of any number -> a fixed number


def resample(
    frames: Float[Tensor, "B T C"],
    length: int = 128,
    num_frames: Int[Tensor, " B"] | None = None,
    *,
    grid: torch.dtype = torch.float32,
) -> Float[Tensor, "B {length} C"]:
    """Averages each video's frames over `length` equal windows; a video with fewer frames repeats them.

    Window k covers the frames from round(k T / length) up to the next window's first, or that one frame alone if they
    coincide. The bounds are clamped to T - 1, as in the released code, so the last frame of a long video is not used.
    `num_frames` says how many leading frames of each video are real; the rest is padding. `grid` is the precision of
    k / length, which decides where a bound falls between two frames; for powers of two all are exact.
    """
    expect_axes(frames=(frames, "B T C"))
    _expect_at_least("length", length, 1)
    batch, total, width = frames.shape
    _expect_frames(total)
    if num_frames is None:
        averaged = _window_means(frames, length, grid)
    else:
        expect_axes(frames=(frames, "B T C"), num_frames=(num_frames, "B"))
        expect_labels("num_frames", num_frames, "the frames of a video")
        if batch and (int(num_frames.min()) < 1 or int(num_frames.max()) > total):
            raise BadSetting(
                f"num_frames is {num_frames.tolist()}, expected 1 to {total} for each video; drop empty videos"
            )
        # Each video alone, without its padding. BLAS splits a long sum into parts, and the number of terms decides
        # where, so the product of a padded video would round otherwise than that of the video alone.
        averaged = frames.new_empty(batch, length, width)
        for number, num in enumerate(num_frames.tolist()):
            averaged[number] = _window_means(frames[number, None, :num], length, grid)[0]
    broken = (~averaged.isfinite().flatten(1).all(1)).nonzero().flatten().tolist()
    if broken:
        raise BadBatch(
            f"the frames of videos {broken} hold values that are NaN or infinite, expected features; extract them again"
        )
    return averaged


def _window_means(frames: Float[Tensor, "B T C"], length: int, grid: torch.dtype) -> Float[Tensor, "B {length} C"]:
    """The windows of `resample`, for videos without padding."""
    batch, total, width = frames.shape
    share = torch.arange(length + 1, device=frames.device, dtype=grid) / length
    num_frames = torch.full((batch, 1), total, device=frames.device)
    bounds = (share * num_frames).round().long().minimum(num_frames - 1)
    position = torch.arange(total, device=frames.device).expand(batch, total).contiguous()
    window_of_frame = torch.searchsorted(bounds, position, right=True) - 1  # `length` where no window holds the frame
    windows = torch.arange(length, device=frames.device)[:, None]
    members = window_of_frame[:, None, :] == windows
    counts = members.sum(-1, keepdim=True)
    first = frames.gather(1, bounds[:, :-1, None].expand(batch, length, width))
    precise = at_least_single(frames)  # the sum of a long window is more than half precision holds
    means = members.to(precise.dtype) @ precise / counts.clamp_min(1)
    return torch.where(counts > 0, means.to(frames.dtype), first)


def cap(
    frames: Float[Tensor, "B T C"], length: int = 128, num_frames: Int[Tensor, " B"] | None = None
) -> tuple[Float[Tensor, "B {length} C"], Bool[Tensor, "B {length}"]]:
    """At most `length` frames: a longer video is averaged as by `resample`, a shorter one stays as it is.

    The second result is the mask of real frames; those behind the end of a short video are zeros.
    """
    averaged = resample(frames, length, num_frames, grid=torch.float64)
    batch, total, _ = frames.shape
    if num_frames is None:
        num_frames = torch.full((batch,), total, device=frames.device)
    mask = torch.arange(length, device=frames.device) < num_frames[:, None]
    kept = F.pad(frames[:, :length], (0, 0, 0, max(length - total, 0))).masked_fill(~mask[..., None], 0)
    return torch.where((num_frames <= length)[:, None, None], kept, averaged), mask


# ---------------------------------------------------------------- what follows from a segmentation


def membership(segment_of_frame: Int[Tensor, "B T"], num_segments: int) -> Bool[Tensor, "B {num_segments} T"]:
    """Which frames belong to each segment: the one-hot of the segmentation."""
    segments = torch.arange(num_segments, device=segment_of_frame.device)
    return segment_of_frame[:, None, :] == segments[:, None]


def segment_sizes(segment_of_frame: Int[Tensor, "B T"], num_segments: int) -> Int[Tensor, "B {num_segments}"]:
    """How many frames each segment holds; 0 for a segment that is not used."""
    return membership(segment_of_frame, num_segments).sum(-1)


def segment_mean(
    tokens: Float[Tensor, "B T C"],
    segment_of_token: Int[Tensor, "B T"],
    num_segments: int,
    sizes: Real[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B {num_segments} C"]:
    """The mean of each segment's tokens, weighted by the tokens' own `sizes`; zero for a segment that is not used."""
    expect_axes(tokens=(tokens, "B T C"), segment_of_token=(segment_of_token, "B T"))
    weights = membership(segment_of_token, num_segments).to(tokens.dtype)
    if sizes is not None:
        weights = weights * sizes[:, None, :].to(tokens.dtype)
    totals = weights.sum(-1, keepdim=True)
    return (weights / torch.where(totals > 0, totals, 1)) @ tokens


def segment_spans(segment_of_frame: Int[Tensor, "B T"], num_segments: int) -> Float[Tensor, "B {num_segments} 2"]:
    """First and last instant of each segment, as fractions of the video's length; (0, 0) for one that is not used."""
    members = membership(segment_of_frame, num_segments)
    total = segment_of_frame.shape[1]
    position = torch.arange(total, device=segment_of_frame.device)
    start = torch.where(members, position, total).amin(-1)
    end = torch.where(members, position + 1, 0).amax(-1)
    return torch.stack((torch.where(end > 0, start, 0), end), -1) / total


def compose(segment_of_frame: Int[Tensor, "B T"], merged_of_segment: Int[Tensor, "B S"]) -> Int[Tensor, "B T"]:
    """Merging the segments of a segmentation gives another one: index the second map by the first."""
    return merged_of_segment.gather(1, segment_of_frame)


# ---------------------------------------------------------------- how many segments


def levels(length: int, rate: float = 0.75, minimum: int = 5) -> list[int]:
    """Eq. (cliplevel), Algorithm 2: the numbers of clips left after 0, 1, 2, … merges at `rate`, down to `minimum`.

    >>> levels(32)
    [32, 20, 12, 8, 6, 5]
    >>> levels(128, minimum=32)
    [128, 80, 50, 32]
    """
    _expect_at_least("length", length, 1)
    _expect_at_least("minimum", minimum, 1)
    _expect_rate(rate)
    lengths = [length]
    while lengths[-1] > minimum:
        following = max(2 * math.floor((lengths[-1] - lengths[-1] / 2 * rate + 1) / 2), minimum)
        if following == lengths[-1]:
            break
        lengths.append(following)
    return lengths


def merge_schedule(length: int, target: int, rate: float = 0.75) -> list[int]:
    """The lengths of a merge that ends at exactly `target`: the levels of Eq. (cliplevel) where these can be reached.

    One step joins tokens in pairs, so it can at most halve the length; and where the formula stands still above the
    target (small rates, lengths of 2), a step joins one pair.
    """
    _expect_at_least("length", length, 1)
    _expect_at_least("target", target, 1)
    _expect_rate(rate)
    lengths = [length]
    while lengths[-1] > target:
        before = lengths[-1]
        at_rate = [*levels(before, rate, target), before][1]
        lengths.append(min(max(at_rate, (before + 1) // 2), before - 1))
    return lengths


def connectivity(tokens: Float[Tensor, "B S C"], threshold: float, *, transitive: bool = False) -> Float[Tensor, " B"]:
    """Algorithm 3, stage 1: the share ω of ordered token pairs i ≠ j whose cosine exceeds `threshold`.

    With `transitive` a pair also counts when a chain of similar tokens links it (the released code).
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
    """Algorithm 3, stage 2: how many merges a video gets, k - 1 with k = min(K, 1 + floor(ω K)).

    A video of diverse clips (low ω) keeps them all; a homogeneous one is merged down to the last level. The printed
    rule has this the wrong way round (docs/paper.md, deviation F5).
    """
    _expect_at_least("num_levels", num_levels, 1)
    return (ratio * num_levels).floor().long().clamp(0, num_levels - 1)


# ---------------------------------------------------------------- who joins whom


def uniform(frames: Float[Tensor, "B T C"], target: int = 32) -> Int[Tensor, "B T"]:
    """Clips of equal length, whatever they show: what the baselines do."""
    expect_axes(frames=(frames, "B T C"))
    _expect_at_least("target", target, 1)
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
    """Algorithm 1 (OP-ToMe): joins the most similar neighbours, step by step, until `target` clips are left.

    Each step looks at the disjoint pairs (0, 1), (2, 3), … and replaces the most similar ones by their size-weighted
    mean; of equal pairs the earlier is joined first. `lengths` overrides the numbers of tokens after each step.
    A video of at most `target` frames stays as it is. The result is constant for frozen features: compute it once.
    """
    expect_axes(frames=(frames, "B T C"))
    if similarity not in ("cosine", "dot"):
        raise UnknownName.among("similarity", similarity, ("cosine", "dot"))
    _expect_rate(rate)
    frames = at_least_single(frames)
    batch, total, _ = frames.shape
    _expect_frames(total)
    if lengths is None:
        lengths = merge_schedule(total, target, rate)
    check_lengths(lengths, total)
    if similarity == "dot":
        return order_preserving_by_dot(frames, lengths)[1]
    # Who joins whom depends on inner products of neighbours only, and after r steps a token holds at most 2^r frames.
    # So the features are read once, and each step adds up numbers of a narrow band.
    reach = min(2 ** (len(lengths) - 1), total)
    products = neighbour_products(frames.flatten(0, 1), reach).view(batch, total, reach)
    runs = products.double().cumsum(-1)  # what lies beyond a video's last frame is never asked for
    segment_of_frame = torch.arange(total, device=frames.device).repeat(batch, 1)
    for length, keep in pairwise(lengths):
        merged_of_token = _join_neighbours(_pair_cosines(runs, segment_of_frame, length), length, keep)
        segment_of_frame = compose(segment_of_frame, merged_of_token)
    return segment_of_frame


@torch.no_grad()
def order_preserving_by_dot(
    frames: Float[Tensor, "B T C"], lengths: Sequence[int]
) -> tuple[Float[Tensor, "B S C"], Int[Tensor, "B T"]]:
    """The released form of OP-ToMe, by dot products, in the released arithmetic; also the features of the clips.

    A video of fewer than 128 frames repeats them, and pairs of equal frames tie but for the rounding of their means. A
    faster formula would round otherwise and join other pairs than the code that trained the model did.
    """
    expect_axes(frames=(frames, "B T C"))
    check_lengths(lengths, frames.shape[1])
    tokens, sizes = frames, torch.ones_like(frames[..., 0])
    segment_of_frame = torch.arange(frames.shape[1], device=frames.device).repeat(len(frames), 1)
    for keep in lengths[1:]:
        paired = tokens.shape[1] // 2 * 2
        score = (tokens[:, 0:paired:2] * tokens[:, 1:paired:2]).sum(-1)
        merged_of_token = _join_neighbours(score, tokens.shape[1], keep)
        tokens, sizes = _merge_pairs(tokens, sizes, merged_of_token, keep)
        segment_of_frame = compose(segment_of_frame, merged_of_token)
    return tokens, segment_of_frame


@torch.no_grad()
def bipartite(
    tokens: Float[Tensor, "B S C"], sizes: Real[Tensor, "B S"], keep: int, *, exclusive: bool = False
) -> Int[Tensor, "B S"]:
    """One step of ToMe: every second token proposes to the most similar of the others; the best proposals are merged.

    Tokens 0, 2, 4, … propose to tokens 1, 3, 5, …; the S - keep proposals of highest cosine are accepted, and several
    may join one token; merged tokens are numbered by first appearance. With `exclusive` a token can be joined only
    once, pairs form greedily by cosine, and a pair stands where its proposer stood (the released code). A token of
    size 0 is padding: it is matched only after all others.
    """
    expect_axes(tokens=(tokens, "B S C"), sizes=(sizes, "B S"))
    batch, total, _ = tokens.shape
    _expect_at_least("the number of tokens", total, 1, "drop empty videos")
    least = _fewest_after_a_step(total, exclusive)
    if not least <= keep <= total:
        raise BadSetting(
            f"keep is {keep}, expected {least} to {total}: one bipartite step merges at most every second of {total} "
            f"tokens; merge further with another step"
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
    """Algorithm 3: merges each video's clips to the level that suits how alike they are; `lengths` are the levels.

    All videos take all steps, which is cheap, and each keeps the map of its own level.
    """
    expect_axes(tokens=(tokens, "B S C"), sizes=(sizes, "B S"))
    check_lengths(lengths, tokens.shape[1], exclusive=exclusive)
    tokens = at_least_single(tokens)
    level = budget(connectivity(tokens, threshold, transitive=transitive), len(lengths))
    merged_of_token = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[:2])
    merged_at_level = [merged_of_token]
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


# ---------------------------------------------------------------- the steps inside


def _join_neighbours(score: Float[Tensor, "B P"], length: int, keep: int) -> Int[Tensor, "B {length}"]:
    """The map that joins the best-scoring of the pairs (0, 1), (2, 3), … until `keep` of `length` tokens are left."""
    left = 2 * score.argsort(dim=-1, descending=True, stable=True)[:, : length - keep]
    starts = torch.ones(len(score), length, dtype=torch.bool, device=score.device).scatter_(1, left + 1, False)
    return starts.cumsum(1) - 1


def _pair_cosines(
    runs: Float[Tensor, "B T R"], segment_of_frame: Int[Tensor, "B T"], length: int
) -> Float[Tensor, "B P"]:
    """How alike tokens (0, 1), (2, 3), … are: the cosines of the sums of their frames.

    `runs[:, i, k]` is the inner product of frame i with the sum of the frames i to i + k.
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
    squares = of_tokens(2 * inside - runs[..., 0])  # two different frames meet twice in the square of their sum
    products = of_tokens(with_frames_up_to(pair_ends) - inside)
    squares = squares.clamp_min(0)[:, : length // 2 * 2]  # frames that cancel each other: rounded, below 0
    # One root of both: of equal frames it is exact, so that they tie.
    scale = (squares[:, 0::2] * squares[:, 1::2]).sqrt().clamp_min(torch.finfo(runs.dtype).tiny)
    return (products[:, 0 : length // 2 * 2 : 2] / scale).clamp(-1, 1)


def _merge_pairs(
    tokens: Float[Tensor, "B S C"], sizes: Real[Tensor, "B S"], merged_of_token: Int[Tensor, "B S"], keep: int
) -> tuple[Float[Tensor, "B {keep} C"], Real[Tensor, "B {keep}"]]:
    """(s_a a + s_b b) / (s_a + s_b) of each pair, and the new sizes. A token that stays alone keeps its bits."""
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
    total = linked.shape[-1]
    reach = linked | torch.eye(total, dtype=torch.bool, device=linked.device)
    for _ in range(math.ceil(math.log2(total)) if total > 1 else 0):  # each squaring doubles the length of the chains
        reach = (reach.float() @ reach.float()) > 0
    return reach


def _greedy_pairs(affinity: Float[Tensor, "B P R"]) -> tuple[Float[Tensor, "B P"], Int[Tensor, "B P"]]:
    """Greedy one-to-one matching: strength and partner of each proposer, -inf and 0 for one left alone.

    Greedy takes the strongest pair that is still free, again and again. All pairs that are each other's best at the
    same time can be taken together, so it needs a few rounds rather than one per pair.
    """
    batch, proposers, receivers = affinity.shape
    order = affinity.flatten(1).argsort(dim=-1, descending=True, stable=True)
    rank = order.argsort(dim=-1).view_as(affinity)  # 0 = strongest; unique, so that ties have one answer
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
    """Renames groups, given as any member's position, to 0, 1, 2, … in the order in which they first occur."""
    position = torch.arange(joined.shape[1], device=joined.device).expand_as(joined)
    first = torch.full_like(joined, joined.shape[1]).scatter_reduce_(1, joined, position, "amin")
    return _numbered_by_leader(first.gather(1, joined))


def _numbered_by_leader(leader: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Renames groups, given as the position of their leading member, to 0, 1, 2, … in the order of the leaders."""
    position = torch.arange(leader.shape[1], device=leader.device)
    return ((leader == position).cumsum(1) - 1).gather(1, leader)


# ---------------------------------------------------------------- what cannot be asked


def _expect_at_least(name: str, value: int, least: int, remedy: str = "give a larger one") -> None:
    if isinstance(value, float):
        raise BadSetting(f"{name} is {value!r}, expected a whole number; round it")
    if value < least:
        raise BadSetting(f"{name} is {value}, expected at least {least}; {remedy}")


def _expect_frames(num: int) -> None:
    _expect_at_least("the number of frames", num, 1, "drop empty videos")


def _fewest_after_a_step(num_tokens: int, exclusive: bool) -> int:
    """Where tokens join in pairs an odd one stays alone; where several may join one, it may join too."""
    return max((num_tokens + exclusive) // 2, 1)


def _expect_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise BadSetting(f"rate is {rate}, expected a share of the pairs above 0 and at most 1, such as 0.75 for 75 %")


def check_lengths(lengths: Sequence[int], total: int, *, exclusive: bool = True) -> None:
    """Raises BadSetting unless merging can take `total` tokens through these lengths, one step each.

    With `exclusive` tokens join in pairs; without, several may join one.
    """
    falls = all(_fewest_after_a_step(before, exclusive) <= after < before for before, after in pairwise(lengths))
    if not lengths or lengths[0] != total or not falls:
        raise BadSetting(
            f"lengths are {list(lengths)}, expected to start at {total} and to fall by at most half in each step; "
            f"lower the merge rate or leave them to the paper's formula"
        )
