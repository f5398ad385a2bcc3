"""Queues for slow work: they limit and deduplicate requests, and search in batches."""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from midreel.library.filters import Filter
from midreel.library.query import Query
from midreel.server.metrics import Metrics
from midreel.server.problems import busy

MAX_WAITING = 256  # the last request in a full queue waits for seconds, not for minutes
MAX_BATCH = 16

T = TypeVar("T")
A = TypeVar("A")

SearchRequest = tuple[str | Query, int, Filter]  # a query, the number of hits, and the videos to search


class Pool:
    """Run functions in a few threads, and deduplicate concurrent calls.

    Args:
        what: What the functions produce, for error messages and thread names.
        threads: The number of threads, or an executor to share.
        max_waiting: The maximum number of running and waiting functions.
    """

    def __init__(self, what: str, *, threads: int | ThreadPoolExecutor, max_waiting: int) -> None:
        self._what, self._max_waiting = what, max_waiting
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=what) if isinstance(threads, int) else threads
        self._in_flight: dict[Hashable, asyncio.Future[Any]] = {}

    async def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the result of `work`. Concurrent calls with the same `key` share one result.

        Raises:
            ProblemError: The pool is full.
        """
        if key not in self._in_flight:
            if len(self._in_flight) >= self._max_waiting:
                raise busy(self._what)
            future = asyncio.get_running_loop().run_in_executor(self._threads, work)
            future.add_done_callback(lambda done: self._remove(key, done))
            self._in_flight[key] = future
        # A caller that is cancelled must not cancel the work of the others.
        return await asyncio.shield(self._in_flight[key])

    def _remove(self, key: Hashable, done: "asyncio.Future[Any]") -> None:
        del self._in_flight[key]
        if not done.cancelled():
            done.exception()  # marks it as retrieved: every caller may have been cancelled

    def close(self) -> None:
        """Drop the waiting functions, and wait for the running ones."""
        self._threads.shutdown(wait=True, cancel_futures=True)


class SearchQueue(Generic[A]):
    """Search in one thread, in batches.

    Queries that arrive while the thread is busy form the next batch, which the model encodes at once. An idle thread
    starts immediately: no query waits for a batch to fill up.

    Args:
        search: Searches for a list of queries, with a number of hits and a filter. Returns one answer per query.
        metrics: Records the size and the duration of batches.
        max_waiting: The maximum number of waiting queries.
        max_batch: The maximum number of queries in a batch.
    """

    def __init__(
        self,
        search: Callable[[list[str | Query], int, Filter], list[A]],
        metrics: Metrics,
        *,
        max_waiting: int = MAX_WAITING,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self._search, self._metrics, self._max_waiting, self._max_batch = search, metrics, max_waiting, max_batch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._others = Pool("library requests", threads=self._thread, max_waiting=max_waiting)
        # A request stays in `_answers` until it is answered, and in `_waiting` until its batch starts. All state
        # belongs to the event loop; only `_timed_search` runs in the thread.
        self._answers: dict[SearchRequest, asyncio.Future[A]] = {}
        self._waiting: list[SearchRequest] = []
        self._worker: asyncio.Task[None] | None = None
        metrics.searches_waiting.set_function(lambda: len(self._waiting))

    async def search(self, query: str | Query, *, top: int, where: Filter) -> A:
        """Return the answer to a query. Concurrent equal requests share one answer.

        Args:
            query: A sentence, or a parsed query.
            top: The maximum number of hits.
            where: The videos to search.

        Raises:
            ProblemError: The queue is full.
        """
        request = (query, top, where)
        if request not in self._answers:
            if len(self._waiting) >= self._max_waiting:
                raise busy("searches")
            self._answers[request] = asyncio.get_running_loop().create_future()
            self._waiting.append(request)
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())
        return await asyncio.shield(self._answers[request])

    async def run_between(self, work: Callable[[], T]) -> T:
        """Return the result of other work that must run in the search thread."""
        return await self._others.run(work, work)

    async def _work(self) -> None:
        while self._waiting:
            # The requests in a batch differ only in their query.
            batch = [each for each in self._waiting if each[1:] == self._waiting[0][1:]][: self._max_batch]
            taken = set(batch)
            self._waiting = [each for each in self._waiting if each not in taken]
            await self._answer(batch)

    async def _answer(self, batch: list[SearchRequest]) -> None:
        queries, (top, where) = [query for query, _, _ in batch], batch[0][1:]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._timed_search, queries, top, where)
        except Exception as error:
            if len(batch) > 1:  # one bad query must not fail the others: search for each alone
                for request in batch:
                    await self._answer([request])
                return
            future = self._answers.pop(batch[0])
            future.set_exception(error)
            future.exception()  # marks it as retrieved: every caller may have been cancelled
            return
        for request, answer in zip(batch, found, strict=True):
            self._answers.pop(request).set_result(answer)

    def _timed_search(self, queries: list[str | Query], top: int, where: Filter) -> list[A]:
        self._metrics.batch_size.observe(len(queries))
        with self._metrics.search_seconds.time():
            return self._search(queries, top, where)

    def close(self) -> None:
        """Drop the waiting searches, and wait for the running one."""
        self._thread.shutdown(wait=True, cancel_futures=True)
