"""Hits in notebooks: a hit as HTML, and hits as rows of a table."""

import base64
import io
import os
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from PIL import Image

from midreel.errors import MidreelError
from midreel.library.filters import span
from midreel.media import decode

if TYPE_CHECKING:
    from midreel.library.hits import Hit

THUMBNAIL = (192, 192)  # pixels, at most
WIDTH, HEIGHT = 320, 48  # of the curve


def hit_html(hit: "Hit") -> str:
    """Return a hit as HTML: a frame at the peak of its best moment, the curve with its moments, and a link.

    The frame is inside the HTML, so that a saved notebook shows it elsewhere. An unreadable video has no frame.
    """
    name = os.fsencode(hit.path.name).decode("utf-8", "replace")
    best = hit.moments[0] if hit.moments else None
    start = 0.0 if best is None else best.start
    lines = [f'<a href="{escape(hit.path.absolute().as_uri())}#t={start:.2f}">{escape(name)}</a>']
    if best is not None:
        lines.append(escape(span(best.start, best.end, digits=1)))
    confidence = "" if hit.confidence is None else f", confidence {hit.confidence:.0%}"
    lines.append(f"score {hit.score:.3f}{confidence}")
    text = "<br>".join(lines)
    return (
        f'<div style="display:flex;gap:12px;align-items:center;margin:6px 0">{_thumbnail(hit)}'
        f"<div>{text}<br>{_curve(hit)}</div></div>"
    )


def moment_rows(hits: Iterable["Hit"]) -> list[dict[str, Any]]:
    """Return a row for each moment of each hit, best first, for `pandas.DataFrame` and the like.

    The columns are rank, video_id, path, duration, start, end, moment_score, score and confidence.
    """
    return [
        {
            "rank": rank,
            "video_id": hit.video_id,
            "path": str(hit.path),
            "duration": hit.duration,
            "start": moment.start,
            "end": moment.end,
            "moment_score": moment.score,
            "score": hit.score,
            "confidence": hit.confidence,
        }
        for rank, hit in enumerate(hits, 1)
        for moment in hit.moments
    ]


def _thumbnail(hit: "Hit") -> str:
    at = hit.moments[0].peak if hit.moments else 0.0
    try:
        [(_, frame)] = decode.frames_at(hit.path, [min(at, hit.duration)])
    except (MidreelError, ValueError):  # unreadable, missing, or shorter than before
        return ""
    image = Image.fromarray(frame)
    image.thumbnail(THUMBNAIL)
    data = io.BytesIO()
    image.save(data, "JPEG", quality=82)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}">'


def _curve(hit: "Hit") -> str:
    """Return the curve as SVG, with its moments as shaded parts."""
    times, values = hit.curve.times, hit.curve.values
    if not times or hit.duration <= 0:
        return ""
    low, high = min(values), max(values)
    spread = (high - low) or 1.0
    points = " ".join(
        f"{_x(time, hit.duration):.1f},{HEIGHT - 2 - (value - low) / spread * (HEIGHT - 4):.1f}"
        for time, value in zip(times, values, strict=True)
    )
    moments = "".join(
        f'<rect x="{_x(each.start, hit.duration):.1f}" y="0" height="{HEIGHT}" fill="#0072b2" fill-opacity="0.2" '
        f'width="{max(1.0, _x(each.end, hit.duration) - _x(each.start, hit.duration)):.1f}"/>'
        for each in hit.moments
    )
    label = f"How well the query fits over {hit.duration:.0f} s; moments: {_listed(hit.moments)}"
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="{WIDTH}" height="{HEIGHT}">{moments}'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )


def _x(time: float, duration: float) -> float:
    return min(max(time / duration, 0.0), 1.0) * WIDTH


def _listed(moments: Sequence[Any]) -> str:
    return ", ".join(span(each.start, each.end, digits=1) for each in moments) or "none"
