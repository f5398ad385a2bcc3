"""A bit that flips, a file that is cut short or gone, anywhere in a library: told or mended, never a crash."""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from midreel.errors import MidreelError
from midreel.search import Searcher
from tests.library.small import Eye, film, index


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
def test_damage_anywhere_is_told_or_mended(whole: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
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
        mended = _found(library)
        if not path.name.startswith("catalogue"):  # which has no checksums
            assert served is None or served <= (expected or set()), path
            assert mended in (None, expected), path


def _found(library: Path) -> set[tuple[Path, str]] | None:
    """Where the videos lie and what they score; None if an error says what is wrong."""
    try:
        with Searcher.open(library, backbone=Eye()) as searcher:
            return {(hit.path, f"{hit.score:.5f}") for hit in searcher.search("red")}
    except MidreelError:
        return None
