"""Claims: which process reads which file, so that several processes share the work of one library.

A process plans the files that it has to read as rows of the table `work`, and claims one at a time. A claim ends after
`LEASE` seconds unless its process renews it, so the files of a dead process are read by another one. Only the clock of
the server counts. The row of a file is deleted in the transaction that records the file.

A claim only saves work: two processes that read the same file commit the same video, and the second replaces the first.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import uuid4

from midreel.errors import Locked, MidreelError
from midreel.index.postgres.database import Connection, Pool
from midreel.library.scan import FoundFile

LEASE = 60.0  # seconds
_RENEWALS = 4  # of a claim in its time, so that a few may fail
_AT_ONCE = 256  # files in which the next free one is looked for
_REINDEX = b"\0reindex"  # no path contains a null byte

_PLAN = "INSERT INTO work (path) SELECT unnest(%s::bytea[]) ON CONFLICT DO NOTHING"
_CLAIM = """
    UPDATE work SET owner = %s, until = now() + make_interval(secs => %s) FROM (
        SELECT path FROM work JOIN unnest(%s::bytea[]) WITH ORDINALITY AS planned (path, place) USING (path)
        WHERE until IS NULL OR until < now() ORDER BY place LIMIT 1 FOR UPDATE OF work SKIP LOCKED
    ) AS free WHERE work.path = free.path RETURNING work.path"""
_RENEW = "UPDATE work SET until = now() + make_interval(secs => %s) WHERE owner = %s"
_END = "DELETE FROM work WHERE owner = %s"


class Work:
    """The claims of this process on the files of a library.

    Args:
        database: Runs the transactions.
        place: The library, for messages.

    Attributes:
        is_alone: Whether this process reindexes.
    """

    def __init__(self, database: Pool, place: str) -> None:
        self._database, self._place, self.is_alone = database, place, False

    def plan(self, files: Iterable[FoundFile]) -> None:
        """Plan to read files, unless another process has planned it already."""
        paths = [os.fsencode(file.path) for file in files]
        self._database.run(lambda connection: connection.execute(_PLAN, (paths,)))

    @contextmanager
    def claimed(self, files: Iterable[FoundFile]) -> Iterator[Iterator[FoundFile]]:
        """Yield the planned files that no other process reads, each claimed when it is taken, until the block ends."""
        owner = uuid4().hex
        try:
            with self._renewed(owner):
                yield self._claims(owner, {os.fsencode(file.path): file for file in files})
        finally:
            # Files that nobody has claimed stay planned: another process may wait for them, and then reads them.
            with suppress(MidreelError):
                self._database.run(lambda connection: connection.execute(_END, (owner,)))

    def _claims(self, owner: str, files: dict[bytes, FoundFile]) -> Iterator[FoundFile]:
        paths = list(files)
        start = 0
        while start < len(paths):
            some = paths[start : start + _AT_ONCE]
            path = self._claim(owner, some)
            start += _AT_ONCE if path is None else some.index(path) + 1
            if path is not None:
                yield files[path]

    def _claim(self, owner: str, paths: Sequence[bytes]) -> bytes | None:
        """Claim the first free file; None if there is none."""
        row = self._database.run(lambda connection: connection.execute(_CLAIM, (owner, LEASE, paths)).fetchone())
        return row and bytes(row[0])

    def unfinished(self, files: Iterable[FoundFile]) -> list[FoundFile]:
        """Return the files that are still planned or claimed."""
        by_path = {os.fsencode(file.path): file for file in files}
        if not by_path:
            return []
        statement = "SELECT path FROM work WHERE path = ANY(%s::bytea[])"
        rows = self._database.run(lambda connection: connection.execute(statement, (list(by_path),)).fetchall())
        waiting = {bytes(path) for (path,) in rows}
        return [file for path, file in by_path.items() if path in waiting]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process reindex until the block ends. Raise Locked if one does."""
        owner = uuid4().hex

        def work(connection: Connection) -> bool:
            connection.execute(_PLAN, ([_REINDEX],))
            return connection.execute(_CLAIM, (owner, LEASE, [_REINDEX])).fetchone() is not None

        if not self._database.run(work):
            raise Locked(f"{self._place} is reindexed by another process. Wait for it. Searching still works.")
        self.is_alone = True
        try:
            with self._renewed(owner):
                yield
        finally:
            self.is_alone = False
            with suppress(MidreelError):
                self._database.run(lambda connection: connection.execute(_END, (owner,)))

    @staticmethod
    def is_reindexed(connection: Connection) -> bool:
        """Return whether a process reindexes now."""
        return connection.execute("SELECT FROM work WHERE path = %s AND until > now()", (_REINDEX,)).rowcount > 0

    @contextmanager
    def _renewed(self, owner: str) -> Iterator[None]:
        """Renew the claims of an owner until the block ends."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(LEASE / _RENEWALS):
                with suppress(MidreelError):  # the next renewal may reach the server
                    self._database.run(lambda connection: connection.execute(_RENEW, (LEASE, owner)))

        thread = threading.Thread(target=renew, name="midreel-claims", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
