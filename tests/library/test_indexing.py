import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from midreel.errors import (
    BadSetting,
    BadStore,
    FingerprintMismatch,
    LibraryBusy,
    MissingFeatures,
    MissingVideo,
    Unwritable,
)
from midreel.features import origins
from midreel.library import tokens, writing
from midreel.library.catalogue import Catalogue
from midreel.library.indexing import Indexer, IndexReport, Step, Wanted
from midreel.library.layout import Layout
from midreel.search import Searcher
from tests import zoo
from tests.library.small import COLOURS, Eye, film, index, opened
from tests.library.test_scanning import ODD_NAMES


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    film(folder / "sunset.mp4", "grey", "red", "blue")
    film(folder / "trip/meadow.mp4", "grey", "green")
    film(folder / "trip/sea.mkv", "blue", "grey")
    return folder


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return tmp_path / "library"


def counts(report: IndexReport) -> dict[str, int]:
    """Those that are not 0."""
    names = ("new", "changed", "moved", "copies", "touched", "repaired", "removed", "quarantined", "failed")
    found = {name: len(getattr(report, name)) for name in names} | {"unchanged": report.unchanged}
    return {name: count for name, count in found.items() if count}


def found(library: Path, query: str, **options: object) -> list[str]:
    with Searcher.open(library, backbone=Eye()) as searcher:
        return [hit.path.name for hit in searcher.search(query, **options)]  # type: ignore[arg-type]


def everything(library: Path) -> dict[str, str]:
    """What each video that is found scores, by query and by where it lies: all that a user sees."""
    with Searcher.open(library, backbone=Eye()) as searcher:
        hits = {query: searcher.search(query, top=99) for query in ("red", "green", "blue")}
    return {f"{query} {path}": f"{hit.score:.5f}" for query, each in hits.items() for hit in each for path in hit.paths}


# ---------------------------------------------------------------- what is new, changed, moved, gone


def test_a_folder_is_indexed_and_found(videos: Path, library: Path) -> None:
    steps: list[Step] = []
    report = index(library, videos, progress=steps.append)
    assert counts(report) == {"new": 3}
    assert report.video_seconds == 14.0
    assert (len(steps), {step.total for step in steps}, sum(step.seconds for step in steps)) == (3, {3}, 14.0)
    assert set(report.seconds) == {"total", "backbone", "tokens", "index", "catalogue"}
    assert report.text.startswith("3 new, 0 removed, 0 unchanged, 0 quarantined; 0.00 hours of video in ")
    assert json.loads(json.dumps(report.to_dict()))["new"] == [str(path) for path in report.new]
    assert found(library, "red", top=1) == ["sunset.mp4"]
    assert found(library, "green", top=1) == ["meadow.mp4"]
    assert set(found(library, "blue", top=2)) == {"sunset.mp4", "sea.mkv"}


def test_a_download_that_was_cut_off_is_indexed_and_told(videos: Path, library: Path) -> None:
    path = zoo.cut_short(videos / "cut.mp4")
    report = index(library, videos)
    assert report.text.startswith(f"damaged {path}: 1 packet could not be decoded, it ends at 1.9 s of 5.0 s\n4 new")


