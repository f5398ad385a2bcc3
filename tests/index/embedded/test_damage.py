"""Damaged vector files: the affected videos are reported, and the others are found."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from midreel.errors import BadIndex, MissingTokens
from midreel.index import EmbeddedIndex
from midreel.index.embedded import cascade
from midreel.index.embedded.vectors import token_dtype
from tests.index.library import FILES, FORMS, WIDTH, found, queries, queries_of, video, video_of


@pytest.mark.parametrize("name", FILES[1:])
def test_a_damaged_video_is_reported_and_the_others_are_found(folder: Path, name: str) -> None:
    before = found(folder)
    path = folder / name
    data = bytearray(path.read_bytes())
    data[5] ^= 16  # the first video's
    path.write_bytes(data)
    rest = [[m for m in row if m.video_id != "v0"] for row in before]
    with EmbeddedIndex.open(folder, read_only=True) as reader:
        assert reader.search(queries(0), top=12) == rest
        assert list(reader.damaged) == ["v0"]
        (problem,) = reader.problems()
        assert "'v0'" in problem
        assert str(path) in problem
        assert reader.verify() == [problem]
        assert "v0" not in reader
        with pytest.raises(MissingTokens):
            reader.tokens("v0")
        assert reader.tokens_of(["v0", "v1", "unknown"]).keys() == {"v1"}
    with EmbeddedIndex.open(folder) as index:
        if name.endswith("coarse"):  # rebuilt from the tokens
            assert index.search(queries(0), top=12) == before
        else:
            assert index.search(queries(0), top=12) == rest
            index.add("v0", video(0))
        assert index.verify() == []
        assert len(index) == 12
    with EmbeddedIndex.open(folder) as index:
        assert index.verify() == []


@pytest.mark.parametrize("name", FILES[1:])
def test_an_unreadable_vector_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    with EmbeddedIndex.open(folder, read_only=True) as reader, pytest.raises(BadIndex, match=name):
        reader.search(queries(0))
    with pytest.raises(BadIndex):
        EmbeddedIndex.open(folder)


@pytest.mark.parametrize("filler", [b"\xff", b"\x00", b"\x7f", random.Random(3).randbytes(512)])
@pytest.mark.parametrize("exact", [False, True])
def test_an_overwritten_sector_damages_only_its_videos(folder: Path, filler: bytes, exact: bool) -> None:
    """Their scales may become NaN, infinite or huge."""
    before = found(folder)
    path = folder / "000001.tokens1"
    data = path.read_bytes()
    path.write_bytes(data[:512] + (512 * filler)[:512] + data[1024:])
    with EmbeddedIndex.open(folder, read_only=True) as index:
        matches = index.search(queries(0), top=12, exact=exact)
        assert set(index.damaged) == {"v1"}
        assert [[m for m in row if m.video_id not in index.damaged] for row in before] == matches


def test_verify_checks_videos_that_were_intact_before(index: EmbeddedIndex, folder: Path) -> None:
    index.search(queries(0), top=12)
    with (folder / "000001.tokens0").open("r+b") as file:
        file.write(b"\x55\xaa")
    (problem,) = index.verify()
    assert "'v0'" in problem


def test_compaction_drops_damaged_videos(folder: Path) -> None:
    path = folder / "000001.tokens0"
    path.write_bytes(b"\xff" * 40 + path.read_bytes()[40:])
    with EmbeddedIndex.open(folder) as index:
        index.compact()
        assert len(index) == 11
        assert index.verify() == []


def test_a_damaged_video_can_be_removed(folder: Path) -> None:
    path = folder / "000001.tokens0"
    path.write_bytes(b"\xff" * 40 + path.read_bytes()[40:])
    with EmbeddedIndex.open(folder) as index:
        assert len(index.verify()) == 1
        index.remove("v0")
        assert index.verify() == []
        assert index._storage.state.videos == 11


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize("keep", [0.0, 0.4, 0.99])
def test_a_truncated_vector_file(folder: Path, name: str, keep: float, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found(folder)
    path = folder / name
    os.truncate(path, int(keep * path.stat().st_size))
    with EmbeddedIndex.open(folder, read_only=True) as reader:
        lost = set(reader.damaged)
        assert "v11" in lost
        assert keep > 0 or len(lost) == 12
        assert all("truncated" in reason for reason in reader.damaged.values())
        assert [[m for m in row if m.video_id not in lost] for row in before] == reader.search(queries(0), top=12)
        with monkeypatch.context() as patch:
            patch.setattr(cascade, "CANDIDATES", 1)  # fewer than there are windows, so that all coarse rows are read
            assert [len(row) for row in reader.search(queries(0), top=1)] == [min(1, 12 - len(lost))] * 3
        with EmbeddedIndex.open(folder) as index:
            if name.endswith("coarse"):  # rebuilt from the tokens
                assert index.damaged == {}
            else:
                assert set(index.damaged) == lost
            for name_ in index.damaged:
                index.add(name_, video(int(name_[1:]), windows=1 + int(name_[1:]) % 2))
            assert index.verify() == []
            assert index.search(queries(0), top=12) == before == reader.search(queries(0), top=12)


@pytest.mark.parametrize("name", FILES[1:])
def test_a_missing_vector_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with EmbeddedIndex.open(folder, read_only=True) as index:
        assert len(index) == 0
        assert len(index.damaged) == 12
        assert index.search(queries(0)) == [[], [], []]


@pytest.mark.parametrize("norm", [-1.0, np.inf, -np.inf, np.nan, 1e31, -0.0, 7.0])
@pytest.mark.parametrize("exact", [False, True])
def test_a_damaged_length_damages_only_its_video(tmp_path: Path, norm: float, exact: bool) -> None:
    weights, similarities = FORMS["all"]
    folder, asked = tmp_path / "index", queries_of(weights, 0)
    with EmbeddedIndex.create(folder, branch_weights=weights, width=WIDTH, similarities=similarities) as index:
        index.add_all((f"v{seed}", video_of(weights, seed)) for seed in range(8))
        before = index.search(asked, top=8)
    for number, branch in enumerate(weights):
        path = folder / f"000001.tokens{number}"
        intact = path.read_bytes()
        rows = np.frombuffer(intact, token_dtype(WIDTH, norm=True)).copy()
        rows["norm"][0] = norm
        path.write_bytes(rows.tobytes())
        with EmbeddedIndex.open(folder, read_only=True) as reader:
            matches = reader.search(asked, top=8, exact=exact)
            assert list(reader.damaged) == ["v0"], branch
            assert matches == [[match for match in row if match.video_id != "v0"] for row in before]
        path.write_bytes(intact)


def test_damaged_files_with_lengths_are_detected_or_harmless(tmp_path: Path) -> None:
    """Random bytes are overwritten anywhere in the vector files."""
    weights, similarities = FORMS["all"]
    folder, asked, chance = tmp_path / "index", queries_of(weights, 0), random.Random(4)
    with EmbeddedIndex.create(folder, branch_weights=weights, width=WIDTH, similarities=similarities) as index:
        index.add_all((f"v{seed}", video_of(weights, seed)) for seed in range(8))
        before = index.search(asked, top=8)
    for _ in range(40):
        path = chance.choice(sorted(folder.glob("000001.*")))
        intact = path.read_bytes()
        start, number = chance.randrange(len(intact)), chance.choice((1, 4, 64))
        path.write_bytes((intact[:start] + chance.randbytes(number) + intact[start + number :])[: len(intact)])
        with EmbeddedIndex.open(folder, read_only=True) as reader:
            matches = reader.search(asked, top=8, exact=chance.random() < 0.5)
            rest = [[match for match in row if match.video_id not in reader.damaged] for row in before]
            assert matches == rest
        path.write_bytes(intact)


def test_coarse_rows_of_a_dot_product_are_rebuilt(tmp_path: Path) -> None:
    weights, similarities = FORMS["dot"]
    folder = tmp_path / "index"
    with EmbeddedIndex.create(folder, branch_weights=weights, width=WIDTH, similarities=similarities) as index:
        index.add("a", video_of(weights, 0))
        assert len(index) == 1
        before = index._storage.roster.scales.copy()
    (folder / "000001.coarse").write_bytes(b"")
    with EmbeddedIndex.open(folder) as index:
        assert index.verify() == []
        assert index._storage.roster.scales[-1:] == pytest.approx(before, rel=0.02)
