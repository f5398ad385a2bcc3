"""The caption files that PRVR papers release: TextData/{dataset}{split}.caption.txt.

    v_AbCdEfGhIjK#enc#0 A man is seen holding a rope.

A line is the id of a caption, a space, and the caption. This id is the query's id, because the feature files use it as
a key. The part before the first '#' is the video's id. Captions have neither moments nor durations.
"""

import re
from pathlib import Path

from midreel.datasets import parsing
from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Remarks, split_of
from midreel.errors import BadAnnotation
from midreel.types import Query

TEXTS = "TextData"
NAMES = {"qvhighlight": "qvhighlights"}  # the release's name of a dataset, and midreel's, where they differ
_CAPTION_FILE = re.compile(r"(?P<name>.*?)_?(?P<split>train|val|test)\.caption\.txt")


def caption_files(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the caption files in a dataset's folder, by midreel's name of the dataset and by split."""
    files: dict[str, dict[str, Path]] = {}
    for split in ("train", "val", "test"):
        for path in sorted((folder / TEXTS).glob(f"*{split}.caption.txt")):
            match = _CAPTION_FILE.fullmatch(path.name)
            if match is not None and path.is_file():
                name = match["name"] or folder.resolve().name
                files.setdefault(NAMES.get(name, name), {})[split] = path
    return files


def load(folder: Path, name: str) -> Annotations:
    """Return the captions of the dataset `name` in its folder.

    Raises:
        BadAnnotation: There are no captions, or a line has no id.
    """
    remarks = Remarks()
    files = caption_files(folder).get(name, {})
    queries_of_split = {split: _queries(path, remarks) for split, path in files.items()}
    if not any(queries_of_split.values()):
        raise BadAnnotation(
            f"{folder / TEXTS} has no captions of {name}, expected lines such as 'video#enc#0 a dog jumps' in "
            f"{name}train.caption.txt. Download the files again."
        )
    return Annotations(
        name=name,
        layout="release",
        folder=folder,
        files=tuple(files.values()),
        splits={split: split_of(queries) for split, queries in queries_of_split.items() if queries},
        remarks=remarks.lines(),
    )


def _queries(path: Path, remarks: Remarks) -> list[Query]:
    queries: dict[str, Query] = {}
    for number, line in parsing.read_lines(path):
        query_id, _, text = line.strip().replace("\t", " ", 1).partition(" ")
        video_id, mark, _ = query_id.partition("#")
        if not video_id or not mark:
            raise BadAnnotation(
                f"{path}, line {number} is {line[:80]!r}, expected 'video#enc#0 a sentence'. Fix or delete the line."
            )
        if not text.strip():
            remarks.add(f"captions without text in {path.name}, skipped", query_id)
        elif query_id in queries:
            remarks.add(f"captions with a duplicate id in {path.name}, skipped", query_id)
        else:
            queries[query_id] = Query(id=query_id, text=text.strip(), video_id=video_id)
    return list(queries.values())
