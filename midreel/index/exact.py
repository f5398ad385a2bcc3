"""The reference index: every token in memory, unchanged, and every score by its definition.

Other indexes are tested against it.
"""

from collections.abc import Collection, Mapping

import numpy as np

from midreel.index.base import Array, Match, checked_queries, checked_tokens, checked_weights, missing_video
from midreel.index.embedded.quantise import unit
from midreel.types import Encoded, Tokens, Vectors


class ExactIndex:
    """An index in memory, for small libraries and for tests. See `Index` for its methods.

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

    def __init__(self, branch_weights: Mapping[str, float]) -> None:
        self._weights = checked_weights(branch_weights)
        self._videos: dict[str, dict[str, Tokens]] = {}
        self._width: int | None = None

    @property
    def branch_weights(self) -> Mapping[str, float]:
        """The weight of each branch in the score."""
        return dict(self._weights)

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
        found = checked_tokens(video_id, tokens, self._weights, width)
        self._width = width
        self._videos.pop(video_id, None)
        self._videos[video_id] = {branch: without_padding(part) for branch, part in found.items()}

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
            queries: One vector per query and branch.
            top: The maximum number of results per query.
            among: The ids to search. Unknown ids are ignored. Default: all videos.
            exact: No effect: every search is exact.
        """
        checked = checked_queries(queries, self._weights, self._width, top)
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
        by_branch = {
            branch: _best_cosines(queries[branch], part) for branch, part in self._videos[video_id].items()
        }  # each [Q, windows]
        total = np.sum([weight * by_branch[branch] for branch, weight in self._weights.items()], 0)
        windows = np.argmax(total, 1)
        return [
            Match(
                video_id=video_id,
                score=float(total[query, window]),
                branch_scores={branch: float(scores[query, window]) for branch, scores in by_branch.items()},
            )
            for query, window in enumerate(windows)
        ]


def _best_cosines(queries: Array, tokens: Tokens) -> Array:
    """Return the cosine of each query with the best token of each window."""
    cosines = unit(queries) @ tokens.vectors.reshape(-1, tokens.vectors.shape[2]).T
    cosines = cosines.reshape(len(queries), *tokens.mask.shape)
    return np.where(tokens.mask, cosines, -np.inf).max(2)


def without_padding(tokens: Tokens) -> Tokens:
    """Return tokens as unit vectors, the real ones of each window first, padded to the longest window."""
    order = np.argsort(~tokens.mask, axis=1, kind="stable")[:, : int(tokens.mask.sum(1).max())]
    mask = np.take_along_axis(tokens.mask, order, 1)
    vectors, spans = (np.take_along_axis(part, order[..., None], 1) for part in (unit(tokens.vectors), tokens.spans))
    return Tokens(vectors=vectors * mask[..., None], mask=mask, spans=spans * mask[..., None])
