"""A folder of one's own: videos, and beside them annotations.jsonl or annotations.csv, a line for each sentence.

    {"video": "beach.mp4", "query": "a dog jumps into the pool", "start": 3.5, "end": 9.0, "split": "train", "id": "q1"}

    video,query,start,end,split,id
    beach.mp4,a dog jumps into the pool,0:03.5,0:09,train,q1

`video` is the name of a file in the folder, with or without its ending. `start` and `end` may both be left out, as may
`id` (then the number of the line). JSON has seconds, and for what happens twice `"moments": [[3.5, 9], [21, 25]]`;
a table has seconds, m:ss or h:mm:ss, and is separated by commas, semicolons or tabs, whatever the spreadsheet wrote.
A row of a table that has a first cell only, which begins with #, is a note.

A line without `split` goes with the other lines of its video. Videos that no line gives a split are divided, never
their sentences: if the file names no val, those whose name has a hash in the lowest tenth become val, and if there are
two videos or more and none has, the one with the lowest. The rest is train. So a video keeps its split while others
come and go, except in a small folder, where the one with the lowest hash is val until a lower one comes or it goes.
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
FILES = {"jsonl": "annotations.jsonl", "csv": "annotations.csv"}  # by form
FIELDS = ("id", "video", "query", "start", "end", "moments", "split")
COLUMNS = ("id", "video", "query", "start", "end", "split")
SPLITS = ("train", "val", "test")
VIDEO_ENDINGS = (
    *(".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v"),
    *(".mpg", ".mpeg", ".ts", ".m2ts", ".wmv", ".flv", ".3gp", ".ogv"),
)
VAL_SHARE = 0.1
ABOUT_SPLITS = (
    "split may be train, val or test, the same in all lines of a video; left empty, it is train, except that about a "
    "tenth of such videos become val if no line says val"
)
THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(,[0-9]{3})+")

_Line = tuple[str, int, dict[str, Any]]  # where it stands, its number, what it says


def annotation_files(folder: Path) -> list[Path]:
    return [folder / name for name in FILES.values() if (folder / name).is_file()]


def annotation_file(folder: Path) -> Path:
    """The file that says what the folder's videos show."""
    found = annotation_files(folder)
    if not found:
        raise BadAnnotation(
            f"{folder} has no {' or '.join(FILES.values())}, expected a line for each query; begin one (midreel data "
            f"new {folder}) or make a dataset (midreel playhouse {folder})"
        )
    if len(found) > 1:
        raise BadAnnotation(
            f"{folder} has {' and '.join(path.name for path in found)}, expected one of them; move the other away"
        )
    return found[0]


def read(folder: Path) -> dict[str, Split]:
    """The splits of a folder, by name."""
    return dict(collect(folder).splits)


def collect(folder: Path) -> Annotations:
    path = annotation_file(folder)
    named: dict[str, str] = {}  # the split of a video
    queries: dict[str, Query] = {}
    num_waiting = 0  # lines of a table that is not filled in yet
    for where, number, values in _READERS[path.name](path):
        if isinstance(values["query"], str) and not values["query"].strip():
            num_waiting += 1
            continue
        query, split = _query(values, where, str(number)), _split(values)
        if query.id in queries:
            raise BadAnnotation(f"{where}: the id {query.id!r} is taken; give each query its own")
        if split is not None and named.setdefault(query.video_id, split) != split:
            raise BadAnnotation(
                f"{where}: {query.video_id} is in {named[query.video_id]} and in {split}, expected one split for all "
                f"sentences of a video; move them"
            )
        queries[query.id] = query
    if num_waiting and not queries:
        raise BadAnnotation(
            f"{path} has no sentence yet, expected at least one; write in the column query what happens in a video"
        )
    if not queries:
        raise BadAnnotation(f"{path} is empty, expected a line for each query; write some")
    videos = list(dict.fromkeys(query.video_id for query in queries.values()))
    _expect_one_name_each(videos, path)
    drawn = _divided([video for video in videos if video not in named], wanted="val" not in named.values())
    split_of_video = named | drawn
    by_split: dict[str, list[Query]] = {}
    for query in queries.values():
        by_split.setdefault(split_of_video[query.video_id], []).append(query)
    num_val = sum(split == "val" for split in drawn.values())
    remarks = [f"lines that wait for a sentence, left out: {num_waiting:,}"] if num_waiting else []
    if drawn:
        remarks.append(
            f"videos that name no split: {len(drawn):,}, of which {num_val:,} by a hash of their names became val"
        )
    return Annotations(
        name=NAME,
        layout="own",
        folder=folder,
        files=(path,),
        splits={split: split_of(by_split[split]) for split in sorted(by_split, key=_place)},
        remarks=tuple(remarks),
    )


def _split(values: Mapping[str, Any]) -> str | None:
    """Train is train: who writes a table does not mind capitals."""
    split = values.get("split")
    return None if split is None else split.strip().lower()


