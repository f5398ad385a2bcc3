"""InfoNCE with soft labels, the loss of DL-DKD++ (arXiv 2510.12283).

Relations: `contrastive.infonce` has hard labels: a query fits its own video and no other. Here a part of the queries
and videos has labels that mix the truth with the scores of a teacher.

Axes: Q queries, B videos.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadSetting
from midreel.ops.checks import expect_axes, expect_indices, expect_numbers

TINY = 1e-12  # a label of 0 has a logarithm of about -27.6


def soft_infonce(
    scores: Float[Tensor, "Q B"],
    teacher: Float[Tensor, "Q B"],
    video_of_query: Int[Tensor, " Q"],
    *,
    hard_share: float,
    truth_share: float,
) -> Float[Tensor, ""]:
    """Return the soft-label InfoNCE of one branch in both directions: a (hard part) + (1 - a) (soft part).

    The labels are I, 1 for a query and its video and 0 otherwise, in the hard part, and in the soft part
    (1 - b) softmax(r) + b I. The softmax of a query is over the videos, that of a video over the queries. The cost of a
    query i and of a video j is, where lse is log Σ exp:

    Σ_j w_ij (lse_j s_ij - s_ij)    and    lse_i s_ij - lse_i (s_ij + log(w_ij + 1e-12)).

    A part is the mean cost of its queries plus the mean cost of its videos. The hard part has the first ⌊a Q⌋ queries
    and ⌊a B⌋ videos, the soft part the others. A part without queries or without videos is left out. Videos are ordered
    by their number of queries, most first, and queries by their video. Otherwise they keep the order of the batch. A
    video without queries is only a negative and is not counted in B.

    Args:
        scores: s, the score of each query and video.
        teacher: r, the scores that make the soft labels. Gradients flow through them, too. Detach a fixed teacher.
        video_of_query: the video of each query.
        hard_share: a.
        truth_share: b.

    Raises:
        BadBatch: the shapes do not fit together, or a query has no video.
        BadSetting: a share is not between 0 and 1.
    """
    expect_axes(scores=(scores, "Q B"), teacher=(teacher, "Q B"), video_of_query=(video_of_query, "Q"))
    expect_numbers("scores", scores)
    expect_numbers("teacher", teacher)
    expect_indices("video_of_query", video_of_query, scores.shape[1], "the videos of the batch")
    for name, share in (("hard_share", hard_share), ("truth_share", truth_share)):
        if not 0 <= share <= 1:
            raise BadSetting(f"{name} is {share}, expected 0 to 1. Try 0.8.")
    queries, videos = by_number_of_queries(video_of_query, scores.shape[1])
    truth = (video_of_query[:, None] == torch.arange(scores.shape[1], device=scores.device)).to(scores.dtype)
    of_query, of_video = ((1 - truth_share) * teacher.softmax(axis) + truth_share * truth for axis in (1, 0))
    num_hard_queries, num_hard_videos = int(hard_share * len(queries)), int(hard_share * len(videos))
    total = scores.new_zeros(())
    for weight, rows, columns, query_labels, video_labels in (
        (hard_share, queries[:num_hard_queries], videos[:num_hard_videos], truth, truth),
        (1 - hard_share, queries[num_hard_queries:], videos[num_hard_videos:], of_query, of_video),
    ):
        if len(rows) and len(columns):
            by_query = _query_costs(scores[rows], query_labels[rows]).mean()
            by_video = _video_costs(scores[:, columns], video_labels[:, columns]).mean()
            total = total + weight * (by_query + by_video)
    return total


def by_number_of_queries(
    video_of_query: Int[Tensor, " Q"], num_videos: int
) -> tuple[Int[Tensor, " Q"], Int[Tensor, " N"]]:
    """Return all queries, and the videos that have some, ordered by the number of queries of a video, most first.

    Queries of a video, and videos with the same number of queries, keep their order.

    >>> by_number_of_queries(torch.tensor([2, 0, 3, 2, 3]), 5)
    (tensor([0, 3, 2, 4, 1]), tensor([2, 3, 0]))
    """
    counts = torch.bincount(video_of_query, minlength=num_videos)
    videos = counts.argsort(descending=True, stable=True)
    place_of_video = videos.argsort()
    return place_of_video[video_of_query].argsort(stable=True), videos[: int((counts > 0).sum())]


def _query_costs(scores: Float[Tensor, "N B"], labels: Float[Tensor, "N B"]) -> Float[Tensor, " N"]:
    return (labels * (scores.logsumexp(1, keepdim=True) - scores)).sum(1)


def _video_costs(scores: Float[Tensor, "Q N"], labels: Float[Tensor, "Q N"]) -> Float[Tensor, " N"]:
    return scores.logsumexp(0) - (scores + (labels + TINY).log()).logsumexp(0)
