"""Cut clips out of videos: copy their packets, or re-encode them.

All times are in seconds. Time 0 is the start of playback.
"""

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
    EXACT_FORMATS,
    H264,
    RE_ENCODE,
    SECONDS_BETWEEN_KEY_FRAMES,
    SEEK_DISTANCE,
    SEEK_MARGINS,
    TIME_TOLERANCE,
    AnyPacket,
    Clock,
    DamageLog,
    VideoPacket,
    audio_stream,
    create_video,
    decode_all,
    decode_packets,
    demux,
    open_video,
    timestamp_of,
    unsupported_format,
    video_errors,
)
from midreel.media.decode import duration, facts

Seconds = float | int

_TICK = Fraction(1, 90_000)  # time base of re-encoded clips; at common rates, a frame lasts a whole number of ticks
_SOUND_RATES = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000)
# FFmpeg's names of the containers that a copied clip keeps. For others it uses Matroska, which supports most codecs.
_COPY_FORMATS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}
_DEFAULT_COPY_SUFFIX = ".mkv"


def clip_suffix(source: Path, *, exact: bool) -> str:
    """Return the suffix that `write_clip` expects for a clip of `source`."""
    if exact:
        return ".mp4"
    return source.suffix.lower() if source.suffix.lower() in _COPY_FORMATS else _DEFAULT_COPY_SUFFIX


def write_clip(
    source: Path, target: Path, start: Seconds, end: Seconds, *, exact: bool = False, height: int | None = None
) -> float:
    """Write a part of a video, with its sound, to a new file.

    A copied clip starts with the last key frame at or before `start`, and ends with the frames stored before `end`. A
    re-encoded clip has exactly the frames shown between `start` and `end`, as H.264 and AAC. The file appears under its
    name only when it is complete.

    Args:
        source: The video.
        target: The clip to create or replace. Its suffix must be `clip_suffix(source, exact=exact)`.
        start: The start of the part.
        end: The end of the part.
        exact: Whether to re-encode the part instead of copying it.
        height: The height of a re-encoded clip in pixels, at most. Default: that of the video.

    Returns:
        The time in the video at which the clip starts.

    Raises:
        BadSetting: The times or the suffix are wrong, or the part cannot be copied.
        UnreadableVideo: The video cannot be decoded.
        MissingVideo: The video does not exist, or the disk cannot be read.
        Unwritable: The clip cannot be written.
    """
    if not 0 <= start < end < inf:
        raise BadSetting(f"the clip goes from {start} to {end} s, expected 0 <= start < end.")
    expected = clip_suffix(source, exact=exact)
    if target.suffix.lower() != expected:
        raise BadSetting(f"the clip is named {target.name!r}, expected the suffix {expected}. Rename it.")
    if exact:
        _re_encode(source, target, start, end, height)
        return float(start)
    return _copy(source, target, start, end)


def _copy(source: Path, target: Path, start: Seconds, end: Seconds) -> float:
    """Copy packets from the last key frame at or before `start`, and return its time.

    Seek to points further and further back until a key frame is found there. The last attempt reads from the start.
    """
    for margin in (*SEEK_MARGINS, None):
        with open_video(source) as (container, stream):
            clock = Clock.of(container, stream)
            if margin is not None and not _seek(container, stream, clock, start, margin):
                continue
            sound = audio_stream(container)
            packets = _packets_between(source, container, stream, sound, clock, start, end)
            first = next(packets, None)
            if first is None:
                continue
            origin = Fraction(timestamp_of(first)) * first.time_base
            with create_video(target, _COPY_FORMATS[target.suffix.lower()]) as copy:
                try:  # opaque, because FFmpeg may have no encoder for the codec
                    streams = {
                        each.index: copy.add_stream_from_template(each, opaque=True) for each in (stream, sound) if each
                    }
                except ValueError as error:
                    raise unsupported_format(target, copy.format.name, str(error)) from error
                for packet in chain([first], packets):
                    ticks = round(origin / packet.time_base)
                    packet.pts = None if packet.pts is None else packet.pts - ticks
                    packet.dts = None if packet.dts is None else packet.dts - ticks
                    packet.stream = streams[packet.stream.index]
                    copy.mux(packet)
            return float(origin) - clock.first
    raise _empty_clip(source, start, end)


