"""Figures of retrieval and of localisation, in percent: pure functions of tensors.

Axes: Q queries, B videos, N pairs of moments, M annotated moments of all queries together.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.ops.checks import expect_axes

RECALLS_AT = (1, 5, 10, 100)
OVERLAPS_AT = (0.5, 0.7)


# ---------------------------------------------------------------- which video


def ranks(scores: Float[Tensor, "Q B"], video_of_query: Int[Tensor, " Q"]) -> Int[Tensor, " Q"]:
    """The position of each query's own video, counted from 1, when the videos are sorted by score.

    Ties are broken pessimistically: every other video with the same score comes first. A model that gives all videos
    one score therefore ranks its videos last, where breaking ties by the order of a sort would credit it with luck.
    Tools that read run files break ties by document id instead, so figures agree where no score repeats.
    """
    expect_axes(scores=(scores, "Q B"), video_of_query=(video_of_query, "Q"))
    video_of_query = video_of_query.to(scores.device)
    strays = video_of_query[(video_of_query < 0) | (video_of_query >= scores.shape[1])].tolist()
    if strays:
        raise BadBatch(
            f"video_of_query names videos {strays[:5]}, expected 0 to {scores.shape[1] - 1}; score all the videos that "
            f"the queries describe"
        )
    expect_numbers(scores)
    own = scores.gather(1, video_of_query[:, None].long())
    return (scores >= own).sum(1)  # its own video is one of those that score at least as well


def recalls(ranks: Int[Tensor, " Q"], at: Sequence[int] = RECALLS_AT) -> dict[str, float]:
    """R@K, the percentage of queries whose video is among the first K, for each K; and SumR, the sum of these.

    SumR is what training selects by. For the paper's four K its maximum is 400.

    >>> recalls(torch.tensor([1, 3, 20, 1]), at=(1, 5))
    {'R@1': 50.0, 'R@5': 75.0, 'SumR': 125.0}
    """
    _expect_some("ranks", len(ranks), "queries")
    if not at or min(at) < 1:
        raise BadSetting(f"recalls are asked for at {tuple(at)}, expected ranks from 1 on, such as {RECALLS_AT}")
    figures = {f"R@{k}": _percent(ranks <= k) for k in at}
    return figures | {"SumR": sum(figures.values())}


def expect_numbers(scores: Float[Tensor, "Q B"]) -> None:
    """Raises BadBatch where a score is NaN: it compares with nothing, and would count as a good rank."""
    query, video = scores.isnan().nonzero(as_tuple=True)
    if len(query):
        raise BadBatch(
            f"{len(query)} of {scores.numel()} scores are NaN, the first of query {int(query[0])} and video "
            f"{int(video[0])}, expected numbers; check their features and the model's weights"
        )


# ---------------------------------------------------------------- which moment


def iou(predicted: Float[Tensor, "N 2"], annotated: Float[Tensor, "N 2"]) -> Float[Tensor, " N"]:
    """Intersection over union of pairs of moments (start, end). Equal moments have 1, even if they last no time."""
    expect_axes(predicted=(predicted, "N 2"), annotated=(annotated, "N 2"))
    (start, end), (other_start, other_end) = predicted.unbind(1), annotated.unbind(1)
    shared = (end.minimum(other_end) - start.maximum(other_start)).clamp_min(0)
    union = (end - start) + (other_end - other_start) - shared
    equal = (predicted == annotated).all(1).to(shared.dtype)
    return torch.where(union > 0, shared / union.where(union > 0, 1), equal)


def best_iou(
    predicted: Float[Tensor, "Q 2"], annotated: Float[Tensor, "M 2"], query_of_moment: Int[Tensor, " M"]
) -> Float[Tensor, " Q"]:
    """The overlap of each query's predicted moment and the annotated one that it fits best.

    What a sentence describes may happen several times, and a prediction that finds one of them is right: it is not
    asked to cover the others, nor the time between. A query without an annotated moment has 0.

    >>> best_iou(torch.tensor([[4.0, 8.0]]), torch.tensor([[0.0, 2.0], [4.0, 6.0]]), torch.tensor([0, 0]))
    tensor([0.5000])
    """
    expect_axes(annotated=(annotated, "M 2"), query_of_moment=(query_of_moment, "M"))
    overlaps = iou(predicted[query_of_moment], annotated)
    return overlaps.new_zeros(len(predicted)).scatter_reduce(0, query_of_moment, overlaps, "amax")


def localisation(ious: Float[Tensor, " N"], at: Sequence[float] = OVERLAPS_AT) -> dict[str, float]:
    """R1@t, the percentage of queries whose moment overlaps the annotated one by t or more; and mIoU, the mean overlap.

    Each query has one predicted moment, within the video that it describes: these figures judge localisation alone,
    whatever rank the video has. A query without an annotated moment is not counted.

    >>> localisation(torch.tensor([1.0, 0.5, 0.0, 0.5]))
    {'R1@0.5': 75.0, 'R1@0.7': 25.0, 'mIoU': 50.0}
    """
    _expect_some("ious", len(ious), "moments")
    return {f"R1@{threshold}": _percent(ious >= threshold) for threshold in at} | {"mIoU": _percent(ious)}


def _percent(values: Tensor) -> float:
    return 100 * float(values.double().mean())


def _expect_some(name: str, number: int, things: str) -> None:
    if number == 0:
        raise BadBatch(f"{name} is empty, expected at least one: a mean over no {things} is no figure; pass {things}")
