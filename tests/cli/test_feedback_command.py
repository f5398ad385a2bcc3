"""Tests of midreel feedback and midreel adapt."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from midreel.datasets import own, playhouse
from midreel.library.layout import Layout
from midreel.library.searcher import Searcher
from tests.conftest import Command


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three generated videos, indexed with the backbone that comes with midreel."""
    folder = tmp_path_factory.mktemp("feedback")
    playhouse.write_dataset(folder / "videos", seed=0, num_test=3)
    with Searcher.create(folder / "library") as searcher:
        searcher.add(folder / "videos")
    (folder / "videos/annotations.jsonl").rename(folder / "sentences.jsonl")
    return folder


@pytest.fixture
def library(indexed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(indexed / "library", tmp_path / "library"))


@pytest.fixture
def videos(indexed: Path) -> Iterator[list[Path]]:
    yield sorted((indexed / "videos").glob("*.mp4"))
    (indexed / "videos/annotations.jsonl").unlink(missing_ok=True)


def test_add_list_and_delete(midreel: Command, library: Path, videos: list[Path]) -> None:
    ended = midreel("feedback", library)
    assert (ended.code, ended.err) == (0, "")
    assert "0 pieces" in ended.out
    assert midreel("feedback", library, "a red cup", videos[0], "--moment", "0:01-0:02.5").code == 0
    ended = midreel("feedback", library, "a red cup", videos[1], "--not-this", "--json")
    added = json.loads(ended.out)
    assert (added["match"], added["start"]) == (False, 0.0)
    listed = midreel("feedback", library).out
    assert "this is it" in listed
    assert str(videos[0]) in listed
    assert "2 pieces" in listed
    values = json.loads(midreel("feedback", library, "--json").out)["feedback"]
    assert next((each["start"], each["end"]) for each in values) == (1.0, 2.5)
    assert values[1]["paths"] == [str(videos[1])]
    by_id = midreel("feedback", library, "a boat", values[0]["video_id"], "--json")
    assert json.loads(by_id.out)["video_id"] == values[0]["video_id"]
    assert midreel("feedback", library, "--delete", values[0]["id"], "--delete", values[1]["id"]).code == 0
    assert "1 piece of" in midreel("feedback", library, "--clear").out
    ended = midreel("feedback", library, "--delete", 1)
    assert ended.code == 1
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("a cup",),
        ("a cup", "missing.mp4"),
        ("", "VIDEO"),
        ("a cup AND a boat", "VIDEO"),
        ("a cup", "VIDEO", "--moment", "9:00-9:10"),
        ("a cup", "VIDEO", "--moment", "soon"),
        ("a cup", "VIDEO", "--moment", "3-x"),
        ("--not-this",),
        ("--clear", "--delete", "1"),
        ("--export", "annotations.jsonl"),
    ],
)
def test_bad_input(midreel: Command, library: Path, videos: list[Path], words: tuple[str, ...]) -> None:
    ended = midreel("feedback", library, *(str(videos[0]) if word == "VIDEO" else word for word in words))
    assert ended.code == 1
    assert ended.err.startswith("midreel: ")
    assert ended.err.count("\n") == 1
    assert "0 pieces" in midreel("feedback", library).out


def test_a_missing_library(midreel: Command, tmp_path: Path) -> None:
    for command in ("feedback", "adapt"):
        assert midreel(command, tmp_path / "nothing").code == 1
    assert not (tmp_path / "nothing").exists()


def test_export_can_be_trained_on(midreel: Command, library: Path, videos: list[Path]) -> None:
    midreel("feedback", library, "a red cup", videos[0], "--moment", "1-2")
    midreel("feedback", library, "a boat", videos[1])
    midreel("feedback", library, "a boat", videos[2], "--not-this")
    file = videos[0].parent / "annotations.jsonl"
    ended = midreel("feedback", library, "--export", file)
    assert (ended.code, ended.err) == (0, "")
    assert "Left out: 1" in ended.out
    queries = [query for split in own.read(file.parent).values() for query in split.queries]
    assert {query.text for query in queries} == {"a red cup", "a boat"}
    assert midreel("data", "verify", file.parent).code == 0


@pytest.mark.slow
def test_adapt_and_undo(midreel: Command, indexed: Path, library: Path, videos: list[Path]) -> None:
    ended = midreel("adapt", library)
    assert ended.code == 1
    assert "0 pieces" in ended.err
    sentences = [json.loads(line) for line in (indexed / "sentences.jsonl").read_text().splitlines()]
    assert len({each["query"] for each in sentences}) >= 10
    for each in sentences:
        wanted = next(path for path in videos if path.stem != Path(each["video"]).stem)  # a wrong one
        assert midreel("feedback", library, each["query"], wanted).code == 0
    ended = midreel("adapt", library, "--json")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert report["switched"]
    assert report["after"]["first"] > report["before"]["first"]
    assert Layout(library).serving().card.adaptation
    assert midreel("adapt", library).out.count("%") >= 6
    ended = midreel("adapt", library, "--undo")
    assert (ended.code, Layout(library).serving().card.adaptation) == (0, "")
    assert midreel("adapt", library, "--undo").code == 1
