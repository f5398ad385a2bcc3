"""Queries of one video, kept apart: GMMFormer-v2's query-diverse loss.

Relations: `relational` keeps the distances that a teacher sees among the queries, whatever their videos; this one needs
no teacher and pushes all queries of a video away from each other.
"""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.ops.checks import expect_axes, expect_labels


def query_diversity(
    queries: Float[Tensor, "Q D"],
    video_of_query: Int[Tensor, " Q"],
    *,
    shift: float = 0.2,
    scale: float = 32.0,
    focus: float = 1.0,
) -> Float[Tensor, ""]:
    """1/Q Σ_{i≠j, y(i) = y(j)} (1 + c_ij)^g log(1 + exp(a (c_ij + d))), c the cosines, d `shift`, a `scale`, g `focus`.

    Pairs that are already apart weigh less, by the factor in front, through which the gradient flows as well. A query
    alone in its video costs nothing.

    >>> import torch
    >>> query_diversity(torch.eye(2), torch.tensor([0, 1]))
    tensor(0.)
    """
    expect_axes(queries=(queries, "Q D"), video_of_query=(video_of_query, "Q"))
    expect_labels("video_of_query", video_of_query, "the videos of the batch")
    if not len(queries):
        raise BadBatch("queries is empty, expected at least one query; drop the empty batch")
    if focus < 0:
        raise BadSetting(f"focus is {focus}, expected 0 or more: similar pairs weigh more, not less; try 1")
    first, second = _pairs_of_one_video(video_of_query)
    unit = F.normalize(queries, dim=-1)
    cosine = (unit[first] * unit[second]).sum(-1)
    # Rounding may take a cosine below -1, where a power is not a number.
    weight = (1 + cosine).clamp_min(0) ** focus
    return (weight * F.softplus(scale * (cosine + shift))).sum() / len(queries)


def _pairs_of_one_video(video_of_query: Int[Tensor, " Q"]) -> tuple[Int[Tensor, " P"], Int[Tensor, " P"]]:
    """All ordered pairs i ≠ j of queries that describe the same video."""
    same = video_of_query[:, None] == video_of_query
    first, second = same.fill_diagonal_(False).nonzero(as_tuple=True)
    return first, second
