"""Triplet ranking with random or hard negatives: the L^trip of Sec. 3.1.

Relations: `contrastive.infonce` uses every negative of the same matrix; this one draws a single one each time.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadSetting
from midreel.ops.checks import expect_axes, expect_indices, expect_numbers


def triplet(
    scores: Float[Tensor, "Q B"],
    video_of_query: Int[Tensor, " Q"],
    *,
    margin: float = 0.2,
    hard: bool = False,
    hard_pool: int = 20,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """mean_i [m + s_i,n(i) - s_i,y(i)]+  +  mean_j [m + s_p(j),j - mean_{i: y(i) = j} s_ij]+.

    n(i) is a random wrong video of query i and p(j) a random wrong query of video j. With `hard`, n(i) is drawn from
    the `hard_pool` best-scoring wrong videos and p(j) is the best-scoring wrong query. A query or video that has no
    wrong counterpart in the batch costs nothing.
    """
    expect_axes(scores=(scores, "Q B"), video_of_query=(video_of_query, "Q"))
    expect_numbers("scores", scores)
    expect_indices("video_of_query", video_of_query, scores.shape[1], "the videos of the batch")
    if not 0 <= margin < math.inf:
        raise BadSetting(f"margin is {margin}, expected 0 or more; a common one is 0.2")
    if hard_pool < 1:
        raise BadSetting(f"hard_pool is {hard_pool}, expected at least 1 video to draw a hard negative from; try 20")
    own = video_of_query[:, None] == torch.arange(scores.shape[1], device=scores.device)
    own_of_query = scores.gather(1, video_of_query[:, None]).squeeze(1)
    queried = own.any(0)
    own_of_video = (scores * own).sum(0) / own.sum(0).clamp_min(1)

    video_pool, query_pool = (hard_pool, 1) if hard else (None, None)
    of_query = _hinge(scores, ~own, own_of_query, margin, video_pool, generator)
    of_video = _hinge(scores.T, ~own.T, own_of_video, margin, query_pool, generator)
    return of_query.mean() + of_video[queried].mean()


def _hinge(
    scores: Float[Tensor, "N M"],
    wrong: Bool[Tensor, "N M"],
    positive: Float[Tensor, " N"],
    margin: float,
    pool: int | None,
    generator: torch.Generator | None,
) -> Float[Tensor, " N"]:
    """[m + negative - positive]+ per row, the negative drawn from the row's `pool` best wrong scores (None: all)."""
    candidates = wrong
    if pool is not None and pool < scores.shape[1]:
        best = scores.detach().masked_fill(~wrong, -math.inf).topk(pool, dim=1).indices
        candidates = wrong & torch.zeros_like(wrong).scatter_(1, best, True)
    # A random key per entry, the largest key among the candidates: a uniform draw without a loop.
    keys = torch.rand(scores.shape, generator=generator, device=scores.device)
    drawn = keys.masked_fill(~candidates, -1).argmax(1, keepdim=True)
    negative = scores.gather(1, drawn).squeeze(1)
    return torch.where(candidates.any(1), (margin + negative - positive).relu(), 0)
