"""Charades-STA, in its original layout charades_sta_{train,test}.txt: one line per sentence.

    AB1CD 24.3 30.4##person turns a light on.

The durations of the videos are in the column `length` of Charades_v1_{train,test}.csv. Without these optional files
the durations are unknown. Queries are numbered within their video, as in the PRVR releases: `AB1CD#enc#0` and so on.

The JSON Lines files of moment retrieval projects (see `moment_jsonl`) are supported too.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from midreel.datasets import moment_jsonl, parsing
from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Entry, Remarks, assemble, find_files
from midreel.errors import BadAnnotation

NAME = "charades"
FILES = {
    "charades_sta_train.txt": "train",
    "charades_sta_test.txt": "test",
    "charades_train_release.jsonl": "train",
    "charades_test_release.jsonl": "test",
}
DURATION_FILES = ("Charades_v1_train.csv", "Charades_v1_test.csv")


def load(folder: Path) -> Annotations:
    """Return the annotations in a folder."""
    remarks = Remarks()
    files = find_files(folder, FILES, remarks)
    durations = _durations(folder)
    entries = {
        split: _entries(path, durations, remarks) if path.suffix == ".txt" else moment_jsonl.read_entries(path)
        for split, path in files.items()
    }
    return assemble(NAME, folder, files, entries, remarks)


def _entries(path: Path, durations: Mapping[str, float], remarks: Remarks) -> Iterator[Entry]:
    num_queries: Counter[str] = Counter()
    for line_number, line in parsing.read_lines(path):
        where = f"{path}, line {line_number}"
        head, marks, sentence = line.partition("##")
        try:
            video_id, start, end = head.split() if marks else []
            window = (float(start), float(end))
        except ValueError as error:
            raise BadAnnotation(
                f"{where} is {line[:80]!r}, expected 'VIDEO START END##SENTENCE'. Fix the line."
            ) from error
        if durations and video_id not in durations:
            remarks.add("sentences about videos that are missing in the CSV files", video_id)
        yield Entry(
            where=where,
            id=f"{video_id}#enc#{num_queries[video_id]}",
            text=sentence,
            video_id=video_id,
            duration=durations.get(video_id),
            windows=(window,),
        )
        num_queries[video_id] += 1


def _durations(folder: Path) -> dict[str, float]:
    """Return the seconds of each video that the CSV files in the folder list."""
    durations: dict[str, float] = {}
    for path in (folder / name for name in DURATION_FILES if (folder / name).is_file()):
        rows = parsing.table_rows(path, parsing.read_text(path), ",")
        _, header = next(rows, (0, []))
        if not {"id", "length"} <= set(header):
            raise BadAnnotation(
                f"{path} has the columns {', '.join(header) or 'none'}, expected id and length. Download it again."
            )
        for number, row in rows:
            values = dict(zip(header, row, strict=False))
            try:
                durations[values["id"]] = float(values["length"])
            except (KeyError, ValueError) as error:
                raise BadAnnotation(
                    f"{path}, line {number}: length is {values.get('length')!r}, expected seconds. Download it again."
                ) from error
    return durations
