import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets import activitynet
from midreel.errors import BadAnnotation
from tests.datasets import fuzz, trees


def test_round_trip(tmp_path: Path) -> None:
    splits = trees.write_activitynet(tmp_path)
    annotations = activitynet.load(tmp_path)
    assert annotations.splits == splits
    assert annotations.durations == {"v_AbCdEfGhIjK": 82.73, "v_-_v_34567AB": 11.31, "v_v_cdefghijk": 50.0}
    assert (annotations.remarks, annotations.parts) == ((), {})


def test_query_ids_of_val_2_differ_from_those_of_val(tmp_path: Path) -> None:
    world = {
        **trees.ACTIVITYNET,
        "val_2": [trees.Video("v_v_cdefghijk", 50.0, (trees.Sentence("A run.", ((8, 20),)),))],
    }
    splits = trees.write_activitynet(tmp_path, world)
    assert activitynet.load(tmp_path).splits == splits
    assert splits["val_2"].queries[0].id == "v_v_cdefghijk#val_2#0"


def test_moment_retrieval_format(tmp_path: Path) -> None:
    splits = trees.write_moment_jsonl(tmp_path, "activitynet", trees.ACTIVITYNET)
    assert activitynet.load(tmp_path).splits == splits


def test_a_missing_prefix_is_added(tmp_path: Path) -> None:
    """Also to a YouTube id that begins with v_ by chance."""
    world = {
        split: [trees.Video(video.id[2:], video.duration, video.sentences) for video in videos]
        for split, videos in trees.ACTIVITYNET.items()
    }
    trees.write_activitynet(tmp_path / "captions", world)
    trees.write_moment_jsonl(tmp_path / "uniform", "activitynet", world)
    for folder in (tmp_path / "captions", tmp_path / "uniform"):
        splits = activitynet.load(folder).splits
        assert splits["val"].video_ids == ("v_-_v_34567AB", "v_v_cdefghijk")


def test_original_files_take_precedence(tmp_path: Path) -> None:
    splits = trees.write_activitynet(tmp_path)
    trees.write_moment_jsonl(tmp_path, "activitynet", {"val": trees.ACTIVITYNET["val"][:1]})
    annotations = activitynet.load(tmp_path)
    assert annotations.splits == splits
    (remark,) = annotations.remarks
    assert "skipped" in remark
    assert remark.endswith(": 1, first activitynet_val_release.jsonl")


def written(folder: Path, content: Any) -> Path:
    (folder / "train.json").write_text(json.dumps(content))
    return folder


def test_videos_without_sentences_are_skipped(tmp_path: Path) -> None:
    good = {"duration": 3, "timestamps": [[0, 1]], "sentences": ["A run."]}
    folder = written(tmp_path, {"v_a": good | {"timestamps": [], "sentences": []}, "v_b": good})
    annotations = activitynet.load(folder)
    assert annotations.split("train").video_ids == ("v_b",)
    assert annotations.remarks == ("videos without sentences, skipped: 1, first v_a",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "train.json is a list"),
        ({"v_a": 3}, "train.json, v_a is 3"),
        ({"v_a": {"sentences": []}}, "train.json, v_a .*expected also timestamps"),
        ({"v_a": {"sentences": ["x"], "timestamps": []}}, r"v_a has 0 timestamps .*\['x'\]"),
        ({"v_a": {"sentences": [3], "timestamps": [[0, 1]]}}, "v_a: sentence 0 is 3"),
        ({"": {"sentences": ["x"], "timestamps": [[0, 1]]}}, "the id is ''"),
        ({}, "no query in train.json"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(BadAnnotation, match=message):
        activitynet.load(written(tmp_path, content))


CAPTIONS = st.fixed_dictionaries(
    {"duration": fuzz.NUMBERS, "timestamps": fuzz.WINDOWS, "sentences": st.lists(st.text(max_size=3), max_size=3)}
)


@given(st.dictionaries(st.text(max_size=12), CAPTIONS | fuzz.ANY, max_size=3) | fuzz.ANY)
def test_anything_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    fuzz.expect_read_or_rejected(activitynet.load, written(tmp_path_factory.mktemp("folder"), content))


@given(fuzz.CONTENT)
def test_any_bytes_are_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "train.json").write_bytes(content)
    fuzz.expect_read_or_rejected(activitynet.load, folder)
