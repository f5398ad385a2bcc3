"""The book of an index: which videos it holds, and where their rows lie. The only file of this room that uses SQLite.

A row per video, in the order in which they were added, and one row of state. SQLite notices damage to its own
structure; damage to what we wrote is noticed by a checksum in each row, and rows that vanish by the state, which
knows how many there are and the sum of their checksums.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from midreel.errors import BadIndex
from midreel.io.files import SqliteFile, new_sqlite, sqlite_errors

NAME = "manifest.sqlite"
APPLICATION = 0x6D64726C  # SQLite's place for a number that tells whose file it is
FORMAT = 1
_AT_A_TIME = 2**11  # rows that are read
REBUILD = "build the index again from the features: midreel reindex"
_TABLES = """
CREATE TABLE state (one INTEGER PRIMARY KEY, text TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE videos (number INTEGER PRIMARY KEY, name BLOB NOT NULL, starts BLOB NOT NULL, counts BLOB NOT NULL,
                     checksums BLOB NOT NULL, scales BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


class Row(NamedTuple):
    """A video, its arrays as bytes: thousands of rows are joined and read at once."""

    number: int
    name: bytes
    starts: bytes  # int64 [planes]: where its rows begin in each; plane 0 is the coarse one
    counts: bytes  # uint32 [windows, branches]: how many rows each window has in the plane of each branch
    checksums: bytes  # uint32 [planes]: of its rows in each
    scales: bytes  # float32: of its rows in plane 0
    checksum: int  # of all of the above

    @property
    def video_id(self) -> str:
        return self.name.decode("utf-8", "surrogatepass")

    def signed(self) -> "Row":
        return self._replace(checksum=_checksum(self))

    def is_whole(self) -> bool:
        try:
            return _checksum(self) == self.checksum
        except TypeError:  # a part is of another kind
            return False


@dataclass(frozen=True, kw_only=True)
class State:
    """What an index is made for, and what its book must add up to."""

    branch_weights: dict[str, float]
    width: int
    coarse: int  # rows of plane 0 per window
    scanned: str | None = None  # the branch that plane 0 is made of; known with the first video
    volume: int = 1  # which files hold the planes
    ends: tuple[int, ...]  # rows in use of each plane
    videos: int = 0
    sum: int = 0  # of the rows' checksums
    next_number: int = 1
    owner: str = ""  # what the index belongs to

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> "State":
        values = json.loads(text)
        return cls(**values | {"ends": tuple(values["ends"])})


class Manifest:
    """The open book. One process writes; others read what is committed, and see cheaply whether that has changed."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        if not path.is_file():
            raise BadIndex(f"{path.parent} holds no index (no {path.name}); create one, or name the right folder")
        with self._plainly():
            self._file = SqliteFile(path, read_only=read_only)
            try:
                with self._file.snapshot():
                    self._check_version()
                    self.state = self._read_state()
            except BaseException:
                self._file.close()
                raise

    @staticmethod
    def create(path: Path, state: State) -> None:
        with _errors_of(path), new_sqlite(path) as connection:
            connection.executescript(_TABLES)
            _put_state(connection, state)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")

    def version(self) -> tuple[int, int]:
        """What changes when another process has written."""
        with self._plainly():
            return self._file.version()

    @contextmanager
    def snapshot(self) -> Iterator[State]:
        """Several reads that see one moment."""
        with self._plainly(), self._file.snapshot():
            self.state = self._read_state()
            yield self.state

    def rows(self, after: int = 0) -> Iterator[list[Row]]:
        """The videos whose number is greater than `after`, in order, some at a time: Python would look through all that
        are in memory, again and again, for something to throw away. Some may not be whole: ask them."""
        with self._plainly():
            found = self._connection.execute("SELECT * FROM videos WHERE number > ? ORDER BY number", (after,))
            while rows := list(map(Row._make, found.fetchmany(_AT_A_TIME))):
                yield [row if isinstance(row.checksum, int) else row._replace(checksum=0) for row in rows]

    def change(
        self,
        *,
        drop: Mapping[int, int] | None = None,
        add: Sequence[Row] = (),
        ends: Sequence[int] | None = None,
        scanned: str | None = None,
    ) -> None:
        """Drops videos (checksums by number) and adds some, all of it or nothing, on the disk when it returns."""
        drop = drop or {}
        state = replace(
            self.state,
            scanned=scanned or self.state.scanned,
            ends=self.state.ends if ends is None else tuple(ends),
            videos=self.state.videos + len(add) - len(drop),
            sum=self.state.sum + sum(row.checksum for row in add) - sum(drop.values()),
            next_number=max([self.state.next_number, *(row.number + 1 for row in add)]),
        )
        self._write(state, list(drop), add)

    def replace_all(self, rows: Sequence[Row], *, volume: int, ends: Sequence[int]) -> None:
        """Says that these videos, and no others, lie in another volume."""
        total = sum(row.checksum for row in rows)
        self._write(replace(self.state, volume=volume, ends=tuple(ends), videos=len(rows), sum=total), None, rows)

    def close(self) -> None:
        self._file.close()

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._file.connection

    def _write(self, state: State, drop: list[int] | None, rows: Sequence[Row]) -> None:
        with self._plainly():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if drop is None:
                    self._connection.execute("DELETE FROM videos")
                else:
                    self._connection.executemany("DELETE FROM videos WHERE number = ?", [(number,) for number in drop])
                self._connection.executemany("INSERT INTO videos VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
                _put_state(self._connection, state)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        self.state = state

    def _read_state(self) -> State:
        row = self._connection.execute("SELECT text, checksum FROM state").fetchone()
        if row is None or not isinstance(row[0], str) or zlib.crc32(row[0].encode()) != row[1]:
            raise BadIndex(f"{self.path} is damaged: its state does not match its checksum; {REBUILD}")
        return State.from_json(row[0])

    def _check_version(self) -> None:
        application, version = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if application != APPLICATION:
            raise BadIndex(f"{self.path} is not the book of an index, or damaged; name the right folder, or {REBUILD}")
        if version != FORMAT:
            remedy = "upgrade midreel" if version > FORMAT else REBUILD
            raise BadIndex(f"{self.path} has format {version}, expected {FORMAT}; {remedy}")

    def _plainly(self) -> AbstractContextManager[None]:
        return _errors_of(self.path)


def _errors_of(path: Path) -> AbstractContextManager[None]:
    """Turn errors of SQLite into BadIndex."""
    return sqlite_errors(path, f"{REBUILD[0].upper()}{REBUILD[1:]}.", damaged=BadIndex)


def _put_state(connection: sqlite3.Connection, state: State) -> None:
    text = state.to_json()
    connection.execute("INSERT OR REPLACE INTO state VALUES (0, ?, ?)", (text, zlib.crc32(text.encode())))


def _checksum(row: Row) -> int:
    return zlib.crc32(b"".join(row[1:6]), row.number)
