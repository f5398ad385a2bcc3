"""The feedback of a library: what is kept, replaced, refused, exported, and what survives a crash."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from midreel.datasets import own
from midreel.errors import (
    BadLibrary,
    BadQuery,
    BadSetting,
    MissingFeedback,
    MissingLibrary,
    MissingTokens,
    Unwritable,
)
from midreel.library import feedback as feedbacks
from midreel.library import reindex
from midreel.library.catalogue import Catalogue, Video
from midreel.library.feedback import NAME, FeedbackLog
from midreel.library.searcher import Searcher
from tests.library.small import Eye, film, index, opened

VIDEO = Video(id="a", duration=10.0, num_frames=20)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with videos and their library, which tests copy. Its times are kept, so nothing is indexed again."""
    folder = tmp_path_factory.mktemp("indexed")
    film(folder / "videos/sunset.mp4", "grey", "red", "blue")
    film(folder / "videos/trip/meadow.mp4", "grey", "green")
    film(folder / "videos/trip/sea.mkv", "blue", "grey")
    index(folder / "library", folder / "videos")
    return folder


@pytest.fixture
def library(indexed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(indexed / "library", tmp_path / "library"))


@pytest.fixture
def videos(indexed: Path) -> Path:
    return indexed / "videos"


@pytest.fixture
def searcher(library: Path) -> Searcher:
    return Searcher.open(library, backbone=Eye())


def ids(searcher: Searcher) -> dict[str, str]:
    return {hit.path.name: hit.video_id for hit in searcher.search("red", top=9)}


def test_feedback_is_kept_with_its_moment(searcher: Searcher) -> None:
    video_id = ids(searcher)["sunset.mp4"]
    assert searcher.feedback() == []
    added = searcher.add_feedback("  red \n light ", video_id, start=2, end=4.0)
    again = searcher.feedback()
    assert again == [added]
    assert (added.query, added.video_id, added.match, added.start, added.end) == ("red light", video_id, True, 2.0, 4.0)
    assert json.loads(json.dumps(added.to_dict()))["match"] is True


def test_without_a_moment_it_is_about_the_whole_video(searcher: Searcher) -> None:
    hit = searcher.search("red", top=1)[0]
    added = searcher.add_feedback("red", hit.video_id, match=False)
    assert (added.start, added.end, added.match) == (0.0, hit.duration, False)


def test_the_last_word_on_an_overlapping_moment_counts(searcher: Searcher) -> None:
    video_id = ids(searcher)["sunset.mp4"]
    first = searcher.add_feedback("red", video_id, start=0, end=2)
    apart = searcher.add_feedback("red", video_id, start=2, end=4, match=False)  # touches, and does not overlap
    other = searcher.add_feedback("blue", video_id, start=0, end=2)
    changed = searcher.add_feedback("red", video_id, start=1, end=1.5, match=False)
    assert searcher.feedback() == [apart, other, changed]
    assert first.id not in {each.id for each in searcher.feedback()}
    whole = searcher.add_feedback("red", video_id)
    assert searcher.feedback(query="red") == [whole]
    assert searcher.feedback(query=" blue ") == [other]
    assert searcher.feedback(video_id="another") == []


def test_ids_are_never_used_again(searcher: Searcher) -> None:
    video_id = ids(searcher)["sunset.mp4"]
    first = searcher.add_feedback("red", video_id)
    searcher.remove_feedback(first.id)
    assert searcher.add_feedback("red", video_id).id > first.id
    with pytest.raises(MissingFeedback):
        searcher.remove_feedback(first.id)
    assert searcher.clear_feedback() == 1
    assert searcher.clear_feedback() == 0
    assert searcher.feedback() == []


@pytest.mark.parametrize("query", ["", "  \n", "red AND blue", "red NOT blue", "a" * 501])
def test_refuses_queries_that_are_no_plain_sentence(searcher: Searcher, query: str) -> None:
    with pytest.raises(BadQuery):
        searcher.add_feedback(query, ids(searcher)["sunset.mp4"])
    assert searcher.feedback() == []


@pytest.mark.parametrize(
    ("start", "end"), [(-1, 2), (3, 2), (2, 2), (0, 99), (float("nan"), 2), (0, float("inf")), (6.0, 6.05), (99, None)]
)
def test_refuses_moments_outside_the_video(searcher: Searcher, start: float, end: float | None) -> None:
    with pytest.raises(BadSetting, match="moment"):
        searcher.add_feedback("red", ids(searcher)["sunset.mp4"], start=start, end=end)


