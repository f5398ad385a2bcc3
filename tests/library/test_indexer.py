"""Runs of the indexer: new, changed, moved, removed and unreadable files; interrupted runs and damaged stores."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import UInt8

from midreel.errors import BadSetting, BadStore, MissingFeatures, Unwritable
from midreel.features.backbones.base import Image
from midreel.features.extract import Outcome
from midreel.features.stores import origins
from midreel.index.embedded.quantise import unit
from midreel.library import diff, indexer
from midreel.library.catalogue import Catalogue
from midreel.library.commit import Committer
from midreel.library.encoder import encode_windows
from midreel.library.layout import Layout
from midreel.library.reindex import reindex
from midreel.library.report import Changes, Clock, IndexReport, Step
from midreel.library.scan import look_at
from midreel.library.searcher import Searcher
from midreel.library.storage import at
from midreel.library.writer import Writer
from midreel.server.listing import LibraryListing
from tests import ROOT
from tests.library.small import COLOURS, Eye, Killed, counts, damaged, everything, film, found, index, kill, opened
from tests.library.test_scan import ODD_NAMES

# ---------------------------------------------------------------- from a folder to hits


def test_a_folder_is_indexed_and_found(videos: Path, library: Path) -> None:
    steps: list[Step] = []
    report = index(library, videos, progress=steps.append)
    assert counts(report) == {"new": 3}
    assert report.video_seconds == 14.0
    assert (len(steps), {step.total for step in steps}, sum(step.seconds for step in steps)) == (3, {3}, 14.0)
    assert set(report.seconds) == {"total", "backbone", "tokens", "index", "catalogue"}
    assert report.text.startswith("3 new, 0 removed, 0 unchanged, 0 quarantined; ")
    assert json.loads(json.dumps(report.to_dict()))["new"] == [str(path) for path in report.new]
    assert found(library, "red", top=1) == ["sunset.mp4"]
    assert found(library, "green", top=1) == ["meadow.mp4"]
    assert set(found(library, "blue", top=2)) == {"sunset.mp4", "sea.mkv"}


def test_names_of_any_bytes(tmp_path: Path, library: Path) -> None:
    for number, name in enumerate(ODD_NAMES):
        film(tmp_path / "odd" / os.fsdecode(name), *(["grey"] * number), "red")
    report = index(library, tmp_path / "odd")
    assert counts(report) == {"new": len(ODD_NAMES)}
    with Searcher.open(library, backbone=Eye()) as searcher:
        hits = searcher.search("red", top=20)
    assert {os.fsencode(hit.path.name) for hit in hits} == set(ODD_NAMES)
    assert json.loads(json.dumps([hit.to_dict() for hit in hits]))
    assert counts(index(library, tmp_path / "odd")) == {"unchanged": len(ODD_NAMES)}


def test_a_long_video_is_found_like_a_short_one(tmp_path: Path, library: Path) -> None:
    film(tmp_path / "videos/film.mp4", *(["grey", "blue"] * 80), "red", *(["blue", "grey"] * 20))
    film(tmp_path / "videos/clip.mp4", "grey", "red")
    index(library, tmp_path / "videos")
    with Searcher.open(library, backbone=Eye()) as searcher:
        film_hit, clip = sorted(searcher.search("red"), key=lambda hit: -hit.duration)
        assert film_hit.duration == 402.0
        assert film_hit.score == pytest.approx(clip.score, abs=0.01)
        assert 318 <= film_hit.moments[0].start < film_hit.moments[0].end <= 324
        best = max(zip(film_hit.curve.values, film_hit.curve.times, strict=True))[1]
        assert 320 <= best <= 322
        assert list(film_hit.curve.times) == sorted(film_hit.curve.times)
        assert len(film_hit.curve.times) == pytest.approx(2 * 402, abs=10)  # tokens at the borders of windows are split
        assert searcher.index.tokens(film_hit.video_id)["frame"].vectors.shape[0] == len(
            searcher.generation.card.windows.windows(804)
        )


@pytest.mark.slow
def test_interrupted_at_random_points() -> None:
    """In a child process: it forks, and its children would lack the threads of other tests."""
    command = [sys.executable, "-m", "tools.crash_library", "--times", "6", "--seed", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("6 interrupted")


# ---------------------------------------------------------------- new, changed, moved and removed files


def test_unchanged_files_are_not_read(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("notes.txt", "a.jpg", "B.JPG", "Makefile"):
        (videos / name).touch()
    index(library, videos)
    monkeypatch.setattr(origins, "content_id", lambda path: pytest.fail(f"{path} was read"))
    monkeypatch.setattr("midreel.library.writer.load_backbone", lambda *_: pytest.fail("the backbone was loaded"))
    with Writer.open(library) as writer:
        report = indexer.index(writer, [videos])
    assert counts(report) == {"unchanged": 3}
    assert "3 unchanged" in report.text
    assert "2 .jpg" in report.text
    assert report.to_dict()["skipped"] == {".jpg": 2, "without ending": 1, ".txt": 1}


def test_a_moved_file_is_not_decoded(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    (videos / "sunset.mp4").rename(videos / "trip/evening.mp4")
    (videos / "trip").rename(videos / "journey")
    eye = Eye()
    report = index(library, videos, eye=eye)
    assert counts(report) == {"moved": 3}
    assert eye.num_images == 0
    assert found(library, "red", top=1) == ["evening.mp4"]
    assert sorted(everything(library).values()) == sorted(before.values())


def test_copies_are_one_video(videos: Path, library: Path) -> None:
    shutil.copy(videos / "sunset.mp4", videos / "again.mp4")
    report = index(library, videos)
    assert counts(report) == {"new": 3, "copies": 1}
    shutil.copy(videos / "sunset.mp4", videos / "once more.mp4")
    assert counts(index(library, videos)) == {"copies": 1, "unchanged": 4}
    with Searcher.open(library, backbone=Eye()) as searcher:
        (hit,) = searcher.search("red", top=1)
        assert [path.name for path in hit.paths] == ["again.mp4", "once more.mp4", "sunset.mp4"]
    (videos / "sunset.mp4").unlink()
    assert counts(index(library, videos)) == {"removed": 1, "unchanged": 4}
    assert found(library, "red", top=1) == ["again.mp4"]


def test_a_changed_file_is_another_video(videos: Path, library: Path) -> None:
    index(library, videos)
    film(videos / "sunset.mp4", "green")
    assert counts(index(library, videos)) == {"changed": 1, "unchanged": 2}
    with Searcher.open(library, backbone=Eye()) as searcher:
        assert len(searcher) == 3
        assert {hit.path.name for hit in searcher.search("green", top=2)} == {"sunset.mp4", "meadow.mp4"}
        assert all(hit.score < 0.9 for hit in searcher.search("red"))


def test_a_touched_file_is_the_same_video(videos: Path, library: Path) -> None:
    index(library, videos)
    assert found(library, "red", where=["before=2005"]) == []
    os.utime(videos / "sunset.mp4", (1, 1))
    eye = Eye()
    assert counts(index(library, videos, eye=eye)) == {"touched": 1, "unchanged": 2}
    assert eye.num_images == 0
    assert found(library, "red", where=["before=2005"]) == ["sunset.mp4"]
    assert len(found(library, "red", where=["after=2005"])) == 2
    assert counts(index(library, videos)) == {"unchanged": 3}


def test_a_deleted_file_is_removed(videos: Path, library: Path) -> None:
    index(library, videos)
    (videos / "sunset.mp4").unlink()
    report = index(library, videos)
    assert report.removed == [videos / "sunset.mp4"]
    assert set(found(library, "red")) == {"meadow.mp4", "sea.mkv"}
    with opened(library) as writer:
        assert len(writer.index) == 2


def test_the_last_file_of_a_folder_can_be_moved(videos: Path, library: Path) -> None:
    index(library, videos)
    (videos / "trip/meadow.mp4").rename(videos / "meadow.mp4")
    (videos / "trip/sea.mkv").rename(videos / "sea.mkv")
    report = index(library, videos)
    assert (counts(report), report.is_partial) == ({"moved": 2, "unchanged": 1}, False)
    assert all("trip" not in path for path in everything(library))


def test_features_of_removed_videos_are_kept_until_forget(videos: Path, library: Path) -> None:
    index(library, videos, tags=["holiday"])
    (videos / "trip").rename(videos.with_name("elsewhere"))
    report = index(library, videos)
    assert (counts(report), report.unused) == ({"removed": 2, "unchanged": 1}, 2)
    assert "--forget" in report.text
    videos.with_name("elsewhere").rename(videos / "trip")
    eye = Eye()
    assert counts(index(library, videos, eye=eye)) == {"new": 2, "unchanged": 1}
    assert eye.num_images == 0
    shutil.rmtree(videos / "trip")
    assert index(library, videos, forget=True).unused == 0
    with opened(library) as writer:
        assert writer.index.waste == 0
        assert set(writer.store.video_ids()) == writer.catalogue.video_ids()
        assert len(writer.store.video_ids()) == 1


def test_tags(videos: Path, library: Path) -> None:
    index(library, videos)
    film(videos / "trip/new.mp4", "red")
    index(library, videos / "trip", tags=["trip", "2026"])
    assert set(found(library, "red", where=["tag=trip"])) == {"meadow.mp4", "sea.mkv", "new.mp4"}
    assert len(found(library, "red", where=["tag=trip", "tag=2026", "shorter=3"])) == 1


def test_a_tag_that_is_not_utf8_changes_nothing(videos: Path, library: Path) -> None:
    index(library, videos / "trip")
    with pytest.raises(BadSetting, match="UTF-8"):
        index(library, videos, tags=["sea", "\udce9t\udce9"])
    assert counts(index(library, videos)) == {"new": 1, "unchanged": 2}
    assert found(library, "red", where=["tag=sea"]) == []


def test_a_file_of_the_year_2300(videos: Path, library: Path) -> None:
    path, seconds = videos / "sunset.mp4", 10_413_792_000
    os.utime(path, (seconds, seconds))
    if round(path.stat().st_mtime) != seconds:
        pytest.skip("the file system has no such dates")
    assert counts(index(library, videos)) == {"new": 3}
    assert counts(index(library, videos)) == {"unchanged": 3}
    assert found(library, "red", where=["after=2200"]) == ["sunset.mp4"]
    with closing(LibraryListing(at(library))) as listing:  # it serves only unchanged files
        (item,) = [item for item in listing.contents().items.values() if item.file == path.name]
        with listing.opened(item) as opened:
            assert opened.size == path.stat().st_size


def test_a_quarantined_file_may_have_any_name(videos: Path, library: Path) -> None:
    path = videos / os.fsdecode(b"\xe9t\xe9.mp4")
    path.write_bytes(b"no video")
    assert counts(index(library, videos)) == {"new": 3, "quarantined": 1}
    with closing(Catalogue(library)) as catalogue:
        assert list(catalogue.quarantine()) == [path]


def test_short_videos_do_not_wait_for_many_others(tmp_path: Path, library: Path) -> None:
    for number, colours in enumerate(permutations(COLOURS, 2)):
        film(tmp_path / f"clips/{number}.mp4", *colours)
    eye, seen = Eye(), list[int]()
    index(library, tmp_path / "clips", eye=eye, progress=lambda _: seen.append(eye.num_images))
    assert (seen[0], seen[-1]) == (32, 12 * 8)


# ---------------------------------------------------------------- unreadable files


def test_an_unreadable_file_is_quarantined_until_it_changes(videos: Path, library: Path) -> None:
    (videos / "notes.mp4").write_text("this is a text, whatever its name says\n" * 50)
    report = index(library, videos)
    assert counts(report) == {"new": 3, "quarantined": 1}
    assert report.is_partial
    assert "notes.mp4: " in report.text
    assert "notes.mp4" in report.quarantined[videos / "notes.mp4"]
    report = index(library, videos)
    assert (counts(report), report.not_retried) == ({"unchanged": 3, "quarantined": 1}, 1)
    assert "--retry" in report.text
    report = index(library, videos, retry=True)
    assert (counts(report), report.not_retried) == ({"unchanged": 3, "quarantined": 1}, 0)
    film(videos / "notes.mp4", "red")
    assert counts(index(library, videos)) == {"new": 1, "unchanged": 3}
    (videos / "notes.mp4").write_text("again a text")
    assert counts(index(library, videos)) == {"quarantined": 1, "unchanged": 3}
    assert "notes.mp4" not in found(library, "red")
    (videos / "notes.mp4").unlink()
    assert counts(index(library, videos)) == {"unchanged": 3}


def test_copies_of_an_unreadable_file_are_quarantined_too(videos: Path, library: Path) -> None:
    """The copies are far apart, so the first has failed long before the last is hashed."""
    for name in ("a.mp4", "trip/b.mp4", "z.mp4"):
        (videos / name).write_bytes(b"no video")
    film(videos / "long.mp4", *(["red", "green"] * 20))
    report = index(library, videos, workers=1)
    assert counts(report) == {"new": 4, "quarantined": 3}
    assert len(set(report.quarantined.values())) == 1


def test_a_read_error_is_retried_by_the_next_run(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = origins.content_id

    def fails(path: Path) -> str:
        if path.name == "sunset.mp4":
            raise OSError(5, "Input/output error")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(origins, "content_id", fails)
        report = index(library, videos)
    assert counts(report) == {"new": 2, "failed": 1}
    assert "Input/output error" in report.failed[videos / "sunset.mp4"]
    assert counts(index(library, videos)) == {"new": 1, "unchanged": 2}


@pytest.mark.parametrize("is_video", [True, False])
def test_a_file_that_is_replaced_after_hashing_is_retried(
    videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch, is_video: bool
) -> None:
    """Nothing is stored or quarantined under the hash of the old content."""
    shutil.copy(videos / "sunset.mp4", videos / "z copy.mp4")
    real, replaced = origins.content_id, list[Path]()

    def replacing(path: Path) -> str:
        found = real(path)
        if path.name == "sunset.mp4" and not replaced:
            replaced.append(film(path, "green", "green") if is_video else path)
            if not is_video:
                path.write_text("no video")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(origins, "content_id", replacing)
        report = index(library, videos, workers=1)
    assert counts(report) == {"new": 2, "failed": 2}
    assert "sunset.mp4" in report.failed[videos / "sunset.mp4"]
    expected = {"new": 2} if is_video else {"new": 1, "quarantined": 1}
    assert counts(index(library, videos)) == expected | {"unchanged": 2}
    assert found(library, "red", top=1) == ["z copy.mp4"]
    assert ("sunset.mp4" in found(library, "green", top=2)) == is_video


def test_a_file_that_changes_while_it_is_decoded_is_retried(videos: Path, library: Path) -> None:
    class Writing(Eye):
        def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
            with (videos / "sunset.mp4").open("ab") as file:
                file.write(bytes(8))
            return super().prepare(image)

    assert counts(index(library, videos / "sunset.mp4", eye=Writing())) == {"failed": 1}
    assert found(library, "red") == []
    assert counts(index(library, videos / "sunset.mp4")) == {"new": 1}


@pytest.mark.parametrize("name", ["latin.mp4", "codec.mp4"])
def test_odd_files_are_indexed_or_quarantined_once(videos: Path, library: Path, name: str) -> None:
    data = (videos / "sunset.mp4").read_bytes()
    is_readable = name == "latin.mp4"  # its tag "Lavf…" becomes one that is not UTF-8
    old, new = (b"Lavf", b"L\xe9vf") if is_readable else (b"avc1", b"zzz1")
    assert old in data
    (videos / name).write_bytes(data.replace(old, new))
    report = index(library, videos / name)
    assert counts(report) == ({"new": 1} if is_readable else {"quarantined": 1})
    again = index(library, videos / name)
    assert (again.unchanged, again.not_retried) == ((1, 0) if is_readable else (0, 1))


# ---------------------------------------------------------------- interrupted runs, damaged stores, full disks


ENCODE, ADD_TOKENS, ADD_ROW = "encoder.encode_windows", "tokens.EmbeddedIndex.add", "catalogue.Catalogue.add"
REMOVE_FILES, REMOVE_ROW = "catalogue.Catalogue.forget_files", "catalogue.Catalogue.forget_videos"
REMOVE_TOKENS, FORGET_PLACES = "tokens.EmbeddedIndex.remove", "catalogue.Catalogue.forget_places"


def kill_before(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(f"midreel.library.{step}", killed)


@pytest.mark.parametrize("step", [ENCODE, ADD_TOKENS, ADD_ROW])
def test_a_kill_between_two_writes_costs_no_decoding(
    videos: Path, library: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_before(patch, step)
        with pytest.raises(Killed):
            index(library, videos / "sunset.mp4")
    assert found(library, "red") == []
    eye = Eye()
    report = index(library, videos / "sunset.mp4", eye=eye)
    assert (counts(report), eye.num_images) == ({"new": 1}, 0)
    assert found(library, "red") == ["sunset.mp4"]


def test_tokens_of_an_interrupted_run_are_removed_if_the_file_is_gone(
    videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        kill_before(patch, ADD_ROW)
        with pytest.raises(Killed):
            index(library, videos / "sunset.mp4")
    (videos / "sunset.mp4").unlink()
    index(library, videos)
    with opened(library) as writer:
        assert set(writer.index.video_ids()) == writer.catalogue.video_ids()


@pytest.mark.parametrize("step", [REMOVE_FILES, REMOVE_ROW, REMOVE_TOKENS])
def test_a_kill_while_a_video_is_removed(
    videos: Path, library: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(library, videos)
    (videos / "sunset.mp4").unlink()
    with monkeypatch.context() as patch:
        kill_before(patch, step)
        with pytest.raises(Killed):
            index(library, videos)
    assert ("sunset.mp4" in found(library, "red")) == (step == REMOVE_FILES)
    index(library, videos)
    assert "sunset.mp4" not in found(library, "red")
    with opened(library) as writer:
        assert set(writer.index.video_ids()) == writer.catalogue.video_ids()


@pytest.mark.parametrize("step", [REMOVE_FILES, REMOVE_ROW, REMOVE_TOKENS, FORGET_PLACES])
def test_a_kill_while_a_missing_folder_is_forgotten(
    videos: Path, library: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place must be known until its videos are removed: the next run scans only known places."""
    index(library, videos / "sunset.mp4", videos / "trip")
    shutil.rmtree(videos / "trip")
    with monkeypatch.context() as patch:
        kill_before(patch, step)
        with pytest.raises(Killed):
            index(library, forget=True)
    index(library, forget=True)
    assert found(library, "red") == ["sunset.mp4"]
    with opened(library) as writer:
        assert writer.catalogue.places() == [videos / "sunset.mp4"]
        assert len(writer.index) == len(writer.store.video_ids()) == 1