def _packets_between(
    path: Path,
    container: InputContainer,
    stream: VideoStream,
    sound: AudioStream | None,
    clock: Clock,
    start: Seconds,
    end: Seconds,
) -> Iterator[AnyPacket]:
    """Yield the packets from the last key frame at or before `start` until `end`, or none if there is no such frame.

    Packets are held back until the key frame is settled, that is until a packet of the video is stored after `start`.
    """
    key = inf  # the time of the last key frame at or before `start`
    held: list[AnyPacket] = []  # the packets since that key frame
    is_settled, video_end = False, 0.0
    running = {each.index for each in (stream, sound) if each}  # streams that have not reached `end`
    with video_errors(path):
        for packet in container.demux(*(each for each in (stream, sound) if each)):
            if packet.pts is None and packet.dts is None:
                if packet.size:
                    raise BadSetting(f"{path} has no timestamps, so its packets cannot be copied. {RE_ENCODE}")
                continue  # the end of a stream
            is_video = packet.stream.index == stream.index
            shown = clock.seconds_of(packet)
            stored = float(packet.dts * packet.time_base) - clock.first if packet.dts is not None else shown
            is_key = is_video and packet.is_keyframe and shown <= start + TIME_TOLERANCE
            if packet.is_discard and not is_key:  # trimmed: never shown
                if is_video and shown > key and not held[0].is_discard:
                    end = min(end, stored)  # packets stored later may refer to it
                continue
            if is_video:
                video_end = max(video_end, shown + clock.length_of(packet))
                if is_key and not is_settled:
                    key = shown
                    heard = (each for each in held if each.stream.index != stream.index)
                    held = [packet, *(each for each in heard if clock.seconds_of(each) >= key)]
                    continue
                if key == inf and packet.is_keyframe:
                    return  # the first key frame is after `start`
                if stored > start + TIME_TOLERANCE and not is_settled:
                    is_settled = True
                    _require_shown_key_frame(path, held)
                    yield from held
            # Pictures shown before the key frame may refer to packets that are not copied.
            if shown < key and (key < inf or is_video):
                continue
            if stored >= end - TIME_TOLERANCE:
                running.discard(packet.stream.index)
                # The sound may have ended before: do not wait for it until the end of the file.
                if not running or (stored > end + SEEK_DISTANCE and stream.index not in running):
                    return
            elif is_settled:
                yield packet
            else:
                held.append(packet)
    if not is_settled and video_end > start:
        _require_shown_key_frame(path, held)
        yield from held


def _require_shown_key_frame(path: Path, packets: Sequence[AnyPacket]) -> None:
    """Raise BadSetting if the first packet was trimmed: a copy would show it."""
    if packets and packets[0].is_discard:
        raise BadSetting(f"{path} is trimmed, and the key frame before the clip was cut off. {RE_ENCODE}")