def test_an_end_that_a_client_rounded_up_is_the_end_of_the_video(searcher: Searcher) -> None:
    hit = next(hit for hit in searcher.search("red") if hit.path.name == "sunset.mp4")
    assert searcher.add_feedback("red", hit.video_id, start=0, end=hit.duration + 0.04).end == hit.duration


def test_refuses_unknown_videos(searcher: Searcher) -> None:
    with pytest.raises(MissingTokens):
        searcher.add_feedback("red", "nothing")


def test_a_missing_library_gets_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingLibrary):
        FeedbackLog(tmp_path).add(VIDEO, "red", match=True)
    assert list(tmp_path.iterdir()) == []


def test_survives_moved_files_reindex_and_a_lost_catalogue(library: Path, videos: Path, searcher: Searcher) -> None:
    added = searcher.add_feedback("red", ids(searcher)["sunset.mp4"], start=2, end=4)
    (videos / "sunset.mp4").rename(videos / "trip/evening.mp4")
    index(library, videos)
    with opened(library) as writer:
        reindex.reindex(writer)
    assert searcher.feedback() == [added]
    assert ids(searcher)["evening.mp4"] == added.video_id
    for lost in library.glob("catalogue.sqlite*"):
        lost.unlink()
    index(library, videos)
    assert FeedbackLog(library).all() == [added]
    (videos / "trip/evening.mp4").rename(videos / "sunset.mp4")


def test_outlives_a_removed_video(library: Path, videos: Path, searcher: Searcher) -> None:
    added = searcher.add_feedback("red", ids(searcher)["sunset.mp4"])
    (videos / "sunset.mp4").rename(videos / "sunset.away")
    index(library, videos)
    assert added.video_id not in searcher
    assert searcher.feedback() == [added]
    (videos / "sunset.away").rename(videos / "sunset.mp4")
    index(library, videos)
    assert added.video_id in searcher


# ---------------------------------------------------------------- processes, crashes and disks


def test_needs_no_lock_of_the_library(library: Path, searcher: Searcher) -> None:
    video_id = ids(searcher)["sunset.mp4"]
    with opened(library):  # another process indexes
        searcher.add_feedback("red", video_id)
    assert len(searcher.feedback()) == 1


def test_processes_and_threads_add_at_once(library: Path, searcher: Searcher) -> None:
    video = Video(id=ids(searcher)["sunset.mp4"], duration=6.0, num_frames=12)
    code = (
        "import sys; from pathlib import Path; from midreel.library.catalogue import Video; "
        "from midreel.library.feedback import FeedbackLog\n"
        f"for n in range(10): FeedbackLog(Path({str(library)!r})).add({video!r}, f'{{sys.argv[1]}} {{n}}', match=True)"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, f"process {number}"]) for number in range(3)]
    adding = [
        threading.Thread(
            target=lambda number=number: [
                FeedbackLog(library).add(video, f"thread {number} {n}", match=False) for n in range(10)
            ]
        )
        for number in range(3)
    ]
    for thread in adding:
        thread.start()
    for thread in adding:
        thread.join()
    assert [process.wait() for process in processes] == [0, 0, 0]
    found = searcher.feedback()
    assert len({each.query for each in found}) == len({each.id for each in found}) == 60


