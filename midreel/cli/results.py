"""Hits as a table in the terminal, and the queries that the command line takes."""

from collections.abc import Sequence
from pathlib import Path

from midreel.errors import BadAnnotation
from midreel.library.filters import read_seconds, span
from midreel.library.hits import Hit, RelevanceCurve
from midreel.library.scan import shown

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


def table(query: str, hits: Sequence[Hit], *, width: int = 24) -> str:
    """Return hits as lines of text: rank, score, best moment, a small curve of the whole video, file.

    Args:
        query: The sentence, for the first line.
        hits: The hits, best first.
        width: The width of a curve in characters.
    """
    if not hits:
        return f"“{query}”\n  nothing found"
    values = [value for hit in hits for value in hit.curve.values]
    low, high = min(values, default=0.0), max(values, default=1.0)
    moments = [", ".join(span(moment.start, moment.end) for moment in hit.moments[:1]) for hit in hits]
    widest = max(map(len, moments))
    rows = (
        f"{rank:>3}  {hit.score:.3f}  {moment:<{widest}}  {sparkline(hit.curve, hit.duration, low, high, width)}  "
        f"{shown(hit.path)}"
        for rank, (hit, moment) in enumerate(zip(hits, moments, strict=True), 1)
    )
    return "\n".join([f"“{query}”", *rows])


def sparkline(curve: RelevanceCurve, duration: float, low: float, high: float, width: int) -> str:
    """Return a curve as blocks: the highest value in each of several equal parts of the video.

    Args:
        curve: The relevance over time.
        duration: The duration of the video in seconds.
        low: The value of the lowest block.
        high: The value of the highest block.
        width: The number of blocks.

    >>> sparkline(RelevanceCurve(times=(0.5, 1.5, 2.5), values=(0.1, 0.9, 0.5)), 3.0, 0.1, 0.9, 3)
    '▁█▅'
    """
    best = [low] * width
    for time, value in zip(curve.times, curve.values, strict=True):
        part = min(int(time / duration * width), width - 1)
        best[part] = max(best[part], value)
    scale = (len(_BLOCKS) - 1) / (high - low or 1.0)
    return "".join(_BLOCKS[round((value - low) * scale)] for value in best)
