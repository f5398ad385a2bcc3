"""Read frames of video files at a given rate, with their exact times, and write video files.

Time 0 is the start of playback, whether the file starts with a picture or with sound. A frame is shown from its own
time until the time of the next frame. The first frame is also shown before its own time.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from io import IOBase
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
    DEFAULT_RATE,
    EXACT_FORMATS,
    H264,
    MAX_PIXELS,
    MAX_STILL,
    SECONDS_BETWEEN_KEY_FRAMES,
    SEEK_DISTANCE,
    SEEK_MARGINS,
    TIME_TOLERANCE,
    Clock,
    DamageLog,
    VideoPacket,
    audio_stream,
    create_video,
    decode_all,
    decode_packets,
    demux,
    in_display_order,
    no_frame,
    open_video,
)
from midreel.media.packets import mark_needed, skip_unneeded, unit_kinds

Image = NDArray[np.uint8]  # height x width x RGB
# With macroblock trees, the x264 in PyAV 18 writes other bytes in a process that has encoded before: in 26 of 60 writes
# of one video. Without them it never does, and takes no longer.
REPEATABLE = {"x264-params": "mbtree=0"}
MAX_PIXEL_ASPECT = 4  # no camera has wider or narrower pixels; a larger value is a mistake in the file

F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class Damage:
    """The damage of a video file. It is false if the file is intact.

    Attributes:
        num_packets: The number of packets that could not be decoded.
        cut: The actual and the expected end in seconds, if the file was truncated.
        details_lost: Whether the file is damaged, but the details are not known any more.
    """

    num_packets: int = 0
    cut: tuple[float, float] | None = None
    details_lost: bool = False

    def __bool__(self) -> bool:
        return self != Damage()

    def __str__(self) -> str:
        count = "1 packet" if self.num_packets == 1 else f"{self.num_packets:,} packets"
        packets = f"{count} could not be decoded" if self.num_packets else ""
        end = f"it ends at {self.cut[0]:.1f} s of {self.cut[1]:.1f} s" if self.cut else ""
        rest = "not all of it could be read" if self.details_lost else ""
        return ", ".join(filter(None, (packets, end, rest)))


def read_frames(path: Path, rate: float | int) -> "Reading":
    """Return an iterator over the frames shown at 0, 1/rate, 2/rate, ... seconds.

    If the video has a lower frame rate, a frame is repeated as the same array. The first frame is always returned.

    Args:
        path: The video file.
        rate: Frames per second.

    Returns:
        An iterator over pairs of a frame's start in seconds and its image.

    Raises:
        BadSetting: `rate` is not above 0.
        UnreadableVideo: The file yields no frame. Raised by the first `next`.
        MissingVideo: The file does not exist, or the disk cannot be read. Raised by any `next`.
    """
    return Reading(path, rate)


class Reading(Iterator[tuple[float, Image]]):
    """An iterator over the frames of a file, as `read_frames` describes.

    It decodes only what the frames require, and keeps two frames in memory, however long the video is. It skips packets
    that cannot be decoded, and stops where a truncated file ends. `damage` reports both.
    """

    def __init__(self, path: Path, rate: float | int) -> None:
        if not rate > 0:
            raise BadSetting(f"rate is {rate}, expected a number above 0. Try 2 frames per second.")
        self.path = path
        self._log = DamageLog()
        self._clock = Clock()
        self._frames = self._read(rate)

    @property
    def duration(self) -> float:
        """The end of the last frame in seconds, ignoring sound. Complete when the iterator is exhausted."""
        return self._clock.end

    @property
    def damage(self) -> Damage:
        """The damage found. Complete when the iterator is exhausted."""
        return Damage(num_packets=self._log.total, cut=self._log.cut)

    def __next__(self) -> tuple[float, Image]:
        return next(self._frames)

    def close(self) -> None:
        """Close the file."""
        self._frames.close()

    def _read(self, rate: float | int) -> Generator[tuple[float, Image], None, None]:
        with open_video(self.path) as (container, stream):
            clock = self._clock = Clock.of(container, stream)
            log = self._log = DamageLog.of(container, stream)
            frames = decode_packets(_needed_packets(container, stream, clock, rate, log), stream, log)
            timed = ((clock.start_of(frame), frame) for frame in frames)
            start, convert = None, _Converter(stream)
            # k / rate is rounded: a frame that would start exactly at the end of the video must not be returned.
            for start, frame in _frames_shown(timed, (k / rate for k in count()), end=lambda: clock.end - 1e-6):
                yield start, convert(frame)
            if start is None:
                raise no_frame(self.path, log)


def frames_at(path: Path, times: Sequence[float | int], file: IOBase | None = None) -> list[tuple[float, Image]]:
    """Return the frame shown at each time, without decoding everything before it.

    Args:
        path: The video file.
        times: Seconds, in any order. After the end of the video, the last frame is returned.
        file: The content of the file, if it is not on a disk.

    Returns:
        Pairs of a frame's start in seconds and its image, in the order of `times`.

    Raises:
        UnreadableVideo: The file yields no frame.
        MissingVideo: The file does not exist, or the disk cannot be read.
    """
    found: dict[float | int, tuple[float, Image]] = {}
    with open_video(path, file) as (container, stream):
        clock = Clock.of(container, stream)
        for group in _groups(sorted(set(times))):
            found |= zip(group, _seek_frames(container, stream, clock, group), strict=False)
    missing = sorted(set(times) - set(found))
    if missing:
        if file is not None:
            file.seek(0)
        with open_video(path, file) as (container, stream):
            clock, log = Clock.of(container, stream), DamageLog.of(container, stream)
            timed = ((clock.start_of(frame), frame) for frame in decode_all(container, stream, log))
            convert = _Converter(stream)
            shown = _frames_shown(timed, iter(missing), end=lambda: inf)
            found |= zip(missing, ((start, convert(frame)) for start, frame in shown), strict=False)
        if set(times) - set(found):
            raise no_frame(path, log)
    return [found[time] for time in times]


def duration(path: Path) -> float:
    """Return the end of the last frame in seconds, ignoring sound.

    This reads all packets, because headers are wrong in truncated files and in files with a variable frame rate.

    Raises:
        UnreadableVideo: The file yields no frame.
        MissingVideo: The file does not exist, or the disk cannot be read.
    """
    with open_video(path) as (container, stream):
        clock, log = Clock.of(container, stream), DamageLog.of(container, stream)
        for packet in in_display_order(demux(container, stream, log), clock):
            clock.start_of(packet)
    if not clock.end:
        raise no_frame(path, log)
    return clock.end


def write_video(path: Path, frames: Iterable[Image], rate: int) -> None:
    """Write an mp4 file that every browser plays: H.264, 4:2:0, with its index at the front.

    The file appears under its name only when it is complete. The same frames give the same bytes on every machine,
    which is why one thread encodes.

    Args:
        path: The file to create or replace.
        frames: Images of one shape, with even height and width.
        rate: Frames per second.

    Raises:
        BadSetting: `rate` is below 1, or there are no frames.
        BadBatch: A frame has the wrong shape.
        Unwritable: The file cannot be written.
    """
    if rate < 1:
        raise BadSetting(f"rate is {rate}, expected at least 1 frame per second. Try 12.")
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise BadSetting(f"{path} would have 0 frames, expected at least 1.")
    if first.ndim != 3 or first.shape[2] != 3 or first.shape[0] % 2 or first.shape[1] % 2 or first.size == 0:
        raise BadBatch(f"frames have shape {first.shape}, expected even height x even width x 3. Crop or resize them.")
    with create_video(path, "mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options=H264 | REPEATABLE)
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        stream.gop_size = rate * SECONDS_BETWEEN_KEY_FRAMES
        for number, image in enumerate(chain([first], frames)):
            if image.shape != first.shape:
                raise BadBatch(f"frame {number} has shape {image.shape}, expected {first.shape} as frame 0. Resize it.")
            container.mux(stream.encode(VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Properties that the header of a video file states.

    Attributes:
        frame_rate: Average number of frames per second.
        pixel_aspect: Displayed width of a pixel divided by its height.
        has_sound: Whether the file has sound that can be decoded.
        size: Width and height of a frame in pixels, as stored.
        timecode: The timecode at the start of playback, such as "10:00:00:00", or "".
    """

    frame_rate: Fraction
    pixel_aspect: Fraction
    has_sound: bool
    size: tuple[int, int]
    timecode: str


