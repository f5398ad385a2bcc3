"""Metrics of retrieval and localisation, in percent.

Axes: Q queries, B videos, N pairs of moments, M annotated moments of all queries together, K predicted moments of a
query, A annotated moments of a query, T thresholds.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.ops.checks import expect_axes

RECALLS_AT = (1, 5, 10, 100)
OVERLAPS_AT = (0.5, 0.7)
PRECISION_AT = (0.3, 0.5, 0.7)  # thresholds of the overlap for mAP
CORPUS_AT = (10, 100)  # ranks for moments of a whole corpus


# ---------------------------------------------------------------- which video


def ranks(scores: Float[Tensor, "Q B"], video_of_query: Int[Tensor, " Q"]) -> Int[Tensor, " Q"]:
    """Return the rank of each query's video by score, counted from 1.

    Ties are broken pessimistically: other videos with the same score come first. A model that gives all videos the same
    score therefore ranks the right ones last. Tools for TREC run files break ties by id, so their results agree only if
    no score repeats.

    Args:
        scores: The score of each query and video.
        video_of_query: The column of each query's video.

    Raises:
        BadBatch: A score is NaN, or a video has no column.
    """
    expect_axes(scores=(scores, "Q B"), video_of_query=(video_of_query, "Q"))
    video_of_query = video_of_query.to(scores.device)
    strays = video_of_query[(video_of_query < 0) | (video_of_query >= scores.shape[1])].tolist()
    if strays:
        raise BadBatch(
            f"video_of_query has {strays[:5]}, expected 0 to {scores.shape[1] - 1}. Score all videos of the queries."
        )
    expect_numbers(scores)
    own = scores.gather(1, video_of_query[:, None].long())
    return (scores >= own).sum(1)  # the video itself is one of them


def multi_ranks(scores: Float[Tensor, "Q B"], is_right: Bool[Tensor, "Q B"]) -> Int[Tensor, " Q"]:
    """Return the rank of the best right video of each query, if several videos are right, counted from 1.

    Ties are broken pessimistically, as by `ranks`: wrong videos with the same score come first.

    Args:
        scores: The score of each query and video.
        is_right: Whether a video is right for a query.

    Raises:
        BadBatch: A score is NaN, or a query has no right video.

    >>> multi_ranks(torch.tensor([[0.9, 0.8, 0.7, 0.8]]), torch.tensor([[False, True, True, False]]))
    tensor([3])
    """
    expect_axes(scores=(scores, "Q B"), is_right=(is_right, "Q B"))
    expect_numbers(scores)
    without = (~is_right.any(1)).nonzero().flatten().tolist()
    if without:
        raise BadBatch(f"the queries {without[:5]} have no right video, expected one or more for each. Leave them out.")
    best = scores.masked_fill(~is_right, -torch.inf).max(1, keepdim=True).values
    return 1 + ((scores >= best) & ~is_right).sum(1)


def recalls(ranks: Int[Tensor, " Q"], at: Sequence[int] = RECALLS_AT) -> dict[str, float]:
    """Return R@K for each K in `at`, and SumR, their sum.

    R@K is the percentage of queries whose video is among the first K. Training chooses its best epoch by SumR. For the
    four K of the paper, the maximum of SumR is 400.

    >>> recalls(torch.tensor([1, 3, 20, 1]), at=(1, 5))
    {'R@1': 50.0, 'R@5': 75.0, 'SumR': 125.0}
    """
    _expect_some("ranks", len(ranks), "queries")
    if not at or min(at) < 1:
        raise BadSetting(f"at is {tuple(at)}, expected ranks of 1 or more. Try {RECALLS_AT}.")
    figures = {f"R@{k}": _percent(ranks <= k) for k in at}
    return figures | {"SumR": sum(figures.values())}


def expect_numbers(scores: Float[Tensor, "Q B"]) -> None:
    """Raise BadBatch if a score is NaN. Every comparison with NaN is false, so it would count as a good rank."""
    query, video = scores.isnan().nonzero(as_tuple=True)
    if len(query):
        raise BadBatch(
            f"{len(query)} of {scores.numel()} scores are NaN, first for query {int(query[0])} and video "
            f"{int(video[0])}. Check their features and the weights of the model."
        )


# ---------------------------------------------------------------- which moment


def iou(predicted: Float[Tensor, "N 2"], annotated: Float[Tensor, "N 2"]) -> Float[Tensor, " N"]:
    """Return the intersection over union of pairs of moments (start, end).

    Equal moments have 1, even if their length is 0.

    >>> iou(torch.tensor([[0.0, 4.0]]), torch.tensor([[2.0, 6.0]]))
    tensor([0.3333])
    """
    expect_axes(predicted=(predicted, "N 2"), annotated=(annotated, "N 2"))
    (start, end), (other_start, other_end) = predicted.unbind(1), annotated.unbind(1)
    shared = (end.minimum(other_end) - start.maximum(other_start)).clamp_min(0)
    union = (end - start) + (other_end - other_start) - shared
    equal = (predicted == annotated).all(1).to(shared.dtype)
    return torch.where(union > 0, shared / union.where(union > 0, 1), equal)


def best_iou(
    predicted: Float[Tensor, "Q 2"], annotated: Float[Tensor, "M 2"], query_of_moment: Int[Tensor, " M"]
) -> Float[Tensor, " Q"]:
    """Return the overlap of each query's predicted moment with its best annotated moment.

    A query may have several annotated moments. A prediction needs to find only one of them. A query without an
    annotated moment has 0.

    Args:
        predicted: One moment per query.
        annotated: The annotated moments of all queries.
        query_of_moment: The query of each annotated moment.

    >>> best_iou(torch.tensor([[4.0, 8.0]]), torch.tensor([[0.0, 2.0], [4.0, 6.0]]), torch.tensor([0, 0]))
    tensor([0.5000])
    """
    expect_axes(annotated=(annotated, "M 2"), query_of_moment=(query_of_moment, "M"))
    overlaps = iou(predicted[query_of_moment], annotated)
    return overlaps.new_zeros(len(predicted)).scatter_reduce(0, query_of_moment, overlaps, "amax")


def localisation(ious: Float[Tensor, " N"], at: Sequence[float] = OVERLAPS_AT) -> dict[str, float]:
    """Return R1@t for each threshold t in `at`, and mIoU, the mean overlap.

    R1@t is the percentage of queries whose predicted moment overlaps the annotated one by t or more. The moments are
    predicted within the right video, so the rank of the video does not matter. Leave out queries without an annotated
    moment.

    >>> localisation(torch.tensor([1.0, 0.5, 0.0, 0.5]))
    {'R1@0.5': 75.0, 'R1@0.7': 25.0, 'mIoU': 50.0}
    """
    _expect_some("ious", len(ious), "moments")
    return {f"R1@{threshold}": _percent(ious >= threshold) for threshold in at} | {"mIoU": _percent(ious)}


def corpus_moments(
    ranks: Int[Tensor, " N"],
    overlaps: Float[Tensor, " N"],
    at: Sequence[int] = CORPUS_AT,
    thresholds: Sequence[float] = PRECISION_AT,
) -> dict[str, float]:
    """Return the recalls of moments in the whole corpus: the right video must be found, and the moment in it.

    A search lists each video once, with its best moment. RK@t is the percentage of queries for which one of the
    first K entries is the right video with a moment that overlaps the annotated one by t or more. Moments are not
    trained on, so this is weakly supervised video corpus moment retrieval. Leave out queries without a moment.

    Args:
        ranks: The rank of each query's video.
        overlaps: The overlap of the found moment in the right video with the annotated one.
        at: The ranks.
        thresholds: The thresholds of the overlap.

    >>> corpus_moments(torch.tensor([1, 20]), torch.tensor([0.6, 0.9]), at=(10, 100), thresholds=(0.5,))
    {'R10@0.5': 50.0, 'R100@0.5': 100.0}
    """
    expect_axes(ranks=(ranks, "N"), overlaps=(overlaps, "N"))
    _expect_some("ranks", len(ranks), "queries")
    return {f"R{k}@{t}": _percent((ranks <= k) & (overlaps >= t)) for t in thresholds for k in at}


def average_precision(
    predicted: Float[Tensor, "Q K 2"],
    annotated: Float[Tensor, "M 2"],
    query_of_moment: Int[Tensor, " M"],
    at: Sequence[float] = PRECISION_AT,
) -> Float[Tensor, "Q T"]:
    """Return the average precision of each query's ranked moments, from 0 to 1, for each threshold of the overlap.

    A predicted moment is right if it overlaps an annotated one by the threshold or more. Each annotated moment can be
    found once: in order of rank, a prediction takes the one of those left that it overlaps most. The precision at a
    recall is the best one at this recall or a higher one, as in the evaluation of QVHighlights. The average is over the
    annotated moments. A missed one counts 0, and so does a query without an annotated moment.

    Args:
        predicted: The moments of each query, best first, NaN for padding.
        annotated: The annotated moments of all queries.
        query_of_moment: The query of each annotated moment.
        at: The thresholds.

    >>> found = torch.tensor([[[0.0, 4.0], [10.0, 14.0], [20.0, 24.0]]])
    >>> average_precision(found, torch.tensor([[0.0, 4.0], [20.0, 24.0]]), torch.tensor([0, 0]), at=(0.5,))
    tensor([[0.8333]])
    """
    expect_axes(predicted=(predicted, "Q K 2"))
    expect_axes(annotated=(annotated, "M 2"), query_of_moment=(query_of_moment, "M"))
    truth, counts = _by_query(annotated, query_of_moment, len(predicted))
    size = (len(predicted), predicted.shape[1], truth.shape[1])  # Q, K, A
    pairs = (predicted[:, :, None].expand(*size, 2), truth[:, None].expand(*size, 2))
    overlaps = iou(*(each.reshape(-1, 2) for each in pairs)).view(size)
    overlaps = overlaps.where(~torch.cat(pairs, -1).isnan().any(-1), -1)  # padding
    thresholds = torch.tensor(at, dtype=overlaps.dtype)[:, None]
    left = overlaps.new_ones(size[0], len(at), size[2], dtype=torch.bool)
    right = overlaps.new_zeros(size[0], len(at), size[1])
    for rank in range(size[1] if size[2] else 0):
        overlap, which = overlaps[:, rank, None].where(left, -1).max(-1, keepdim=True)  # (Q, T, 1)
        is_right = overlap >= thresholds
        right[..., rank] = is_right[..., 0].to(right.dtype)
        left = left.scatter(-1, which, left.gather(-1, which) & ~is_right)
    precision = right.cumsum(-1) / torch.arange(1, size[1] + 1)
    best_from_here = precision.flip(-1).cummax(-1).values.flip(-1)
    return (right * best_from_here).sum(-1) / counts.clamp_min(1)[:, None]


def _by_query(
    annotated: Float[Tensor, "M 2"], query_of_moment: Int[Tensor, " M"], num_queries: int
) -> tuple[Float[Tensor, "Q A 2"], Int[Tensor, " Q"]]:
    """Return the annotated moments of each query, NaN for padding, and their number."""
    counts = query_of_moment.bincount(minlength=num_queries)
    order = query_of_moment.argsort(stable=True)
    query = query_of_moment[order]
    place = torch.arange(len(order)) - (counts.cumsum(0) - counts)[query]
    moments = annotated.new_full((num_queries, int(counts.max()), 2), torch.nan)
    moments[query, place] = annotated[order]
    return moments, counts


def mean_average_precision(precisions: Float[Tensor, "Q T"], at: Sequence[float] = PRECISION_AT) -> dict[str, float]:
    """Return mAP@t for each threshold t in `at`: the mean over queries of `average_precision`.

    Leave out queries without an annotated moment.

    >>> mean_average_precision(torch.tensor([[1.0, 0.5], [0.5, 0.0]]), at=(0.5, 0.7))
    {'mAP@0.5': 75.0, 'mAP@0.7': 25.0}
    """
    _expect_some("precisions", len(precisions), "moments")
    return {f"mAP@{threshold}": _percent(column) for threshold, column in zip(at, precisions.T, strict=True)}


def _percent(values: Tensor) -> float:
    return 100 * float(values.double().mean())


def _expect_some(name: str, number: int, things: str) -> None:
    if number == 0:
        raise BadBatch(f"{name} is empty, expected at least one value. Pass {things}.")
