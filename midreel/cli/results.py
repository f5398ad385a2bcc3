"""Hits as a table in the terminal, and the queries that the command line takes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from midreel.errors import BadAnnotation
from midreel.library.filters import read_seconds, span
from midreel.library.query import And, Query
from midreel.library.scan import shown
from midreel.library.serving import ServedCurve, ServedHit

if TYPE_CHECKING:
    from midreel.library.hits import Hit, RelevanceCurve

_BLOCKS = "▁▂▃▄▅▆▇█"


def read_example(text: str) -> tuple[Path, float | None]:
    """Split VIDEO@TIME into a video and a second. An existing file of that name is an image, and has no time.

    >>> read_example("film.mp4@1:30")
    (PosixPath('film.mp4'), 90.0)
    """
    name, sign, time = text.rpartition("@")
    if not sign or Path(text).expanduser().is_file():
        return Path(text), None
    return Path(name), read_seconds(time)


def read_queries(path: Path) -> list[str]:
    """Return the lines of a file that are not empty. Raise BadAnnotation if there are none."""
    try:
        found = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadAnnotation(f"{path} cannot be read ({error}), expected a query on each line, in UTF-8.") from error
    if not found:
        raise BadAnnotation(f"{path} is empty, expected a query on each line. Write some.")
    return found


def num_moments(query: Query) -> int:
    """Return the number of moments to show of a hit: one for each part of AND."""
    return len(query.parts) if isinstance(query, And) else 1


def table(
    query: str, hits: "Sequence[Hit | ServedHit]", *, threshold: float | int = 0.5, width: int = 24, moments: int = 1
) -> str:
    """Return hits as lines of text: rank, score, confidence, best moments, a small curve of the whole video, file.

    Args:
        query: The sentence, for the first line.
        hits: The hits, best first.
        threshold: The lowest confidence of a confident hit. If there is none, a line before the hits says so.
        width: The width of a curve in characters.
        moments: The number of moments to show of each hit.
    """
    if not hits:
        return f"“{query}”\n  nothing found"
    values = [value for hit in hits for value in hit.curve.values]
    low, high = min(values, default=0.0), max(values, default=1.0)
    times = [", ".join(span(moment.start, moment.end) for moment in hit.moments[:moments]) for hit in hits]
    widest = max(map(len, times))
    rows = (
        f"{rank:>3}  {hit.score:.3f}  {_percent(hit)}{when:<{widest}}  "
        f"{sparkline(hit.curve, hit.duration, low, high, width)}  {shown(hit.path)}{_said(hit)}"
        for rank, (hit, when) in enumerate(zip(hits, times, strict=True), 1)
    )
    known = [hit.confidence for hit in hits if hit.confidence is not None]
    doubt = ["  no confident match. Best guesses:"] if known and max(known) < threshold else []
    return "\n".join([f"“{query}”", *doubt, *rows])


def _said(hit: "Hit | ServedHit") -> str:
    """Return the lines of subtitles that were found, each with its time."""
    return "".join(f"\n       {span(line.start, line.end)}  “{line.text}”" for line in hit.said)


def _percent(hit: "Hit | ServedHit") -> str:
    return "" if hit.confidence is None else f"{math.floor(100 * hit.confidence):>3}%  "


def sparkline(curve: "RelevanceCurve | ServedCurve", duration: float, low: float, high: float, width: int) -> str:
    """Return a curve as blocks: the highest value in each of several equal parts of the video.

    Args:
        curve: The relevance over time.
        duration: The duration of the video in seconds.
        low: The value of the lowest block.
        high: The value of the highest block.
        width: The number of blocks.

    >>> sparkline(ServedCurve(times=(0.5, 1.5, 2.5), values=(0.1, 0.9, 0.5)), 3.0, 0.1, 0.9, 3)
    '▁█▅'
    """
    best = [low] * width
    for time, value in zip(curve.times, curve.values, strict=True):
        part = min(int(time / duration * width), width - 1)
        best[part] = max(best[part], value)
    scale = (len(_BLOCKS) - 1) / (high - low or 1.0)
    return "".join(_BLOCKS[round((value - low) * scale)] for value in best)
