"""Video files: frames at a rate, with their true times, and back; parts of films. The only file that imports av.

Time 0 is when the file starts playing, be it with a picture or with sound. A frame is shown from its own time until the
next one's; before the first, the first.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush, merge
from itertools import chain, count, dropwhile, takewhile
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import av
import av.error
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import Disposition, Stream
from av.video.frame import PictureType, VideoFrame
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from midreel.errors import BadSetting, BadShape, MissingVideo, UnreadableVideo, Unwritable
from midreel.packets import LOOK_AHEAD, judged, thrifty, unit_kinds

if TYPE_CHECKING:
    AnyPacket = Packet[Stream]
    VideoPacket = Packet[VideoStream]
else:
    AnyPacket = VideoPacket = Packet

Image = NDArray[np.uint8]  # height x width x RGB
Seconds = float | int

# Players jump to a moment by way of the key frame before it.
SECONDS_BETWEEN_KEY_FRAMES = 2

# Some containers round a frame's time to milliseconds: the one meant for 2/3 s then says 0.667.
GRACE = 1e-3
# A clock that goes back further than this, or lets one picture stand for longer, was set anew or is broken.
LONGEST_STEP_BACK, LONGEST_STILL = 1.0, 600.0
DEFAULT_RATE = 25  # where a file does not say how long a frame is shown
WIDEST_PIXEL = 4  # for its height; no camera has wider ones, so whoever wrote a larger number mistook it
MOST_DAMAGED = 1000  # packets in a row, after which the rest of a file is taken to be noise

# In these containers, each packet is a picture and says when it is shown.
_EXACT = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
_NO_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails  # the cover of a song
_BEFORE = (0, 2, 10, 60)  # seconds before a moment at which to look for a key frame that leads to it
CLOSE = 5.0  # seconds from one moment to another, within which decoding on is no slower than jumping

_H264 = {"crf": "20", "preset": "veryfast"}
_FAST_START = {"movflags": "+faststart"}
_TICK = Fraction(1, 90_000)  # of what is encoded: every usual frame rate is a whole number of these
_SOUND_RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000)
# Containers that a part of a film can keep; Matroska holds what the others cannot.
_COPIED = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}
_COPIED_ELSE = ".mkv"

F = TypeVar("F")


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What of a file could not be read: so many packets, and what is missing at its end. False, if it is whole."""

    num_packets: int = 0
    cut: tuple[float, float] | None = None  # the second at which it ends, and the one at which it should

    def __bool__(self) -> bool:
        return self != Damage()

    def __str__(self) -> str:
        count = "1 packet" if self.num_packets == 1 else f"{self.num_packets:,} packets"
        packets = f"{count} could not be decoded" if self.num_packets else ""
        end = f"it ends at {self.cut[0]:.1f} s of {self.cut[1]:.1f} s" if self.cut else ""
        return ", ".join(filter(None, (packets, end)))


def read_frames(path: Path, rate: float | int, *, threads: int = 0) -> "Reading":
    """The frames shown at 0, 1/rate, 2/rate, … seconds, each with the second at which it begins.

    Where the file has fewer frames than asked for, one comes more than once, as the same array; the first always comes.
    `threads` is how many may decode; 0 leaves it to the decoder.
    """
    return Reading(path, rate, threads)


