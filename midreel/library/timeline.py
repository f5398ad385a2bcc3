"""Timelines for editing programs: OpenTimelineIO, and the XML of Final Cut Pro, which DaVinci Resolve reads too.

A timeline plays the moments one after the other. Each clip refers to its whole file, so that an editor can extend it,
and has a marker with the query, the score and the confidence. Time 0 of a file is the start of its playback, or its
timecode if it has one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from midreel.errors import BadPackage
from midreel.library.export import FoundMoment, one_line, usual_rate
from midreel.media import decode

SLOWEST = Fraction(24000, 1001)  # frames per second; times of slower videos are counted in parts of a frame
XML_VERSION = "1.8"  # Final Cut Pro since 10.4.1 and Resolve since 15 read it

# The rates that Final Cut Pro conforms to the rate of a sequence, by their names in its XML.
_CONFORMED = {
    Fraction(24000, 1001): "23.98",
    Fraction(24): "24",
    Fraction(25): "25",
    Fraction(30000, 1001): "29.97",
    Fraction(30): "30",
    Fraction(48): "48",
    Fraction(50): "50",
    Fraction(60000, 1001): "59.94",
    Fraction(60): "60",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A video file, as a timeline refers to it.

    Attributes:
        path: The file.
        rate: The frames per second in which its times are counted.
        origin: The frame at the start of playback: 0, or the timecode of the file.
        num_frames: Its length in frames.
        facts: What its header states.
    """

    path: Path
    rate: Fraction
    origin: int
    num_frames: int
    facts: decode.Facts

    @classmethod
    def of(cls, path: Path) -> "Source":
        """Read a file. Raise UnreadableVideo if it is not a video."""
        facts = decode.facts(path)
        rate = source_rate(facts.frame_rate)
        return cls(
            path=path,
            rate=rate,
            origin=frame_of_timecode(facts.timecode, rate) if facts.timecode else 0,
            num_frames=max(1, round(decode.duration(path) * rate)),
            facts=facts,
        )

    @property
    def name(self) -> str:
        """The name of the file, in characters that every program can show."""
        return _plain(self.path.name)

    @property
    def url(self) -> str:
        """The file as a URL."""
        return self.path.absolute().as_uri()

    def range(self, moment: FoundMoment) -> tuple[int, int]:
        """Return the first frame of a moment, and the number of its frames."""
        first = min(round(moment.start * self.rate), self.num_frames - 1)
        last = min(round(moment.end * self.rate), self.num_frames)
        return self.origin + first, max(1, last - first)


def source_rate(rate: Fraction) -> Fraction:
    """Return the rate at which the times of a video are counted: its standard rate, or a multiple of it.

    Videos of few frames per second, or of a variable rate, are counted in parts of a frame, so that a time is at most
    1/48 s from the moment's.

    >>> source_rate(Fraction("29.97")), source_rate(Fraction(12)), source_rate(Fraction("7.3"))
    (Fraction(30000, 1001), Fraction(24, 1), Fraction(28, 1))
    """
    usual = usual_rate(rate)
    while usual < SLOWEST:
        usual *= 2
    return usual


