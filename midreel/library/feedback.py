"""Feedback: what users say about hits, "this is it" or "not this". `midreel adapt` learns from it.

`feedback.sqlite` in the folder of the library stores it. It is a file of its own, apart from the catalogue, because any
process may add feedback at any time, also while another one indexes. Each change is one transaction of SQLite, which is
durable when the method returns. The file is created by the first piece of feedback. It never leaves the library.

A piece of feedback names its video by content, so it survives a moved file and every reindex. It also outlives a
removed video, as the features do: if the video returns, its feedback counts again.
"""

import json
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from midreel.errors import BadLibrary, BadQuery, BadSetting, MissingFeedback, expect_text
from midreel.io.files import SqliteFile, sqlite_errors, write_durably, write_errors
from midreel.library.layout import Layout
from midreel.library.query import Part, parse
from midreel.library.records import Records, Video

NAME = "feedback.sqlite"
FORMAT = 1
LONGEST = 500  # characters of a query, as in the API
_TIMEOUT = 30  # seconds to wait for the transaction of another process, which takes milliseconds
_TOLERANCE = 0.05  # seconds by which a moment may end after its video, because clients round times

# AUTOINCREMENT never uses an id again, so a late request to delete cannot hit newer feedback.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS feedback (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    query TEXT NOT NULL,
    video_id TEXT NOT NULL,         -- a hash of the content
    is_match INTEGER NOT NULL,      -- 1: this is it, 0: not this
    start REAL NOT NULL,            -- seconds
    "end" REAL NOT NULL,
    created REAL NOT NULL           -- seconds since 1970
)"""
_COLUMNS = 'id, query, video_id, is_match, start, "end", created'


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """What a user says about a moment that a query found.

    Attributes:
        id: A number that is never used again.
        query: The sentence.
        video_id: The video.
        match: True for "this is it", False for "not this".
        start: The start of the moment in seconds.
        end: The end of the moment in seconds.
        created: The time of the feedback, in seconds since 1970.
    """

    id: int
    query: str
    video_id: str
    match: bool
    start: float
    end: float
    created: float

    @property
    def verdict(self) -> str:
        """The feedback in words."""
        return "this is it" if self.match else "not this"

    def to_dict(self) -> dict[str, Any]:
        """Return the feedback as JSON values."""
        return asdict(self)


class FeedbackLog:
    """The feedback of a library. Each method opens and closes the file, so threads and processes may share it.

    Args:
        folder: The folder of the library.

    Raises:
        BadLibrary: The file is damaged, or of a newer format. Every method may raise it.
        Locked: Another process did not finish its transaction in time.
        Unwritable: The disk is full, or the folder is read-only.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def all(self, *, query: str | None = None, video_id: str | None = None) -> list[Feedback]:
        """Return the feedback, oldest first.

        Args:
            query: Return only feedback on this sentence.
            video_id: Return only feedback on this video.
        """
        conditions, values = ["TRUE"], list[object]()
        for column, value in (("query", query if query is None else plain(query)), ("video_id", video_id)):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        where = " AND ".join(conditions)
        if not self.path.exists():
            return []
        with self._errors(), closing(SqliteFile(self.path, read_only=True, patience=_TIMEOUT)) as file:
            if not self._is_created(file):
                return []
            rows = file.rows(f"SELECT {_COLUMNS} FROM feedback WHERE {where} ORDER BY id", values)
            return [_feedback(*row) for row in rows]

    def add(
        self,
        video: Video,
        query: str,
        *,
        match: bool,
        start: float | int | None = None,
        end: float | int | None = None,
    ) -> Feedback:
        """Add feedback on a moment of a video. It replaces feedback on the same query and an overlapping moment.

        Args:
            video: The video.
            query: A plain sentence. White space at its ends and repeated white space is removed.
            match: True for "this is it", False for "not this".
            start: The start of the moment in seconds. Default: the start of the video.
            end: The end of the moment in seconds. Default: the end of the video.

        Raises:
            BadQuery: The query is empty, too long, or has operators.
            BadSetting: The moment is not inside the video.
            MissingLibrary: There is no library in the folder.
        """
        text, moment = plain(query), moment_in(video, start, end)
        Layout(self.path.parent).settings()  # raises MissingLibrary: a missing disk must not get a file of its own
        with self._write() as database:
            database.execute(
                'DELETE FROM feedback WHERE query = ? AND video_id = ? AND start < ? AND "end" > ?',
                (text, video.id, moment[1], moment[0]),
            )
            values = (text, video.id, int(match), *moment, time.time())
            columns = _COLUMNS.removeprefix("id, ")
            added = database.execute(f"INSERT INTO feedback ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)
            return _feedback(added.lastrowid, *values)

    def remove(self, number: int) -> None:
        """Delete a piece of feedback. Raise MissingFeedback if there is none with this id."""
        if self.path.exists():
            with self._write() as database:
                if database.execute("DELETE FROM feedback WHERE id = ?", (number,)).rowcount:
                    return
        raise MissingFeedback(f"there is no feedback {number}. List all: midreel feedback {self.path.parent}")

    def clear(self) -> int:
        """Delete all feedback, and return how many pieces there were."""
        if not self.path.exists():
            return 0
        with self._write() as database:
            return database.execute("DELETE FROM feedback").rowcount

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction, which is committed at the end. Create the table if it is missing."""
        with write_errors(self.path.parent):
            # Not `new_sqlite`: of two processes that create the file at once, the second would replace the first's.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644))
        with self._errors(), closing(SqliteFile(self.path, read_only=False, patience=_TIMEOUT)) as file:
            database = file.connection
            database.execute("PRAGMA secure_delete = ON")  # deleted sentences must not stay in the file
            database.execute("BEGIN IMMEDIATE")
            try:
                if not self._is_created(file):
                    database.execute(_SCHEMA)
                    database.execute(f"PRAGMA user_version = {FORMAT}")
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def _is_created(self, file: SqliteFile) -> bool:
        """Return whether the file has its table. A crash may have left an empty file."""
        found = int(file.rows("PRAGMA user_version")[0][0])
        if found > FORMAT:
            raise BadLibrary(f"{self.path} has format {found}, expected {FORMAT}. Upgrade midreel.")
        return found == FORMAT

    def _errors(self) -> AbstractContextManager[None]:
        remedy = "Restore it from a backup; or move it away, then the library has no feedback"
        return sqlite_errors(self.path, remedy, damaged=BadLibrary)


def plain(query: str) -> str:
    """Return a query without superfluous white space.

    Raises:
        BadQuery: The query is empty, too long, or has operators: feedback on one of several parts would be ambiguous.
    """
    expect_text("the query", query)
    text = " ".join(query.split())
    parsed = parse(text)
    if not isinstance(parsed, Part):
        raise BadQuery(f"the query {text[:60]!r} has operators, expected a plain sentence. Give feedback on one part.")
    if len(text) > LONGEST:
        raise BadQuery(f"the query has {len(text)} characters, expected at most {LONGEST}. Use fewer words.")
    return text


def moment_in(video: Video, start: float | int | None, end: float | int | None) -> tuple[float, float]:
    """Return the moment in seconds. Raise BadSetting unless it is inside the video.

    Args:
        video: The video.
        start: The start in seconds. Default: the start of the video.
        end: The end in seconds. Default: the end of the video.
    """
    first, last = 0.0 if start is None else float(start), video.duration if end is None else float(end)
    inside = math.isfinite(first) and math.isfinite(last) and 0 <= first < last <= video.duration + _TOLERANCE
    if not inside or first >= video.duration:
        raise BadSetting(
            f"the moment is {first:g} to {last:g} s, expected a part of 0 to {video.duration:.1f} s, the length of the "
            f"video."
        )
    return first, min(last, video.duration)


def _feedback(*row: Any) -> Feedback:
    """Return a row as feedback. Raise DataError if it is damaged: SQLite stores any type in any column."""
    number, query, video_id, match, *times = row
    fits = isinstance(number, int) and isinstance(query, str) and isinstance(video_id, str) and match in (0, 1)
    if not fits or not all(isinstance(each, float) and math.isfinite(each) for each in times):
        raise sqlite3.DataError(f"found {row!r:.80}, expected feedback")
    start, end, created = times
    return Feedback(id=number, query=query, video_id=video_id, match=bool(match), start=start, end=end, created=created)


# ---------------------------------------------------------------- export


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What an export wrote, and what it left out.

    Attributes:
        queries: The number of lines: a sentence and its moments in one video.
        not_this: Pieces of feedback that say "not this", which annotations cannot express.
        elsewhere: Pieces of feedback on videos that have no file in the folder of the export.
    """

    queries: int
    not_this: int
    elsewhere: int


def export(feedback: Sequence[Feedback], catalogue: Records, path: Path) -> Exported:
    """Write the feedback that says "this is it" as annotations, which `midreel train` reads.

    Videos are named by their path in the folder of the file. So write it to annotations.jsonl in a folder of videos.

    Args:
        feedback: The feedback.
        catalogue: The catalogue of the library.
        path: The file to write.

    Raises:
        BadSetting: No feedback can be written.
        Unwritable: The file cannot be written.
    """
    folder = path.absolute().parent
    moments: dict[tuple[str, str], list[list[float]]] = {}
    matches = [each for each in feedback if each.match]
    elsewhere = 0
    for each in matches:
        name = next(filter(None, (_name_in(folder, file) for file in catalogue.paths(each.video_id))), None)
        if name is None:
            elsewhere += 1
        else:
            moments.setdefault((name, each.query), []).append([round(each.start, 3), round(each.end, 3)])
    if not moments:
        raise BadSetting(
            f"{len(matches):,} pieces of feedback say 'this is it' and {elsewhere:,} of them are on videos outside "
            f"{folder}, expected at least one inside. Write the file into the folder of the videos."
        )
    lines = (
        {"video": name, "query": query}
        | ({"start": found[0][0], "end": found[0][1]} if len(found) == 1 else {"moments": sorted(found)})
        for (name, query), found in moments.items()
    )
    with write_errors(folder):
        write_durably(path, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
    return Exported(queries=len(moments), not_this=len(feedback) - len(matches), elsewhere=elsewhere)


def _name_in(folder: Path, file: Path) -> str | None:
    """Return the name of a file in a folder as text; None if it is elsewhere, or its name is not UTF-8."""
    if not file.is_relative_to(folder):
        return None
    name = file.relative_to(folder).as_posix()
    return name if name.encode("utf-8", "replace").decode() == name else None