class Reading(Iterator[tuple[float, Image]]):
    """Frames of a file as they are decoded. Two are held at a time, so that a film needs no more memory than a clip.

    What need not be decoded is not. What cannot be decoded is passed over, a file that was cut short ends where it was
    cut, and `damage` tells of both.
    """

    def __init__(self, path: Path, rate: float | int, threads: int) -> None:
        if not rate > 0:
            raise BadSetting(f"rate is {rate}, expected more than 0 frames per second; try 2")
        self.path = path
        self._losses = _Losses()
        self._clock = _Clock()
        self._frames = self._read(rate, threads)

    @property
    def duration(self) -> float:
        """How many seconds the video lasts: until its last frame is gone, not its sound. Known once it was read."""
        return self._clock.end

    @property
    def damage(self) -> Damage:
        """What could not be decoded, or is not there. Known once it was read."""
        return self._losses.damage

    def __next__(self) -> tuple[float, Image]:
        return next(self._frames)

    def close(self) -> None:
        """Lets go of the file."""
        self._frames.close()

    def _read(self, rate: float | int, threads: int) -> Generator[tuple[float, Image], None, None]:
        with _opened(self.path, threads) as (container, stream):
            clock = self._clock = _Clock.of(container, stream)
            losses = self._losses = _Losses.of(container, stream)
            frames = _decoded(_needed(container, stream, clock, rate, losses), stream, losses)
            timed = ((clock.start_of(frame), frame) for frame in frames)
            start, convert = None, _Converter(stream)
            # A frame that would begin as the video ends is not part of it, whatever the last digit of k / rate says.
            for start, frame in _shown(timed, (k / rate for k in count()), until=lambda: clock.end - 1e-6):
                yield start, convert(frame)
            if start is None:
                raise _no_frame(self.path, losses)


def frames_at(path: Path, times: Sequence[float | int]) -> list[tuple[float, Image]]:
    """The frame shown at each of `times`, with the second at which it begins, without decoding all that is before."""
    found: dict[float | int, tuple[float, Image]] = {}
    with _opened(path) as (container, stream):
        clock = _Clock.of(container, stream)
        for run in _runs(sorted(set(times))):
            found |= zip(run, _jump(container, stream, clock, run), strict=False)
    missing = sorted(set(times) - set(found))
    if missing:
        with _opened(path) as (container, stream):
            clock, losses = _Clock.of(container, stream), _Losses.of(container, stream)
            frames = _decoded(((packet, True) for packet in _demuxed(container, stream, losses)), stream, losses)
            timed = ((clock.start_of(frame), frame) for frame in frames)
            convert = _Converter(stream)
            shown = _shown(timed, iter(missing), until=lambda: inf)
            found |= zip(missing, ((start, convert(frame)) for start, frame in shown), strict=False)
        if set(times) - set(found):
            raise _no_frame(path, losses)
    return [found[time] for time in times]


def duration(path: Path) -> float:
    """How many seconds the video lasts: until its last frame is gone, not its sound. Read from its packets, for what
    is written at the front of a file that was cut short, or whose frames come as they please, is not always so.
    """
    with _opened(path) as (container, stream):
        clock, losses = _Clock.of(container, stream), _Losses.of(container, stream)
        for packet in _as_shown(_demuxed(container, stream, losses), clock):
            clock.start_of(packet)
    if not clock.end:
        raise _no_frame(path, losses)
    return clock.end


