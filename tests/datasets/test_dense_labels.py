import json
from pathlib import Path

import pytest

from midreel.datasets.dense_labels import read_labels
from midreel.errors import BadAnnotation
from midreel.types import Query

QUERIES = [Query(id="q1", text="", video_id="a"), Query(id="2", text="", video_id="b")]
VIDEOS = ["a", "b", "7"]


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_labels_add_to_the_annotated_video(tmp_path: Path) -> None:
    path = write(
        tmp_path / "labels.jsonl",
        {"query_id": "q1", "gt_video_ids": ["b", 7, "of another split"]},
        {"query_id": "of another split", "gt_video_ids": ["a"]},
    )
    assert read_labels(path, QUERIES, VIDEOS).tolist() == [[True, True, True], [False, True, False]]
    path = write(tmp_path / "labels.jsonl", {"query_id": 2, "gt_video_ids": []})
    assert read_labels(path, QUERIES, VIDEOS).tolist() == [[True, False, False], [False, True, False]]


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([{"query_id": "q1"}], "gt_video_ids"),
        ([{"query_id": "q1", "gt_video_ids": "a"}], "gt_video_ids"),
        ([{"query_id": "q1", "gt_video_ids": [["a"]]}], "line 1"),
        ([{"gt_video_ids": ["a"]}], "query_id"),
        ([{"query_id": "q1", "gt_video_ids": ["a"]}] * 2, "line 2"),
        ([{"query_id": "q3", "gt_video_ids": ["a"]}], "--split"),
        (["q1"], "line 1"),
        ([], "q1"),
    ],
)
def test_bad_labels(lines: list[object], word: str, tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=word):
        read_labels(write(tmp_path / "labels.jsonl", *lines), QUERIES, VIDEOS)
