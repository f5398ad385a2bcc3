"""Measure the speed of feature extraction, and how long the encoder waits for the decoder.

    make bench-extract

Uses a CLIP ViT-B/32 with random weights, and generated H.264 films. The candidates of a ratio take turns, so that load
on the machine affects all of them.
"""

import argparse
import multiprocessing
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image as Pillow

from benchmarks.measuring import Row, at_most, in_turns, machine, publish, reported, table, three_digits
from midreel.datasets import dataset
from midreel.datasets.sources import Source
from midreel.features.backbones.base import Backbone, Fingerprint, Image, load_backbone
from midreel.features.backbones.preprocess import Preprocessing
from midreel.media.decode import frames_at, read_frames
from midreel.types import TextFeatures
from tests.features.tiny_clip import save_base_clip

SIZES = {"640x360": (360, 640), "1280x720": (720, 1280)}
FILM_RATE = 25
GROUPS = (250, 50)  # maximum distance of key frames: the default of x264, and that of a streaming service
RATE = 2.0  # encoded frames per second
READ_RATES = (0.5, 1.0, 2.0)
NUM_MOMENTS = 6

REMARKS = (
    "The encoder waits for the first batch, for slow decoders, and while the store is written. Decoding alone includes",
    "the conversion to RGB and the resizing to 224 pixels. The fingerprint fixes the resizing to Pillow's bicubic",
    "filter, which takes about as long as decoding.",
    "",
    "*Every frame decoded* is a plain loop over PyAV's frames that converts the needed ones. *Only what is needed* is",
    "`midreel.media.decode.read_frames`, which gives the same bits (tests/media/test_decode.py); see",
    "midreel/media/packets.py.",
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The number of films, their length in seconds, and the number of rounds."""

    films: int
    seconds: int
    rounds: int


# ---------------------------------------------------------------- films


def write_film(path: Path, size: tuple[int, int], seconds: int, group: int) -> Path:
    """Write a film of panned scenes of seven seconds, with a moving foreground and grain.

    Args:
        path: The file to write.
        size: The height and the width.
        seconds: The length of the film.
        group: The maximum number of frames between key frames.
    """
    height, width = size
    generator = np.random.default_rng(0)
    scenes = [_texture(generator, height + 200, width + 400) for _ in range(4)]
    actor = _texture(generator, height // 3, width // 4)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FILM_RATE, options={"crf": "23"})
        stream.height, stream.width, stream.pix_fmt, stream.gop_size = height, width, "yuv420p", group
        for number in range(seconds * FILM_RATE):
            top, left = int(100 + 95 * np.cos(number / 55)), int(200 + 190 * np.sin(number / 40))
            scene = scenes[number // (7 * FILM_RATE) % len(scenes)][top : top + height, left : left + width].copy()
            row, column = (int(0.3 * side * (1 + np.sin(number / 23))) for side in size)
            scene[row : row + actor.shape[0], column : column + actor.shape[1]] = actor
            grain = generator.integers(-4, 5, (height, width, 1), np.int16)
            image = (scene.astype(np.int16) + grain).clip(0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def _texture(generator: np.random.Generator, height: int, width: int) -> Image:
    """Return noise of all scales. Coarse scales are stronger, as in photographs."""
    total = np.zeros((height, width, 3))
    for size in (4, 8, 16, 32, 64, 128):
        for channel in range(3):
            coarse = generator.normal(size=(height // size + 2, width // size + 2)).astype(np.float32)
            total[..., channel] += size**0.6 * np.asarray(Pillow.fromarray(coarse).resize((width, height)))
    low, high = total.min(), total.max()
    return ((total - low) / (high - low) * 255).astype(np.uint8)


# ---------------------------------------------------------------- measurements


class Timed:
    """A backbone that counts the seconds of encoding."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self.window = backbone.window
        self.seconds = 0.0

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the backbone."""
        return self._backbone.fingerprint

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """Resize and crop an image."""
        return self._backbone.prepare(image)

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N 3 H W"]) -> Float[np.ndarray, "N E"]:
        """Encode prepared images, and count the seconds."""
        start = time.perf_counter()
        rows = self._backbone.encode_pixels(pixels)
        self.seconds += time.perf_counter() - start
        return rows

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        """Encode images."""
        return self._backbone.encode_images(images)

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Encode texts."""
        return self._backbone.encode_texts(texts)


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """The seconds of an extraction, and those in which the encoder waited."""

    total: float
    waiting: float


def extract(folder: Path, backbone: Backbone, workers: int) -> Extraction:
    """Extract the features of a folder, and return the times."""
    timed = Timed(backbone)
    out = folder / "features.h5"
    out.unlink(missing_ok=True)
    start = time.perf_counter()
    videos, _ = dataset.extract(Source.find(folder), timed, rate=RATE, out=out, workers=workers)
    total = time.perf_counter() - start
    assert not videos.failed, videos.failed
    return Extraction(total=total, waiting=total - timed.seconds)


def decode_film(path: Path, preprocessing: Preprocessing) -> list[Image]:
    """Decode and prepare the frames of a film, as a worker does."""
    return [preprocessing.prepare(image) for _, image in read_frames(path, RATE)]


def decode_films(paths: Sequence[Path], preprocessing: Preprocessing, executor: Executor | None) -> None:
    """Decode films with an executor, or one after the other without one."""
    work = partial(decode_film, preprocessing=preprocessing)
    for _ in map(work, paths) if executor is None else executor.map(work, paths):
        pass


def decode_all(path: Path, rate: float, kind: str = "NONE") -> Iterator[Image]:
    """Decode every frame, and yield those at the rate.

    Args:
        path: The film.
        rate: Frames per second to yield.
        kind: The threading of the decoder: "NONE", "FRAME", "SLICE" or "AUTO".
    """
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        if kind == "NONE":
            stream.codec_context.thread_count = 1
        else:
            stream.codec_context.thread_type = kind
        taken = 0
        for frame in container.decode(stream):
            if frame.time is not None and frame.time >= taken / rate - 1e-6:
                yield frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
                taken += 1


def exhaust(frames: Callable[[], Iterator[object]]) -> None:
    """Consume an iterator."""
    for _ in frames():
        pass


# ---------------------------------------------------------------- rows


def extraction_rows(
    name: str, folder: Path, backbone: Backbone, preprocessing: Preprocessing, sizes: Sizes
) -> list[Row]:
    """Return rows for the whole extraction and for its parts, with films of one size."""
    paths = sorted(folder.glob("*.mp4"))
    runs: dict[int, list[Extraction]] = {1: [], 2: []}
    for _ in range(sizes.rounds):
        for workers, seen in runs.items():
            seen.append(extract(folder, backbone, workers))
    total = {workers: statistics.median(run.total for run in seen) for workers, seen in runs.items()}
    waiting = {workers: statistics.median(run.waiting for run in seen) for workers, seen in runs.items()}
    pixels = np.stack(decode_film(paths[0], preprocessing))
    num_frames = len(pixels) * len(paths)
    start = time.perf_counter()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes, ThreadPoolExecutor(2) as threads:
        decode_films(paths[:2], preprocessing, processes)
        started = time.perf_counter() - start
        one, two, forked, encoded = in_turns(
            [
                lambda: decode_films(paths, preprocessing, None),
                lambda: decode_films(paths, preprocessing, threads),
                lambda: decode_films(paths, preprocessing, processes),
                lambda: backbone.encode_pixels(pixels),
            ],
            sizes.rounds,
        )
    encoded *= len(paths)
    speeds = {"decoding alone, 1 worker": one, "decoding alone, 2 workers": two, "encoding alone": encoded}
    speeds["both, 2 workers"] = total[2]
    return [
        at_most(f"{name}: the encoder waits / the whole extraction, 2 workers", 0.10, waiting[2], total[2]),
        reported(f"{name}: the encoder waits / the whole extraction, 1 worker", waiting[1], total[1]),
        reported(f"{name}: the whole extraction, 1 worker / 2 workers", total[1], total[2]),
        reported(f"{name}: the whole extraction, 2 workers / encoding alone", total[2], encoded),
        *(
            Row(what=f"{name}: {what}", measured=f"{three_digits(num_frames / seconds)} frames/s")
            for what, seconds in speeds.items()
        ),
        reported(f"{name}: decoding alone, 1 worker / 2 workers", one, two),
        reported(f"{name}: decoding alone, 2 threads / 2 running processes", two, forked),
        Row(what=f"{name}: start of 2 processes, with their first film", measured=f"{three_digits(started)} s"),
    ]


def reading_rows(name: str, films: dict[int, Path], rounds: int) -> list[Row]:
    """Return rows that compare ways to read the frames of a film."""
    rows = []
    for group, path in films.items():
        for rate in READ_RATES:
            every, needed = in_turns(
                [
                    lambda path=path, rate=rate: exhaust(lambda: decode_all(path, rate)),  # type: ignore[misc]
                    lambda path=path, rate=rate: exhaust(lambda: read_frames(path, rate)),  # type: ignore[misc]
                ],
                rounds,
            )
            what = f"{name}, a key frame every {group / FILM_RATE:g} s: {rate:g} frames/s"
            rows.append(reported(f"{what}, every frame decoded / only what is needed", every, needed))
    path = films[GROUPS[0]]
    kinds = ("NONE", "FRAME", "SLICE", "AUTO")
    alone, *others = in_turns([partial(exhaust, partial(decode_all, path, RATE, kind)) for kind in kinds], rounds)
    rows += [
        reported(f"{name}: decoding with one thread / with {kind} threads", alone, seconds)
        for kind, seconds in zip(kinds[1:], others, strict=True)
    ]
    times = [5 + k / 2 for k in range(NUM_MOMENTS)]
    read, jumped = in_turns([partial(exhaust, partial(read_frames, path, 12)), partial(frames_at, path, times)], rounds)
    rows.append(reported(f"{name}: {NUM_MOMENTS} moments, reading all frames / seeking", read, jumped))
    return rows


def measure(folder: Path, sizes: Sizes) -> list[Row]:
    """Measure everything with films in a folder."""
    clip = save_base_clip(folder / "clip")
    backbone, preprocessing = load_backbone(f"local-dir:{clip}"), Preprocessing.read(clip)
    rows: list[Row] = []
    reading: list[Row] = []
    for name, size in SIZES.items():
        films = {group: write_film(folder / f"{size[0]}-{group}.mp4", size, sizes.seconds, group) for group in GROUPS}
        dataset_folder = folder / f"films-{size[0]}"
        dataset_folder.mkdir()
        for number in range(sizes.films):
            shutil.copy(films[GROUPS[0]], dataset_folder / f"{number:03}.mp4")
        rows += extraction_rows(name, dataset_folder, backbone, preprocessing, sizes)
        reading += reading_rows(name, films, sizes.rounds)
    return rows + reading


def report(rows: Sequence[Row], sizes: Sizes) -> str:
    """Return the report as Markdown."""
    lines = [
        "# Extraction speed",
        "",
        "Measured by `make bench-extract`. Ratios are medians over rounds of one run in which the candidates take",
        "turns. The seconds in brackets depend on the machine and its load.",
        "",
        f"{sizes.films} H.264 films of {sizes.seconds} s at {FILM_RATE} frames/s. A CLIP ViT-B/32 with random weights "
        f"encodes {RATE:g}",
        f"frames/s in batches of 64, on the CPU that also decodes. {sizes.rounds} rounds.",
        "",
        machine(),
        "",
    ]
    return "\n".join([*lines, *table(rows), "", *REMARKS, ""])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", type=int, default=10, help="number of films [10]")
    parser.add_argument("--seconds", type=int, default=20, help="length of a film, at least 8 [20]")
    parser.add_argument("--rounds", type=int, default=3, help="number of timed rounds [3]")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    sizes = Sizes(films=arguments.films, seconds=arguments.seconds, rounds=arguments.rounds)
    with TemporaryDirectory() as folder:
        text = report(measure(Path(folder), sizes), sizes)
    publish(text, arguments.write)


if __name__ == "__main__":
    main()
