"""The examples of docs/notebooks.md and docs/mcp.md run on a real library."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from midreel.datasets import playhouse
from midreel.library.searcher import Searcher
from tests import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    playhouse.write_dataset(folder / "videos", seed=0, num_test=2)
    with Searcher.create(folder / "midreel-library") as searcher:
        searcher.add(folder / "videos")
    return folder


@pytest.mark.parametrize("name", ["notebooks", "mcp"])
def test_the_examples(folder: Path, name: str) -> None:
    page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    program = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    shown = re.findall(r"^# (\[.*)$", program, re.MULTILINE)
    assert ended.stdout.splitlines() == shown if shown else ended.stdout.count("playhouse-test") == 2
