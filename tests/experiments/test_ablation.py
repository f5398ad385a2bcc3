import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from midreel.errors import BadRun, BadSetting, UnknownName
from midreel.evaluation.tables import NONE_SHOWN, Spread
from midreel.experiments import ablation
from midreel.methods.msc import MSCConfig
from midreel.recipes.recipe import Recipe
from midreel.training.fit import Monitor
from tests.experiments.small import SETTINGS


class Titles:
    """Records the runs that it is asked to monitor."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, title: str, recipe: Recipe) -> Monitor:
        self.seen.append(title)
        return self

    def step(self, *_: object) -> None:
        pass

    def epoch(self, *_: object) -> None:
        pass


def test_each_row_adds_a_part() -> None:
    settings = [ablation.ROWS[row] for row in ("base", "tcpl", "cbva", "op_tome", "msc")]
    changes = [
        {name: after[name] for name in after if after[name] != before[name]} for before, after in pairwise(settings)
    ]
    assert changes == [{"tcpl": True}, {"cbva": True}, {"clips": "order_preserving"}, {"adaptive": True}]
    assert MSCConfig(**ablation.ROWS["msc"]) == MSCConfig()  # the last one is the paper's method
    assert set(ablation.LABELS) == {*ablation.UNTRAINED, *ablation.ROWS}


@pytest.mark.slow
def test_a_study(dataset_folder: Path, tmp_path: Path) -> None:
    titles = Titles()
    options = {"rows": ["base", "tcpl"], "changes": SETTINGS | {"epochs": 1}, "monitor_of": titles}
    study = ablation.run(dataset_folder, tmp_path, seeds=1, **options)
    assert titles.seen == ["base, seed 1", "tcpl, seed 1"]
    assert list(study.rows) == [*ablation.UNTRAINED, "base", "tcpl"]
    figures = json.loads((tmp_path / "base/seed-1/figures.json").read_text())
    assert study.rows["base"]["SumR"] == Spread.of([figures["SumR"]])
    assert json.loads((tmp_path / "ablation.json").read_text())["base"]["SumR"] == study.to_dict()["base"]["SumR"]
    assert (tmp_path / "ablation.md").read_text() == study.table()
    assert "| (b) + TCPL |" in study.table()
    recipe = Recipe.from_json((tmp_path / "tcpl/seed-1/recipe.json").read_text())
    assert (recipe.config.tcpl, recipe.config.cbva, recipe.seed, recipe.epochs) == (True, False, 1, 1)

    # More seeds skip the finished runs: a changed figure stays.
    (tmp_path / "base/seed-1/figures.json").write_text(json.dumps(figures | {"SumR": -1.0}))
    again = ablation.run(dataset_folder, tmp_path, seeds=2, **options | {"rows": ["base", "base"]})
    second = json.loads((tmp_path / "base/seed-2/figures.json").read_text())
    assert again.rows["base"]["SumR"] == Spread.of([-1.0, second["SumR"]])
    assert again.rows["zero-shot"]["SumR"].num == 1
    assert again.rows["tcpl"]["SumR"].num == 1  # finished rows stay in the table
    # Runs with other settings are not reused.
    with pytest.raises(BadRun, match=r"config.width: 8, 4"):
        ablation.run(dataset_folder, tmp_path, seeds=1, rows=["base"], changes=options["changes"] | {"width": 4})


def test_an_unknown_row(dataset_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"'tcp'.*'tcpl'"):
        ablation.run(dataset_folder, tmp_path, rows=["base", "tcp"])
    assert not list(tmp_path.iterdir())


def test_settings_that_distinguish_the_rows_cannot_be_changed(dataset_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="clips, tcpl"):
        ablation.run(dataset_folder, tmp_path, changes={"tcpl": True, "clips": "uniform", "width": 8})


def test_undefined_figures_are_shown_as_a_dash() -> None:
    study = ablation.Study(rows={"base": {"SumR": Spread.of([math.nan, 1.0]), "R@1": Spread.of([1.0, 3.0])}})
    assert study.table().splitlines()[-1] == f"| (a) base | 2.0 ± 1.4 | {NONE_SHOWN} |"
