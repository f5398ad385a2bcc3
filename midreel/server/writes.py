"""The queue of all writes to the library. One thread runs it, so the writes of one server never collide.

Another process may write, too. A removal waits at most WRITE_TIMEOUT for its turn and for that process.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from midreel.errors import Locked, MidreelError
from midreel.features.backbones.base import Backbone
from midreel.library.place import Place
from midreel.library.storage import expect_library
from midreel.server.problems import ProblemError, busy

WRITE_TIMEOUT = 10.0  # seconds; less than the 30 s timeout of midreel.server.client
MAX_REMOVALS = 256  # waiting removals
_POLL = 0.1  # seconds between attempts to lock the library; a file lock cannot notify

T = TypeVar("T")

if TYPE_CHECKING:
    from midreel.library.writer import Writer


class WriteQueue:
    """Run one write at a time, in a thread of its own.

    Removals take milliseconds, so they overtake waiting jobs.

    Args:
        timeout: The time that a removal waits for its turn and for another process, in seconds.
        max_removals: The maximum number of waiting removals.
    """

    def __init__(self, *, timeout: float = WRITE_TIMEOUT, max_removals: int = MAX_REMOVALS) -> None:
        self._timeout, self._max_removals = timeout, max_removals
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="write")
        # The lock guards the two queues, which keep their order, and `_is_running`: whether `_run_all` is scheduled.
        self._lock = threading.Lock()
        self._removals: dict[Future[Any], Callable[[], Any]] = {}
        self._jobs: dict[Future[Any], Callable[[], Any]] = {}
        self._is_running, self._is_ended = False, threading.Event()

    def deadline(self) -> float:
        """Return the time until which a write that starts now may wait for another process."""
        return time.monotonic() + self._timeout

    def add_job(self, work: Callable[[], T]) -> "Future[T]":
        """Run `work` after the waiting jobs. Raise ProblemError if the queue has ended."""
        return self._add(self._jobs, work)

    async def remove(self, work: Callable[[float], T]) -> T:
        """Run a removal and return its result. If its client disconnects, it still runs.

        Args:
            work: Removes a video. Its argument is the deadline for waiting for another process.

        Raises:
            ProblemError: The queue is full or has ended, or a running job did not end in time.
        """
        deadline = self.deadline()
        if self.num_removals >= self._max_removals:
            raise busy("removals", seconds=5)
        future = self._add(self._removals, lambda: work(deadline))
        result = asyncio.wrap_future(future)
        await asyncio.wait([result], timeout=self._timeout)
        if not result.done() and self.withdraw(future):
            raise ProblemError(
                409,
                "An index job is writing to the library. Try again when it has ended: GET /v1/jobs.",
                kind="locked",
                headers={"Retry-After": "5"},
            )
        return await result

    def withdraw(self, future: "Future[Any]") -> bool:
        """Take a write out of the queue. Return False if it has already started."""
        with self._lock:
            return any(waiting.pop(future, None) is not None for waiting in (self._removals, self._jobs))

    @property
    def num_removals(self) -> int:
        """The number of waiting removals."""
        return len(self._removals)

    @property
    def is_ended(self) -> bool:
        """Whether `end` was called."""
        return self._is_ended.is_set()

    def end(self) -> None:
        """Start no further write: waiting removals fail, waiting jobs are dropped. The running write continues."""
        self._is_ended.set()
        with self._lock:
            removals = list(self._removals)
            self._removals.clear()
            self._jobs.clear()
        for future in removals:
            if future.set_running_or_notify_cancel():
                future.set_exception(_shutting_down())

    def close(self) -> None:
        """Start no further write, and wait for the running one."""
        self.end()
        self._thread.shutdown(wait=True)

    def _add(self, waiting: "dict[Future[Any], Callable[[], Any]]", work: Callable[[], T]) -> "Future[T]":
        future: Future[T] = Future()
        with self._lock:
            if self.is_ended:
                raise _shutting_down()
            waiting[future] = work
            if not self._is_running:
                self._is_running = True
                self._thread.submit(self._run_all)
        return future

    def _run_all(self) -> None:
        """Run the waiting writes until both queues are empty."""
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
    library: Place,
    *,
    deadline: float,
    stop: Callable[[], bool],
    device: str = "cpu",
    backbone: Backbone | None = None,
) -> Iterator["Writer"]:
    """Open an existing library for writing. Wait for another process that writes it.

    Args:
        library: The folder of the library, or the URL of its database.
        deadline: The time (`time.monotonic`) until which to wait.
        stop: Returns True to stop waiting.
        device: The torch device for encoding.
        backbone: The loaded backbone of the library.

    Raises:
        Locked: The other process did not end in time.
        MissingLibrary: There is no library. Writer.open would create one, even on an unmounted disk.
    """
    from midreel.library.writer import Writer  # its decoder and files of features are not needed to search

    try:
        with ExitStack() as opened:
            while True:
                expect_library(library)
                try:
                    writer = opened.enter_context(Writer.open(library, device=device, backbone=backbone))
                    break
                except Locked:
                    if time.monotonic() >= deadline or stop():
                        raise
                    time.sleep(_POLL)
            yield writer
    except (MidreelError, OSError):
        expect_library(library)  # raises MissingLibrary if the library was deleted meanwhile
        raise


def _shutting_down() -> ProblemError:
    return ProblemError(
        503, "The server is shutting down. Try again later.", kind="shutting-down", headers={"Retry-After": "5"}
    )
