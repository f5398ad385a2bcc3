import os
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from midreel.errors import BadStore
from midreel.features.stores.hdf5_log import HDF5Log
from midreel.library import watch as watching
from midreel.library.catalogue import Catalogue
from midreel.library.report import IndexReport
from midreel.library.watch import watch
from tests.library.small import Eye, film, index, opened


class Watcher:
    """Watches in the background, and waits for reports."""

    def __init__(self, library: Path, *places: Path, **more: object) -> None:
        self.reports: list[IndexReport] = []
        self.warnings: list[Exception] = []
        self._stop, self._reported = Event(), Event()
        options = {"every": 0.05, "stop": self._stop, "on_report": self._note, "on_error": self.warnings.append, **more}
        self._thread = Thread(target=watch, args=(library, places), kwargs=options)

    def _note(self, report: IndexReport) -> None:
        self.reports.append(report)
        self._reported.set()

    def next_report(self) -> IndexReport:
        assert self._reported.wait(30)
        self._reported.clear()
        return self.reports[-1]

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture(autouse=True)
def _eye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midreel.library.writer.load_backbone", lambda *_, **__: Eye())


def test_new_moved_and_removed_files_are_indexed(tmp_path: Path) -> None:
    videos, library = tmp_path / "videos", tmp_path / "library"
    film(videos / "a.mp4", "red")
    index(library, videos)
    with Watcher(library, videos) as watcher:
        film(videos / "b.mp4", "green")
        assert watcher.next_report().new == [videos / "b.mp4"]
        (videos / "b.mp4").rename(videos / "c.mp4")
        assert watcher.next_report().moved == [videos / "c.mp4"]
        (videos / "a.mp4").unlink()
        assert watcher.next_report().removed == [videos / "a.mp4"]
    assert len(watcher.reports) == 3


def test_a_growing_file_is_indexed_when_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    videos, library = tmp_path / "videos", tmp_path / "library"
    film(videos / "a.mp4", "red")
    index(library, videos)
    growing, scans, stop = videos / "growing.mp4", 0, Event()
    whole = film(tmp_path / "whole.mp4", "green", "blue").read_bytes()
    take_snapshot = watching.take_snapshot

    def grow(*given: object, **options: object) -> object:
        """Write a quarter of the file before each of the first four scans."""
        nonlocal scans
        scans += 1
        if scans <= 4:
            growing.write_bytes(whole[: len(whole) * scans // 4])
            os.utime(growing, (scans, scans))
        return take_snapshot(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(watching, "take_snapshot", grow)
    reports: list[tuple[int, IndexReport]] = []

    def on_report(report: IndexReport) -> None:
        reports.append((scans, report))
        stop.set()

    watch(library, [videos], every=0.01, stop=stop, on_report=on_report)
    ((number, report),) = reports
    assert (number, report.new, report.quarantined) == (5, [growing], {})


def test_a_busy_library_is_retried(tmp_path: Path) -> None:
    videos, library = tmp_path / "videos", tmp_path / "library"
    film(videos / "a.mp4", "red")
    index(library, videos)
    with opened(library):
        film(videos / "b.mp4", "green")
        watcher = Watcher(library, videos)
        watcher.__enter__()
        assert not watcher._reported.wait(0.5)
    try:
        assert watcher.next_report().new == [videos / "b.mp4"]
    finally:
        watcher.__exit__()


def test_a_full_disk_is_reported_once_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    videos, library, tries = tmp_path / "videos", tmp_path / "library", 0
    film(videos / "a.mp4", "red")
    index(library, videos)
    room = HDF5Log._expect_free_space

    def full(log: HDF5Log, size: int) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise BadStore("full")
        room(log, size)

    monkeypatch.setattr(HDF5Log, "_expect_free_space", full)
    with Watcher(library, videos, tags=["new"], workers=1) as watcher:
        film(videos / "b.mp4", "green")
        assert watcher.next_report().new == [videos / "b.mp4"]
    assert [str(error) for error in watcher.warnings] == ["full"]
    with closing(Catalogue(library)) as catalogue:
        assert catalogue.tags() == {"new": 2}  # also the old video of this place


def test_forget_removes_videos_of_an_empty_folder(tmp_path: Path) -> None:
    videos, library = tmp_path / "videos", tmp_path / "library"
    film(videos / "trip/a.mp4", "red")
    film(videos / "b.mp4", "green")
    index(library, videos)
    with Watcher(library, videos, forget=True) as watcher:
        (videos / "trip/a.mp4").unlink()
        assert watcher.next_report().removed == [videos / "trip/a.mp4"]


def test_a_missing_place_is_indexed_when_it_is_back(tmp_path: Path) -> None:
    here, away, library = tmp_path / "here", tmp_path / "away", tmp_path / "library"
    film(here / "a.mp4", "red")
    film(away / "b.mp4", "green")
    index(library, here, away)
    away.rename(tmp_path / "disk")
    with Watcher(library, here, away) as watcher:
        film(here / "c.mp4", "blue")
        report = watcher.next_report()
        assert (report.new, list(report.unreachable)) == ([here / "c.mp4"], [away])
        film(tmp_path / "disk/d.mp4", "grey", "red")
        (tmp_path / "disk").rename(away)
        assert watcher.next_report().new == [away / "d.mp4"]
