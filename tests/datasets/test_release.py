from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets import release
from midreel.errors import BadAnnotation
from midreel.types import Query
from tests.datasets import fuzz, trees


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("name", ["activitynet", "charades", "tvr"])
def test_round_trip(tmp_path: Path, name: str, line_end: str) -> None:
    splits = trees.write_captions(tmp_path, name, trees.WORLDS[name], line_end)
    annotations = release.load(tmp_path, name)
    assert annotations.splits == splits
    assert (annotations.name, annotations.layout, annotations.remarks) == (name, "release", ())
    assert (annotations.durations, annotations.parts) == ({}, {})


def test_qvhighlights_has_another_name_in_releases(tmp_path: Path) -> None:
    world = {"train": trees.QVHIGHLIGHTS_JOINED["val"]}
    splits = trees.write_captions(tmp_path, "qvhighlight", world)
    assert list(release.caption_files(tmp_path)) == ["qvhighlights"]
    assert release.load(tmp_path, "qvhighlights").splits == splits


def captions(folder: Path, text: str, name: str = "tvrval") -> Path:
    (folder / "TextData").mkdir(exist_ok=True)
    (folder / f"TextData/{name}.caption.txt").write_text(text, encoding="utf-8")
    return folder


def test_unusual_lines_are_read(tmp_path: Path) -> None:
    """A byte order mark, interleaved videos, two spaces, a tab, and an id with a single '#'."""
    folder = captions(tmp_path, "\ufeffa#enc#0 One # two. \n\nb#enc#0  Three.\na#enc#1\tFour.\nb#7 Five.\n")
    (val,) = release.load(folder, "tvr").splits.values()
    assert val.video_ids == ("a", "b")
    assert val.queries == (
        Query(id="a#enc#0", text="One # two.", video_id="a"),
        Query(id="b#enc#0", text="Three.", video_id="b"),
        Query(id="a#enc#1", text="Four.", video_id="a"),
        Query(id="b#7", text="Five.", video_id="b"),
    )


def test_skipped_captions_are_counted(tmp_path: Path) -> None:
    folder = captions(tmp_path, "a#enc#0 One.\na#enc#1\na#enc#2 \na#enc#0 Two.\n")
    annotations = release.load(folder, "tvr")
    assert [query.text for query in annotations.split("val").queries] == ["One."]
    assert annotations.remarks == (
        "captions without text in tvrval.caption.txt, skipped: 2, first a#enc#1",
        "captions with a duplicate id in tvrval.caption.txt, skipped: 1, first a#enc#0",
    )


def test_val_and_test_may_be_the_same(tmp_path: Path) -> None:
    for name in ("tvrval", "tvrtest"):
        captions(tmp_path, "a#enc#0 One.\n", name)
    splits = release.load(tmp_path, "tvr").splits
    assert splits["val"] == splits["test"]


@pytest.mark.parametrize("line", ["a sentence", "#enc#0 A sentence.", "word"])
def test_invalid_lines_are_rejected(tmp_path: Path, line: str) -> None:
    with pytest.raises(BadAnnotation, match=rf"tvrval.caption.txt, line 2 is '{line}'"):
        release.load(captions(tmp_path, f"a#enc#0 One.\n{line}\n"), "tvr")


def test_a_release_without_captions_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=r"TextData has no captions of tvr"):
        release.load(captions(tmp_path, "\n"), "tvr")
    assert release.caption_files(tmp_path / "nowhere") == {}


@given(fuzz.CONTENT | st.text(st.sampled_from("ab#01 \t\r\n")).map(str.encode))
def test_anything_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = captions(tmp_path_factory.mktemp("folder"), "")
    (folder / "TextData/tvrval.caption.txt").write_bytes(content)
    fuzz.expect_read_or_rejected(lambda each: release.load(each, "tvr"), folder)
