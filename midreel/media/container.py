"""Film files: opened and read packet by packet, with when each frame is shown; and written, whole or not at all.

Time 0 is when the file starts playing, be it with a picture or with sound. Only this package imports av.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
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

# Players jump to a moment by way of the key frame before it.
SECONDS_BETWEEN_KEY_FRAMES = 2

# Some containers round a frame's time to milliseconds: the one meant for 2/3 s then says 0.667.
GRACE = 1e-3
# A clock that goes back further than this, or lets one picture stand for longer, was set anew or is broken.
LONGEST_STEP_BACK, LONGEST_STILL = 1.0, 600.0
LONGEST_INTRO = 3600.0  # seconds of sound before the first picture; a later one is due to a broken clock
DEFAULT_RATE = 25  # where a file does not say how long a frame is shown
MOST_DAMAGED = 1000  # packets in a row, after which the rest of a file is taken to be noise

# In these containers, each packet is a picture and says when it is shown.
EXACT = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
BEFORE = (0, 2, 10, 60)  # seconds before a moment at which to look for a key frame that leads to it
CLOSE = 5.0  # seconds from one moment to another, within which decoding on is no slower than jumping
H264 = {"crf": "20", "preset": "veryfast"}

# FFmpeg's demuxers for what cameras, recorders, editors and the web write, and what holds all of its data in one file.
# Those that open the files that their input names, or files beside it, are left out on purpose (concat, hls, dash, imf,
# sdp, image2, vobsub, mlv): a text file named film.mp4 must not make midreel read another file, or wait for one.
DEMUXERS = (
    *("mov", "matroska", "avi", "flv", "live_flv", "kux", "ogg", "asf", "asf_o", "rm", "ivr", "nut", "nsv", "ivf"),
    *("mpegts", "mpeg", "pva", "wtv", "ty", "mxf", "gxf", "lxf", "dv", "dhav", "ifv", "hxvs", "nuv"),
    *("cine", "ser", "r3d", "mjpeg", "mjpeg_2000", "smjpeg", "mpjpeg", "yuv4mpegpipe", "gif", "apng"),
    *("h261", "h263", "h264", "hevc", "vvc", "evc", "m4v", "mpegvideo", "vc1", "vc1test", "dirac", "cavsvideo"),
    *("avs2", "avs3", "av1", "obu", "apv", "dnxhd"),
    "jpeg_pipe",  # which FFmpeg takes many a .mjpeg file for
)
MOST_PIXELS = 100_000_000  # of a frame: cameras film up to 12,288 x 6,480. A damaged header may claim 16,384 x 16,384.

_FILE = "file:"  # a name may look like an address
_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": ",".join(DEMUXERS), "max_pixels": str(MOST_PIXELS)}
_LOGGING = Lock()  # held while FFmpeg's log, which belongs to the whole process, is switched on
_NO_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails  # the cover of a song
_FAST_START = {"movflags": "+faststart"}


# ---------------------------------------------------------------- when frames are shown


class Clock:
    """Tells when frames are shown, in seconds since the file starts playing. It never goes back."""

    def __init__(self, time_base: Fraction = Fraction(0), first: float = 0.0, frame_seconds: float = 0.0) -> None:
        self._time_base, self.first, self._frame_seconds = time_base, first, frame_seconds
        self._offset = 0.0
        self._start = 0.0
        self.end = 0.0

    @classmethod
    def of(cls, container: InputContainer, stream: VideoStream) -> "Clock":
        first = float(container.start_time or 0) / av.time_base
        return cls(stream.time_base or Fraction(0), first, float(1 / (stream.average_rate or DEFAULT_RATE)))

    def seconds(self, pts: int) -> float:
        return pts * self._time_base.numerator / self._time_base.denominator - self.first

    def pts(self, seconds: float | int) -> int:
        return int((seconds + self.first) / self._time_base)

    def start_of(self, piece: VideoFrame | VideoPacket) -> float:
        """When the next frame or packet is shown; `end` is then when it is gone, if nothing follows."""
        start = self.end if piece.pts is None else self.seconds(piece.pts) + self._offset
        longest = LONGEST_STILL if self.end else LONGEST_INTRO
        if not -LONGEST_STEP_BACK <= start - self._start <= longest:
            self._offset += self.end - start
            start = self.end
        self._start = max(self._start, start)
        self.end = self._start + self.length_of(piece)
        return self._start

    def length_of(self, piece: VideoFrame | VideoPacket | AnyPacket) -> float:
        """How long it is shown, if nothing follows."""
        seconds = float((piece.duration or 0) * self._time_base) or self._frame_seconds
        return min(seconds, LONGEST_STILL)

    def seconds_of(self, packet: AnyPacket) -> float:
        """When a packet of any stream is shown or heard."""
        return float(instant_of(packet) * packet.time_base) - self.first


def instant_of(packet: AnyPacket | VideoPacket) -> int:
    instant = packet.dts if packet.pts is None else packet.pts
    assert instant is not None
    return instant


def as_shown(packets: Iterable[VideoPacket], clock: Clock) -> Iterator[VideoPacket]:
    """Packets of frames that are shown, in the order in which they are; they are stored in that of decoding."""
    waiting: list[tuple[int, int, VideoPacket]] = []  # a heap
    stored = -inf
    for number, packet in enumerate(packet for packet in packets if not packet.is_discard):
        instant = clock.seconds(packet.dts) if packet.dts is not None else stored
        is_anew = packet.pts is None or instant < stored - LONGEST_STEP_BACK
        stored = instant
        while waiting and (is_anew or len(waiting) > LOOK_AHEAD):
            yield heappop(waiting)[-1]
        if packet.pts is None:
            yield packet
        else:
            heappush(waiting, (packet.pts, number, packet))
    yield from (packet for *_, packet in sorted(waiting))


# ---------------------------------------------------------------- packets and frames


@dataclass
class Losses:
    """What could not be decoded; and how far the file goes, and how far it says that it does, in seconds."""

    streams: Sequence[Stream] = ()  # those of which it says so
    first: float = 0.0
    promised: float = 0.0
    patience: float = 0.0
    reached: float = 0.0
    total: int = 0
    in_a_row: int = 0
    reason: str = ""
    is_disk_good: bool = False  # known only after an error that the disk might have caused

    @classmethod
    def of(cls, container: InputContainer, stream: VideoStream) -> "Losses":
        """Some files tell how long their picture is, others how long all of them is, which may be their sound."""
        first = float(container.start_time or 0) / av.time_base
        patience = max(
            1.0, float(4 / (stream.average_rate or DEFAULT_RATE))
        )  # headers round, and encoders count what waits
        if stream.duration is not None and stream.time_base is not None:
            promised = float(((stream.start_time or 0) + stream.duration) * stream.time_base) - first
            return cls([stream], first, promised, patience)
        return cls(list(container.streams), first, float(container.duration or 0) / av.time_base - first, patience)

    @property
    def cut(self) -> tuple[float, float] | None:
        """Where the file ends, and where it should, if it was cut short."""
        return (self.reached, self.promised) if self.reached < self.promised - self.patience else None

    def note(self, error: av.error.FFmpegError) -> None:
        self.total, self.in_a_row, self.reason = self.total + 1, self.in_a_row + 1, reason_of(error)

    def expect_good_disk(self, path: Path, error: av.error.FFmpegError) -> None:
        """Raise if the disk caused the error: then the rest of the file may be readable another day."""
        if isinstance(error, OSError) and not self.is_disk_good:
            fault = disk_fault(path, error)
            if fault is not None:
                raise fault from error
            self.is_disk_good = True

    def see(self, packet: AnyPacket) -> None:
        instant = packet.dts if packet.pts is None else packet.pts
        if instant is not None and not packet.is_discard:
            end = (instant + (packet.duration or 0)) * packet.time_base.numerator / packet.time_base.denominator
            self.reached = max(self.reached, end - self.first)


def no_frame(path: Path, losses: Losses) -> UnreadableVideo:
    why = f" (damaged packets: {losses.total:,}, {losses.reason})" if losses.total else ""
    return UnreadableVideo(f"{path} holds no frame{why}, expected a video; record or convert it again")


@contextmanager
def opened(path: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video file and choose its video stream. Errors, also later ones, name the file.

    Every frame, thumbnail and clip comes through here, so what FFmpeg may open is decided here.
    """
    with naming(path):
        if is_special(path.stat()):
            raise UnreadableVideo(f"{path} is a {SPECIAL}, expected a video file.")
        with _open(path) as container:
            stream = _stream(path, container)
            # With several threads, FFmpeg conceals damage in another way from run to run, and PyAV loses the frames
            # that wait behind a damaged packet at the end. Several files are decoded at a time instead.
            stream.codec_context.thread_count = 1
            stream.codec_context.options = {"max_pixels": str(MOST_PIXELS)}
            yield container, stream


