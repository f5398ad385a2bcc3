"""The points of an index in Qdrant: the head of a video, and its windows.

A point of a window has a multivector per branch. Vectors are unit vectors of half precision, except for branches that
score by dot product. Where the length of a token counts otherwise, it is in the payload, because Qdrant normalises
vectors for the cosine. So are the spans.
"""

import base64
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from qdrant_client import models

from midreel.index.base import Array
from midreel.index.embedded.quantise import directions, unit
from midreel.index.rerank import Scoring, WindowTokens
from midreel.types import Encoded, Similarities, with_norms

_SPACE = uuid.UUID("5f0c1de1-6f1a-4a53-9b4f-4e6b0f0f6d65")  # of the ids of points


class Head(NamedTuple):
    """The head of a video: its id, its version, its order of addition, and its number of windows."""

    video_id: str
    version: str
    order: int
    windows: int


class Points:
    """Converts windows to points, and back.

    Args:
        scoring: The score.
        similarities: How each branch scores that does not score by its best cosine.
    """

    def __init__(self, scoring: Scoring, similarities: Similarities) -> None:
        self._scoring, self._long_branches = scoring, with_norms(similarities)

    def encoded(self, head: Head, tokens: Encoded) -> Iterator[models.PointStruct]:
        """Yield the points of the windows of a video."""
        for window in range(head.windows):
            vectors: dict[str, Any] = {}
            spans, norms, longest = {}, {}, {}
            for branch, part in tokens.items():
                mask = part.mask[window]
                real = part.vectors[window, mask]
                units, lengths = directions(real)
                vectors[branch] = (real if self._scoring.kind(branch) == "dot" else units).tolist()
                spans[branch] = _packed(part.spans[window, mask])
                if branch in self._long_branches:
                    norms[branch] = _packed(lengths)
                    longest[branch] = float(lengths.max())
            payload = {"video": head.video_id, "version": head.version, "order": head.order, "window": window}
            yield models.PointStruct(
                id=window_id(head, window),
                vector=vectors,
                payload={**payload, "kind": "window", "spans": spans, "norms": norms, "longest": longest},
            )

    def decoded(self, vectors: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, WindowTokens]:
        """Return the tokens of a window by branch.

        Args:
            vectors: The vectors of its point.
            payload: The payload of its point.
        """
        return {branch: self._tokens(branch, np.asarray(part, np.float32), payload) for branch, part in vectors.items()}

    def _tokens(self, branch: str, vectors: Array, payload: Mapping[str, Any]) -> WindowTokens:
        spans = _unpacked(payload["spans"][branch]).reshape(-1, 2)
        if self._scoring.kind(branch) == "dot":
            units, norms = directions(vectors)
            return WindowTokens(units, norms, spans)
        packed = payload["norms"].get(branch)
        return WindowTokens(unit(vectors), None if packed is None else _unpacked(packed), spans)


def head_point(head: Head, tokens: Encoded) -> models.PointStruct:
    """Return the point of a head. It has no vectors."""
    counts = {branch: int(part.mask.sum()) for branch, part in tokens.items()}
    payload = {"video": head.video_id, "version": head.version, "order": head.order, "windows": head.windows}
    return models.PointStruct(
        id=head_id(head.video_id), vector={}, payload={**payload, "kind": "head", "counts": counts}
    )


def num_tokens(point: models.PointStruct) -> int:
    """Return the number of vectors of a point."""
    parts: Any = point.vector
    return sum(len(part) for part in parts.values())


def head_of(point: Any) -> Head:
    """Return the head in a point."""
    payload = point.payload
    return Head(payload["video"], payload["version"], int(payload["order"]), int(payload["windows"]))


def head_id(video_id: str) -> str:
    """Return the id of the head of a video."""
    return str(uuid.uuid5(_SPACE, video_id))


def window_id(head: Head, window: int) -> str:
    """Return the id of the point of a window."""
    return str(uuid.uuid5(_SPACE, f"{head.version} {window}"))


def is_present(payload: Mapping[str, Any], heads: Mapping[str, Head]) -> bool:
    """Return whether a window belongs to the present version of its video."""
    head = heads.get(payload["video"])
    return head is not None and head.version == payload["version"]


def matching(*, is_head: bool, among: Collection[str] | None = None) -> models.Filter:
    """Return the filter for heads or for windows, of all videos or of some."""
    chosen: list[Any] = condition(is_head=is_head)
    if among is not None:
        chosen.append(models.FieldCondition(key="video", match=models.MatchAny(any=sorted(among))))
    return models.Filter(must=chosen)


def condition(*, is_head: bool) -> list[Any]:
    """Return the condition for heads or for windows."""
    return [models.FieldCondition(key="kind", match=models.MatchValue(value="head" if is_head else "window"))]


def _packed(values: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()


def _unpacked(text: str) -> Array:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)
