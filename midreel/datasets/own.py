"""Your own annotations: a folder of videos with annotations.jsonl or annotations.csv, one line per sentence.

    {"video": "beach.mp4", "query": "a dog jumps into the pool", "start": 3.5, "end": 9.0, "split": "train", "id": "q1"}

    video,query,start,end,split,id
    beach.mp4,a dog jumps into the pool,0:03.5,0:09,train,q1

`video` is a file in the folder, with or without its ending. `start` and `end` are optional, but only together. `id`
is optional; its default is the line number.

JSON has times in seconds. A query with several moments has `"moments": [[3.5, 9], [21, 25]]` instead.

A table has times in seconds, m:ss or h:mm:ss. Its cells are separated by commas, semicolons or tabs, so any spreadsheet
can write it. A row is a comment if only its first cell has text, and this text begins with #.

`split` is optional. All lines of a video belong to one split, so one line with a split decides for its video. The other
videos are divided into train and val by a hash of their names:

* If a line of the file says val, all of them become train.
* Otherwise the videos with a hash in the lowest tenth become val. If there is none, and there are at least two videos,
  the video with the lowest hash becomes val.

So a video usually keeps its split when other videos are added or removed. The exception is a small folder: there, a
new video with a lower hash replaces the only val video.
"""

import csv
import hashlib
import io
import json
import math
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from midreel.datasets import parsing
from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import split_of
from midreel.errors import BadAnnotation, UnknownName
from midreel.types import Moment, Query, Split

NAME = "own"
FILES = {"jsonl": "annotations.jsonl", "csv": "annotations.csv"}  # by format
FIELDS = ("id", "video", "query", "start", "end", "moments", "split")
COLUMNS = ("id", "video", "query", "start", "end", "split")
SPLITS = ("train", "val", "test")
VIDEO_ENDINGS = (
    *(".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v"),
    *(".mpg", ".mpeg", ".ts", ".m2ts", ".wmv", ".flv", ".3gp", ".ogv"),
)
VAL_SHARE = 0.1
ABOUT_SPLITS = (
    "split is train, val or test. All lines of a video need the same split. Videos without a split go to train; if no "
    "line says val, about a tenth of them go to val."
)
THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(,[0-9]{3})+")

_Line = tuple[str, int, dict[str, Any]]  # its location for error messages, its number, its fields


# ---------------------------------------------------------------- annotation files


def annotation_files(folder: Path) -> list[Path]:
    """Return the annotation files in a folder: none, one or both."""
    return [folder / name for name in FILES.values() if (folder / name).is_file()]


def annotation_file(folder: Path) -> Path:
    """Return the annotation file of a folder.

    Raises:
        BadAnnotation: There is no annotation file, or there are both.
    """
    found = annotation_files(folder)
    if not found:
        raise BadAnnotation(
            f"{folder} has no {' or '.join(FILES.values())}. Create one (midreel data new {folder}), or generate a "
            f"dataset (midreel playhouse {folder})."
        )
    if len(found) > 1:
        raise BadAnnotation(
            f"{folder} has {' and '.join(path.name for path in found)}, expected only one of them. Remove the other."
        )
    return found[0]


def read(folder: Path) -> dict[str, Split]:
    """Return the splits of a folder, by name."""
    return dict(load(folder).splits)


def load(folder: Path) -> Annotations:
    """Return the annotations of a folder.

    Raises:
        BadAnnotation: The annotations cannot be read, have no sentence, or contradict themselves.
    """
    path = annotation_file(folder)
    queries: dict[str, Query] = {}
    given_split: dict[str, str] = {}  # by video
    num_blank = 0  # lines of a template that have no sentence yet
    for where, number, values in _READERS[path.name](path):
        if isinstance(values["query"], str) and not values["query"].strip():
            num_blank += 1
            continue
        query, split = _query(values, where, str(number)), _split(values)
        if query.id in queries:
            raise BadAnnotation(f"{where}: the id {query.id!r} is already used, expected unique ids. Change it.")
        if split is not None and given_split.setdefault(query.video_id, split) != split:
            raise BadAnnotation(
                f"{where}: {query.video_id} is in {given_split[query.video_id]} and in {split}, expected one split "
                f"per video. Change one of them."
            )
        queries[query.id] = query
    if not queries:
        problem = "has no query yet, expected at least one" if num_blank else "is empty, expected at least one query"
        raise BadAnnotation(f"{path} {problem}. Fill in the field query.")
    video_ids = list(dict.fromkeys(query.video_id for query in queries.values()))
    _expect_one_name_per_file(video_ids, path)
    undecided = [video_id for video_id in video_ids if video_id not in given_split]
    drawn_split = _draw_splits(undecided, needs_val="val" not in given_split.values())
    return Annotations(
        name=NAME,
        layout="own",
        folder=folder,
        files=(path,),
        splits=_by_split(queries.values(), given_split | drawn_split),
        remarks=tuple(_remarks(num_blank, drawn_split)),
    )


