"""A library in PostgreSQL behaves as one in a folder does."""

import json
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import psycopg
import pytest

from midreel.errors import (
    BadLibrary,
    BadQuery,
    BadSetting,
    BadStore,
    FingerprintMismatch,
    Locked,
    MissingLibrary,
    Unreachable,
)
from midreel.library import reindex
from midreel.library.postgres import work
from midreel.library.scan import look_at
from midreel.library.searcher import Searcher
from midreel.library.storage import Storage, at, is_library
from midreel.library.summary import summarise
from midreel.library.writer import Wanted
from tests.conftest import Command
from tests.library.small import Eye, counts, everything, film, found, index, opened
from tools.postgres_server import PostgresServer


def test_both_storages_fulfil_the_protocol(url: str, library: Path) -> None:
    for place in (url, library):
        with closing(at(place)) as storage:
            assert isinstance(storage, Storage)


def test_a_library_is_indexed_and_searched(videos: Path, url: str) -> None:
    (videos / "bad.mp4").write_bytes(b"nothing")
    assert not is_library(url)
    assert counts(index(url, videos)) == {"new": 3, "quarantined": 1}
    assert is_library(url)
    assert found(url, "red", top=1) == ["sunset.mp4"]
    assert found(url, "green", top=1) == ["meadow.mp4"]
    assert found(url, "red THEN blue", top=1) == ["sunset.mp4"]
    assert counts(index(url)) == {"unchanged": 3, "quarantined": 1}


def test_hits_are_those_of_a_folder(videos: Path, url: str, library: Path) -> None:
    index(url, videos, tags=["trip"])
    index(library, videos, tags=["trip"])
    with Searcher(url, backbone=Eye()) as ours, Searcher(library, backbone=Eye()) as theirs:
        for query in ("red", "green", "red AND blue"):
            expected = {hit.path: hit for hit in theirs.search(query)}
            hits = ours.search(query)
            assert hits[0].path == next(iter(expected))
            assert {hit.path for hit in hits} == set(expected)
            for mine in hits:
                other = expected[mine.path]
                assert (mine.paths, mine.duration) == (other.paths, other.duration)
                assert mine.score == pytest.approx(other.score, abs=0.01)  # a folder stores tokens as bytes
                assert mine.moments[0].start == pytest.approx(other.moments[0].start, abs=0.1)
        like = [searcher.search_like(videos / "trip/sea.mkv", 1.0)[0].path for searcher in (ours, theirs)]
        assert like[0] == like[1]
        assert ours.num_matching(["tag=trip"]) == theirs.num_matching(["tag=trip"]) == 3
        assert ours.unsearchable() == []


def test_moved_changed_and_deleted_files_are_followed(videos: Path, url: str) -> None:
    eye = Eye()
    index(url, videos, eye=eye)
    seen = eye.num_images
    (videos / "sunset.mp4").rename(videos / "dusk.mp4")
    (videos / "trip/meadow.mp4").unlink()
    assert counts(index(url, videos, eye=eye)) == {"moved": 1, "removed": 1, "unchanged": 1}
    film(videos / "trip/meadow.mp4", "grey", "green")  # its features were kept
    assert counts(index(url, videos, eye=eye)) == {"new": 1, "unchanged": 2}
    assert eye.num_images == seen
    film(videos / "trip/sea.mkv", "red", "red")
    assert counts(index(url, videos, eye=eye)) == {"changed": 1, "unchanged": 2}
    assert sorted(found(url, "red", top=2)) == ["dusk.mp4", "sea.mkv"]


def test_forget_deletes_the_features_of_removed_videos(videos: Path, url: str) -> None:
    index(url, videos)
    (videos / "sunset.mp4").unlink()
    index(url, videos, forget=True)
    with closing(at(url)) as storage, storage.open_features() as store:
        assert len(store.video_ids()) == 2


def test_features_have_the_digest_of_a_folder(videos: Path, url: str, library: Path) -> None:
    digests = []
    for place in (url, library):
        index(place, videos)
        with closing(at(place)) as storage, storage.open_features() as store:
            ids = store.video_ids()
            digests.append([store.digest(ids, []), store.digest([*ids[:1], "no video"], []), store.digest([], [])])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3


def test_damaged_features_are_decoded_again(videos: Path, url: str, postgres_url: str, schema_name: str) -> None:
    index(url, videos)
    expected = everything(url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"UPDATE {schema_name}.features SET frames = '\\x00' || substr(frames, 2)".encode())
    with closing(at(url)) as storage, storage.open_features() as store, pytest.raises(BadStore):
        store.video(store.video_ids()[0])
    assert counts(index(url, videos, retry=True)) == {"repaired": 3}
    with closing(at(url)) as storage, storage.open_features() as store:
        assert all(np.isfinite(store.video(each).frames).all() for each in store.video_ids())
    assert everything(url) == expected


