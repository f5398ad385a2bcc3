import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midreel.errors import BadSetting
from midreel.features import Backbone
from midreel.library.filters import Filter
from midreel.library.hits import Hit
from midreel.library.searcher import Searcher
from midreel.server.app import create_app
from midreel.server.metrics import Metrics
from midreel.server.problems import ProblemError
from midreel.server.queues import Pool, SearchQueue
from tests.server.conftest import HERE, World, wait_for

ALL = Filter()


class Watched(Searcher):
    """A searcher that records its batches and can be blocked."""

    def __init__(self, folder: Path, *, device: str = "cpu", backbone: Backbone | None = None) -> None:
        super().__init__(folder, device=device, backbone=backbone)
        self.batches: list[list[str]] = []
        self.may_go = threading.Event()
        self.may_go.set()

    def search_all(self, queries: Sequence[str], **options: Any) -> list[list[Hit]]:
        self.batches.append(list(queries))
        assert self.may_go.wait(20)
        return super().search_all(queries, **options)


@pytest.fixture
def searcher(world: World) -> Iterator[Watched]:
    with Watched(world.library, backbone=world.backbone) as searcher:
        yield searcher


def queue_of(searcher: Searcher, **options: int) -> SearchQueue[list[Hit]]:
    return SearchQueue(
        lambda queries, top, where: searcher.search_all(queries, top=top, where=where), Metrics(), **options
    )


async def until_busy(searcher: Watched, number: int = 1) -> None:
    while len(searcher.batches) < number:
        await asyncio.sleep(0.005)


def test_concurrent_equal_searches_are_computed_once(searcher: Watched) -> None:
    async def run() -> list[list[Hit]]:
        queue = queue_of(searcher)
        return await asyncio.gather(*(queue.search("a red ball", top=2, where=ALL) for _ in range(20)))

    answers = asyncio.run(run())
    assert searcher.batches == [["a red ball"]]
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0]) == 2


def test_waiting_searches_form_a_batch_and_each_gets_its_own_answer(searcher: Watched, world: World) -> None:
    texts = [query.text for query in world.queries[:8]]

    async def run() -> list[list[Hit]]:
        queue = queue_of(searcher, max_batch=5)
        searcher.may_go.clear()
        first = asyncio.create_task(queue.search("a first one", top=1, where=ALL))
        await until_busy(searcher)
        others = [asyncio.create_task(queue.search(text, top=1, where=ALL)) for text in texts]
        await asyncio.sleep(0)
        searcher.may_go.set()
        await first
        return await asyncio.gather(*others)

    answers = asyncio.run(run())
    assert [len(batch) for batch in searcher.batches] == [1, 5, 3]
    assert [answer[0].video_id for answer in answers] == [searcher.search(text, top=1)[0].video_id for text in texts]


def test_a_batch_has_one_top_and_filter(searcher: Watched) -> None:
    async def run() -> None:
        queue = queue_of(searcher)
        searcher.may_go.clear()
        first = asyncio.create_task(queue.search("a first one", top=1, where=ALL))
        await until_busy(searcher)
        some = [asyncio.create_task(queue.search(f"a ball {n}", top=1 + n % 2, where=ALL)) for n in range(4)]
        await asyncio.sleep(0)
        searcher.may_go.set()
        assert [len(hits) for hits in await asyncio.gather(*some)] == [1, 2, 1, 2]
        await first

    asyncio.run(run())
    assert searcher.batches[1:] == [["a ball 0", "a ball 2"], ["a ball 1", "a ball 3"]]


def test_a_bad_query_does_not_fail_the_batch(searcher: Watched) -> None:
    async def run() -> list[Any]:
        queue = queue_of(searcher)
        searcher.may_go.clear()
        first = asyncio.create_task(queue.search("a first one", top=1, where=ALL))
        await until_busy(searcher)
        some = [asyncio.create_task(queue.search(text, top=1, where=ALL)) for text in ("a ball", " ", "a star")]
        await asyncio.sleep(0)
        searcher.may_go.set()
        await first
        return await asyncio.gather(*some, return_exceptions=True)

    good, bad, also_good = asyncio.run(run())
    assert len(good) == len(also_good) == 1
    assert isinstance(bad, BadSetting)


def test_a_cancelled_caller_does_not_cancel_the_others(searcher: Watched) -> None:
    async def run() -> list[Hit]:
        queue = queue_of(searcher)
        searcher.may_go.clear()
        impatient = asyncio.create_task(queue.search("a ball", top=1, where=ALL))
        patient = asyncio.create_task(queue.search("a ball", top=1, where=ALL))
        await until_busy(searcher)
        impatient.cancel()
        await asyncio.sleep(0)
        searcher.may_go.set()
        return await patient

    assert len(asyncio.run(run())) == 1


def test_a_full_queue_refuses_with_retry_after(searcher: Watched) -> None:
    async def run() -> ProblemError:
        queue = queue_of(searcher, max_waiting=2)
        searcher.may_go.clear()
        first = asyncio.create_task(queue.search("a first one", top=1, where=ALL))
        await until_busy(searcher)
        waiting = [asyncio.create_task(queue.search(f"a ball {n}", top=1, where=ALL)) for n in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError) as refused:
            await queue.search("one too many", top=1, where=ALL)
        again = asyncio.create_task(queue.search("a ball 0", top=1, where=ALL))  # is already waiting
        await asyncio.sleep(0)
        searcher.may_go.set()
        await asyncio.gather(first, again, *waiting)
        return refused.value

    refused = asyncio.run(run())
    assert (refused.problem.status, refused.headers["Retry-After"]) == (503, "1")


def test_a_pool_limits_and_deduplicates() -> None:
    gate, done = threading.Event(), list[int]()

    def work(number: int) -> int:
        assert gate.wait(20)
        done.append(number)
        return number

    async def run() -> None:
        pool = Pool("pictures", threads=1, max_waiting=2)
        tasks = [asyncio.create_task(pool.run(number, lambda number=number: work(number))) for number in (1, 2, 1)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError, match="pictures"):
            await pool.run(3, lambda: work(3))
        gate.set()
        assert await asyncio.gather(*tasks) == [1, 2, 1]
        assert await pool.run(3, lambda: work(3)) == 3
        pool.close()

    asyncio.run(run())
    assert done == [1, 2, 3]


def test_a_failure_in_a_pool_reaches_all_callers() -> None:
    async def run() -> None:
        pool = Pool("pictures", threads=1, max_waiting=2)
        with pytest.raises(ZeroDivisionError):
            await asyncio.gather(*(pool.run(1, lambda: 1 // 0) for _ in range(3)))
        pool.close()

    asyncio.run(run())


def test_too_many_searches_over_http_are_a_503(searcher: Watched) -> None:
    app = create_app(searcher, max_searches=3)
    with TestClient(app, base_url=HERE) as client:
        wait_for(lambda: client.get("/readyz").status_code == 200)
        searcher.may_go.clear()
        num_before = len(searcher.batches)
        codes: list[tuple[int, str | None]] = []

        def ask(number: int) -> None:
            answer = client.post("/v1/search", json={"query": f"a ball {number}"})
            codes.append((answer.status_code, answer.headers.get("retry-after")))

        threads = [threading.Thread(target=ask, args=[number]) for number in range(8)]
        threads[0].start()
        wait_for(lambda: len(searcher.batches) > num_before)  # the search thread is busy now
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: len(codes) == 4)
        searcher.may_go.set()
        for thread in threads:
            thread.join(20)
    assert sorted(codes, key=str) == [(200, None)] * 4 + [(503, "1")] * 4