def frame_of_timecode(code: str, rate: Fraction) -> int:
    """Return the number of the frame with a timecode. A semicolon before the frame means drop-frame.

    >>> frame_of_timecode("00:01:00:00", Fraction(30)), frame_of_timecode("00:01:00;02", Fraction(30000, 1001))
    (1800, 1800)

    Text that is not a timecode gives 0:

    >>> frame_of_timecode("noon", Fraction(30))
    0
    """
    parts = code.replace(";", ":").replace(".", ":").split(":")
    if len(parts) != 4 or not all(part.isdecimal() for part in parts):
        return 0
    hours, minutes, seconds, frames = map(int, parts)
    base = round(rate)
    number = (3600 * hours + 60 * minutes + seconds) * base + frames
    if ";" in code:
        dropped = base // 15
        number -= dropped * (60 * hours + minutes - (60 * hours + minutes) // 10)
    return number


def open_timeline(moments: Sequence[FoundMoment]) -> str:
    """Return an OpenTimelineIO timeline with a video track, and an audio track if a video has sound.

    The times of each clip are counted at the rate of its own video.

    Raises:
        BadPackage: opentimelineio is not installed.
        UnreadableVideo: A video cannot be read.
    """
    try:
        import opentimelineio as otio
    except ModuleNotFoundError as error:
        raise BadPackage(
            "opentimelineio is not installed, expected for .otio. Install it: pip install 'midreel[otio]'"
        ) from error
    read = cache(Source.of)
    placed = [(moment, read(moment.path)) for moment in moments]
    timeline = otio.schema.Timeline(_title(moments))
    kinds = [otio.schema.TrackKind.Video]
    if any(source.facts.has_sound for _, source in placed):
        kinds.append(otio.schema.TrackKind.Audio)
    for kind in kinds:
        track = otio.schema.Track(f"{kind[0]}1", kind=kind)
        is_video = kind == otio.schema.TrackKind.Video
        track.extend(_clip(otio, moment, source, is_video) for moment, source in placed)
        timeline.tracks.append(track)
    return str(otio.adapters.write_to_string(timeline, "otio_json"))


def _clip(otio: Any, moment: FoundMoment, source: Source, is_video: bool) -> Any:
    """Return a clip of a track, or a gap where an audio track has no sound. Markers are in the video track only."""

    def between(first: int, number: int) -> Any:
        rate = float(source.rate)
        return otio.opentime.TimeRange(
            otio.opentime.RationalTime(first, rate), otio.opentime.RationalTime(number, rate)
        )

    frames = between(*source.range(moment))
    if not is_video and not source.facts.has_sound:
        return otio.schema.Gap(source_range=between(0, source.range(moment)[1]))
    whole = between(source.origin, source.num_frames)
    media = otio.schema.ExternalReference(target_url=source.url, available_range=whole)
    media.name = source.name
    clip = otio.schema.Clip(source.name, media_reference=media, source_range=frames)
    if is_video:
        clip.markers.append(
            otio.schema.Marker(
                _plain(moment.query),
                marked_range=frames,
                color=otio.schema.MarkerColor.GREEN,
                comment=_measured(moment),
                metadata={"midreel": _numbers(moment)},
            )
        )
    return clip


def final_cut_xml(moments: Sequence[FoundMoment], frame_rate: Fraction | None = None) -> str:
    """Return an FCPXML document with one project that plays the moments.

    All times are exact fractions of a second. Places on the timeline are whole frames of one rate, those in a file
    whole frames of its own.

    Args:
        moments: The moments.
        frame_rate: Frames per second of the timeline. Default: the rate of the first moment's video.

    Raises:
        UnreadableVideo: A video cannot be read.
    """
    # The adapter of OpenTimelineIO for this format fails on 29.97 frames per second, so this writes it directly.
    read = cache(Source.of)
    placed = [(moment, read(moment.path)) for moment in moments]
    rate = frame_rate or placed[0][1].rate
    document = ElementTree.Element("fcpxml", version=XML_VERSION)
    resources = ElementTree.SubElement(document, "resources")
    first = placed[0][1]
    ElementTree.SubElement(resources, "format", {"id": "sequence", **_format(first, rate)})
    assets = {source.path: f"video{number}" for number, source in enumerate(dict.fromkeys(s for _, s in placed), 1)}
    for source in dict.fromkeys(source for _, source in placed):
        _add_asset(resources, source, assets[source.path])
    event = ElementTree.SubElement(ElementTree.SubElement(document, "library"), "event", name="midreel")
    project = ElementTree.SubElement(event, "project", name=_title(moments))
    sequence = ElementTree.SubElement(project, "sequence", format="sequence", tcStart="0s", tcFormat=_count(rate))
    spine, place = ElementTree.SubElement(sequence, "spine"), 0
    for moment, source in placed:
        begin, number = source.range(moment)
        length = max(1, round(Fraction(number) / source.rate * rate))
        clip = ElementTree.SubElement(
            spine,
            "asset-clip",
            name=source.name,
            ref=assets[source.path],
            offset=_seconds(place, rate),
            start=_seconds(begin, source.rate),
            duration=_seconds(length, rate),
            tcFormat=_count(source.rate),
        )
        if source.rate != rate and source.rate in _CONFORMED:
            ElementTree.SubElement(clip, "conform-rate", scaleEnabled="0", srcFrameRate=_CONFORMED[source.rate])
        ElementTree.SubElement(
            clip,
            "marker",
            start=_seconds(begin, source.rate),
            duration=_seconds(1, source.rate),
            value=_plain(moment.query),
            note=_measured(moment),
        )
        place += length
    sequence.set("duration", _seconds(place, rate))
    ElementTree.indent(document)
    body = ElementTree.tostring(document, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE fcpxml>\n{body}\n'


def _add_asset(resources: ElementTree.Element, source: Source, name: str) -> None:
    ElementTree.SubElement(resources, "format", {"id": f"{name}-format", **_format(source, source.rate)})
    sound = {"hasAudio": "1", "audioSources": "1"} if source.facts.has_sound else {}
    ElementTree.SubElement(
        resources,
        "asset",
        {
            "id": name,
            "name": source.name,
            "src": source.url,
            "start": _seconds(source.origin, source.rate),
            "duration": _seconds(source.num_frames, source.rate),
            "hasVideo": "1",
            "format": f"{name}-format",
            **sound,
        },
    )


def _format(source: Source, rate: Fraction) -> dict[str, str]:
    width, height = source.facts.size
    return {"frameDuration": _seconds(1, rate), "width": str(width), "height": str(height)}


def _seconds(frames: int, rate: Fraction) -> str:
    """Return a time in FCPXML: a fraction of seconds.

    >>> _seconds(0, Fraction(25)), _seconds(50, Fraction(25)), _seconds(1, Fraction(30000, 1001))
    ('0s', '2s', '1001/30000s')
    """
    return f"{frames / rate}s"


def _count(rate: Fraction) -> str:
    return "DF" if rate.denominator == 1001 and round(rate) in (30, 60) else "NDF"


def _title(moments: Sequence[FoundMoment]) -> str:
    return _plain(moments[0].query) or "midreel"


def _measured(moment: FoundMoment) -> str:
    confidence = "" if moment.confidence is None else f", confidence {moment.confidence:.0%}"
    return f"score {moment.score:.3f}{confidence}"


def _numbers(moment: FoundMoment) -> dict[str, Any]:
    numbers: dict[str, Any] = {"query": _plain(moment.query), "score": float(moment.score)}
    numbers |= {"start": float(moment.start), "end": float(moment.end)}
    return numbers if moment.confidence is None else numbers | {"confidence": moment.confidence}


def _plain(text: str) -> str:
    """Return text without line breaks, control characters, and bytes that are not UTF-8."""
    return one_line(os.fsencode(text).decode("utf-8", "replace"))
