from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets import tvr
from midreel.errors import BadAnnotation
from tests.datasets import fuzz, trees


def test_round_trip(tmp_path: Path) -> None:
    splits = trees.write_tvr(tmp_path)
    annotations = tvr.load(tmp_path)
    assert annotations.splits == splits
    assert annotations.durations == {video.id: video.duration for videos in trees.TVR.values() for video in videos}
    assert annotations.parts == {}


def test_descriptions_without_a_video_are_skipped(tmp_path: Path) -> None:
    trees.write_tvr(tmp_path)
    assert tvr.load(tmp_path).remarks == (
        "descriptions in tvr_test_public_release.jsonl without a video, skipped: 2, first desc_id 7",
        "files without queries: 1, first tvr_test_public_release.jsonl",
    )


def test_a_description_of_two_videos_becomes_two_queries(tmp_path: Path) -> None:
    trees.write_tvr(tmp_path)
    queries = [query for query in tvr.load(tmp_path).split("train").queries if query.text == "Bob nods."]
    assert [(query.id, query.video_id) for query in queries] == [
        ("101", "show_s01e02_seg02_clip_03"),
        ("102", "s02e14_seg02_clip_02"),
    ]


def test_a_test_file_alone_is_rejected(tmp_path: Path) -> None:
    trees.write_lines(tmp_path / "tvr_test_public_release.jsonl", [{"desc": "Ann waits.", "desc_id": 7}])
    with pytest.raises(BadAnnotation, match=r"no query in tvr_test_public_release.jsonl"):
        tvr.load(tmp_path)


GOOD = {"vid_name": "v", "desc": "Ann waits.", "desc_id": 1, "ts": [1, 2], "duration": 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ts": 3}, r"line 2: ts is \[3\]"),
        ({"ts": [1, "2"]}, "line 2: ts is '2'"),
        ({"desc": 3}, "line 2: desc is 3"),
        ({"vid_name": ""}, "line 2: vid_name is ''"),
        ({"desc_id": None}, "line 2: desc_id is None"),
        ({"duration": "long"}, "line 2: duration is 'long'"),
    ],
)
def test_invalid_lines_are_rejected(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    trees.write_lines(tmp_path / "tvr_val_release.jsonl", [GOOD, GOOD | changes])
    with pytest.raises(BadAnnotation, match=message):
        tvr.load(tmp_path)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    trees.write_lines(tmp_path / "tvr_val_release.jsonl", [{"vid_name": "v", "desc_id": 1}])
    with pytest.raises(BadAnnotation, match=r"line 1 .*vid_name, desc_id, expected also desc"):
        tvr.load(tmp_path)


@given(
    fuzz.rows(
        desc_id=st.integers(0, 3),
        desc=st.text(max_size=3),
        vid_name=st.sampled_from("ab"),
        duration=fuzz.NUMBERS,
        ts=st.lists(fuzz.NUMBERS, min_size=2, max_size=2),
    )
)
def test_anything_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "tvr_val_release.jsonl").write_text(text)
    fuzz.expect_read_or_rejected(tvr.load, folder)
