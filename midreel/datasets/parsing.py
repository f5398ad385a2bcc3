"""Files that other people wrote. What cannot be read is told with its file, its line and a remedy."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from midreel.errors import BadAnnotation


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark of its encoding
    except UnicodeDecodeError as error:
        raise BadAnnotation(f"{path} is not UTF-8 ({error}), expected that encoding; save it again") from error


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers. Only a line feed ends one: U+2028 may stand in a sentence."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or brackets without end
        raise BadAnnotation(f"{where} is not JSON ({error}), expected a JSON value; fix or drop it") from error


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file that has one on each line, and where each stands."""
    for number, line in lines(path):
        where = f"{path}, line {number}"
        values = parse_json(line, where)
        if not isinstance(values, dict):
            raise BadAnnotation(f"{where} is {line[:80]!r}, expected a JSON object; fix or drop the line")
        yield where, values


def table(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file that are not blank, with the number of the line on which each ends."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in rows:
            if any(cell.strip() for cell in row):
                yield rows.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise BadAnnotation(
            f"{path}, line {rows.line_num}: {error}, expected quotes around a whole cell, or none; fix the line"
        ) from error


# ---------------------------------------------------------------- what stands in them


def words(values: Mapping[str, Any], name: str, where: str) -> str:
    """A text that can be shown and stored; half of a surrogate pair cannot."""
    text = field(values, name, where)
    if not isinstance(text, str) or not encodable(text):
        raise BadAnnotation(f"{where}: {name} is {text!r}, expected a text; fix it")
    return text


def label(values: Mapping[str, Any], name: str, where: str) -> str:
    """An id, which some files write as a number."""
    value = field(values, name, where)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip() or not encodable(value):
        raise BadAnnotation(f"{where}: {name} is {value!r}, expected a number or a text; fix it")
    return value.strip()


def windows(pairs: Any, name: str, where: str) -> tuple[tuple[float, float], ...]:
    """[[start, end], …] as numbers, whatever they are: to mend them is another's task."""
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise BadAnnotation(f"{where}: {name} is {str(pairs)[:80]}, expected pairs [start, end]; fix it")
    return tuple((number(start, name, where), number(end, name, where)) for start, end in pairs)


def number(value: Any, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAnnotation(f"{where}: {name} is {value!r}, expected a number of seconds; fix it")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def field(values: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in values:
        raise BadAnnotation(f"{where} has the fields {', '.join(values) or 'none'}, expected also {name}; add it")
    return values[name]


def encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------- and back


def write_whole(path: Path, text: str) -> None:
    """The file appears, or takes the place of another, when it is whole. One that says the same is left as it is."""
    if path.is_file() and path.read_bytes() == text.encode():
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(text.encode())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
