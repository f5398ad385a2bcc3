"""Optimal matching: a different clip for each query of a video. GMMFormer v2 and BGM-Net use it.

Relations: `ranking` and `contrastive` pull each query to the best clip of its video, so several may share one clip.

Axes: Q queries, B videos, S clips, D model width.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from midreel.ops.checks import expect_axes, expect_indices
from midreel.ops.precision import at_least_single


def optimal_matching(
    queries: Float[Tensor, "Q D"], clips: Float[Tensor, "B S D"], video_of_query: Int[Tensor, " Q"]
) -> Float[Tensor, ""]:
    """Return the optimal matching loss of GMMFormer v2 (arXiv 2405.13824): 1 - mean_i cos(q_i, c_match(i)).

    The matching assigns the queries of a video to different clips so that the sum of cosines is largest. The matching
    is a constant, and the gradient flows through the cosines. Videos with a single query are ignored, and a batch of
    such videos costs nothing. If a video has more queries than clips, the queries without a clip are ignored.

    Args:
        queries: q, one vector for each query.
        clips: c, the encoded clips of each video.
        video_of_query: the video of each query.

    Raises:
        BadBatch: the shapes do not fit together, or a query has no video.
    """
    expect_axes(queries=(queries, "Q D"), clips=(clips, "B S D"), video_of_query=(video_of_query, "Q"))
    expect_indices("video_of_query", video_of_query, len(clips), "the videos of the batch")
    unit_queries, unit_clips = F.normalize(queries, dim=-1), F.normalize(clips, dim=-1)
    chosen_queries, chosen_clips, videos = [], [], []
    for video, own, matched in _assignments(unit_queries, unit_clips, video_of_query, least=2):
        chosen_queries += own
        chosen_clips += matched
        videos += [video] * len(own)
    if not videos:
        return queries.new_zeros(())
    return 1 - (unit_queries[chosen_queries] * unit_clips[videos, chosen_clips]).sum(-1).mean()


@torch.no_grad()
def matched_clips(
    queries: Float[Tensor, "Q D"], clips: Float[Tensor, "B S D"], video_of_query: Int[Tensor, " Q"]
) -> Int[Tensor, " Q"]:
    """Return a clip of its video for each query, different clips for the queries of one video (BGM-Net).

    The sum of the cosines of queries and clips is largest. If a video has more queries than clips, the queries without
    a clip have -1.

    Args:
        queries: one vector for each query.
        clips: the encoded clips of each video.
        video_of_query: the video of each query.

    Raises:
        BadBatch: the shapes do not fit together, or a query has no video.

    >>> clips = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> matched_clips(torch.tensor([[1.0, 0.5], [1.0, 0.0]]), clips, torch.tensor([0, 0]))
    tensor([1, 0])
    """
    expect_axes(queries=(queries, "Q D"), clips=(clips, "B S D"), video_of_query=(video_of_query, "Q"))
    expect_indices("video_of_query", video_of_query, len(clips), "the videos of the batch")
    clip_of_query = torch.full_like(video_of_query, -1)
    for _, own, matched in _assignments(F.normalize(queries, dim=-1), F.normalize(clips, dim=-1), video_of_query):
        clip_of_query[own] = torch.tensor(matched, device=clip_of_query.device)
    return clip_of_query


def _assignments(
    unit_queries: Float[Tensor, "Q D"],
    unit_clips: Float[Tensor, "B S D"],
    video_of_query: Int[Tensor, " Q"],
    least: int = 1,
) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield, for each video with at least `least` queries, its number, its matched queries, and their clips."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # slow to import

    for video in video_of_query.unique().tolist():
        own = (video_of_query == video).nonzero().flatten()
        if len(own) < least:
            continue
        cosines = unit_queries[own].detach() @ unit_clips[video].detach().T
        rows, columns = linear_sum_assignment(at_least_single(cosines).cpu().numpy(), maximize=True)
        yield video, own[rows].tolist(), columns.tolist()