def test_a_reindex_switches_the_model(videos: Path, url: str) -> None:
    index(url, videos)
    with Searcher(url, backbone=Eye()) as searcher:
        before = searcher.search("red", top=1)[0]
        with opened(url) as writer:
            report = reindex.reindex(writer, "zero-shot-clips")
            assert writer.generation.card.model == "zero-shot-clips"
        assert report.num_videos == 3
        after = searcher.search("red", top=1)[0]  # it follows without being opened again
        assert (before.path, searcher.generation.card.model) == (after.path, "zero-shot-clips")
    assert summarise(url).model == "zero-shot-clips"
    with closing(at(url)) as storage:
        assert [each.name for each in storage.generations()] == [storage.settings().serving]


def test_only_one_process_reindexes(videos: Path, url: str) -> None:
    index(url, videos)
    with opened(url) as first, opened(url) as second:
        with first.storage.locked_for_reindex(), pytest.raises(Locked):
            reindex.reindex(second)
        assert reindex.reindex(second).num_videos == 3


def test_videos_that_are_added_during_a_reindex_are_in_the_new_generation(videos: Path, url: str) -> None:
    index(url, videos / "trip")
    added = []

    def add_another(_: object) -> None:
        if not added:
            added.append(index(url, videos / "sunset.mp4"))

    with opened(url) as writer:
        assert reindex.reindex(writer, "zero-shot-clips", add_another).num_videos == 3
    assert counts(added[0]) == {"new": 1}
    assert found(url, "red", top=1) == ["sunset.mp4"]


def test_a_commit_after_a_switch_is_encoded_again(videos: Path, url: str) -> None:
    index(url, videos / "trip")
    with opened(url) as writer:
        old = writer.generation.card.model
        with opened(url) as other:
            reindex.reindex(other, "zero-shot-clips")
        from midreel.library import indexer

        indexer.index(writer, [videos])
        assert (old, writer.generation.card.model) == ("zero-shot", "zero-shot-clips")
    assert found(url, "red", top=1) == ["sunset.mp4"]
    with closing(at(url)) as storage, closing(storage.open_index(storage.serving(), read_only=True)) as tokens:
        assert tokens.verify() == []
        assert len(tokens) == 3


# ---------------------------------------------------------------- several processes


def test_claims_are_exclusive_and_end_with_their_block(videos: Path, url: str) -> None:
    index(url, videos)
    files = [file for path in sorted(videos.rglob("*.m*")) if (file := look_at(path)) is not None]
    with closing(at(url)) as one, closing(at(url)) as two:
        one.plan(files)
        with one.claimed(files) as mine:
            first = next(mine)
            with two.claimed(files) as theirs:
                assert first not in list(theirs)
            assert two.claimed_by_others(files) == [first]
        assert two.claimed_by_others(files) == []


