"""The compressed copy: what it names is what the scan names, and it never serves without having shown it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from midreel.index import EmbeddedIndex, cascade, trained
from tests.index.library import WEIGHTS, WIDTH, queries, video

pytest.importorskip("faiss", reason="faiss is not installed: pip install midreel[fast]")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedIndex]:
    """Large for the settings of this test; the copy must leave out some."""
    monkeypatch.setattr(cascade, "CANDIDATES", 40)
    monkeypatch.setattr(cascade, "FINALISTS", 96)
    monkeypatch.setattr(trained, "LADDER", (64, 150))
    with EmbeddedIndex.create(tmp_path / "index", branch_weights=WEIGHTS, width=WIDTH) as index:
        index.add_all((f"v{number}", video(number)) for number in range(300))
        yield index


def test_it_serves_what_the_scan_serves(index: EmbeddedIndex) -> None:
    before = index.search(queries(3, 10))
    recall = index.train()
    assert recall is not None
    assert recall >= trained.RECALL
    copy = index._cascade.trained
    assert copy is not None
    assert copy.let_through in (64, 150)
    same = [
        len({m.video_id for m in a} & {m.video_id for m in b})
        for a, b in zip(before, index.search(queries(3, 10)), strict=True)
    ]
    assert sum(same) >= 95


def test_it_lasts_and_readers_take_it_up(index: EmbeddedIndex) -> None:
    with EmbeddedIndex.open(index.folder, read_only=True) as reader:
        index.train()
        assert reader.search(queries(3)) == index.search(queries(3))
        assert reader._cascade.trained is not None
    index.close()
    with EmbeddedIndex.open(index.folder) as again:
        assert again._cascade.trained is not None


def test_newer_videos_are_found_and_removed_ones_are_not(index: EmbeddedIndex) -> None:
    index.train()
    index.add("new", video(999))
    asked = {branch: part.vectors[0, :1] for branch, part in video(999).items()}
    assert index.search(asked)[0][0].video_id == "new"
    index.remove("new")
    first = index.search(queries(3, 1))[0][0].video_id
    index.remove(first)
    assert first not in {match.video_id for match in index.search(queries(3, 1))[0]}


def test_a_filter_goes_round_it(index: EmbeddedIndex) -> None:
    index.train()
    worst = [match.video_id for match in index.search(queries(3, 1), top=300, exact=True)[0]][-5:]
    assert [match.video_id for match in index.search(queries(3, 1), among=worst)[0]] == worst


def test_one_that_does_not_find_enough_does_not_serve(index: EmbeddedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "LADDER", (4,))
    assert index.train() is None
    assert index._cascade.trained is None
    assert len(index.search(queries(3))[0]) == 10


def test_compaction_lets_go_of_it(index: EmbeddedIndex) -> None:
    index.train()
    index.remove("v0")
    index.compact()
    assert index._cascade.trained is None
    assert not list(index.folder.glob("*.trained"))
    assert len(index.search(queries(3))[0]) == 10


@pytest.mark.parametrize("where", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_one_is_passed_over(index: EmbeddedIndex, where: float, cut: bool) -> None:
    before = index.search(queries(3))
    index.train()
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
    monkeypatch.setattr(trained, "FROM", 100)
    monkeypatch.setattr(cascade, "CANDIDATES", 40)
    with EmbeddedIndex.create(tmp_path / "index", branch_weights=WEIGHTS, width=WIDTH) as index:
        index.add_all((f"v{number}", video(number)) for number in range(90))
        assert index._training is None
        index.add_all((f"w{number}", video(100 + number)) for number in range(60))
        assert isinstance(index._training, threading.Thread)
        assert len(index.search(queries(3))[0]) == 10  # meanwhile the scan serves
    with EmbeddedIndex.open(tmp_path / "index") as again:
        assert again._cascade.trained is not None
        assert torch.is_tensor(again.tokens("w3")["clip"].vectors)
