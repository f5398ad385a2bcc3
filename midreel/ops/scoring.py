"""The retrieval score of one branch. Training, evaluation and every index use the same score.

Sec. 3.1 of the MSC paper: a video scores as its token that is most similar to the query.

Axes: Q queries, B videos, S tokens, D model width.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadBatch
from midreel.ops.checks import expect_axes, expect_indices, expect_mask
from midreel.types import Encoded, Similarity, Vectors

HIDDEN_LOGIT = -1e9  # of padding, in an attention without a scale


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


def attended_cosine(
    queries: Float[Tensor, "Q D"],
    guides: Float[Tensor, "B G D"],
    keys: Float[Tensor, "B S D"],
    values: Float[Tensor, "B S D"],
    *,
    guide_mask: Bool[Tensor, "B G"] | None = None,
    mask: Bool[Tensor, "B S"] | None = None,
) -> Float[Tensor, "Q B"]:
    """Return the cosine of each query with each video's values, weighted by an attention that its best guide asks for.

    This is the key-clip attention of MS-SL. The guide of a query and a video is the video's guide of largest cosine
    with the query. The weight of a value is the softmax of <key, guide>, without a scale.

    Args:
        queries: one vector for each query.
        guides: the tokens of each video that may guide, such as its clips.
        keys: a key for each value.
        values: the tokens that are averaged, such as frames.
        guide_mask: True for real guides. Default: all are real.
        mask: True for real values. Default: all are real.

    Raises:
        BadBatch: the shapes do not fit together.
    """
    expect_axes(queries=(queries, "Q D"), guides=(guides, "B G D"), keys=(keys, "B S D"), values=(values, "B S D"))
    pooled = attended(queries, guides, keys, values, guide_mask, mask)
    return torch.einsum("qd,qbd->qb", F.normalize(queries, dim=-1), F.normalize(pooled, dim=-1))


def attended(
    queries: Float[Tensor, "Q D"],
    guides: Float[Tensor, "B G D"],
    keys: Float[Tensor, "B S D"],
    values: Float[Tensor, "B S D"],
    guide_mask: Bool[Tensor, "B G"] | None = None,
    mask: Bool[Tensor, "B S"] | None = None,
) -> Float[Tensor, "Q B D"]:
    """Return the weighted values of each video that `attended_cosine` compares each query with.

    Args:
        queries: one vector for each query.
        guides: the tokens of each video that may guide, such as its clips.
        keys: a key for each value.
        values: the tokens that are averaged, such as frames.
        guide_mask: True for real guides. Default: all are real.
        mask: True for real values. Default: all are real.
    """
    cosines = F.normalize(queries, dim=-1) @ F.normalize(guides, dim=-1).flatten(0, 1).T
    cosines = cosines.view(len(queries), *guides.shape[:2])
    if guide_mask is not None:
        cosines = cosines.masked_fill(~guide_mask, -math.inf)
    asked = guides[torch.arange(len(guides), device=guides.device), cosines.argmax(2)]  # (Q, B, D)
    logits = torch.einsum("qbd,bsd->qbs", asked, keys)
    if mask is not None:
        logits = logits.masked_fill(~mask, HIDDEN_LOGIT)
    return torch.einsum("qbs,bsd->qbd", logits.softmax(2), values)


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


def own_cosines(
    queries: Float[Tensor, "Q D"], tokens: Float[Tensor, "B S D"], video_of_query: Int[Tensor, " Q"]
) -> Float[Tensor, "Q S"]:
    """Return the cosine of each query with each token of its own video.

    Args:
        queries: one vector for each query.
        tokens: the tokens of each video, with padding.
        video_of_query: the video of each query.

    Raises:
        BadBatch: the shapes do not fit together, or a query has no video.

    >>> import torch
    >>> queries, tokens = torch.eye(2), torch.tensor([[[3.0, 0.0], [0.0, 2.0]], [[4.0, 3.0], [-1.0, 0.0]]])
    >>> own_cosines(queries, tokens, torch.tensor([1, 1]))
    tensor([[ 0.8000, -1.0000],
            [ 0.6000,  0.0000]])
    """
    expect_axes(queries=(queries, "Q D"), tokens=(tokens, "B S D"))
    expect_axes(queries=(queries, "Q D"), video_of_query=(video_of_query, "Q"))
    expect_indices("video_of_query", video_of_query, len(tokens), "the videos of the batch")
    # The queries of a video are padded to the most queries of any video, so that one product of each video is enough.
    # All queries times all videos, or a copy of the tokens for each query, would take far more memory.
    own = video_of_query[:, None] == torch.arange(len(tokens), device=tokens.device)
    place = own.cumsum(0)[torch.arange(len(queries), device=queries.device), video_of_query] - 1
    padded = queries.new_zeros(len(tokens), int(place.max()) + 1, queries.shape[1])
    padded = padded.index_put((video_of_query, place), F.normalize(queries, dim=-1))
    return (padded @ F.normalize(tokens, dim=-1).mT)[video_of_query, place]


def branch_score(branch: str, form: Similarity, queries: Vectors, videos: Encoded) -> Float[Tensor, "Q B"]:
    """Return the score of one branch.

    Args:
        branch: the name of the branch.
        form: how its tokens score a video.
        queries: the vectors of each branch.
        videos: the tokens of each branch.
    """
    query, tokens = queries[branch], videos[branch]
    if form.kind == "attention":
        guides, keys = videos[form.guide], videos[form.keys]
        return attended_cosine(
            query, guides.vectors, keys.vectors, tokens.vectors, guide_mask=guides.mask, mask=tokens.mask
        )
    return (max_sim if form.kind == "dot" else cosine_max_sim)(query, tokens.vectors, tokens.mask)
