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
def test_what_is_written_is_read(tmp_path: Path, name: str, line_end: str) -> None:
    splits = trees.write_captions(tmp_path, name, trees.WORLDS[name], line_end)
    annotations = release.collect(tmp_path, name)
    assert annotations.splits == splits
    assert (annotations.name, annotations.layout, annotations.remarks) == (name, "release", ())
    assert (annotations.durations, annotations.parts) == ({}, {})


def test_qvhighlights_has_its_own_name_there(tmp_path: Path) -> None:
    world = {"train": trees.QVHIGHLIGHTS_JOINED["val"]}
    splits = trees.write_captions(tmp_path, "qvhighlight", world)
    assert list(release.caption_files(tmp_path)) == ["qvhighlights"]
    assert release.collect(tmp_path, "qvhighlights").splits == splits


def captions(folder: Path, text: str, name: str = "tvrval") -> Path:
    (folder / "TextData").mkdir(exist_ok=True)
    (folder / f"TextData/{name}.caption.txt").write_text(text, encoding="utf-8")
    return folder


def test_lines_as_they_come(tmp_path: Path) -> None:
    """A mark of the encoding, videos that are not together, more than one space, a tab, an id with one '#'."""
    folder = captions(tmp_path, "\ufeffa#enc#0 One # two. \n\nb#enc#0  Three.\na#enc#1\tFour.\nb#7 Five.\n")
    (val,) = release.collect(folder, "tvr").splits.values()
    assert val.video_ids == ("a", "b")
    assert val.queries == (
        Query(id="a#enc#0", text="One # two.", video_id="a"),
        Query(id="b#enc#0", text="Three.", video_id="b"),
        Query(id="a#enc#1", text="Four.", video_id="a"),
        Query(id="b#7", text="Five.", video_id="b"),
    )


def test_what_is_left_out_is_remarked(tmp_path: Path) -> None:
    folder = captions(tmp_path, "a#enc#0 One.\na#enc#1\na#enc#2 \na#enc#0 Two.\n")
    annotations = release.collect(folder, "tvr")
    assert [query.text for query in annotations.split("val").queries] == ["One."]
    assert annotations.remarks == (
        "captions without words in tvrval.caption.txt, left out: 2, first a#enc#1",
        "captions in tvrval.caption.txt whose id came before, left out: 1, first a#enc#0",
    )


def test_val_and_test_may_be_the_same(tmp_path: Path) -> None:
    for name in ("tvrval", "tvrtest"):
        captions(tmp_path, "a#enc#0 One.\n", name)
    splits = release.collect(tmp_path, "tvr").splits
    assert splits["val"] == splits["test"]


@pytest.mark.parametrize("line", ["a sentence", "#enc#0 A sentence.", "word"])
def test_lines_that_are_refused(tmp_path: Path, line: str) -> None:
    message = rf"tvrval.caption.txt, line 2 is '{line}', expected 'video#enc#0 a sentence'; fix or drop the line"
    with pytest.raises(BadAnnotation, match=message):
        release.collect(captions(tmp_path, f"a#enc#0 One.\n{line}\n"), "tvr")


def test_no_captions(tmp_path: Path) -> None:
    with pytest.raises(
        BadAnnotation, match=r"TextData has no caption of tvr, expected lines such as 'video#enc#0 a dog"
    ):
        release.collect(captions(tmp_path, "\n"), "tvr")
    assert release.caption_files(tmp_path / "nowhere") == {}


@given(fuzz.CONTENT | st.text(st.sampled_from("ab#01 \t\r\n")).map(str.encode))
def test_anything_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = captions(tmp_path_factory.mktemp("folder"), "")
    (folder / "TextData/tvrval.caption.txt").write_bytes(content)
    fuzz.expect_read_or_refused(lambda each: release.collect(each, "tvr"), folder)
