"""Damage small videos in many containers, and check how midreel reads them.

    python -m tools.fuzz_videos --times 500 --seed 1

Each mutant is read in a child process with limits on time and memory. The allowed outcomes are frames and
`UnreadableVideo`; clips may also raise `BadSetting`. Another exception, a crash, a timeout and too much memory are
failures. So is `MissingVideo`, because the file exists. A second reading must give the same frames, duration and
damage.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.stream import VideoStream

from midreel.errors import BadSetting, MissingVideo, UnreadableVideo
from midreel.media import cut, decode
from tools.forking import fork, limit_memory, read_until_closed

RATE = 25
READ_RATES = (2, 25)  # some frames and all frames, because midreel skips packets for the first
SECONDS = 20.0  # timeout of a mutant, which takes a tenth of a second on an idle machine
MEMORY = 2**30  # bytes that a child may allocate
MAX_SHOWN = 20  # failures to print


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A container and a codec that FFmpeg can write into it."""

    suffix: str
    codec: str
    pix_fmt: str = "yuv420p"
    size: tuple[int, int] = (48, 64)  # height, width
    num_frames: int = 40
    codec_options: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    has_sound: bool = False


_B_FRAMES = {"preset": "veryfast", "x264-params": "bframes=3:b-adapt=0:keyint=12:threads=1"}
_FRAGMENTS = {"movflags": "frag_keyframe+empty_moov"}
KINDS = (
    Kind(suffix=".mp4", codec="libx264", codec_options=_B_FRAMES, options={"movflags": "+faststart"}, has_sound=True),
    Kind(suffix=".mp4", codec="libx264", codec_options=_B_FRAMES, options=_FRAGMENTS),
    Kind(suffix=".mov", codec="mjpeg", pix_fmt="yuvj420p"),
    Kind(suffix=".3gp", codec="mpeg4"),
    Kind(suffix=".mkv", codec="libx264", codec_options=_B_FRAMES, has_sound=True),
    Kind(suffix=".mkv", codec="libx265", codec_options={"x265-params": "log-level=none:pools=none:frame-threads=1"}),
    Kind(suffix=".webm", codec="libvpx"),
    Kind(suffix=".webm", codec="libvpx-vp9"),
    Kind(suffix=".avi", codec="mpeg4"),
    Kind(suffix=".flv", codec="flv"),
    Kind(suffix=".ts", codec="libx264", codec_options=_B_FRAMES),
    Kind(suffix=".mpg", codec="mpeg1video"),
    Kind(suffix=".vob", codec="mpeg2video"),
    Kind(suffix=".ogv", codec="libvpx"),
    Kind(suffix=".nut", codec="ffv1"),
    Kind(suffix=".wmv", codec="wmv2"),
    Kind(suffix=".mxf", codec="mpeg2video"),
    Kind(suffix=".gxf", codec="mpeg2video", size=(576, 720), num_frames=6),
    Kind(suffix=".dv", codec="dvvideo", size=(576, 720), num_frames=6),
    Kind(suffix=".y4m", codec="wrapped_avframe"),
    Kind(suffix=".h264", codec="libx264", codec_options=_B_FRAMES),
    Kind(suffix=".ivf", codec="libvpx"),
    Kind(suffix=".mjpeg", codec="mjpeg", pix_fmt="yuvj420p"),
    Kind(suffix=".gif", codec="gif", pix_fmt="rgb8"),
)


class BadReading(AssertionError):
    """midreel crashed on a mutant, hung, or gave a wrong result."""


