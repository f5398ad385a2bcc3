"""The retrieval score of one branch. Training, evaluation and every index use the same score.

Sec. 3.1 of the MSC paper: a video scores as its token that is most similar to the query.

Axes: Q queries, B videos, S tokens, D model width.
"""

import math

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from midreel.errors import BadBatch
from midreel.ops.checks import expect_axes, expect_mask


def max_sim(
    queries: Float[Tensor, "Q D"], tokens: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"] | None = None
) -> Float[Tensor, "Q B"]:
    """Return the largest dot product of each query with the tokens of each video, max_s <q, v_s>.

    The paper's symbols: q is a row of T̄, v_s is a token of V̄_f or V̄_c.

    Args:
        queries: one vector for each query.
        tokens: the tokens of each video.
        mask: True for real tokens. Default: all are real.

    Raises:
        BadBatch: the shapes do not fit together, or the videos have no tokens.

    >>> import torch
    >>> max_sim(torch.tensor([[1.0, 0.0]]), torch.tensor([[[3.0, 4.0], [2.0, 9.0]], [[0.0, 1.0], [1.0, 0.0]]]))
    tensor([[3., 1.]])
    """
    expect_axes(queries=(queries, "Q D"), tokens=(tokens, "B S D"))
    if not tokens.shape[1]:
        raise BadBatch(f"tokens has shape {tuple(tokens.shape)}, expected S of at least 1. Drop empty videos.")
    if mask is not None:
        expect_axes(tokens=(tokens, "B S D"), mask=(mask, "B S"))
        expect_mask("mask", mask, "tokens")
    products = (queries @ tokens.flatten(0, 1).T).view(len(queries), *tokens.shape[:2])
    if mask is not None:
        products = products.masked_fill(~mask, -math.inf)
    # max, not amax: amax shares the gradient among equal frames, which would reward repeating a frame.
    return products.max(2).values


def cosine_max_sim(
    queries: Float[Tensor, "Q D"], tokens: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"] | None = None
) -> Float[Tensor, "Q B"]:
    """Return the largest cosine of each query with the tokens of each video, max_s sim(q, v_s).

    This is `max_sim` on vectors of length one. It raises the same errors.

    Args:
        queries: one vector for each query.
        tokens: the tokens of each video.
        mask: True for real tokens. Default: all are real.
    """
    return max_sim(F.normalize(queries, dim=-1), F.normalize(tokens, dim=-1), mask)
