"""Video files: frames at a rate, with their true times, and back.

Time 0 is when the file starts playing, be it with a picture or with sound. A frame is shown from its own time until the
next one's; before the first, the first.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, count
from math import ceil, inf
from pathlib import Path
from typing import TypeVar

import av.error
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from midreel.errors import BadBatch, BadSetting
from midreel.media.container import (
    BEFORE,
    CLOSE,
    DEFAULT_RATE,
    EXACT,
    GRACE,
    H264,
    LONGEST_STILL,
    MOST_PIXELS,
    SECONDS_BETWEEN_KEY_FRAMES,
    Clock,
    Losses,
    VideoPacket,
    as_shown,
    decoded,
    demuxed,
    no_frame,
    opened,
    sound_of,
    writing,
)
from midreel.media.packets import judged, thrifty, unit_kinds

Image = NDArray[np.uint8]  # height x width x RGB
# The x264 in PyAV 18 gives other bytes in a process that has encoded before, unless macroblock trees are off: measured
# in 26 of 60 writes of one film, and in none without them. It takes no longer.
REPEATABLE = {"x264-params": "mbtree=0"}
WIDEST_PIXEL = 4  # for its height; no camera has wider ones, so whoever wrote a larger number mistook it

F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What of a file could not be read: so many packets, and what is missing at its end. False, if it is whole."""

    num_packets: int = 0
    cut: tuple[float, float] | None = None  # the second at which it ends, and the one at which it should
    untold: bool = False  # something, and what it was is not known any more

    def __bool__(self) -> bool:
        return self != Damage()

    def __str__(self) -> str:
        count = "1 packet" if self.num_packets == 1 else f"{self.num_packets:,} packets"
        packets = f"{count} could not be decoded" if self.num_packets else ""
        end = f"it ends at {self.cut[0]:.1f} s of {self.cut[1]:.1f} s" if self.cut else ""
        rest = "not all of it could be read" if self.untold else ""
        return ", ".join(filter(None, (packets, end, rest)))


def read_frames(path: Path, rate: float | int) -> "Reading":
    """The frames shown at 0, 1/rate, 2/rate, … seconds, each with the second at which it begins.

    Where the file has fewer frames than asked for, one comes more than once, as the same array; the first always comes.
    """
    return Reading(path, rate)


class Reading(Iterator[tuple[float, Image]]):
    """Frames of a file as they are decoded. Two are held at a time, so that a film needs no more memory than a clip.

    What need not be decoded is not. What cannot be decoded is passed over, a file that was cut short ends where it was
    cut, and `damage` tells of both.
    """

    def __init__(self, path: Path, rate: float | int) -> None:
        if not rate > 0:
            raise BadSetting(f"rate is {rate}, expected more than 0 frames per second; try 2")
        self.path = path
        self._losses = Losses()
        self._clock = Clock()
        self._frames = self._read(rate)

    @property
    def duration(self) -> float:
        """How many seconds the video lasts: until its last frame is gone, not its sound. Known once it was read."""
        return self._clock.end

    @property
    def damage(self) -> Damage:
        """What could not be decoded, or is not there. Known once it was read."""
        return Damage(num_packets=self._losses.total, cut=self._losses.cut)

    def __next__(self) -> tuple[float, Image]:
        return next(self._frames)

    def close(self) -> None:
        """Lets go of the file."""
        self._frames.close()

    def _read(self, rate: float | int) -> Generator[tuple[float, Image], None, None]:
        with opened(self.path) as (container, stream):
            clock = self._clock = Clock.of(container, stream)
            losses = self._losses = Losses.of(container, stream)
            frames = decoded(_needed(container, stream, clock, rate, losses), stream, losses)
            timed = ((clock.start_of(frame), frame) for frame in frames)
            start, convert = None, _Converter(stream)
            # A frame that would begin as the video ends is not part of it, whatever the last digit of k / rate says.
            for start, frame in _shown(timed, (k / rate for k in count()), until=lambda: clock.end - 1e-6):
                yield start, convert(frame)
            if start is None:
                raise no_frame(self.path, losses)