def test_videos_are_committed_one_by_one(videos: Path, library: Path) -> None:
    with pytest.raises(Killed):
        index(library, videos, progress=kill)
    assert len(found(library, "red")) == 1
    assert counts(index(library, videos)) == {"new": 2, "unchanged": 1}


def test_lost_tokens_are_rebuilt_from_the_features(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    with opened(library) as writer:
        for video_id in writer.index.video_ids()[:2]:
            writer.index.remove(video_id)
    assert len(found(library, "red")) == 1
    eye = Eye()
    report = index(library, videos, eye=eye)
    assert (len(report.repaired), eye.num_images) == (2, 0)
    assert everything(library) == before


def test_videos_with_lost_features_are_decoded_again(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    Layout(library).features.unlink()
    assert len(found(library, "red")) == 3
    with opened(library) as writer, pytest.raises(MissingFeatures, match="3 of 3"):
        reindex(writer)
    assert counts(index(library, videos)) == {"repaired": 3}
    assert everything(library) == before
    with opened(library) as writer:
        assert len(writer.store.video_ids()) == 3


@pytest.mark.parametrize("retry", [False, True])
def test_videos_with_damaged_features_are_decoded_again(videos: Path, library: Path, retry: bool) -> None:
    """When a run needs the features, or with `retry`."""
    index(library, videos)
    before = everything(library)
    with opened(library) as writer:
        (video_id,) = (hit for hit in [writer.catalogue.video_at(videos / "sunset.mp4")] if hit)
        frames = writer.store.video(video_id.id).frames
        if not retry:
            writer.index.remove(video_id.id)
    content = bytearray(Layout(library).features.read_bytes())
    place = content.find(frames.astype(np.float16).tobytes())
    assert place > 0
    content[place] ^= 1
    Layout(library).features.write_bytes(content)
    eye = Eye()
    assert counts(index(library, videos, eye=eye, retry=retry)) == {"repaired": 1, "unchanged": 2}
    assert eye.num_images == 12
    assert everything(library) == before


def test_damaged_tokens_are_rebuilt_by_retry(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    (path,) = library.glob("generations/*/index/*.tokens0")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert len(everything(library)) < len(before)
    assert counts(index(library, videos)) == {"unchanged": 3}  # tokens are not read
    eye = Eye()
    assert counts(index(library, videos, eye=eye, retry=True)) == {"repaired": 1, "unchanged": 3}
    assert eye.num_images == 0
    assert everything(library) == before


def test_features_that_are_damaged_again_are_reported(videos: Path, library: Path) -> None:
    with opened(library) as writer:
        writer.store.video = damaged  # type: ignore[method-assign, assignment]
        report = indexer.index(writer, [videos / "trip"])
    assert (counts(report), report.is_partial) == ({"failed": 2}, True)
    assert counts(index(library, videos / "trip")) == {"new": 2}


def test_a_full_disk_keeps_what_was_committed(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(library, videos / "sunset.mp4")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
        with pytest.raises(Unwritable, match="disk"):
            index(library, videos)
    assert found(library, "red") == ["sunset.mp4"]
    with monkeypatch.context() as patch, opened(library) as writer:
        writer.catalogue._database.execute("PRAGMA max_page_count = 1")  # SQLite reports a full disk
        pages = writer.catalogue._one("PRAGMA max_page_count")
        assert pages > 0
        with pytest.raises(Unwritable, match="full"):
            indexer.index(writer, [videos], tags=["x" * 10**6])
    assert counts(index(library, videos))["unchanged"] >= 1
    assert len(found(library, "red")) == 3


def test_each_file_is_hashed_once(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, hashed = origins.content_id, list[Path]()
    monkeypatch.setattr(origins, "content_id", lambda path: hashed.append(path) or real(path))
    index(library, videos)
    assert sorted(hashed) == sorted(videos.rglob("*.m*"))


def test_tokens_of_a_video_with_a_damaged_row_are_kept(videos: Path, library: Path) -> None:
    """Its files may be on an unmounted disk."""
    index(library, videos)
    before = everything(library)
    with closing(sqlite3.connect(library / "catalogue.sqlite")) as database:
        (lost,) = database.execute("SELECT id FROM videos ORDER BY id LIMIT 1").fetchone()
        database.execute("UPDATE videos SET id = 'damaged' WHERE id = ?", (lost,))
        database.commit()
    videos.rename(videos.with_name("away"))
    index(library)
    with opened(library) as writer:
        assert lost in writer.index
    videos.with_name("away").rename(videos)
    index(library)
    assert everything(library) == before


def test_a_video_that_is_decoded_again_gets_new_tokens(videos: Path, library: Path) -> None:
    """The content id samples a file, so a file whose gaps were filled later keeps it."""
    index(library, videos / "sunset.mp4")
    with opened(library) as writer:
        (video_id,) = writer.store.video_ids()
        file = look_at(videos / "sunset.mp4")
        assert file is not None
        writer.catalogue.add(writer.catalogue.video(video_id), [file], damage="2 packets")  # type: ignore[arg-type]
        stored = writer.store.video(video_id)
        changed = replace(stored, frames=stored.frames[::-1] + 0.5)
        writer.store.add_video(video_id, changed, origin=writer.store.video_origin(video_id) ^ 1)
        for kind in ("done", "skipped"):  # the second: an interrupted run replaced the features
            writer.catalogue.add(writer.catalogue.video(video_id), [file], damage="2 packets")  # type: ignore[arg-type]
            plan = diff.plan(diff.take_snapshot(writer.catalogue, at(library)), {video_id})
            changes = Changes(plan=plan, report=IndexReport(), progress=None)
            committer = Committer(library=writer, tags=(), complete={video_id}, changes=changes, clock=Clock())
            assert committer.commit(Outcome(id=video_id, kind=kind), file) == ""  # type: ignore[arg-type]
            assert writer.catalogue.damage_of(video_id) == ""
            expected = encode_windows(writer.encoder, changed.frames, writer.generation.card.windows)
            found = writer.index.tokens(video_id)["frame"].vectors
            np.testing.assert_allclose(found, unit(expected["frame"].vectors), atol=0.02)


def test_after_a_stop_damaged_features_are_kept_and_reported(videos: Path, library: Path) -> None:
    stopped = False

    def damage(video_id: str) -> None:
        nonlocal stopped
        stopped = True
        raise BadStore(f"{video_id} is damaged")

    with opened(library) as writer:
        writer.store.video = damage  # type: ignore[method-assign, assignment]
        report = indexer.index(writer, [videos / "sunset.mp4"], stop=lambda: stopped)
        assert counts(report) == {"failed": 1}
        assert len(writer.store.video_ids()) == 1


def test_an_unchanged_index_imports_neither_torch_nor_training(videos: Path, library: Path) -> None:
    index(library, videos)
    code = (
        "import sys; from midreel import cli; sys.argv = ['midreel', 'index', '--library', sys.argv[1]]\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'midreel.training', 'midreel.experiments') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, check=True)
    assert "3 unchanged" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[]"
