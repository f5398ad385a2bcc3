"""Reporters write what a run measures; the real packages write it, without a network."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from midreel.errors import BadPackage, UnknownName
from midreel.training.reporters import REPORTERS, Reporter, figures_of, open_reporter
from tests import ROOT

RECORD = {"epoch": 0, "lr": 0.01, "loss": {"nce": 2.5}, "metrics": {"R@1": 10.0, "SumR": 12.5}}
PROGRAM = """
import json, sys
from pathlib import Path
from midreel.training.reporters import open_reporter

name, folder, first, records = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
with open_reporter(name, folder, first, {"lr": 0.01}) as reporter:
    for record in records:
        reporter.write(record)
"""


def report(name: str, folder: Path, first: int, *records: dict[str, Any], **environment: str) -> None:
    """Report in a process of its own, because these packages start threads and processes, and warn."""
    folder.mkdir(exist_ok=True)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, str(folder), str(first), json.dumps(records)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr


def test_every_reporter_has_the_same_figures() -> None:
    assert figures_of(RECORD) == {"loss/nce": 2.5, "metrics/R@1": 10.0, "metrics/SumR": 12.5, "lr": 0.01}


def test_tensorboard_writes_events_that_read_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_reporter(None, tmp_path, 0, {}) as reporter:
        assert isinstance(reporter, Reporter)
        reporter.write(RECORD)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.value for event in events.Scalars("metrics/SumR")] == [12.5]


def test_none_writes_nothing(tmp_path: Path) -> None:
    with open_reporter("none", tmp_path, 0, {}) as reporter:
        assert isinstance(reporter, Reporter)
        reporter.write(RECORD)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_wandb_offline(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    later = RECORD | {"epoch": 1, "metrics": {"SumR": 77.25}}
    report("wandb", folder, 0, RECORD, WANDB_MODE="offline", WANDB_SILENT="true")
    report("wandb", folder, 1, later, WANDB_MODE="offline", WANDB_SILENT="true")
    files = sorted(folder.rglob("run-*.wandb"))
    assert len({file.stem for file in files}) == 1  # one run, written in two parts
    content = b"".join(file.read_bytes() for file in files)
    for word in (b"metrics/SumR", b"12.5", b"77.25", b"loss/nce"):
        assert word in content


@pytest.mark.slow
def test_trackio(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    report("trackio", tmp_path / "run", 0, RECORD, TRACKIO_DIR=str(tmp_path / "trackio"))
    import sqlite3

    (database,) = (tmp_path / "trackio").rglob("midreel*.db")
    with sqlite3.connect(database) as connection:
        (logged,) = connection.execute("SELECT metrics FROM metrics").fetchone()
    text = logged.decode() if isinstance(logged, bytes) else logged
    assert "metrics/SumR" in text
    assert "12.5" in text


def test_unknown_and_missing_reporters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="tensorboard"):
        open_reporter("tensorbord", tmp_path, 0, {})
    for name in set(REPORTERS) - {"none"}:
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
        with pytest.raises(BadPackage, match=name):
            open_reporter(name, tmp_path, 0, {})
    with open_reporter(None, tmp_path, 0, {}) as reporter:  # the default does not require tensorboard
        reporter.write(RECORD)
    assert list(tmp_path.iterdir()) == []
