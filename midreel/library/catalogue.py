"""The catalogue of a library: a SQLite database of its files, videos, tags and places.

A video is identified by its content. A copied video has several files; a moved one keeps its row and gets another file.
A file without a video is in quarantine: it could not be read. A place is a file or folder that the user indexed.

SQLite stores text as UTF-8, so paths are stored as bytes: a file name may be any bytes.
"""

import json
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar

from midreel.errors import BadLibrary, MissingLibrary
from midreel.io.files import SqliteFile, new_sqlite, sqlite_errors
from midreel.library import subtitle_rows
from midreel.library.filters import Filter
from midreel.library.scan import FoundFile
from midreel.library.subtitle_rows import Spoken
from midreel.media.subtitles import Line

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

# The date of a video is the date of its newest file.
_VIDEOS = """SELECT id, duration, num_frames,
    coalesce((SELECT max(modified) / 1e9 FROM files WHERE video_id = videos.id), date) FROM videos"""
_FILES = "SELECT path, size, modified, video_id, reason FROM files"
_ANY = Filter()
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Video:
    """A video: its content hash, length in seconds, number of stored frames, and date in seconds since 1970."""

    id: str
    duration: float
    num_frames: int
    date: float = 0.0


@dataclass(frozen=True, kw_only=True)
class File:
    """A file as a run read it.

    Attributes:
        path: The absolute path.
        size: Bytes.
        modified: The modification time, in nanoseconds since 1970.
        video_id: The video in the file; None if the file is in quarantine.
        reason: Why the file is in quarantine, or which part of the video is unreadable.
    """

    path: Path
    size: int
    modified: int
    video_id: str | None
    reason: str = ""

    def is_still(self, found: FoundFile) -> bool:
        """Return whether size and modification time are unchanged."""
        return (self.size, self.modified) == (found.size, found.modified)


