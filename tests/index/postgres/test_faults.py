"""Lost connections, killed servers, several writers and a full disk: committed videos are found, none is half there."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from midreel.errors import MissingTokens, Unreachable, Unwritable
from midreel.index import ExactIndex
from midreel.index.postgres import PostgresIndex
from tests.index.library import WEIGHTS, WIDTH, queries, video
from tests.index.postgres.proxy import Proxy
from tests.index.test_contract import assert_alike, oracle
from tools.postgres_server import PostgresServer


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


def create(url: str, **settings: Any) -> PostgresIndex:
    return PostgresIndex.create(url, **({"branch_weights": WEIGHTS, "width": WIDTH} | settings))


def assert_complete(index: PostgresIndex, seeds: dict[str, int]) -> None:
    """Check that an index has exactly these videos, and finds what an index without faults finds."""
    clean = ExactIndex(WEIGHTS)
    for name in index.video_ids():
        clean.add(name, video(seeds[name]))
    assert set(index.video_ids()) == set(seeds)
    for name, seed in seeds.items():
        expected = video(seed)
        for branch, kept in index.tokens(name).items():
            assert kept.mask.sum() == expected[branch].mask.sum()
    for ours, theirs in zip(index.search(queries(1)), clean.search(queries(1)), strict=True):
        assert [match.score for match in ours] == pytest.approx([match.score for match in theirs], abs=1e-3)
    assert_alike(index.search(queries(1)), oracle(index).search(queries(1)))
    rows = "SELECT count(*) FROM {} WHERE video NOT IN (SELECT number FROM {})"
    for branch in WEIGHTS:
        statement = rows.format(index.generation.tokens(branch), index.generation.videos)
        assert index.transact(lambda c, s=statement: c.execute(s).fetchone()) == (0,)


# ---------------------------------------------------------------- lost connections


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["request", "answer"])
def test_a_connection_lost_at_any_message(server: PostgresServer, direction: str) -> None:
    """Every request and every answer of every operation is lost once. The same object recovers."""
    with tempfile.TemporaryDirectory() as folder, Proxy(Path(folder), server.folder) as proxy:
        index = create(proxy.url)
        seeds = {f"v{number}": number for number in range(6)}
        index.add_all((name, video(seed)) for name, seed in seeds.items())
        expected = index.search(queries(1))
        operations: dict[str, Callable[[], object]] = {
            "search": lambda: index.search(queries(1)),
            "add": lambda: index.add("v3", video(seeds["v3"])),
            "tokens": lambda: index.tokens("v1"),
            "ids": lambda: index.video_ids(),
        }
        for name, operation in operations.items():
            after = 0
            while True:
                before = proxy.num_cut
                proxy.cut(direction, after)
                operation()
                if proxy.num_cut == before:  # it has fewer messages
                    break
                after += 1
            assert after >= 3, name
            if name == "search":
                assert index.search(queries(1)) == expected
        assert_complete(index, seeds)
        index.close()


@pytest.mark.slow
def test_a_removal_whose_answer_is_lost(server: PostgresServer) -> None:
    """It is not repeated once it may be committed, because the second time would find nothing."""
    with tempfile.TemporaryDirectory() as folder, Proxy(Path(folder), server.folder) as proxy:
        index, seeds, unknown = create(proxy.url), {"a": 0}, 0
        for after in range(40):
            index.add("b", video(1))
            before = proxy.num_cut
            proxy.cut("answer", after)
            try:
                index.remove("b")
            except Unreachable:
                unknown += 1
            else:
                assert "b" not in index
            if proxy.num_cut == before:
                break
        assert 1 <= unknown <= 2  # the answer to COMMIT
        index.add("a", video(0))
        if "b" in index:
            index.remove("b")
        assert_complete(index, seeds)
        with pytest.raises(MissingTokens):
            index.remove("b")
        index.close()


def test_ended_backends_are_replaced(server: PostgresServer) -> None:
    with create(server.url) as index:
        index.add("a", video(0))
        with psycopg.connect(server.url, autocommit=True) as other:
            for _ in range(3):
                other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
                assert index.search(queries(0, 1))[0][0].video_id == "a"
        assert_complete(index, {"a": 0})


# ---------------------------------------------------------------- killed servers


@pytest.mark.slow
def test_a_server_that_is_killed_while_videos_are_added_and_searched(server: PostgresServer) -> None:
    index, seeds, done = create(server.url, patience=60.0), dict[str, int](), threading.Event()
    failures: list[BaseException] = []
    searches = [0]

    def add() -> None:
        number = 0
        while not done.is_set():
            name = f"v{number % 30}"
            index.add(name, video(number))
            seeds[name] = number  # acknowledged
            number += 1

    def find() -> None:
        while not done.is_set():
            found = index.search(queries(1, 1))
            assert len(found[0]) <= 10
            searches[0] += 1

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (add, find)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        goal, deadline = len(seeds) + searches[0] + 10, time.monotonic() + 60
        while len(seeds) + searches[0] < goal and time.monotonic() < deadline and not failures:
            time.sleep(0.02)
        server.kill()
        server.start()
    last = searches[0]
    while searches[0] < last + 3 and not failures:
        time.sleep(0.02)
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(seeds) > 5
    assert_complete(index, seeds)
    index.close()


def test_a_server_that_is_away_is_reported_and_found_again(server: PostgresServer) -> None:
    index = create(server.url, patience=0.2)
    index.add("a", video(0))
    server.kill()
    for call in (lambda: index.search(queries(0, 1)), lambda: index.add("b", video(1)), index.video_ids):
        with pytest.raises(Unreachable):
            call()
    server.start()
    index.add("b", video(1))
    assert_complete(index, {"a": 0, "b": 1})
    index.close()


# ---------------------------------------------------------------- several writers


def test_two_writers_of_the_same_videos(postgres_url: str, schema_name: str) -> None:
    """Whoever comes last wins, and nothing of the other remains."""
    first = PostgresIndex.create(postgres_url, name=schema_name, branch_weights=WEIGHTS, width=WIDTH)
    second = PostgresIndex.open(postgres_url, name=schema_name)

    def write(index: PostgresIndex, offset: int) -> None:
        names = [f"v{number}" for number in range(8)]
        for turn in range(6):
            # In opposite orders, so that each may wait for the other.
            ordered = names if offset else names[::-1]
            index.add_all((name, video(100 * offset + turn)) for name in ordered)
            index.add("alone" if offset else "v0", video(100 * offset + turn))

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(write, first, 0), pool.submit(write, second, 1)]:
            future.result()
    assert first.video_ids() == second.video_ids()
    assert sorted(first.video_ids()) == sorted(["alone", *(f"v{number}" for number in range(8))])
    possible = {seed: video(seed)["clip"].mask.sum() for seed in (*range(6), *range(100, 106))}
    for name in first.video_ids():
        assert first.tokens(name)["clip"].mask.sum() in possible.values()
    assert_alike(second.search(queries(1)), oracle(first).search(queries(1)))
    for branch in WEIGHTS:
        statement = f"""SELECT count(DISTINCT video) FROM {first.generation.tokens(branch)}"""
        assert first.transact(lambda c, s=statement: c.execute(s).fetchone()) == (9,)
    first.close()
    second.close()


def test_a_reader_sees_whole_videos_only(postgres_url: str, schema_name: str) -> None:
    """While a video is replaced again and again, a search finds it once, with the scores of one version."""
    index = PostgresIndex.create(postgres_url, name=schema_name, branch_weights=WEIGHTS, width=WIDTH)
    index.add("a", video(0))
    versions = []
    for seed in (0, 1):
        clean = PostgresIndex.create(postgres_url, name=f"{schema_name}_{seed}", branch_weights=WEIGHTS, width=WIDTH)
        clean.add("a", video(seed))
        versions.append(clean.search(queries(0, 1))[0])
        clean.close()
    done = threading.Event()

    def replace() -> None:
        turn = 1
        while not done.is_set():
            index.add("a", video(turn % 2))
            turn += 1

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(replace)
        try:
            for _ in range(60):
                assert index.search(queries(0, 1))[0] in versions
        finally:
            done.set()
        writer.result()
    index.close()


# ---------------------------------------------------------------- a full disk


@pytest.mark.slow
def test_a_full_disk_loses_nothing() -> None:
    # A segment of the log has 16 MB. Larger files, such as a table, cannot grow.
    width, limit = 384, 18 * 2**20
    with PostgresServer({"autovacuum": "off"}, largest_file=limit) as server, create(server.url, width=width) as index:
        added: list[str] = []

        def fill() -> None:
            for number in range(400):
                index.add(f"v{number}", video(number, frames=400, width=width))
                added.append(f"v{number}")

        with pytest.raises(Unwritable):
            fill()
        assert len(added) > 10
        assert index.video_ids() == added
        asked = queries(0, width=width)
        assert_alike(index.search(asked), oracle(index).search(asked))
        for name in added[:5]:
            index.remove(name)
        index.compact()  # the space of the removed videos is used again
        index.add("more", video(3, width=width))
        assert index.video_ids() == [*added[5:], "more"]
        assert_alike(index.search(asked), oracle(index).search(asked))
