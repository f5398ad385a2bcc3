"""The part of a video that a query describes, from how well each of the video's tokens fits the query.

Axes: Q queries, B videos, S tokens, D model width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import UnknownName, expect_axes
from midreel.methods.base import Encoded, Vectors


@dataclass(frozen=True, kw_only=True)
class Curve:
    """For each query, how well each token of its own video fits, and the part (start, end) that the token stands for.

    Parts are fractions of the video. A token that is not real scores -inf.
    """

    scores: Float[Tensor, "Q S"]
    spans: Float[Tensor, "Q S 2"]


Curves = Mapping[str, Curve]  # by branch
Predictor = Callable[[Curves], Float[Tensor, "Q 2"]]


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
            scores=token_scores(queries[branch], tokens.vectors, tokens.mask, video_of_query),
            spans=tokens.spans[video_of_query],
        )
        for branch, tokens in videos.items()
    }


def best_clip_moment(curves: Curves) -> Float[Tensor, "Q 2"]:
    """The part that the best clip stands for: the plainest answer of a method that has clips."""
    return _best_span(curves, "clip")


def best_frame_moment(curves: Curves) -> Float[Tensor, "Q 2"]:
    """The part that the best frame stands for: hardly an instant, so it may hit a moment and never fills it."""
    return _best_span(curves, "frame")


PREDICTORS: dict[str, Predictor] = {"best clip": best_clip_moment, "best frame": best_frame_moment}


def predict_moment(
    queries: Vectors,
    videos: Encoded,
    video_of_query: Int[Tensor, " Q"],
    durations: Float[Tensor, " B"],
    predictor: Predictor = best_clip_moment,
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
