"""Charades-STA, from its own charades_sta_{train,test}.txt: a line for each sentence.

    AB1CD 24.3 30.4##person turns a light on.

How long a video lasts is said elsewhere, in the column `length` of Charades_v1_{train,test}.csv; where these files are
missing, the rest is as good. Queries are numbered within their video: `AB1CD#enc#0` and so on, as in the PRVR releases.
The uniform lines of other projects are read as well.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from midreel.datasets import moment_jsonl, parsing
from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Entry, Remarks, assemble, present
from midreel.errors import BadAnnotation

NAME = "charades"
FILES = {
    "charades_sta_train.txt": "train",
    "charades_sta_test.txt": "test",
    "charades_train_release.jsonl": "train",
    "charades_test_release.jsonl": "test",
}
DURATIONS = ("Charades_v1_train.csv", "Charades_v1_test.csv")


def collect(folder: Path) -> Annotations:
    remarks = Remarks()
    files = present(folder, FILES, remarks)
    durations = _durations(folder)
    entries = {
        split: _entries(path, durations, remarks) if path.suffix == ".txt" else moment_jsonl.entries(path)
        for split, path in files.items()
    }
    return assemble(NAME, folder, files, entries, remarks)


def _entries(path: Path, durations: Mapping[str, float], remarks: Remarks) -> Iterator[Entry]:
    count: Counter[str] = Counter()
    for line_number, line in parsing.lines(path):
        where = f"{path}, line {line_number}"
        head, marks, sentence = line.partition("##")
        try:
            video_id, start, end = head.split() if marks else []
            window = (float(start), float(end))
        except ValueError as error:
            raise BadAnnotation(
                f"{where} is {line[:80]!r}, expected a video, its start, its end, ## and a sentence; fix the line"
            ) from error
        if durations and video_id not in durations:
            remarks.note("sentences about videos that the csv files do not know", video_id)
        yield Entry(
            where=where,
            id=f"{video_id}#enc#{count[video_id]}",
            text=sentence,
            video_id=video_id,
            duration=durations.get(video_id),
            windows=(window,),
        )
        count[video_id] += 1


def _durations(folder: Path) -> dict[str, float]:
    """The seconds of each video of Charades, as far as its csv files are beside the sentences."""
    found: dict[str, float] = {}
    for path in (folder / name for name in DURATIONS if (folder / name).is_file()):
        rows = parsing.table(path, parsing.read_text(path), ",")
        _, header = next(rows, (0, []))
        if not {"id", "length"} <= set(header):
            raise BadAnnotation(f"{path} has the columns {', '.join(header)}, expected id and length; fetch it again")
        for number, row in rows:
            values = dict(zip(header, row, strict=False))
            try:
                found[values["id"]] = float(values["length"])
            except (KeyError, ValueError) as error:
                raise BadAnnotation(
                    f"{path}, line {number}: length is {values.get('length')!r}, expected seconds; fetch it again"
                ) from error
    return found
