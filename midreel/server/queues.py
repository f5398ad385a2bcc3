"""Slow work outside the event loop: so much at a time, so much that waits, and what is asked twice is done once."""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from midreel.library.filters import Filter
from midreel.server.metrics import Metrics
from midreel.server.problems import busy

MOST_WAITING = 256  # the last of them waits for seconds, not for minutes

T = TypeVar("T")
A = TypeVar("A")

Question = tuple[str, int, Filter]  # a query, how many hits, which videos


class Pool:
    """Runs functions in a few threads. What is more than `most` at a time is refused."""

    def __init__(self, what: str, *, threads: int | ThreadPoolExecutor, most: int) -> None:
        self._what, self._most = what, most
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=what) if isinstance(threads, int) else threads
        self._in_flight: dict[Hashable, asyncio.Future[Any]] = {}

    async def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """The result of `work`; whoever comes with the same key before it is there gets the same."""
        if key not in self._in_flight:
            if len(self._in_flight) >= self._most:
                raise busy(self._what)
            future = asyncio.get_running_loop().run_in_executor(self._threads, work)
            future.add_done_callback(lambda done: self._forget(key, done))
            self._in_flight[key] = future
        # One who goes away takes nothing from the others.
        return await asyncio.shield(self._in_flight[key])

    def _forget(self, key: Hashable, done: "asyncio.Future[Any]") -> None:
        del self._in_flight[key]
        if not done.cancelled():
            done.exception()  # all who asked may have gone away

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)


class SearchDesk(Generic[A]):
    """Searches in one thread. Those that come while it is busy are answered together, for a model takes in several
    sentences at once; nobody waits for others to come."""

    def __init__(
        self,
        search: Callable[[list[str], int, Filter], list[A]],
        metrics: Metrics,
        *,
        most: int = MOST_WAITING,
        together: int = 16,
    ) -> None:
        self._search, self._metrics, self._most, self._together = search, metrics, most, together
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._others = Pool("questions about the library", threads=self._thread, most=most)
        self._answers: dict[Question, asyncio.Future[A]] = {}  # to be given
        self._waiting: list[Question] = []
        self._worker: asyncio.Task[None] | None = None
        metrics.searches_waiting.set_function(lambda: len(self._waiting))

    async def search(self, query: str, *, top: int, where: Filter) -> A:
        question = (query, top, where)
        if question not in self._answers:
            if len(self._waiting) >= self._most:
                raise busy("searches")
            self._answers[question] = asyncio.get_running_loop().create_future()
            self._waiting.append(question)
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())
        return await asyncio.shield(self._answers[question])

    async def between(self, work: Callable[[], T]) -> T:
        """The result of what needs the thread that searches, and is no search; what is asked twice is done once."""
        return await self._others.run(work, work)

    async def _work(self) -> None:
        while self._waiting:
            alike = [each for each in self._waiting if each[1:] == self._waiting[0][1:]][: self._together]
            taken = set(alike)
            self._waiting = [each for each in self._waiting if each not in taken]
            await self._answer(alike)

    async def _answer(self, alike: list[Question]) -> None:
        queries, (top, where) = [query for query, _, _ in alike], alike[0][1:]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._timed, queries, top, where)
        except Exception as error:
            if len(alike) > 1:  # whose fault it is shows when each is asked alone
                for question in alike:
                    await self._answer([question])
                return
            future = self._answers.pop(alike[0])
            future.set_exception(error)
            future.exception()  # all who asked may have gone away
            return
        for question, answer in zip(alike, found, strict=True):
            self._answers.pop(question).set_result(answer)

    def _timed(self, queries: list[str], top: int, where: Filter) -> list[A]:
        self._metrics.batch_size.observe(len(queries))
        with self._metrics.search_seconds.time():
            return self._search(queries, top, where)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