def frames_at(path: Path, times: Sequence[float | int]) -> list[tuple[float, Image]]:
    """The frame shown at each of `times`, with the second at which it begins, without decoding all that is before."""
    found: dict[float | int, tuple[float, Image]] = {}
    with opened(path) as (container, stream):
        clock = Clock.of(container, stream)
        for run in _runs(sorted(set(times))):
            found |= zip(run, _jump(container, stream, clock, run), strict=False)
    missing = sorted(set(times) - set(found))
    if missing:
        with opened(path) as (container, stream):
            clock, losses = Clock.of(container, stream), Losses.of(container, stream)
            frames = decoded(((packet, True) for packet in demuxed(container, stream, losses)), stream, losses)
            timed = ((clock.start_of(frame), frame) for frame in frames)
            convert = _Converter(stream)
            shown = _shown(timed, iter(missing), until=lambda: inf)
            found |= zip(missing, ((start, convert(frame)) for start, frame in shown), strict=False)
        if set(times) - set(found):
            raise no_frame(path, losses)
    return [found[time] for time in times]


def duration(path: Path) -> float:
    """How many seconds the video lasts: until its last frame is gone, not its sound. Read from its packets, for what
    is written at the front of a file that was cut short, or whose frames come as they please, is not always so.
    """
    with opened(path) as (container, stream):
        clock, losses = Clock.of(container, stream), Losses.of(container, stream)
        for packet in as_shown(demuxed(container, stream, losses), clock):
            clock.start_of(packet)
    if not clock.end:
        raise no_frame(path, losses)
    return clock.end


