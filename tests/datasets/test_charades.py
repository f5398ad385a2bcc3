from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets import charades
from midreel.errors import BadAnnotation
from midreel.types import Moment
from tests.datasets import fuzz, trees
from tests.datasets.real import real_file


def test_round_trip(tmp_path: Path) -> None:
    splits = trees.write_charades(tmp_path)
    annotations = charades.load(tmp_path)
    assert annotations.splits == splits
    assert annotations.durations == {"AB1CD": 30.96, "3MSZA": 12.0}
    assert annotations.remarks == ()


def test_duration_files_are_optional(tmp_path: Path) -> None:
    splits = trees.write_charades(tmp_path, durations=False)
    annotations = charades.load(tmp_path)
    assert (annotations.splits, annotations.durations) == (splits, {})


def test_videos_without_a_duration_are_counted(tmp_path: Path) -> None:
    splits = trees.write_charades(tmp_path)
    (tmp_path / "Charades_v1_test.csv").unlink()
    annotations = charades.load(tmp_path)
    assert (annotations.splits, annotations.durations) == (splits, {"AB1CD": 30.96})
    assert annotations.remarks == ("sentences about videos that are missing in the CSV files: 1, first 3MSZA",)


def test_invalid_moments_are_repaired(tmp_path: Path) -> None:
    trees.write_charades(tmp_path, {"test": [trees.Video("3MSZA", 12.0, (trees.Sentence("x", ((9, 12.4),)),))]})
    with (tmp_path / "charades_sta_test.txt").open("a") as file:
        file.write("3MSZA 8.0 2.5##a lamp goes out.\r\n\r\n3MSZA 13 20##too late\n")
    annotations = charades.load(tmp_path)
    queries = annotations.split("test").queries
    assert [query.moments for query in queries] == [(Moment(start=9.0, end=12.0),), (Moment(start=2.5, end=8.0),), ()]
    assert queries[1].text == "a lamp goes out."
    assert annotations.remarks == (
        "moments partly outside their video, clipped: 1, first 9 to 12.4 s of 3MSZA#enc#0",
        "moments with the end before the start, swapped: 1, first 8 to 2.5 s of 3MSZA#enc#1",
        "moments outside their video, removed: 1, first 13 to 20 s of 3MSZA#enc#2",
    )


def test_moment_retrieval_format(tmp_path: Path) -> None:
    splits = trees.write_moment_jsonl(tmp_path, "charades", trees.CHARADES)
    assert charades.load(tmp_path).splits == splits


@pytest.mark.parametrize(
    "line", ["AB1CD 24.3 30.4 person", "AB1CD 24.3##person", "AB1CD a b##person", "##person", "AB1CD"]
)
def test_invalid_lines_are_rejected(tmp_path: Path, line: str) -> None:
    (tmp_path / "charades_sta_train.txt").write_text(f"AB1CD 0 1##person\n{line}\n")
    with pytest.raises(BadAnnotation, match=f"line 2 is '{line}'"):
        charades.load(tmp_path)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("id,seconds\nAB1CD,3\n", "Charades_v1_train.csv .* columns id, seconds,"),
        ("", "Charades_v1_train.csv .* columns none,"),
        ("id,length\nAB1CD,long\n", "Charades_v1_train.csv, line 2: length is 'long'"),
        ("id,length\nAB1CD\n", "Charades_v1_train.csv, line 2: length is None"),
        ('id,length\nAB1CD,"3\n', "Charades_v1_train.csv, line 2: "),
    ],
)
def test_invalid_tables_are_rejected(tmp_path: Path, table: str, message: str) -> None:
    trees.write_charades(tmp_path)
    (tmp_path / "Charades_v1_train.csv").write_text(table)
    with pytest.raises(BadAnnotation, match=message):
        charades.load(tmp_path)


@given(st.binary() | st.text(st.sampled_from("A 1.-e9#\nnaif\r")).map(str.encode), st.text(st.sampled_from('A1,"\n.-')))
def test_anything_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, lines: bytes, table: str) -> None:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "charades_sta_train.txt").write_bytes(b"A 1 2##person\n" + lines)
    (folder / "Charades_v1_train.csv").write_text(f"id,length\n{table}")
    fuzz.expect_read_or_rejected(charades.load, folder)


def test_the_real_test_set() -> None:
    annotations = charades.load(real_file("charades", "charades_test_release.jsonl").parent)
    test = annotations.split("test")
    assert (len(test.video_ids), len(test.queries)) == (1334, 3720)
    assert len({query.text for query in test.queries}) == 2860  # several videos share a sentence
    assert all(len(query.moments) == 1 for query in test.queries)
    assert annotations.remarks == ()
    fuzz.expect_consistent(annotations)
