"""The calibration of a generation: what the library scores for sentences that it does not match.

`confidence.json` in the folder of a generation stores it. It is derived data: without it, hits have no confidence, and
the next `midreel index` makes it. A file that is damaged, or of another generation, counts as missing. It is replaced
atomically, so a crash leaves the old one or the new one.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from midreel.errors import MidreelError
from midreel.features.backbones.base import Backbone
from midreel.index.base import Index
from midreel.io.files import write_durably, write_errors
from midreel.library.encoder import Encoder
from midreel.library.layout import Generation
from midreel.ops import calibration
from midreel.ops.calibration import Background

NAME = "confidence.json"
SENTENCES = Path(__file__).parents[1] / "assets" / "background.txt"
_GROWTH = 0.25  # calibrate again when the number of videos has changed by more than this part
_BATCH = 64  # sentences


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The content of confidence.json.

    Attributes:
        location: The median of the best scores of the background sentences.
        scale: The standard deviation of these scores.
        num_videos: The number of videos that were searched.
        sentences: The SHA-256 of the background sentences.
        owner: The library and the generation.
    """

    location: float
    scale: float
    num_videos: int
    sentences: str
    owner: str

    def confidences(self, scores: Sequence[float]) -> list[float]:
        """Return the probability of each score that a hit with this score matches its query."""
        against = Background(location=self.location, scale=self.scale)
        found: list[float] = calibration.confidence(np.array(scores, np.float64), against).tolist()
        return found

    def fits(self, num_videos: int) -> bool:
        """Return whether the calibration holds for a library of this size."""
        same = self.sentences == _digest(background_sentences())
        return same and abs(num_videos - self.num_videos) <= _GROWTH * self.num_videos


@cache
def background_sentences() -> tuple[str, ...]:
    """Return the sentences about everyday things that come with midreel."""
    return tuple(SENTENCES.read_text(encoding="utf-8").splitlines())


def measure(generation: Generation, index: Index, encoder: Encoder, backbone: Backbone) -> Calibration | None:
    """Search the background sentences, and return the calibration of a generation; None for an empty index.

    Args:
        generation: The generation.
        index: Its index.
        encoder: Its model.
        backbone: The backbone of the library.
    """
    sentences, best = background_sentences(), list[float]()
    for start in range(0, len(sentences), _BATCH):
        texts = backbone.encode_texts(list(sentences[start : start + _BATCH]))
        best += [found[0].score for found in index.search(encoder.encode_queries(texts), top=1) if found]
    if not best:
        return None
    return Calibration(
        **asdict(calibration.background(np.array(best))),
        num_videos=len(index),
        sentences=_digest(sentences),
        owner=generation.owner,
    )


def write(generation: Generation, found: Calibration) -> None:
    """Write the calibration of a generation. Raise Unwritable if the disk is full, or the folder is read-only."""
    with write_errors(generation.folder):
        write_durably(generation.folder / NAME, to_text(found))


def to_text(found: Calibration) -> str:
    """Return the content of confidence.json."""
    values = asdict(found)
    return json.dumps(values | {"checksum": _checksum(values)}, indent=2) + "\n"


def read(generation: Generation) -> Calibration | None:
    """Return the calibration of a generation; None if it is missing, damaged, or of another generation."""
    with suppress(OSError, ValueError):
        return from_text(generation, (generation.folder / NAME).read_text(encoding="utf-8"))
    return None


def from_text(generation: Generation, text: str) -> Calibration | None:
    """Return the calibration in the content of confidence.json; None if it is damaged, or of another generation."""
    # A RecursionError comes from a damaged file with many brackets.
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError, MidreelError):
        values = json.loads(text)
        if values.pop("checksum") == _checksum(values) and values["owner"] == generation.owner:
            found = Calibration(**values)
            found.confidences([0.0])  # raises an error if a value has the wrong type or range
            return found
    return None


def _digest(sentences: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(sentences).encode()).hexdigest()


def _checksum(values: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
