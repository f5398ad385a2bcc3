"""The rows of subtitles in the catalogue, which SQLite searches (FTS5).

The lines of a video are written in the transaction that writes its row, and removed with it. So a crash leaves a video
with all of its lines or none. The stamp of a video says which subtitle files were read; when they change, the next run
reads them again. A library without subtitles has no tables for them, so the format of the catalogue stays the same.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from midreel.media.subtitles import Line

_SCHEMA = """
CREATE TABLE IF NOT EXISTS lines (
    number INTEGER PRIMARY KEY,
    video_id TEXT NOT NULL,
    start REAL NOT NULL,            -- seconds
    end REAL NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS lines_of_video ON lines (video_id);
CREATE VIRTUAL TABLE IF NOT EXISTS spoken USING fts5(
    text, content = 'lines', content_rowid = 'number', tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE TABLE IF NOT EXISTS stamps (video_id TEXT PRIMARY KEY, stamp TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """The lines of a video, and the stamp of what they were read from."""

    lines: tuple[Line, ...]
    stamp: str


def put(database: sqlite3.Connection, video_id: str, spoken: Spoken) -> None:
    """Replace the lines of a video, within the transaction of the caller.

    Args:
        database: The catalogue.
        video_id: The video.
        spoken: Its lines, and their stamp.
    """
    is_there = _is_there(database)
    if not spoken.lines and not is_there:
        return
    if not is_there:
        for statement in filter(str.strip, _SCHEMA.split(";\n")):  # executescript would commit the transaction
            database.execute(statement)
    drop(database, [video_id])
    for line in spoken.lines:
        values = (video_id, line.start, line.end, line.text.encode("utf-8", "replace").decode())
        number = database.execute(
            "INSERT INTO lines (video_id, start, end, text) VALUES (?, ?, ?, ?)", values
        ).lastrowid
        database.execute("INSERT INTO spoken (rowid, text) VALUES (?, ?)", (number, values[-1]))
    database.execute("INSERT OR REPLACE INTO stamps VALUES (?, ?)", (video_id, spoken.stamp))


def drop(database: sqlite3.Connection, video_ids: Iterable[str]) -> None:
    """Remove the lines of videos, within the transaction of the caller."""
    if not _is_there(database):
        return
    for video_id in video_ids:
        database.execute(
            "INSERT INTO spoken (spoken, rowid, text) SELECT 'delete', number, text FROM lines WHERE video_id = ?",
            (video_id,),
        )
        database.execute("DELETE FROM lines WHERE video_id = ?", (video_id,))
        database.execute("DELETE FROM stamps WHERE video_id = ?", (video_id,))


def _is_there(database: sqlite3.Connection) -> bool:
    return bool(database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'stamps'").fetchone()[0])
