"""The ablation of the paper (Table 1), its control (Table 2) and zero-shot, on one dataset, over several seeds."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from midreel import recipes
from midreel.datasets.dataset import Dataset
from midreel.errors import BadSetting, UnknownName
from midreel.evaluation import tables
from midreel.evaluation.tables import Spread
from midreel.experiments import runs
from midreel.io.files import write_durably
from midreel.methods.model_files import ZERO_SHOT, ZERO_SHOT_CLIPS
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.fit import Monitor, expect_same

_BASE = {"tcpl": False, "cbva": False, "clips": "uniform", "adaptive": False}
_TCPL = _BASE | {"tcpl": True}
_CBVA = _TCPL | {"cbva": True}
_OP_TOME = _CBVA | {"clips": "order_preserving"}

METHOD = "msc"
UNTRAINED = (ZERO_SHOT, ZERO_SHOT_CLIPS)  # the first rows, without training
# The settings of each row, by its name on the command line. Rows (a) to (e) add one part each.
ROWS: dict[str, dict[str, Any]] = {
    "base": _BASE,
    "tcpl": _TCPL,
    "cbva": _CBVA,
    "op_tome": _OP_TOME,
    "msc": _OP_TOME | {"adaptive": True},
    "vcpl_retrieved": _TCPL | {"vcpl": "retrieved"},
    "vcpl_uniform": _TCPL | {"vcpl": "uniform"},
}
LABELS = {
    ZERO_SHOT: "CLIP zero-shot",
    ZERO_SHOT_CLIPS: "CLIP zero-shot, with OP-ToMe clips",
    "base": "(a) base",
    "tcpl": "(b) + TCPL",
    "cbva": "(c) + naive CBVA",
    "op_tome": "(d) + OP-ToMe",
    "msc": "(e) + adaptive = MSC",
    "vcpl_retrieved": "(b) + VCPL, retrieved segment",
    "vcpl_uniform": "(b) + VCPL, uniform sampling",
}

Figures = dict[str, float]
FIGURES = "figures.json"


@dataclass(frozen=True, kw_only=True)
class Study:
    """The results of an ablation: for each row, the mean and spread of each figure over the seeds."""

    rows: Mapping[str, Mapping[str, Spread]]

    def table(self, form: str = "markdown") -> str:
        """Return the results as a table, in a format of `runs.FORMATS`."""
        return runs.table({LABELS[row]: figures for row, figures in self.rows.items()}, form)

    def to_dict(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        return {row: {name: vars(cell) for name, cell in figures.items()} for row, figures in self.rows.items()}


def run(
    folder: Path,
    out: Path,
    *,
    recipe: str | None = None,
    features: str | None = None,
    seeds: int = 3,
    rows: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str = "cpu",
    monitor_of: Callable[[str, Recipe], Monitor] | None = None,
) -> Study:
    """Train and evaluate every row with every seed, and write ablation.json and ablation.md.

    Finished runs in `out` are skipped. The table has all finished rows with these seeds. It also has zero-shot rows if
    one CLIP made the features of both sentences and frames.

    Args:
        folder: The dataset folder.
        out: The folder of the study, with one run folder per row and seed.
        recipe: The name of a recipe. Default: the one of the dataset.
        features: The kind of features, for a release with several.
        seeds: The number of seeds, counted from the seed of the recipe.
        rows: Names from `ROWS`. Default: all.
        changes: Settings that apply to all rows.
        device: The torch device.
        monitor_of: Returns a progress monitor for a run, given its title and its recipe.

    Raises:
        UnknownName: A row, recipe or setting does not exist.
        BadSetting: `changes` has a setting that distinguishes the rows.
        BadRun: A run in `out` has another recipe or dataset.
    """
    changes = dict(changes or {})
    wanted = list(ROWS) if rows is None else list(dict.fromkeys(rows))
    for row in wanted:
        if row not in ROWS:
            raise UnknownName.among("row of the ablation", row, ROWS)
    taken = sorted(set(changes) & {name for settings in ROWS.values() for name in settings})
    if taken:
        raise BadSetting(f"changes has {', '.join(taken)}, expected settings that all rows share. Choose rows instead.")
    dataset = Dataset.open(folder, recipe, features=features)
    name = recipe or recipes.name_for(METHOD, dataset.name)
    base = runs.recipe_for(dataset, METHOD, name, changes)
    seeds_of_row = range(base.seed, base.seed + seeds)

    def recipe_of(row: str, seed: int) -> Recipe:
        return runs.recipe_for(dataset, METHOD, name, changes | ROWS[row] | {"seed": seed})

    for seed, row in product(seeds_of_row, wanted):  # seeds outside, so that the first seed is complete early
        one = recipe_of(row, seed)
        monitor = monitor_of and monitor_of(f"{row}, seed {seed}", one)
        _examine(dataset, one, _folder(out, row, seed), device, monitor)
    comparable = UNTRAINED if dataset.store.fingerprint.joint else ()
    figures = {untrained: [_figures_of(untrained, dataset, base, device)] for untrained in comparable}
    for row in ROWS:
        done = [seed for seed in seeds_of_row if (_folder(out, row, seed) / FIGURES).exists()]
        for seed in done:
            expect_same(_folder(out, row, seed), recipe_of(row, seed), dataset.card())
        if done:
            figures[row] = [_read_figures(_folder(out, row, seed)) for seed in done]
    study = Study(rows=tables.over_seeds(figures))
    write_durably(out / "ablation.json", tables.to_json(study.rows))
    write_durably(out / "ablation.md", study.table())
    return study


def _folder(out: Path, row: str, seed: int) -> Path:
    return out / row / f"seed-{seed}"


def _examine(dataset: Dataset, recipe: Recipe, folder: Path, device: str, monitor: Monitor | None) -> None:
    if (folder / FIGURES).exists():
        expect_same(folder, recipe, dataset.card())
    else:
        runs.train_or_resume(dataset, recipe, folder, device=device, monitor=monitor)
        figures = _figures_of(str(folder), dataset, recipe, device)
        write_durably(folder / FIGURES, json.dumps(figures, indent=2) + "\n")


def _read_figures(folder: Path) -> Figures:
    figures: Figures = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    return figures


def _figures_of(model: str, dataset: Dataset, recipe: Recipe, device: str) -> Figures:
    method = runs.load(model, dataset, recipe)
    return runs.examine(method, FeatureSet.of(method, dataset, runs.reporting_split(dataset)), device=device).figures()