class Catalogue:
    """The open catalogue of a library. Each method that writes is one transaction, and is durable when it returns.

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
            with self._transaction():
                self._database.execute("ALTER TABLE videos DROP COLUMN num_damaged")
                self._database.execute(f"PRAGMA user_version = {FORMAT}")
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

    # ------------------------------------------------------------ read

    def __len__(self) -> int:
        """Return the number of videos."""
        return int(self._one("SELECT count(*) FROM videos"))

    def video_ids(self) -> set[str]:
        """Return the ids of all videos."""
        return set(self._rows(_text, "SELECT id FROM videos"))

    def video(self, video_id: str) -> Video | None:
        """Return a video; None if the catalogue does not list it."""
        return next(iter(self._rows(_video, f"{_VIDEOS} WHERE id = ?", video_id)), None)

    def videos(self) -> Iterator[Video]:
        """Return all videos, in the order of their ids."""
        return iter(self._rows(_video, f"{_VIDEOS} ORDER BY id"))

    def files(self) -> dict[Path, File]:
        """Return all files, including quarantined ones, by path."""
        return {file.path: file for file in self._rows(_file, f"{_FILES} ORDER BY path")}

    def paths(self, video_id: str, wanted: Filter = _ANY) -> list[Path]:
        """Return the paths of a video's files, sorted; first the files that a filter allows."""
        condition, values = _file_condition(wanted)
        statement = f"SELECT path FROM files WHERE video_id = ? ORDER BY NOT ({condition}), path"
        return self._rows(_path, statement, video_id, *values)

    def with_paths(self, video_ids: Iterable[str], wanted: Filter = _ANY) -> dict[str, tuple[Video, tuple[Path, ...]]]:
        """Return the videos with these ids that have files, each with what `paths` returns, by one statement."""
        condition, values = _file_condition(wanted)
        statement = f"""SELECT id, duration, num_frames, modified, path, {condition}
            FROM videos JOIN files ON video_id = id WHERE id IN (SELECT value FROM json_each(?))
            ORDER BY id, 6 DESC, path"""
        rows = self._rows(_video_and_file, statement, *values, json.dumps(list(video_ids)))
        found: dict[str, tuple[Video, tuple[Path, ...]]] = {}
        for _, group in groupby(rows, key=lambda row: row[0].id):
            files = list(group)
            newest = max((video for video, _ in files), key=lambda video: video.date)
            found[newest.id] = newest, tuple(path for _, path in files)
        return found

    def files_of(self, video_id: str) -> list[File]:
        """Return the files of a video, sorted by path."""
        return self._rows(_file, f"{_FILES} WHERE video_id = ? ORDER BY path", video_id)

    def video_at(self, path: Path) -> Video | None:
        """Return the video in a file; None if the catalogue knows none there."""
        ids = self._rows(_text, "SELECT video_id FROM files WHERE path = ? AND video_id NOT NULL", os.fsencode(path))
        return next(map(self.video, ids), None)

    def quarantine(self) -> dict[Path, str]:
        """Return the quarantined files, with the reason."""
        return {file.path: file.reason for file in self._rows(_file, f"{_FILES} WHERE video_id IS NULL ORDER BY path")}

    def damaged(self) -> dict[Path, str]:
        """Return the indexed files that have an unreadable part, with a description of it."""
        files = self._rows(_file, f"{_FILES} WHERE video_id NOT NULL AND reason <> '' ORDER BY path")
        return {file.path: file.reason for file in files}

    def damage_of(self, video_id: str) -> str:
        """Return which part of a video is unreadable; empty if none. It is the same for all files of the video."""
        return self._rows(_text, "SELECT coalesce(max(reason), '') FROM files WHERE video_id = ?", video_id)[0]

    def places(self) -> list[Path]:
        """Return the files and folders to scan when the user names none: every place indexed so far."""
        return self._rows(_path, "SELECT path FROM places ORDER BY path")

    def tags(self) -> dict[str, int]:
        """Return the number of videos that have each tag."""
        tags = "SELECT tag, count(*) FROM tags GROUP BY tag ORDER BY tag"
        return dict(self._rows(lambda tag, count: (_text(tag), count), tags))

    def tags_of(self, video_id: str) -> list[str]:
        """Return the tags of a video, sorted."""
        return self._rows(_text, "SELECT tag FROM tags WHERE video_id = ? ORDER BY tag", video_id)

    def seconds(self) -> float:
        """Return the total length of all videos."""
        return float(self._one("SELECT total(duration) FROM videos"))

    def matching(self, wanted: Filter) -> set[str]:
        """Return the ids of the videos that a filter allows. Videos without files never match."""
        of_file, values = _file_condition(wanted)
        conditions = [f"id IN (SELECT video_id FROM files WHERE {of_file})"]
        for tag in wanted.tags:
            conditions.append("id IN (SELECT video_id FROM tags WHERE tag = ?)")
            values.append(tag)
        if wanted.videos is not None:  # as one JSON value, because SQLite limits the number of values
            conditions.append("id IN (SELECT value FROM json_each(?))")
            values.append(json.dumps(wanted.videos))
        for condition, value in (("duration >= ?", wanted.longer), ("duration <= ?", wanted.shorter)):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        return set(self._rows(_text, f"SELECT id FROM videos WHERE {' AND '.join(conditions)}", *values))

    def stamps(self) -> dict[str, str]:
        """Return which subtitle files were read for each video that has lines, or had some."""
        return dict(self._rows(_pair, "SELECT video_id, stamp FROM stamps")) if self.has_spoken() else {}

    def has_spoken(self) -> bool:
        """Return whether any video of the library has, or had, subtitles."""
        return bool(self._one("SELECT count(*) FROM sqlite_master WHERE name = 'stamps'"))

    def spoken(self, match: str, among: Iterable[str] | None, *, most: int, mark: str) -> list[tuple[str, Line, str]]:
        """Return the lines that match an expression of FTS5, best first: the video, the line, and its marked text.

        Args:
            match: The expression.
            among: Search only these videos. Default: all.
            most: The number of lines, at most.
            mark: What marks the start of each word that matches.
        """
        if not self.has_spoken():
            return []
        only = "" if among is None else "AND video_id IN (SELECT value FROM json_each(?))"
        statement = f"""SELECT video_id, start, end, lines.text, highlight(spoken, 0, ?, '')
            FROM spoken JOIN lines ON number = spoken.rowid
            WHERE spoken MATCH ? AND video_id IN (SELECT id FROM videos) {only} ORDER BY bm25(spoken), number LIMIT ?"""
        values = [] if among is None else [json.dumps(sorted(among))]
        return self._rows(_spoken, statement, mark, match, *values, most)

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

    # ------------------------------------------------------------ write

    def add(
        self,
        video: Video,
        files: Iterable[FoundFile],
        tags: Iterable[str] = (),
        damage: str = "",
        spoken: Spoken | None = None,
    ) -> None:
        """Add or replace a video, and add files and tags to it.

        Args:
            video: The video.
            files: Files of the video. Its other files are kept.
            tags: Tags of the video. Its other tags are kept.
            damage: Which part of the video is unreadable; empty if none.
            spoken: What is said in it. Default: what the catalogue has is kept.
        """
        with self._transaction():
            values = (video.id, video.duration, video.num_frames, video.date)
            self._database.execute("INSERT OR REPLACE INTO videos VALUES (?, ?, ?, ?)", values)
            for file in files:
                self._put(file, video.id, damage)
            self._database.execute("UPDATE files SET reason = ? WHERE video_id = ?", (as_utf8(damage), video.id))
            self._put_tags([video.id], tags)
            if spoken is not None:
                subtitle_rows.put(self._database, video.id, spoken)

    def put_spoken(self, video_id: str, spoken: Spoken) -> None:
        """Replace what is said in a video."""
        with self._transaction():
            subtitle_rows.put(self._database, video_id, spoken)

    def place(self, file: FoundFile, video_id: str, tags: Iterable[str] = ()) -> None:
        """Add a file, and tags, to a video that the catalogue lists.

        Args:
            file: The file. A row with the same path is replaced.
            video_id: The id of the video.
            tags: Tags to add. The video keeps its other tags.
        """
        with self._transaction():
            self._put(file, video_id, self.damage_of(video_id))
            self._put_tags([video_id], tags)

    def add_unreadable(self, file: FoundFile, reason: str) -> None:
        """Put a file into quarantine, with the reason."""
        with self._transaction():
            self._put(file, None, reason)

    def forget_files(self, paths: Iterable[Path]) -> None:
        """Remove files. Videos without files remain, as orphans."""
        self._for_each_path("DELETE FROM files WHERE path = ?", paths)

    def forget_videos(self, video_ids: Iterable[str]) -> None:
        """Remove videos, with their files and tags."""
        ids = [(video_id,) for video_id in video_ids]
        with self._transaction():
            for table, column in (("videos", "id"), ("files", "video_id"), ("tags", "video_id")):
                self._database.executemany(f"DELETE FROM {table} WHERE {column} = ?", ids)
            subtitle_rows.drop(self._database, [video_id for (video_id,) in ids])

    def orphans(self) -> list[str]:
        """Return the videos without files."""
        without_file = "NOT EXISTS (SELECT 1 FROM files WHERE video_id = videos.id)"
        return self._rows(_text, f"SELECT id FROM videos WHERE {without_file} ORDER BY id")

    def tag(self, video_ids: Iterable[str], tags: Iterable[str]) -> None:
        """Add tags to videos."""
        with self._transaction():
            self._put_tags(video_ids, tags)

    def remember_places(self, places: Iterable[Path]) -> None:
        """Add places to scan when the user names none."""
        self._for_each_path("INSERT OR IGNORE INTO places VALUES (?)", places)

    def forget_places(self, places: Iterable[Path]) -> None:
        """Remove places. Their files and videos remain."""
        self._for_each_path("DELETE FROM places WHERE path = ?", places)

    # ------------------------------------------------------------ SQL

    def _for_each_path(self, statement: str, paths: Iterable[Path]) -> None:
        with self._transaction():
            self._database.executemany(statement, [(os.fsencode(path),) for path in paths])

    def _put(self, file: FoundFile, video_id: str | None, reason: str) -> None:
        values = (os.fsencode(file.path), file.size, file.modified, video_id, as_utf8(reason))
        self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", values)

    def _put_tags(self, video_ids: Iterable[str], tags: Iterable[str]) -> None:
        pairs = [(video_id, tag) for tag in tags for video_id in video_ids]
        self._database.executemany("INSERT OR IGNORE INTO tags VALUES (?, ?)", pairs)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _sqlite_errors(self.path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _rows(self, make: Callable[..., T], statement: str, *values: object) -> list[T]:
        """Return each row, converted by `make`, which raises DataError if the row is damaged."""
        with _sqlite_errors(self.path):
            return [make(*row) for row in self._file.rows(statement, values)]

    def _one(self, statement: str) -> Any:
        return self._rows(lambda value: value, statement)[0]


def _sqlite_errors(path: Path) -> AbstractContextManager[None]:
    """Translate errors of SQLite into errors of midreel."""
    return sqlite_errors(path, _remedy(path), damaged=BadLibrary)


def _remedy(path: Path) -> str:
    return (
        f"Restore it from a backup. Or move it and {path.name}-wal away and run: midreel index VIDEOS --library "
        f"{path.parent} (reuses the stored features, loses the tags)"
    )


def _file_condition(wanted: Filter) -> tuple[str, list[object]]:
    """Return the condition of a filter on a row of `files`, as SQL and its values."""
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
    """Return a text with its lone surrogates escaped. They stand for bytes of file names that are not UTF-8."""
    return reason.encode("utf-8", "backslashreplace").decode()


def _path(path: object) -> Path:
    return Path(os.fsdecode(_of_kind(path, bytes)))


def _text(text: object) -> str:
    return _of_kind(text, str)


def _video(video_id: object, duration: object, num_frames: object, date: object) -> Video:
    video = Video(
        id=_text(video_id),
        duration=_of_kind(duration, float),
        num_frames=_of_kind(num_frames, int),
        date=_of_kind(date, float),
    )
    if not (0 < video.duration < math.inf and video.num_frames > 0):
        raise sqlite3.DataError(f"found a video of {video.num_frames} frames and {video.duration} s")
    return video


def _video_and_file(
    video_id: object, duration: object, num_frames: object, modified: object, path: object, _: object
) -> tuple[Video, Path]:
    return _video(video_id, duration, num_frames, _of_kind(modified, int) / 1e9), _path(path)


def _pair(key: object, value: object) -> tuple[str, str]:
    return _text(key), _text(value)


def _spoken(video_id: object, start: object, end: object, text: object, marked: object) -> tuple[str, Line, str]:
    line = Line(_of_kind(start, float), _of_kind(end, float), _text(text))
    return _text(video_id), line, _text(marked)


def _file(path: object, size: object, modified: object, video_id: object, reason: object) -> File:
    return File(
        path=_path(path),
        size=_of_kind(size, int),
        modified=_of_kind(modified, int),
        video_id=None if video_id is None else _text(video_id),
        reason=_text(reason),
    )


def _of_kind(value: object, kind: type[T]) -> T:
    """Return the value, or raise DataError if it has another type: SQLite stores any type in any column."""
    if not isinstance(value, kind):
        raise sqlite3.DataError(f"found {value!r:.40}, expected a {kind.__name__}")
    return value
