"""The one score: training, evaluation and every index rank by it.

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
    """A video scores as its best token: max_s <q, v_s>. `mask` is True for real tokens."""
    expect_axes(queries=(queries, "Q D"), tokens=(tokens, "B S D"))
    if not tokens.shape[1]:
        raise BadBatch(f"tokens has shape {tuple(tokens.shape)}, expected a token of each video; drop empty videos")
    if mask is not None:
        expect_axes(tokens=(tokens, "B S D"), mask=(mask, "B S"))
        expect_mask("mask", mask, "tokens")
    products = (queries @ tokens.flatten(0, 1).T).view(len(queries), *tokens.shape[:2])
    if mask is not None:
        products = products.masked_fill(~mask, -math.inf)
    # max over one index, not amax: a gradient shared among equal frames would reward repeating a frame.
    return products.max(2).values


def cosine_max_sim(
    queries: Float[Tensor, "Q D"], tokens: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"] | None = None
) -> Float[Tensor, "Q B"]:
    """The retrieval score of one branch: the cosine of the query and the video's best token."""
    return max_sim(F.normalize(queries, dim=-1), F.normalize(tokens, dim=-1), mask)
