"""Predictors of the one part of a video that a query describes, to be compared; what each makes of the curves."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import UnknownName, expect_axes
from midreel.methods.base import Encoded, Method, Vectors
from midreel.ops.moments import Curves, curves, find_moments, fused

Predictor = Callable[[Curves], Float[Tensor, "Q 2"]]


def found_moment(curves: Curves, weights: Mapping[str, float]) -> Float[Tensor, "Q 2"]:
    """What a search shows: the part around the highest peak of all branches together."""
    return find_moments(fused(curves, weights), most=1).spans[:, 0]


def best_token_moment(curves: Curves, branch: str) -> Float[Tensor, "Q 2"]:
    """The part that the best token of a branch stands for, the first of equal ones.

    For a branch of segments that is the plainest answer. A frame is hardly an instant: it may hit a moment, and never
    fills it.
    """
    if branch not in curves:
        raise UnknownName.among("branch", branch, curves)
    curve = curves[branch]
    rows = torch.arange(len(curve.scores), device=curve.scores.device)
    return curve.spans[rows, curve.scores.argmax(1)]


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


def in_seconds(fractions: Float[Tensor, "Q 2"], durations: Float[Tensor, " Q"]) -> Float[Tensor, "Q 2"]:
    expect_axes(fractions=(fractions, "Q 2"), durations=(durations, "Q"))
    return fractions.to(durations) * durations[:, None]