def test_what_has_not_changed_costs_a_look(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("notes.txt", "a.jpg", "B.JPG", "Makefile"):
        (videos / name).touch()
    index(library, videos)
    monkeypatch.setattr(origins, "content_id", lambda path: pytest.fail(f"{path} was read"))
    monkeypatch.setattr(writing, "load_backbone", lambda *_: pytest.fail("the backbone was loaded"))
    with Indexer.open(library) as indexer:
        report = indexer.run([videos])
    assert counts(report) == {"unchanged": 3}
    assert report.text == (
        "0 new, 0 removed, 3 unchanged, 0 quarantined, 4 passed over as no videos (2 .jpg, 1 without ending, 1 .txt)"
    )
    assert report.to_dict()["passed_over"] == {".jpg": 2, "without ending": 1, ".txt": 1}


def test_without_places_all_that_it_ever_was_given(videos: Path, library: Path, tmp_path: Path) -> None:
    extra = film(tmp_path / "extra.mp4", "green")
    index(library, videos)
    index(library, extra)
    film(videos / "new.mp4", "red")
    assert counts(index(library)) == {"new": 1, "unchanged": 4}
    with pytest.raises(BadSetting, match="holds nothing yet, and nothing was named; run: midreel index VIDEOS"):
        index(tmp_path / "another")


def test_a_file_that_was_moved_or_renamed_is_not_decoded(videos: Path, library: Path) -> None:
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


def test_a_file_that_has_changed_is_another_video(videos: Path, library: Path) -> None:
    index(library, videos)
    film(videos / "sunset.mp4", "green")
    assert counts(index(library, videos)) == {"changed": 1, "unchanged": 2}
    with Searcher.open(library, backbone=Eye()) as searcher:
        assert len(searcher) == 3
        assert {hit.path.name for hit in searcher.search("green", top=2)} == {"sunset.mp4", "meadow.mp4"}
        assert all(hit.score < 0.9 for hit in searcher.search("red"))


def test_a_file_whose_time_has_changed_is_the_same(videos: Path, library: Path) -> None:
    index(library, videos)
    assert found(library, "red", where=["before=2005"]) == []
    os.utime(videos / "sunset.mp4", (1, 1))
    eye = Eye()
    assert counts(index(library, videos, eye=eye)) == {"touched": 1, "unchanged": 2}
    assert eye.num_images == 0
    assert found(library, "red", where=["before=2005"]) == ["sunset.mp4"]
    assert len(found(library, "red", where=["after=2005"])) == 2
    assert counts(index(library, videos)) == {"unchanged": 3}


def test_a_file_that_is_gone_leaves(videos: Path, library: Path) -> None:
    index(library, videos)
    (videos / "sunset.mp4").unlink()
    report = index(library, videos)
    assert report.removed == [videos / "sunset.mp4"]
    assert set(found(library, "red")) == {"meadow.mp4", "sea.mkv"}
    with opened(library) as indexer:
        assert len(indexer.index) == 2


def test_what_is_elsewhere_stays(videos: Path, library: Path) -> None:
    index(library, videos)
    assert counts(index(library, videos / "trip")) == {"unchanged": 2}
    assert len(found(library, "red")) == 3


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
    assert report.away == {missing: "it does not exist; check the path, or mount its disk"}
    assert not index(library).is_partial  # a slip is not remembered


def test_a_disk_below_a_place_keeps_its_videos(videos: Path, library: Path, tmp_path: Path) -> None:
    index(library, videos)
    (videos / "trip").rename(tmp_path / "disk")
    (videos / "trip").mkdir()
    report = index(library, videos)
    assert (counts(report), list(report.away)) == ({"unchanged": 1}, [videos / "trip"])
    assert len(found(library, "red")) == 3
    (videos / "trip").rmdir()
    (tmp_path / "disk").rename(videos / "trip")
    assert counts(index(library, videos)) == {"unchanged": 3}


def test_the_last_file_of_a_folder_may_move(videos: Path, library: Path) -> None:
    index(library, videos)
    (videos / "trip/meadow.mp4").rename(videos / "meadow.mp4")
    (videos / "trip/sea.mkv").rename(videos / "sea.mkv")
    report = index(library, videos)
    assert (counts(report), report.is_partial) == ({"moved": 2, "unchanged": 1}, False)
    assert all("trip" not in path for path in everything(library))


def test_features_of_videos_that_left_are_kept_until_they_are_to_be_forgotten(videos: Path, library: Path) -> None:
    index(library, videos, tags=["holiday"])
    (videos / "trip").rename(videos.with_name("elsewhere"))
    report = index(library, videos)
    assert (counts(report), report.idle) == ({"removed": 2, "unchanged": 1}, 2)
    assert "the features of 2 videos that have left are kept" in report.text
    videos.with_name("elsewhere").rename(videos / "trip")
    eye = Eye()
    assert counts(index(library, videos, eye=eye)) == {"new": 2, "unchanged": 1}
    assert eye.num_images == 0
    shutil.rmtree(videos / "trip")
    assert index(library, videos, forget=True).idle == 0
    with opened(library) as indexer:
        assert indexer.index.waste == 0
        assert set(indexer.store.video_ids()) == indexer.catalogue.video_ids()
        assert len(indexer.store.video_ids()) == 1


def test_tags(videos: Path, library: Path) -> None:
    index(library, videos)
    film(videos / "trip/new.mp4", "red")
    index(library, videos / "trip", tags=["trip", "2026"])
    assert set(found(library, "red", where=["tag=trip"])) == {"meadow.mp4", "sea.mkv", "new.mp4"}
    assert len(found(library, "red", where=["tag=trip", "tag=2026", "shorter=3"])) == 1


# ---------------------------------------------------------------- what cannot be read, and odd names


def test_what_is_no_video_is_set_aside_until_it_changes(videos: Path, library: Path) -> None:
    (videos / "notes.mp4").write_text("this is a text, whatever its name says\n" * 50)
    report = index(library, videos)
    assert counts(report) == {"new": 3, "quarantined": 1}
    assert report.is_partial
    assert "notes.mp4: " in report.text
    assert "cannot be decoded" in report.quarantined[videos / "notes.mp4"]
    report = index(library, videos)
    assert (counts(report), report.set_aside) == ({"unchanged": 3, "quarantined": 1}, 1)
    assert "--retry tries them again" in report.text
    report = index(library, videos, retry=True)
    assert (counts(report), report.set_aside) == ({"unchanged": 3, "quarantined": 1}, 0)
    film(videos / "notes.mp4", "red")
    assert counts(index(library, videos)) == {"new": 1, "unchanged": 3}
    (videos / "notes.mp4").write_text("again a text")
    assert counts(index(library, videos)) == {"quarantined": 1, "unchanged": 3}
    assert "notes.mp4" not in found(library, "red")
    (videos / "notes.mp4").unlink()
    assert counts(index(library, videos)) == {"unchanged": 3}


def test_copies_of_what_is_no_video_are_set_aside_together(videos: Path, library: Path) -> None:
    """Far apart, so that the first has long been given up when the last is come across."""
    for name in ("a.mp4", "trip/b.mp4", "z.mp4"):
        (videos / name).write_bytes(b"no video")
    film(videos / "long.mp4", *(["red", "green"] * 20))
    report = index(library, videos, workers=1)
    assert counts(report) == {"new": 4, "quarantined": 3}
    assert len(set(report.quarantined.values())) == 1


def test_what_cannot_be_opened_today_is_tried_tomorrow(
    videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = origins.content_id

    def fails(path: Path) -> str:
        if path.name == "sunset.mp4":
            raise OSError(5, "Input/output error")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(origins, "content_id", fails)
        report = index(library, videos)
    assert counts(report) == {"new": 2, "failed": 1}
    assert "sunset.mp4 cannot be read (Input/output error)" in report.text
    assert counts(index(library, videos)) == {"new": 1, "unchanged": 2}


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


def test_a_library_among_its_videos(videos: Path) -> None:
    (videos / "link").symlink_to(videos)
    assert counts(index(videos / "library", videos)) == {"new": 3}
    assert counts(index(videos / "library", videos)) == {"unchanged": 3}


def test_a_long_video_is_found_as_a_short_one_is(tmp_path: Path, library: Path) -> None:
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
        assert len(film_hit.curve.times) == pytest.approx(2 * 402, abs=10)  # what a border cuts is in two
        assert searcher.index.tokens(film_hit.video_id)["frame"].vectors.shape[0] == len(
            searcher.generation.card.windows.windows(804)
        )


# ---------------------------------------------------------------- cut off, damaged, full, forbidden


class Killed(BaseException):
    pass


def _stop(step: Step) -> None:
    raise Killed


def _damaged(video_id: str) -> None:
    raise BadStore(f"{video_id} is damaged")


def stages(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Ends everything where a video has got so far."""

    def end(*_: object, **__: object) -> None:
        raise Killed

    target = {"features": "tokens.encode", "tokens": "tokens.EmbeddedIndex.add", "index": "catalogue.Catalogue.add"}[
        stage
    ]
    monkeypatch.setattr(f"midreel.library.{target}", end)


@pytest.mark.parametrize("stage", ["features", "tokens", "index"])
def test_cut_off_between_two_steps_it_goes_on_without_decoding(
    videos: Path, library: Path, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stages(patch, stage)
        with pytest.raises(Killed):
            index(library, videos / "sunset.mp4")
    assert found(library, "red") == []
    eye = Eye()
    report = index(library, videos / "sunset.mp4", eye=eye)
    assert (counts(report), eye.num_images) == ({"new": 1}, 0)
    assert found(library, "red") == ["sunset.mp4"]


def test_what_a_cut_off_run_left_of_a_file_that_is_gone_leaves_too(
    videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stages(patch, "index")
        with pytest.raises(Killed):
            index(library, videos / "sunset.mp4")
    (videos / "sunset.mp4").unlink()
    index(library, videos)
    with opened(library) as indexer:
        assert set(indexer.index.video_ids()) == indexer.catalogue.video_ids()


def test_videos_are_committed_one_by_one(videos: Path, library: Path) -> None:
    with pytest.raises(Killed):
        index(library, videos, progress=_stop)
    assert len(found(library, "red")) == 1
    assert counts(index(library, videos)) == {"new": 2, "unchanged": 1}


def test_short_videos_do_not_wait_for_many_others(tmp_path: Path, library: Path) -> None:
    for number, colours in enumerate(permutations(COLOURS, 2)):
        film(tmp_path / f"clips/{number}.mp4", *colours)
    eye, seen = Eye(), list[int]()
    index(library, tmp_path / "clips", eye=eye, progress=lambda _: seen.append(eye.num_images))
    assert (seen[0], seen[-1]) == (32, 12 * 8)


def test_tokens_that_are_lost_are_made_from_the_features(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    with opened(library) as indexer:
        for video_id in indexer.index.video_ids()[:2]:
            indexer.index.remove(video_id)
    assert len(found(library, "red")) == 1
    eye = Eye()
    report = index(library, videos, eye=eye)
    assert (len(report.repaired), eye.num_images) == (2, 0)
    assert everything(library) == before


def test_features_that_are_lost_are_decoded_again(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    Layout(library).features.unlink()
    assert len(found(library, "red")) == 3
    with opened(library) as indexer, pytest.raises(MissingFeatures, match=r"lacks 3 of 3 videos.* midreel index"):
        indexer.reindex()
    assert counts(index(library, videos)) == {"repaired": 3}
    assert everything(library) == before
    with opened(library) as indexer:
        assert len(indexer.store.video_ids()) == 3


@pytest.mark.parametrize("retry", [False, True])
def test_features_that_are_damaged_are_decoded_again(videos: Path, library: Path, retry: bool) -> None:
    """When they are needed, or when that is asked for."""
    index(library, videos)
    before = everything(library)
    with opened(library) as indexer:
        (video_id,) = (hit for hit in [indexer.catalogue.video_at(videos / "sunset.mp4")] if hit)
        frames = indexer.store.video(video_id.id).frames
        if not retry:
            indexer.index.remove(video_id.id)
    content = bytearray(Layout(library).features.read_bytes())
    place = content.find(frames.half().numpy().tobytes())
    assert place > 0
    content[place] ^= 1
    Layout(library).features.write_bytes(content)
    eye = Eye()
    assert counts(index(library, videos, eye=eye, retry=retry)) == {"repaired": 1, "unchanged": 2}
    assert eye.num_images == 12
    assert everything(library) == before


def test_tokens_that_are_damaged_are_made_again_when_that_is_asked_for(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    (path,) = library.glob("generations/*/index/*.tokens0")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert len(everything(library)) < len(before)
    assert counts(index(library, videos)) == {"unchanged": 3}  # which does not read them
    eye = Eye()
    assert counts(index(library, videos, eye=eye, retry=True)) == {"repaired": 1, "unchanged": 3}
    assert eye.num_images == 0
    assert everything(library) == before


def test_features_that_are_damaged_twice_are_told_of(videos: Path, library: Path) -> None:
    with opened(library) as indexer:
        indexer.store.video = _damaged  # type: ignore[method-assign, assignment]
        report = indexer.run([videos / "trip"])
    assert (counts(report), report.is_partial) == ({"failed": 2}, True)
    assert counts(index(library, videos / "trip")) == {"new": 2}


def test_a_catalogue_that_is_lost_is_made_again_without_decoding(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    for path in library.glob("catalogue.sqlite*"):
        path.unlink()
    eye = Eye()
    assert counts(index(library, videos / "trip", eye=eye)) == {"new": 2}
    assert counts(index(library, videos, eye=eye)) == {"new": 1, "unchanged": 2}
    assert eye.num_images == 0
    assert everything(library) == before


def test_settings_that_are_lost_are_what_the_library_was_made_with(videos: Path, library: Path) -> None:
    index(library, videos, wanted=Wanted(model="zero-shot-clips", rate=1.0))
    before, lost = everything(library), Layout(library).settings()
    with opened(library) as indexer, pytest.raises(Killed):
        indexer.reindex("zero-shot", _stop)
    (library / "library.json").unlink()
    eye = Eye()
    assert counts(index(library, videos, eye=eye)) == {"unchanged": 3}
    assert eye.num_images == 0
    assert everything(library) == before
    assert Layout(library).settings() == replace(lost, backbone="eye")
    (library / "library.json").unlink()
    with pytest.raises(FingerprintMismatch, match="has 1 frames a second, not 2"):
        index(library, videos, wanted=Wanted(rate=2.0))


def test_two_at_once(videos: Path, library: Path) -> None:
    index(library, videos)
    with opened(library), pytest.raises(LibraryBusy, match="is being written by process"):
        index(library, videos)
    with opened(library):
        assert len(found(library, "red")) == 3


FORBIDDEN = """
import os, sys
from pathlib import Path
from midreel.errors import MidreelError
from midreel.search import Searcher
from tests.library.small import Eye, index
os.setuid(65534)
library, videos = map(Path, sys.argv[1:])
with Searcher.open(library, backbone=Eye()) as searcher:
    print([hit.path.name for hit in searcher.search("red", top=1)])
try:
    index(library, videos)
except MidreelError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_a_library_that_may_not_be_written_is_searched(videos: Path, library: Path) -> None:
    index(library, videos)
    open_to_all = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others, and stay so
    try:
        copy = open_to_all / "library"
        shutil.copytree(library, copy)
        for path in (open_to_all, *open_to_all.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        run = subprocess.run(
            [sys.executable, "-c", FORBIDDEN, copy, open_to_all], capture_output=True, text=True, timeout=120
        )
        assert run.returncode == 0, run.stderr
        first, second = run.stdout.splitlines()
        assert first == "['sunset.mp4']"
        assert second.startswith(
            f"Unwritable {copy} cannot be written (Permission denied); it can be searched as it is"
        )
    finally:
        shutil.rmtree(open_to_all)


def test_a_full_disk_keeps_what_was_committed(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(library, videos / "sunset.mp4")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
        with pytest.raises(BadStore, match="make room and run again: what was stored is kept"):
            index(library, videos)
    assert found(library, "red") == ["sunset.mp4"]
    with monkeypatch.context() as patch, opened(library) as indexer:
        indexer.catalogue._database.execute("PRAGMA max_page_count = 1")  # SQLite's own word for a full disk
        pages = indexer.catalogue._one("PRAGMA max_page_count")
        assert pages > 0
        with pytest.raises(Unwritable, match="database or disk is full"):
            indexer.run([videos], tags=["x" * 10**6])
    assert counts(index(library, videos))["unchanged"] >= 1
    assert len(found(library, "red")) == 3


# ---------------------------------------------------------------- what it is made with


def test_another_backbone_rate_or_model_is_refused(videos: Path, library: Path, run_folder: Path) -> None:
    index(library, videos)
    other = Eye(replace(Eye().fingerprint, weights="9" * 64))
    film(videos / "new.mp4", "red")
    with pytest.raises(FingerprintMismatch, match=r"was made with .* \(there != here\): weights 000000000000… != 9999"):
        index(library, videos, eye=other)
    with pytest.raises(FingerprintMismatch, match="has 2 frames a second, not 1; leave out --rate"):
        index(library, videos, wanted=Wanted(rate=1.0))
    with pytest.raises(
        BadSetting, match=r"is searched with zero-shot, not zero-shot-clips; .* midreel reindex .* --model"
    ):
        index(library, videos, wanted=Wanted(model="zero-shot-clips"))
    with pytest.raises(
        FingerprintMismatch, match=r"was trained on other features .* --backbone local-dir:.* --rate 0.5"
    ):
        index(library, videos, wanted=Wanted(model=str(run_folder)))
    index(library, videos, wanted=Wanted(model="zero-shot", rate=2.0))


def test_a_library_that_is_refused_is_let_go_of(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(library, videos)
    closed: list[str] = []
    monkeypatch.setattr(Catalogue, "close", lambda self: closed.append("catalogue") or self._file.close())
    with pytest.raises(FingerprintMismatch):
        index(library, videos, wanted=Wanted(rate=1.0))
    assert closed == ["catalogue"]


def test_a_trained_model_brings_its_backbone_and_its_rate(videos: Path, library: Path, run_folder: Path) -> None:
    with Indexer.open(library, Wanted(model=str(run_folder))) as indexer:
        assert indexer.settings.rate == 0.5
        assert indexer.settings.backbone.startswith("local-dir:")
        assert counts(indexer.run([videos])) == {"new": 3}
        assert indexer.generation.card.model == str(run_folder)
    with Searcher.open(library) as searcher:
        assert len(searcher.search("a ball")) == 3


def test_a_backbone_that_reads_nothing(videos: Path, library: Path) -> None:
    with pytest.raises(BadSetting, match="reads no texts, expected a backbone that understands queries"):
        index(library, videos, eye=Eye(replace(Eye().fingerprint, word_width=None)))


# ---------------------------------------------------------------- reindex


def test_another_model_without_decoding(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    shutil.rmtree(videos)
    steps: list[Step] = []
    with Searcher.open(library, backbone=Eye()) as searcher:
        assert searcher.index.branch_weights == {"clip": 0.0, "frame": 1.0}
        with opened(library) as indexer:
            report = indexer.reindex("zero-shot-clips", steps.append)
            assert indexer.generation.name == "2"
        assert (report.num_videos, report.model, len(steps)) == (3, "zero-shot-clips", 3)
        assert report.text.startswith("3 videos are now searched with zero-shot-clips, in ")
        assert len(searcher.search("red")) == 3
        assert searcher.index.branch_weights == {"clip": 0.4, "frame": 0.6}
    assert [each.name for each in Layout(library).generations()] == ["2"]
    with opened(library) as indexer:
        indexer.reindex("zero-shot")
    assert everything(library) == before


def test_the_old_index_serves_until_the_switch(videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(library, videos)
    before = everything(library)

    def stop(step: Step) -> None:
        assert everything(library) == before
        raise Killed

    with opened(library) as indexer, pytest.raises(Killed):
        indexer.reindex("zero-shot-clips", stop)
    assert everything(library) == before
    encoded: list[object] = []
    encode = tokens.encode
    monkeypatch.setattr(tokens, "encode", lambda *given: encoded.append(1) or encode(*given))
    with opened(library) as indexer:
        assert indexer.reindex("zero-shot-clips").generation == "2"
    assert len(encoded) == 2  # one was there
    assert len(found(library, "red")) == 3


def test_the_old_index_serves_on_if_nothing_can_be_encoded(videos: Path, library: Path) -> None:
    index(library, videos)
    before = everything(library)
    with opened(library) as indexer, pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexer.store, "video", _damaged)
        with pytest.raises(
            BadStore, match=r"of 3 videos none could be encoded.* serves on\. Run first, .* midreel index .*--retry"
        ):
            indexer.reindex("zero-shot-clips")
    assert everything(library) == before
    assert Layout(library).settings().serving == "1"


def test_all_is_on_the_disk_before_an_old_generation_goes(
    videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(library, videos)
    synced, fsync, drop = set[str](), os.fsync, Layout.drop_generations
    seen: list[set[str]] = []

    def note(handle: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()).removeprefix(f"{library}/"))
        fsync(handle)

    def look(layout: Layout, *, but: str) -> None:
        seen.append(set(synced))
        drop(layout, but=but)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Layout, "drop_generations", look)
    with opened(library) as indexer:
        indexer.reindex("zero-shot-clips")
    new = {"model.new", "model.new/config.json.new", "model.new/model.safetensors.new", "generations/2"}
    assert seen[0] >= new | {"generations", "features.h5", "library.json.new", str(library)}
    modes = {path.stat().st_mode & 0o777 for path in library.rglob("*") if path.is_file()}
    assert modes == {(library / "library.json").stat().st_mode & 0o777}  # who may read one may read all


def test_the_same_model_again(videos: Path, library: Path) -> None:
    """When the index is damaged beyond what can be opened."""
    index(library, videos)
    before = everything(library)
    for path in (Layout(library).generation("1").index).iterdir():
        path.write_bytes(b"")
    with opened(library) as indexer:
        indexer.reindex()
    assert everything(library) == before


# ---------------------------------------------------------------- killed, again and again


def test_killed_at_random_points() -> None:
    from tools.crash_library import torment

    told = torment(times=6, seed=1)
    assert told.num_kills == 6
    assert told.num_checked > 0
