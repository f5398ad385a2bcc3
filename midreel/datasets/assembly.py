"""From the lines of a benchmark's files, as they stand there, to a dataset that holds together.

Files that many people wrote have flaws. What is clear is mended, what is not is left out, and either is remarked:

* A text loses the spaces around it; a line without any text is left out.
* A moment that ends before it begins is turned round; what lies outside the video is cut off.
* Of a moment that lies outside altogether, or whose times are no numbers, nothing is left: the query stays without it.
* Where lines give one video several durations, the longest holds; one that is not above 0 is as good as none.
* A line that is there twice counts once; if only its id is, the second gets another (7, then 7~2).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from midreel.datasets.annotations import Annotations
from midreel.errors import BadAnnotation
from midreel.types import Moment, Query, Split

LONGEST = 1e9  # thirty years, in seconds: what claims to last longer is a mistake, and sums of it would overflow


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of annotations: a sentence about a video, the windows (start, end) in seconds in which it happens."""

    where: str = field(compare=False)
    id: str
    text: str
    video_id: str
    windows: tuple[tuple[float, float], ...] = ()
    duration: float | None = None


class Remarks:
    """What was mended or left out: how often, and where first."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._first: dict[str, str] = {}

    def note(self, what: str, where: str) -> None:
        self._counts[what] = self._counts.get(what, 0) + 1
        self._first.setdefault(what, where)

    def told(self) -> tuple[str, ...]:
        return tuple(f"{what}: {count:,}, first {self._first[what]}" for what, count in self._counts.items())


def present(folder: Path, split_of_file: Mapping[str, str], remarks: Remarks) -> dict[str, Path]:
    """The files that are there, by split. Of several for one split the one that is named first is taken."""
    found: dict[str, Path] = {}
    for name, split in split_of_file.items():
        path = folder / name
        if path.is_file() and found.setdefault(split, path) != path:
            remarks.note(
                "files that were not read, because another has their split", f"{name}, for {found[split].name}"
            )
    if not found:
        raise BadAnnotation(f"{folder} has none of the files {', '.join(split_of_file)}, expected one; fetch it")
    return found


def assemble(
    name: str, folder: Path, files: Mapping[str, Path], entries: Mapping[str, Iterable[Entry]], remarks: Remarks
) -> Annotations:
    """The dataset of the entries that stand in `files`, both by split. `remarks` is added to, and told."""
    read = {split: [*of_split] for split, of_split in entries.items()}
    durations = _durations((entry for of_split in read.values() for entry in of_split), remarks)
    queries = {split: _queries(of_split, durations, remarks) for split, of_split in read.items()}
    for split, found in queries.items():
        if not found:
            remarks.note("files without a query about a video", files[split].name)
    if not any(queries.values()):
        names = ", ".join(path.name for path in files.values())
        raise BadAnnotation(f"{folder}: {names} hold no query about a video, expected some; fetch the files again")
    return Annotations(
        name=name,
        layout="original",
        folder=folder,
        files=tuple(files.values()),
        splits={split: split_of(found) for split, found in queries.items() if found},
        durations=durations,
        remarks=remarks.told(),
    )


def split_of(queries: Sequence[Query]) -> Split:
    """The queries and the videos that they describe, in order of appearance."""
    return Split(video_ids=tuple(dict.fromkeys(query.video_id for query in queries)), queries=tuple(queries))


def is_duration(seconds: float) -> bool:
    return 0 < seconds < LONGEST


def _durations(entries: Iterable[Entry], remarks: Remarks) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in entries:
        if entry.duration is None:
            continue
        if not is_duration(entry.duration):
            remarks.note("durations that cannot be, left out", f"{entry.duration:g} s of {entry.video_id}")
            continue
        before = found.setdefault(entry.video_id, entry.duration)
        if before != entry.duration:
            other = f"{entry.video_id} with {before:g} and {entry.duration:g} s"
            remarks.note("lines that give a video another duration, of which the longest holds", other)
            found[entry.video_id] = max(before, entry.duration)
    return found


def _queries(entries: Iterable[Entry], durations: Mapping[str, float], remarks: Remarks) -> list[Query]:
    entry_of: dict[str, Entry] = {}
    for entry in entries:
        if not entry.text.strip():
            remarks.note("lines without a text, left out", f"{entry.id} of {entry.video_id}")
            continue
        query_id, count = entry.id, 1
        while entry_of.get(query_id, entry) != entry:
            count += 1
            query_id = f"{entry.id}~{count}"
        if query_id in entry_of:
            remarks.note("lines that are there twice, counted once", f"{entry.id} of {entry.video_id}")
        elif query_id != entry.id:
            remarks.note("ids that several lines have, made different", f"{entry.id}, now also {query_id}")
        entry_of[query_id] = entry
    return [
        Query(
            id=query_id,
            text=entry.text.strip(),
            video_id=entry.video_id,
            moments=mend(entry.windows, durations.get(entry.video_id), query_id, remarks),
        )
        for query_id, entry in entry_of.items()
    ]


def mend(
    windows: Iterable[tuple[float, float]], duration: float | None, query_id: str, remarks: Remarks
) -> tuple[Moment, ...]:
    """What is left of windows when they are put in order and cut to the video, whose duration may be unknown."""
    limit = math.inf if duration is None else duration
    moments = []
    for window in windows:
        start, end = sorted(window)
        where = f"{window[0]:g} to {window[1]:g} s of {query_id}"
        if not all(map(math.isfinite, window)):
            remarks.note("moments whose times are no numbers, left out", where)
        elif end < 0 or start > limit or (start < end and (end == 0 or start == limit)):
            remarks.note("moments outside their video, left out", where)
        else:
            if start != window[0]:
                remarks.note("moments that ended before they began, turned round", where)
            if start < 0 or end > limit:
                remarks.note("moments that reached beyond their video, cut off", where)
            moments.append(Moment(start=max(start, 0.0), end=min(end, limit)))
    return tuple(moments)
