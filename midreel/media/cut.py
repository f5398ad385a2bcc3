"""Parts of films, copied or encoded anew."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from heapq import merge
from itertools import chain, dropwhile
from math import ceil, inf
from pathlib import Path

import av.error
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.frame import PictureType, VideoFrame
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from av.video.stream import VideoStream

from midreel.errors import BadSetting
from midreel.media.container import (
    BEFORE,
    CLOSE,
    EXACT,
    GRACE,
    H264,
    SECONDS_BETWEEN_KEY_FRAMES,
    AnyPacket,
    Clock,
    Losses,
    VideoPacket,
    decoded,
    demuxed,
    instant_of,
    naming,
    not_held,
    opened,
    sound_of,
    writing,
)
from midreel.media.decode import duration, facts

Seconds = float | int

_TICK = Fraction(1, 90_000)  # of what is encoded: every usual frame rate is a whole number of these
_SOUND_RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000)
# Containers that a part of a film can keep; Matroska holds what the others cannot.
_COPIED = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}
_COPIED_ELSE = ".mkv"


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
    for before in (*BEFORE, None):
        with opened(source) as (container, stream):
            clock = Clock.of(container, stream)
            if before is not None and not _sought(container, stream, clock, start, before):
                continue
            sound = sound_of(container)
            packets = _stretch(source, container, stream, sound, clock, start, end)
            first = next(packets, None)
            if first is None:
                continue  # no key frame from there to the moment
            origin = Fraction(instant_of(first)) * first.time_base
            with writing(target, _COPIED[target.suffix.lower()]) as copy:
                try:  # opaque: a codec need not be one that could be encoded here
                    streams = {
                        each.index: copy.add_stream_from_template(each, opaque=True) for each in (stream, sound) if each
                    }
                except ValueError as error:
                    raise not_held(target, copy.format.name, str(error)) from error
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
    clock: Clock,
    start: Seconds,
    end: Seconds,
) -> Iterator[AnyPacket]:
    """The packets from the last key frame at or before `start` until those of `end`: none if there is no such frame."""
    key = inf
    held: list[AnyPacket] = []  # until it is certain that no other key frame comes before `start`
    is_certain, film_end = False, 0.0
    running = {each.index for each in (stream, sound) if each}
    with naming(path):
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
    with writing(target, "mp4") as clip:
        stream = clip.add_stream("libx264", rate=known.frame_rate, options=H264)
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
        packet.duration = lengths.pop(instant_of(packet))
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
    for before in (*BEFORE, None):
        with opened(path) as (container, stream):
            clock, losses = Clock.of(container, stream), Losses.of(container, stream)
            if before is not None and not _sought(container, stream, clock, start, before):
                continue
            packets = demuxed(container, stream, losses)
            if before is None:
                frames = decoded(((packet, True) for packet in packets), stream, losses)
                yield from ((clock.start_of(frame), clock.end, frame) for frame in frames)
                return
            packets = dropwhile(lambda packet: not packet.is_keyframe, packets)
            key = next(packets, None)
            if key is None or key.pts is None or clock.seconds(key.pts) > start + GRACE:
                continue
            first = key.pts
            frames = decoded(((packet, True) for packet in chain([key], packets)), stream, losses)
            for frame in frames:
                # What is shown before the key frame may refer to what was jumped over.
                if frame.pts is not None and frame.pts >= first:
                    time = clock.seconds(frame.pts)
                    yield time, time + clock.length_of(frame), frame
            return


def _sounds(path: Path, start: Seconds, end: Seconds) -> Iterator[tuple[float, float, AudioFrame]]:
    """The sound from `start` to `end`, in pieces, each with the seconds after `start` at which it begins and ends."""
    with opened(path) as (container, stream):
        clock, sound = Clock.of(container, stream), sound_of(container)
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


def _sought(container: InputContainer, stream: VideoStream, clock: Clock, start: Seconds, before: Seconds) -> bool:
    """Jumps to a key frame so many seconds before `start`, where that can be done and is worth it."""
    if start <= max(before, GRACE) or container.format.name not in EXACT:
        return False
    try:
        container.seek(clock.pts(start - before), stream=stream)
    except av.error.FFmpegError:
        return False
    return True


def _nothing_there(path: Path, start: Seconds, end: Seconds) -> BadSetting:
    return BadSetting(
        f"{path} shows nothing from {start:g} to {end:g} s, expected a part of it; it ends at {duration(path):g} s"
    )
