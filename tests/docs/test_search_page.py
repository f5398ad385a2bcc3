"""docs/search.md shows what is really printed, but for figures that depend on the machine."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests import ROOT
from tests.conftest import Command

PAGE = (ROOT / "docs/search.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def masked(text: str) -> str:
    """Without what another processor may compute otherwise in the last digit, or faster."""
    text = re.sub(r"[▁-█]{24}", "CURVE", text)
    text = re.sub(r"\d:\d\d–\d:\d\d", "WHEN", text)  # noqa: RUF001
    text = re.sub(r"\b0\.\d{3}\b", "SCORE", text)
    text = re.sub(r"SCORE +\d+%", "SCORE CONFIDENCE", text)
    text = re.sub(r" of video in .*", " of video", text)
    text = re.sub(r"\d+\.\d+ MB", "SIZE", text)
    return re.sub(r", in \d+\.\d s", "", text)


def run(line: str, midreel: Command) -> str:
    command, *words = shlex.split(line)
    match command:
        case "midreel":
            ended = midreel(*words)
            assert ended.code == 0, ended.err
            return ended.out
        case "mkdir":
            Path(words[0]).mkdir()
        case "mv":
            shutil.move(*words)
        case "rm":
            Path(words[0]).unlink()
        case _:
            pytest.fail(f"the page runs {command}")
    return ""


@pytest.mark.slow
def test_the_page(
    midreel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("text"):
        printed = ""
        for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            printed += f"$ {line}\n{run(line, midreel)}"
        assert masked(printed.replace(str(tmp_path), "/home/you")) == masked(block)
    (example,) = blocks("python")
    capsys.readouterr()
    exec(example, {})
    expected = "".join(f"{line}\n" for line in re.findall(r"print.*?  # (.*)$", example, re.MULTILINE))
    assert capsys.readouterr().out == expected
