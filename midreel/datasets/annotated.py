"""A folder's own annotations: a file of lines, each a sentence about a part of a video.

    {"video": "beach", "query": "a dog jumps into the pool", "start": 3.5, "end": 9.0, "split": "train", "id": "q1"}

`video` is the name of a file beside the annotations, with or without its ending. `start` and `end` in seconds may both
be left out, as may `split` (then train) and `id` (then the number of the line). What happens several times has in their
place `"moments": [[3.5, 9.0], [21.0, 24.5]]`.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midreel.errors import BadAnnotation
from midreel.types import Moment, Query, Split

FILE_NAME = "annotations.jsonl"
FIELDS = ("id", "video", "query", "start", "end", "moments", "split")


def read(folder: Path) -> dict[str, Split]:
    """The splits of a folder, by name."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise BadAnnotation(
            f"{folder} has no {FILE_NAME}, expected a line for each query; make a library (midreel playhouse {folder}) "
            f"or write the file"
        )
    queries: dict[str, dict[str, Query]] = {}
    split_of_video: dict[str, str] = {}
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            split, query = _parse(line, f"{path}, line {number}", str(number))
            of_split = queries.setdefault(split, {})
            if any(query.id in others for others in queries.values()):
                raise BadAnnotation(f"{path}, line {number}: the id {query.id!r} is taken; give each query its own")
            if split_of_video.setdefault(query.video_id, split) != split:
                raise BadAnnotation(
                    f"{path}, line {number}: {query.video_id} is in {split_of_video[query.video_id]} and in {split}, "
                    f"expected one split for all sentences of a video; move them"
                )
            of_split[query.id] = query
    if not queries:
        raise BadAnnotation(f"{path} is empty, expected a line for each query; write some")
    return {
        split: Split(
            video_ids=tuple(dict.fromkeys(query.video_id for query in of_split.values())),
            queries=tuple(of_split.values()),
        )
        for split, of_split in queries.items()
    }


def write(folder: Path, splits: Mapping[str, Split]) -> None:
    lines = [json.dumps(_fields(name, query)) for name, split in splits.items() for query in split.queries]
    write_whole(folder / FILE_NAME, "".join(f"{line}\n" for line in lines))


def write_whole(path: Path, text: str) -> None:
    """The file appears, or takes the place of another, when it is whole."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark of its encoding
    except UnicodeDecodeError as error:
        raise BadAnnotation(f"{path} is not UTF-8 ({error}), expected that encoding; save it again") from error


def _fields(split: str, query: Query) -> dict[str, Any]:
    pairs = [[moment.start, moment.end] for moment in query.moments]
    times: dict[str, Any] = (
        dict(zip(("start", "end"), pairs[0], strict=True)) if len(pairs) == 1 else {"moments": pairs}
    )
    return {"id": query.id, "video": query.video_id, "query": query.text, **(times if pairs else {}), "split": split}


def _parse(line: str, where: str, number: str) -> tuple[str, Query]:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadAnnotation(
            f"{where} is not JSON ({error}), expected an object with {', '.join(FIELDS)}; fix the line"
        ) from error
    if not isinstance(values, dict) or not {"video", "query"} <= set(values) <= set(FIELDS):
        raise BadAnnotation(
            f"{where} is {line[:80]!r}, expected an object with video and query, and nothing but {', '.join(FIELDS)}; "
            f"fix the line"
        )
    for name in ("id", "video", "query", "split"):
        if name in values and (not isinstance(values[name], str) or not values[name].strip()):
            raise BadAnnotation(f"{where}: {name} is {values[name]!r}, expected words in quotes; fix the line")
    return values.get("split", "train"), Query(
        id=values.get("id", number), text=values["query"], video_id=values["video"], moments=_moments(values, where)
    )


def _moments(values: Mapping[str, Any], where: str) -> tuple[Moment, ...]:
    start, end, pairs = (values.get(name) for name in ("start", "end", "moments"))
    if pairs is None:
        return () if start is None and end is None else (_moment(start, end, where),)
    if (start, end) != (None, None):
        raise BadAnnotation(f"{where} has start or end, and moments, expected one way to say when; delete the other")
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise BadAnnotation(f"{where}: moments is {pairs!r}, expected pairs such as [[3.5, 9.0]]; fix it")
    return tuple(_moment(start, end, where) for start, end in pairs)


def _moment(start: Any, end: Any, where: str) -> Moment:
    if not all(type(time) in (int, float) and math.isfinite(time) for time in (start, end)):
        raise BadAnnotation(f"{where}: start and end are {start!r} and {end!r}, expected seconds, or neither; fix it")
    try:
        return Moment(start=float(start), end=float(end))
    except BadAnnotation as error:
        raise BadAnnotation(f"{where}: {error}") from error
