"""Parts of one library in another, as an interrupted rsync leaves them."""

import shutil
from pathlib import Path

import pytest

from midreel.errors import BadIndex, BadLibrary
from midreel.library.layout import Layout
from midreel.library.reindex import reindex
from midreel.library.searcher import Searcher
from midreel.library.writer import Wanted
from tests.library.small import Eye, everything, film, index, opened


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A library of the same width, with another model. It shares some videos with the first."""
    film(tmp_path / "other videos/a.mp4", "red")
    film(tmp_path / "other videos/b.mp4", "grey", "red", "blue")
    index(tmp_path / "other", tmp_path / "other videos", wanted=Wanted(model="zero-shot-clips"))
    return tmp_path / "other"


def swap(part: Path, other: Path) -> None:
    shutil.rmtree(part)
    shutil.copytree(other, part)


@pytest.mark.parametrize(("part", "error"), [("model", BadLibrary), ("index", BadIndex), (".", BadLibrary)])
def test_a_part_of_another_library_is_refused(
    videos: Path, library: Path, other: Path, part: str, error: type[Exception]
) -> None:
    index(library, videos)
    before = everything(library)
    swap(Layout(library).serving().folder / part, Layout(other).serving().folder / part)
    with Searcher.open(library, backbone=Eye()) as searcher, pytest.raises(error):
        searcher.search("red")
    with opened(library) as writer:
        reindex(writer, "zero-shot")
    assert everything(library) == before


def test_an_index_of_another_library_with_the_same_model_is_refused(
    videos: Path, library: Path, other: Path, tmp_path: Path
) -> None:
    """The model does not show which backbone made the features."""
    index(library, videos)
    index(tmp_path / "twin", videos)
    swap(Layout(library).serving().index, Layout(tmp_path / "twin").serving().index)
    with Searcher.open(library, backbone=Eye()) as searcher, pytest.raises(BadIndex):
        searcher.search("red")


def test_the_index_of_a_deleted_generation_is_refused(videos: Path, library: Path, tmp_path: Path) -> None:
    index(library, videos)
    shutil.copytree(Layout(library).serving().index, tmp_path / "old")
    with opened(library) as writer:
        reindex(writer)
    swap(Layout(library).serving().index, tmp_path / "old")
    with Searcher.open(library, backbone=Eye()) as searcher, pytest.raises(BadIndex):
        searcher.search("red")
