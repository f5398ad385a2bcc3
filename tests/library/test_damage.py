"""Flipped bits, truncated files and missing files, anywhere in a library: an error or a repair, never a crash."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from midreel.errors import MidreelError, MissingTokens
from midreel.library.catalogue import NAME
from midreel.library.searcher import Searcher
from tests.library.small import Eye, everything, film, index


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    film(folder / "videos/a.mp4", "red", "grey")
    film(folder / "videos/b.mp4", "green")
    index(folder / "library", folder / "videos")
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    chance = random.Random(len(content))
    for _ in range(8):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, cut, empty, Path.unlink])
def test_damage_anywhere_is_reported_or_repaired(whole: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    expected = _found(whole / "library")
    assert len(expected or ()) == 2
    files = [path for path in sorted((whole / "library").rglob("*")) if path.is_file() and path.stat().st_size]
    assert len(files) > 6
    for number, path in enumerate(files):
        library = tmp_path / str(number)
        shutil.copytree(whole / "library", library)
        damage(library / path.relative_to(whole / "library"))
        served = _found(library)
        with suppress(MidreelError):
            index(library, whole / "videos", retry=True)
        repaired = _found(library)
        if not path.name.startswith("catalogue"):  # the catalogue has no checksums
            assert served is None or served <= (expected or set()), path
            assert repaired in (None, expected), path


@pytest.mark.parametrize(("name", "decodes"), [(NAME, False), ("library.json", False), ("features.h5", True)])
def test_the_remedy_for_a_damaged_file(videos: Path, library: Path, name: str, decodes: bool) -> None:
    """Move the file away, and run the command again."""
    index(library, videos)
    whole, path = everything(library), library / name
    path.write_bytes(b"no such file" * 1000)
    with pytest.raises(MidreelError) as caught:
        index(library, videos)
    assert "move it" in str(caught.value)
    path.rename(path.with_name(f"{name}.damaged"))
    eye = Eye()
    index(library, videos, eye=eye)
    assert everything(library) == whole
    assert bool(eye.num_images) == decodes


@pytest.mark.parametrize("num_frames", [1, 2**40])
@pytest.mark.parametrize("mounted", [True, False])
def test_a_damaged_number_of_frames_is_repaired(tmp_path: Path, library: Path, num_frames: int, mounted: bool) -> None:
    """A search must not list the windows of a video with a huge number of frames."""
    long = film(tmp_path / "videos/long.mp4", *["red", "grey"] * 40)
    film(tmp_path / "videos/short.mp4", "green")
    index(library, tmp_path / "videos")
    whole = everything(library)
    with closing(sqlite3.connect(library / NAME, isolation_level=None)) as database:
        database.execute("UPDATE videos SET num_frames = ? WHERE num_frames > 99", (num_frames,))
    with Searcher.open(library, backbone=Eye()) as searcher:
        assert [hit.path.name for hit in searcher.search("red")] == ["short.mp4"]
        assert searcher.unsearchable() == [long]
        with pytest.raises(MissingTokens):
            searcher.search_like(long, 1.0)
        if not mounted:
            (tmp_path / "videos").rename(tmp_path / "elsewhere")
        report = index(library, retry=True)
        assert report.repaired == [long]
        assert len(searcher.search("red")) == 2
        assert searcher.unsearchable() == []
    assert everything(library) == whole


def _found(library: Path) -> set[tuple[Path, str]] | None:
    """Return files and scores of all hits; None if the search raises an error of midreel."""
    try:
        with Searcher.open(library, backbone=Eye()) as searcher:
            return {(hit.path, f"{hit.score:.5f}") for hit in searcher.search("red")}
    except MidreelError:
        return None
