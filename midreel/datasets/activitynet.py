"""ActivityNet Captions, in its original layout train.json, val_1.json and val_2.json: one object of videos per file.

    {"v_AbCdEfGhIjK": {"duration": 82.7, "timestamps": [[0.8, 9.9], [7.4, 60.8]], "sentences": ["A rope.", " A man."]}}

The id of a video is `v_` and the eleven characters of its YouTube id. The `v_` is added where a file omits it. Query
ids are the same as in the PRVR releases: `v_AbCdEfGhIjK#enc#0` and so on. Retrieval is evaluated on val_1, which
becomes `val`. val_2 has other sentences about almost the same videos, and becomes `val_2`.

The JSON Lines files of moment retrieval projects (see `moment_jsonl`) are supported too.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from midreel.datasets import moment_jsonl, parsing
from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Entry, Remarks, assemble, find_files
from midreel.errors import BadAnnotation

NAME = "activitynet"
FILES = {
    "train.json": "train",
    "val_1.json": "val",
    "val_2.json": "val_2",
    "activitynet_train_release.jsonl": "train",
    "activitynet_val_release.jsonl": "val",
    "activitynet_test_release.jsonl": "test",
}
YOUTUBE_ID_LENGTH = 11


def load(folder: Path) -> Annotations:
    """Return the annotations in a folder."""
    remarks = Remarks()
    files = find_files(folder, FILES, remarks)
    entries = {split: _entries(split, path, remarks) for split, path in files.items()}
    return assemble(NAME, folder, files, entries, remarks)


def _entries(split: str, path: Path, remarks: Remarks) -> Iterator[Entry]:
    if path.suffix == ".json":
        yield from _caption_entries(split, path, remarks)
    else:
        for entry in moment_jsonl.read_entries(path):
            yield replace(entry, video_id=_with_prefix(entry.video_id))


def _caption_entries(split: str, path: Path, remarks: Remarks) -> Iterator[Entry]:
    videos = parsing.parse_json(parsing.read_text(path), str(path))
    if not isinstance(videos, dict):
        raise BadAnnotation(f"{path} is a {type(videos).__name__}, expected an object of videos. Download it again.")
    # Both validation files describe the same videos, so the query ids of the second need another mark.
    mark = "enc" if split != "val_2" else split
    for key, values in videos.items():
        where = f"{path}, {key}"
        video_id = _with_prefix(parsing.get_id({"the id": key}, "the id", where))
        sentences, windows, duration = _captions_of_video(values, where)
        if not sentences:
            remarks.add("videos without sentences, skipped", video_id)
        for number, window in enumerate(windows):
            yield Entry(
                where=where,
                id=f"{video_id}#{mark}#{number}",
                text=parsing.get_text({f"sentence {number}": sentences[number]}, f"sentence {number}", where),
                video_id=video_id,
                duration=duration,
                windows=(window,),
            )


def _captions_of_video(values: Any, where: str) -> tuple[list[Any], tuple[tuple[float, float], ...], float | None]:
    """Return the sentences about a video, a window for each, and the duration of the video."""
    if not isinstance(values, dict):
        raise BadAnnotation(
            f"{where} is {str(values)[:80]}, expected duration, timestamps and sentences. Correct the entry."
        )
    sentences = parsing.get_field(values, "sentences", where)
    windows = parsing.parse_windows(parsing.get_field(values, "timestamps", where), "timestamps", where)
    if not isinstance(sentences, list) or len(sentences) != len(windows):
        raise BadAnnotation(
            f"{where} has {len(windows)} timestamps and the sentences {str(sentences)[:80]}, expected one timestamp "
            f"per sentence. Correct the entry."
        )
    duration = values.get("duration")
    return sentences, windows, None if duration is None else parsing.parse_seconds(duration, "duration", where)


def _with_prefix(video_id: str) -> str:
    """Return a video id with its `v_`."""
    # A bare YouTube id may start with v_ by chance. Its length tells that the prefix is missing.
    has_prefix = video_id.startswith("v_") and len(video_id) != YOUTUBE_ID_LENGTH
    return video_id if has_prefix else f"v_{video_id}"
