"""A dataset: what a benchmark's files, or a folder of one's own, say about videos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Literal

from midreel.errors import BadAnnotation, UnknownName
from midreel.types import Query, Split

# original: a benchmark's own annotation files; release: the trees of the PRVR papers; own: a folder of one's own.
Layout = Literal["original", "release", "own"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of a video that is stored on its own: its id, and how many seconds it lasts."""

    id: str
    duration: float


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """The splits of a data set, read from the `files` in `folder`.

    `durations` has the seconds that a video lasts, where the annotations say them. `parts` has the videos that are
    stored in pieces, in order of time: joined one after the other they are the video, and the moments of its queries
    count from the beginning of the first. `remarks` tell in words what was mended or left out.

    In a split every query has an id of its own; the splits of some releases share videos, queries and ids.
    """

    name: str
    layout: Layout
    folder: Path
    files: tuple[Path, ...]
    splits: Mapping[str, Split]
    durations: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, split in self.splits.items():
            known: dict[str, Query] = {}
            for query in split.queries:
                other = known.setdefault(query.id, query)
                if other is not query:
                    raise BadAnnotation(
                        f"{self.folder}, {name}: {query.id!r} is the id of {other.text!r} and of {query.text!r}, "
                        f"expected one for each query; give one of them another"
                    )

    def split(self, name: str) -> Split:
        if name not in self.splits:
            raise UnknownName.among(f"split of {self.name} in {self.folder}:", name, self.splits)
        return self.splits[name]


def starts(parts: Sequence[Part]) -> list[float]:
    """The second at which each part begins in the joined video.

    >>> starts([Part(id="a", duration=150.0), Part(id="b", duration=126.0), Part(id="c", duration=150.0)])
    [0.0, 150.0, 276.0]
    """
    return list(accumulate((part.duration for part in parts[:-1]), initial=0.0)) if parts else []
