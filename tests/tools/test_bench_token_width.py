"""What wider tokens cost, on a tiny index."""

import re

import pytest

from benchmarks import token_width as tool


def test_wider_tokens_take_more_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    tool.main(["--videos", "3", "--rounds", "1"])
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ([\d.]+) \|$", capsys.readouterr().out, re.MULTILINE)
    assert [int(width) for width, _, _ in rows] == list(tool.WIDTHS)
    sizes = [int(size) for _, size, _ in rows]
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 76  # as docs/index-format.md says
    assert float(rows[0][2]) == 1.0