def _by_split(queries: Iterable[Query], split_of_video: Mapping[str, str]) -> dict[str, Split]:
    """Group queries by split, in the order train, val, test, and then by name."""
    queries_of_split: dict[str, list[Query]] = {}
    for query in queries:
        queries_of_split.setdefault(split_of_video[query.video_id], []).append(query)
    names = sorted(queries_of_split, key=lambda name: (SPLITS.index(name) if name in SPLITS else len(SPLITS), name))
    return {name: split_of(queries_of_split[name]) for name in names}


def _remarks(num_blank: int, drawn_split: Mapping[str, str]) -> Iterator[str]:
    if num_blank:
        yield f"lines without a query, skipped: {num_blank:,}"
    if drawn_split:
        num_val = sum(split == "val" for split in drawn_split.values())
        yield f"videos without a split: {len(drawn_split):,}, of these {num_val:,} became val by a hash of their names"


def write(folder: Path, splits: Mapping[str, Split]) -> None:
    """Write annotations.jsonl. The file is replaced atomically."""
    lines = [json.dumps(_fields(name, query)) for name, split in splits.items() for query in split.queries]
    parsing.write_if_changed(folder / FILES["jsonl"], "".join(f"{line}\n" for line in lines))


def _fields(split: str, query: Query) -> dict[str, Any]:
    """Return a query as the fields of a JSON line."""
    pairs = [[moment.start, moment.end] for moment in query.moments]
    times: dict[str, Any] = {}
    if len(pairs) == 1:
        times = {"start": pairs[0][0], "end": pairs[0][1]}
    elif pairs:
        times = {"moments": pairs}
    return {"id": query.id, "video": query.video_id, "query": query.text, **times, "split": split}


def new_template(folder: Path, form: str = "csv") -> Path:
    """Create an annotation file with one line per video, to be filled in. Return its path.

    Args:
        folder: A folder of videos.
        form: The format of the file: csv or jsonl.

    Raises:
        UnknownName: There is no such format.
        BadAnnotation: The folder has annotations already, or has no videos.
    """
    if form not in FILES:
        raise UnknownName.among("format", form, FILES)
    for path in annotation_files(folder):
        raise BadAnnotation(f"{path} exists, expected a folder without annotations. Edit this file, or remove it.")
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise BadAnnotation(f"{folder} {problem}, expected a folder of videos. Check the path.")
    videos = [path.relative_to(folder).as_posix() for path in video_files(folder)]
    if not videos:
        raise BadAnnotation(f"{folder} has no videos, expected files ending in {', '.join(VIDEO_ENDINGS)}. Copy some.")
    for video in videos:
        if not parsing.is_encodable(video):
            raise BadAnnotation(f"{folder} has a file {video!r}, expected a name in UTF-8. Rename it.")
    path = folder / FILES[form]
    # Excel reads a CSV file as UTF-8 only if it begins with a byte order mark. Mode x never overwrites a file.
    with path.open("x", encoding="utf-8-sig" if form == "csv" else "utf-8", newline="\n") as file:
        file.write(_blank_table(videos) if form == "csv" else _blank_json_lines(videos))
    return path


def _blank_table(videos: Iterable[str]) -> str:
    table = io.StringIO()
    rows = [
        ("video", "query", "start", "end", "split"),
        (f"# {ABOUT_SPLITS}",),
        *((video, *[""] * 4) for video in videos),
    ]
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue()