def write_video(path: Path, frames: Iterable[Image], rate: int) -> None:
    """Writes an mp4 that every browser plays: H.264, 4:2:0, its index at the front.

    The file appears under its name only when it is whole. The same frames give the same bytes on any number of cores,
    which is why one thread encodes.
    """
    if rate < 1:
        raise BadSetting(f"rate is {rate}, expected at least 1 frame per second; try 12")
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise BadSetting(f"no frame for {path}, expected at least one; render some")
    if first.ndim != 3 or first.shape[2] != 3 or first.shape[0] % 2 or first.shape[1] % 2 or first.size == 0:
        raise BadShape(f"frames have shape {first.shape}, expected even height x even width x 3; crop or resize them")
    with _writing(path, "mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options=_H264)
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        stream.gop_size = rate * SECONDS_BETWEEN_KEY_FRAMES
        for number, image in enumerate(chain([first], frames)):
            if image.shape != first.shape:
                raise BadShape(f"frame {number} has shape {image.shape}, but frame 0 has {first.shape}; resize it")
            container.mux(stream.encode(VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a file says of itself."""

    frame_rate: Fraction  # per second, on average
    pixel_aspect: Fraction  # how wide a pixel is shown, for its height
    has_sound: bool


def facts(path: Path) -> Facts:
    with _opened(path) as (container, stream):
        rate = stream.average_rate or stream.guessed_rate or Fraction(DEFAULT_RATE)
        aspect = stream.sample_aspect_ratio or Fraction(1)
        return Facts(frame_rate=rate, pixel_aspect=aspect, has_sound=_sound(container) is not None)


# ---------------------------------------------------------------- parts of films


def clip_suffix(source: Path, *, exact: bool) -> str:
    """How the name of a part of `source` must end."""
    if exact:
        return ".mp4"
    return source.suffix.lower() if source.suffix.lower() in _COPIED else _COPIED_ELSE


def write_clip(source: Path, target: Path, start: Seconds, end: Seconds, *, exact: bool = False) -> float:
    """Writes what a film shows from `start` to `end` seconds, with the sound that players play; returns the second of
    the film with which it begins.

    Unless `exact`, nothing is encoded anew: the clip begins with the last key frame at or before `start`, and ends with
    the frames that were stored before `end`. If `exact`, it has the frames shown from `start` until `end` and those
    alone, as H.264 and AAC. The file appears under its name only when it is whole.
    """
    if not 0 <= start < end < inf:
        raise BadSetting(f"a clip from {start} to {end} s, expected 0 <= start < end; fix the times")
    expected = clip_suffix(source, exact=exact)
    if target.suffix.lower() != expected:
        raise BadSetting(f"the clip's name is {target.name!r}, expected one that ends in {expected}; rename it")
    if exact:
        _encode(source, target, start, end)
        return float(start)
    return _copy(source, target, start, end)


def _copy(source: Path, target: Path, start: Seconds, end: Seconds) -> float:
    for before in (*_BEFORE, None):
        with _opened(source) as (container, stream):
            clock = _Clock.of(container, stream)
            if before is not None and not _sought(container, stream, clock, start, before):
                continue
            sound = _sound(container)
            packets = _stretch(source, container, stream, sound, clock, start, end)
            first = next(packets, None)
            if first is None:
                continue  # no key frame from there to the moment
            origin = Fraction(_instant(first)) * first.time_base
            with _writing(target, _COPIED[target.suffix.lower()]) as copy:
                try:  # opaque: a codec need not be one that could be encoded here
                    streams = {
                        each.index: copy.add_stream_from_template(each, opaque=True) for each in (stream, sound) if each
                    }
                except ValueError as error:
                    raise _not_held(target, copy.format.name, str(error)) from error
                for packet in chain([first], packets):
                    ticks = round(origin / packet.time_base)
                    packet.pts = None if packet.pts is None else packet.pts - ticks
                    packet.dts = None if packet.dts is None else packet.dts - ticks
                    packet.stream = streams[packet.stream.index]
                    copy.mux(packet)
            return float(origin) - clock.first
    raise _nothing_there(source, start, end)


def _stretch(
    path: Path,
    container: InputContainer,
    stream: VideoStream,
    sound: AudioStream | None,
    clock: "_Clock",
    start: Seconds,
    end: Seconds,
) -> Iterator[AnyPacket]:
    """The packets from the last key frame at or before `start` until those of `end`: none if there is no such frame."""
    key = inf
    held: list[AnyPacket] = []  # until it is certain that no other key frame comes before `start`
    is_certain, film_end = False, 0.0
    running = {each.index for each in (stream, sound) if each}
    with _naming(path):
        for packet in container.demux(*(each for each in (stream, sound) if each)):
            if packet.pts is None and packet.dts is None:
                if packet.size:
                    raise BadSetting(
                        f"{path} does not say when its frames are shown, expected so of a film to be copied; "
                        f"encode the clip anew: exact"
                    )
                continue  # the end of a stream
            shown = clock.seconds_of(packet)
            stored = float(packet.dts * packet.time_base) - clock.first if packet.dts is not None else shown
            may_lead = packet.stream.index == stream.index and packet.is_keyframe and shown <= start + GRACE
            if packet.is_discard and not may_lead:  # trimmed away
                if packet.stream.index == stream.index and shown > key and not held[0].is_discard:
                    end = min(end, stored)  # what is stored later may refer to it
                continue
            if packet.stream.index == stream.index:
                film_end = max(film_end, shown + clock.length_of(packet))
                if may_lead and not is_certain:
                    key = shown
                    heard = (each for each in held if each.stream.index != stream.index)
                    held = [packet, *(each for each in heard if clock.seconds_of(each) >= key)]
                    continue
                if key == inf and packet.is_keyframe:
                    return
                if stored > start + GRACE and not is_certain:
                    is_certain = True
                    _expect_shown(path, held)
                    yield from held
            # What is shown before the key frame refers to what is left out.
            if shown < key and (key < inf or packet.stream.index == stream.index):
                continue
            if stored >= end - GRACE:
                running.discard(packet.stream.index)
                if not running or (stored > end + CLOSE and stream.index not in running):
                    return
            elif is_certain:
                yield packet
            else:
                held.append(packet)
    if not is_certain and film_end > start:
        _expect_shown(path, held)
        yield from held


def _expect_shown(path: Path, packets: Sequence[AnyPacket]) -> None:
    """What was trimmed away would be shown by a copy that begins with it."""
    if packets and packets[0].is_discard:
        raise BadSetting(
            f"{path} was trimmed, and the key frame that leads to the moment was trimmed away, expected one that is "
            f"shown; encode the clip anew: exact"
        )


def _encode(source: Path, target: Path, start: Seconds, end: Seconds) -> None:
    pictures, sounds = _pictures(source, start, end), _sounds(source, start, end)
    first, first_sound = next(pictures, None), next(sounds, None)
    if first is None:
        raise _nothing_there(source, start, end)
    frame, known = first[2], facts(source)
    with _writing(target, "mp4") as clip:
        stream = clip.add_stream("libx264", rate=known.frame_rate, options=_H264)
        stream.pix_fmt = "yuv420p"
        stream.width, stream.height = frame.width // 2 * 2, frame.height // 2 * 2  # 4:2:0 has no odd ones
        stream.codec_context.sample_aspect_ratio = known.pixel_aspect
        stream.codec_context.time_base = _TICK
        stream.codec_context.gop_size = ceil(known.frame_rate * SECONDS_BETWEEN_KEY_FRAMES)
        stream.codec_context.max_b_frames = 0  # so that each frame's time and length are stored as they are
        stream.set_display_rotation(frame.rotation)
        voice = None
        if first_sound is not None:
            voice = clip.add_stream("aac", rate=first_sound[2].sample_rate, layout=first_sound[2].layout.name)
        matrix = _keep_colours(frame, stream)
        reformat = VideoReformatter().reformat
        lengths: dict[int, int] = {}
        for begin, stop, each in merge(
            chain([first], pictures), chain([first_sound] if first_sound else [], sounds), key=lambda piece: piece[0]
        ):
            if isinstance(each, VideoFrame):
                each = reformat(
                    *(each, stream.width, stream.height, "yuv420p"),
                    dst_colorspace=matrix,
                    src_color_range=each.color_range,
                    dst_color_range=ColorRange.MPEG,
                )
                each.pict_type = PictureType.NONE  # the source's choice, which the encoder would follow
                each.time_base, each.pts = _TICK, round(begin / _TICK)
                lengths[each.pts] = round(stop / _TICK) - each.pts
                clip.mux(_lasting(stream.encode(each), lengths))
            elif voice is not None and isinstance(each, AudioFrame):
                clip.mux(voice.encode(each))
        clip.mux(_lasting(stream.encode(None), lengths))
        if voice is not None:
            clip.mux(voice.encode(None))


def _keep_colours(frame: VideoFrame, stream: VideoStream) -> int:
    """Lets the stream say what its numbers mean as colours, as the frame does; returns the matrix that makes them."""
    context = stream.codec_context
    context.color_range = ColorRange.MPEG
    if frame.format.is_rgb:
        context.colorspace = Colorspace.ITU709
        return Colorspace.ITU709
    context.colorspace, context.color_primaries = frame.colorspace, frame.color_primaries
    context.color_trc = frame.color_trc
    return frame.colorspace


def _lasting(packets: Sequence[VideoPacket], lengths: dict[int, int]) -> Sequence[VideoPacket]:
    """Packets that last as long as their frames are shown, which encoders do not tell of the last one."""
    for packet in packets:
        packet.duration = lengths.pop(_instant(packet))
    return packets


def _pictures(path: Path, start: Seconds, end: Seconds) -> Iterator[tuple[float, float, VideoFrame]]:
    """The frames shown from `start` until `end`, each with the seconds after `start` at which it comes and goes."""
    before: tuple[float, float, VideoFrame] | None = None
    for time, until, frame in _frames_from(path, start):
        if before is not None and time < before[0] + GRACE:  # a clock that stands still, or goes back
            before = before[0], max(before[1], until), frame
            continue
        if before is not None and time > start + GRACE:
            yield max(before[0] - start, 0.0), min(time, end) - start, before[2]
        if time >= end - GRACE:
            return
        before = time, until, frame
    if before is not None and before[1] > start:
        yield max(before[0] - start, 0.0), min(before[1], end) - start, before[2]


def _frames_from(path: Path, start: Seconds) -> Iterator[tuple[float, float, VideoFrame]]:
    """The frame shown at `start`, perhaps some before it, and all after it: each with its time, and when it is gone if
    nothing follows.
    """
    for before in (*_BEFORE, None):
        with _opened(path) as (container, stream):
            clock, losses = _Clock.of(container, stream), _Losses.of(container, stream)
            if before is not None and not _sought(container, stream, clock, start, before):
                continue
            packets = _demuxed(container, stream, losses)
            if before is None:
                frames = _decoded(((packet, True) for packet in packets), stream, losses)
                yield from ((clock.start_of(frame), clock.end, frame) for frame in frames)
                return
            packets = dropwhile(lambda packet: not packet.is_keyframe, packets)
            key = next(packets, None)
            if key is None or key.pts is None or clock.seconds(key.pts) > start + GRACE:
                continue
            first = key.pts
            frames = _decoded(((packet, True) for packet in chain([key], packets)), stream, losses)
            for frame in frames:
                # What is shown before the key frame may refer to what was jumped over.
                if frame.pts is not None and frame.pts >= first:
                    time = clock.seconds(frame.pts)
                    yield time, time + clock.length_of(frame), frame
            return


def _sounds(path: Path, start: Seconds, end: Seconds) -> Iterator[tuple[float, float, AudioFrame]]:
    """The sound from `start` to `end`, in pieces, each with the seconds after `start` at which it begins and ends."""
    with _opened(path) as (container, stream):
        clock, sound = _Clock.of(container, stream), _sound(container)
        if sound is None:
            return
        rate = sound.rate if sound.rate in _SOUND_RATES else 48_000
        layout = "stereo" if sound.codec_context.channels > 1 else "mono"
        resampler = AudioResampler(format="fltp", layout=layout, rate=rate)
        _sought(container, stream, clock, start, 1)  # a decoder of sound needs some time to get going
        for packet in container.demux(sound):
            try:
                decoded = sound.decode(packet if packet.size else None)
            except av.error.FFmpegError:
                continue  # a hole in the sound is no reason to refuse the picture
            for piece in chain.from_iterable(resampler.resample(each) for each in decoded):
                if piece.time is None:
                    continue
                begin = piece.time - clock.first - start
                if begin >= end - start:
                    return
                skipped, kept = max(0, round(-begin * rate)), min(piece.samples, round((end - start - begin) * rate))
                if skipped < kept:
                    part = AudioFrame.from_ndarray(piece.to_ndarray()[:, skipped:kept], format="fltp", layout=layout)
                    part.sample_rate, part.time_base = rate, Fraction(1, rate)
                    part.pts = max(0, round(begin * rate) + skipped)
                    yield part.pts / rate, (part.pts + part.samples) / rate, part


def _sought(container: InputContainer, stream: VideoStream, clock: "_Clock", start: Seconds, before: Seconds) -> bool:
    """Jumps to a key frame so many seconds before `start`, where that can be done and is worth it."""
    if start <= max(before, GRACE) or container.format.name not in _EXACT:
        return False
    try:
        container.seek(clock.pts(start - before), stream=stream)
    except av.error.FFmpegError:
        return False
    return True


def _instant(packet: AnyPacket | VideoPacket) -> int:
    instant = packet.dts if packet.pts is None else packet.pts
    assert instant is not None
    return instant


def _nothing_there(path: Path, start: Seconds, end: Seconds) -> BadSetting:
    return BadSetting(
        f"{path} shows nothing from {start:g} to {end:g} s, expected a part of it; it ends at {duration(path):g} s"
    )


def _not_held(path: Path, form: str, reason: str) -> BadSetting:
    return BadSetting(
        f"{path} cannot be a {form} file ({reason}), expected a film whose picture and sound such a file holds; "
        f"encode it anew: exact"
    )


@contextmanager
def _writing(path: Path, form: str) -> Iterator[OutputContainer]:
    """A video file that appears under its name only when it is whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    options = _FAST_START if form in ("mp4", "mov") else {}
    try:
        with av.open(f"file:{partial}", "w", format=form, options=options) as container:
            yield container
        partial.replace(path)
    except OSError as error:
        raise Unwritable(
            f"{path} cannot be written ({_reason(error)}), expected a folder with free space; choose another place"
        ) from error
    except av.error.FFmpegError as error:
        raise _not_held(path, form, _reason(error)) from error
    finally:
        partial.unlink(missing_ok=True)


# ---------------------------------------------------------------- when frames are shown


class _Clock:
    """Tells when frames are shown, in seconds since the file starts playing. It never goes back."""

    def __init__(self, time_base: Fraction = Fraction(0), first: float = 0.0, frame_seconds: float = 0.0) -> None:
        self._time_base, self.first, self._frame_seconds = time_base, first, frame_seconds
        self._offset = 0.0
        self._start = 0.0
        self.end = 0.0

    @classmethod
    def of(cls, container: InputContainer, stream: VideoStream) -> "_Clock":
        first = float(container.start_time or 0) / av.time_base
        return cls(stream.time_base or Fraction(0), first, float(1 / (stream.average_rate or DEFAULT_RATE)))

    def seconds(self, pts: int) -> float:
        return pts * self._time_base.numerator / self._time_base.denominator - self.first

    def pts(self, seconds: float | int) -> int:
        return int((seconds + self.first) / self._time_base)

    def start_of(self, piece: VideoFrame | VideoPacket) -> float:
        """When the next frame or packet is shown; `end` is then when it is gone, if nothing follows."""
        start = self.end if piece.pts is None else self.seconds(piece.pts) + self._offset
        longest = LONGEST_STILL if self.end else inf  # there may be nothing but sound until the first one comes
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
        return float(_instant(packet) * packet.time_base) - self.first


def _as_shown(packets: Iterable[VideoPacket], clock: _Clock) -> Iterator[VideoPacket]:
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


# ---------------------------------------------------------------- packets and frames


@dataclass
class _Losses:
    """What could not be decoded; and how far the file goes, and how far it says that it does, in seconds."""

    streams: Sequence[Stream] = ()  # those of which it says so
    first: float = 0.0
    promised: float = 0.0
    patience: float = 0.0
    reached: float = 0.0
    total: int = 0
    in_a_row: int = 0
    reason: str = ""

    @classmethod
    def of(cls, container: InputContainer, stream: VideoStream) -> "_Losses":
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
    def damage(self) -> Damage:
        is_cut = self.reached < self.promised - self.patience
        return Damage(num_packets=self.total, cut=(self.reached, self.promised) if is_cut else None)

    def note(self, error: av.error.FFmpegError) -> None:
        self.total, self.in_a_row, self.reason = self.total + 1, self.in_a_row + 1, _reason(error)

    def see(self, packet: AnyPacket) -> None:
        instant = packet.dts if packet.pts is None else packet.pts
        if instant is not None and not packet.is_discard:
            end = (instant + (packet.duration or 0)) * packet.time_base.numerator / packet.time_base.denominator
            self.reached = max(self.reached, end - self.first)


def _no_frame(path: Path, losses: _Losses) -> UnreadableVideo:
    why = f" (damaged packets: {losses.total:,}, {losses.reason})" if losses.total else ""
    return UnreadableVideo(f"{path} holds no frame{why}, expected a video; record or convert it again")


@contextmanager
def _opened(path: Path, threads: int = 0) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The file and its picture; whatever is said against them, then or later, is said with the file's name."""
    # Some files are lists of others, to be fetched from wherever they say; and a name may look like an address.
    with _naming(path), av.open(f"file:{path}", options={"protocol_whitelist": "file"}) as container:
        stream = _stream(path, container)
        stream.codec_context.thread_type = "AUTO"
        stream.codec_context.thread_count = threads
        yield container, stream


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What cannot be read is named."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingVideo(f"{path} does not exist, expected a video file; check the path") from error
    except OSError as error:
        raise MissingVideo(
            f"{path} cannot be read ({_reason(error)}), expected a video file; check its permissions and the disk"
        ) from error
    except av.error.FFmpegError as error:
        raise UnreadableVideo(
            f"{path} cannot be decoded ({_reason(error)}), expected a video that ffmpeg reads; "
            f"convert it or leave it out"
        ) from error


def _stream(path: Path, container: InputContainer) -> VideoStream:
    """The one that players show: the default one, or the largest."""
    best = container.streams.best("video")
    found = [stream for stream in container.streams.video if not stream.disposition & _NO_VIDEO]
    if not found:
        raise UnreadableVideo(f"{path} has sound but no picture, expected a video; leave it out")
    return next((stream for stream in found if stream is best), found[0])


def _sound(container: InputContainer) -> AudioStream | None:
    """The one that players play."""
    best = container.streams.best("audio")
    return best if isinstance(best, AudioStream) else None


def _demuxed(container: InputContainer, stream: VideoStream, losses: _Losses) -> Iterator[VideoPacket]:
    while losses.in_a_row < MOST_DAMAGED:
        try:
            for packet in container.demux(*losses.streams):
                losses.see(packet)
                if packet.size and packet.stream.index == stream.index:
                    yield cast("VideoPacket", packet)
        except OSError:
            raise  # the disk is at fault, not the file
        except av.error.FFmpegError as error:
            losses.note(error)
        else:
            return


def _needed(
    container: InputContainer, stream: VideoStream, clock: _Clock, rate: float | int, losses: _Losses
) -> Iterator[tuple[VideoPacket | None, bool]]:
    """The packets to be decoded for frames at a rate, as `packets.thrifty` gives them."""
    packets = _demuxed(container, stream, losses)
    extradata = stream.codec_context.extradata or b""
    # An avcC record, which says how the units in a packet are told apart; its first byte is a version.
    described = stream.codec_context.name == "h264" and len(extradata) > 6 and extradata[0] == 1
    if container.format.name not in _EXACT or not described:
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


def _decoded(
    packets: Iterable[tuple[VideoPacket | None, bool]], stream: VideoStream, losses: _Losses
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
    container: InputContainer, stream: VideoStream, clock: _Clock, times: Sequence[float | int]
) -> list[tuple[float, Image]]:
    """The frames shown at `times`, if a key frame leads there; otherwise none."""
    convert = _Converter(stream)
    for before in _BEFORE if container.format.name in _EXACT else ():
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


def _after_jump(container: InputContainer, stream: VideoStream, clock: _Clock) -> Iterator[tuple[float, VideoFrame]]:
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
        # One thread: for more, threads would be started for each frame.
        square = self._reformatter.reformat(frame, width, frame.height, "rgb24", threads=1)
        image = square.to_ndarray().astype(np.uint8, copy=False)
        return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)))


def _reason(error: av.error.FFmpegError | OSError) -> str:
    return error.strerror or type(error).__name__
