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
from midreel.server.queues import Pool, SearchDesk
from tests.server.conftest import HERE, World, wait_for

ALL = Filter()


class Watched(Searcher):
    """A searcher that notes what it is asked together, and can be made to wait."""

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


def desk_of(searcher: Searcher, **options: int) -> SearchDesk[list[Hit]]:
    return SearchDesk(
        lambda queries, top, where: searcher.search_all(queries, top=top, where=where), Metrics(), **options
    )


async def until_busy(searcher: Watched, number: int = 1) -> None:
    while len(searcher.batches) < number:
        await asyncio.sleep(0.005)


def test_what_is_asked_twice_at_a_time_is_computed_once(searcher: Watched) -> None:
    async def run() -> list[list[Hit]]:
        desk = desk_of(searcher)
        return await asyncio.gather(*(desk.search("a red ball", top=2, where=ALL) for _ in range(20)))

    answers = asyncio.run(run())
    assert searcher.batches == [["a red ball"]]
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0]) == 2


def test_what_waits_is_answered_together_and_each_gets_its_own(searcher: Watched, world: World) -> None:
    texts = [query.text for query in world.queries[:8]]

    async def run() -> list[list[Hit]]:
        desk = desk_of(searcher, together=5)
        searcher.may_go.clear()
        first = asyncio.create_task(desk.search("a first one", top=1, where=ALL))
        await until_busy(searcher)
        others = [asyncio.create_task(desk.search(text, top=1, where=ALL)) for text in texts]
        await asyncio.sleep(0)
        searcher.may_go.set()
        await first
        return await asyncio.gather(*others)

    answers = asyncio.run(run())
    assert [len(batch) for batch in searcher.batches] == [1, 5, 3]
    assert [answer[0].video_id for answer in answers] == [searcher.search(text, top=1)[0].video_id for text in texts]


def test_only_what_is_alike_is_asked_together(searcher: Watched) -> None:
    async def run() -> None:
        desk = desk_of(searcher)
        searcher.may_go.clear()
        first = asyncio.create_task(desk.search("a first one", top=1, where=ALL))
        await until_busy(searcher)
        some = [asyncio.create_task(desk.search(f"a ball {n}", top=1 + n % 2, where=ALL)) for n in range(4)]
        await asyncio.sleep(0)
        searcher.may_go.set()
        assert [len(hits) for hits in await asyncio.gather(*some)] == [1, 2, 1, 2]
        await first

    asyncio.run(run())
    assert searcher.batches[1:] == [["a ball 0", "a ball 2"], ["a ball 1", "a ball 3"]]


def test_one_bad_query_does_not_spoil_the_others(searcher: Watched) -> None:
    async def run() -> list[Any]:
        desk = desk_of(searcher)
        searcher.may_go.clear()
        first = asyncio.create_task(desk.search("a first one", top=1, where=ALL))
        await until_busy(searcher)
        some = [asyncio.create_task(desk.search(text, top=1, where=ALL)) for text in ("a ball", " ", "a star")]
        await asyncio.sleep(0)
        searcher.may_go.set()
        await first
        return await asyncio.gather(*some, return_exceptions=True)

    good, bad, also_good = asyncio.run(run())
    assert len(good) == len(also_good) == 1
    assert isinstance(bad, BadSetting)


def test_one_who_goes_away_takes_nothing_from_the_others(searcher: Watched) -> None:
    async def run() -> list[Hit]:
        desk = desk_of(searcher)
        searcher.may_go.clear()
        impatient = asyncio.create_task(desk.search("a ball", top=1, where=ALL))
        patient = asyncio.create_task(desk.search("a ball", top=1, where=ALL))
        await until_busy(searcher)
        impatient.cancel()
        await asyncio.sleep(0)
        searcher.may_go.set()
        return await patient

    assert len(asyncio.run(run())) == 1


def test_more_than_may_wait_is_refused_and_told_when_to_come_back(searcher: Watched) -> None:
    async def run() -> ProblemError:
        desk = desk_of(searcher, most=2)
        searcher.may_go.clear()
        first = asyncio.create_task(desk.search("a first one", top=1, where=ALL))
        await until_busy(searcher)
        waiting = [asyncio.create_task(desk.search(f"a ball {n}", top=1, where=ALL)) for n in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError) as refused:
            await desk.search("one too many", top=1, where=ALL)
        again = asyncio.create_task(desk.search("a ball 0", top=1, where=ALL))  # which waits already
        await asyncio.sleep(0)
        searcher.may_go.set()
        await asyncio.gather(first, again, *waiting)
        return refused.value

    refused = asyncio.run(run())
    assert (refused.problem.status, refused.headers["Retry-After"]) == (503, "1")


def test_a_pool_does_so_much_and_no_more() -> None:
    gate, done = threading.Event(), list[int]()

    def work(number: int) -> int:
        assert gate.wait(20)
        done.append(number)
        return number

    async def run() -> None:
        pool = Pool("pictures", threads=1, most=2)
        tasks = [asyncio.create_task(pool.run(number, lambda number=number: work(number))) for number in (1, 2, 1)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError, match="too many pictures are waiting"):
            await pool.run(3, lambda: work(3))
        gate.set()
        assert await asyncio.gather(*tasks) == [1, 2, 1]
        assert await pool.run(3, lambda: work(3)) == 3
        pool.close()

    asyncio.run(run())
    assert done == [1, 2, 3]


def test_a_failure_in_a_pool_is_everybodys_who_asked() -> None:
    async def run() -> None:
        pool = Pool("pictures", threads=1, most=2)
        with pytest.raises(ZeroDivisionError):
            await asyncio.gather(*(pool.run(1, lambda: 1 // 0) for _ in range(3)))
        pool.close()

    asyncio.run(run())


def test_over_http_too_many_searches_are_a_503_and_all_others_are_answered(searcher: Watched) -> None:
    app = create_app(searcher, most_searches=3)
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
        wait_for(lambda: len(searcher.batches) > num_before)  # the one thread is busy now
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: len(codes) == 4)
        searcher.may_go.set()
        for thread in threads:
            thread.join(20)
    assert sorted(codes, key=str) == [(200, None)] * 4 + [(503, "1")] * 4
