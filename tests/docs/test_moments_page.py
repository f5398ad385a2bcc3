"""docs/moments.md shows what is really printed."""

import re
from pathlib import Path

import pytest

from tests import ROOT, zoo

PAGE = (ROOT / "docs/moments.md").read_text(encoding="utf-8")


def test_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    zoo.film(tmp_path / "beach.mp4")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})
        shown = re.findall(r"^(?:print.*?  |    )# (.*)$", block, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == shown
