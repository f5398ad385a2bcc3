"""Subtitles: what is said in a video and when, from .srt and .vtt files beside it, or from text tracks inside it."""

import codecs
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from midreel.errors import MidreelError

SUFFIXES = (".srt", ".vtt")
LARGEST_FILE = 16 << 20  # bytes; the subtitles of a film of three hours have 0.2 MB
MOST_LINES, LONGEST_LINE = 100_000, 2_000  # characters
_TEXT_CODECS = ("srt", "subrip", "ass", "ssa", "mov_text", "webvtt", "text")
_TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,](\d{1,3})"
_CUE = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_MARKUP = re.compile(r"<[^<>]{0,200}>|\{\\[^{}]{0,200}\}")


@dataclass(frozen=True, order=True)
class Line:
    """A line of subtitles: its start and end in seconds, and its text without markup."""

    start: float
    end: float
    text: str


def parse(text: str) -> list[Line]:
    """Return the lines of an .srt or .vtt file, in order of time. What is not a cue is skipped.

    >>> parse("1\\n00:01:02,500 --> 00:01:04,000\\n<i>Good</i>\\nmorning!\\n")
    [Line(start=62.5, end=64.0, text='Good morning!')]
    """
    found: list[Line] = []
    rows = iter(text.splitlines())
    for row in rows:
        match = _CUE.match(row)
        while match:  # a cue may follow another without an empty row between them
            start, end = _seconds(match.groups()[:4]), _seconds(match.groups()[4:])
            match, words = None, list[str]()
            for following in rows:
                if not following.strip() or (match := _CUE.match(following)):
                    break
                words.append(following)
            if match and words and words[-1].strip().isdigit():
                words.pop()  # the number of the next cue
            found += _line(start, end, " ".join(words))
            if len(found) >= MOST_LINES:
                return sorted(found)
    return sorted(found)


def _seconds(parts: Iterable[str | None]) -> float:
    hours, minutes, seconds, fraction = (part or "0" for part in parts)
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000


def _line(start: float, end: float, text: str) -> Iterator[Line]:
    """Yield the line, unless it has no words or no duration."""
    plain = " ".join(html.unescape(_MARKUP.sub("", text)).replace("\x00", "").split())[:LONGEST_LINE]
    if plain and 0 <= start < end:
        yield Line(start, end, plain)


def read(path: Path) -> list[Line]:
    """Return the lines of a subtitle file; none if it is too large. Raise OSError if it cannot be read."""
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE + 1)
    return parse(_decoded(data)) if len(data) <= LARGEST_FILE else []


def _decoded(data: bytes) -> str:
    """Return a text in UTF-8, in UTF-16 if it says so, or else in the code page of old Windows."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def beside(video: Path) -> list[Path]:
    """Return the subtitle files of a video: NAME.srt, NAME.en.vtt and so on, in its folder, sorted."""
    try:
        entries = sorted(video.parent.iterdir())
    except OSError:
        return []
    stem = f"{video.stem}."
    return [path for path in entries if path.name.startswith(stem) and _fits(path.name[len(stem) :]) and path.is_file()]


def _fits(ending: str) -> bool:
    """Return whether the rest of a name is a suffix, with at most one word such as a language before it.

    >>> _fits("srt"), _fits("en.vtt"), _fits("part2.mp4"), _fits("a.b.srt")
    (True, True, False, False)
    """
    parts = ending.lower().split(".")
    return f".{parts[-1]}" in SUFFIXES and len(parts) <= 2


def embedded(video: Path) -> list[Line]:
    """Return the lines of the text tracks in a video file; none if it has none or cannot be read."""
    import av.error  # a search imports this module, and does not need FFmpeg

    from midreel.media.container import open_video

    found: list[Line] = []
    try:
        with open_video(video) as (container, _):
            tracks = [track for track in container.streams.subtitles if track.codec_context.name in _TEXT_CODECS]
            first = float(container.start_time or 0) / av.time_base
            for packet in container.demux(*tracks) if tracks else ():
                if packet.pts is None or packet.time_base is None:
                    continue
                start = float(packet.pts * packet.time_base) - first
                end = start + float((packet.duration or 0) * packet.time_base)
                for subtitle in packet.decode():
                    words = getattr(subtitle, "dialogue", b"").decode("utf-8", "replace")
                    found += _line(max(start, 0.0), end, words)
                if len(found) >= MOST_LINES:
                    break
    except (MidreelError, av.error.FFmpegError, OSError, ValueError):
        return sorted(set(found))  # the picture is what counts: a damaged track is not an error
    return sorted(set(found))
