"""What is known of files and videos, in SQLite.

A video is what a file holds; a file is a place where it lies. One that was moved is the same video in another place,
one that was copied has two. A file that holds no video is in quarantine, with the reason. Paths are kept as bytes.
"""

import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from midreel.errors import BadLibrary, LibraryBusy, MissingLibrary, Unwritable
from midreel.io.files import SqliteFile, new_sqlite, sqlite_errors
from midreel.library.filters import Filter
from midreel.library.scan import FoundFile

NAME = "catalogue.sqlite"
FORMAT = 2
_PATIENCE = 30  # seconds to wait for another process's transaction, which takes milliseconds

_SCHEMA = """
CREATE TABLE videos (
    id TEXT PRIMARY KEY,            -- of its content
    duration REAL NOT NULL,         -- seconds
    num_frames INTEGER NOT NULL,    -- in the feature store
    date REAL NOT NULL              -- seconds since 1970, of a video without files; else its latest file's counts
) WITHOUT ROWID;
CREATE TABLE files (
    path BLOB PRIMARY KEY,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL,      -- nanoseconds since 1970
    video_id TEXT,                  -- none where the file holds no video
    reason TEXT NOT NULL            -- why not, or what of the video could not be read
) WITHOUT ROWID;
CREATE INDEX file_of_video ON files (video_id);
CREATE TABLE tags (video_id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (video_id, tag)) WITHOUT ROWID;
CREATE TABLE places (path BLOB PRIMARY KEY) WITHOUT ROWID;
"""


_VIDEOS = """SELECT id, duration, num_frames,
    coalesce((SELECT max(modified) / 1e9 FROM files WHERE video_id = videos.id), date) FROM videos"""
