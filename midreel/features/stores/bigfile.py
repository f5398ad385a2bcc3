"""BigFile, the format of older feature releases: a folder with one matrix that has one row per frame.

shape.txt         N d
id.txt            N frame ids, in the order of the rows
feature.bin       N x d numbers, float32, little-endian
video2frames.txt  {'video': ['frame', 'frame', …], …}: the frames of each video, in order
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from midreel.errors import BadStore
from midreel.features.stores.matrices import DOWNLOAD_AGAIN, Array, Matrices, spread

SHAPE, IDS, ROWS, VIDEOS = FILES = ("shape.txt", "id.txt", "feature.bin", "video2frames.txt")


class BigFile(Matrices):
    """The matrices of a BigFile: the frames of each video. The file is memory-mapped, not loaded."""

    def ids(self) -> list[str]:
        """Return the ids of the videos, in the order of video2frames.txt."""
        return list(self._rows_of_video)

    def __contains__(self, key: object) -> bool:
        return key in self._rows_of_video

    @property
    def width(self) -> int:
        """The number of columns of each matrix."""
        return int(self._matrix.shape[1])

    @property
    def dtype(self) -> str:
        """The dtype of the numbers on disk."""
        return "float32"

    def digest(self) -> str:
        """Return a hash of the shape, of the files with ids, and of a few rows."""
        digest = hashlib.sha256(str(self._matrix.shape).encode())
        for name in (IDS, VIDEOS):
            digest.update(hashlib.sha256(_read(self.path / name)).digest())
        for row in spread(len(self._matrix)):
            digest.update(self._matrix[row].tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        for name in ("_matrix", "_rows_of_video"):
            self.__dict__.pop(name, None)

    def _stored(self, key: str) -> Array:
        return self._matrix[self._rows_of_video[key]]

    @cached_property
    def _matrix(self) -> Array:
        num_rows, width = parse_shape(_read(self.path / SHAPE), self.path / SHAPE)
        path = self.path / ROWS
        size, expected = _size(path), 4 * num_rows * width
        if size != expected:
            raise BadStore(
                f"{path} has {size:,} bytes, but {SHAPE} expects {expected:,}: {num_rows:,} x {width:,} float32 "
                f"numbers. {DOWNLOAD_AGAIN}"
            )
        return np.memmap(path, "<f4", "r", shape=(num_rows, width))

    @cached_property
    def _rows_of_video(self) -> dict[str, slice | Array]:
        row_of_frame = self._row_of_frame()
        path = self.path / VIDEOS
        rows_of_video: dict[str, slice | Array] = {}
        for video_id, frames in parse_videos(_read(path), path):
            if video_id in rows_of_video:
                raise BadStore(f"{path} has the video {video_id!r} twice, expected it once. {DOWNLOAD_AGAIN}")
            try:
                rows_of_video[video_id] = _compact([row_of_frame[frame] for frame in frames])
            except KeyError as error:
                raise BadStore(
                    f"{path}: the frame {error.args[0]!r} of {video_id!r} is not one of the {len(row_of_frame):,} in "
                    f"{IDS}. {DOWNLOAD_AGAIN}"
                ) from error
        return rows_of_video

    def _row_of_frame(self) -> dict[str, int]:
        path = self.path / IDS
        names = _read(path).decode("latin-1").split()
        if len(names) != len(self._matrix):
            raise BadStore(
                f"{path} has {len(names):,} ids, but {SHAPE} expects {len(self._matrix):,}. {DOWNLOAD_AGAIN}"
            )
        row_of_frame = {name: row for row, name in enumerate(names)}
        if len(row_of_frame) != len(names):
            repeated = next(name for row, name in enumerate(names) if row_of_frame[name] != row)
            raise BadStore(f"{path} has {repeated!r} more than once, expected each id once. {DOWNLOAD_AGAIN}")
        return row_of_frame


def parse_shape(text: bytes, path: Path) -> tuple[int, int]:
    """Return the number of rows and their width, from the first line of shape.txt.

    Args:
        text: The content of the file.
        path: The file, for error messages.

    Raises:
        BadStore: If the line is not two positive integers.
    """
    line = text.split(b"\n", 1)[0]
    match = re.fullmatch(rb"\s*(\d{1,15})\s+(\d{1,15})\s*", line)
    shape = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(shape):
        raise BadStore(f"{path} begins with {_excerpt(line)}, expected two numbers: rows and width. {DOWNLOAD_AGAIN}")
    return shape


# A grammar of the dictionary that `str` prints in Python 2 and 3: strings as keys, lists of strings as values, nothing
# else. `ast.literal_eval` needs ten times the time, and a gigabyte of memory for a benchmark. `eval`, which the authors
# of the format use, would run any code in the file. Possessive quantifiers (*+) prevent backtracking on bad input.
_ESCAPE = r"\\(?:[\\'\"nrt]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
_PLAIN = r"'[^'\\\r\n\0]*+'|\"[^\"\\\r\n\0]*+\""
_ESCAPED = rf"'(?:[^'\\\r\n\0]|{_ESCAPE})*+'|\"(?:[^\"\\\r\n\0]|{_ESCAPE})*+\""
_STRING = rf"u?(?:{_PLAIN}|{_ESCAPED})"
_SPACE = r"[ \t\r\n]*+"
_STRINGS = re.compile(_STRING)
_OPENING = re.compile(rf"{_SPACE}\{{{_SPACE}")
_ENTRY = re.compile(
    rf"({_STRING}){_SPACE}:{_SPACE}"
    rf"\[{_SPACE}((?:{_STRING}{_SPACE}(?:,{_SPACE}|(?=\])))*+)\]{_SPACE}(?:,{_SPACE}|(?=\}}))"
)
_CLOSING = re.compile(rf"\}}{_SPACE}\Z")


def parse_videos(text: bytes, path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the id of each video and the ids of its frames, from video2frames.txt.

    Args:
        text: The content of the file.
        path: The file, for error messages.

    Raises:
        BadStore: If the text is not a dictionary of lists of strings.
    """
    try:
        literal = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadStore(f"{path} is not UTF-8 ({error}). {DOWNLOAD_AGAIN}") from error
    start = match.end() if (match := _OPENING.match(literal)) else 0
    position = start
    while start and (match := _ENTRY.match(literal, position)):
        (video_id,), frames = _strings(match[1], path), _strings(match[2], path)
        yield video_id, frames
        position = match.end()
    if position == start or not _CLOSING.match(literal, position):
        raise BadStore(
            f"{path} has {_excerpt(literal[position : position + 80])} at character {position:,}, expected "
            f"{{'video': ['frame', …], …}}. {DOWNLOAD_AGAIN}"
        )


def _strings(literals: str, path: Path) -> list[str]:
    """Evaluate string literals that match `_STRING`. The common case, without escapes, needs no parser."""
    if "\\" not in literals and '"' not in literals:
        return literals.split("'")[1::2]
    try:
        return [ast.literal_eval(literal) for literal in _STRINGS.findall(literals)]
    except SyntaxError as error:
        raise BadStore(f"{path} has {_excerpt(literals)} ({error.msg}), expected ids. {DOWNLOAD_AGAIN}") from error


def _compact(rows: list[int]) -> slice | Array:
    """Return consecutive rows as a slice, which is faster to read."""
    numbers = np.array(rows, np.int64)
    if len(rows) and (np.diff(numbers) == 1).all():
        return slice(rows[0], rows[-1] + 1)
    return numbers


def _excerpt(text: str | bytes) -> str:
    return repr(text[:60]) + ("…" if len(text) > 60 else "")


def _read(path: Path) -> bytes:
    _size(path)
    return path.read_bytes()


def _size(path: Path) -> int:
    if not path.is_file():
        raise BadStore(f"{path} does not exist, expected a folder with {', '.join(FILES)}. Download all of them.")
    return path.stat().st_size
