from pathlib import Path

import pytest

from midreel.experiments import ablation
from tests.experiments.small import SETTINGS
from tools import recalls_by_action as tool


def test_recalls_of_still_and_moving_scenes() -> None:
    ranks = {"above": [1, 20], "spins": [2, 3, 7, 1], "beside": [1, 5]}
    assert tool.recalls(ranks, "still") == {"still R@1": 50.0, "still R@5": 75.0, "still R@10": 75.0}
    assert tool.recalls(ranks, "moving") == {"moving R@1": 25.0, "moving R@5": 75.0, "moving R@10": 100.0}


def test_table_of_an_ablation(dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = SETTINGS | {"epochs": 1}
    ablation.run(dataset_folder, tmp_path, seeds=1, rows=["base"], changes=settings)
    tool.main([str(dataset_folder), str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("|  | still R@1 | still R@5 |")
    assert lines[2].startswith("| (a) base | ")
