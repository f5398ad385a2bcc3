from pathlib import Path

import pytest
import torch

from midreel.experiments import ablation
from midreel.ops.moments import Curve
from tests.experiments.small import SETTINGS
from tools import compare_moments as tool


def test_a_window_is_moved_into_the_video() -> None:
    edges = torch.arange(11) / 10
    spans = torch.stack((edges[:-1], edges[1:]), -1).expand(3, 10, 2)
    scores = torch.nn.functional.one_hot(torch.tensor([0, 4, 9]), 10).float()
    found = tool.around_best_frame({"frame": Curve(scores=scores, spans=spans)}, 0.2)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.2], [0.35, 0.55], [0.8, 1.0]]))


def test_the_ways_are_compared(dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ablation.run(dataset_folder, tmp_path, seeds=1, rows=["base"], changes=SETTINGS | {"epochs": 1})
    tool.main([str(dataset_folder), str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", mIoU on val:")[0] for line in lines[: len(tool.WAYS)]] == list(tool.WAYS)
    titles = [line for line in lines[len(tool.WAYS) :] if line and not line.startswith("|")]
    assert titles == [ablation.LABELS[row] for row in ("zero-shot", "zero-shot-clips", "base")]
    assert sum(line.startswith("| peak of both, level 0.") for line in lines) == 3
