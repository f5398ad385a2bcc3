"""The records of a library: files, videos, tags, places and subtitles, as queries that every SQL database answers.

A video is identified by its content. A copied video has several files; a moved one keeps its row and gets another file.
A file without a video is in quarantine: it could not be read. A place is a file or folder that the user indexed.
Each database searches text in its own way, so a subclass adds the subtitles, if it can (`subtitle_rows`).

Databases store text as UTF-8, so paths are stored as bytes: a file name may be any bytes.
"""

import json
import math
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from midreel.errors import BadQuery
from midreel.library.filters import Filter
from midreel.library.scan import FoundFile
from midreel.media.subtitles import Line

# The date of a video is the date of its newest file.
_VIDEOS = """SELECT id, duration, num_frames,
    coalesce((SELECT CAST(max(modified) AS DOUBLE PRECISION) / 1e9 FROM files WHERE video_id = videos.id), date)
    FROM videos"""
_FILES = "SELECT path, size, modified, video_id, reason FROM files"
_PUT_VIDEO = """INSERT INTO videos VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
    SET duration = excluded.duration, num_frames = excluded.num_frames, date = excluded.date"""
_PUT_FILE = """INSERT INTO files VALUES (?, ?, ?, ?, {reason}) ON CONFLICT (path) DO UPDATE
    SET size = excluded.size, modified = excluded.modified, video_id = excluded.video_id, reason = excluded.reason"""
_DAMAGE = "SELECT coalesce(max(reason), '') FROM files WHERE video_id = ?"
_ANY = Filter()
T = TypeVar("T")
Statement = tuple[str, Sequence[Sequence[object]]]  # and the values of each execution


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


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """The lines of the subtitles of a video, and the stamp of the files that they were read from."""

    lines: tuple[Line, ...]
    stamp: str


