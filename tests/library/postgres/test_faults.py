"""Killed servers, lost connections, killed and simultaneous writers, a full disk.

After each fault: every committed video is found, none is half there, and the results equal those of a clean build.
"""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from midreel.errors import Unreachable, Unwritable
from midreel.library import reindex
from midreel.library.report import IndexReport, Step
from midreel.library.searcher import Searcher
from midreel.library.storage import at
from tests.library.small import COLOURS, Eye, counts, everything, film, index, opened
from tools.postgres_server import PostgresServer

pytestmark = pytest.mark.slow
NUM_VIDEOS = 12


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer({"fsync": "off"}) as server:
        yield server


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    names = list(COLOURS)
    for number in range(NUM_VIDEOS):
        shown = [names[number % 4], names[number // 4], names[(number + 1) % 4]]
        film(folder / f"film{number:02}.mp4", *shown)
    return folder


@pytest.fixture(scope="module")
def clean(films: Path, postgres_url: str) -> dict[str, str]:
    """What a library without faults finds."""
    index(f"{postgres_url}#clean_build", films)
    return everything(f"{postgres_url}#clean_build")


def assert_whole(url: str, expected: dict[str, str]) -> None:
    """Check that all parts have the same videos, whole, and that searches find what is expected."""
    with closing(at(url)) as storage, storage.open_features() as store:
        with closing(storage.open_index(storage.serving(), read_only=True)) as tokens:
            assert storage.open_catalogue().video_ids() == set(tokens.video_ids()) == set(store.video_ids())
            assert tokens.verify() == []
        for video_id in store.video_ids():
            store.video(video_id)  # raises BadStore if it is damaged
    assert everything(url) == expected


def test_a_database_killed_while_indexing(server: PostgresServer, films: Path, clean: dict[str, str]) -> None:
    """The run waits for the server, and goes on."""
    done: list[Step] = []
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(index, server.url, films, progress=done.append)
        for number in (3, 7):
            while len(done) < number and not run.done():
                time.sleep(0.001)
            server.kill()
            time.sleep(0.3)
            server.start()
        report = run.result()
    assert counts(report) == {"new": NUM_VIDEOS}
    assert_whole(server.url, clean)


def test_a_database_that_stays_away_ends_the_run(
    server: PostgresServer, films: Path, clean: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midreel.library.postgres.storage.WRITE_PATIENCE", 1.0)
    monkeypatch.setattr("midreel.library.postgres.work.LEASE", 5.0)  # the next run waits for the claims of this one

    def kill(step: Step) -> None:
        done.append(step)
        if len(done) == 5:
            server.kill()

    done: list[Step] = []
    with pytest.raises(Unreachable):
        index(server.url, films, progress=kill)
    server.start()
    with closing(at(server.url)) as storage:
        kept = storage.open_catalogue().video_ids()
    assert len(kept) >= 5
    assert set(everything(server.url)) <= set(clean)
    eye = Eye()
    report = index(server.url, films, eye=eye)
    assert len(report.new) + report.unchanged == NUM_VIDEOS
    assert report.unchanged >= 5  # committed videos are not decoded again
    assert_whole(server.url, clean)


def test_a_database_killed_while_searching(server: PostgresServer, films: Path) -> None:
    index(server.url, films)
    with Searcher(server.url, backbone=Eye()) as searcher:
        expected = [hit.path for hit in searcher.search("red")]
        server.kill()
        with pytest.raises(Unreachable):
            searcher.search("red")
        server.start()
        assert [hit.path for hit in searcher.search("red")] == expected


def test_connections_that_are_killed_all_the_time(server: PostgresServer, films: Path, clean: dict[str, str]) -> None:
    index(server.url, films / "film00.mp4")
    ended = threading.Event()

    def terminate() -> None:
        statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'midreel'"
        with psycopg.connect(server.url, autocommit=True) as connection:
            while not ended.wait(0.3):
                connection.execute(statement)

    thread = threading.Thread(target=terminate)
    thread.start()
    try:
        report = index(server.url, films)
    finally:
        ended.set()
        thread.join()
    assert counts(report) == {"new": NUM_VIDEOS - 1, "unchanged": 1}
    assert_whole(server.url, clean)


def test_two_indexers_share_the_work(url: str, films: Path, clean: dict[str, str]) -> None:
    index(url, films / "film00.mp4")
    eyes = Eye(), Eye()

    def run(eye: Eye) -> IndexReport:
        return index(url, films, eye=eye)

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(run, eyes))
    assert_whole(url, clean)
    images = sum(eye.num_images for eye in eyes)
    alone = Eye()
    index(f"{url}_alone", films, eye=alone)
    assert images <= alone.num_images * 1.5  # a few may be read twice, but not all
    for report in reports:
        assert not report.failed
        assert not report.quarantined


INDEXER = """
import os, signal, sys
from pathlib import Path
from tests.library.small import index

done = []

def progress(step):
    done.append(step)
    if len(done) == 4:
        os.kill(os.getpid(), signal.SIGKILL)

index(sys.argv[1], Path(sys.argv[2]), progress=progress)
"""


def test_an_indexer_killed_in_the_middle(url: str, films: Path, clean: dict[str, str]) -> None:
    index(url, films / "film00.mp4")
    ended = subprocess.run([sys.executable, "-c", INDEXER, url, str(films)], cwd=Path.cwd(), capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with closing(at(url)) as storage:
        assert len(storage.open_catalogue().video_ids()) >= 4
    assert set(everything(url)) <= set(clean)
    # Its claims end by themselves. Here they are ended, so that the test need not wait for a minute.
    with psycopg.connect(url.partition("#")[0], autocommit=True) as connection:
        connection.execute(f"UPDATE {url.partition('#')[2]}.work SET until = now()".encode())
    assert not index(url, films).failed
    assert_whole(url, clean)


def test_searches_during_a_reindex_never_fail(url: str, films: Path) -> None:
    index(url, films)
    ended, answers = threading.Event(), set[tuple[str, ...]]()

    def search() -> None:
        with Searcher(url, backbone=Eye()) as searcher:
            while not ended.is_set():
                hits = searcher.search("red", top=NUM_VIDEOS)
                answers.add((searcher.generation.card.model, *sorted(hit.path.name for hit in hits)))

    with ThreadPoolExecutor(2) as pool:
        searches = [pool.submit(search) for _ in range(2)]
        with opened(url) as writer:
            for model in ("zero-shot-clips", "zero-shot"):
                reindex.reindex(writer, model)
        time.sleep(0.2)
        ended.set()
        for each in searches:
            each.result()
    everyone = tuple(sorted(path.name for path in films.iterdir()))
    assert all(found == everyone for _, *rest in answers for found in [tuple(rest)])


def _repeat(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            connection.execute(statement.encode())


def test_a_full_disk_keeps_what_is_committed(films: Path, clean: dict[str, str]) -> None:
    with PostgresServer({"fsync": "off"}, largest_file=2**24) as server:
        index(server.url, films / "film00.mp4")
        fill = """INSERT INTO midreel.features (video_id, origin, duration, times, frames, checksum)
            SELECT 'filler ' || gen_random_uuid(), '', 1, '', decode(repeat('00', 1800), 'hex'), 0
            FROM generate_series(1, 500)"""
        for statement in (fill, fill.replace("500", "1"), fill.replace("500", "1").replace("1800", "9")):
            with pytest.raises(psycopg.Error, match="extend"):
                _repeat(server.url, statement)
        with pytest.raises(Unwritable):
            index(server.url, films)
        assert set(everything(server.url)) < set(clean)
        server._largest = None
        server.kill()
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("DELETE FROM midreel.features WHERE starts_with(video_id, 'filler')")
        index(server.url, films)
        assert_whole(server.url, clean)
