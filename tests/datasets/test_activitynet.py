import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets import activitynet
from midreel.errors import BadAnnotation
from tests.datasets import fuzz, trees


def test_what_is_written_is_read(tmp_path: Path) -> None:
    splits = trees.write_activitynet(tmp_path)
    annotations = activitynet.collect(tmp_path)
    assert annotations.splits == splits
    assert annotations.durations == {"v_AbCdEfGhIjK": 82.73, "v_-_v_34567AB": 11.31, "v_v_cdefghijk": 50.0}
    assert (annotations.remarks, annotations.parts) == ((), {})


def test_other_sentences_about_the_same_videos_have_other_ids(tmp_path: Path) -> None:
    world = {**trees.ACTIVITYNET, "val_2": [trees.Video("v_v_cdefghijk", 50.0, (trees.Told("A run.", ((8, 20),)),))]}
    splits = trees.write_activitynet(tmp_path, world)
    assert activitynet.collect(tmp_path).splits == splits
    assert splits["val_2"].queries[0].id == "v_v_cdefghijk#val_2#0"


def test_uniform_lines(tmp_path: Path) -> None:
    splits = trees.write_uniform(tmp_path, "activitynet", trees.ACTIVITYNET)
    assert activitynet.collect(tmp_path).splits == splits


def test_a_prefix_that_was_left_out_is_put_back(tmp_path: Path) -> None:
    """Of an id that begins with v_ by chance too."""
    world = {
        split: [trees.Video(video.id[2:], video.duration, video.told) for video in videos]
        for split, videos in trees.ACTIVITYNET.items()
    }
    trees.write_activitynet(tmp_path / "captions", world)
    trees.write_uniform(tmp_path / "uniform", "activitynet", world)
    for folder in (tmp_path / "captions", tmp_path / "uniform"):
        splits = activitynet.collect(folder).splits
        assert splits["val"].video_ids == ("v_-_v_34567AB", "v_v_cdefghijk")


def test_the_original_goes_before_uniform_lines(tmp_path: Path) -> None:
    splits = trees.write_activitynet(tmp_path)
    trees.write_uniform(tmp_path, "activitynet", {"val": trees.ACTIVITYNET["val"][:1]})
    annotations = activitynet.collect(tmp_path)
    assert annotations.splits == splits
    assert annotations.remarks == (
        "files that were not read, because another has their split: 1, first activitynet_val_release.jsonl, for "
        "val_1.json",
    )


def written(folder: Path, content: Any) -> Path:
    (folder / "train.json").write_text(json.dumps(content))
    return folder


def test_a_video_that_nobody_describes_is_left_out(tmp_path: Path) -> None:
    good = {"duration": 3, "timestamps": [[0, 1]], "sentences": ["A run."]}
    folder = written(tmp_path, {"v_a": good | {"timestamps": [], "sentences": []}, "v_b": good})
    annotations = activitynet.collect(folder)
    assert annotations.split("train").video_ids == ("v_b",)
    assert annotations.remarks == ("videos that no sentence describes, left out: 1, first v_a",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "train.json holds a list, expected an object of videos; fetch it again"),
        ({"v_a": 3}, "train.json, v_a is 3, expected duration, timestamps and sentences; fix it"),
        ({"v_a": {"sentences": []}}, "train.json, v_a has the fields sentences, expected also timestamps; add it"),
        (
            {"v_a": {"sentences": ["x"], "timestamps": []}},
            r"v_a has 0 timestamps and the sentences \['x'\], expected one for each; fix it",
        ),
        ({"v_a": {"sentences": [3], "timestamps": [[0, 1]]}}, "v_a: sentence 0 is 3, expected a text; fix it"),
        ({"": {"sentences": ["x"], "timestamps": [[0, 1]]}}, "the id is '', expected a number or a text; fix it"),
        ({}, "train.json hold no query about a video, expected some; fetch the files again"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(BadAnnotation, match=message):
        activitynet.collect(written(tmp_path, content))


TOLD = st.fixed_dictionaries(
    {"duration": fuzz.NUMBERS, "timestamps": fuzz.WINDOWS, "sentences": st.lists(st.text(max_size=3), max_size=3)}
)


@given(st.dictionaries(st.text(max_size=12), TOLD | fuzz.ANY, max_size=3) | fuzz.ANY)
def test_anything_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    fuzz.expect_read_or_refused(activitynet.collect, written(tmp_path_factory.mktemp("folder"), content))


@given(fuzz.CONTENT)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "train.json").write_bytes(content)
    fuzz.expect_read_or_refused(activitynet.collect, folder)