def write_video(path: Path, frames: Iterable[Image], rate: int) -> None:
    """Writes an mp4 that every browser plays: H.264, 4:2:0, its index at the front.

    The file appears under its name only when it is whole. The same frames give the same bytes on any number of cores,
    which is why one thread encodes, and whatever was encoded before.
    """
    if rate < 1:
        raise BadSetting(f"rate is {rate}, expected at least 1 frame per second; try 12")
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise BadSetting(f"no frame for {path}, expected at least one; render some")
    if first.ndim != 3 or first.shape[2] != 3 or first.shape[0] % 2 or first.shape[1] % 2 or first.size == 0:
        raise BadBatch(f"frames have shape {first.shape}, expected even height x even width x 3; crop or resize them")
    with writing(path, "mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options=H264 | REPEATABLE)
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        stream.gop_size = rate * SECONDS_BETWEEN_KEY_FRAMES
        for number, image in enumerate(chain([first], frames)):
            if image.shape != first.shape:
                raise BadBatch(f"frame {number} has shape {image.shape}, but frame 0 has {first.shape}; resize it")
            container.mux(stream.encode(VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a file says of itself."""

    frame_rate: Fraction  # per second, on average
    pixel_aspect: Fraction  # how wide a pixel is shown, for its height
    has_sound: bool


def facts(path: Path) -> Facts:
    with opened(path) as (container, stream):
        rate = stream.average_rate or stream.guessed_rate or Fraction(DEFAULT_RATE)
        aspect = stream.sample_aspect_ratio or Fraction(1)
        return Facts(frame_rate=rate, pixel_aspect=aspect, has_sound=sound_of(container) is not None)


# ---------------------------------------------------------------- which frames


def _shown(
    frames: Iterable[tuple[float, F]], instants: Iterator[float | int], until: Callable[[], float]
) -> Iterator[tuple[float, F]]:
    """The frame shown at each instant before `until()`, which is asked when there are no more frames."""
    instant = next(instants, inf)
    before: tuple[float, F] | None = None
    for start, frame in frames:
        while before is not None and instant + GRACE < start:
            yield before
            instant = next(instants, inf)
        if instant == inf:
            return
        before = start, frame
    while before is not None and instant < until():
        yield before
        instant = next(instants, inf)


def _needed(
    container: InputContainer, stream: VideoStream, clock: Clock, rate: float | int, losses: Losses
) -> Iterator[tuple[VideoPacket | None, bool]]:
    """The packets to be decoded for frames at a rate, as `packets.thrifty` gives them."""
    packets = demuxed(container, stream, losses)
    extradata = stream.codec_context.extradata or b""
    # An avcC record, which says how the units in a packet are told apart; its first byte is a version.
    described = stream.codec_context.name == "h264" and len(extradata) > 6 and extradata[0] == 1
    if container.format.name not in EXACT or not described:
        return ((packet, True) for packet in packets)
    length_size = (extradata[4] & 3) + 1
    steady = True

    def is_wanted(begin: int, end: int) -> bool:
        nonlocal steady
        start, stop = clock.seconds(begin), clock.seconds(end)
        steady = steady and stop - max(start, 0) < LONGEST_STILL  # after that, the clock says something else
        return not steady or ceil((start - GRACE) * rate) / rate < stop - GRACE

    def kinds_of(packet: VideoPacket) -> Set[int]:
        return unit_kinds(memoryview(packet), length_size)

    return thrifty(judged(packets, is_wanted, kinds_of), kinds_of)


def _runs(times: Sequence[float | int]) -> list[list[float | int]]:
    """Times that are close to each other, together."""
    runs: list[list[float | int]] = []
    for time in times:
        if runs and time - runs[-1][-1] < CLOSE:
            runs[-1].append(time)
        else:
            runs.append([time])
    return runs


def _jump(
    container: InputContainer, stream: VideoStream, clock: Clock, times: Sequence[float | int]
) -> list[tuple[float, Image]]:
    """The frames shown at `times`, if a key frame leads there; otherwise none."""
    convert = _Converter(stream)
    for before in BEFORE if container.format.name in EXACT else ():
        if times[0] <= before:
            break  # what is not much longer: from the start
        try:
            container.seek(clock.pts(times[0] - before), stream=stream)
            shown = _shown(_after_jump(container, stream, clock), iter(times), until=lambda: inf)
            frames = [(start, convert(frame)) for start, frame in shown]
        except av.error.FFmpegError:
            break
        if frames and frames[0][0] <= times[0] + GRACE:
            return frames
    return []


def _after_jump(container: InputContainer, stream: VideoStream, clock: Clock) -> Iterator[tuple[float, VideoFrame]]:
    """Frames from the next key frame on."""
    key: int | None = None
    for packet in container.demux(stream):
        if key is None and packet.is_keyframe:
            key = packet.pts
        if key is None:
            continue
        for frame in stream.codec_context.decode(packet if packet.size else None):
            # What is shown before the key frame may refer to what was jumped over.
            if frame.pts is not None and frame.pts >= key:
                yield clock.seconds(frame.pts), frame


class _Converter:
    """Makes images of a film's frames. What it needs for that is prepared once, which takes as long as many images.

    Images are as a viewer sees them: a phone held upright films sideways and notes the angle, and what comes from tape
    or television has pixels that are wider, or narrower, than they are high.
    """

    def __init__(self, stream: VideoStream) -> None:
        aspect = stream.sample_aspect_ratio or Fraction(1)
        self._pixel_aspect = aspect if 1 / WIDEST_PIXEL <= aspect <= WIDEST_PIXEL else Fraction(1)
        self._reformatter = VideoReformatter()
        self._last: VideoFrame | None = None
        self._image: Image = np.empty(0, np.uint8)

    def __call__(self, frame: VideoFrame) -> Image:
        """The same array, if it is the same frame as before."""
        if frame is not self._last:
            self._last, self._image = frame, self._converted(frame)
        return self._image

    def _converted(self, frame: VideoFrame) -> Image:
        width = max(1, round(frame.width * self._pixel_aspect))
        if width * frame.height > MOST_PIXELS:
            width = frame.width  # rather than several times the memory
        # One thread: for more, threads would be started for each frame.
        square = self._reformatter.reformat(frame, width, frame.height, "rgb24", threads=1)
        image = square.to_ndarray().astype(np.uint8, copy=False)
        return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)))
