"""TVR, from its own tvr_{train,val}_release.jsonl: one JSON object for each description.

    {"vid_name": "show_s01e02_seg02_clip_03", "duration": 61.4, "ts": [16.5, 33.9], "desc": "Ann nods. ", "desc_id": 12}

Many descriptions end with a space, and some are the same for several videos; `desc_id` is what tells them apart. The
public test file does not say which videos its descriptions are about, so they are left out.
"""

from collections.abc import Iterator
from pathlib import Path

from midreel.datasets import parsing
from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Entry, Remarks, assemble, present

NAME = "tvr"
FILES = {
    "tvr_train_release.jsonl": "train",
    "tvr_val_release.jsonl": "val",
    "tvr_test_release.jsonl": "test",
    "tvr_test_public_release.jsonl": "test",
}


def collect(folder: Path) -> Annotations:
    remarks = Remarks()
    files = present(folder, FILES, remarks)
    entries = {split: _entries(path, remarks) for split, path in files.items()}
    return assemble(NAME, folder, files, entries, remarks)


def _entries(path: Path, remarks: Remarks) -> Iterator[Entry]:
    for where, values in parsing.json_lines(path):
        query_id = parsing.label(values, "desc_id", where)
        if "vid_name" not in values:
            remarks.note(f"descriptions in {path.name} without a video, left out", f"desc_id {query_id}")
            continue
        duration, window = values.get("duration"), values.get("ts")
        yield Entry(
            where=where,
            id=query_id,
            text=parsing.words(values, "desc", where),
            video_id=parsing.label(values, "vid_name", where),
            duration=None if duration is None else parsing.number(duration, "duration", where),
            windows=() if window is None else parsing.windows([window], "ts", where),
        )
