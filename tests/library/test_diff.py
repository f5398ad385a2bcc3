"""Which places a run scans, and which missing files it does not remove."""

from pathlib import Path

import pytest

from midreel.errors import BadSetting, MissingVideo
from midreel.library.searcher import Searcher
from tests.library.small import Eye, counts, film, found, index


def test_the_default_is_every_place_indexed_so_far(videos: Path, library: Path, tmp_path: Path) -> None:
    extra = film(tmp_path / "extra.mp4", "green")
    index(library, videos)
    index(library, extra)
    film(videos / "new.mp4", "red")
    assert counts(index(library)) == {"new": 1, "unchanged": 4}
    with pytest.raises(BadSetting, match="midreel index VIDEOS"):
        index(tmp_path / "another")


def test_videos_of_other_places_stay(videos: Path, library: Path) -> None:
    index(library, videos)
    assert counts(index(library, videos / "trip")) == {"unchanged": 2}
    assert len(found(library, "red")) == 3


def test_a_library_inside_the_folder_of_its_videos(videos: Path) -> None:
    (videos / "link").symlink_to(videos)
    assert counts(index(videos / "library", videos)) == {"new": 3}
    assert counts(index(videos / "library", videos)) == {"unchanged": 3}


def test_videos_of_an_unmounted_disk_are_kept_until_forgotten(videos: Path, library: Path, tmp_path: Path) -> None:
    index(library, videos)
    videos.rename(tmp_path / "away")
    report = index(library)
    assert (report.is_partial, list(report.unreachable)) == (True, [videos])
    assert f" {videos}: " in report.text
    with Searcher.open(library, backbone=Eye()) as searcher, pytest.raises(MissingVideo, match=str(videos)):
        searcher.add(videos)
    videos.mkdir()
    assert "empty" in index(library, videos).unreachable[videos]
    assert len(found(library, "red")) == 3
    assert counts(index(library, videos, forget=True)) == {"removed": 3}
    assert found(library, "red") == []
    videos.rmdir()
    assert not index(library, videos, forget=True).is_partial
    with pytest.raises(BadSetting):  # the place was forgotten, too
        index(library)


def test_a_missing_place_is_reported_and_the_others_are_indexed(videos: Path, library: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    report = index(library, videos, missing)
    assert (counts(report), report.is_partial) == ({"new": 3}, True)
    assert list(report.unreachable) == [missing]
    assert not index(library).is_partial  # a missing place is not remembered


def test_videos_of_a_disk_that_was_mounted_below_a_place_are_kept(videos: Path, library: Path, tmp_path: Path) -> None:
    index(library, videos)
    (videos / "trip").rename(tmp_path / "disk")
    (videos / "trip").mkdir()
    report = index(library, videos)
    assert (counts(report), list(report.unreachable)) == ({"unchanged": 1}, [videos / "trip"])
    assert len(found(library, "red")) == 3
    (videos / "trip").rmdir()
    (tmp_path / "disk").rename(videos / "trip")
    assert counts(index(library, videos)) == {"unchanged": 3}
