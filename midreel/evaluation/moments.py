"""Predictors of the one part of a video that a query describes, to be compared; what each makes of the curves."""

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

Predictor = Callable[[Curves], Float[np.ndarray, "Q 2"]]


def token_scores(
    queries: Float[Tensor, "Q D"],
    tokens: Float[Tensor, "B S D"],
    mask: Bool[Tensor, "B S"],
    video_of_query: Int[Tensor, " Q"],
) -> Float[Tensor, "Q S"]:
    """The cosine of each query and each token of its own video; the best of them is the branch's retrieval score.

    All queries meet all tokens and the own ones are picked: gathering the tokens first would hold (Q, S, D), which is
    larger than (Q, B, S) for any batch with fewer videos than channels.
    """
    expect_axes(queries=(queries, "Q D"), tokens=(tokens, "B S D"), mask=(mask, "B S"))
    expect_axes(queries=(queries, "Q D"), video_of_query=(video_of_query, "Q"))
    products = F.normalize(queries, dim=-1) @ F.normalize(tokens, dim=-1).flatten(0, 1).T
    rows = torch.arange(len(queries), device=queries.device)
    own = products.view(len(queries), *tokens.shape[:2])[rows, video_of_query]
    return own.masked_fill(~mask[video_of_query], -torch.inf)


def curves(queries: Vectors, videos: Encoded, video_of_query: Int[Tensor, " Q"]) -> dict[str, Curve]:
    """Each branch's curve of each query over its own video."""
    return {
        branch: Curve(
            scores=token_scores(queries[branch], tokens.vectors, tokens.mask, video_of_query).cpu().numpy(),
            spans=tokens.spans[video_of_query].cpu().numpy(),
        )
        for branch, tokens in videos.items()
    }


def found_moment(curves: Curves, weights: Mapping[str, float]) -> Float[np.ndarray, "Q 2"]:
    """What a search shows: the part around the highest peak of all branches together."""
    return find_moments(fused(curves, weights), most=1).spans[:, 0]


def best_token_moment(curves: Curves, branch: str) -> Float[np.ndarray, "Q 2"]:
    """The part that the best token of a branch stands for, the first of equal ones.

    For a branch of segments that is the plainest answer. A frame is hardly an instant: it may hit a moment, and never
    fills it.
    """
    if branch not in curves:
        raise UnknownName.among("branch", branch, curves)
    curve = curves[branch]
    return curve.spans[np.arange(len(curve.scores)), curve.scores.argmax(1)]


def predictors(method: Method) -> dict[str, Predictor]:
    """What can be compared of a method: the moment that a search shows, and the best token of each branch."""
    best = {f"best {branch}": partial(best_token_moment, branch=branch) for branch in method.branches}
    return {"found": partial(found_moment, weights=method.curve_weights), **best}


def predict_moment(
    queries: Vectors,
    videos: Encoded,
    video_of_query: Int[Tensor, " Q"],
    durations: Float[Tensor, " B"],
    predictor: Predictor,
) -> Float[Tensor, "Q 2"]:
    """Start and end, in seconds, of the part that each query describes in the video `video_of_query` names."""
    return in_seconds(predictor(curves(queries, videos, video_of_query)), durations[video_of_query])


def in_seconds(fractions: Float[np.ndarray, "Q 2"], durations: Float[Tensor, " Q"]) -> Float[Tensor, "Q 2"]:
    return torch.from_numpy(fractions).to(durations) * durations[:, None]
