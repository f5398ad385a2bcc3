"""Open video files, read packets and frames with their times, and write video files atomically.

All times are in seconds. Time 0 is the start of playback, whether the file starts with a picture or with sound.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from io import IOBase
from itertools import chain, takewhile
from math import inf
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import av
import av.error
import av.logging
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from midreel.errors import BadSetting, MissingVideo, UnreadableVideo, Unwritable
from midreel.io.files import SPECIAL, is_special, open_regular
from midreel.media.packets import LOOK_AHEAD

if TYPE_CHECKING:
    AnyPacket = Packet[Stream]
    VideoPacket = Packet[VideoStream]
else:
    AnyPacket = VideoPacket = Packet

# Players seek to a moment through the key frame before it.
SECONDS_BETWEEN_KEY_FRAMES = 2

# Some containers round timestamps to milliseconds: a frame at 2/3 s is stored as 0.667 s.
TIME_TOLERANCE = 1e-3
# A larger step back, or a longer still picture, means that the clock was reset or is broken.
MAX_STEP_BACK, MAX_STILL = 1.0, 600.0
MAX_INTRO = 3600.0  # seconds of sound before the first picture; a longer intro means a broken clock
DEFAULT_RATE = 25  # frames per second, if the file does not state a rate
MAX_ERRORS_IN_A_ROW = 1000  # packets; after that, the rest of the file counts as noise

# In these containers, each packet is one picture with a timestamp.
EXACT_FORMATS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
SEEK_MARGINS = (0, 2, 10, 60)  # seconds before a moment at which to look for its key frame, in this order
SEEK_DISTANCE = 5.0  # seconds; to skip less than this, decoding is as fast as seeking
RE_ENCODE = "Re-encode the clip: --re-encode, or exact=True in Python."  # the remedy for clips that cannot be copied
H264 = {"crf": "20", "preset": "veryfast"}

# FFmpeg's demuxers for the formats of cameras, recorders, editors and the web that keep all data in one file.
# Demuxers that open other files are excluded on purpose (concat, hls, dash, imf, sdp, image2, vobsub, mlv):
# a text file named video.mp4 must not make midreel read another file, or wait for one.
DEMUXERS = (
    *("mov", "matroska", "avi", "flv", "live_flv", "kux", "ogg", "asf", "asf_o", "rm", "ivr", "nut", "nsv", "ivf"),
    *("mpegts", "mpeg", "pva", "wtv", "ty", "mxf", "gxf", "lxf", "dv", "dhav", "ifv", "hxvs", "nuv"),
    *("cine", "ser", "r3d", "mjpeg", "mjpeg_2000", "smjpeg", "mpjpeg", "yuv4mpegpipe", "gif", "apng"),
    *("h261", "h263", "h264", "hevc", "vvc", "evc", "m4v", "mpegvideo", "vc1", "vc1test", "dirac", "cavsvideo"),
    *("avs2", "avs3", "av1", "obu", "apv", "dnxhd"),
    "jpeg_pipe",  # FFmpeg's guess for many .mjpeg files
)
MAX_PIXELS = 100_000_000  # per frame; cameras record up to 12,288 x 6,480. A damaged header may claim 16,384 x 16,384.

_FILE = "file:"  # without this prefix, FFmpeg parses some file names as URLs
_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": ",".join(DEMUXERS), "max_pixels": str(MAX_PIXELS)}
_LOGGING = Lock()  # FFmpeg's log level is global to the process
_NOT_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails  # such as the cover of a song
_FAST_START = {"movflags": "+faststart"}


# ---------------------------------------------------------------- time


class Clock:
    """Convert the timestamps of one video stream to seconds since the start of playback.

    `seconds` and `pts` convert single timestamps. `start_of` follows a whole stream in display order. It repairs clocks
    that jump, so that time never goes back.

    Args:
        time_base: The duration of a tick of the stream, in seconds.
        first: The timestamp, in seconds, at which playback starts.
        frame_seconds: The duration, in seconds, of frames and packets that have none of their own.

    Attributes:
        first: The timestamp, in seconds, at which playback starts.
        end: The end of the last frame passed to `start_of`.
    """

    def __init__(self, time_base: Fraction = Fraction(0), first: float = 0.0, frame_seconds: float = 0.0) -> None:
        self._time_base, self.first, self._frame_seconds = time_base, first, frame_seconds
        self._offset = 0.0  # what repairs have added to the timestamps so far
        self._start = 0.0  # of the last frame
        self.end = 0.0

    @classmethod
    def of(cls, container: InputContainer, stream: VideoStream) -> "Clock":
        """Return a clock for a stream of an open container."""
        first = float(container.start_time or 0) / av.time_base
        return cls(stream.time_base or Fraction(0), first, float(1 / (stream.average_rate or DEFAULT_RATE)))

    def seconds(self, pts: int) -> float:
        """Convert a timestamp of the stream to seconds."""
        return pts * self._time_base.numerator / self._time_base.denominator - self.first

    def pts(self, seconds: float | int) -> int:
        """Convert seconds to a timestamp of the stream."""
        return int((seconds + self.first) / self._time_base)

    def start_of(self, piece: VideoFrame | VideoPacket) -> float:
        """Return the start of the next frame or packet, and set `end` to its end if no other follows."""
        start = self.end if piece.pts is None else self.seconds(piece.pts) + self._offset
        longest = MAX_STILL if self.end else MAX_INTRO
        if not -MAX_STEP_BACK <= start - self._start <= longest:
            self._offset += self.end - start
            start = self.end
        self._start = max(self._start, start)
        self.end = self._start + self.length_of(piece)
        return self._start

    def length_of(self, piece: VideoFrame | VideoPacket | AnyPacket) -> float:
        """Return the duration of a frame or packet if no other follows."""
        seconds = float((piece.duration or 0) * self._time_base) or self._frame_seconds
        return min(seconds, MAX_STILL)

    def seconds_of(self, packet: AnyPacket) -> float:
        """Return the time of a packet of any stream of the container."""
        return float(timestamp_of(packet) * packet.time_base) - self.first


def timestamp_of(packet: AnyPacket | VideoPacket) -> int:
    """Return the presentation timestamp of a packet, or its decoding timestamp if it has no other."""
    timestamp = packet.dts if packet.pts is None else packet.pts
    assert timestamp is not None
    return timestamp


def in_display_order(packets: Iterable[VideoPacket], clock: Clock) -> Iterator[VideoPacket]:
    """Sort the packets of displayed frames from decoding order to display order."""
    waiting: list[tuple[int, int, VideoPacket]] = []  # a heap
    stored = -inf
    for number, packet in enumerate(packet for packet in packets if not packet.is_discard):
        time = clock.seconds(packet.dts) if packet.dts is not None else stored
        is_reset = packet.pts is None or time < stored - MAX_STEP_BACK
        stored = time
        # After a reset, timestamps cannot be compared with earlier ones.
        while waiting and (is_reset or len(waiting) > LOOK_AHEAD):
            yield heappop(waiting)[-1]
        if packet.pts is None:
            yield packet
        else:
            heappush(waiting, (packet.pts, number, packet))
    yield from (packet for *_, packet in sorted(waiting))


# ---------------------------------------------------------------- packets and frames


@dataclass
class DamageLog:
    """The damage found while a file is read: decoding errors, and a missing end.

    Attributes:
        streams: The streams whose packets count for `reached`.
        first: The timestamp, in seconds, at which playback starts.
        expected: The end of the streams according to the header.
        tolerance: The number of seconds by which the end may be missed.
        reached: The end of the last packet read so far.
        total: The number of decoding errors.
        in_a_row: The number of decoding errors since the last good frame.
        reason: FFmpeg's text of the last error.
        is_disk_good: Whether the file was read to its end without a disk error. Checked only after an error.
    """

    streams: Sequence[Stream] = ()
    first: float = 0.0
    expected: float = 0.0
    tolerance: float = 0.0
    reached: float = 0.0
    total: int = 0
    in_a_row: int = 0
    reason: str = ""
    is_disk_good: bool = False

    @classmethod
    def of(cls, container: InputContainer, stream: VideoStream) -> "DamageLog":
        """Return a log for an open container.

        Some headers state the duration of the video stream. Others state only the duration of the whole file, which
        may be the duration of its sound.
        """
        first = float(container.start_time or 0) / av.time_base
        # Headers round, and encoders also count frames that they delay.
        tolerance = max(1.0, float(4 / (stream.average_rate or DEFAULT_RATE)))
        if stream.duration is not None and stream.time_base is not None:
            expected = float(((stream.start_time or 0) + stream.duration) * stream.time_base) - first
            return cls([stream], first, expected, tolerance)
        return cls(list(container.streams), first, float(container.duration or 0) / av.time_base - first, tolerance)

    @property
    def cut(self) -> tuple[float, float] | None:
        """The actual and the expected end of the file if it was truncated, otherwise None."""
        return (self.reached, self.expected) if self.reached < self.expected - self.tolerance else None

    def add_error(self, error: av.error.FFmpegError) -> None:
        """Count a decoding error."""
        self.total, self.in_a_row, self.reason = self.total + 1, self.in_a_row + 1, reason_of(error)

    def raise_if_disk_failed(self, path: Path, error: av.error.FFmpegError) -> None:
        """Raise the disk's error if it caused `error`: the rest of the file may be readable another day."""
        if isinstance(error, OSError) and not self.is_disk_good:
            fault = disk_error(path, error)
            if fault is not None:
                raise fault from error
            self.is_disk_good = True

    def add_packet(self, packet: AnyPacket) -> None:
        """Advance `reached` to the end of a packet."""
        timestamp = packet.dts if packet.pts is None else packet.pts
        if timestamp is not None and not packet.is_discard:
            end = (timestamp + (packet.duration or 0)) * packet.time_base.numerator / packet.time_base.denominator
            self.reached = max(self.reached, end - self.first)


