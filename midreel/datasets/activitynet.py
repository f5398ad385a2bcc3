"""ActivityNet Captions, from its own train.json, val_1.json and val_2.json: an object of videos.

    {"v_AbCdEfGhIjK": {"duration": 82.7, "timestamps": [[0.8, 9.9], [7.4, 60.8]], "sentences": ["A rope.", " A man."]}}

A video's id is `v_` and the eleven characters of YouTube, here always with the `v_`, whoever left it out. Queries have
the ids of the PRVR releases, `v_AbCdEfGhIjK#enc#0` and so on. val_1 is what retrieval is evaluated on, so it is `val`;
val_2, other sentences about nearly the same videos, is `val_2`. The uniform lines of other projects are read as well.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from midreel.datasets import moment_jsonl, parsing
from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Entry, Remarks, assemble, present
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
YOUTUBE_ID = 11  # characters


def collect(folder: Path) -> Annotations:
    remarks = Remarks()
    files = present(folder, FILES, remarks)
    entries = {split: _entries(split, path, remarks) for split, path in files.items()}
    return assemble(NAME, folder, files, entries, remarks)


def _entries(split: str, path: Path, remarks: Remarks) -> Iterator[Entry]:
    if path.suffix == ".json":
        yield from _captions(split, path, remarks)
    else:
        for entry in moment_jsonl.entries(path):
            yield replace(entry, video_id=_video_id(entry.video_id))


def _captions(split: str, path: Path, remarks: Remarks) -> Iterator[Entry]:
    videos = parsing.parse_json(parsing.read_text(path), str(path))
    if not isinstance(videos, dict):
        raise BadAnnotation(f"{path} holds a {type(videos).__name__}, expected an object of videos; fetch it again")
    mark = "enc" if split != "val_2" else split  # both validation files speak of the same videos
    for key, values in videos.items():
        where = f"{path}, {key}"
        video_id = _video_id(parsing.label({"the id": key}, "the id", where))
        sentences, windows, duration = _told(values, where)
        if not sentences:
            remarks.note("videos that no sentence describes, left out", video_id)
        for number, window in enumerate(windows):
            yield Entry(
                where=where,
                id=f"{video_id}#{mark}#{number}",
                text=parsing.words({f"sentence {number}": sentences[number]}, f"sentence {number}", where),
                video_id=video_id,
                duration=duration,
                windows=(window,),
            )


def _told(values: Any, where: str) -> tuple[list[Any], tuple[tuple[float, float], ...], float | None]:
    """The sentences about a video, a window for each, and how long the video lasts."""
    if not isinstance(values, dict):
        raise BadAnnotation(f"{where} is {str(values)[:80]}, expected duration, timestamps and sentences; fix it")
    sentences = parsing.field(values, "sentences", where)
    windows = parsing.windows(parsing.field(values, "timestamps", where), "timestamps", where)
    if not isinstance(sentences, list) or len(sentences) != len(windows):
        raise BadAnnotation(
            f"{where} has {len(windows)} timestamps and the sentences {str(sentences)[:80]}, expected one for each; "
            f"fix it"
        )
    duration = values.get("duration")
    return sentences, windows, None if duration is None else parsing.number(duration, "duration", where)


def _video_id(text: str) -> str:
    """With its `v_`. A bare YouTube id may begin with these letters by chance, so its length tells."""
    return text if text.startswith("v_") and len(text) != YOUTUBE_ID else f"v_{text}"
