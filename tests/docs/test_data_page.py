"""docs/data.md shows what is really printed."""

import re
from pathlib import Path

import pytest

from midreel.datasets.verify import survey
from tests import ROOT
from tests.conftest import Command
from tests.datasets.real import real_file
from tests.datasets.test_verify import made

PAGE = (ROOT / "docs/data.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_own_data(midreel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("beach.mp4", "trip/kitchen.mov", "garden.mp4"):
        (tmp_path / "clips" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clips" / name).touch()
    (table,) = blocks("csv")
    (tmp_path / "clips/annotations.csv").write_text(table)
    ended = midreel("data", "verify", "clips")
    assert (ended.code, ended.out) == (3, blocks("text")[0])


def test_lines_of_json(midreel: Command, tmp_path: Path) -> None:
    (lines,) = blocks("json")
    (tmp_path / "annotations.jsonl").write_text(lines)
    (tmp_path / "beach.mp4").touch()
    assert midreel("data", "verify", tmp_path).code == 0


def test_real_files(midreel: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (("charades", "charades_test_release.jsonl"), ("qvhighlights", "highlight_val_release.jsonl")):
        (tmp_path / "data" / names[0]).mkdir(parents=True)
        (tmp_path / "data" / names[0] / names[1]).symlink_to(real_file(*names))
    monkeypatch.chdir(tmp_path)
    ended = midreel("data", "verify", "data")
    assert (ended.code, ended.out) == (0, blocks("text")[1])
    exec(blocks("python")[0], {})


def test_counts_that_fit_no_variant() -> None:
    assert survey(made("tvr", val=(2177, 10885))).to_text().splitlines()[-1] == blocks("text")[2].rstrip("\n")
