"""A zoo of unusual video files: from phones, cameras, recorders and broken disks, and files that are not videos."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import OutputContainer
from av.stream import Disposition
from av.video.stream import VideoStream

from midreel.media.decode import Image

RATE = 12
HEIGHT, WIDTH = 48, 64
STEP = 3  # the difference in brightness between two frames
SOUND_RATE = 16_000
TICK = Fraction(1, 6000)


@dataclass(frozen=True, kw_only=True)
class Beast:
    """A video file with the times of its frames and of its end, in seconds of playback."""

    path: Path
    starts: Sequence[float]
    end: float
    shape: tuple[int, int, int] = (HEIGHT, WIDTH, 3)

    def number_at(self, time: float) -> int:
        """Return the number of the frame that is shown at this time."""
        return max((number for number, start in enumerate(self.starts) if start <= time + 1e-3), default=0)


def at_rate(count: int, rate: float = RATE, first: float = 0.0) -> list[float]:
    """Return the times of `count` frames at a constant rate."""
    return [first + k / rate for k in range(count)]


def picture(number: int, height: int = HEIGHT, width: int = WIDTH) -> Image:
    """Return a frame whose brightness encodes its number, up to 80, with a light patch in the upper left corner."""
    image = np.full((height, width, 3), STEP * (number % 80), np.uint8)
    image[: height // 4, : height // 4] = 255
    return image


def number_of(image: Image) -> float:
    """Return the number that a picture encodes, in any rotation."""
    height, width, _ = image.shape
    return float(image[height * 3 // 8 : height * 5 // 8, width * 3 // 8 : width * 5 // 8].mean()) / STEP


# ---------------------------------------------------------------- videos


def good(folder: Path) -> dict[str, Beast]:
    """Create videos that can be decoded completely, by file name."""
    even, more, uneven = at_rate(24), at_rate(60), [0.0, 0.1, 0.15, 0.9, 1.0, 1.8, 3.0]
    late, early = at_rate(24, first=1.0), at_rate(24, first=-0.5)
    upright = (WIDTH, HEIGHT, 3)
    kinds: dict[str, dict[str, Any]] = {
        "plain.mp4": {},
        "plain.ts": {},
        "plain.flv": {},
        "12:30 nap #1, 50%.mp4": {},
        "variable.mp4": {"starts": uneven},
        "variable.mkv": {"starts": uneven},
        "turned 90.mp4": {"turned": 90, "shape": upright},
        "turned 180.mp4": {"turned": 180},
        "turned 270.mp4": {"turned": -90, "shape": upright},
        "odd.mp4": {"pix_fmt": "yuv444p", "shape": (47, 65, 3)},
        "odd.mkv": {"codec": "mpeg4", "options": {"qmin": "1", "qmax": "1"}, "shape": (47, 65, 3)},
        "wide pixels.mp4": {"pixel_aspect": Fraction(3, 2), "shape": (HEIGHT, 96, 3)},
        "high pixels, turned.mkv": {"pixel_aspect": Fraction(5, 8), "turned": 90, "shape": (40, HEIGHT, 3)},
        "mistaken pixels.mp4": {"pixel_aspect": Fraction(1000)},
        "one frame.mp4": {"starts": [0.0]},
        "one frame.mkv": {"starts": [0.0]},
        "short.mp4": {"starts": [0.0, 0.1], "end": 0.2},
        "ten bits.mp4": {"pix_fmt": "yuv420p10le"},
        "grey.mkv": {"codec": "ffv1", "pix_fmt": "gray"},
        "alpha.mkv": {"codec": "ffv1", "pix_fmt": "bgra"},
        "interlaced.mp4": {"options": {"x264-params": "tff=1"}},
        "many leading.mp4": {"starts": more, "options": {"x264-params": "bframes=8:b-adapt=0:open-gop=1"}},
        "long group.mp4": {"starts": more, "gop": 1000},
        "late.mp4": {"starts": late, "sound": 3.0},
        "late.mkv": {"starts": late, "sound": 3.0},
        "begins before it begins.mp4": {"starts": early, "sound": 2.0},
        "more sound.mp4": {"sound": 4.0},
        "no duration.webm": {"codec": "libvpx", "muxing": {"live": "1"}},
        "no duration.mkv": {"muxing": {"live": "1"}},
        "fragments.mp4": {"muxing": {"movflags": "frag_keyframe+empty_moov"}},
    }
    beasts = {name: _beast(folder / name, **({"starts": even} | kind)) for name, kind in kinds.items()}
    beasts["bare.h264"] = Beast(path=film(folder / "bare.h264"), starts=at_rate(24, 25), end=24 / 25)  # no clock
    for name, make, starts in (
        ("clock set anew.ts", clock_set_anew, at_rate(48)),
        ("two pictures.mkv", two_pictures, even),
        ("ten hours.mp4", ten_hours, even),
        ("trimmed.mp4", trimmed, at_rate(40)),
    ):
        beasts[name] = Beast(path=make(folder / name), starts=starts, end=starts[-1] + 1 / RATE)
    return beasts


def bad(folder: Path) -> dict[str, str]:
    """Create files that are not videos, by file name, each with a key word of the error."""
    (folder / "empty.mp4").touch()
    (folder / "notes.mp4").write_text("this is a text, whatever its name says\n" * 50)
    (folder / "playlist.mp4").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nplain.ts\n#EXT-X-ENDLIST\n")
    song(folder / "song.mp4")
    song(folder / "album.mp4", cover=True)
    data = film(folder / "headless.mp4", muxing={"movflags": "+faststart"}).read_bytes()
    (folder / "headless.mp4").write_bytes(data[: data.index(b"mdat") + 8])
    noise(folder / "noise.mp4")
    return {
        "empty.mp4": "decoded",
        "notes.mp4": "decoded",
        "playlist.mp4": "decoded",
        "song.mp4": "picture",
        "album.mp4": "format",
        "headless.mp4": "frame",
        "noise.mp4": "frame",
    }


def _beast(
    path: Path, *, starts: Sequence[float], end: float | None = None, shape: Any = (HEIGHT, WIDTH, 3), **how: Any
) -> Beast:
    """Create a video and describe it."""
    size = shape[:2] if {"turned", "pixel_aspect"}.isdisjoint(how) else (HEIGHT, WIDTH)
    film(path, starts, size=size, **how)
    return Beast(path=path, starts=starts, end=starts[-1] + 1 / RATE if end is None else end, shape=shape)


def clock_set_anew(path: Path) -> Path:
    """Create two concatenated recordings. The clock restarts in the second one."""
    parts = [film(path.with_name(f"{name}.ts"), first_number=first) for name, first in (("part1", 0), ("part2", 24))]
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    for part in parts:
        part.unlink()
    return path


def two_pictures(path: Path) -> Path:
    """Create a file with a small preview as the first stream and the video as the second."""
    with av.open(str(path), "w") as container:
        preview, stream = (_picture_stream(container, size=size) for size in ((16, 16), (HEIGHT, WIDTH)))
        preview.disposition, stream.disposition = Disposition(0), Disposition.default
        for number, start in enumerate(at_rate(24)):
            _encode(container, preview, picture(60, 16, 16), start)
            _encode(container, stream, picture(number), start)
        container.mux(preview.encode(None))
        container.mux(stream.encode(None))
    return path


def ten_hours(path: Path) -> Path:
    """Create a video of two seconds whose header says ten hours."""
    data = bytearray(film(path).read_bytes())
    for box in (b"mvhd", b"mdhd"):
        _set_number(data, box, 16, 36_000 * _number(data, box, 12))
    path.write_bytes(data)
    return path


def trimmed(path: Path, gop: int = 1000) -> Path:
    """Create ten seconds of video of which an edit list shows 40 frames, from the twelfth on."""
    options = {"x264-params": "bframes=8:b-adapt=0:scenecut=0"}
    film(path, at_rate(120), first_number=-RATE, gop=gop, options=options)
    data = bytearray(path.read_bytes())
    _set_number(data, b"elst", 8, round(40 / RATE * _number(data, b"mvhd", 12)))
    _set_number(data, b"elst", 12, _number(data, b"elst", 12) + _number(data, b"mdhd", 12))  # a second later
    path.write_bytes(data)
    return path


def _number(data: bytes | bytearray, box: bytes, offset: int) -> int:
    """Return the number in four bytes of the first box of this type in an mp4 file."""
    place = data.index(box) + 4 + offset
    return int.from_bytes(data[place : place + 4], "big")


def _set_number(data: bytearray, box: bytes, offset: int, number: int) -> None:
    place = data.index(box) + 4 + offset
    data[place : place + 4] = number.to_bytes(4, "big")


def cut_short(path: Path) -> Path:
    """Create a truncated file: a download that was interrupted half-way."""
    data = film(path, at_rate(60), muxing={"movflags": "+faststart"}, options={"crf": "0"}).read_bytes()
    path.write_bytes(data[: data.index(b"mdat") + (len(data) - data.index(b"mdat")) // 2])
    return path


def hit_in_the_middle(path: Path) -> Path:
    """Create five seconds of video in which all packets of the third second are zeros."""
    return _zeroed(film(path, at_rate(60), options={"x264-params": "scenecut=0"}), slice(24, 36))


def noise(path: Path) -> Path:
    """Create a video whose packets are all zeros. Only its index is left."""
    return _zeroed(film(path), slice(None))


def _zeroed(path: Path, which: slice) -> Path:
    """Overwrite some packets with zeros."""
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.pos is not None]
    data = bytearray(path.read_bytes())
    for position, size in packets[which]:
        data[position : position + size] = bytes(size)
    path.write_bytes(data)
    return path


def out_of_order(path: Path) -> Path:
    """Create a video whose frame times go back and forth by a few hundredths of a second."""
    with av.open(str(path), "w") as container:
        stream = _picture_stream(container, "mjpeg", "yuvj420p", options={"qmin": "1", "qmax": "1"})
        for number in range(24):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
            for packet in stream.encode(frame):
                packet.time_base, packet.dts = TICK, number * 500
                packet.pts = (number + (0, 2, 0, -1)[number % 4]) * 500 + 1000
                container.mux(packet)
    return path


def broadcast(path: Path) -> Path:
    """Create two seconds of video at 29.97 frames per second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(30_000, 1001))
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        for number in range(60):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(number), format="rgb24")))
        container.mux(stream.encode(None))
    return path