_FILES = "SELECT path, size, modified, video_id, reason FROM files"
_ANY = Filter()
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Video:
    id: str
    duration: float
    num_frames: int
    date: float = 0.0


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that was looked into, and what it held."""

    path: Path
    size: int
    modified: int
    video_id: str | None
    reason: str = ""

    def is_still(self, found: FoundFile) -> bool:
        """Whether nothing about it has changed, as far as a stat tells."""
        return (self.size, self.modified) == (found.size, found.modified)


class Catalogue:
    """Each method that changes something is one transaction, on disk when it returns."""

    def __init__(self, folder: Path, *, mode: Literal["create", "write", "read"] = "read") -> None:
        self.path, self.times_replaced = folder / NAME, 0
        with _speaking(self.path):
            if mode == "create":
                with new_sqlite(self.path) as database:
                    database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
            if not self.path.is_file():
                raise self._missing()
            self._file = SqliteFile(self.path, read_only=mode == "read", patience=_PATIENCE)
        try:
            self._check_format(upgrade=mode != "read")
        except BaseException:
            self.close()
            raise

    def _check_format(self, *, upgrade: bool) -> None:
        found = self._one("PRAGMA user_version")
        if found == 1 and upgrade:  # which has a column more, that nobody reads
            with self._transaction():
                self._database.execute("ALTER TABLE videos DROP COLUMN num_damaged")
                self._database.execute(f"PRAGMA user_version = {FORMAT}")
        elif found > FORMAT:
            raise BadLibrary(f"{self.path} is of format {found}, expected {FORMAT}. Use the midreel that made it.")
        elif found < 1:  # what an empty file says
            raise BadLibrary(f"{self.path} is no catalogue, or damaged. {_remedy(self.path)}")

    def _missing(self) -> MissingLibrary:
        return MissingLibrary(f"{self.path} does not exist, expected a file. {_remedy(self.path)}")

    @property
    def _database(self) -> sqlite3.Connection:
        return self._file.connection

    def close(self) -> None:
        self._file.close()

    # ------------------------------------------------------------ what is there

    def __len__(self) -> int:
        return int(self._one("SELECT count(*) FROM videos"))

    def video_ids(self) -> set[str]:
        return set(self._rows(_word, "SELECT id FROM videos"))

    def video(self, video_id: str) -> Video | None:
        return next(iter(self._rows(_video, f"{_VIDEOS} WHERE id = ?", video_id)), None)

    def videos(self) -> Iterator[Video]:
        return iter(self._rows(_video, f"{_VIDEOS} ORDER BY id"))

    def files(self) -> dict[Path, File]:
        return {file.path: file for file in self._rows(_file, f"{_FILES} ORDER BY path")}

    def paths(self, video_id: str, wanted: Filter = _ANY) -> list[Path]:
        """Where it lies: first the files that a filter lets through."""
        condition, values = _of_file(wanted)
        statement = f"SELECT path FROM files WHERE video_id = ? ORDER BY NOT ({condition}), path"
        return self._rows(_path, statement, video_id, *values)

    def files_of(self, video_id: str) -> list[File]:
        """All places where it lies."""
        return self._rows(_file, f"{_FILES} WHERE video_id = ? ORDER BY path", video_id)

    def video_at(self, path: Path) -> Video | None:
        """The video that lies there."""
        ids = self._rows(_word, "SELECT video_id FROM files WHERE path = ? AND video_id NOT NULL", os.fsencode(path))
        return next(map(self.video, ids), None)

    def quarantine(self) -> dict[Path, str]:
        """The files that hold no video, and why."""
        return {file.path: file.reason for file in self._rows(_file, f"{_FILES} WHERE video_id IS NULL ORDER BY path")}

    def damaged(self) -> dict[Path, str]:
        """The files of which something could not be read, and what."""
        files = self._rows(_file, f"{_FILES} WHERE video_id NOT NULL AND reason <> '' ORDER BY path")
        return {file.path: file.reason for file in files}

    def damage_of(self, video_id: str) -> str:
        """What of the video could not be read, which is the same for all its files."""
        return self._rows(_word, "SELECT coalesce(max(reason), '') FROM files WHERE video_id = ?", video_id)[0]

    def places(self) -> list[Path]:
        """What was ever asked to be indexed, to be looked through again."""
        return self._rows(_path, "SELECT path FROM places ORDER BY path")

    def tags(self) -> dict[str, int]:
        """Every tag, and how many videos have it."""
        tags = "SELECT tag, count(*) FROM tags GROUP BY tag ORDER BY tag"
        return dict(self._rows(lambda tag, count: (_word(tag), count), tags))

    def tags_of(self, video_id: str) -> list[str]:
        return self._rows(_word, "SELECT tag FROM tags WHERE video_id = ? ORDER BY tag", video_id)

    def seconds(self) -> float:
        """How long all videos last, together."""
        return float(self._one("SELECT total(duration) FROM videos"))

    def matching(self, wanted: Filter) -> set[str]:
        """The videos that a filter lets through."""
        condition, values = _of_file(wanted)
        conditions = [f"id IN (SELECT video_id FROM files WHERE {condition})"]
        for tag in wanted.tags:
            conditions.append("id IN (SELECT video_id FROM tags WHERE tag = ?)")
            values.append(tag)
        if wanted.videos is not None:  # as one value, for SQLite takes only so many
            conditions.append("id IN (SELECT value FROM json_each(?))")
            values.append(json.dumps(wanted.videos))
        for condition, value in (("duration >= ?", wanted.longer), ("duration <= ?", wanted.shorter)):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        return set(self._rows(_word, f"SELECT id FROM videos WHERE {' AND '.join(conditions)}", *values))

    def version(self) -> int:
        """Return another number whenever another connection has changed something, or the file was replaced.

        Raises MissingLibrary if no library is there.
        """
        with _speaking(self.path):
            try:
                is_replaced = self._file.reopen_if_replaced()
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._missing() from error
            except OSError as error:
                raise BadLibrary(
                    f"{self.path} cannot be read ({error.strerror}), expected the catalogue of a library; check its "
                    f"disk and its permissions"
                ) from error
            if is_replaced:
                self._check_format(upgrade=False)
                self.times_replaced += 1
            times_opened, commits = self._file.version()
        return times_opened << 32 | commits

    # ------------------------------------------------------------ what changes

    def add(self, video: Video, files: Iterable[FoundFile], tags: Iterable[str] = (), damage: str = "") -> None:
        """A video and where it lies, all at once. `damage` is what of it could not be read."""
        with self._transaction():
            self._put_video(video)
            for file in files:
                self._put(file, video.id, damage)
            self._database.execute("UPDATE files SET reason = ? WHERE video_id = ?", (as_utf8(damage), video.id))
            self._put_tags([video.id], tags)

    def place(self, file: FoundFile, video_id: str, tags: Iterable[str] = ()) -> None:
        """A file of a video that is known."""
        with self._transaction():
            self._put(file, video_id, self.damage_of(video_id))
            self._put_tags([video_id], tags)

    def add_unreadable(self, file: FoundFile, reason: str) -> None:
        """Put a file into quarantine."""
        with self._transaction():
            self._put(file, None, reason)

    def forget_files(self, paths: Iterable[Path]) -> None:
        with self._transaction():
            self._database.executemany("DELETE FROM files WHERE path = ?", [(os.fsencode(path),) for path in paths])

    def forget_videos(self, video_ids: Iterable[str]) -> None:
        """And all files of them."""
        ids = [(video_id,) for video_id in video_ids]
        with self._transaction():
            for table, column in (("videos", "id"), ("files", "video_id"), ("tags", "video_id")):
                self._database.executemany(f"DELETE FROM {table} WHERE {column} = ?", ids)

    def orphans(self) -> list[str]:
        """Videos that lie nowhere any more."""
        without_file = "NOT EXISTS (SELECT 1 FROM files WHERE video_id = videos.id)"
        return self._rows(_word, f"SELECT id FROM videos WHERE {without_file} ORDER BY id")

    def tag(self, video_ids: Iterable[str], tags: Iterable[str]) -> None:
        with self._transaction():
            self._put_tags(video_ids, tags)

    def remember_places(self, places: Iterable[Path]) -> None:
        with self._transaction():
            self._database.executemany(
                "INSERT OR IGNORE INTO places VALUES (?)", [(os.fsencode(place),) for place in places]
            )

    def forget_places(self, places: Iterable[Path]) -> None:
        with self._transaction():
            self._database.executemany("DELETE FROM places WHERE path = ?", [(os.fsencode(place),) for place in places])

    # ------------------------------------------------------------ SQL

    def _put_video(self, video: Video) -> None:
        values = (video.id, video.duration, video.num_frames, video.date)
        self._database.execute("INSERT OR REPLACE INTO videos VALUES (?, ?, ?, ?)", values)

    def _put(self, file: FoundFile, video_id: str | None, reason: str) -> None:
        values = (os.fsencode(file.path), file.size, file.modified, video_id, as_utf8(reason))
        self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", values)

    def _put_tags(self, video_ids: Iterable[str], tags: Iterable[str]) -> None:
        pairs = [(video_id, tag) for tag in tags for video_id in video_ids]
        self._database.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", pairs)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _speaking(self.path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _rows(self, make: Callable[..., T], statement: str, *values: object) -> list[T]:
        """What `make` makes of each row; it raises DataError for a row that midreel cannot have written."""
        with _speaking(self.path):
            return [make(*row) for row in self._file.rows(statement, values)]

    def _one(self, statement: str) -> Any:
        return self._rows(lambda value: value, statement)[0]


def _speaking(path: Path) -> AbstractContextManager[None]:
    """Turn errors of SQLite into midreel's."""
    return sqlite_errors(path, _remedy(path), damaged=BadLibrary, busy=LibraryBusy, unwritable=Unwritable)