@pytest.mark.slow
def test_a_killed_process_loses_nothing_that_was_confirmed(library: Path, searcher: Searcher) -> None:
    """Each process confirms what it has added on stdout, and is killed while it adds more."""
    video = Video(id=ids(searcher)["sunset.mp4"], duration=6.0, num_frames=12)
    code = (
        "import itertools, sys; from pathlib import Path; from midreel.library.catalogue import Video; "
        "from midreel.library.feedback import FeedbackLog\n"
        "for n in itertools.count():\n"
        f"    added = FeedbackLog(Path({str(library)!r})).add({video!r}, f'{{sys.argv[1]}} {{n}}', match=True)\n"
        "    print(added.id, flush=True)"
    )
    confirmed = set[int]()
    for number in range(5):
        process = subprocess.Popen([sys.executable, "-c", code, str(number)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(1 + 7 * number):
            confirmed.add(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
        confirmed |= {int(line) for line in process.stdout.read().splitlines() if line}
        process.wait()
        process.stdout.close()
        assert confirmed <= {each.id for each in searcher.feedback()}
    searcher.add_feedback("red", video.id)


@pytest.mark.parametrize("left", [b"", None])
def test_a_crash_before_the_first_commit_leaves_an_empty_file(
    library: Path, searcher: Searcher, left: bytes | None
) -> None:
    if left is not None:
        (library / NAME).write_bytes(left)
    else:
        connection = sqlite3.connect(library / NAME)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
    assert searcher.feedback() == []
    searcher.add_feedback("red", ids(searcher)["sunset.mp4"])
    assert len(searcher.feedback()) == 1


def test_a_damaged_file_is_named_and_searches_still_work(library: Path, searcher: Searcher) -> None:
    (library / NAME).write_bytes(b"no database" * 200)
    for use in (searcher.feedback, lambda: searcher.add_feedback("red", ids(searcher)["sunset.mp4"])):
        with pytest.raises(BadLibrary, match=NAME):
            use()
    assert searcher.search("red")


def test_a_damaged_row_is_reported(library: Path, searcher: Searcher) -> None:
    added = searcher.add_feedback("red", ids(searcher)["sunset.mp4"])
    connection = sqlite3.connect(library / NAME)
    connection.execute("UPDATE feedback SET start = 'early' WHERE id = ?", (added.id,))
    connection.commit()
    connection.close()
    with pytest.raises(BadLibrary, match="early"):
        searcher.feedback()


def test_refuses_a_newer_format(library: Path, searcher: Searcher) -> None:
    searcher.add_feedback("red", ids(searcher)["sunset.mp4"])
    connection = sqlite3.connect(library / NAME)
    connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(BadLibrary, match="9"):
        searcher.feedback()


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_a_read_only_library_is_read_and_refuses_feedback(
    library: Path, searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = searcher.add_feedback("red", ids(searcher)["sunset.mp4"])

    def denied(*_: object, **__: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(feedbacks.os, "open", denied)
    with pytest.raises(Unwritable):
        searcher.add_feedback("blue", added.video_id)
    assert searcher.feedback() == [added]


def test_deleted_sentences_do_not_stay_in_the_file(library: Path, searcher: Searcher) -> None:
    video_id = ids(searcher)["sunset.mp4"]
    first = searcher.add_feedback("a secret sentence", video_id)
    searcher.add_feedback("another", video_id)
    searcher.remove_feedback(first.id)
    assert all(b"secret" not in path.read_bytes() for path in library.glob(f"{NAME}*"))


# ---------------------------------------------------------------- export


def test_export_is_read_as_annotations(library: Path, videos: Path, searcher: Searcher) -> None:
    known = ids(searcher)
    searcher.add_feedback("red", known["sunset.mp4"], start=2, end=4)
    searcher.add_feedback("grün, „wörtlich“", known["meadow.mp4"], start=2, end=3)
    searcher.add_feedback("grün, „wörtlich“", known["meadow.mp4"], start=3, end=4)
    searcher.add_feedback("red", known["sea.mkv"], match=False)
    catalogue = Catalogue(library)
    wrote = feedbacks.export(searcher.feedback(), catalogue, videos / "annotations.jsonl")
    assert (wrote.queries, wrote.not_this, wrote.elsewhere) == (2, 1, 0)
    read = [query for split in own.read(videos).values() for query in split.queries]
    assert {(query.video_id, query.text, len(query.moments)) for query in read} == {
        ("sunset.mp4", "red", 1),
        ("trip/meadow.mp4", "grün, „wörtlich“", 2),
    }
    (videos / "annotations.jsonl").unlink()
    catalogue.close()


def test_export_needs_a_match_in_its_folder(library: Path, videos: Path, searcher: Searcher, tmp_path: Path) -> None:
    known = ids(searcher)
    catalogue = Catalogue(library)
    searcher.add_feedback("red", known["sunset.mp4"])
    searcher.add_feedback("green", known["meadow.mp4"])
    wrote = feedbacks.export(searcher.feedback(), catalogue, videos / "trip" / "annotations.jsonl")
    assert (wrote.queries, wrote.elsewhere) == (1, 1)
    with pytest.raises(BadSetting, match="outside"):
        feedbacks.export(searcher.feedback(), catalogue, tmp_path / "library" / "annotations.jsonl")
    searcher.clear_feedback()
    searcher.add_feedback("red", known["sunset.mp4"], match=False)
    with pytest.raises(BadSetting):
        feedbacks.export(searcher.feedback(), catalogue, videos / "annotations.jsonl")
    assert not (videos / "annotations.jsonl").exists()
    (videos / "trip" / "annotations.jsonl").unlink()
    catalogue.close()
