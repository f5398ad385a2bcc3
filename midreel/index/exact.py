"""The oracle: every token in memory as it came, every score by its definition. Other indexes are tested against it."""

from collections.abc import Collection, Mapping

import numpy as np

from midreel.index.base import Array, Match, absent, checked_queries, checked_tokens, checked_weights
from midreel.index.embedded.quantise import unit
from midreel.types import Encoded, Tokens, Vectors


class ExactIndex:
    """An index in memory, for small libraries and for tests."""

    def __init__(self, branch_weights: Mapping[str, float]) -> None:
        self._weights = checked_weights(branch_weights)
        self._videos: dict[str, dict[str, Tokens]] = {}
        self._width: int | None = None

    @property
    def branch_weights(self) -> Mapping[str, float]:
        return dict(self._weights)

    def __len__(self) -> int:
        return len(self._videos)

    def __contains__(self, video_id: object) -> bool:
        return video_id in self._videos

    def video_ids(self) -> list[str]:
        return list(self._videos)

    def add(self, video_id: str, tokens: Encoded) -> None:
        width = self._width or next((part.vectors.shape[2] for part in tokens.values()), None)
        found = checked_tokens(video_id, tokens, self._weights, width)
        self._width = width
        self._videos.pop(video_id, None)
        self._videos[video_id] = {branch: without_padding(part) for branch, part in found.items()}

    def remove(self, video_id: str) -> None:
        if video_id not in self._videos:
            raise absent(video_id, len(self))
        del self._videos[video_id]

    def tokens(self, video_id: str) -> dict[str, Tokens]:
        if video_id not in self._videos:
            raise absent(video_id, len(self))
        return dict(self._videos[video_id])

    def search(
        self, queries: Vectors, *, top: int = 10, among: Collection[str] | None = None, exact: bool = False
    ) -> list[list[Match]]:
        asked = checked_queries(queries, self._weights, self._width, top)
        wanted = None if among is None else set(among)
        found = [video_id for video_id in self._videos if wanted is None or video_id in wanted]
        matches = [self._matches(asked, video_id) for video_id in found]
        return [
            sorted((of_video[query] for of_video in matches), key=lambda match: -match.score)[:top]
            for query in range(len(next(iter(asked.values()))))
        ]

    def compact(self) -> None:
        """Nothing is left behind."""

    def close(self) -> None:
        """Nothing is held."""

    def _matches(self, queries: Mapping[str, Array], video_id: str) -> list[Match]:
        """One video's match with each query."""
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
    """The cosine of each query with the best token of each window."""
    cosines = unit(queries) @ tokens.vectors.reshape(-1, tokens.vectors.shape[2]).T
    cosines = cosines.reshape(len(queries), *tokens.mask.shape)
    return np.where(tokens.mask, cosines, -np.inf).max(2)


def without_padding(tokens: Tokens) -> Tokens:
    """Unit vectors, the real tokens of each window first; as wide as the window with the most of them."""
    order = np.argsort(~tokens.mask, axis=1, kind="stable")[:, : int(tokens.mask.sum(1).max())]
    mask = np.take_along_axis(tokens.mask, order, 1)
    vectors, spans = (np.take_along_axis(part, order[..., None], 1) for part in (unit(tokens.vectors), tokens.spans))
    return Tokens(vectors=vectors * mask[..., None], mask=mask, spans=spans * mask[..., None])
