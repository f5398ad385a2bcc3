"""The queue of everything that writes to the library. One thread runs it, so writes of one server never collide.

Another process may write, too. A removal waits for its turn and for that process, in all for WRITE_PATIENCE.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from midreel.errors import LibraryBusy, MidreelError
from midreel.features.backbones.base import Backbone
from midreel.library.layout import Layout
from midreel.library.session import Writer
from midreel.server.problems import ProblemError, busy

WRITE_PATIENCE = 10.0  # seconds that a write waits; midreel.server.client gives up after 30
MOST_REMOVALS = 256  # that wait
_POLL = 0.1  # seconds between attempts to open a library that another process writes; a file lock has no event

T = TypeVar("T")


class WriteQueue:
    """Runs one write at a time, in a thread of its own.

    Removals take milliseconds, so they overtake jobs that wait.
    """

    def __init__(self, *, patience: float = WRITE_PATIENCE, most_removals: int = MOST_REMOVALS) -> None:
        self._patience, self._most_removals = patience, most_removals
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._lock = threading.Lock()
        self._removals: dict[Future[Any], Callable[[], Any]] = {}  # that wait, in order
        self._jobs: dict[Future[Any], Callable[[], Any]] = {}
        self._is_running, self._is_ended = False, threading.Event()

    def until(self) -> float:
        """Return the time until which a write that begins now may wait for another process."""
        return time.monotonic() + self._patience

    def add_job(self, work: Callable[[], T]) -> "Future[T]":
        """Run `work` after the jobs that wait already."""
        return self._add(self._jobs, work)

    async def remove(self, work: Callable[[float], T]) -> T:
        """Return the result of `work`, which is given the time until which it may wait for another process.

        A client that disconnects does not withdraw its request. Raises a ProblemError if its turn does not come in
        time, which a running job may prevent for hours.
        """
        until = self.until()
        if self.num_removals >= self._most_removals:
            raise busy("removals", seconds=5)
        future = self._add(self._removals, lambda: work(until))
        result = asyncio.wrap_future(future)
        await asyncio.wait([result], timeout=self._patience)
        if not result.done() and self.withdraw(future):
            raise ProblemError(
                409,
                "the library is being written; try again when that is done, GET /v1/jobs lists this server's jobs",
                kind="library-busy",
                headers={"Retry-After": "5"},
            )
        return await result

    def withdraw(self, future: "Future[Any]") -> bool:
        """Take a write out of the queue. Return False if it has begun, or is done."""
        with self._lock:
            return any(waiting.pop(future, None) is not None for waiting in (self._removals, self._jobs))

    @property
    def num_removals(self) -> int:
        """How many removals wait."""
        return len(self._removals)

    @property
    def is_ended(self) -> bool:
        return self._is_ended.is_set()

    def end(self) -> None:
        """Begin no further write: removals that wait are refused. The write that runs goes on."""
        self._is_ended.set()
        with self._lock:
            removals = list(self._removals)
            self._removals.clear()
            self._jobs.clear()
        for future in removals:
            if future.set_running_or_notify_cancel():
                future.set_exception(_ending())

    def close(self) -> None:
        """End, and wait for the write that runs."""
        self.end()
        self._thread.shutdown(wait=True)

    def _add(self, waiting: "dict[Future[Any], Callable[[], Any]]", work: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        with self._lock:
            if self.is_ended:
                raise _ending()
            waiting[future] = work
            if not self._is_running:
                self._is_running = True
                self._thread.submit(self._run_all)
        return future

    def _run_all(self) -> None:
        """Run what waits, until nothing does."""
        while True:
            with self._lock:
                waiting = self._removals or self._jobs
                if not waiting:
                    self._is_running = False
                    return
                future = next(iter(waiting))
                work = waiting.pop(future)
            if not future.set_running_or_notify_cancel():  # its task was cancelled
                continue
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)


@contextmanager
def open_to_write(
    library: Path,
    *,
    until: float,
    stop: Callable[[], bool],
    device: str = "cpu",
    backbone: Backbone | None = None,
) -> Iterator[Writer]:
    """Open a library that exists. While another process writes it, wait until a time, or until `stop`.

    Raises LibraryBusy if that process does not end in time, MissingLibrary if there is no library: the indexer would
    create one, on the mount point of a disk that is not mounted.
    """
    try:
        with ExitStack() as opened:
            while True:
                Layout(library).settings()
                try:
                    writer = opened.enter_context(Writer.open(library, device=device, backbone=backbone))
                    break
                except LibraryBusy:
                    if time.monotonic() >= until or stop():
                        raise
                    time.sleep(_POLL)
            yield writer
    except (MidreelError, OSError):
        Layout(library).settings()  # raises MissingLibrary if it was deleted meanwhile
        raise


def _ending() -> ProblemError:
    return ProblemError(
        503, "the server is shutting down; try again", kind="shutting-down", headers={"Retry-After": "5"}
    )
