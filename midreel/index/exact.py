"""The reference index: every token in memory, unchanged, and every score by its definition.

Other indexes are tested against it.
"""

from collections.abc import Collection, Mapping

import numpy as np

from midreel.index.attention import attended_cosine, best_guide
from midreel.index.base import (
    Array,
    Match,
    checked_queries,
    checked_similarities,
    checked_tokens,
    checked_weights,
    missing_video,
    scored_branches,
)
from midreel.index.embedded.quantise import directions, unit
from midreel.types import COSINE, Encoded, Similarities, Similarity, Tokens, Vectors, with_norms


class ExactIndex:
    """An index in memory, for small libraries and for tests. See `Index` for its methods.

    Args:
        branch_weights: The weight of each branch in the score.
        similarities: How each branch scores that does not score by its best cosine. Default: there is none.

    Examples:
        >>> import numpy as np
        >>> from midreel.types import Tokens
        >>> def video(*vectors):
        ...     shape = (1, len(vectors))
        ...     return {"clip": Tokens(
        ...         vectors=np.array([vectors], np.float32), mask=np.ones(shape, bool), spans=np.zeros((*shape, 2))
        ...     )}
        >>> index = ExactIndex({"clip": 1.0})
        >>> index.add("east", video([1, 0]))
        >>> index.add("north and west", video([0, 1], [-1, 0]))
        >>> [[best, _]] = index.search({"clip": np.array([[0.0, 2.0]])})
        >>> best.video_id, best.score
        ('north and west', 1.0)
    """

    def __init__(self, branch_weights: Mapping[str, float], similarities: Similarities | None = None) -> None:
        self._weights = checked_weights(branch_weights)
        self._similarities = checked_similarities(similarities, self._weights)
        self._scored = scored_branches(self._weights, self._similarities)
        self._videos: dict[str, dict[str, Tokens]] = {}
        self._width: int | None = None

    @property
    def branch_weights(self) -> Mapping[str, float]:
        """The weight of each branch in the score."""
        return dict(self._weights)

    @property
    def similarities(self) -> Similarities:
        """How each branch scores that does not score by its best cosine."""
        return dict(self._similarities)

    def __len__(self) -> int:
        return len(self._videos)

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._videos

    def video_ids(self) -> list[str]:
        """Return the ids of all videos, in the order in which they were added."""
        return list(self._videos)

    def add(self, video_id: str, tokens: Encoded) -> None:
        """Add a video, or replace it."""
        width = self._width or next((part.vectors.shape[2] for part in tokens.values()), None)
        found = checked_tokens(video_id, tokens, self._weights, width, self._similarities)
        self._width = width
        self._videos.pop(video_id, None)
        long_branches = with_norms(self._similarities)
        self._videos[video_id] = {
            branch: without_padding(part, norms=branch in long_branches) for branch, part in found.items()
        }

    def remove(self, video_id: str) -> None:
        """Remove a video."""
        if video_id not in self._videos:
            raise missing_video(video_id, len(self))
        del self._videos[video_id]

    def tokens(self, video_id: str) -> dict[str, Tokens]:
        """Return the stored tokens of a video."""
        if video_id not in self._videos:
            raise missing_video(video_id, len(self))
        return dict(self._videos[video_id])

    def search(
        self, queries: Vectors, *, top: int = 10, among: Collection[str] | None = None, exact: bool = False
    ) -> list[list[Match]]:
        """Return the best videos for each query, best first. See `Index.search` for the errors.

        Args:
            queries: One vector per query and branch. Branches that only provide keys need none.
            top: The maximum number of results per query.
            among: The ids to search. Unknown ids are ignored. Default: all videos.
            exact: No effect: every search is exact.
        """
        checked = checked_queries(queries, self._scored, self._width, top)
        wanted = None if among is None else set(among)
        searched = [video_id for video_id in self._videos if wanted is None or video_id in wanted]
        matches = [self._matches(checked, video_id) for video_id in searched]
        return [
            sorted((of_video[query] for of_video in matches), key=lambda match: -match.score)[:top]
            for query in range(len(next(iter(checked.values()))))
        ]

    def compact(self) -> None:
        """Do nothing: removed videos take no space."""

    def close(self) -> None:
        """Do nothing: there are no open files."""

    def _matches(self, queries: Mapping[str, Array], video_id: str) -> list[Match]:
        """Return the match of one video with each query."""
        tokens = self._videos[video_id]
        by_branch = {
            branch: _scores(queries[branch], branch, self._similarities.get(branch, COSINE), tokens)
            for branch in self._scored
        }  # each [Q, windows]
        total = np.sum([self._weights[branch] * by_branch[branch] for branch in self._scored], 0)
        windows = np.argmax(total, 1)
        return [
            Match(
                video_id=video_id,
                score=float(total[query, window]),
                branch_scores={branch: float(scores[query, window]) for branch, scores in by_branch.items()},
            )
            for query, window in enumerate(windows)
        ]


def _scores(queries: Array, branch: str, form: Similarity, tokens: Mapping[str, Tokens]) -> Array:
    """Return the score of each query with each window.

    Args:
        queries: One vector per query.
        branch: The branch to score.
        form: How it scores.
        tokens: The tokens of all branches of one video.
    """
    if form.kind == "attention":
        return _attended_cosines(unit(queries), tokens[form.guide], tokens[form.keys], tokens[branch])
    part = tokens[branch]
    if form.kind == "dot":
        wide = queries.astype(np.float64)  # the products of long vectors
        return _best_products(wide, part.vectors.astype(np.float64), part.mask)
    return _best_products(unit(queries), unit(part.vectors), part.mask)


def _best_products(queries: Array, vectors: Array, mask: Array) -> Array:
    """Return the product of each query with the best token of each window."""
    products = (queries @ vectors.reshape(-1, vectors.shape[2]).T).reshape(len(queries), *mask.shape)
    return np.where(mask, products, -np.inf).max(2)


def _attended_cosines(queries: Array, guides: Tokens, keys: Tokens, values: Tokens) -> Array:
    """Return the cosine of each query with the attention of each window. The queries are unit vectors."""
    scores = np.zeros((len(queries), len(values)))
    for window in range(len(values)):
        of_guides, of_keys, of_values = (
            directions(part.vectors[window, part.mask[window]]) for part in (guides, keys, values)
        )
        for number, query in enumerate(queries):
            best = best_guide(query, of_guides[0])
            guide = of_guides[0][best], float(of_guides[1][best])
            scores[number, window] = attended_cosine(query, guide, of_keys, of_values)
    return scores


def without_padding(tokens: Tokens, *, norms: bool = False) -> Tokens:
    """Return tokens, the real ones of each window first, padded to the longest window.

    Args:
        tokens: The tokens.
        norms: Whether to keep their lengths. Default: return unit vectors.
    """
    order = np.argsort(~tokens.mask, axis=1, kind="stable")[:, : int(tokens.mask.sum(1).max())]
    mask = np.take_along_axis(tokens.mask, order, 1)
    made = tokens.vectors if norms else unit(tokens.vectors)
    vectors, spans = (np.take_along_axis(part, order[..., None], 1) for part in (made, tokens.spans))
    return Tokens(vectors=np.where(mask[..., None], vectors, 0), mask=mask, spans=np.where(mask[..., None], spans, 0))