def _place(split: str) -> tuple[int, str]:
    """Where people expect it: train, val, test, and then what they thought of themselves."""
    return SPLITS.index(split) if split in SPLITS else len(SPLITS), split


def write(folder: Path, splits: Mapping[str, Split]) -> None:
    lines = [json.dumps(_fields(name, query)) for name, split in splits.items() for query in split.queries]
    parsing.write_whole(folder / FILES["jsonl"], "".join(f"{line}\n" for line in lines))


def new_template(folder: Path, form: str = "csv") -> Path:
    """Begins the annotations of a folder: a line for each video in it, whose sentence waits to be written."""
    if form not in FILES:
        raise UnknownName.among("form", form, FILES)
    for path in annotation_files(folder):
        raise BadAnnotation(
            f"{path} is there already, expected a folder without annotations; go on in it, or move it away"
        )
    if not folder.is_dir():
        raise BadAnnotation(f"{folder} does not exist, expected a folder of videos; check the path")
    videos = [path.relative_to(folder).as_posix() for path in video_files(folder)]
    if not videos:
        raise BadAnnotation(
            f"{folder} holds no video, expected files that end in {', '.join(VIDEO_ENDINGS)}; copy some"
        )
    for video in videos:
        if not parsing.encodable(video):
            raise BadAnnotation(f"{folder} has a file {video!r}, expected a name that is UTF-8; rename it")
    path = folder / FILES[form]
    # Excel takes a table for another encoding if it does not begin with the mark. Mode x never overwrites.
    with path.open("x", encoding="utf-8-sig" if form == "csv" else "utf-8", newline="\n") as file:
        file.write(_blank_table(videos) if form == "csv" else _blank_lines(videos))
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


def _blank_lines(videos: Iterable[str]) -> str:
    blank = {"query": "", "start": None, "end": None, "split": None}
    return "".join(f"{json.dumps({'video': video} | blank, ensure_ascii=False)}\n" for video in videos)


# ---------------------------------------------------------------- videos


