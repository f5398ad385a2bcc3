"""The annotations of a dataset: splits of videos, and the queries that describe them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Literal

from midreel.errors import BadAnnotation, UnknownName
from midreel.types import Query, Split

# original: the files that a benchmark published. release: the caption files of the PRVR papers. own: your annotations.
Layout = Literal["original", "release", "own"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a video that has a file of its own. `duration` is in seconds."""

    id: str
    duration: float


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """The splits of a dataset.

    Query ids are unique within a split. Some releases use the same videos, queries and ids in several splits.

    Attributes:
        name: The benchmark, or `own`.
        layout: How the files are arranged.
        folder: The folder of the dataset.
        files: The files that were read.
        splits: Videos and queries, by the name of the split.
        durations: The seconds of each video, where the annotations state them.
        parts: The pieces of each video that is stored in pieces, in order of time. Joined end to end they are the
            video, and the moments of its queries count from the start of the first piece.
        remarks: What was repaired or skipped, with counts.
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
            query_of_id: dict[str, Query] = {}
            for query in split.queries:
                other = query_of_id.setdefault(query.id, query)
                if other is not query:
                    raise BadAnnotation(
                        f"{self.folder}, split {name}: {query.id!r} is the id of {other.text!r} and {query.text!r}, "
                        f"expected one query per id. Change one of the ids."
                    )

    def split(self, name: str) -> Split:
        """Return the split with this name.

        Raises:
            UnknownName: No split has this name. The message lists the splits.
        """
        if name not in self.splits:
            raise UnknownName.among(f"split of {self.name} in {self.folder}:", name, self.splits)
        return self.splits[name]


def starts(parts: Sequence[Part]) -> list[float]:
    """Return the second at which each part begins in the joined video.

    >>> starts([Part(id="a", duration=150.0), Part(id="b", duration=126.0), Part(id="c", duration=150.0)])
    [0.0, 150.0, 276.0]
    """
    return list(accumulate((part.duration for part in parts[:-1]), initial=0.0)) if parts else []
