"""Predictors of the one part of a video that a query describes, to be compared; what each makes of the curves."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import UnknownName, expect_axes
from midreel.methods.base import Encoded, Vectors
from midreel.ops.moments import Curves, curves, find_moments, fused

Predictor = Callable[[Curves], Float[Tensor, "Q 2"]]


def found_moment(curves: Curves) -> Float[Tensor, "Q 2"]:
    """What a search shows: the part around the highest peak of all branches together."""
    return find_moments(fused(curves), most=1).spans[:, 0]


def best_clip_moment(curves: Curves) -> Float[Tensor, "Q 2"]:
    """The part that the best clip stands for: the plainest answer of a method that has clips."""
    return _best_span(curves, "clip")


def best_frame_moment(curves: Curves) -> Float[Tensor, "Q 2"]:
    """The part that the best frame stands for: hardly an instant, so it may hit a moment and never fills it."""
    return _best_span(curves, "frame")


PREDICTORS: dict[str, Predictor] = {
    "found": found_moment,
    "best clip": best_clip_moment,
    "best frame": best_frame_moment,
}


def predict_moment(
    queries: Vectors,
    videos: Encoded,
    video_of_query: Int[Tensor, " Q"],
    durations: Float[Tensor, " B"],
    predictor: Predictor = found_moment,
) -> Float[Tensor, "Q 2"]:
    """Start and end, in seconds, of the part that each query describes in the video `video_of_query` names."""
    return in_seconds(predictor(curves(queries, videos, video_of_query)), durations[video_of_query])


def in_seconds(fractions: Float[Tensor, "Q 2"], durations: Float[Tensor, " Q"]) -> Float[Tensor, "Q 2"]:
    expect_axes(fractions=(fractions, "Q 2"), durations=(durations, "Q"))
    return fractions.to(durations) * durations[:, None]


def _best_span(curves: Curves, branch: str) -> Float[Tensor, "Q 2"]:
    if branch not in curves:
        raise UnknownName.among("branch", branch, curves)
    curve = curves[branch]
    rows = torch.arange(len(curve.scores), device=curve.scores.device)
    return curve.spans[rows, curve.scores.argmax(1)]  # the first of equal ones
