"""Triplet ranking with random or hard negatives, the paper's L^trip, and for pairs.

Relations: `contrastive.infonce` uses all negatives of the same scores. This loss draws one for each query and video.

Axes: Q queries (B_q in the paper), B videos (B_v).
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
    """Return the triplet ranking loss L^trip of one branch in both directions, a summand of L^base in Eq. (1).

    mean_i [m + s_i,n(i) - s_i,y(i)]+  +  mean_j [m + s_p(j),j - mean_{i: y(i) = j} s_ij]+.

    n(i) is a random negative video of query i, and p(j) a random negative query of video j. A query or video without a
    negative in the batch costs nothing. The paper prints no formula, so this is the released one (docs/paper.md, F14).

    Args:
        scores: s, the score of each query and video.
        video_of_query: y, the video of each query.
        margin: m.
        hard: draw n(i) from the `hard_pool` negatives with the highest scores, and take the highest one as p(j).
        hard_pool: the number of videos to draw a hard negative from.
        generator: the source of the random draws. Default: torch's global one.

    Raises:
        BadBatch: the shapes do not fit together, or a query has no video.
        BadSetting: `margin` or `hard_pool` is out of range.

    >>> triplet(torch.tensor([[0.9, 0.8], [0.1, 0.5]]), torch.tensor([0, 1]))  # 0.1 of query 0, 0.5 of video 1
    tensor(0.3000)
    """
    expect_axes(scores=(scores, "Q B"), video_of_query=(video_of_query, "Q"))
    expect_numbers("scores", scores)
    expect_indices("video_of_query", video_of_query, scores.shape[1], "the videos of the batch")
    _expect_settings(margin, hard_pool)
    own = video_of_query[:, None] == torch.arange(scores.shape[1], device=scores.device)
    own_of_query = scores.gather(1, video_of_query[:, None]).squeeze(1)
    queried = own.any(0)
    own_of_video = (scores * own).sum(0) / own.sum(0).clamp_min(1)

    video_pool, query_pool = (hard_pool, 1) if hard else (None, None)
    of_query = _hinge(scores, ~own, own_of_query, margin, video_pool, generator)
    of_video = _hinge(scores.T, ~own.T, own_of_video, margin, query_pool, generator)
    return of_query.mean() + of_video[queried].mean()


def paired_triplet(
    scores: Float[Tensor, "Q Q"],
    *,
    margin: float = 0.2,
    hard: bool = False,
    hard_pool: int = 20,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """Return the triplet ranking loss of MS-SL for pairs.

    mean_i [m + s_i,n(i) - s_ii]+  +  mean_i [m + s_p(i),i - s_ii]+.

    Item i of the rows and item i of the columns are a pair. n(i) is a random wrong column of row i, and p(i) a random
    wrong row of column i. A single pair has no negative and costs nothing.

    Args:
        scores: s, the score of each item of the rows with each item of the columns.
        margin: m.
        hard: draw both negatives from the `hard_pool` ones with the highest scores.
        hard_pool: the number of items to draw a hard negative from.
        generator: the source of the random draws. Default: torch's global one.

    Raises:
        BadBatch: the scores are not a square of floating-point numbers.
        BadSetting: `margin` or `hard_pool` is out of range.

    >>> paired_triplet(torch.tensor([[0.9, 0.8], [0.1, 0.5]]))  # 0.1 of row 0, 0.5 of column 1
    tensor(0.3000)
    """
    expect_axes(scores=(scores, "Q Q"))
    expect_numbers("scores", scores)
    _expect_settings(margin, hard_pool)
    wrong = ~torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    pool = hard_pool if hard else None
    of_row, of_column = (_hinge(each, wrong, scores.diagonal(), margin, pool, generator) for each in (scores, scores.T))
    return of_row.mean() + of_column.mean()


def _expect_settings(margin: float, hard_pool: int) -> None:
    if not 0 <= margin < math.inf:
        raise BadSetting(f"margin is {margin}, expected 0 or more. Try 0.2.")
    if hard_pool < 1:
        raise BadSetting(f"hard_pool is {hard_pool}, expected at least 1. Try 20.")


def _hinge(
    scores: Float[Tensor, "N M"],
    wrong: Bool[Tensor, "N M"],
    positive: Float[Tensor, " N"],
    margin: float,
    pool: int | None,
    generator: torch.Generator | None,
) -> Float[Tensor, " N"]:
    """Return [m + negative - positive]+ of each row. The negative is one of its `pool` best wrong scores, or of all."""
    negative = scores.gather(1, drawn(scores, wrong, pool, generator)).squeeze(1)
    return torch.where(wrong.any(1), (margin + negative - positive).relu(), 0)


def drawn(
    scores: Float[Tensor, "N M"],
    candidates: Bool[Tensor, "N M"],
    pool: int | None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "N 1"]:
    """Return a random candidate of each row. Without any it is an arbitrary column.

    Args:
        scores: the scores that order the candidates.
        candidates: True for the columns to draw from.
        pool: draw from this many candidates with the highest scores. Default: from all.
        generator: the source of the random draws. Default: torch's global one.
    """
    if pool is not None and pool < scores.shape[1]:
        best = scores.detach().masked_fill(~candidates, -math.inf).topk(pool, dim=1).indices
        candidates = candidates & torch.zeros_like(candidates).scatter_(1, best, True)
    # Each entry has a random key, and the candidate with the largest key is drawn: a uniform draw without a loop.
    keys = torch.rand(scores.shape, generator=generator, device=scores.device)
    return keys.masked_fill(~candidates, -1).argmax(1, keepdim=True)
