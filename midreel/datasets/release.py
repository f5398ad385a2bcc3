"""The trees that the papers on partially relevant video retrieval release: TextData/{dataset}{split}.caption.txt.

    v_AbCdEfGhIjK#enc#0 A man is seen holding a rope.

A line is the caption's id, a space, the caption. The id is the query's, unchanged, because the feature files are keyed
by it; what stands before its first '#' is the video's. Captions say neither moments nor durations.
"""

import re
from pathlib import Path

from midreel.datasets import parsing
from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Remarks, split_of
from midreel.errors import BadAnnotation
from midreel.types import Query

TEXTS = "TextData"
NAMES = {"qvhighlight": "qvhighlights"}  # theirs -> ours, where they differ
_CAPTIONS = re.compile(r"(?P<name>.*?)_?(?P<split>train|val|test)\.caption\.txt")


def caption_files(folder: Path) -> dict[str, dict[str, Path]]:
    """The caption files of a dataset's folder, by the dataset's name on our side and by split."""
    found: dict[str, dict[str, Path]] = {}
    for split in ("train", "val", "test"):
        for path in sorted((folder / TEXTS).glob(f"*{split}.caption.txt")):
            match = _CAPTIONS.fullmatch(path.name)
            if match is not None and path.is_file():
                name = match["name"] or folder.resolve().name
                found.setdefault(NAMES.get(name, name), {})[split] = path
    return found


def collect(folder: Path, name: str) -> Annotations:
    remarks = Remarks()
    files = caption_files(folder).get(name, {})
    queries = {split: _queries(path, remarks) for split, path in files.items()}
    if not any(queries.values()):
        raise BadAnnotation(
            f"{folder / TEXTS} has no caption of {name}, expected lines such as 'video#enc#0 a dog jumps' in "
            f"{name}train.caption.txt; fetch the files again"
        )
    return Annotations(
        name=name,
        layout="release",
        folder=folder,
        files=tuple(files.values()),
        splits={split: split_of(found) for split, found in queries.items() if found},
        remarks=remarks.told(),
    )


def _queries(path: Path, remarks: Remarks) -> list[Query]:
    queries: dict[str, Query] = {}
    for number, line in parsing.lines(path):
        query_id, _, text = line.strip().replace("\t", " ", 1).partition(" ")
        video_id, mark, _ = query_id.partition("#")
        if not video_id or not mark:
            raise BadAnnotation(
                f"{path}, line {number} is {line[:80]!r}, expected 'video#enc#0 a sentence'; fix or drop the line"
            )
        if not text.strip():
            remarks.note(f"captions without words in {path.name}, left out", query_id)
        elif query_id in queries:
            remarks.note(f"captions in {path.name} whose id came before, left out", query_id)
        else:
            queries[query_id] = Query(id=query_id, text=text.strip(), video_id=video_id)
    return list(queries.values())
