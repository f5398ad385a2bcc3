"""docs/train.md states the recipes as they are."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from midreel import recipes
from midreel.features.kinds import KINDS
from tests import ROOT
from tests.conftest import Command
from tests.experiments.small import as_options

PAGE = (ROOT / "docs/train.md").read_text(encoding="utf-8")


def test_the_table_of_recipes() -> None:
    head, *rows = (re.findall(r"[^|]+", line) for line in PAGE.splitlines() if re.match(r"\| (\||`\w+`.*\d \|$)", line))
    names = [name.strip(" `") for name in head if name.strip()]
    assert names == ["qvhighlights", "tvr", "activitynet", "charades"]
    stated = {name: {} for name in names}
    for label, *values in rows:
        for setting in re.findall(r"`(\w+)`", label):
            for name, value in zip(names, values, strict=True):
                stated[name][setting] = float(value)
    for name, settings in stated.items():
        recipe = asdict(recipes.build("msc", name))
        own = recipe | recipe.pop("config")
        assert {setting: own[setting] for setting in settings} == settings
    # Whatever differs between two recipes is in the table.
    flat = [(lambda r: r | r.pop("config"))(asdict(recipes.build("msc", name))) for name in names]
    differing = {setting for setting in flat[0] if len({str(each[setting]) for each in flat}) > 1}
    assert differing - {"features"} == set(stated["tvr"])


def test_the_table_of_features() -> None:
    rows = {name: line for name, line in re.findall(r"^\| `([\w-]+)` (\|.*\|)$", PAGE, re.MULTILINE) if name in KINDS}
    assert set(rows) == set(KINDS)
    for name, line in rows.items():
        kind = KINDS[name]
        assert {tuple(map(int, pair)) for pair in re.findall(r"(\d+) / (\d+)", line)} == set(kind.by_dataset.values())
        assert line.endswith(f"| {kind.max_words} |")


def test_what_all_recipes_share() -> None:
    for name in ("qvhighlights", "tvr", "activitynet", "charades"):
        recipe = recipes.build("msc", name)
        assert (recipe.batch_size, recipe.epochs, recipe.patience) == (128, 100, 10)
        assert (recipe.warmup, recipe.weight_decay, recipe.selection, recipe.holdout) == (0.01, 0.01, "val", 0.1)


def test_what_a_run_leaves(run_folder: Path) -> None:
    for path in run_folder.iterdir():
        assert f"`{path.name}" in PAGE or path.name.startswith("events")


@pytest.mark.parametrize("option", sorted(set(re.findall(r"--[a-z]+", PAGE)) - {"--logdir", "--nnodes", "--rdzv"}))
def test_the_options_exist(midreel: Command, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = midreel("train", "--help").out + midreel("evaluate", "--help").out
    assert option in shown


def test_a_setting_is_changed_as_the_page_says(midreel: Command, dataset_folder: Path, tmp_path: Path) -> None:
    options = as_options(selection="holdout", epochs=1)
    ended = midreel("train", "--dataset", dataset_folder, "--out", tmp_path / "run", *options)
    assert ended.code == 0
    assert "On training videos that were held out" in (tmp_path / "run/best/README.md").read_text()
