"""Which places are looked at, and what is not taken for gone."""

from pathlib import Path

import pytest

from midreel.errors import BadSetting, MissingVideo
from midreel.library.searcher import Searcher
from tests.library.small import Eye, counts, film, found, index


def test_without_places_all_that_it_ever_was_given(videos: Path, library: Path, tmp_path: Path) -> None:
    extra = film(tmp_path / "extra.mp4", "green")
    index(library, videos)
    index(library, extra)
    film(videos / "new.mp4", "red")
    assert counts(index(library)) == {"new": 1, "unchanged": 4}
    with pytest.raises(BadSetting, match="holds nothing yet, and nothing was named; run: midreel index VIDEOS"):
        index(tmp_path / "another")


def test_what_is_elsewhere_stays(videos: Path, library: Path) -> None:
    index(library, videos)
    assert counts(index(library, videos / "trip")) == {"unchanged": 2}
    assert len(found(library, "red")) == 3


def test_a_library_among_its_videos(videos: Path) -> None:
    (videos / "link").symlink_to(videos)
    assert counts(index(videos / "library", videos)) == {"new": 3}
    assert counts(index(videos / "library", videos)) == {"unchanged": 3}


def test_a_disk_that_is_not_mounted_takes_nothing_with_it(videos: Path, library: Path, tmp_path: Path) -> None:
    index(library, videos)
    videos.rename(tmp_path / "away")
    report = index(library)
    assert report.is_partial
    assert f"kept what was found in {videos}: it does not exist now; mount its disk" in report.text
    with Searcher.open(library, backbone=Eye()) as searcher, pytest.raises(MissingVideo, match="videos does not exist"):
        searcher.add(videos)
    videos.mkdir()
    assert "the folder is empty now" in index(library, videos).text
    assert len(found(library, "red")) == 3
    assert counts(index(library, videos, forget=True)) == {"removed": 3}
    assert found(library, "red") == []
    videos.rmdir()
    assert not index(library, videos, forget=True).is_partial
    with pytest.raises(BadSetting, match="holds nothing yet"):  # for the place was forgotten, too
        index(library)


def test_of_two_places_one_may_be_missing(videos: Path, library: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    report = index(library, videos, missing)
    assert (counts(report), report.is_partial) == ({"new": 3}, True)
    assert report.unreachable == {missing: "it does not exist; check the path, or mount its disk"}
    assert not index(library).is_partial  # a slip is not remembered


def test_a_disk_below_a_place_keeps_its_videos(videos: Path, library: Path, tmp_path: Path) -> None:
    index(library, videos)
    (videos / "trip").rename(tmp_path / "disk")
    (videos / "trip").mkdir()
    report = index(library, videos)
    assert (counts(report), list(report.unreachable)) == ({"unchanged": 1}, [videos / "trip"])
    assert len(found(library, "red")) == 3
    (videos / "trip").rmdir()
    (tmp_path / "disk").rename(videos / "trip")
    assert counts(index(library, videos)) == {"unchanged": 3}
