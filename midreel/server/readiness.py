"""The check behind /readyz: whether the library can be searched now."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from midreel.library.filters import Filter
from midreel.library.query import Query
from midreel.server.problems import ProblemError, status_and_detail

MAX_AGE = 1.0  # seconds for which the result of the last search is valid
TIMEOUT = 5.0  # seconds to wait for a search
_log = logging.getLogger("midreel.server")

A = TypeVar("A")
Search = Callable[[list[str | Query], int, Filter], A]


class Readiness:
    """The result of the last search. `expect` searches again if the result is old.

    A busy server therefore runs no extra searches, and an idle one notices that its library is missing or back.
    Clients without the token may call /readyz, but they cause at most one search per second.
    """

    def __init__(self) -> None:
        self._trouble: str | None = "The model is loading."
        self._checked: float | None = None  # time of the last search; None before the first one has ended

    @property
    def is_ready(self) -> bool:
        """Whether the last search succeeded."""
        return self._trouble is None

    def watched(self, search: Search[A]) -> Search[A]:
        """Return a function that searches and records the result."""

        def watched_search(queries: list[str | Query], top: int, where: Filter) -> A:
            try:
                found = search(queries, top, where)
            except Exception as error:
                status, detail = status_and_detail(error)
                if status >= 500:  # below 500 the query is wrong, not the library
                    self._record(detail, error)
                raise
            self._record(None)
            return found

        return watched_search

    async def expect(self, search: Callable[[], Awaitable[object]]) -> None:
        """Raise ProblemError unless searches work.

        Args:
            search: Runs a watched search.
        """
        if self._checked is not None and time.monotonic() - self._checked > MAX_AGE:
            try:
                async with asyncio.timeout(TIMEOUT):
                    with suppress(Exception):  # the watched search has recorded it
                        await search()
            except TimeoutError:
                raise _not_ready(f"A search takes more than {TIMEOUT:g} s.") from None
        if self._trouble is not None:
            raise _not_ready(self._trouble)

    def _record(self, trouble: str | None, error: Exception | None = None) -> None:
        # Log changes only: every search fails while the library is missing.
        if trouble is not None and (self.is_ready or self._checked is None):
            _log.error("the library cannot be searched", exc_info=error)
        elif trouble is None and self._checked is not None and not self.is_ready:
            _log.warning("the library can be searched again")
        self._trouble, self._checked = trouble, time.monotonic()


def _not_ready(reason: str) -> ProblemError:
    return ProblemError(503, f"Not ready. {reason}", kind="not-ready", headers={"Retry-After": "2"})
