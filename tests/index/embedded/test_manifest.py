"""The manifest: other formats are rejected, and full disks and damage are reported."""

import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from midreel.errors import BadIndex, Unwritable
from midreel.index import EmbeddedIndex
from midreel.index.embedded import manifest
from tests.index.library import found, queries, video


def test_a_newer_format_is_rejected(folder: Path) -> None:
    with sqlite3.connect(folder / "manifest.sqlite") as connection:
        connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(BadIndex, match="format 3, expected 2"):
        EmbeddedIndex.open(folder)


def test_rows_are_checked_together_as_one_by_one() -> None:
    rows = [
        manifest.Row(number=k, name=b"v", starts=b"1", counts=b"2", checksums=b"3", scales=b"4", checksum=0).signed()
        for k in range(6)
    ]
    assert manifest.only_intact(rows) == rows
    changed = rows[3]._replace(scales=b"5")
    wrong_type = rows[4]._replace(scales="text")  # type: ignore[arg-type]
    for damaged in ([changed], [wrong_type], [changed, wrong_type], []):
        mixed = [*rows, *damaged]
        assert manifest.only_intact(mixed) == [row for row in mixed if row.is_intact()] == rows


def test_another_database_is_rejected(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "manifest.sqlite")
    connection.execute("CREATE TABLE other (a)")
    connection.close()
    with pytest.raises(BadIndex, match="not the manifest"):
        EmbeddedIndex.open(tmp_path)


def test_a_manifest_that_cannot_grow(folder: Path) -> None:
    with EmbeddedIndex.open(folder) as index:
        index._storage.manifest._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(Unwritable, match="full"):
            index.add_all([(f"new {number}", video(number)) for number in range(40)])
        assert len(index) == 12
        assert index.verify() == []
    with EmbeddedIndex.open(folder) as index:
        index.add("new", video(1))
        assert len(index) == 13


@pytest.mark.slow
def test_a_flipped_bit_in_the_manifest_is_detected_or_harmless(folder: Path, tmp_path: Path) -> None:
    before, chance = found(folder), random.Random(5)
    intact = (folder / "manifest.sqlite").read_bytes()
    detected = 0
    for trial in range(150):
        copy = tmp_path / f"copy{trial}"
        shutil.copytree(folder, copy)
        data = bytearray(intact)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (copy / "manifest.sqlite").write_bytes(data)
        try:
            with EmbeddedIndex.open(copy, read_only=True) as index:
                matches = index.search(queries(0), top=12)
                if index.problems():
                    detected += 1
                    served = set(index.video_ids())
                    assert [[m for m in row if m.video_id in served] for row in before] == matches
                else:
                    assert matches == before
        except BadIndex:
            detected += 1
        shutil.rmtree(copy)
    assert detected > 20


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9])
def test_a_truncated_manifest(folder: Path, keep: float) -> None:
    path = folder / "manifest.sqlite"
    os.truncate(path, int(keep * path.stat().st_size))
    for read_only in (False, True):
        try:
            with EmbeddedIndex.open(folder, read_only=read_only) as index:
                problems = index.problems()
        except BadIndex as error:
            problems = [str(error)]
        assert any("manifest.sqlite" in problem and "midreel reindex" in problem for problem in problems)


def test_a_full_disk_is_reported_on_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_TABLES", f"PRAGMA max_page_count = 1; {manifest._TABLES}")
    with pytest.raises(Unwritable, match="full"):
        EmbeddedIndex.create(tmp_path / "index", branch_weights={"frame": 1.0}, width=8)
