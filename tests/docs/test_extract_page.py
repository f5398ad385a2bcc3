"""docs/extract.md shows what is really printed."""

import json
import re
from pathlib import Path

import pytest

from tests import ROOT, zoo
from tests.conftest import Command

PAGE = (ROOT / "docs/extract.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def films(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "films"
    (folder / "trip").mkdir(parents=True)
    zoo.film(folder / "beach.mp4")
    zoo.film(folder / "trip/upright.mov", turned=90)
    zoo.film(folder / "trip/slides.mkv", [0.0, 5.0, 6.5])
    zoo.hit_in_the_middle(folder / "scratched.mp4")
    zoo.cut_short(folder / "download.mp4")
    zoo.song(folder / "album.mp4", cover=True)
    (folder / "notes.mp4").write_text("this is a text, whatever its name says\n" * 50)
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_runs(midreel: Command, films: Path) -> None:
    for shown in blocks("text"):
        ended = midreel("extract", "films")
        assert (ended.code, f"$ midreel extract films\n{ended.out}") == (3, shown)
    kept = json.loads((films / "features.quarantine.json").read_text())
    (shown,) = map(json.loads, blocks("json"))
    for case in (kept["album"], shown["album"]):
        case.pop("modified")
    assert kept["album"] == shown["album"]


@pytest.mark.usefixtures("films")
def test_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in blocks("python"):
        exec(block, names)
        expected = "".join(f"{line}\n" for line in re.findall(r"^print.*?  # (.*)$", block, re.MULTILINE))
        assert capsys.readouterr().out == expected