def test_the_claim_of_a_dead_process_ends(videos: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index(url, videos)
    files = [file for path in sorted(videos.rglob("*.m*")) if (file := look_at(path)) is not None]
    with closing(at(url)) as dead, closing(at(url)) as alive:
        monkeypatch.setattr(work, "LEASE", 0.2)
        monkeypatch.setattr(work, "_RENEWALS", 0.01)  # it never comes to a renewal
        dead.plan(files)
        with dead.claimed(files) as claims:
            assert next(claims) == files[0]
            taken = []
            while len(taken) < len(files):
                with alive.claimed(files) as free:
                    taken += list(free)
            assert files[0] in taken


def test_files_that_another_process_reads_are_waited_for(
    videos: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(url, videos / "trip")
    file = look_at(videos / "sunset.mp4")
    assert file is not None
    with closing(at(url)) as other:
        other.plan([file])
        stack = ExitStack()
        next(stack.enter_context(other.claimed([file])))
        # While this process waits, the other one records the file as unreadable, which ends its claim.
        monkeypatch.setattr("time.sleep", lambda _: other.open_catalogue().add_unreadable(file, "noise"))
        report = index(url, videos)
        stack.close()
    assert list(report.quarantined) == [videos / "sunset.mp4"]


# ---------------------------------------------------------------- settings and errors


def test_a_library_keeps_its_settings(videos: Path, url: str) -> None:
    index(url, videos)
    with pytest.raises(FingerprintMismatch):
        index(url, videos, wanted=Wanted(rate=1.0))
    with pytest.raises(BadLibrary):
        Searcher.create(url)


def test_a_missing_library_is_named_without_the_user(url: str) -> None:
    with pytest.raises(MissingLibrary) as error:
        Searcher.open(url)
    assert "postgres@" not in str(error.value)


@pytest.mark.parametrize(
    "place",
    ["postgresql://me:s3cret@h/d", "postgresql://h/d?password=s3cret", "qdrant://me:s3cret@h", "mysql://s3cret@h"],
)
def test_a_url_with_a_password_or_another_scheme_is_refused(midreel: Command, place: str) -> None:
    with pytest.raises(BadSetting) as error:
        at(place)
    ended = midreel("search", place, "a red ball")
    assert ended.code == 1
    assert "s3cret" not in f"{error.value}{ended.err}{ended.out}"


def test_an_unreachable_database_is_an_error(tmp_path: Path, midreel: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midreel.library.postgres.storage.READ_PATIENCE", 0.1)
    place = f"postgresql://me@/films?host={tmp_path}"
    with pytest.raises(Unreachable):
        Searcher.open(place)
    ended = midreel("info", place)
    assert (ended.code, "Traceback" in ended.err) == (1, False)


@pytest.mark.slow
def test_passwords_come_from_the_environment_or_a_file(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, midreel: Command
) -> None:
    with PostgresServer({"fsync": "off"}, password="s3cret-word") as server:
        monkeypatch.setenv("PGPASSWORD", "wrong-word")
        ended = midreel("info", server.url)
        assert ended.code == 1
        assert "wrong-word" not in ended.err
        monkeypatch.setenv("PGPASSWORD", "s3cret-word")
        index(server.url, videos)
        monkeypatch.delenv("PGPASSWORD")
        (tmp_path / "passwords").write_text("*:*:*:postgres:s3cret-word\n")
        (tmp_path / "passwords").chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "passwords"))
        assert found(server.url, "red", top=1) == ["sunset.mp4"]
        ended = midreel("info", server.url, "--json")
        assert ended.code == 0
        with psycopg.connect(server.url) as connection:
            stored = connection.execute("SELECT settings::text FROM midreel.library").fetchall()
            stored += connection.execute("SELECT card::text FROM midreel.cards").fetchall()
        assert "s3cret-word" not in f"{ended.out}{ended.err}{stored}"


def test_another_schema_name_is_refused(postgres_url: str) -> None:
    with pytest.raises(BadSetting):
        at(f"{postgres_url}#Bad-Name")


def test_feedback_is_stored_in_the_database(videos: Path, url: str) -> None:
    index(url, videos)
    with Searcher(url, backbone=Eye()) as searcher:
        hit = searcher.search("red", top=1)[0]
        first = searcher.add_feedback("red", hit.video_id, start=0, end=1)
        second = searcher.add_feedback(" red ", hit.video_id, match=False, start=0.5, end=2)
        third = searcher.add_feedback("blue", hit.video_id)
        assert searcher.feedback() == [second, third]
        assert searcher.feedback(query="blue", video_id=hit.video_id) == [third]
        assert first.id < second.id < third.id
        searcher.remove_feedback(third.id)
        assert searcher.clear_feedback() == 1


def test_a_database_keeps_no_subtitles(videos: Path, url: str) -> None:
    (videos / "sunset.srt").write_text("1\n00:00:00,500 --> 00:00:01,000\nA red sun\n")
    assert counts(index(url, videos)) == {"new": 3}
    assert counts(index(url, videos, retry=True)) == {"unchanged": 3}
    with Searcher(url, backbone=Eye()) as searcher:
        assert not any(hit.said for hit in searcher.search("red"))
        for query in ('said:"red sun"', 'blue said:"red sun"'):
            with pytest.raises(BadQuery, match="subtitles"):
                searcher.search(query)


@pytest.mark.slow
def test_commands_accept_the_url(videos: Path, url: str, midreel: Command, tmp_path: Path) -> None:
    ended = midreel("index", videos, "--library", url)
    assert ended.code == 0, ended.err
    for words in (("info", url), ("search", url, "red"), ("reindex", url), ("feedback", url), ("doctor", url)):
        ended = midreel(*words, "--json")
        assert ended.code == 0, ended.err
        json.loads(ended.out)
    ended = midreel("export", url, "red", tmp_path / "red.csv")
    assert ended.code == 0, ended.err
    assert (tmp_path / "red.csv").read_text().count("\n") >= 2


def test_the_temporary_folder_is_deleted(
    videos: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(url, videos)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    with Searcher(url, backbone=Eye()) as searcher:
        searcher.search("red")
        assert list((tmp_path / "temporary").iterdir())
    assert not list((tmp_path / "temporary").iterdir())
