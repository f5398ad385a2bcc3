from pathlib import Path

import numpy as np
import pytest

from midreel.experiments import ablation, reproduce
from midreel.experiments.reproduce import running
from midreel.experiments.reproduce.specs import Context
from midreel.experiments.trainings import Place
from midreel.ops.moments import Curve
from tests.experiments.small import SETTINGS
from tools import compare_moments as tool


def test_window_is_shifted_into_the_video() -> None:
    edges = np.arange(11) / 10
    spans = np.broadcast_to(np.stack((edges[:-1], edges[1:]), -1), (3, 10, 2))
    scores = np.eye(10)[[0, 4, 9]]
    found = tool.around_best_frame({"frame": Curve(scores=scores, spans=spans)}, 0.2)
    np.testing.assert_allclose(found, [[0.0, 0.2], [0.35, 0.55], [0.8, 1.0]])


def test_compare_all_ways(dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    context = Context(
        place=Place(folder=dataset_folder), out=tmp_path, seeds=1, rows=["base"], changes=SETTINGS | {"epochs": 1}
    )
    running.run(reproduce.find("1"), context)
    tool.main([str(dataset_folder), str(tmp_path / "table-1")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", mIoU on val:")[0] for line in lines[: len(tool.WAYS)]] == list(tool.WAYS)
    titles = [line for line in lines[len(tool.WAYS) :] if line and not line.startswith("|")]
    assert titles == [ablation.LABELS[row] for row in ("zero-shot", "zero-shot-clips", "base")]
    assert sum(line.startswith("| peak of both, level 0.") for line in lines) == 3
