from pathlib import Path

import pytest

from midreel.datasets import parsing
from midreel.errors import BadAnnotation


def test_lines_are_numbered_and_blank_ones_left_out(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("\ufeffone\r\n\r\n \ntwo \u2028 three".encode())
    assert [*parsing.lines(tmp_path / "text")] == [(1, "one"), (4, "two \u2028 three")]


def test_lines_of_json_are_objects(tmp_path: Path) -> None:
    (tmp_path / "text").write_text('{"a": 1}\n[2]\n')
    lines = parsing.json_lines(tmp_path / "text")
    assert next(lines) == (f"{tmp_path / 'text'}, line 1", {"a": 1})
    with pytest.raises(BadAnnotation, match=r"text, line 2 is '\[2\]', expected a JSON object; fix or drop the line"):
        next(lines)


def test_rows_may_go_over_several_lines() -> None:
    text = 'a,b\r\n"one\r\n two", three \r\n,\r\n4,5'
    assert [*parsing.table(Path("table"), text, ",")] == [
        (1, ["a", "b"]),
        (3, ["one\r\n two", "three"]),
        (5, ["4", "5"]),
    ]


def test_a_cell_without_end() -> None:
    with pytest.raises(BadAnnotation, match=r"table, line 2: field larger than field limit .*, expected quotes around"):
        [*parsing.table(Path("table"), "a\n" + "x" * 200_000, ",")]


def test_a_number_that_no_float_holds_is_infinite() -> None:
    assert parsing.number(10**400, "end", "line 1") == float("inf")
    assert parsing.number(3, "end", "line 1") == 3.0


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"\xff\xfe")
    with pytest.raises(BadAnnotation, match=r"text is not UTF-8 \(.*\), expected that encoding; save it again"):
        parsing.read_text(tmp_path / "text")