def facts(path: Path) -> Facts:
    """Return the properties of a video file without decoding it.

    Raises:
        UnreadableVideo: The file is not a video, or FFmpeg cannot decode it.
        MissingVideo: The file does not exist, or the disk cannot be read.
    """
    with open_video(path) as (container, stream):
        rate = stream.average_rate or stream.guessed_rate or Fraction(DEFAULT_RATE)
        aspect = stream.sample_aspect_ratio or Fraction(1)
        kept = (container.metadata, *(each.metadata for each in container.streams))  # containers differ in the place
        return Facts(
            frame_rate=rate,
            pixel_aspect=aspect,
            has_sound=audio_stream(container) is not None,
            size=(stream.width, stream.height),
            timecode=next((each["timecode"] for each in kept if "timecode" in each), ""),
        )


# ---------------------------------------------------------------- choosing frames


def _frames_shown(
    frames: Iterable[tuple[float, F]], times: Iterator[float | int], end: Callable[[], float]
) -> Iterator[tuple[float, F]]:
    """Yield the frame shown at each time before the end of the video.

    Args:
        frames: Frames with their starts, in display order.
        times: Ascending times.
        end: Returns the end of the video. Called after the last frame.
    """
    time = next(times, inf)
    before: tuple[float, F] | None = None
    for start, frame in frames:
        while before is not None and time + TIME_TOLERANCE < start:
            yield before
            time = next(times, inf)
        if time == inf:
            return
        before = start, frame
    while before is not None and time < end():
        yield before
        time = next(times, inf)


