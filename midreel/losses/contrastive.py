"""InfoNCE where a video has several queries: the L^nce of Sec. 3.1.

Relations: `ranking.triplet` sees the same matrix but only one negative per row and column. The paper sums both.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.ops.checks import expect_axes, expect_indices, expect_numbers


def infonce(scores: Float[Tensor, "Q B"], video_of_query: Int[Tensor, " Q"]) -> Float[Tensor, ""]:
    """mean_i [lse_j s_ij - s_i,y(i)]  +  mean_j [lse_i s_ij - lse_{i: y(i) = j} s_ij].

    A query has one video; a video has all its queries as positives, pooled inside the logarithm. A video of the batch
    without a query is a negative only. Scores are taken as they are: no temperature, no normalisation.

    >>> infonce(torch.zeros(2, 2), torch.tensor([0, 1]))  # log 2 for each direction
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
