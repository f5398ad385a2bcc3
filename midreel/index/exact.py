"""The oracle: every token in memory as it came, every score by scoring.py. Other indexes are tested against it."""

from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F

from midreel.index.base import Match, absent, checked_queries, checked_tokens, checked_weights
from midreel.ops import scoring
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
        checked_tokens(video_id, tokens, self._weights, width)
        self._width = width
        self._videos.pop(video_id, None)
        self._videos[video_id] = {branch: without_padding(part) for branch, part in tokens.items()}

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
        number = checked_queries(queries, self._weights, self._width, top)
        wanted = None if among is None else set(among)
        found = [video_id for video_id in self._videos if wanted is None or video_id in wanted]
        matches = [self._matches(queries, video_id) for video_id in found]
        return [
            sorted((of_video[query] for of_video in matches), key=lambda match: -match.score)[:top]
            for query in range(number)
        ]

    def compact(self) -> None:
        """Nothing is left behind."""

    def close(self) -> None:
        """Nothing is held."""

    def _matches(self, queries: Vectors, video_id: str) -> list[Match]:
        """One video's match with each query."""
        by_branch = {
            branch: scoring.cosine_max_sim(queries[branch].float(), part.vectors, part.mask)
            for branch, part in self._videos[video_id].items()
        }
        best = torch.stack([weight * by_branch[branch] for branch, weight in self._weights.items()]).sum(0).max(1)
        return [
            Match(
                video_id=video_id,
                score=score,
                window=window,
                branch_scores={branch: float(scores[query, window]) for branch, scores in by_branch.items()},
            )
            for query, (score, window) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        ]


def without_padding(tokens: Tokens) -> Tokens:
    """Unit vectors, the real tokens of each window first; as wide as the window with the most of them."""
    order = (~tokens.mask).int().argsort(dim=1, stable=True)[:, : int(tokens.mask.sum(1).max())]
    mask = tokens.mask.gather(1, order)
    pick = order[..., None]
    vectors = F.normalize(tokens.vectors.detach().float().cpu(), dim=-1).gather(
        1, pick.expand(-1, -1, tokens.vectors.shape[2])
    )
    return Tokens(
        vectors=vectors * mask[..., None],
        mask=mask,
        spans=tokens.spans.detach().float().cpu().gather(1, pick.expand(-1, -1, 2)) * mask[..., None],
    )
