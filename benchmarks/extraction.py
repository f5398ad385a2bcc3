"""How fast features are extracted, and how much of that time the encoder waits for the decoder.

    make bench-extract

A CLIP of random weights with a ViT-B/32, and H.264 films made on the spot. Ratios are measured in one run, in rounds in
which the candidates take turns, so that a noisy machine disturbs them alike.
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

from benchmarks.measuring import Row, at_most, in_turns, machine, reported, table, three_digits
from midreel.datasets import dataset
from midreel.datasets.sources import Source
from midreel.features.backbones.base import Backbone, Fingerprint, Image, load_backbone
from midreel.features.backbones.preprocess import Preprocessing
from midreel.media.decode import frames_at, read_frames
from midreel.types import TextFeatures
from tests.features.tiny_clip import save_base_clip

SIZES = {"640x360": (360, 640), "1280x720": (720, 1280)}
FILM_RATE = 25
GROUPS = (250, 50)  # frames from one key frame to the next, at the most: x264's own choice, and a streaming service's
RATE = 2.0  # frames per second that are encoded
READ_RATES = (0.5, 1.0, 2.0)
NUM_MOMENTS = 6

REMARKS = (
    "The encoder waits while it does not encode: for the first batch, for decoders that are late, and while",
    "the store is written. Decoding alone includes the conversion to RGB and the resizing to 224 pixels, which (by",
    "Pillow's bicubic filter, as the fingerprint promises) takes about as long as decoding itself.",
    "",
    "Every frame decoded: what a plain loop over PyAV's frames does, with a conversion of the same ones. Only what is",
    "needed: `midreel.media.decode.read_frames`, which gives the same bits (tests/media/test_decode.py); see",
    "midreel/media/packets.py.",
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    films: int
    seconds: int
    rounds: int


# ---------------------------------------------------------------- films


def write_film(path: Path, size: tuple[int, int], seconds: int, group: int) -> Path:
    """Scenes of seven seconds over which a camera pans, something that moves in front of them, and some grain."""
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
    """Clouds of all sizes, coarse ones stronger, as in pictures of the world."""
    total = np.zeros((height, width, 3))
    for size in (4, 8, 16, 32, 64, 128):
        for channel in range(3):
            coarse = generator.normal(size=(height // size + 2, width // size + 2)).astype(np.float32)
            total[..., channel] += size**0.6 * np.asarray(Pillow.fromarray(coarse).resize((width, height)))
    low, high = total.min(), total.max()
    return ((total - low) / (high - low) * 255).astype(np.uint8)


# ---------------------------------------------------------------- what is measured


class Timed:
    """A backbone that notes how long it encodes."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self.window = backbone.window
        self.seconds = 0.0

    @property
    def fingerprint(self) -> Fingerprint:
        return self._backbone.fingerprint

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        return self._backbone.prepare(image)

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N 3 H W"]) -> Float[np.ndarray, "N E"]:
        start = time.perf_counter()
        rows = self._backbone.encode_pixels(pixels)
        self.seconds += time.perf_counter() - start
        return rows

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        return self._backbone.encode_images(images)

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        return self._backbone.encode_texts(texts)


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Seconds of one: all of it, and those in which the encoder waited."""

    total: float
    waiting: float


def extract(folder: Path, backbone: Backbone, workers: int) -> Extraction:
    timed = Timed(backbone)
    out = folder / "features.h5"
    out.unlink(missing_ok=True)
    start = time.perf_counter()
    videos, _ = dataset.extract(Source.find(folder), timed, rate=RATE, out=out, workers=workers)
    total = time.perf_counter() - start
    assert not videos.failed, videos.failed
    return Extraction(total=total, waiting=total - timed.seconds)


def decode_film(path: Path, preprocessing: Preprocessing) -> list[Image]:
    """What a worker makes of a film."""
    return [preprocessing.prepare(image) for _, image in read_frames(path, RATE)]


def decode_films(paths: Sequence[Path], preprocessing: Preprocessing, executor: Executor | None) -> None:
    work = partial(decode_film, preprocessing=preprocessing)
    for _ in map(work, paths) if executor is None else executor.map(work, paths):
        pass


def decode_all(path: Path, rate: float, kind: str = "NONE") -> Iterator[Image]:
    """Every frame is decoded, those at the rate are converted."""
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
    for _ in frames():
        pass


# ---------------------------------------------------------------- the rows


def extraction_rows(
    name: str, folder: Path, backbone: Backbone, preprocessing: Preprocessing, sizes: Sizes
) -> list[Row]:
    """The whole, and its parts alone, for films of one size."""
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
        reported(f"{name}: decoding alone, 2 threads / 2 processes that were started before", two, forked),
        Row(what=f"{name}: starting 2 processes, with their first film", measured=f"{three_digits(started)} s"),
    ]


def reading_rows(name: str, films: dict[int, Path], rounds: int) -> list[Row]:
    """Ways to get at the frames of a film, one thread each unless it says otherwise."""
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
        reported(f"{name}: decoding by one thread / by threads of the kind {kind}", alone, seconds)
        for kind, seconds in zip(kinds[1:], others, strict=True)
    ]
    times = [5 + k / 2 for k in range(NUM_MOMENTS)]
    read, jumped = in_turns([partial(exhaust, partial(read_frames, path, 12)), partial(frames_at, path, times)], rounds)
    rows.append(reported(f"{name}: {NUM_MOMENTS} moments, by reading all / by jumping there", read, jumped))
    return rows


def measure(folder: Path, sizes: Sizes) -> list[Row]:
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
    lines = [
        "# Extraction speed",
        "",
        "Measured by `make bench-extract`. Ratios are taken within one run, medians of rounds in which the candidates",
        "take turns; the seconds in brackets depend on the machine and its neighbours.",
        "",
        f"{sizes.films} films of {sizes.seconds} s and {FILM_RATE} frames/s in H.264, of which {RATE:g} frames/s are "
        "encoded by a CLIP ViT-B/32",
        f"of random weights, in batches of 64, on the CPU that also decodes; {sizes.rounds} rounds.",
        "",
        machine(),
        "",
    ]
    return "\n".join([*lines, *table(rows), "", *REMARKS, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=20, help="that a film lasts; at least 8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    sizes = Sizes(films=arguments.films, seconds=arguments.seconds, rounds=arguments.rounds)
    with TemporaryDirectory() as folder:
        text = report(measure(Path(folder), sizes), sizes)
    print(text)
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