def video_files(folder: Path) -> list[Path]:
    """The videos in a folder and the folders in it, by name; not what is hidden."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in VIDEO_ENDINGS
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.is_file()
    )


def find_file(folder: Path, video_id: str) -> Path | None:
    """The file that annotations mean by `video_id`, which may leave out the ending."""
    endings = ("", *VIDEO_ENDINGS, *(ending.upper() for ending in VIDEO_ENDINGS))
    candidates = (folder / f"{video_id}{ending}" for ending in endings)
    # Not Path.is_file, which raises for a name that no file can have.
    return next((path for path in candidates if os.path.isfile(path)), None)  # noqa: PTH113


def _stem(video_id: str) -> str:
    """A name without the ending of a video."""
    for ending in VIDEO_ENDINGS:
        if video_id.lower().endswith(ending):
            return video_id[: -len(ending)]
    return video_id


def _expect_one_name_each(videos: Iterable[str], path: Path) -> None:
    """The sentences of a file that has two names would be those of two videos, perhaps in two splits."""
    known = dict.fromkeys(videos)
    for video in known:
        other = _stem(video)
        if other != video and other in known:
            raise BadAnnotation(
                f"{path}: a video is called {other!r} and {video!r}, expected one name for a video; write it the same "
                f"way everywhere"
            )


def _divided(videos: Iterable[str], wanted: bool) -> dict[str, str]:
    """Train or val for each video; train for all, if no val is `wanted`."""
    share = {video: int.from_bytes(hashlib.sha256(_stem(video).encode()).digest()[:8]) / 2**64 for video in videos}
    val = {video for video in share if wanted and share[video] < VAL_SHARE}
    if wanted and not val and len(share) > 1:
        val = {min(share, key=share.__getitem__)}
    return {video: "val" if video in val else "train" for video in share}


# ---------------------------------------------------------------- lines


def _json_lines(path: Path) -> Iterator[_Line]:
    for number, line in parsing.lines(path):
        where = f"{path}, line {number}"
        values = parsing.parse_json(line, where)
        if not isinstance(values, dict) or not {"video", "query"} <= set(values) <= set(FIELDS):
            raise BadAnnotation(
                f"{where} is {line[:80]!r}, expected an object with video and query, and nothing but "
                f"{', '.join(FIELDS)}; fix the line"
            )
        yield where, number, values


def _table(path: Path) -> Iterator[_Line]:
    text = parsing.read_text(path)
    text, delimiter = _delimiter(path, text)
    rows = parsing.table(path, text, delimiter)
    header = [name.lower() for name in next(rows)[1]]
    strays = [name for name in header if name and name not in COLUMNS]
    if strays or len(set(header) - {""}) < len([name for name in header if name]):
        raise BadAnnotation(
            f"{path} has the columns {', '.join(header)}, expected video and query, and nothing but "
            f"{', '.join(COLUMNS)}, each once; rename or delete the others"
        )
    for number, row in rows:
        where = f"{path}, line {number}"
        if _is_note(row):
            continue
        cells = {name: cell for name, cell in zip(header, row, strict=False) if cell}
        if "" in cells or any(row[len(header) :]):
            raise BadAnnotation(
                f"{where} has {len(row)} cells, expected the {len(header)} of the header; put quotes around a sentence "
                f"that has a {delimiter!r} in it"
            )
        yield where, number, {"video": "", "query": ""} | cells | _times(cells, where)


def _is_note(row: list[str]) -> bool:
    """Whether it tells people something, as a template does. What tells of a video has a sentence too.

    >>> _is_note(["# write here", "", ""]), _is_note(["#1.mp4", "a dog"])
    (True, False)
    """
    return row[0].startswith("#") and not any(row[1:])


_READERS = {FILES["jsonl"]: _json_lines, FILES["csv"]: _table}


def _delimiter(path: Path, text: str) -> tuple[str, str]:
    """A table without the line with which Excel may begin it, and what separates its cells."""
    hint = re.match(r"sep=(.)\r?(?=\n)", text)
    text = text[hint.end() :] if hint else text
    first = (text.lstrip().splitlines() or [""])[0]
    for delimiter in hint[1] if hint else ",;\t":
        if {"video", "query"} <= {name.strip().strip('"').lower() for name in first.split(delimiter)}:
            return text, delimiter
    raise BadAnnotation(
        f"{path} begins with {text[:80]!r}, expected a line with the names of the columns: video, query and, if you "
        f"like, start, end, split, id; add it"
    )


def _times(cells: Mapping[str, str], where: str) -> dict[str, float]:
    return {name: _seconds(cells[name], name, where) for name in ("start", "end") if name in cells}


def _seconds(text: str, name: str, where: str) -> float:
    """
    >>> [_seconds(text, "start", "line 1") for text in ("12.5", "12,5", "1:02", "75:02.5", "1:00:02", "0:02,500")]
    [12.5, 12.5, 62.0, 4502.5, 3602.0, 2.5]
    """
    if THOUSANDS.fullmatch(text):
        raise BadAnnotation(
            f"{where}: {name} is {text!r}, which some read as {text.replace(',', '')} s and some as "
            f"{text.replace(',', '.')} s, expected seconds, m:ss or h:mm:ss; write it without the comma"
        )
    parts = text.replace(",", ".").split(":")
    whole = all(re.fullmatch(r"[0-9]{1,9}", part) for part in parts[:-1])
    if len(parts) > 3 or not whole or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]*)?|\.[0-9]+", parts[-1]):
        raise BadAnnotation(f"{where}: {name} is {text!r}, expected seconds, m:ss or h:mm:ss; fix it")
    numbers = [float(part) for part in parts]
    if any(number >= 60 for number in numbers[1:]):
        raise BadAnnotation(f"{where}: {name} is {text!r}, expected less than 60 minutes or seconds; fix it")
    return sum(number * 60**power for power, number in enumerate(reversed(numbers)))


def _query(values: Mapping[str, Any], where: str, number: str) -> Query:
    for name in ("id", "video", "query", "split"):
        left_out = name not in values or (name == "split" and values[name] is None)
        if not left_out and not parsing.words(values, name, where).strip():
            raise BadAnnotation(f"{where}: {name} is {values[name]!r}, expected words; write them, or delete the line")
    return Query(
        id=values.get("id", number),
        text=values["query"],
        video_id=posixpath.normpath(values["video"]),  # ./beach.mp4 is beach.mp4, and never a second video
        moments=_moments(values, where),
    )


def _fields(split: str, query: Query) -> dict[str, Any]:
    pairs = [[moment.start, moment.end] for moment in query.moments]
    times: dict[str, Any] = {}
    if len(pairs) == 1:
        times = {"start": pairs[0][0], "end": pairs[0][1]}
    elif pairs:
        times = {"moments": pairs}
    return {"id": query.id, "video": query.video_id, "query": query.text, **times, "split": split}


def _moments(values: Mapping[str, Any], where: str) -> tuple[Moment, ...]:
    start, end, pairs = (values.get(name) for name in ("start", "end", "moments"))
    if pairs is None:
        return () if start is None and end is None else (_moment(start, end, where),)
    if (start, end) != (None, None):
        raise BadAnnotation(f"{where} has start or end, and moments, expected one way to say when; delete the other")
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise BadAnnotation(f"{where}: moments is {str(pairs)[:80]}, expected pairs such as [[3.5, 9.0]]; fix it")
    return tuple(_moment(start, end, where) for start, end in pairs)


def _moment(start: Any, end: Any, where: str) -> Moment:
    if not all(type(time) in (int, float) and math.isfinite(parsing.number(time, "", where)) for time in (start, end)):
        raise BadAnnotation(f"{where}: start and end are {start!r} and {end!r}, expected seconds, or neither; fix it")
    try:
        return Moment(start=float(start), end=float(end))
    except BadAnnotation as error:
        raise BadAnnotation(f"{where}: {error}") from error