def _re_encode(source: Path, target: Path, start: Seconds, end: Seconds, height: int | None) -> None:
    """Encode the frames and the sound between two times."""
    pictures, sounds = _pictures(source, start, end), _sounds(source, start, end)
    first, first_sound = next(pictures, None), next(sounds, None)
    if first is None:
        raise _empty_clip(source, start, end)
    frame, known = first[2], facts(source)
    with create_video(target, "mp4") as clip:
        stream = clip.add_stream("libx264", rate=known.frame_rate, options=H264)
        stream.pix_fmt = "yuv420p"
        scale = min(1.0, (height or frame.height) / frame.height)
        stream.width, stream.height = (
            max(2, int(size * scale) // 2 * 2) for size in (frame.width, frame.height)
        )  # 4:2:0
        stream.codec_context.sample_aspect_ratio = known.pixel_aspect
        stream.codec_context.time_base = _TICK
        stream.codec_context.gop_size = ceil(known.frame_rate * SECONDS_BETWEEN_KEY_FRAMES)
        stream.codec_context.max_b_frames = 0  # so that each frame keeps its time and duration
        stream.set_display_rotation(frame.rotation)
        voice = None
        if first_sound is not None:
            voice = clip.add_stream("aac", rate=first_sound[2].sample_rate, layout=first_sound[2].layout.name)
        matrix = _copy_colours(frame, stream)
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
                each.pict_type = PictureType.NONE  # otherwise the encoder keeps the picture types of the source
                each.time_base, each.pts = _TICK, round(begin / _TICK)
                lengths[each.pts] = round(stop / _TICK) - each.pts
                clip.mux(_with_durations(stream.encode(each), lengths))
            elif voice is not None and isinstance(each, AudioFrame):
                clip.mux(voice.encode(each))
        clip.mux(_with_durations(stream.encode(None), lengths))
        if voice is not None:
            clip.mux(voice.encode(None))


def _copy_colours(frame: VideoFrame, stream: VideoStream) -> int:
    """Give the stream the colour space of a frame, and return the matrix for the conversion."""
    context = stream.codec_context
    context.color_range = ColorRange.MPEG
    if frame.format.is_rgb:
        context.colorspace = Colorspace.ITU709
        return Colorspace.ITU709
    context.colorspace, context.color_primaries = frame.colorspace, frame.color_primaries
    context.color_trc = frame.color_trc
    return frame.colorspace


def _with_durations(packets: Sequence[VideoPacket], lengths: dict[int, int]) -> Sequence[VideoPacket]:
    """Set the durations of packets from `lengths`, by timestamp. Encoders leave the last packet without one."""
    for packet in packets:
        packet.duration = lengths.pop(timestamp_of(packet))
    return packets


def _pictures(path: Path, start: Seconds, end: Seconds) -> Iterator[tuple[float, float, VideoFrame]]:
    """Yield the frames shown between `start` and `end`, each after its start and end relative to `start`."""
    before: tuple[float, float, VideoFrame] | None = None
    for time, until, frame in _frames_from(path, start):
        if before is not None and time < before[0] + TIME_TOLERANCE:  # the clock stands still or goes back
            before = before[0], max(before[1], until), frame
            continue
        if before is not None and time > start + TIME_TOLERANCE:
            yield max(before[0] - start, 0.0), min(time, end) - start, before[2]
        if time >= end - TIME_TOLERANCE:
            return
        before = time, until, frame
    if before is not None and before[1] > start:
        yield max(before[0] - start, 0.0), min(before[1], end) - start, before[2]


def _frames_from(path: Path, start: Seconds) -> Iterator[tuple[float, float, VideoFrame]]:
    """Yield all frames from the one shown at `start` on, and perhaps some before it.

    Each frame comes after its start and its end if no other follows. Seek to points further and further back until a
    key frame is found there. The last attempt decodes from the start.
    """
    for margin in (*SEEK_MARGINS, None):
        with open_video(path) as (container, stream):
            clock, log = Clock.of(container, stream), DamageLog.of(container, stream)
            if margin is None:
                frames = decode_all(container, stream, log)
                yield from ((clock.start_of(frame), clock.end, frame) for frame in frames)
                return
            if not _seek(container, stream, clock, start, margin):
                continue
            packets = dropwhile(lambda packet: not packet.is_keyframe, demux(container, stream, log))
            key = next(packets, None)
            if key is None or key.pts is None or clock.seconds(key.pts) > start + TIME_TOLERANCE:
                continue
            first = key.pts
            for frame in decode_packets(((packet, True) for packet in chain([key], packets)), stream, log):
                # Frames shown before the key frame may refer to packets that were skipped.
                if frame.pts is not None and frame.pts >= first:
                    time = clock.seconds(frame.pts)
                    yield time, time + clock.length_of(frame), frame
            return


def _sounds(path: Path, start: Seconds, end: Seconds) -> Iterator[tuple[float, float, AudioFrame]]:
    """Yield the sound between `start` and `end` in pieces, each after its start and end relative to `start`."""
    with open_video(path) as (container, stream):
        clock, sound = Clock.of(container, stream), audio_stream(container)
        if sound is None:
            return
        rate = sound.rate if sound.rate in _SOUND_RATES else 48_000
        layout = "stereo" if sound.codec_context.channels > 1 else "mono"
        resampler = AudioResampler(format="fltp", layout=layout, rate=rate)
        _seek(container, stream, clock, start, 1)  # audio decoders need some packets before they give sound
        for packet in container.demux(sound):
            try:
                frames = sound.decode(packet if packet.size else None)
            except av.error.FFmpegError:
                continue  # a gap in the sound does not prevent a clip
            for piece in chain.from_iterable(resampler.resample(each) for each in frames):
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


def _seek(container: InputContainer, stream: VideoStream, clock: Clock, start: Seconds, margin: Seconds) -> bool:
    """Seek to a key frame `margin` seconds before `start`. Return False if that fails or does not pay off."""
    if start <= max(margin, TIME_TOLERANCE) or container.format.name not in EXACT_FORMATS:
        return False
    try:
        container.seek(clock.pts(start - margin), stream=stream)
    except av.error.FFmpegError:
        return False
    return True


def _empty_clip(path: Path, start: Seconds, end: Seconds) -> BadSetting:
    """Return the error for a part without frames."""
    return BadSetting(
        f"the clip goes from {start:g} to {end:g} s, but {path} ends at {duration(path):g} s. Choose an earlier part."
    )