def _needed_packets(
    container: InputContainer, stream: VideoStream, clock: Clock, rate: float | int, log: DamageLog
) -> Iterator[tuple[VideoPacket | None, bool]]:
    """Yield the packets that the frames at a rate require, as `decode_packets` expects them."""
    packets = demux(container, stream, log)
    extradata = stream.codec_context.extradata or b""
    # An avcC record states the size of the lengths that separate the units of a packet. Its first byte is a version.
    has_avcc = stream.codec_context.name == "h264" and len(extradata) > 6 and extradata[0] == 1
    if container.format.name not in EXACT_FORMATS or not has_avcc:
        return ((packet, True) for packet in packets)
    length_size = (extradata[4] & 3) + 1
    is_steady = True

    def is_wanted(start_pts: int, end_pts: int) -> bool:
        nonlocal is_steady
        start, end = clock.seconds(start_pts), clock.seconds(end_pts)
        # After a longer still picture, Clock.start_of repairs the times, and they differ from the ones compared here.
        is_steady = is_steady and end - max(start, 0) < MAX_STILL
        return not is_steady or ceil((start - TIME_TOLERANCE) * rate) / rate < end - TIME_TOLERANCE

    def kinds_of(packet: VideoPacket) -> Set[int]:
        return unit_kinds(memoryview(packet), length_size)

    return skip_unneeded(mark_needed(packets, is_wanted, kinds_of), kinds_of)


def _groups(times: Sequence[float | int]) -> list[list[float | int]]:
    """Group ascending times so that seeking pays off between groups, but not within one."""
    groups: list[list[float | int]] = []
    for time in times:
        if groups and time - groups[-1][-1] < SEEK_DISTANCE:
            groups[-1].append(time)
        else:
            groups.append([time])
    return groups


def _seek_frames(
    container: InputContainer, stream: VideoStream, clock: Clock, times: Sequence[float | int]
) -> list[tuple[float, Image]]:
    """Return the frames shown at `times`, or an empty list if no key frame before them can be found."""
    convert = _Converter(stream)
    for margin in SEEK_MARGINS if container.format.name in EXACT_FORMATS else ():
        if times[0] <= margin:
            break  # decoding from the start takes hardly longer
        try:
            container.seek(clock.pts(times[0] - margin), stream=stream)
            shown = _frames_shown(_frames_after_seek(container, stream, clock), iter(times), end=lambda: inf)
            frames = [(start, convert(frame)) for start, frame in shown]
        except av.error.FFmpegError:
            break
        if frames and frames[0][0] <= times[0] + TIME_TOLERANCE:
            return frames
    return []


def _frames_after_seek(
    container: InputContainer, stream: VideoStream, clock: Clock
) -> Iterator[tuple[float, VideoFrame]]:
    """Yield frames from the next key frame on, with their starts."""
    key: int | None = None
    for packet in container.demux(stream):
        if key is None and packet.is_keyframe:
            key = packet.pts
        if key is None:
            continue
        for frame in stream.codec_context.decode(packet if packet.size else None):
            # Frames shown before the key frame may refer to packets that were skipped.
            if frame.pts is not None and frame.pts >= key:
                yield clock.seconds(frame.pts), frame


class _Converter:
    """Convert decoded frames to RGB images as a viewer sees them.

    It applies the rotation that phones store, and stretches pixels that are not square, as on tape or television.
    Its setup takes as long as converting many images, so use one converter per file.
    """

    def __init__(self, stream: VideoStream) -> None:
        aspect = stream.sample_aspect_ratio or Fraction(1)
        self._pixel_aspect = aspect if 1 / MAX_PIXEL_ASPECT <= aspect <= MAX_PIXEL_ASPECT else Fraction(1)
        self._reformatter = VideoReformatter()
        self._last: VideoFrame | None = None
        self._image: Image = np.empty(0, np.uint8)

    def __call__(self, frame: VideoFrame) -> Image:
        """Return the image of a frame: the same array if it is the same frame as in the last call."""
        if frame is not self._last:
            self._last, self._image = frame, self._convert(frame)
        return self._image

    def _convert(self, frame: VideoFrame) -> Image:
        width = max(1, round(frame.width * self._pixel_aspect))
        if width * frame.height > MAX_PIXELS:
            width = frame.width  # do not stretch: it would take several times the memory
        # With more threads, FFmpeg would start new ones for each frame.
        square = self._reformatter.reformat(frame, width, frame.height, "rgb24", threads=1)
        image = square.to_ndarray().astype(np.uint8, copy=False)
        return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)))
