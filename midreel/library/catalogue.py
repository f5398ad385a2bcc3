"""The catalogue of a library in a folder: a SQLite database of its records."""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from midreel.errors import BadLibrary, MissingLibrary
from midreel.io.files import SqliteFile, new_sqlite, sqlite_errors
from midreel.library.records import File, Statement, Video, as_utf8
from midreel.library.subtitle_rows import SubtitleRows

__all__ = ["Catalogue", "File", "Video", "as_utf8"]

NAME = "catalogue.sqlite"
FORMAT = 2
_TIMEOUT = 30  # seconds to wait for the transaction of another process, which takes milliseconds

_SCHEMA = """
CREATE TABLE videos (
    id TEXT PRIMARY KEY,            -- a hash of the content
    duration REAL NOT NULL,         -- seconds
    num_frames INTEGER NOT NULL,    -- in the feature store
    date REAL NOT NULL              -- seconds since 1970; only used if the video has no files
) WITHOUT ROWID;
CREATE TABLE files (
    path BLOB PRIMARY KEY,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL,      -- nanoseconds since 1970
    video_id TEXT,                  -- NULL if the file is in quarantine
    reason TEXT NOT NULL            -- why it is in quarantine, or which part of the video is unreadable
) WITHOUT ROWID;
CREATE INDEX file_of_video ON files (video_id);
CREATE TABLE tags (video_id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (video_id, tag)) WITHOUT ROWID;
CREATE TABLE places (path BLOB PRIMARY KEY) WITHOUT ROWID;
"""

T = TypeVar("T")


class Catalogue(SubtitleRows):
    """The open catalogue of a library in a folder. See `Records` for what it contains.

    One process writes. Any number of processes read, and each read sees the last commit.

    Args:
        folder: The folder of the library.
        mode: "create" makes an empty catalogue, "write" opens one for writing, "read" for reading.

    Attributes:
        path: The file.
        times_replaced: How often `version` found another file at this path.

    Raises:
        MissingLibrary: The file does not exist.
        BadLibrary: The file is damaged, or of a newer format. So may every other method raise it.
        Locked: Another process did not finish its transaction in time.
        Unwritable: The disk is full, or the file is read-only.
    """

    EACH: ClassVar[str] = "SELECT value FROM json_each(?)"

    def __init__(self, folder: Path, *, mode: Literal["create", "write", "read"] = "read") -> None:
        self.path, self.times_replaced = folder / NAME, 0
        with _sqlite_errors(self.path):
            if mode == "create":
                with new_sqlite(self.path) as database:
                    database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
            if not self.path.is_file():
                raise self._missing()
            self._file = SqliteFile(self.path, read_only=mode == "read", patience=_TIMEOUT)
        try:
            self._check_format(upgrade=mode != "read")
        except BaseException:
            self.close()
            raise

    def _check_format(self, *, upgrade: bool) -> None:
        found = self._one("PRAGMA user_version")
        if found == 1 and upgrade:  # format 1 has one more column, which is unused
            with _sqlite_errors(self.path):
                statements = f"ALTER TABLE videos DROP COLUMN num_damaged; PRAGMA user_version = {FORMAT};"
                self._database.executescript(f"BEGIN IMMEDIATE; {statements} COMMIT;")
        elif found > FORMAT:
            raise BadLibrary(f"{self.path} has format {found}, expected {FORMAT}. Upgrade midreel.")
        elif found < 1:  # SQLite reads an empty file as a database of version 0
            raise BadLibrary(f"{self.path} is damaged, expected a catalogue. {_remedy(self.path)}")

    def _missing(self) -> MissingLibrary:
        return MissingLibrary(f"{self.path} does not exist, expected a file. {_remedy(self.path)}")

    @property
    def _database(self) -> sqlite3.Connection:
        return self._file.connection

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def version(self) -> int:
        """Return a number that changes when another connection has committed, or the file was replaced.

        Raises:
            MissingLibrary: The file does not exist any more.
        """
        with _sqlite_errors(self.path):
            try:
                is_replaced = self._file.reopen_if_replaced()
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._missing() from error
            except OSError as error:
                raise BadLibrary(
                    f"{self.path} cannot be read ({error.strerror}). Check its disk and its permissions."
                ) from error
            if is_replaced:
                self._check_format(upgrade=False)
                self.times_replaced += 1
            times_opened, commits = self._file.version()
        return times_opened << 32 | commits

    def _write(self, statements: Iterable[Statement]) -> None:
        with _sqlite_errors(self.path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in statements:
                    for each in values:
                        self._database.execute(statement, each)  # executemany cannot create tables
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _rows(self, make: Callable[..., T], statement: str, *values: object) -> list[T]:
        with _sqlite_errors(self.path):
            return [make(*row) for row in self._file.rows(statement, values)]


def _sqlite_errors(path: Path) -> AbstractContextManager[None]:
    """Translate errors of SQLite into errors of midreel."""
    return sqlite_errors(path, _remedy(path), damaged=BadLibrary)


def _remedy(path: Path) -> str:
    return (
        f"Restore it from a backup. Or move it and {path.name}-wal away and run: midreel index VIDEOS --library "
        f"{path.parent} (reuses the stored features, loses the tags)"
    )
