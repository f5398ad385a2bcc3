"""Whether the library can be searched now, not whether it could be searched when the server started."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from midreel.library.filters import Filter
from midreel.server.problems import ProblemError, status_and_words

FRESH = 1.0  # seconds for which the last search tells whether searches work
PATIENCE = 5.0  # seconds to wait for a search that tells
_log = logging.getLogger("midreel.server")

A = TypeVar("A")
Search = Callable[[list[str], int, Filter], A]


class Readiness:
    """The outcome of the last search. If that is too long ago, `expect` runs another one.

    So a busy server runs no extra searches, and an idle one notices that its library is missing, or is back. Clients
    without the token may ask for readiness: they cause at most one search a second.
    """

    def __init__(self) -> None:
        self._trouble: str | None = "the model is being loaded"
        self._checked: float | None = None  # when; None until the first search has ended

    @property
    def is_ready(self) -> bool:
        return self._trouble is None

    def watched(self, search: Search[A]) -> Search[A]:
        """Return the same function, which also notes its outcome."""

        def noted(queries: list[str], top: int, where: Filter) -> A:
            try:
                found = search(queries, top, where)
            except Exception as error:
                status, words = status_and_words(error)
                if status >= 500:  # otherwise the query is at fault, not the library
                    self._note(words, error)
                raise
            self._note(None)
            return found

        return noted

    async def expect(self, search: Callable[[], Awaitable[object]]) -> None:
        """Raise a ProblemError unless searches work. `search` runs a search that is watched."""
        if self._checked is not None and time.monotonic() - self._checked > FRESH:
            try:
                async with asyncio.timeout(PATIENCE):
                    with suppress(Exception):  # which is noted
                        await search()
            except TimeoutError:
                raise _not_ready(f"a search takes more than {PATIENCE:g} s") from None
        if self._trouble is not None:
            raise _not_ready(self._trouble)

    def _note(self, trouble: str | None, error: Exception | None = None) -> None:
        # Only a change is logged: while the library is missing, every search fails.
        if trouble is not None and (self.is_ready or self._checked is None):
            _log.error("the library cannot be searched", exc_info=error)
        elif trouble is None and self._checked is not None and not self.is_ready:
            _log.warning("the library can be searched again")
        self._trouble, self._checked = trouble, time.monotonic()


def _not_ready(why: str) -> ProblemError:
    return ProblemError(503, f"not ready: {why}", kind="not-ready", headers={"Retry-After": "2"})
