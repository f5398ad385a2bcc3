"""Score the best windows of a search again, from their stored tokens and by the definition of the score.

Indexes on servers share this module. The server selects windows by scores of limited precision. The client reads the
tokens of those that may be among the best, and scores them here, so that all similarities and all ties are exact.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from midreel.index.attention import attended_cosine, best_guide
from midreel.index.base import Array, Match, checked_queries, scannable, scored_branches
from midreel.index.embedded.quantise import directions, unit
from midreel.types import COSINE, Similarities, Tokens, Vectors

CANDIDATES = 128  # windows that the server selects by one branch, in an index of up to MANY windows
MANY = 5_000
_PER_RESULT = 8  # candidates per requested result, if that is more than CANDIDATES
_VIDEOS_PER_RESULT = 2  # different videos per result among the candidates: a long video has many windows
_PER_ATTENTION = 2  # times as many candidates if a branch has no best token


class QueryVector(NamedTuple):
    """A query in one branch: its direction, a unit vector, and its length if it counts, otherwise 1."""

    direction: Array
    length: float


class WindowTokens(NamedTuple):
    """The tokens of one window in one branch.

    Attributes:
        units: Their directions, unit vectors.
        norms: Their lengths. None if they do not count.
        spans: Their spans.
    """

    units: Float[Array, "S D"]
    norms: Float[Array, " S"] | None
    spans: Float[Array, "S 2"]


class Scoring:
    """The score of a window, from the weights and the similarities of the branches.

    Args:
        weights: The weight of each branch.
        similarities: How each branch scores that does not score by its best cosine.

    Attributes:
        branches: The branches with a score.
        by_token: Those among them that score by their best token, so that a server can score them.
        scannable: Those whose best token can select candidates.
        attends: Whether a branch with a weight has no best token. Only the client can score it.
    """

    def __init__(self, weights: Mapping[str, float], similarities: Similarities) -> None:
        self._weights, self._similarities = weights, similarities
        self.branches = scored_branches(weights, similarities)
        self.by_token = [branch for branch in self.branches if self.kind(branch) != "attention"]
        self.scannable = scannable(weights, similarities)
        self.attends = any(weights[branch] for branch in self.branches if branch not in self.by_token)

    def kind(self, branch: str) -> str:
        """Return the kind of the similarity of a branch."""
        return self._similarities.get(branch, COSINE).kind

    def prepared(self, queries: Vectors, width: int, top: int) -> list[dict[str, QueryVector]]:
        """Return the queries, each by branch. See `checked_queries` for the errors.

        Args:
            queries: One vector per query and branch.
            width: The expected width.
            top: The number of results.
        """
        checked = checked_queries(queries, self.branches, width, top)
        parts = {branch: self._directions(branch, vectors) for branch, vectors in checked.items()}
        number = len(next(iter(checked.values())))
        return [
            {branch: QueryVector(units[query], float(lengths[query])) for branch, (units, lengths) in parts.items()}
            for query in range(number)
        ]

    def _directions(self, branch: str, vectors: Array) -> tuple[Array, Array]:
        if self.kind(branch) == "dot":
            return directions(vectors)
        return unit(vectors), np.ones(len(vectors))

    def num_candidates(self, top: int) -> int:
        """Return the number of windows that the server should select in an index of up to MANY windows."""
        return max(CANDIDATES, _PER_RESULT * top) * (_PER_ATTENTION if self.attends else 1)

    def total(self, scores: Mapping[str, float]) -> float:
        """Return the weighted sum of the scores of the branches."""
        return sum(self._weights[branch] * score for branch, score in scores.items())

    def totals(self, scores: Mapping[str, Array]) -> Array:
        """Return the weighted sum of the scores of the branches of each window."""
        return np.sum([self._weights[branch] * part for branch, part in scores.items()], 0)

    def scores(self, query: Mapping[str, QueryVector], window: Mapping[str, WindowTokens]) -> dict[str, float]:
        """Return the score of each branch in one window."""
        return {branch: self._score(branch, query[branch], window) for branch in self.branches}

    def _score(self, branch: str, query: QueryVector, window: Mapping[str, WindowTokens]) -> float:
        form, tokens = self._similarities.get(branch, COSINE), window[branch]
        if form.kind == "attention":
            guides = window[form.guide]
            best = best_guide(query.direction, guides.units)
            guide = guides.units[best], float(_norms(guides)[best])
            keys, values = ((part.units, _norms(part)) for part in (window[form.keys], tokens))
            return attended_cosine(query.direction, guide, keys, values)
        # Not a matrix product: its rounding of a row depends on the other rows.
        cosines = np.einsum("sd,d->s", tokens.units, query.direction)
        if form.kind == "dot":
            return float((cosines * _norms(tokens).astype(np.float64)).max()) * query.length
        return float(cosines.max())


class Scored(NamedTuple):
    """A window with its exact scores.

    Attributes:
        order: The order of addition of its video.
        video_id: The id of its video.
        scores: The score of each branch.
    """

    order: int
    video_id: str
    scores: dict[str, float]


def contenders(
    total: Float[Array, " N"], doubt: Float[Array, " N"], videos: Int[Array, " N"], top: int
) -> Int[Array, " M"]:
    """Return the numbers of the windows that may be the best one of one of the best `top` videos.

    Args:
        total: The approximate score of each window.
        doubt: The maximum error of each score.
        videos: The video of each window.
        top: The number of videos.
    """
    if not len(total):
        return np.zeros(0, np.int64)
    lowest = total - doubt
    order = np.argsort(-lowest, kind="stable")
    _, first = np.unique(videos[order], return_index=True)  # the best window of each video
    surely = lowest[order[np.sort(first)[:top]]].min() if len(first) >= top else -np.inf
    return np.flatnonzero(total + doubt >= surely)


def too_few_videos(videos: Iterable[object], top: int, limit: int) -> bool:
    """Return whether candidates hold too few different videos although there may be more windows.

    Args:
        videos: The video of each candidate.
        top: The number of results.
        limit: The number of candidates that the server was asked for.
    """
    found = list(videos)
    return len(found) >= limit and len(set(found)) < min(limit, _VIDEOS_PER_RESULT * top)


def best_matches(windows: Iterable[Scored], scoring: Scoring, top: int) -> list[Match]:
    """Return the best videos, best first. A video scores as its best window; among equals, the first added wins.

    Args:
        windows: Windows of any videos.
        scoring: The score.
        top: The maximum number of results.
    """
    ranked = sorted(
        ((scoring.total(window.scores), window) for window in windows), key=lambda at: (-at[0], at[1].order)
    )
    found: dict[str, Match] = {}
    for score, window in ranked:
        if len(found) == top:
            break
        if window.video_id not in found:
            found[window.video_id] = Match(video_id=window.video_id, score=score, branch_scores=window.scores)
    return list(found.values())


def padded(windows: list[WindowTokens]) -> Tokens:
    """Return the tokens of all windows of a video in one branch, padded to the longest window."""
    counts = np.array([len(window.units) for window in windows])
    mask = np.arange(counts.max()) < counts[:, None]
    vectors = np.zeros((*mask.shape, windows[0].units.shape[1]), np.float32)
    spans = np.zeros((*mask.shape, 2), np.float32)
    vectors[mask] = np.concatenate(
        [window.units if window.norms is None else window.units * window.norms[:, None] for window in windows]
    )
    spans[mask] = np.concatenate([window.spans for window in windows])
    return Tokens(vectors=vectors, mask=mask, spans=spans)


def _norms(tokens: WindowTokens) -> Array:
    return np.ones(len(tokens.units), np.float32) if tokens.norms is None else tokens.norms