def colourful(path: Path, *, codec: str, pix_fmt: str, tags: tuple[int, int, int, int], size: int = 64) -> Path:
    """Create one second of four colours. `tags` are the codes of matrix, primaries, transfer and range."""
    image = np.zeros((size, size, 3), np.uint8)
    half = size // 2
    image[:half, :half], image[:half, half:] = (200, 60, 20), (30, 160, 60)
    image[half:, :half], image[half:, half:] = (40, 50, 210), (250, 250, 250)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.height, stream.width, stream.pix_fmt = size, size, pix_fmt
        context = stream.codec_context
        context.colorspace, context.color_primaries, context.color_trc, context.color_range = tags
        for _ in range(RATE):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame = frame.reformat(format=pix_fmt, dst_colorspace=tags[0], dst_color_range=tags[3])
            frame.pts = None
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def film_of_hours(path: Path, hours: float) -> Path:
    """Create a long video of one frame per second that repeats the same ten frames."""
    with av.open(str(path), "w") as container:
        stream = _picture_stream(container, options={"x264-params": "bframes=0"})
        frames = [av.VideoFrame.from_ndarray(picture(number), format="rgb24") for number in range(10)]
        packets = [packet for frame in [*frames, None] for packet in stream.encode(frame)]
        for number in range(round(hours * 3600)):
            again = av.Packet(bytes(packets[number % 10]))
            again.stream, again.time_base, again.pts = stream, TICK, number * 6000
            again.dts, again.duration, again.is_keyframe = again.pts, 6000, number % 10 == 0
            container.mux(again)
    return path


