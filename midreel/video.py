"""Video files: frames at a rate, with their true times, and back. The only file that imports av."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from pathlib import Path

import av
import av.error
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from midreel.errors import BadSetting, BadShape, UnreadableVideo

Image = NDArray[np.uint8]  # height x width x RGB

# Players jump to a moment by way of the key frame before it.
SECONDS_BETWEEN_KEY_FRAMES = 2


def read_frames(path: Path, rate: float | int) -> Iterator[tuple[float, Image]]:
    """The frames shown nearest to 0, 1/rate, 2/rate, … seconds, each with the second at which it is really shown.

    Decodes as it goes and holds two frames at a time, so that a film needs no more memory than a clip. Where the file
    has fewer frames than asked for, a frame comes more than once; the first always comes.
    """
    if not rate > 0:
        raise BadSetting(f"rate is {rate}, expected more than 0 frames per second; try 2")
    with _opened(path) as (container, stream):
        first = float(container.start_time or 0) / av.time_base
        taken = 0
        before: VideoFrame | None = None
        shown_before = end = 0.0
        for frame in container.decode(stream):
            shown = frame.time - first if frame.pts is not None else end  # a bare stream has no times
            if before is not None:
                while taken / rate < (shown_before + shown) / 2:
                    yield shown_before, _image(before)
                    taken += 1
            before, shown_before, end = frame, shown, shown + _seconds_shown(frame, stream)
        if before is None:
            raise UnreadableVideo(f"{path} holds no frame, expected a video; record or convert it again")
        # A frame that would begin as the video ends is not part of it, whatever the last digit of the division says.
        while taken == 0 or taken / rate < end - 1e-6:
            yield shown_before, _image(before)
            taken += 1


def duration(path: Path) -> float:
    """How many seconds the video lasts: until its last frame is gone, not its sound."""
    with _opened(path) as (container, stream):
        first = float(container.start_time or 0) / av.time_base
        if stream.duration and stream.time_base:
            seconds = float((stream.duration + (stream.start_time or 0)) * stream.time_base) - first
        elif container.duration:
            seconds = container.duration / av.time_base
        else:  # a bare stream does not say; its packets do
            base = stream.time_base or Fraction(0)
            ends = [(p.pts + (p.duration or 0)) * base for p in container.demux(stream) if p.pts is not None]
            seconds = float(max(ends, default=Fraction(0))) - first
    if seconds <= 0:
        raise UnreadableVideo(f"{path} lasts {seconds} s, expected a video; record or convert it again")
    return seconds


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
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with av.open(str(partial), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            stream = container.add_stream("libx264", rate=rate, options={"crf": "20", "preset": "veryfast"})
            stream.height, stream.width = first.shape[:2]
            stream.pix_fmt = "yuv420p"
            stream.thread_count = 1
            stream.gop_size = rate * SECONDS_BETWEEN_KEY_FRAMES
            for number, image in enumerate(chain([first], frames)):
                if image.shape != first.shape:
                    raise BadShape(f"frame {number} has shape {image.shape}, but frame 0 has {first.shape}; resize it")
                container.mux(stream.encode(VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode(None))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The file and its picture; whatever the decoder says against them, then or later, is said with the file's name."""
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise UnreadableVideo(f"{path} has sound but no picture, expected a video; leave it out")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            yield container, stream
    except FileNotFoundError as error:
        raise UnreadableVideo(f"{path} does not exist, expected a video file; check the path") from error
    except (av.error.FFmpegError, OSError) as error:
        reason = error.strerror or type(error).__name__
        raise UnreadableVideo(
            f"{path} cannot be decoded ({reason}), expected a video that ffmpeg reads; convert it or leave it out"
        ) from error


def _seconds_shown(frame: VideoFrame, stream: VideoStream) -> float:
    if frame.duration and frame.time_base:
        return float(frame.duration * frame.time_base)
    return float(1 / stream.average_rate) if stream.average_rate else 0.0


def _image(frame: VideoFrame) -> Image:
    """As a viewer sees it: a phone held upright films sideways and notes the angle."""
    image: Image = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
    return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)))