def _blank_json_lines(videos: Iterable[str]) -> str:
    blank = {"query": "", "start": None, "end": None, "split": None}
    return "".join(f"{json.dumps({'video': video} | blank, ensure_ascii=False)}\n" for video in videos)


# ---------------------------------------------------------------- videos


def video_files(folder: Path) -> list[Path]:
    """Return the videos in a folder and its subfolders, sorted. Hidden files and folders are skipped."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in VIDEO_ENDINGS
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )


def find_file(folder: Path, video_id: str) -> Path | None:
    """Return the file of a video, or None if there is none. `video_id` may omit the ending."""
    endings = ("", *VIDEO_ENDINGS, *(ending.upper() for ending in VIDEO_ENDINGS))
    candidates = (folder / f"{video_id}{ending}" for ending in endings)
    # Path.is_file would raise for names that are too long or contain a null character.
    return next((path for path in candidates if os.path.isfile(path)), None)  # noqa: PTH113


def _without_ending(video_id: str) -> str:
    for ending in VIDEO_ENDINGS:
        if video_id.lower().endswith(ending):
            return video_id[: -len(ending)]
    return video_id


def _expect_one_name_per_file(video_ids: Iterable[str], path: Path) -> None:
    """Raise BadAnnotation if a video is named both with and without its ending.

    The two names would count as two videos, perhaps in two splits.
    """
    known = dict.fromkeys(video_ids)
    for video_id in known:
        bare = _without_ending(video_id)
        if bare != video_id and bare in known:
            raise BadAnnotation(f"{path} names a video {bare!r} and {video_id!r}, expected one name. Choose one.")


def _draw_splits(video_ids: Iterable[str], needs_val: bool) -> dict[str, str]:
    """Assign train or val to each video by a hash of its name. Without `needs_val`, all become train."""
    hashes = {
        video_id: int.from_bytes(hashlib.sha256(_without_ending(video_id).encode()).digest()[:8]) / 2**64
        for video_id in video_ids
    }
    val = {video_id for video_id, share in hashes.items() if needs_val and share < VAL_SHARE}
    if needs_val and not val and len(hashes) > 1:
        val = {min(hashes, key=hashes.__getitem__)}
    return {video_id: "val" if video_id in val else "train" for video_id in hashes}


# ---------------------------------------------------------------- lines


def _read_json_lines(path: Path) -> Iterator[_Line]:
    for number, line in parsing.read_lines(path):
        where = f"{path}, line {number}"
        values = parsing.parse_json(line, where)
        if not isinstance(values, dict) or not {"video", "query"} <= set(values) <= set(FIELDS):
            raise BadAnnotation(
                f"{where} is {line[:80]!r}, expected an object with video and query, and no fields except "
                f"{', '.join(FIELDS)}. Correct the line."
            )
        yield where, number, values


def _read_table(path: Path) -> Iterator[_Line]:
    text, delimiter = _detect_delimiter(path, parsing.read_text(path))
    rows = parsing.table_rows(path, text, delimiter)
    header = [name.lower() for name in next(rows)[1]]
    named = [name for name in header if name]  # a spreadsheet may add columns that are empty throughout
    if not set(named) <= set(COLUMNS) or len(set(named)) < len(named):
        raise BadAnnotation(
            f"{path} has the columns {', '.join(header)}, expected video and query, and no columns except "
            f"{', '.join(COLUMNS)}, each once. Rename or delete the others."
        )
    for number, row in rows:
        where = f"{path}, line {number}"
        if _is_comment(row):
            continue
        cells = {name: cell for name, cell in zip(header, row, strict=False) if cell}
        if "" in cells or any(row[len(header) :]):
            raise BadAnnotation(
                f"{where} has {len(row)} cells, expected {len(header)} as in the header. Put quotes around a sentence "
                f"that contains {delimiter!r}."
            )
        times = {name: _parse_time(cells[name], name, where) for name in ("start", "end") if name in cells}
        yield where, number, {"video": "", "query": ""} | cells | times


def _is_comment(row: list[str]) -> bool:
    """Return whether a row is a comment, such as the one in a template.

    >>> _is_comment(["# write here", "", ""]), _is_comment(["#1.mp4", "a dog"])
    (True, False)
    """
    return row[0].startswith("#") and not any(row[1:])


_READERS = {FILES["jsonl"]: _read_json_lines, FILES["csv"]: _read_table}


def _detect_delimiter(path: Path, text: str) -> tuple[str, str]:
    """Return the table without Excel's optional first line `sep=;`, and the delimiter of its cells."""
    hint = re.match(r"sep=(.)(?=\n)", text)
    text = text[hint.end() :] if hint else text
    header = (text.lstrip().splitlines() or [""])[0]
    for delimiter in hint[1] if hint else ",;\t":
        if {"video", "query"} <= {name.strip().strip('"').lower() for name in header.split(delimiter)}:
            return text, delimiter
    raise BadAnnotation(
        f"{path} begins with {text[:80]!r}, expected a header line with video, query and optionally start, end, split "
        f"and id. Add it."
    )


