"""Queries of one video, each drawn to a clip of its own: GMMFormer-v2's optimal matching loss.

Relations: `ranking` and `contrastive` draw a query to the best clip of its video, whichever other queries it has.
"""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from midreel.ops.checks import expect_axes, expect_indices
from midreel.ops.precision import at_least_single


def optimal_matching(
    queries: Float[Tensor, "Q D"], clips: Float[Tensor, "B S D"], video_of_query: Int[Tensor, " Q"]
) -> Float[Tensor, ""]:
    """1 - mean of cos(q_i, c_match(i)), where the queries of a video are assigned to different clips of it.

    The assignment is the one with the largest sum of cosines; it is a constant, the gradient goes through the cosines
    of the pairs. A video with one query is left out, and a batch of such videos costs nothing; of more queries than
    clips some stay without.
    """
    expect_axes(queries=(queries, "Q D"), clips=(clips, "B S D"), video_of_query=(video_of_query, "Q"))
    expect_indices("video_of_query", video_of_query, len(clips), "the videos of the batch")
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # only here: it is slow to import

    unit_queries, unit_clips = F.normalize(queries, dim=-1), F.normalize(clips, dim=-1)
    chosen_queries, chosen_clips, videos = [], [], []
    for video in video_of_query.unique().tolist():
        own = (video_of_query == video).nonzero().flatten()
        if len(own) < 2:
            continue
        cosines = unit_queries[own].detach() @ unit_clips[video].detach().T
        rows, columns = linear_sum_assignment(at_least_single(cosines).cpu().numpy(), maximize=True)
        chosen_queries += own[rows].tolist()
        chosen_clips += columns.tolist()
        videos += [video] * len(rows)
    if not videos:
        return queries.new_zeros(())
    return 1 - (unit_queries[chosen_queries] * unit_clips[videos, chosen_clips]).sum(-1).mean()