def no_frame(path: Path, damage: DamageLog) -> UnreadableVideo:
    """Return the error for a file without a single decodable frame."""
    why = f" ({damage.total:,} damaged packets: {damage.reason})" if damage.total else ""
    return UnreadableVideo(f"{path} has no frame{why}, expected a video. Record or convert it again.")


@contextmanager
def open_video(path: Path, file: IOBase | None = None) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video file and choose its video stream.

    Every frame, thumbnail and clip is read through this function, so it decides what FFmpeg may open.

    Args:
        path: The video file.
        file: Its content, if it is not on a disk. The path is then only for messages.

    Raises:
        UnreadableVideo: The file is not a video, or FFmpeg cannot decode it.
        MissingVideo: The file does not exist, or the disk cannot be read.
    """
    with video_errors(path, file):
        if file is None and is_special(path.stat()):
            raise UnreadableVideo(f"{path} is a {SPECIAL}, expected a video file.")
        with _open(path, file) as container:
            stream = _video_stream(path, container)
            # With several threads, FFmpeg conceals damage differently from run to run, and PyAV loses the frames
            # behind a damaged packet at the end. Callers decode several files in parallel instead.
            stream.codec_context.thread_count = 1
            stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
            yield container, stream


def _open(path: Path, file: IOBase | None) -> InputContainer:
    source: Any = f"{_FILE}{path}" if file is None else file
    try:  # tags are often not UTF-8
        return av.open(source, options=_OPTIONS, metadata_errors="replace")
    except av.error.ArgumentError as error:  # FFmpeg's answer to a format that is not on the whitelist
        raise UnreadableVideo(
            f"{path} is not in a video format that midreel reads. Convert it to .mp4, or remove it."
        ) from error


@contextmanager
def video_errors(path: Path, file: IOBase | None = None) -> Iterator[None]:
    """Turn errors of the disk and of FFmpeg into midreel's, which name the file.

    Args:
        path: The video file.
        file: Its content, if it is not on a disk.
    """
    try:
        yield
    except (OSError, av.error.FFmpegError) as error:
        is_content = file is not None and isinstance(error, av.error.FFmpegError)
        fault = None if is_content else error if file is not None else disk_error(path, error)
        if fault is None:
            raise UnreadableVideo(
                f"{path} cannot be decoded ({reason_of(error)}), expected a video. Convert it to .mp4, or remove it."
            ) from error
        if isinstance(fault, FileNotFoundError):
            raise MissingVideo(f"{path} does not exist, expected a video file. Check the path.") from error
        raise MissingVideo(
            f"{path} cannot be read ({reason_of(fault)}), expected a video file. Check its permissions and the disk."
        ) from error


def disk_error(path: Path, error: OSError | av.error.FFmpegError) -> OSError | None:
    """Return the disk's error that caused `error`, or None if the file's content caused it.

    FFmpeg does not distinguish them: demuxers also return "Input/output error" for damaged files. So this function
    reads the file to its end, without FFmpeg.
    """
    if not isinstance(error, av.error.FFmpegError):
        return error
    if not isinstance(error, OSError):
        return None
    try:
        with open_regular(path) as file:
            while file.read(2**20):
                pass
    except OSError as fault:
        return fault
    return None


def _video_stream(path: Path, container: InputContainer) -> VideoStream:
    """Return the stream that players show: of the decodable ones, the default one or the largest."""
    best = container.streams.best("video")
    found = [stream for stream in container.streams.video if not stream.disposition & _NOT_VIDEO]
    if not found:
        raise UnreadableVideo(f"{path} has sound but no picture, expected a video. Remove it.")
    decodable = list(filter(_is_decodable, found))
    if not decodable:
        codec = _codec_name(container, found[0])
        raise UnreadableVideo(f"{path} has a video codec that FFmpeg cannot decode: {codec}. Convert it to .mp4.")
    return next((stream for stream in decodable if stream is best), decodable[0])


def _codec_name(container: InputContainer, stream: VideoStream) -> str:
    """Return the name or the FourCC of a codec without a decoder. PyAV offers it only as part of FFmpeg's log."""
    with _LOGGING, av.logging.Capture(local=False):  # also keeps messages of other threads off the screen
        level = av.logging.get_level()
        av.logging.set_level(av.logging.INFO)
        try:
            text = cast("Any", container).dumps_format()  # missing in PyAV's annotations
        finally:
            av.logging.set_level(level)
    found = re.search(rf"Stream #0:{stream.index}\b.*?: Video: (\S+?)(?: \((.+?) / 0x\w+\))?(?:,| \()", text)
    if found is None:
        return "unknown"
    name, tag = found.groups()
    return name if name != "none" else tag or "unknown"


