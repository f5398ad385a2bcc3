"""Annotations from real datasets of the package `datasets`, saved to disk."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from midreel.datasets import open_annotations
from midreel.datasets.hugging_face import import_annotations
from midreel.errors import BadAnnotation, BadPackage, UnknownName
from midreel.types import Moment
from tests import zoo
from tests.conftest import Command

pytestmark = pytest.mark.slow

# The package warns about threads when it is imported and used, so a process of its own saves the datasets.
SAVE = """
import json, sys
import datasets
tables = json.loads(sys.argv[1])
made = {name: datasets.Dataset.from_dict(table) for name, table in tables.items()}
(datasets.DatasetDict(made) if len(made) > 1 else next(iter(made.values()))).save_to_disk(sys.argv[2])
"""


def save(folder: Path, **tables: Any) -> str:
    subprocess.run([sys.executable, "-c", SAVE, json.dumps(tables), str(folder)], check=True, timeout=120)
    return str(folder)


def videos(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        zoo.film(folder / name)
    return folder


def test_splits_and_usual_columns(tmp_path: Path) -> None:
    source = save(
        tmp_path / "saved",
        train={"video_id": ["a", "a"], "caption": ["a dog", "a cat "], "start": [0.5, 1.0], "end": [1.0, 1.5]},
        validation={"video_id": ["b"], "caption": ["a boat"], "start": [0.0], "end": [2.0]},
    )
    folder = videos(tmp_path / "clips", "a.mp4", "b.mp4")
    made = import_annotations(source, folder)
    assert set(made) == {"train", "val"}
    read = open_annotations(folder).splits
    assert [(query.text, query.video_id, query.moments) for query in read["train"].queries] == [
        ("a dog", "a", (Moment(start=0.5, end=1.0),)),
        ("a cat", "a", (Moment(start=1.0, end=1.5),)),
    ]
    assert [query.text for query in read["val"].queries] == ["a boat"]


def test_lists_of_sentences_and_moments(tmp_path: Path) -> None:
    source = save(
        tmp_path / "saved",
        train={
            "path": ["a.mp4", "b.mp4"],
            "en_captions": [["a dog", "a cat"], ["a boat"]],
            "timestamps": [[[0, 1], [1, 2]], [[0, 0.5], [1, 1.5]]],
        },
    )
    made = import_annotations(source, tmp_path / "clips", {"video": "path"})["train"]
    assert [query.id for query in made.queries] == ["train-0-0", "train-0-1", "train-1"]
    assert [len(query.moments) for query in made.queries] == [1, 1, 2]
    assert made.video_ids == ("a.mp4", "b.mp4")


def test_the_command(midreel: Command, tmp_path: Path) -> None:
    source = save(tmp_path / "saved", train={"file": ["a"], "words": ["a dog"]})
    ended = midreel("data", "import-hf", source, tmp_path / "clips")
    assert (ended.code, "--column video=" in ended.err) == (1, True)
    wanted = ("--column", "video=file", "--column", "query=words")
    ended = midreel("data", "import-hf", source, tmp_path / "clips", *wanted, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["splits"] == {"train": {"videos": 1, "queries": 1}}
    line = json.loads((tmp_path / "clips/annotations.jsonl").read_text().splitlines()[0])
    assert (line["video"], line["query"], line["split"]) == ("a", "a dog", "train")
    again = midreel("data", "import-hf", source, tmp_path / "clips", *wanted)
    assert (again.code, "exists" in again.err) == (1, True)
    assert midreel("data", "import-hf", source, tmp_path / "other", "--column", "query").code == 1


@pytest.mark.parametrize(
    "table",
    [
        {"video": ["a"], "query": [""]},
        {"video": [None], "query": ["a dog"]},
        {"video": ["a"], "query": ["a dog"], "start": [2.0], "end": [1.0]},
        {"video": ["a"], "query": [["a dog", "a cat"]], "moments": [[[0, 1]]]},
    ],
)
def test_wrong_rows(tmp_path: Path, table: dict[str, Any]) -> None:
    source = save(tmp_path / "saved", train=table)
    with pytest.raises(BadAnnotation, match="row 0"):
        import_annotations(source, tmp_path / "clips")
    assert not (tmp_path / "clips").exists()


def test_wrong_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path / "saved", train={"video": ["a"], "query": ["a dog"]})
    with pytest.raises(UnknownName, match="video"):
        import_annotations(source, tmp_path / "clips", {"film": "video"})
    with pytest.raises(UnknownName, match="words"):
        import_annotations(source, tmp_path / "clips", {"query": "words"})
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadAnnotation, match="empty"):
        import_annotations(str(tmp_path / "empty"), tmp_path / "clips")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadPackage, match="datasets"):
        import_annotations(source, tmp_path / "clips")
