"""Predictors of the moment that a query describes in its video."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import UnknownName
from midreel.methods.base import Encoded, Method, Vectors
from midreel.ops.checks import expect_axes
from midreel.ops.moments import Curve, Curves, find_moments, fused
from midreel.types import COSINE, Similarities, Similarity

Predictor = Callable[[Curves], Float[np.ndarray, "Q 2"]]


def token_scores(
    queries: Float[Tensor, "Q D"],
    tokens: Float[Tensor, "B S D"],
    mask: Bool[Tensor, "B S"],
    video_of_query: Int[Tensor, " Q"],
    similarity: Similarity = COSINE,
) -> Float[Tensor, "Q S"]:
    """Return the cosine, or dot product, of each query with each token of its video, -inf for padding.

    The largest one is the retrieval score of the branch.

    Args:
        queries: One vector of the branch for each query.
        tokens: The tokens of the branch for each video.
        mask: True for real tokens.
        video_of_query: The row in `tokens` of the video of each query.
        similarity: The similarity of the branch. All but "dot" have a curve of cosines.
    """
    expect_axes(queries=(queries, "Q D"), tokens=(tokens, "B S D"), mask=(mask, "B S"))
    expect_axes(queries=(queries, "Q D"), video_of_query=(video_of_query, "Q"))
    # All queries times all tokens, then a selection. Gathering the tokens of each query first would need (Q, S, D)
    # values, which is more than (Q, B, S) for a batch with fewer videos than channels.
    if similarity.kind != "dot":
        queries, tokens = F.normalize(queries, dim=-1), F.normalize(tokens, dim=-1)
    products = queries @ tokens.flatten(0, 1).T
    rows = torch.arange(len(queries), device=queries.device)
    own = products.view(len(queries), *tokens.shape[:2])[rows, video_of_query]
    return own.masked_fill(~mask[video_of_query], -torch.inf)


def curves(
    queries: Vectors, videos: Encoded, video_of_query: Int[Tensor, " Q"], similarities: Similarities | None = None
) -> dict[str, Curve]:
    """Return, for each branch with query vectors, the curve of each query over the time of its video.

    Args:
        queries: The vectors of each branch, a row for each query.
        videos: The tokens of each branch, a row for each video.
        video_of_query: The row of the video of each query.
        similarities: A method's `similarities`. Default: all branches score by cosine.
    """
    forms = similarities or {}
    return {
        branch: Curve(
            scores=token_scores(queries[branch], tokens.vectors, tokens.mask, video_of_query, forms.get(branch, COSINE))
            .cpu()
            .numpy(),
            spans=tokens.spans[video_of_query].cpu().numpy(),
        )
        for branch, tokens in videos.items()
        if branch in queries  # a branch of keys need not have query vectors
    }


def found_moment(curves: Curves, weights: Mapping[str, float]) -> Float[np.ndarray, "Q 2"]:
    """Return the moment that a search shows: the part around the highest peak of the fused branches."""
    return find_moments(fused(curves, weights), most=1).spans[:, 0]


def ranked_moments(curves: Curves, weights: Mapping[str, float]) -> Float[np.ndarray, "Q K 2"]:
    """Return all moments that a search shows, best first, NaN for padding."""
    found = find_moments(fused(curves, weights))
    return np.where(np.isfinite(found.scores)[..., None], found.spans, np.nan)


def best_token_moment(curves: Curves, branch: str) -> Float[np.ndarray, "Q 2"]:
    """Return the span of the best token of a branch, the first one among equals.

    This is a baseline for branches of segments. A single frame is too short to cover a moment.

    Raises:
        UnknownName: The branch does not exist.
    """
    if branch not in curves:
        raise UnknownName.among("branch", branch, curves)
    curve = curves[branch]
    return curve.spans[np.arange(len(curve.scores)), curve.scores.argmax(1)]


def predictors(method: Method) -> dict[str, Predictor]:
    """Return the predictors of a method by name: "found" as in a search, and "best BRANCH" for each branch."""
    best = {f"best {branch}": partial(best_token_moment, branch=branch) for branch in _timed(method)}
    return {"found": partial(found_moment, weights=method.curve_weights), **best}


def _timed(method: Method) -> list[str]:
    """Return the branches whose best token is a moment."""
    return [name for name, branch in method.branches.items() if branch.role in ("segments", "frames")]


def predict_moment(
    queries: Vectors,
    videos: Encoded,
    video_of_query: Int[Tensor, " Q"],
    durations: Float[Tensor, " B"],
    predictor: Predictor,
    similarities: Similarities | None = None,
) -> Float[Tensor, "Q 2"]:
    """Return the start and end, in seconds, of the moment that each query describes.

    Args:
        queries: The vectors of the queries.
        videos: The tokens of the videos.
        video_of_query: The video to search for each query.
        durations: The length of each video, in seconds.
        predictor: One of `predictors`.
        similarities: A method's `similarities`. Default: all branches score by cosine.
    """
    drawn = curves(queries, videos, video_of_query, similarities)
    return in_seconds(predictor(drawn), durations[video_of_query])


def in_seconds(fractions: Float[np.ndarray, "Q *K 2"], durations: Float[Tensor, " Q"]) -> Float[Tensor, "Q *K 2"]:
    """Convert moments from fractions of a video to seconds."""
    return torch.from_numpy(fractions).to(durations) * durations.view(-1, *[1] * (fractions.ndim - 1))