def _open(path: Path) -> InputContainer:
    try:  # tags are often not UTF-8
        return av.open(f"{_FILE}{path}", options=_OPTIONS, metadata_errors="replace")
    except av.error.ArgumentError as error:  # FFmpeg's answer to a format that is not on the whitelist
        raise UnreadableVideo(
            f"{path} is not in a video format that midreel reads. Convert it to .mp4, or leave it out."
        ) from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn errors of the disk and of FFmpeg into midreel's, which name the file."""
    try:
        yield
    except (OSError, av.error.FFmpegError) as error:
        fault = disk_fault(path, error)
        if fault is None:
            raise UnreadableVideo(
                f"{path} cannot be decoded ({reason_of(error)}), expected a video that ffmpeg reads; "
                f"convert it or leave it out"
            ) from error
        if isinstance(fault, FileNotFoundError):
            raise MissingVideo(f"{path} does not exist, expected a video file; check the path") from error
        raise MissingVideo(
            f"{path} cannot be read ({reason_of(fault)}), expected a video file; check its permissions and the disk"
        ) from error


def disk_fault(path: Path, error: OSError | av.error.FFmpegError) -> OSError | None:
    """The disk's error that caused an error; None if the file itself did.

    FFmpeg does not tell them apart: demuxers return "Input/output error" and the like for damaged files too. So the
    file is read to its end, without FFmpeg.
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


def _stream(path: Path, container: InputContainer) -> VideoStream:
    """The stream that players show: the default one, or the largest, of those that can be decoded."""
    best = container.streams.best("video")
    found = [stream for stream in container.streams.video if not stream.disposition & _NO_VIDEO]
    if not found:
        raise UnreadableVideo(f"{path} has sound but no picture, expected a video; leave it out")
    decodable = list(filter(_is_decodable, found))
    if not decodable:
        raise UnreadableVideo(
            f"{path} has a video codec that FFmpeg cannot decode: {_codec_of(container, found[0])}. Convert it."
        )
    return next((stream for stream in decodable if stream is best), decodable[0])


def _codec_of(container: InputContainer, stream: VideoStream) -> str:
    """The name or the FourCC of a codec without a decoder. PyAV gives it only as part of FFmpeg's log."""
    with _LOGGING, av.logging.Capture(local=False):  # which keeps what other threads log meanwhile off the screen
        level = av.logging.get_level()
        av.logging.set_level(av.logging.INFO)
        try:
            text = cast("Any", container).dumps_format()  # which PyAV's annotations leave out
        finally:
            av.logging.set_level(level)
    found = re.search(rf"Stream #0:{stream.index}\b.*?: Video: (\S+?)(?: \((.+?) / 0x\w+\))?(?:,| \()", text)
    if found is None:
        return "unknown"
    name, tag = found.groups()
    return name if name != "none" else tag or "unknown"


