"""The query-diverse losses of GMMFormer and GMMFormer v2: push the queries of a video apart.

Relations: GMMFormer v2 (`query_diversity`) adds the costs of all pairs of queries, and weighs similar pairs more. The
first GMMFormer (`joint_query_diversity`) has one logarithm for each query, so its closest neighbour dominates.
`relational` preserves the distances that a teacher sees between all queries. These losses need no teacher and
treat all queries of a video alike.

Axes: Q queries, D model width, P pairs of queries.
"""

import math

import torch
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
    """Return the query-diverse loss of GMMFormer v2 (arXiv 2405.13824).

    1/Q Σ_{i≠j, y(i) = y(j)} (1 + c_ij)^γ log(1 + exp(α (c_ij + δ))), where c_ij is the cosine of queries i and j.

    The factor in front gives less weight to pairs that are already apart. It has a gradient too. The only query of a
    video costs nothing.

    Args:
        queries: one vector for each query.
        video_of_query: y, the video of each query.
        shift: δ.
        scale: α.
        focus: γ, 0 or more.

    Raises:
        BadBatch: the shapes do not fit together, or there are no queries.
        BadSetting: `focus` is negative.

    >>> import torch
    >>> query_diversity(torch.eye(2), torch.tensor([0, 1]))
    tensor(0.)
    """
    _expect_queries(queries, video_of_query)
    if focus < 0:
        raise BadSetting(f"focus is {focus}, expected 0 or more. Try 1.")
    first, second = _pairs_of_one_video(video_of_query)
    unit = F.normalize(queries, dim=-1)
    cosine = (unit[first] * unit[second]).sum(-1)
    # Rounding may give a cosine below -1, and the power of a negative number is NaN.
    weight = (1 + cosine).clamp_min(0) ** focus
    return (weight * F.softplus(scale * (cosine + shift))).sum() / len(queries)


def joint_query_diversity(
    queries: Float[Tensor, "Q D"], video_of_query: Int[Tensor, " Q"], *, shift: float = 0.2, scale: float = 32.0
) -> Float[Tensor, ""]:
    """Return the query-diverse loss of GMMFormer (AAAI 2024).

    1/Q Σ_j log(1 + Σ_{i≠j, y(i) = y(j)} exp(α (c_ij + δ))), where c_ij is the cosine of queries i and j.

    The only query of a video costs nothing.

    Args:
        queries: one vector for each query.
        video_of_query: y, the video of each query.
        shift: δ.
        scale: α.

    Raises:
        BadBatch: the shapes do not fit together, or there are no queries.

    >>> import torch
    >>> joint_query_diversity(torch.eye(2), torch.tensor([0, 1]))
    tensor(0.)
    """
    _expect_queries(queries, video_of_query)
    unit = F.normalize(queries, dim=-1)
    same = (video_of_query[:, None] == video_of_query).fill_diagonal_(False)
    exponents = (scale * (unit @ unit.T + shift)).masked_fill(~same, -math.inf)
    # The 1 is exp(0). With it inside logsumexp, exp(α (1 + δ)) ≈ exp(38) loses no digits.
    return torch.cat((exponents, exponents.new_zeros(len(queries), 1)), 1).logsumexp(1).mean()


def _expect_queries(queries: Float[Tensor, "Q D"], video_of_query: Int[Tensor, " Q"]) -> None:
    """Raise BadBatch unless there are queries, and each has a video."""
    expect_axes(queries=(queries, "Q D"), video_of_query=(video_of_query, "Q"))
    expect_labels("video_of_query", video_of_query, "the videos of the batch")
    if not len(queries):
        raise BadBatch("queries is empty, expected at least one query. Drop the empty batch.")


def _pairs_of_one_video(video_of_query: Int[Tensor, " Q"]) -> tuple[Int[Tensor, " P"], Int[Tensor, " P"]]:
    """Return all ordered pairs i ≠ j of queries that describe the same video."""
    same = video_of_query[:, None] == video_of_query
    first, second = same.fill_diagonal_(False).nonzero(as_tuple=True)
    return first, second
