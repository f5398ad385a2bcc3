"""InfoNCE for videos with several queries, the paper's L^nce, and for pairs.

Relations: `ranking.triplet` uses the same scores, but only one negative for each query and video. The paper adds both.

Axes: Q queries (B_q in the paper), B videos (B_v).
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.ops.checks import expect_axes, expect_indices, expect_numbers


def infonce(scores: Float[Tensor, "Q B"], video_of_query: Int[Tensor, " Q"]) -> Float[Tensor, ""]:
    """Return the InfoNCE loss L^nce of one branch in both directions, a summand of L^base in Eq. (1).

    mean_i [lse_j s_ij - s_i,y(i)]  +  mean_j [lse_i s_ij - lse_{i: y(i) = j} s_ij], where lse is log Σ exp.

    The positive of a query is its video. The positives of a video are all its queries, summed inside the logarithm. A
    video without queries is only a negative. The paper prints no formula, so this is the released one (docs/paper.md,
    F14): without temperature and normalisation.

    Args:
        scores: s, the score of each query and video.
        video_of_query: y, the video of each query.

    Raises:
        BadBatch: the shapes do not fit together, or a query has no video.

    >>> infonce(torch.zeros(2, 2), torch.tensor([0, 1]))  # log 2 in each direction
    tensor(1.3863)
    """
    expect_axes(scores=(scores, "Q B"), video_of_query=(video_of_query, "Q"))
    expect_numbers("scores", scores)
    expect_indices("video_of_query", video_of_query, scores.shape[1], "the videos of the batch")
    own = video_of_query[:, None] == torch.arange(scores.shape[1], device=scores.device)
    of_query = scores.logsumexp(1) - scores.gather(1, video_of_query[:, None]).squeeze(1)
    queried = own.any(0)
    columns = scores[:, queried]
    of_video = columns.logsumexp(0) - columns.masked_fill(~own[:, queried], -math.inf).logsumexp(0)
    return of_query.mean() + of_video.mean()


def paired_infonce(scores: Float[Tensor, "Q Q"]) -> Float[Tensor, ""]:
    """Return the InfoNCE loss of MS-SL for pairs: mean_i [log(Σ_j exp s_ij + Σ_j exp s_ji) - s_ii].

    Item i of the rows and item i of the columns are a pair. A row and its column share one logarithm, so the pair
    itself counts twice in it, and the loss is at least log 2.

    Args:
        scores: s, the score of each item of the rows with each item of the columns.

    Raises:
        BadBatch: the scores are not a square of floating-point numbers.

    >>> paired_infonce(torch.zeros(2, 2))  # log 4
    tensor(1.3863)
    """
    expect_axes(scores=(scores, "Q Q"))
    expect_numbers("scores", scores)
    return (torch.logaddexp(scores.logsumexp(1), scores.logsumexp(0)) - scores.diagonal()).mean()
