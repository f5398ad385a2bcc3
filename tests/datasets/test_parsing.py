from pathlib import Path

import pytest

from midreel.datasets import parsing
from midreel.errors import BadAnnotation


def test_lines_are_numbered_and_blank_lines_skipped(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("\ufeffone\r\n\r\n \ntwo \u2028 three".encode())
    assert [*parsing.read_lines(tmp_path / "text")] == [(1, "one"), (4, "two \u2028 three")]


def test_json_lines_must_be_objects(tmp_path: Path) -> None:
    (tmp_path / "text").write_text('{"a": 1}\n[2]\n')
    lines = parsing.read_json_lines(tmp_path / "text")
    assert next(lines) == (f"{tmp_path / 'text'}, line 1", {"a": 1})
    with pytest.raises(BadAnnotation, match=r"text, line 2 is '\[2\]'"):
        next(lines)


def test_rows_may_span_several_lines() -> None:
    text = 'a,b\r\n"one\r\n two", three \r\n,\r\n4,5'
    assert [*parsing.table_rows(Path("table"), text, ",")] == [
        (1, ["a", "b"]),
        (3, ["one\r\n two", "three"]),
        (5, ["4", "5"]),
    ]


def test_a_huge_cell_is_rejected() -> None:
    with pytest.raises(BadAnnotation, match="table, line 2: field larger than"):
        [*parsing.table_rows(Path("table"), "a\n" + "x" * 200_000, ",")]


def test_an_integer_too_large_for_a_float_is_infinite() -> None:
    assert parsing.parse_seconds(10**400, "end", "line 1") == float("inf")
    assert parsing.parse_seconds(3, "end", "line 1") == 3.0


def test_other_encodings_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe")
    with pytest.raises(BadAnnotation, match="text is not UTF-8"):
        parsing.read_text(tmp_path / "text")
