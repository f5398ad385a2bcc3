"""The answers of searches as JSON values, in the form of `schemas`.

They are plain dictionaries, which orjson writes five times as fast as pydantic makes and writes its models. A test
compares both. The other answers are small, and pydantic writes them.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import orjson
from fastapi.responses import Response

from midreel.index.base import Array
from midreel.library.hits import Hit
from midreel.ops.moments import ScoredMoment
from midreel.server import schemas, streaming
from midreel.server.listing import Item


class JsonResponse(Response):
    """A response whose content are JSON values."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON. Times in UTC end with Z, as those of pydantic."""
        return orjson.dumps(content, option=orjson.OPT_UTC_Z | orjson.OPT_SERIALIZE_NUMPY)


class Written:
    """Videos as JSON. Each is written once: an item stays the same object until the catalogue changes."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Item, orjson.Fragment]] = {}

    def __call__(self, item: Item) -> orjson.Fragment:
        """Return `video(item)` as JSON."""
        kept = self._kept.get(item.id)
        if kept is None or kept[0] is not item:
            kept = item, orjson.Fragment(orjson.dumps(video(item), option=orjson.OPT_UTC_Z))
            self._kept[item.id] = kept
        return kept[1]


def video(item: Item, tags: Sequence[str] = ()) -> dict[str, Any]:
    """Return a `schemas.Video`."""
    return {
        "id": item.id,
        "title": item.title,
        "folder": item.folder,
        "file": item.file,
        "duration": item.duration,
        "size": item.size,
        "date": datetime.fromtimestamp(streaming.in_calendar(item.date), UTC),
        "copies": len(item.files),
        "tags": list(tags),
        "thumbnail": _thumbnail(item, item.duration / 2),
        "stream": _stream(item),
    }


def hits(found: Sequence[tuple[Hit, Item]], written: Written) -> list[dict[str, Any]]:
    """Return a list of `schemas.Hit`. The curves are arrays, which orjson writes."""
    drawn = curves([each for each, _ in found])
    return [_hit(rank, each, item, written(item), drawn[rank - 1]) for rank, (each, item) in enumerate(found, 1)]


def _hit(rank: int, found: Hit, item: Item, shown: orjson.Fragment, drawn: dict[str, Any]) -> dict[str, Any]:
    whole = ScoredMoment(start=0.0, end=item.duration, score=found.score, peak=item.duration / 2)
    best, *others = found.moments or (whole,)
    return {
        "rank": rank,
        "video": shown,
        "score": found.score,
        "confidence": found.confidence,
        "branch_scores": dict(found.branch_scores),
        "part": getattr(best, "part", ""),  # of a query with operators
        "start": best.start,
        "end": best.end,
        "start_range": best.start_range,
        "end_range": best.end_range,
        "peak": best.peak,
        "alternatives": [moment(each) for each in others],
        "curve": drawn,
        "said": [{"start": line.start, "end": line.end, "text": line.text} for line in found.said],
        "thumbnail": _thumbnail(item, best.peak),
        "stream": f"{_stream(item)}#t={best.start:.2f},{best.end:.2f}",
    }


def moment(found: ScoredMoment) -> dict[str, Any]:
    """Return a `schemas.Moment`."""
    return {
        "start": found.start,
        "end": found.end,
        "start_range": found.start_range,
        "end_range": found.end_range,
        "peak": found.peak,
        "score": found.score,
        "part": getattr(found, "part", ""),
    }


def curves(found: Sequence[Hit]) -> list[dict[str, Any]]:
    """Return a `schemas.Curve` of each hit, with arrays. All are rounded in one go, because they are short."""
    parts = [_points(hit) for hit in found]
    bounds = [0, *accumulate(len(times) for times, _ in parts)]
    times = np.round(np.concatenate([np.empty(0), *(each for each, _ in parts)]), 3)
    values = np.round(np.concatenate([np.empty(0), *(each for _, each in parts)]), 4)
    return [{"times": times[start:end], "values": values[start:end]} for start, end in pairwise(bounds)]


def _points(found: Hit) -> tuple[Array, Array]:
    times, values = found.curve.arrays()
    if len(values) <= schemas.MAX_CURVE_POINTS:
        return times, values
    kept = thinned(values.tolist(), schemas.MAX_CURVE_POINTS)
    return times[kept], values[kept]


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Return the indices of at most `most` values: the highest of each of `most` equal parts.

    Thinning keeps the peaks, which are the moments.

    >>> thinned([0.1, 0.9, 0.2, 0.3, 0.8, 0.7], 3)
    [1, 3, 4]
    """
    if len(values) <= most:
        return list(range(len(values)))
    bounds = [len(values) * k // most for k in range(most + 1)]
    return [max(range(start, end), key=values.__getitem__) for start, end in pairwise(bounds)]


def _thumbnail(item: Item, time: float) -> str:
    return f"/v1/videos/{item.id}/thumbnail?t={time:.1f}"


def _stream(item: Item) -> str:
    return f"/v1/videos/{item.id}/stream"