def audio_stream(container: InputContainer) -> AudioStream | None:
    """Return the audio stream that players play, or None if there is none or it cannot be decoded."""
    best = container.streams.best("audio")
    return best if isinstance(best, AudioStream) and _is_decodable(best) else None


def _is_decodable(stream: AudioStream | VideoStream) -> bool:
    # PyAV sets no codec context if FFmpeg has no decoder, contrary to its annotations.
    return cast("object", stream.codec_context) is not None


def demux(container: InputContainer, stream: VideoStream, damage: DamageLog) -> Iterator[VideoPacket]:
    """Yield the packets of a video stream in decoding order. Skip damaged ones and log them.

    Args:
        container: The open file.
        stream: The video stream.
        damage: The log for damaged packets. It names the streams to read, `stream` among them.

    Raises:
        OSError: The disk failed. `open_video` turns it into MissingVideo.
    """
    while damage.in_a_row < MAX_ERRORS_IN_A_ROW:
        try:
            for packet in container.demux(*damage.streams):
                damage.add_packet(packet)
                if packet.size and packet.stream.index == stream.index:
                    yield cast("VideoPacket", packet)
        except av.error.FFmpegError as error:
            damage.raise_if_disk_failed(Path(container.name.removeprefix(_FILE)), error)
            damage.add_error(error)
        else:
            return


