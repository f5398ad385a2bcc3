"""Build annotations from the lines of a benchmark's files, and repair common errors.

The files of the benchmarks contain errors. Each repair is counted in the remarks of the annotations:

* Whitespace around a text is removed. A line without text is skipped.
* If the end of a moment is before its start, the two are swapped.
* A moment that reaches beyond its video is clipped to it.
* A moment outside its video, or with a time that is not finite, is removed. Its query remains.
* If lines disagree on the duration of a video, the longest is used. A duration of 0 or less is ignored.
* A duplicate line is skipped. If two different lines have the same id, the second is renamed (7 becomes 7~2).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from midreel.datasets.annotations import Annotations
from midreel.errors import BadAnnotation
from midreel.types import Moment, Query, Split

MAX_DURATION = 1e9  # seconds, about 30 years: a longer duration is an error, and sums of such durations may overflow


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of an annotation file: a sentence about a video, and its time windows (start, end) in seconds."""

    where: str = field(compare=False)
    id: str
    text: str
    video_id: str
    windows: tuple[tuple[float, float], ...] = ()
    duration: float | None = None


class Remarks:
    """Counts of repaired and skipped items, with the first example of each kind."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, kind: str, example: str) -> None:
        """Count one item of this kind."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._examples.setdefault(kind, example)

    def lines(self) -> tuple[str, ...]:
        """Return one line for each kind."""
        return tuple(f"{kind}: {count:,}, first {self._examples[kind]}" for kind, count in self._counts.items())


def find_files(folder: Path, split_of_file: Mapping[str, str], remarks: Remarks) -> dict[str, Path]:
    """Return the existing file of each split.

    Args:
        folder: The folder of the dataset.
        split_of_file: The split of each file name. If two files of one split exist, the first is used.
        remarks: Counts the skipped files.

    Raises:
        BadAnnotation: None of the files exists.
    """
    file_of_split: dict[str, Path] = {}
    for name, split in split_of_file.items():
        path = folder / name
        if path.is_file() and file_of_split.setdefault(split, path) != path:
            remarks.add("files skipped in favour of another file of the same split", name)
    if not file_of_split:
        raise BadAnnotation(f"{folder} has none of the files {', '.join(split_of_file)}. Download at least one.")
    return file_of_split


def assemble(
    name: str, folder: Path, files: Mapping[str, Path], entries: Mapping[str, Iterable[Entry]], remarks: Remarks
) -> Annotations:
    """Return the annotations of a benchmark in its original layout.

    Args:
        name: The benchmark.
        folder: The folder of the dataset.
        files: The file of each split.
        entries: The lines of each split.
        remarks: Counts the repairs. Reading `entries` may add to it.

    Raises:
        BadAnnotation: No line describes a video.
    """
    entries_of_split = {split: [*lines] for split, lines in entries.items()}
    durations = _durations((entry for lines in entries_of_split.values() for entry in lines), remarks)
    queries_of_split = {split: _queries(lines, durations, remarks) for split, lines in entries_of_split.items()}
    for split, queries in queries_of_split.items():
        if not queries:
            remarks.add("files without queries", files[split].name)
    if not any(queries_of_split.values()):
        names = ", ".join(path.name for path in files.values())
        raise BadAnnotation(f"{folder}: no query in {names}, expected at least one. Download the files again.")
    return Annotations(
        name=name,
        layout="original",
        folder=folder,
        files=tuple(files.values()),
        splits={split: split_of(queries) for split, queries in queries_of_split.items() if queries},
        durations=durations,
        remarks=remarks.lines(),
    )


def split_of(queries: Sequence[Query]) -> Split:
    """Return a split with these queries, and with their videos in order of appearance."""
    return Split(video_ids=tuple(dict.fromkeys(query.video_id for query in queries)), queries=tuple(queries))


def is_duration(seconds: float) -> bool:
    """Return whether a number can be the duration of a video."""
    return 0 < seconds < MAX_DURATION


def _durations(entries: Iterable[Entry], remarks: Remarks) -> dict[str, float]:
    """Return the longest valid duration of each video."""
    durations: dict[str, float] = {}
    for entry in entries:
        if entry.duration is None:
            continue
        if not is_duration(entry.duration):
            remarks.add("invalid durations, ignored", f"{entry.duration:g} s of {entry.video_id}")
            continue
        known = durations.setdefault(entry.video_id, entry.duration)
        if known != entry.duration:
            example = f"{entry.video_id} with {known:g} and {entry.duration:g} s"
            remarks.add("conflicting durations, the longest used", example)
            durations[entry.video_id] = max(known, entry.duration)
    return durations


def _queries(entries: Iterable[Entry], durations: Mapping[str, float], remarks: Remarks) -> list[Query]:
    """Return one query for each distinct line, with unique ids."""
    entry_of_id: dict[str, Entry] = {}
    for entry in entries:
        if not entry.text.strip():
            remarks.add("lines without text, skipped", f"{entry.id} of {entry.video_id}")
            continue
        query_id, count = entry.id, 1
        # Try 7, 7~2, 7~3 and so on, until the id is free or belongs to an equal line.
        while entry_of_id.get(query_id, entry) != entry:
            count += 1
            query_id = f"{entry.id}~{count}"
        if query_id in entry_of_id:
            remarks.add("duplicate lines, skipped", f"{entry.id} of {entry.video_id}")
        elif query_id != entry.id:
            remarks.add("duplicate ids, renamed", f"{entry.id} to {query_id}")
        entry_of_id[query_id] = entry
    return [
        Query(
            id=query_id,
            text=entry.text.strip(),
            video_id=entry.video_id,
            moments=repair_moments(entry.windows, durations.get(entry.video_id), query_id, remarks),
        )
        for query_id, entry in entry_of_id.items()
    ]


def repair_moments(
    windows: Iterable[tuple[float, float]], duration: float | None, query_id: str, remarks: Remarks
) -> tuple[Moment, ...]:
    """Return the moments of a query, in order and clipped to the video.

    Args:
        windows: Start and end of each moment, in seconds, possibly invalid.
        duration: The seconds of the video; None if unknown.
        query_id: The query, for the remarks.
        remarks: Counts the repairs.
    """
    limit = math.inf if duration is None else duration
    moments = []
    for window in windows:
        start, end = sorted(window)
        example = f"{window[0]:g} to {window[1]:g} s of {query_id}"
        if not all(map(math.isfinite, window)):
            remarks.add("moments with times that are not finite, removed", example)
        # A window that only touches the video's start or end has no overlap with it, unless it is a single instant.
        elif end < 0 or start > limit or (start < end and (end == 0 or start == limit)):
            remarks.add("moments outside their video, removed", example)
        else:
            if start != window[0]:
                remarks.add("moments with the end before the start, swapped", example)
            if start < 0 or end > limit:
                remarks.add("moments partly outside their video, clipped", example)
            moments.append(Moment(start=max(start, 0.0), end=min(end, limit)))
    return tuple(moments)