@dataclass(kw_only=True)
class Report:
    """Counts of outcomes, the failures, and the largest costs of a mutant."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    max_memory: int = 0  # bytes
    max_seconds: float = 0.0

    @property
    def text(self) -> str:
        """A summary in one line."""
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in self.outcomes.most_common())
        return f"{counts}; at most {self.max_memory >> 20:,} MiB and {self.max_seconds:.1f} s for a mutant"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=500, help="number of mutants [500]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations [0]")
    parser.add_argument("--keep", type=Path, help="copy failed mutants to this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="midreel-fuzz-") as folder:
        report = fuzz(Path(folder), times=arguments.times, seed=arguments.seed, keep=arguments.keep)
    print(report.text)
    for failure in report.failures[:MAX_SHOWN]:
        print(failure, file=sys.stderr)
    if report.failures:
        raise BadReading(f"{len(report.failures)} of {arguments.times} mutants failed")


def fuzz(folder: Path, *, times: int, seed: int, keep: Path | None = None) -> Report:
    """Read mutants of all kinds in turn, and report the outcomes.

    Args:
        folder: A folder for the videos.
        times: The number of mutants.
        seed: The seed of the mutations.
        keep: A folder for failed mutants. Default: they are deleted.
    """
    report, chance = Report(), random.Random(seed)
    originals = [write_film(folder / f"{number}{kind.suffix}", kind).read_bytes() for number, kind in enumerate(KINDS)]
    for number in range(times):
        kind, original = KINDS[number % len(KINDS)], originals[number % len(KINDS)]
        mutate = chance.choice(MUTATIONS)
        mutant = folder / f"mutant{kind.suffix}"
        mutant.write_bytes(mutate(bytearray(original), chance))
        name = f"{number}-{kind.codec}-{mutate.__name__}{kind.suffix}"
        start = time.monotonic()
        outcome, memory = in_child(partial(read_all, mutant), SECONDS, MEMORY)
        report.max_seconds = max(report.max_seconds, time.monotonic() - start)
        report.max_memory = max(report.max_memory, memory)
        report.outcomes[outcome.kind] += 1
        if outcome.is_failure:
            report.failures.append(f"{name} (seed {seed}): {outcome.kind}: {outcome.details}")
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                mutant.rename(keep / name)
    return report


# ---------------------------------------------------------------- films and mutations


def write_film(path: Path, kind: Kind) -> Path:
    """Write a small film. One thread encodes it, so that the bytes are reproducible except dates in some headers."""
    texture = np.random.default_rng(0).integers(0, 256, (96, 128, 3), np.uint8)
    height, width = kind.size
    options = {"fflags": "+bitexact"} | kind.options
    with av.open(f"file:{path}", "w", options=options) as container:
        stream = cast("VideoStream", container.add_stream(kind.codec, rate=RATE, options=kind.codec_options))
        stream.height, stream.width, stream.pix_fmt = height, width, kind.pix_fmt
        stream.codec_context.thread_count = 1
        stream.codec_context.gop_size = 12
        voice = container.add_stream("aac", rate=16_000, layout="mono") if kind.has_sound else None
        for number in range(kind.num_frames):
            image = np.roll(texture, (number, 2 * number), (0, 1))
            tiled = np.tile(image, (-(-height // 96), -(-width // 128), 1))[:height, :width]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(tiled), format="rgb24")))
            if voice is not None:
                silence = av.AudioFrame.from_ndarray(np.zeros((1, 640), np.float32), format="fltp", layout="mono")
                silence.sample_rate = 16_000
                container.mux(voice.encode(silence))
        container.mux(stream.encode(None))
        if voice is not None:
            container.mux(voice.encode(None))
    return path


Mutation = Callable[[bytearray, random.Random], bytearray]


def flip_bits(data: bytearray, chance: random.Random) -> bytearray:
    """Flip random bits."""
    for _ in range(chance.choice((1, 5, 50))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return data


def flip_header_bits(data: bytearray, chance: random.Random) -> bytearray:
    """Flip random bits of the first 1,000 bytes."""
    for _ in range(chance.choice((1, 5, 20))):
        data[chance.randrange(min(len(data), 1000))] ^= 1 << chance.randrange(8)
    return data


def truncate(data: bytearray, chance: random.Random) -> bytearray:
    """Cut the file anywhere."""
    return data[: chance.randrange(len(data))]


def truncate_little(data: bytearray, chance: random.Random) -> bytearray:
    """Cut off up to a quarter of the file."""
    return data[: -chance.randrange(1, len(data) // 4)]


def zero_block(data: bytearray, chance: random.Random) -> bytearray:
    """Overwrite a block with zeros."""
    start, size = _block(data, chance)
    data[start : start + size] = bytes(size)
    return data


def splice_block(data: bytearray, chance: random.Random) -> bytearray:
    """Copy a block to another place, where it overwrites or shifts the bytes."""
    start, size = _block(data, chance)
    target = chance.randrange(len(data) - size)
    data[target : target + chance.choice((0, size))] = data[start : start + size]
    return data


def remove_block(data: bytearray, chance: random.Random) -> bytearray:
    """Remove a block."""
    start, size = _block(data, chance)
    del data[start : start + size]
    return data


def swap_sizes(data: bytearray, chance: random.Random) -> bytearray:
    """Exchange two numbers of four bytes, or set one to an extreme. Most are sizes, counts and offsets."""
    limit = chance.choice((min(len(data), 1000), len(data))) - 4
    for _ in range(chance.choice((1, 3))):
        first, second = chance.randrange(limit), chance.randrange(limit)
        extremes = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data), chance.getrandbits(32))
        if chance.random() < 0.5:
            data[first : first + 4], data[second : second + 4] = data[second : second + 4], data[first : first + 4]
        else:
            data[first : first + 4] = chance.choice(extremes).to_bytes(4, chance.choice(("big", "little")))
    return data


def _block(data: bytearray, chance: random.Random) -> tuple[int, int]:
    size = min(chance.choice((1, 16, 188, 1000, 4096)), len(data) // 2)
    return chance.randrange(len(data) - size), size


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bits, flip_header_bits, truncate, truncate_little),
    *(zero_block, splice_block, remove_block, swap_sizes),
)


# ---------------------------------------------------------------- reading


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of reading a mutant."""

    kind: str
    is_failure: bool = False
    details: str = ""


