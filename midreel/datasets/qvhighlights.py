"""QVHighlights, from its own highlight_*_release.jsonl, regrouped for retrieval.

Its annotators watched segments of at most 150 s, each with an id `{YouTube id}_{from}_{to}`. Retrieval of partially
relevant videos looks for the whole: all segments of one YouTube video, joined in the order of their start. A segment's
times count from its own beginning, so in the joined video they are later by the length of the segments before.
"""

import re
from dataclasses import replace
from pathlib import Path

from midreel.datasets import moment_jsonl
from midreel.datasets.annotations import Annotations, Part, starts
from midreel.datasets.assembly import Entry, Remarks, assemble, is_duration, present, split_of
from midreel.errors import BadAnnotation
from midreel.types import Moment, Query

NAME = "qvhighlights"
FILES = {
    "highlight_train_release.jsonl": "train",
    "highlight_val_release.jsonl": "val",
    "highlight_test_with_gt.jsonl": "test",  # published later: the test queries with their windows
    "highlight_test_release.jsonl": "test",
}
_SEGMENT = re.compile(r"(.+)_([0-9]{1,8}(?:\.[0-9]+)?)_([0-9]{1,8}(?:\.[0-9]+)?)")  # the YouTube id may hold a '_'


def collect(folder: Path) -> Annotations:
    remarks = Remarks()
    files = present(folder, FILES, remarks)
    entries = {split: [_timed(entry, remarks) for entry in moment_jsonl.entries(path)] for split, path in files.items()}
    return _regrouped(assemble(NAME, folder, files, entries, remarks))


def _timed(entry: Entry, remarks: Remarks) -> Entry:
    """An entry that says how long its segment lasts: what its id says, where it says nothing of use itself."""
    start, end = _span(entry.video_id)[1:]
    if not start < end:
        raise BadAnnotation(
            f"{entry.where}: vid is {entry.video_id!r}, expected a segment such as aBc_dEfGh12_60.0_210.0, a YouTube "
            f"id and the seconds from which and to which; fix the line"
        )
    if entry.duration is not None and is_duration(entry.duration):
        return entry
    remarks.note("segments whose duration is taken from their id", entry.video_id)
    return replace(entry, duration=end - start)


def _span(segment_id: str) -> tuple[str, float, float]:
    """The YouTube id of a segment, and from where to where it lasts there; nowhere, if it is not the id of one."""
    found = _SEGMENT.fullmatch(segment_id)
    return (found[1], float(found[2]), float(found[3])) if found else ("", 0.0, 0.0)


def _regrouped(segments: Annotations) -> Annotations:
    """The same queries about joined videos. A video that several splits name is joined from the segments of all."""
    of_video: dict[str, list[Part]] = {}
    for segment_id, seconds in sorted(segments.durations.items(), key=lambda item: (_span(item[0])[1:], item[0])):
        of_video.setdefault(_span(segment_id)[0], []).append(Part(id=segment_id, duration=seconds))
    parts = {video_id: tuple(each) for video_id, each in of_video.items()}
    start_of = {part.id: start for each in parts.values() for part, start in zip(each, starts(each), strict=True)}
    return replace(
        segments,
        splits={
            name: split_of([_shifted(query, start_of[query.video_id]) for query in split.queries])
            for name, split in segments.splits.items()
        },
        durations={video_id: sum(part.duration for part in each) for video_id, each in parts.items()},
        parts=parts,
    )


def _shifted(query: Query, start: float) -> Query:
    moments = tuple(Moment(start=each.start + start, end=each.end + start) for each in query.moments)
    return replace(query, video_id=_span(query.video_id)[0], moments=moments)