class Records(ABC):
    """The records of a library. Each method that writes is one transaction, and is durable when it returns.

    Attributes:
        EACH: A query for the elements of a JSON array, which is its only value. Databases limit the number of values.
        KEEPS_SUBTITLES: Whether subtitles are kept. If not, those that are given are ignored.
        times_replaced: How often `version` found another database in this place.
    """

    EACH: ClassVar[str]
    KEEPS_SUBTITLES: ClassVar[bool] = False
    times_replaced = 0

    @abstractmethod
    def _rows(self, make: Callable[..., T], statement: str, *values: object) -> list[T]:
        """Return each row, converted by `make`, which raises DataError if the row is damaged."""

    @abstractmethod
    def _write(self, statements: Iterable[Statement]) -> None:
        """Run statements in one transaction."""

    @abstractmethod
    def version(self) -> int:
        """Return a number that changes when another connection has committed, or the database was replaced.

        Raises:
            MissingLibrary: The database does not exist any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    # ------------------------------------------------------------ read

    def __len__(self) -> int:
        """Return the number of videos."""
        return int(self._one("SELECT count(*) FROM videos"))

    def video_ids(self) -> set[str]:
        """Return the ids of all videos."""
        return set(self._rows(as_text, "SELECT id FROM videos"))

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
            FROM videos JOIN files ON video_id = id WHERE id IN ({self.EACH})
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
        ids = self._rows(
            as_text, "SELECT video_id FROM files WHERE path = ? AND video_id IS NOT NULL", os.fsencode(path)
        )
        return next(map(self.video, ids), None)

    def quarantine(self) -> dict[Path, str]:
        """Return the quarantined files, with the reason."""
        return {file.path: file.reason for file in self._rows(_file, f"{_FILES} WHERE video_id IS NULL ORDER BY path")}

    def damaged(self) -> dict[Path, str]:
        """Return the indexed files that have an unreadable part, with a description of it."""
        files = self._rows(_file, f"{_FILES} WHERE video_id IS NOT NULL AND reason <> '' ORDER BY path")
        return {file.path: file.reason for file in files}

    def damage_of(self, video_id: str) -> str:
        """Return which part of a video is unreadable; empty if none. It is the same for all files of the video."""
        return self._rows(as_text, _DAMAGE, video_id)[0]

    def places(self) -> list[Path]:
        """Return the files and folders to scan when the user names none: every place indexed so far."""
        return self._rows(_path, "SELECT path FROM places ORDER BY path")

    def tags(self) -> dict[str, int]:
        """Return the number of videos that have each tag."""
        tags = "SELECT tag, count(*) FROM tags GROUP BY tag ORDER BY tag"
        return dict(self._rows(lambda tag, count: (as_text(tag), count), tags))

    def tags_of(self, video_id: str) -> list[str]:
        """Return the tags of a video, sorted."""
        return self._rows(as_text, "SELECT tag FROM tags WHERE video_id = ? ORDER BY tag", video_id)

    def seconds(self) -> float:
        """Return the total length of all videos."""
        return float(self._one("SELECT coalesce(sum(duration), 0.0) FROM videos"))

    def matching(self, wanted: Filter) -> set[str]:
        """Return the ids of the videos that a filter allows. Videos without files never match."""
        of_file, values = _file_condition(wanted)
        conditions = [f"id IN (SELECT video_id FROM files WHERE {of_file})"]
        for tag in wanted.tags:
            conditions.append("id IN (SELECT video_id FROM tags WHERE tag = ?)")
            values.append(tag)
        if wanted.videos is not None:
            conditions.append(f"id IN ({self.EACH})")
            values.append(json.dumps(wanted.videos))
        for condition, value in (("duration >= ?", wanted.longer), ("duration <= ?", wanted.shorter)):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        return set(self._rows(as_text, f"SELECT id FROM videos WHERE {' AND '.join(conditions)}", *values))

    # ------------------------------------------------------------ subtitles

    def has_spoken(self) -> bool:
        """Return whether any video of the library has, or had, subtitles."""
        return False

    def stamps(self) -> dict[str, str]:
        """Return which subtitle files were read for each video that has lines, or had some."""
        return {}

    def spoken_in(self, video_id: str) -> Spoken | None:
        """Return what is said in a video; None if it never had subtitles."""
        return None

    def spoken(
        self, words: Sequence[str], among: Iterable[str] | None, *, phrase: bool, most: int, mark: str
    ) -> list[tuple[str, Line, str]]:
        """Return the lines that have some words, best first: the video, the line, and its marked text.

        Args:
            words: The words, at least one.
            among: Search only these videos. Default: all.
            phrase: Whether a line must have all words, one after the other. Otherwise, one is enough.
            most: The number of lines, at most.
            mark: What marks the start of each word, or phrase, that was found.

        Raises:
            BadQuery: The library cannot keep subtitles.
        """
        raise BadQuery(
            'the query has said:"…", but a library in a database has no subtitles. Leave it out, or index the videos '
            "into a folder."
        )

    def put_spoken(self, video_id: str, spoken: Spoken) -> None:
        """Replace what is said in a video."""
        self._write(self._put_lines(video_id, spoken))

    def _put_lines(self, video_id: str, spoken: Spoken) -> list[Statement]:
        """Return the statements that replace the lines of a video."""
        return []

    def _drop_lines(self, video_ids: Sequence[str]) -> list[Statement]:
        """Return the statements that remove the lines of videos."""
        return []

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
        values = (video.id, video.duration, video.num_frames, video.date)
        self._write(
            [
                (_PUT_VIDEO, [values]),
                *(self._put(file, video.id, damage) for file in files),
                ("UPDATE files SET reason = ? WHERE video_id = ?", [(as_utf8(damage), video.id)]),
                _put_tags([video.id], tags),
                *(self._put_lines(video.id, spoken) if spoken is not None else []),
            ]
        )

    def place(self, file: FoundFile, video_id: str, tags: Iterable[str] = ()) -> None:
        """Add a file, and tags, to a video that the catalogue lists.

        Args:
            file: The file. A row with the same path is replaced.
            video_id: The id of the video.
            tags: Tags to add. The video keeps its other tags.
        """
        self._write([self._put(file, video_id), _put_tags([video_id], tags)])

    def add_unreadable(self, file: FoundFile, reason: str) -> None:
        """Put a file into quarantine, with the reason."""
        self._write([self._put(file, None, reason)])

    def forget_files(self, paths: Iterable[Path]) -> None:
        """Remove files. Videos without files remain, as orphans."""
        self._for_each_path("DELETE FROM files WHERE path = ?", paths)

    def forget_videos(self, video_ids: Iterable[str]) -> None:
        """Remove videos, with their files, tags and subtitles."""
        ids = list(video_ids)
        values = [(video_id,) for video_id in ids]
        columns = (("videos", "id"), ("files", "video_id"), ("tags", "video_id"))
        rows = [(f"DELETE FROM {table} WHERE {column} = ?", values) for table, column in columns]
        self._write([*rows, *self._drop_lines(ids)])

    def orphans(self) -> list[str]:
        """Return the videos without files."""
        without_file = "NOT EXISTS (SELECT 1 FROM files WHERE video_id = videos.id)"
        return self._rows(as_text, f"SELECT id FROM videos WHERE {without_file} ORDER BY id")

    def tag(self, video_ids: Iterable[str], tags: Iterable[str]) -> None:
        """Add tags to videos."""
        self._write([_put_tags(video_ids, tags)])

    def remember_places(self, places: Iterable[Path]) -> None:
        """Add places to scan when the user names none."""
        self._for_each_path("INSERT INTO places VALUES (?) ON CONFLICT DO NOTHING", places)

    def forget_places(self, places: Iterable[Path]) -> None:
        """Remove places. Their files and videos remain."""
        self._for_each_path("DELETE FROM places WHERE path = ?", places)

    # ------------------------------------------------------------ SQL

    def _for_each_path(self, statement: str, paths: Iterable[Path]) -> None:
        self._write([(statement, [(os.fsencode(path),) for path in paths])])

    def _put(self, file: FoundFile, video_id: str | None, reason: str | None = None) -> Statement:
        """Return the statement that adds a file. Without a reason, it gets that of the other files of its video."""
        values = (os.fsencode(file.path), file.size, file.modified, video_id)
        if reason is None:
            return _PUT_FILE.format(reason=f"({_DAMAGE})"), [(*values, video_id)]
        return _PUT_FILE.format(reason="?"), [(*values, as_utf8(reason))]

    def _one(self, statement: str) -> Any:
        return self._rows(lambda value: value, statement)[0]


def _put_tags(video_ids: Iterable[str], tags: Iterable[str]) -> Statement:
    pairs = [(video_id, tag) for tag in tags for video_id in video_ids]
    return "INSERT INTO tags VALUES (?, ?) ON CONFLICT DO NOTHING", pairs


def _file_condition(wanted: Filter) -> tuple[str, list[object]]:
    """Return the condition of a filter on a row of `files`, as SQL and its values."""
    conditions, values, date = ["TRUE"], list[object](), "CAST(modified AS DOUBLE PRECISION) / 1e9"
    if wanted.folders:
        prefixes = [_prefix(folder) for folder in wanted.folders]
        either = " OR ".join("path = ? OR substr(path, 1, ?) = ?" for _ in prefixes)
        conditions.append(f"({either})")
        values += [value for prefix in prefixes for value in (prefix[:-1], len(prefix), prefix)]
    for condition, value in ((f"{date} >= ?", wanted.after), (f"{date} < ?", wanted.before)):
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
    return Path(os.fsdecode(of_kind(path, bytes)))


def as_text(text: object) -> str:
    """Return a text, or raise DataError if it is something else."""
    return of_kind(text, str)


def _video(video_id: object, duration: object, num_frames: object, date: object) -> Video:
    video = Video(
        id=as_text(video_id),
        duration=of_kind(duration, float),
        num_frames=of_kind(num_frames, int),
        date=of_kind(date, float),
    )
    if not (0 < video.duration < math.inf and video.num_frames > 0):
        raise sqlite3.DataError(f"found a video of {video.num_frames} frames and {video.duration} s")
    return video


def _video_and_file(
    video_id: object, duration: object, num_frames: object, modified: object, path: object, _: object
) -> tuple[Video, Path]:
    return _video(video_id, duration, num_frames, of_kind(modified, int) / 1e9), _path(path)


def _file(path: object, size: object, modified: object, video_id: object, reason: object) -> File:
    return File(
        path=_path(path),
        size=of_kind(size, int),
        modified=of_kind(modified, int),
        video_id=None if video_id is None else as_text(video_id),
        reason=as_text(reason),
    )


def of_kind(value: object, kind: type[T]) -> T:
    """Return the value, or raise DataError if it has another type: SQLite stores any type in any column."""
    if not isinstance(value, kind):
        raise sqlite3.DataError(f"found {value!r:.40}, expected a {kind.__name__}")
    return value
