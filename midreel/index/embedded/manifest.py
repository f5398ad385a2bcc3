"""The manifest of an index: its videos and the positions of their rows, in SQLite.

See `midreel.index.embedded.storage` for the format. This is the only module of the package that uses SQLite.
"""

import json
import operator
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from midreel.errors import BadIndex
from midreel.io.files import SqliteFile, new_sqlite, sqlite_errors
from midreel.types import Similarity

NAME = "manifest.sqlite"
APPLICATION = 0x6D64726C  # SQLite's application_id, which identifies the kind of file
FORMAT = 1
FORMAT_WITH_SIMILARITIES = 2  # of indexes that have some; versions of midreel without them ask for an upgrade
REBUILD = "Rebuild the index from the features: midreel reindex"
_BATCH = 2**11  # rows read at a time
_TABLES = """
CREATE TABLE state (one INTEGER PRIMARY KEY, text TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE videos (number INTEGER PRIMARY KEY, name BLOB NOT NULL, starts BLOB NOT NULL, counts BLOB NOT NULL,
                     checksums BLOB NOT NULL, scales BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


class Row(NamedTuple):
    """The row of a video. Arrays are bytes, so that thousands of rows can be joined and decoded at once.

    Attributes:
        number: Counts all videos ever added.
        name: The id of the video, in UTF-8 with surrogates.
        starts: int64 [files]: the first row of the video in each vector file.
        counts: uint32 [windows, branches]: the number of tokens of each window in each branch.
        checksums: uint32 [files]: the CRC-32 of the video's rows in each vector file.
        scales: float32: the scales of its rows in the coarse file.
        checksum: The CRC-32 of all of the above.
    """

    number: int
    name: bytes
    starts: bytes
    counts: bytes
    checksums: bytes
    scales: bytes
    checksum: int

    @property
    def video_id(self) -> str:
        """The id of the video."""
        return self.name.decode("utf-8", "surrogatepass")

    def signed(self) -> "Row":
        """Return the row with its checksum set."""
        return self._replace(checksum=_checksum(self))

    def is_intact(self) -> bool:
        """Return whether the row matches its checksum."""
        try:
            return _checksum(self) == self.checksum
        except TypeError:  # damage has changed the type of a column
            return False


def only_intact(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows that match their checksums. All at a time, because there may be a hundred thousand."""
    try:
        sums = [zlib.crc32(b"".join(row[1:6]), row[0]) for row in rows]
    except TypeError:
        return [row for row in rows if row.is_intact()]
    if all(map(operator.eq, sums, map(operator.itemgetter(6), rows))):
        return rows
    return [row for row, checksum in zip(rows, sums, strict=True) if row.checksum == checksum]


@dataclass(frozen=True, kw_only=True)
class State:
    """The settings of an index, and the totals that its rows must add up to. The field names are part of the format.

    Attributes:
        branch_weights: The weight of each branch. Its order is the order of the token files.
        width: The width of all vectors.
        coarse: The number of coarse rows per window.
        scanned: The branch from which coarse rows are made. None before the first video.
        volume: The number of the current vector files.
        ends: The number of rows in use in each vector file.
        videos: The number of videos.
        sum: The sum of the checksums of their rows.
        next_number: The number of the next row.
        owner: What the index belongs to.
        similarities: How each branch scores that does not score by its best cosine. Absent in the JSON if empty.
    """

    branch_weights: dict[str, float]
    width: int
    coarse: int
    scanned: str | None = None
    volume: int = 1
    ends: tuple[int, ...]
    videos: int = 0
    sum: int = 0
    next_number: int = 1
    owner: str = ""
    similarities: dict[str, Similarity] = field(default_factory=dict)

    @property
    def format(self) -> int:
        """The version of the file format."""
        return FORMAT_WITH_SIMILARITIES if self.similarities else FORMAT

    def to_json(self) -> str:
        """Return the state as JSON."""
        forms = {branch: asdict(form) for branch, form in self.similarities.items()}
        others = {name: value for name, value in vars(self).items() if name != "similarities"}
        return json.dumps(others | ({"similarities": forms} if forms else {}))

    @classmethod
    def from_json(cls, text: str) -> "State":
        """Return the state that `to_json` wrote."""
        values = json.loads(text)
        forms = {branch: Similarity(**form) for branch, form in values.get("similarities", {}).items()}
        return cls(**values | {"ends": tuple(values["ends"]), "similarities": forms})


