"""The answers of searches as JSON values, in the form of `schemas`.

They are plain dictionaries, which orjson writes five times as fast as pydantic makes and writes its models. A test
compares both. The other answers are small, and pydantic writes them.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
from fastapi.responses import Response

from midreel.library.hits import Hit
from midreel.ops.moments import ScoredMoment
from midreel.server import schemas, streaming
from midreel.server.listing import Item


class JsonResponse(Response):
    """A response whose content are JSON values."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as JSON. Times in UTC end with Z, as those of pydantic."""
        return orjson.dumps(content, option=orjson.OPT_UTC_Z)


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


def hit(rank: int, found: Hit, item: Item) -> dict[str, Any]:
    """Return a `schemas.Hit`.

    Args:
        rank: Its position in the result.
        found: The hit.
        item: Its video.
    """
    whole = ScoredMoment(start=0.0, end=item.duration, score=found.score, peak=item.duration / 2)
    best, *others = found.moments or (whole,)
    return {
        "rank": rank,
        "video": video(item),
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
        "curve": curve(found),
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


def curve(found: Hit) -> dict[str, Any]:
    """Return a `schemas.Curve`."""
    times, values = found.curve.arrays()
    if len(values) > schemas.MAX_CURVE_POINTS:
        kept = thinned(values.tolist(), schemas.MAX_CURVE_POINTS)
        times, values = times[kept], values[kept]
    return {"times": np.round(times, 3).tolist(), "values": np.round(values, 4).tolist()}


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