def song(path: Path, *, cover: bool = False) -> Path:
    """Create a sound file, with a cover picture if wanted."""
    with av.open(str(path), "w", format="mp3" if cover else "mp4") as container:
        voice = container.add_stream("libmp3lame" if cover else "aac", rate=SOUND_RATE, layout="mono")
        if cover:
            image = container.add_stream("png")
            image.height, image.width, image.pix_fmt = HEIGHT, WIDTH, "rgb24"
            image.disposition = Disposition.attached_pic
            container.mux(image.encode(av.VideoFrame.from_ndarray(picture(9), format="rgb24")))
            container.mux(image.encode(None))
        _silence(container, voice, 1.0)
    return path


# ---------------------------------------------------------------- writing


def film(
    path: Path,
    starts: Sequence[float] | None = None,
    *,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    size: tuple[int, int] = (HEIGHT, WIDTH),
    options: dict[str, str] | None = None,
    muxing: dict[str, str] | None = None,
    gop: int = RATE,
    turned: int = 0,
    pixel_aspect: Fraction = Fraction(1),
    sound: float = 0.0,
    first_number: int = 0,
    draw: Callable[[int], Image] | None = None,
) -> Path:
    """Create a video whose frames start at `starts`, with `sound` seconds of silence from 0 on."""
    with av.open(f"file:{path}", "w", options=muxing or {}) as container:
        voice = container.add_stream("aac", rate=SOUND_RATE, layout="mono") if sound else None
        stream = _picture_stream(container, codec, pix_fmt, size, options)
        stream.gop_size = gop
        stream.codec_context.sample_aspect_ratio = pixel_aspect
        stream.set_display_rotation(turned)
        if voice is not None:
            _silence(container, voice, sound)
        for number, start in enumerate(at_rate(24) if starts is None else starts, first_number):
            _encode(container, stream, draw(number) if draw else picture(number, *size), start)
        container.mux(stream.encode(None))
    return path


def _picture_stream(
    container: OutputContainer,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    size: tuple[int, int] = (HEIGHT, WIDTH),
    options: dict[str, str] | None = None,
) -> VideoStream:
    stream: VideoStream = container.add_stream(codec, rate=RATE, options=options or {})
    stream.height, stream.width = size
    stream.pix_fmt = pix_fmt
    stream.codec_context.time_base = TICK
    return stream


def _encode(container: OutputContainer, stream: VideoStream, image: Image, start: float) -> None:
    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
    frame.pts, frame.time_base = round(start / TICK), TICK
    container.mux(stream.encode(frame))


def _silence(container: OutputContainer, voice: Any, seconds: float) -> None:
    for start in range(0, round(seconds * SOUND_RATE), 1024):
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.rate, sound.pts, sound.time_base = SOUND_RATE, start, Fraction(1, SOUND_RATE)
        container.mux(voice.encode(sound))
    container.mux(voice.encode(None))