def read_all(path: Path) -> Outcome:
    """Read a file in every way that midreel reads files. Raise exceptions that are not allowed."""
    first, again = _readings(path), _readings(path)
    if first != again:
        return Outcome(kind="other frames when read again", is_failure=True, details=f"{first} and {again}")
    _allowing(lambda: decode.duration(path))
    _allowing(lambda: decode.facts(path))
    _allowing(lambda: decode.frames_at(path, [1.0, 0.3, 1e9]))
    for exact in (False, True):
        target = path.with_name(f"clip{cut.clip_suffix(path, exact=exact)}")
        _allowing(partial(cut.write_clip, path, target, 0.5, 1.2, exact=exact))
    kinds = {reading.kind for reading in first}
    return Outcome(kind=next(kind for kind in ("refused", "damaged", "whole") if kind in kinds))


@dataclass(frozen=True, kw_only=True)
class _Reading:
    kind: str
    frames: str = ""  # a digest
    duration: float = 0.0
    details: str = ""


def _readings(path: Path) -> list[_Reading]:
    return [_read(path, rate) for rate in READ_RATES]


def _read(path: Path, rate: int) -> _Reading:
    reading = decode.read_frames(path, rate)
    frames: list[str] = []
    error = _allowing(lambda: frames.append(_digest(reading)))
    if error is not None:
        return _Reading(kind="refused", details=str(error))
    kind = "damaged" if reading.damage else "whole"
    return _Reading(kind=kind, frames=frames[0], duration=reading.duration, details=str(reading.damage))


def _allowing(use: Callable[[], object]) -> Exception | None:
    """Call `use`, and return the exception if midreel may raise it for an existing file."""
    try:
        use()
    except MissingVideo:
        raise
    except (UnreadableVideo, BadSetting) as error:
        return error
    return None


def _digest(frames: Iterable[tuple[float, decode.Image]]) -> str:
    """Return a digest of times, sizes and pixels. A repeated frame is the same array, and is hashed once."""
    digest, last = hashlib.blake2b(digest_size=8), None
    for start, image in frames:
        digest.update(f"{start:.6f} {image.shape}".encode())
        if image is not last:
            digest.update(image.data)
        last = image
    return digest.hexdigest()


# ---------------------------------------------------------------- in a child process


def in_child(work: Callable[[], Outcome], seconds: float, memory: int) -> tuple[Outcome, int]:
    """Run work in a child process with limits.

    Args:
        work: The function to call.
        seconds: The timeout.
        memory: The number of bytes that the child may allocate.

    Returns:
        The outcome, and the peak memory of the child in bytes.
    """
    reader, writer = os.pipe()
    child = fork()
    if not child:
        try:
            os.close(reader)
            limit_memory(memory)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.write(writer, json.dumps(vars(_outcome_of(work))).encode())
        finally:
            os._exit(0)
    os.close(writer)
    written, is_late = read_until_closed(reader, seconds)
    os.close(reader)
    if is_late:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    used = usage.ru_maxrss * 1024
    if is_late:
        return Outcome(kind="timeout", is_failure=True, details=f"more than {seconds:g} s"), used
    if os.WIFSIGNALED(status) or not written:
        return Outcome(kind="crash", is_failure=True, details=f"exit status {status}"), used
    return Outcome(**json.loads(written)), used


def _outcome_of(work: Callable[[], Outcome]) -> Outcome:
    try:
        return work()
    except MemoryError:
        return Outcome(kind="too much memory", is_failure=True, details=traceback.format_exc(limit=-4))
    except BaseException as error:
        return Outcome(kind=type(error).__name__, is_failure=True, details=traceback.format_exc(limit=-6))


if __name__ == "__main__":
    main()