def _remedy(path: Path) -> str:
    return (
        f"Restore it from a backup. Or move it and {path.name}-wal away and run midreel index VIDEOS --library "
        f"{path.parent}: stored features are used again, but tags are lost."
    )


def _of_file(wanted: Filter) -> tuple[str, list[object]]:
    """What a filter asks of a file, as SQL and the values in it."""
    conditions, values = ["TRUE"], list[object]()
    if wanted.folders:
        prefixes = [_prefix(folder) for folder in wanted.folders]
        either = " OR ".join("path = ? OR substr(path, 1, ?) = ?" for _ in prefixes)
        conditions.append(f"({either})")
        values += [value for prefix in prefixes for value in (prefix[:-1], len(prefix), prefix)]
    for condition, value in (("modified / 1e9 >= ?", wanted.after), ("modified / 1e9 < ?", wanted.before)):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    return " AND ".join(conditions), values


def _prefix(folder: Path) -> bytes:
    return os.fsencode(folder).rstrip(b"/") + b"/"


def as_utf8(reason: str) -> str:
    """A reason as it is stored: it may name a file whose name is other bytes, which SQLite does not take."""
    return reason.encode("utf-8", "backslashreplace").decode()


def _path(path: object) -> Path:
    return Path(os.fsdecode(_of_kind(path, bytes)))


def _word(word: object) -> str:
    return _of_kind(word, str)


def _video(video_id: object, duration: object, num_frames: object, date: object) -> Video:
    video = Video(
        id=_word(video_id),
        duration=_of_kind(duration, float),
        num_frames=_of_kind(num_frames, int),
        date=_of_kind(date, float),
    )
    if not (0 < video.duration < math.inf and video.num_frames > 0):
        raise sqlite3.DataError(f"a video of {video.num_frames} frames and {video.duration} s")
    return video


def _file(path: object, size: object, modified: object, video_id: object, reason: object) -> File:
    return File(
        path=_path(path),
        size=_of_kind(size, int),
        modified=_of_kind(modified, int),
        video_id=None if video_id is None else _word(video_id),
        reason=_word(reason),
    )


def _of_kind(value: object, kind: type[T]) -> T:
    """SQLite stores any value in any column, and has no checksums."""
    if not isinstance(value, kind):
        raise sqlite3.DataError(f"{value!r:.40} in place of a {kind.__name__}")
    return value