def decode_packets(
    packets: Iterable[tuple[VideoPacket | None, bool]], stream: VideoStream, damage: DamageLog
) -> Iterator[VideoFrame]:
    """Yield the frames of packets in display order. Skip damaged ones and log them.

    Args:
        packets: Pairs of a packet, and whether all its frames are needed. If not, the decoder may skip frames that no
            other frame refers to. A packet that is None marks a gap: the decoder is flushed and starts again.
        stream: The stream of the packets.
        damage: The log for decoding errors.
    """
    context = stream.codec_context
    readable = takewhile(lambda _: damage.in_a_row < MAX_ERRORS_IN_A_ROW, packets)
    for packet, is_needed in chain(readable, [(None, True)]):
        context.skip_frame = "DEFAULT" if is_needed else "NONREF"
        try:
            frames = context.decode(packet)
        except av.error.FFmpegError as error:
            damage.add_error(error)
            frames = []
        if packet is None:
            context.flush_buffers()
        if frames:
            damage.in_a_row = 0
        yield from frames


def decode_all(container: InputContainer, stream: VideoStream, damage: DamageLog) -> Iterator[VideoFrame]:
    """Yield all frames of a video stream in display order. Skip damaged packets and log them.

    Args:
        container: The open file.
        stream: The video stream.
        damage: The log for damaged packets.
    """
    return decode_packets(((packet, True) for packet in demux(container, stream, damage)), stream, damage)


# ---------------------------------------------------------------- writing


@contextmanager
def create_video(path: Path, form: str) -> Iterator[OutputContainer]:
    """Yield a container to write. The file appears under its name only when the block has succeeded.

    Args:
        path: The file to create or replace.
        form: FFmpeg's name of the container format, such as "mp4" or "matroska".

    Raises:
        Unwritable: The disk is full, or the folder cannot be written.
        BadSetting: The format cannot hold the streams.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    options = _FAST_START if form in ("mp4", "mov") else {}
    try:
        with av.open(f"{_FILE}{partial}", "w", format=form, options=options) as container:
            yield container
        partial.replace(path)
    except OSError as error:
        raise Unwritable(
            f"{path} cannot be written ({reason_of(error)}), expected a folder with free space. Choose another folder."
        ) from error
    except av.error.FFmpegError as error:
        raise unsupported_format(path, form, reason_of(error)) from error
    finally:
        partial.unlink(missing_ok=True)


def unsupported_format(path: Path, form: str, reason: str) -> BadSetting:
    """Return the error for streams that a container format cannot contain.

    Args:
        path: The file to write.
        form: The name of the container format, such as "mp4".
        reason: FFmpeg's explanation.
    """
    return BadSetting(f"{path}: a {form} file cannot contain these streams ({reason}). {RE_ENCODE}")


def reason_of(error: av.error.FFmpegError | OSError) -> str:
    """Return the text of an error, without its number and file name."""
    return error.strerror or type(error).__name__
