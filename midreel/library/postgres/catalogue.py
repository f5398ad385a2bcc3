"""The catalogue of a library in PostgreSQL."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from midreel.index.postgres.database import Connection, Database
from midreel.library.postgres import tables
from midreel.library.records import Records, Statement
from midreel.library.scan import FoundFile

T = TypeVar("T")


class PostgresCatalogue(Records):
    """The catalogue of a library in PostgreSQL. All methods are thread-safe. See `Records` for what it contains.

    Every method raises Unreachable if the server does not answer, and MissingLibrary if the tables are gone.

    Args:
        database: Runs the transactions. The search path of its connections begins with the schema of the library.
        schema: The schema of the library.
        place: The library, for messages.
    """

    EACH: ClassVar[str] = "SELECT json_array_elements_text(CAST(? AS json))"

    def __init__(self, database: Database, schema: str, place: str) -> None:
        self._database, self._schema, self._place = database, schema, place
        self._id: str | None = None  # of the library when `version` was last called

    def version(self) -> int:
        """Return the number of changes. It is compared only for equality, so a new library may have a lower one."""

        def work(connection: Connection) -> tuple[str | None, int]:
            library_id, changes = tables.read(connection, self._schema, self._place, "settings->>'id', changes")
            return library_id, int(changes)

        library_id, changes = self._database.run(work)
        if library_id is None:
            raise tables.missing(self._place)
        if self._id is not None and library_id != self._id:
            self.times_replaced += 1
        self._id = library_id
        return self.times_replaced << 48 | changes

    def close(self) -> None:
        """Do nothing: the connections belong to the storage."""

    def _put(self, file: FoundFile, video_id: str | None, reason: str | None = None) -> Statement:
        statement, values = super()._put(file, video_id, reason)
        # A file that is recorded is read: the processes that wait for it may go on.
        done = "WITH done AS (DELETE FROM work WHERE path = ? RETURNING path)"
        return f"{done} {statement}", [(each[0], *each) for each in values]

    def _rows(self, make: Callable[..., T], statement: str, *values: object) -> list[T]:
        def work(connection: Connection) -> list[tuple[Any, ...]]:
            return connection.execute(_translated(statement), _stored(values)).fetchall()

        return [make(*row) for row in self._database.run(work)]

    def _write(self, statements: Iterable[Statement]) -> None:
        prepared = [(_translated(statement), [_stored(each) for each in values]) for statement, values in statements]

        def work(connection: Connection) -> None:
            for statement, values in prepared:
                if values:
                    connection.cursor().executemany(statement, values)
            # Last, so that other processes wait only for the commit.
            connection.execute("UPDATE library SET changes = changes + 1")

        self._database.run(work)


def _translated(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


def _stored(values: Iterable[object]) -> list[object]:
    """Return values that PostgreSQL accepts: texts without NUL and without bytes that are not UTF-8."""
    return [
        value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "backslashreplace").decode()
        if isinstance(value, str)
        else value
        for value in values
    ]
