"""The example of docs/engines.md runs."""

import re
from typing import Any

import pytest

from tests import ROOT


def test_the_example_runs(postgres_url: str, schema_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/engines.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace('"postgresql://midreel@db.example/films"', f"{postgres_url!r}, name={schema_name!r}")
    names: dict[str, Any] = {}
    exec(code, names)
    assert capsys.readouterr().out == "video id\n"
