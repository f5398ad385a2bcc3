"""The rows of subtitles in a catalogue in SQLite, which searches them (FTS5).

The lines of a video are written in the transaction that writes its row, and removed with it. So a crash leaves a video
with all of its lines or none. The stamp of a video says which subtitle files were read; when they change, the next run
reads them again. A library without subtitles has no tables for them, so the format of the catalogue stays the same.
"""

import json
from collections.abc import Iterable, Sequence
from typing import ClassVar

from midreel.library.records import Records, Spoken, Statement, as_text, of_kind
from midreel.media.subtitles import Line

_TABLES = (
    """CREATE TABLE IF NOT EXISTS lines (
        number INTEGER PRIMARY KEY,
        video_id TEXT NOT NULL,
        start REAL NOT NULL,            -- seconds
        end REAL NOT NULL,
        text TEXT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS lines_of_video ON lines (video_id)",
    """CREATE VIRTUAL TABLE IF NOT EXISTS spoken USING fts5(
        text, content = 'lines', content_rowid = 'number', tokenize = 'porter unicode61 remove_diacritics 2'
    )""",
    "CREATE TABLE IF NOT EXISTS stamps (video_id TEXT PRIMARY KEY, stamp TEXT NOT NULL) WITHOUT ROWID",
)
_DROP = (
    "INSERT INTO spoken (spoken, rowid, text) SELECT 'delete', number, text FROM lines WHERE video_id = ?",
    "DELETE FROM lines WHERE video_id = ?",
    "DELETE FROM stamps WHERE video_id = ?",
)


class SubtitleRows(Records):
    """Records in SQLite with subtitles. See `Records` for the methods."""

    KEEPS_SUBTITLES: ClassVar[bool] = True

    def has_spoken(self) -> bool:
        """Return whether any video of the library has, or had, subtitles."""
        return bool(self._one("SELECT count(*) FROM sqlite_master WHERE name = 'stamps'"))

    def stamps(self) -> dict[str, str]:
        """Return which subtitle files were read for each video that has lines, or had some."""
        if not self.has_spoken():
            return {}
        return dict(
            self._rows(lambda *pair: (as_text(pair[0]), as_text(pair[1])), "SELECT video_id, stamp FROM stamps")
        )

    def spoken_in(self, video_id: str) -> Spoken | None:
        """Return what is said in a video; None if it never had subtitles."""
        if not self.has_spoken():
            return None
        stamps = self._rows(as_text, "SELECT stamp FROM stamps WHERE video_id = ?", video_id)
        lines = self._rows(_line, "SELECT start, end, text FROM lines WHERE video_id = ? ORDER BY number", video_id)
        return Spoken(lines=tuple(lines), stamp=stamps[0]) if stamps else None

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
        """
        if not self.has_spoken():
            return []
        match = f'"{" ".join(words)}"' if phrase else " OR ".join(f'"{word}"' for word in words)
        only = "" if among is None else f"AND video_id IN ({self.EACH})"
        statement = f"""SELECT video_id, highlight(spoken, 0, ?, ''), start, end, lines.text
            FROM spoken JOIN lines ON number = spoken.rowid
            WHERE spoken MATCH ? AND video_id IN (SELECT id FROM videos) {only} ORDER BY bm25(spoken), number LIMIT ?"""
        values = [] if among is None else [json.dumps(sorted(among))]
        return self._rows(_found, statement, mark, match, *values, most)

    def _put_lines(self, video_id: str, spoken: Spoken) -> list[Statement]:
        is_there = self.has_spoken()
        if not spoken.lines and not is_there:
            return []
        lines = [
            (video_id, line.start, line.end, line.text.encode("utf-8", "replace").decode()) for line in spoken.lines
        ]
        return [
            *([] if is_there else [(table, [()]) for table in _TABLES]),
            *[(statement, [(video_id,)]) for statement in _DROP],
            ("INSERT INTO lines (video_id, start, end, text) VALUES (?, ?, ?, ?)", lines),
            ("INSERT INTO spoken (rowid, text) SELECT number, text FROM lines WHERE video_id = ?", [(video_id,)]),
            ("INSERT INTO stamps VALUES (?, ?)", [(video_id, spoken.stamp)]),
        ]

    def _drop_lines(self, video_ids: Sequence[str]) -> list[Statement]:
        if not self.has_spoken():
            return []
        return [(statement, [(video_id,) for video_id in video_ids]) for statement in _DROP]


def _line(start: object, end: object, text: object) -> Line:
    return Line(of_kind(start, float), of_kind(end, float), as_text(text))


def _found(video_id: object, marked: object, *line: object) -> tuple[str, Line, str]:
    return as_text(video_id), _line(*line), as_text(marked)
