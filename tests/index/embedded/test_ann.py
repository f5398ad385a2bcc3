"""The compressed copy finds the same windows as the scan, and is not used otherwise."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from midreel.index import EmbeddedIndex
from midreel.index.embedded import ann, cascade
from tests.index.library import WEIGHTS, WIDTH, queries, video

pytest.importorskip("faiss", reason="faiss is not installed: pip install midreel[fast]")


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Settings with which 300 videos are many, so that the copy drops some."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cascade, "CANDIDATES", 40)
        patch.setattr(cascade, "FINALISTS", 96)
        patch.setattr(ann, "LADDER", (64, 150))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small: None) -> Path:
    """Two closed indexes of the same videos: one before training, one after."""
    folder = tmp_path_factory.mktemp("trained")
    with EmbeddedIndex.create(folder / "before", branch_weights=WEIGHTS, width=WIDTH) as index:
        index.add_all((f"v{number}", video(number)) for number in range(300))
    shutil.copytree(folder / "before", folder / "after")
    with EmbeddedIndex.open(folder / "after") as index:
        recall = index.train()
        assert recall is not None
        assert recall >= ann.RECALL
    return folder


@pytest.fixture
def index(folder: Path, tmp_path: Path) -> Iterator[EmbeddedIndex]:
    """An index with a compressed copy."""
    with EmbeddedIndex.open(shutil.copytree(folder / "after", tmp_path / "index")) as index:
        yield index


@pytest.fixture
def untrained(folder: Path, tmp_path: Path) -> Iterator[EmbeddedIndex]:
    with EmbeddedIndex.open(shutil.copytree(folder / "before", tmp_path / "untrained")) as index:
        yield index


def test_the_copy_finds_the_same_videos_as_the_scan(index: EmbeddedIndex, untrained: EmbeddedIndex) -> None:
    before = untrained.search(queries(3, 10))
    copy = index._cascade.trained
    assert copy is not None
    assert copy.let_through in (64, 150)
    same = [
        len({m.video_id for m in a} & {m.video_id for m in b})
        for a, b in zip(before, index.search(queries(3, 10)), strict=True)
    ]
    assert sum(same) >= 95


def test_readers_use_a_new_copy(untrained: EmbeddedIndex) -> None:
    with EmbeddedIndex.open(untrained.folder, read_only=True) as reader:
        assert reader._cascade.trained is None
        untrained.train()
        assert reader.search(queries(3)) == untrained.search(queries(3))
        assert reader._cascade.trained is not None


def test_newer_videos_are_found_and_removed_ones_are_not(index: EmbeddedIndex) -> None:
    index.add("new", video(999))
    asked = {branch: part.vectors[0, :1] for branch, part in video(999).items()}
    assert index.search(asked)[0][0].video_id == "new"
    index.remove("new")
    first = index.search(queries(3, 1))[0][0].video_id
    index.remove(first)
    assert first not in {match.video_id for match in index.search(queries(3, 1))[0]}


def test_a_filter_does_not_use_the_copy(index: EmbeddedIndex) -> None:
    worst = [match.video_id for match in index.search(queries(3, 1), top=300, exact=True)[0]][-5:]
    assert [match.video_id for match in index.search(queries(3, 1), among=worst)[0]] == worst


def test_the_scan_is_used_if_the_copy_finds_too_few_videos(index: EmbeddedIndex) -> None:
    """The copy may find only windows of a few long videos, or of removed ones."""
    for number in range(292):
        index._storage.roster.drop(f"v{number}")  # as `remove` does
    assert [len(row) for row in index.search(queries(3))] == [8, 8, 8]


@pytest.mark.parametrize(
    "moment", [0, 48, 96, 3 * 48]
)  # before the queries, the scans, the searches with the copy, and the end
def test_compaction_during_training_discards_the_copy(
    untrained: EmbeddedIndex, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    index = untrained
    index.add_all((f"w{number}", video(number)) for number in range(100))
    for number in range(100):
        index.remove(f"v{number}")
    before, in_volume, calls = index.search(queries(3)), index._in_volume, iter(range(10**6))

    def compact_first(volume: int) -> AbstractContextManager[None]:
        if next(calls) == moment:
            index.compact()
        return in_volume(volume)

    monkeypatch.setattr(ann, "LADDER", (300,))
    monkeypatch.setattr(index, "_in_volume", compact_first)
    assert index.train() is None
    assert index._storage.state.volume == 2
    assert index._cascade.trained is None
    assert index.search(queries(3)) == before


def test_a_copy_with_low_recall_is_not_used(untrained: EmbeddedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ann, "LADDER", (4,))
    assert untrained.train() is None
    assert untrained._cascade.trained is None
    assert len(untrained.search(queries(3))[0]) == 10


def test_compaction_removes_the_copy(index: EmbeddedIndex) -> None:
    index.remove("v0")
    index.compact()
    assert index._cascade.trained is None
    assert not list(index.folder.glob("*.trained"))
    assert len(index.search(queries(3))[0]) == 10


@pytest.mark.parametrize("where", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_copy_is_ignored(index: EmbeddedIndex, untrained: EmbeddedIndex, where: float, cut: bool) -> None:
    before = untrained.search(queries(3))
    index.close()
    (path,) = index.folder.glob("*.trained")
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    data[at] ^= 8
    path.write_bytes(data[:at] if cut else data)
    with EmbeddedIndex.open(index.folder) as again:
        assert again._cascade.trained is None
        assert again.search(queries(3)) == before


def test_a_large_library_is_trained_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ann, "FROM", 100)
    with EmbeddedIndex.create(tmp_path / "index", branch_weights=WEIGHTS, width=WIDTH) as index:
        index.add_all((f"v{number}", video(number)) for number in range(90))
        assert index._training is None
        index.add_all((f"w{number}", video(100 + number)) for number in range(60))
        assert isinstance(index._training, threading.Thread)
        assert len(index.search(queries(3))[0]) == 10  # the scan is used meanwhile
    with EmbeddedIndex.open(tmp_path / "index") as again:
        assert again._cascade.trained is not None
        assert again.tokens("w3")["clip"].vectors.dtype == np.float32
