from pathlib import Path

import pytest

from midreel.datasets import moment_jsonl
from midreel.datasets.assembly import Entry
from midreel.errors import BadAnnotation
from tests.datasets.trees import write_lines

GOOD = {"qid": 1, "query": " a cat jumps", "vid": "v", "duration": 30.5, "relevant_windows": [[4, 8], [20, 22.5]]}


def test_all_fields_are_read(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "lines.jsonl", [GOOD | {"saliency_scores": [[4, 3, 3]]}])
    assert [*moment_jsonl.read_entries(path)] == [
        Entry(
            where="not compared",
            id="1",
            text=" a cat jumps",
            video_id="v",
            duration=30.5,
            windows=((4.0, 8.0), (20.0, 22.5)),
        )
    ]


def test_optional_fields(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "lines.jsonl", [{"qid": "q 1 ", "query": "", "vid": 7}])
    assert [*moment_jsonl.read_entries(path)] == [Entry(where="not compared", id="q 1", text="", video_id="7")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qid": True}, "lines.jsonl, line 1: qid is True"),
        ({"qid": 1.5}, "line 1: qid is 1.5"),
        ({"query": None}, "line 1: query is None"),
        ({"vid": " "}, "line 1: vid is ' '"),
        ({"vid": "half a \ud83d"}, r"line 1: vid is 'half a \\ud83d'"),
        ({"duration": "30"}, "line 1: duration is '30'"),
        ({"relevant_windows": [4, 8]}, r"line 1: relevant_windows is \[4, 8\]"),
        ({"relevant_windows": [[4, None]]}, "line 1: relevant_windows is None"),
    ],
)
def test_invalid_lines_are_rejected(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadAnnotation, match=message):
        [*moment_jsonl.read_entries(write_lines(tmp_path / "lines.jsonl", [GOOD | changes]))]