def _parse_time(text: str, name: str, where: str) -> float:
    """Return the seconds of a cell of a table.

    >>> [_parse_time(text, "start", "line 1") for text in ("12.5", "12,5", "1:02", "75:02.5", "1:00:02", "0:02,500")]
    [12.5, 12.5, 62.0, 4502.5, 3602.0, 2.5]
    """
    if THOUSANDS.fullmatch(text):
        raise BadAnnotation(
            f"{where}: {name} is {text!r}, which can mean {text.replace(',', '')} s or {text.replace(',', '.')} s. "
            f"Write it without the comma."
        )
    parts = text.replace(",", ".").split(":")
    whole = all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts[:-1])
    if len(parts) > 3 or not whole or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?|\.[0-9]+", parts[-1]):
        raise BadAnnotation(f"{where}: {name} is {text!r}, expected seconds, m:ss or h:mm:ss. Correct the line.")
    numbers = [float(part) for part in parts]
    if any(number >= 60 for number in numbers[1:]):
        raise BadAnnotation(f"{where}: {name} is {text!r}, expected minutes and seconds below 60. Correct the line.")
    return sum(number * 60**power for power, number in enumerate(reversed(numbers)))


def _query(values: Mapping[str, Any], where: str, number: str) -> Query:
    for name in ("id", "video", "query", "split"):
        is_absent = name not in values or (name == "split" and values[name] is None)
        if not is_absent and not parsing.get_text(values, name, where).strip():
            raise BadAnnotation(f"{where}: {name} is {values[name]!r}, expected text. Add it, or delete the line.")
    return Query(
        id=values.get("id", number),
        text=values["query"],
        video_id=posixpath.normpath(values["video"]),  # so that ./beach.mp4 and beach.mp4 are one video
        moments=_moments(values, where),
    )


def _split(values: Mapping[str, Any]) -> str | None:
    """Return the split of a line in lower case; None if the line has none."""
    split = values.get("split")
    return None if split is None else split.strip().lower()


def _moments(values: Mapping[str, Any], where: str) -> tuple[Moment, ...]:
    start, end, pairs = (values.get(name) for name in ("start", "end", "moments"))
    if pairs is not None:
        if (start, end) != (None, None):
            raise BadAnnotation(f"{where} has moments and also start or end, expected one of them. Delete the other.")
        return tuple(_moment(*pair, where) for pair in parsing.parse_windows(pairs, "moments", where))
    if start is None and end is None:
        return ()
    if start is None or end is None:
        raise BadAnnotation(
            f"{where}: start is {start!r} and end is {end!r}, expected both or neither. Correct the line."
        )
    return (_moment(parsing.parse_seconds(start, "start", where), parsing.parse_seconds(end, "end", where), where),)


def _moment(start: float, end: float, where: str) -> Moment:
    if not (math.isfinite(start) and math.isfinite(end)):
        raise BadAnnotation(
            f"{where}: a moment goes from {start} to {end} s, expected finite numbers. Correct the line."
        )
    try:
        return Moment(start=start, end=end)
    except BadAnnotation as error:
        raise BadAnnotation(f"{where}: {error}") from error
