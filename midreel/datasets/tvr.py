"""TVR, in its original layout tvr_{train,val}_release.jsonl: one JSON object per description.

    {"vid_name": "show_s01e02_seg02_clip_03", "duration": 61.4, "ts": [16.5, 33.9], "desc": "Ann nods. ", "desc_id": 12}

Many descriptions end with a space, and several videos share some of them, so `desc_id` is the id of the query. The
public test file does not name the videos of its descriptions, so these are skipped.
"""

from collections.abc import Iterator
from pathlib import Path

from midreel.datasets import parsing
from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Entry, Remarks, assemble, find_files

NAME = "tvr"
FILES = {
    "tvr_train_release.jsonl": "train",
    "tvr_val_release.jsonl": "val",
    "tvr_test_release.jsonl": "test",
    "tvr_test_public_release.jsonl": "test",
}


def load(folder: Path) -> Annotations:
    """Return the annotations in a folder."""
    remarks = Remarks()
    files = find_files(folder, FILES, remarks)
    entries = {split: _entries(path, remarks) for split, path in files.items()}
    return assemble(NAME, folder, files, entries, remarks)


def _entries(path: Path, remarks: Remarks) -> Iterator[Entry]:
    for where, values in parsing.read_json_lines(path):
        query_id = parsing.get_id(values, "desc_id", where)
        if "vid_name" not in values:
            remarks.add(f"descriptions in {path.name} without a video, skipped", f"desc_id {query_id}")
            continue
        duration, window = values.get("duration"), values.get("ts")
        yield Entry(
            where=where,
            id=query_id,
            text=parsing.get_text(values, "desc", where),
            video_id=parsing.get_id(values, "vid_name", where),
            duration=None if duration is None else parsing.parse_seconds(duration, "duration", where),
            windows=() if window is None else parsing.parse_windows([window], "ts", where),
        )