def sound_of(container: InputContainer) -> AudioStream | None:
    """The stream that players play, if it can be decoded."""
    best = container.streams.best("audio")
    return best if isinstance(best, AudioStream) and _is_decodable(best) else None


def _is_decodable(stream: AudioStream | VideoStream) -> bool:
    """Whether FFmpeg has a decoder. Where it has none, PyAV has no codec context, whatever its annotations say."""
    return cast("object", stream.codec_context) is not None


def demuxed(container: InputContainer, stream: VideoStream, losses: Losses) -> Iterator[VideoPacket]:
    while losses.in_a_row < MOST_DAMAGED:
        try:
            for packet in container.demux(*losses.streams):
                losses.see(packet)
                if packet.size and packet.stream.index == stream.index:
                    yield cast("VideoPacket", packet)
        except av.error.FFmpegError as error:
            losses.expect_good_disk(Path(container.name.removeprefix(_FILE)), error)
            losses.note(error)
        else:
            return


def decoded(
    packets: Iterable[tuple[VideoPacket | None, bool]], stream: VideoStream, losses: Losses
) -> Iterator[VideoFrame]:
    """The frames of the packets, in the order in which they are shown."""
    context = stream.codec_context
    sound = takewhile(lambda _: losses.in_a_row < MOST_DAMAGED, packets)
    for packet, whole in chain(sound, [(None, True)]):
        context.skip_frame = "DEFAULT" if whole else "NONREF"
        try:
            frames = context.decode(packet)
        except av.error.FFmpegError as error:
            losses.note(error)
            frames = []
        if packet is None:
            context.flush_buffers()
        if frames:
            losses.in_a_row = 0
        yield from frames


# ---------------------------------------------------------------- writing


@contextmanager
def writing(path: Path, form: str) -> Iterator[OutputContainer]:
    """A video file that appears under its name only when it is whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    options = _FAST_START if form in ("mp4", "mov") else {}
    try:
        with av.open(f"{_FILE}{partial}", "w", format=form, options=options) as container:
            yield container
        partial.replace(path)
    except OSError as error:
        raise Unwritable(
            f"{path} cannot be written ({reason_of(error)}), expected a folder with free space; choose another place"
        ) from error
    except av.error.FFmpegError as error:
        raise not_held(path, form, reason_of(error)) from error
    finally:
        partial.unlink(missing_ok=True)


def not_held(path: Path, form: str, reason: str) -> BadSetting:
    return BadSetting(
        f"{path} cannot be a {form} file ({reason}), expected a film whose picture and sound such a file holds; "
        f"encode it anew: exact"
    )


def reason_of(error: av.error.FFmpegError | OSError) -> str:
    return error.strerror or type(error).__name__