class Manifest:
    """An open manifest. One process writes. Others read its last commit, and detect new commits cheaply.

    Attributes:
        path: The SQLite file.
        state: The state at the last read or write.

    Raises:
        BadIndex: The manifest is missing or damaged, or has another format. All methods raise it.
        Locked: Another process did not finish its transaction in time.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        if not path.is_file():
            raise BadIndex(f"{path.parent} is not an index: {path.name} is missing. Check the path.")
        with self._errors():
            self._file = SqliteFile(path, read_only=read_only)
            try:
                with self._file.snapshot():
                    self._check_format()
                    self.state = self._read_state()
            except BaseException:
                self._file.close()
                raise

    @staticmethod
    def create(path: Path, state: State) -> None:
        """Write a manifest without videos."""
        with _manifest_errors(path), new_sqlite(path) as connection:
            connection.executescript(_TABLES)
            _put_state(connection, state)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {state.format}")

    def version(self) -> tuple[int, int]:
        """Return a value that changes whenever another process commits."""
        with self._errors():
            return self._file.version()

    @contextmanager
    def snapshot(self) -> Iterator[State]:
        """Read the state. All reads in the block see the same commit."""
        with self._errors(), self._file.snapshot():
            self.state = self._read_state()
            yield self.state

    def rows(self, after: int = 0) -> Iterator[list[Row]]:
        """Yield the rows with a number above `after`, in order and in batches. Some may be damaged: see `is_intact`.

        Batches keep few row objects alive. The garbage collector would scan all of them again and again.
        """
        with self._errors():
            found = self._connection.execute("SELECT * FROM videos WHERE number > ? ORDER BY number", (after,))
            # What Row._make does, without a call of Python for each row.
            while rows := [tuple.__new__(Row, row) for row in found.fetchmany(_BATCH)]:
                yield [row if isinstance(row[6], int) else row._replace(checksum=0) for row in rows]

    def change(
        self,
        *,
        drop: Mapping[int, int] | None = None,
        add: Sequence[Row] = (),
        ends: Sequence[int] | None = None,
        scanned: str | None = None,
    ) -> None:
        """Delete and insert rows in one transaction, which is durable when this returns.

        Args:
            drop: The checksums of the rows to delete, by number.
            add: The rows to insert.
            ends: The new number of rows in use in each vector file. Default: unchanged.
            scanned: The branch of the coarse rows. Default: unchanged.
        """
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
        """Replace all rows and switch to another volume in one transaction.

        Args:
            rows: The new rows.
            volume: The number of the new volume.
            ends: The number of rows in use in each of its vector files.
        """
        total = sum(row.checksum for row in rows)
        self._write(replace(self.state, volume=volume, ends=tuple(ends), videos=len(rows), sum=total), None, rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._file.connection

    def _write(self, state: State, drop: list[int] | None, rows: Sequence[Row]) -> None:
        """Delete rows (None: all), insert rows, and write the state."""
        with self._errors():
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
            raise BadIndex(f"{self.path} is damaged: its state does not match its checksum. {REBUILD}")
        return State.from_json(row[0])

    def _check_format(self) -> None:
        application, version = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if application != APPLICATION:
            raise BadIndex(f"{self.path} is not the manifest of an index, or is damaged. Check the path. {REBUILD}")
        if version not in (FORMAT, FORMAT_WITH_SIMILARITIES):
            remedy = "Upgrade midreel." if version > FORMAT else REBUILD
            raise BadIndex(f"{self.path} has format {version}, expected {FORMAT_WITH_SIMILARITIES} or less. {remedy}")

    def _errors(self) -> AbstractContextManager[None]:
        return _manifest_errors(self.path)


def _manifest_errors(path: Path) -> AbstractContextManager[None]:
    """Turn errors of SQLite into BadIndex."""
    return sqlite_errors(path, REBUILD, damaged=BadIndex)


def _put_state(connection: sqlite3.Connection, state: State) -> None:
    text = state.to_json()
    connection.execute("INSERT OR REPLACE INTO state VALUES (0, ?, ?)", (text, zlib.crc32(text.encode())))


def _checksum(row: Row) -> int:
    return zlib.crc32(b"".join(row[1:6]), row.number)
