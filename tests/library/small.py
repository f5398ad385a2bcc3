"""A small backbone that knows four colours, films of these colours, and shortcuts to index and search them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from midreel.errors import BadStore
from midreel.features.backbones.base import Fingerprint, Image
from midreel.library import indexer
from midreel.library.report import IndexReport, Step
from midreel.library.searcher import Searcher
from midreel.library.writer import Wanted, Writer
from midreel.media.decode import write_video
from midreel.types import TextFeatures
from tests.features.fakes import FINGERPRINT

COLOURS = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220), "grey": (125, 125, 125)}
RATE = 4  # frames per second of the films
SECONDS = 2  # that each colour stays


class Eye:
    """A backbone: an image is its similarity to each colour, a text the colours it names. It counts images."""

    window = 1

    def __init__(self, fingerprint: Fingerprint | None = None) -> None:
        self.fingerprint = fingerprint or replace(FINGERPRINT, frame_rate=None, dtype=None, source="eye")
        self.num_images = 0

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        return np.broadcast_to(image.mean((0, 1)).round().astype(np.uint8)[:, None, None], (3, 8, 8))

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N 3 H W"]) -> Float[np.ndarray, "N E"]:
        self.num_images += len(pixels)
        seen = pixels.mean((2, 3), dtype=np.float32)[:, None]
        known = np.array(list(COLOURS.values()), np.float32)
        return np.exp(-np.linalg.norm(seen - known, axis=-1) / 50)

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        return self.encode_pixels(np.stack([self.prepare(image) for image in images]))

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        named = [np.array([colour in text for colour in COLOURS], np.float32) for text in texts]
        return [
            TextFeatures(words=np.ones((len(text) + 2, 6), np.float32), sentence=name)
            for text, name in zip(texts, named, strict=True)
        ]


def film(path: Path, *colours: str) -> Path:
    """Write a video that shows each colour for two seconds. The file name may be any bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = (np.full((16, 16, 3), COLOURS[colour], np.uint8) for colour in colours for _ in range(RATE * SECONDS))
    plain = path.parent / f".{os.getpid()}.mp4"
    write_video(plain, images, RATE)
    plain.replace(path)
    return path


def index(
    library: Path, *places: Path, eye: Eye | None = None, wanted: Wanted | None = None, **options: object
) -> IndexReport:
    with opened(library, eye=eye, wanted=wanted) as writer:
        return indexer.index(writer, places, **options)  # type: ignore[arg-type]


@contextmanager
def opened(library: Path, *, eye: Eye | None = None, wanted: Wanted | None = None) -> Iterator[Writer]:
    with Writer.open(library, wanted, backbone=eye or Eye()) as writer:
        yield writer


def counts(report: IndexReport) -> dict[str, int]:
    """Return the counts of a report that are not 0."""
    names = ("new", "changed", "moved", "copies", "touched", "repaired", "removed", "quarantined", "failed")
    found = {name: len(getattr(report, name)) for name in names} | {"unchanged": report.unchanged}
    return {name: count for name, count in found.items() if count}


def found(library: Path, query: str, **options: object) -> list[str]:
    with Searcher.open(library, backbone=Eye()) as searcher:
        return [hit.path.name for hit in searcher.search(query, **options)]  # type: ignore[arg-type]


def everything(library: Path) -> dict[str, str]:
    """Return the score of each hit by query and path: everything that a user sees."""
    with Searcher.open(library, backbone=Eye()) as searcher:
        hits = {query: searcher.search(query, top=99) for query in ("red", "green", "blue")}
    return {f"{query} {path}": f"{hit.score:.5f}" for query, each in hits.items() for hit in each for path in hit.paths}


class Killed(BaseException):
    """Stands for a kill: no handler of Exception catches it."""


def kill(step: Step) -> None:
    raise Killed


def damaged(video_id: str) -> None:
    raise BadStore(f"{video_id} is damaged")
