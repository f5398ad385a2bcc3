"""QVHighlights, in its original layout highlight_*_release.jsonl, regrouped for video retrieval.

Its annotators watched segments of at most 150 s, with ids `{YouTube id}_{start}_{end}`. Partially relevant video
retrieval searches for whole videos: all segments of one YouTube video, joined in the order of their start. The times of
a segment count from its own start. In the joined video they move by the length of the segments before it.
"""

import re
from dataclasses import replace
from pathlib import Path

from midreel.datasets import moment_jsonl
from midreel.datasets.annotations import Annotations, Part, starts
from midreel.datasets.assembly import Entry, Remarks, assemble, find_files, is_duration, split_of
from midreel.errors import BadAnnotation
from midreel.types import Moment, Query

NAME = "qvhighlights"
FILES = {
    "highlight_train_release.jsonl": "train",
    "highlight_val_release.jsonl": "val",
    "highlight_test_with_gt.jsonl": "test",  # published later: the test queries with their windows
    "highlight_test_release.jsonl": "test",
}
# The first group is greedy because a YouTube id may contain an underscore.
_SEGMENT_ID = re.compile(r"(.+)_([0-9]{1,8}(?:\.[0-9]+)?)_([0-9]{1,8}(?:\.[0-9]+)?)")


def load(folder: Path) -> Annotations:
    """Return the annotations in a folder. Each video is joined from its segments."""
    remarks = Remarks()
    files = find_files(folder, FILES, remarks)
    entries = {
        split: [_with_duration(entry, remarks) for entry in moment_jsonl.read_entries(path)]
        for split, path in files.items()
    }
    return _join_segments(assemble(NAME, folder, files, entries, remarks))


def _with_duration(entry: Entry, remarks: Remarks) -> Entry:
    """Return the entry with a valid duration, taken from the segment's id if the entry has none."""
    _, start, end = _parse_segment_id(entry.video_id)
    if not start < end:
        raise BadAnnotation(
            f"{entry.where}: vid is {entry.video_id!r}, expected a YouTube id, a start and an end, such as "
            f"aBc_dEfGh12_60.0_210.0. Fix the line."
        )
    if entry.duration is not None and is_duration(entry.duration):
        return entry
    remarks.add("segments with a duration taken from their id", entry.video_id)
    return replace(entry, duration=end - start)


def _parse_segment_id(segment_id: str) -> tuple[str, float, float]:
    """Return YouTube id, start and end of a segment, or an empty span if this is not the id of a segment."""
    found = _SEGMENT_ID.fullmatch(segment_id)
    return (found[1], float(found[2]), float(found[3])) if found else ("", 0.0, 0.0)


def _join_segments(segments: Annotations) -> Annotations:
    """Return the same queries about joined videos. A video in several splits is joined from the segments of all."""
    parts_of_video: dict[str, list[Part]] = {}
    # Segments are in order of their start, end and id.
    ordered = sorted(segments.durations.items(), key=lambda item: (_parse_segment_id(item[0])[1:], item[0]))
    for segment_id, seconds in ordered:
        youtube_id, _, _ = _parse_segment_id(segment_id)
        parts_of_video.setdefault(youtube_id, []).append(Part(id=segment_id, duration=seconds))
    start_of_segment = {
        part.id: start for parts in parts_of_video.values() for part, start in zip(parts, starts(parts), strict=True)
    }
    return replace(
        segments,
        splits={
            name: split_of([_move(query, start_of_segment[query.video_id]) for query in split.queries])
            for name, split in segments.splits.items()
        },
        durations={video_id: sum(part.duration for part in parts) for video_id, parts in parts_of_video.items()},
        parts={video_id: tuple(parts) for video_id, parts in parts_of_video.items()},
    )


def _move(query: Query, start: float) -> Query:
    """Return a query about a segment as a query about the joined video, in which the segment begins at `start`."""
    youtube_id, _, _ = _parse_segment_id(query.video_id)
    moments = tuple(Moment(start=moment.start + start, end=moment.end + start) for moment in query.moments)
    return replace(query, video_id=youtube_id, moments=moments)
