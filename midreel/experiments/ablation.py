"""The paper's ablation (Table 1), its control (Table 2) and zero-shot, on one library, over several seeds."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midreel import recipes
from midreel.errors import UnknownName
from midreel.evaluation import tables
from midreel.evaluation.tables import Spread
from midreel.experiments import runs
from midreel.experiments.library import Library
from midreel.training.fit import Monitor, expect_same
from midreel.training.folders import write_text
from midreel.training.recipe import Recipe

_BASE = {"tcpl": False, "cbva": False, "clips": "uniform", "adaptive": False}
_TCPL = _BASE | {"tcpl": True}
_CBVA = _TCPL | {"cbva": True}
_OP_TOME = _CBVA | {"clips": "order_preserving"}

# Each row's settings, by the name that a command line takes; each of a to e adds a part to the one before.
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
    runs.ZERO_SHOT: "CLIP zero-shot",
    "base": "(a) base",
    "tcpl": "(b) + TCPL",
    "cbva": "(c) + naive CBVA",
    "op_tome": "(d) + OP-ToMe",
    "msc": "(e) + adaptive = MSC",
    "vcpl_retrieved": "(b) + VCPL, retrieved segment",
    "vcpl_uniform": "(b) + VCPL, uniform sampling",
}

Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Each row's figures over the seeds."""

    rows: Mapping[str, Mapping[str, Spread]]

    def to_markdown(self) -> str:
        return runs.table({LABELS[row]: figures for row, figures in self.rows.items()})

    def to_dict(self) -> dict[str, Any]:
        return {row: {name: vars(cell) for name, cell in figures.items()} for row, figures in self.rows.items()}


def run(
    root: Path,
    out: Path,
    *,
    data: str = "playhouse",
    seeds: int = 3,
    rows: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str = "cpu",
    monitor_of: Callable[[str, Recipe], Monitor] | None = None,
) -> Study:
    """Trains and examines every row with every seed. What is finished in `out` is not done again, and is refused if
    it was made from another recipe or other data.
    """
    wanted = list(ROWS) if rows is None else list(rows)
    for row in wanted:
        if row not in ROWS:
            raise UnknownName.among("row of the ablation", row, ROWS)
    library = Library.open(root)
    whole = recipes.build(data, changes or {})
    figures: dict[str, list[Figures]] = {runs.ZERO_SHOT: [_figures_of(runs.ZERO_SHOT, library, whole, device)]}
    for seed in range(whole.seed, whole.seed + seeds):  # seeds outside, so that a table of one seed is there early
        for row in wanted:
            recipe = recipes.build(data, dict(changes or {}) | ROWS[row] | {"seed": seed})
            monitor = monitor_of and monitor_of(f"{row}, seed {seed}", recipe)
            figures.setdefault(row, []).append(_row(library, recipe, out / row / f"seed-{seed}", device, monitor))
    study = Study(rows=tables.over_seeds(figures))
    write_text(out / "ablation.json", tables.to_json(study.rows))
    write_text(out / "ablation.md", study.to_markdown())
    return study


def _row(library: Library, recipe: Recipe, folder: Path, device: str, monitor: Monitor | None) -> Figures:
    done = folder / "figures.json"
    if done.exists():
        expect_same(folder, recipe, library.card())
    else:
        runs.train_or_resume(library, recipe, folder, device=device, monitor=monitor)
        write_text(done, json.dumps(_figures_of(str(folder), library, recipe, device), indent=2) + "\n")
    figures: Figures = json.loads(done.read_text(encoding="utf-8"))
    return figures


def _figures_of(model: str, library: Library, recipe: Recipe, device: str) -> Figures:
    method = runs.load(model, library, recipe)
    return runs.examine(method, library.prepare(method, "test"), device=device).figures()
