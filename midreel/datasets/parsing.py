"""Parse annotation files. Errors name the file, the line and the field."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from midreel.errors import BadAnnotation

# ---------------------------------------------------------------- files


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file. Every line ends with a line feed, and a byte order mark is dropped."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadAnnotation(f"{path} is not UTF-8 ({error}). Save it as UTF-8.") from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not blank."""
    # str.splitlines would also split at U+2028 and U+0085, which may occur within a sentence.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield number, line


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location (file and line) and the object of each line of a JSON Lines file."""
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        values = parse_json(line, where)
        if not isinstance(values, dict):
            raise BadAnnotation(f"{where} is {line[:80]!r}, expected a JSON object. Fix or delete the line.")
        yield where, values


def parse_json(text: str, where: str) -> Any:
    """Return the value that a JSON text describes. `where` is its location, for the error message."""
    try:
        return json.loads(text)
    # json raises ValueError also for a number of thousands of digits, and RecursionError for very deep nesting.
    except (ValueError, RecursionError) as error:
        raise BadAnnotation(f"{where} is not JSON ({error}). Fix or delete it.") from error


def table_rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV text that are not blank, with the number of the line on which each row ends.

    Args:
        path: The file of the text, for the error message.
        text: The content of the file.
        delimiter: The character between two cells.
    """
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for row in rows:
            if any(cell.strip() for cell in row):
                yield rows.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise BadAnnotation(
            f"{path}, line {rows.line_num}: {error}, expected quotes around a whole cell. Fix the line."
        ) from error


def write_if_changed(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically. A file with the same content is not touched."""
    if path.is_file() and path.read_bytes() == text.encode():
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(text.encode())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


# ---------------------------------------------------------------- fields
# `where` is the location of the values, and `name` is the name of the field. Both appear in error messages.


def get_field(values: Mapping[str, Any], name: str, where: str) -> Any:
    """Return the value of a required field.

    Args:
        values: The fields of an annotation.
        name: The name of the field.
        where: The file and line, for the error message.
    """
    if name not in values:
        raise BadAnnotation(f"{where} has the fields {', '.join(values) or 'none'}, expected also {name}. Add it.")
    return values[name]


def get_text(values: Mapping[str, Any], name: str, where: str) -> str:
    """Return the text of a required field. The text may be empty.

    Args:
        values: The fields of an annotation.
        name: The name of the field.
        where: The file and line, for the error message.
    """
    text = get_field(values, name, where)
    if not isinstance(text, str) or not is_encodable(text):
        raise BadAnnotation(f"{where}: {name} is {text!r}, expected text. Correct the value.")
    return text


def get_id(values: Mapping[str, Any], name: str, where: str) -> str:
    """Return the id in a required field. Some files write ids as integers.

    Args:
        values: The fields of an annotation.
        name: The name of the field.
        where: The file and line, for the error message.
    """
    value = get_field(values, name, where)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip() or not is_encodable(value):
        raise BadAnnotation(f"{where}: {name} is {value!r}, expected an integer or text. Correct the value.")
    return value.strip()


def parse_windows(pairs: Any, name: str, where: str) -> tuple[tuple[float, float], ...]:
    """Return `[[start, end], ...]` as tuples of seconds. The numbers may be in any order, infinite or NaN.

    Args:
        pairs: The value of the field.
        name: The name of the field, for the error message.
        where: The file and line, for the error message.
    """
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise BadAnnotation(
            f"{where}: {name} is {str(pairs)[:80]}, expected pairs such as [[3.5, 9.0]]. Correct the value."
        )
    return tuple((parse_seconds(start, name, where), parse_seconds(end, name, where)) for start, end in pairs)


def parse_seconds(value: Any, name: str, where: str) -> float:
    """Return a number as a float. An integer that is too large for a float becomes infinite.

    Args:
        value: The value of the field.
        name: The name of the field, for the error message.
        where: The file and line, for the error message.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadAnnotation(f"{where}: {name} is {value!r}, expected a number of seconds. Correct the value.")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8. A text with half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
