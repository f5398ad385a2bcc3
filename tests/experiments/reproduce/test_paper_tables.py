"""The registry: all tables and figures, with the printed numbers and the settings of their rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from midreel.errors import BadSetting, UnknownName
from midreel.experiments import reproduce
from midreel.experiments.reproduce import EXPERIMENTS
from midreel.experiments.reproduce.rows import recipe_of
from midreel.experiments.reproduce.specs import Context, Experiment, Row
from midreel.experiments.trainings import Place, Training
from midreel.methods.msc import MSCConfig
from midreel.recipes import published
from tests.experiments.small import SETTINGS

ROWS = [
    pytest.param(each, row, id=f"{name}-{row.key}")
    for name, each in EXPERIMENTS.items()
    for rows in each.rows.values()
    for row in rows
]


@pytest.mark.parametrize(("experiment", "row"), ROWS)
def test_printed_recalls_sum_up(experiment: Experiment, row: Row) -> None:
    printed = [row.paper[name] for name in published.COLUMNS if name in row.paper]
    if len(printed) == 5:
        assert printed[-1] == pytest.approx(sum(printed[:-1]), abs=0.31)  # each is rounded to one digit


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
def test_rows_have_unique_names_and_pairs_exist(experiment: Experiment) -> None:
    for benchmark, rows in experiment.rows.items():
        assert len({row.key for row in rows}) == len({row.label for row in rows}) == len(rows)
        assert [row.key for row in experiment.rows_for(benchmark)] == [row.key for row in rows]
    every = {row.key for rows in experiment.rows.values() for row in rows}
    assert {key for pair in experiment.pairs for key in pair} <= every


def test_the_papers_differences() -> None:
    """What the text of the paper says about its tables."""
    of = {row.key: row.paper["SumR"] for row in EXPERIMENTS["2"].rows_for("")}
    assert of["msc"] - of["vcpl_uniform"] == pytest.approx(2.3)
    of = {row.key: row.paper["SumR"] for row in EXPERIMENTS["4"].rows_for("") if row.paper}
    assert of["msc"] - of["proto_prvr"] == pytest.approx(8.0)
    for row in filter(lambda row: row.paper, EXPERIMENTS["8"].rows_for("")):
        for space in ("text", "video"):
            intra, total, ratio = (row.paper[f"{space} {name}"] for name in ("Intra Sim", "Total Sim", "Diff. Norm"))
            assert ratio == pytest.approx((intra - total) / (intra + total), abs=2e-3)


def test_the_default_row_is_the_papers_method() -> None:
    (msc,) = EXPERIMENTS["1"].rows_for("", ["msc"])
    assert MSCConfig(**msc.settings) == MSCConfig()


def test_tables_share_the_run_of_the_default(dataset_folder: Path, tmp_path: Path) -> None:
    place = Place(folder=dataset_folder)
    context = Context(place=place, out=tmp_path, changes=SETTINGS)
    defaults = {"1": "msc", "2": "msc", "3a": "15:30", "3b": "15:30", "3c": "own", "3d": "0.1", "3e": "75"}
    defaults |= {"3f": "+0.00", "4": "msc", "5": "msc", "8": "msc", "9": "msc", "A1": "+0.00", "A2": "msc"}
    folders = set()
    for name, key in defaults.items():
        (row,) = EXPERIMENTS[name].rows_for("", [key])
        folders.add(Training.plan(place, context.dataset, recipe_of(context, row, 0), tmp_path).folder)
    assert len(folders) == 1


def test_thresholds_are_distances_from_the_default(dataset_folder: Path, tmp_path: Path) -> None:
    context = Context(place=Place(folder=dataset_folder), out=tmp_path, changes=SETTINGS)
    found = [recipe_of(context, row).config.similarity_threshold for row in EXPERIMENTS["3f"].rows_for("")]
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert EXPERIMENTS["A1"].rows_for("charades")[0].key == "-0.15"
    paper = replace(context, place=Place(folder=dataset_folder, name="qvhighlights"))
    found = [recipe_of(paper, row).config.similarity_threshold for row in EXPERIMENTS["3f"].rows_for("")]
    assert found == pytest.approx([0.5, 0.6, 0.7, 0.8])


def test_settings_that_distinguish_the_rows_cannot_be_changed(dataset_folder: Path, tmp_path: Path) -> None:
    context = Context(place=Place(folder=dataset_folder), out=tmp_path, changes=SETTINGS | {"tcpl": True})
    with pytest.raises(BadSetting, match="tcpl"):
        recipe_of(context, EXPERIMENTS["1"].rows_for("", ["msc"])[0])


def test_names() -> None:
    assert reproduce.find("a2").name == reproduce.find("table-A2").name == "A2"
    assert reproduce.find("fig1").folder == "fig1"
    with pytest.raises(UnknownName, match="fig1"):
        reproduce.find("fig2")
    with pytest.raises(UnknownName, match="'tcpl'"):
        EXPERIMENTS["1"].rows_for("", ["tcp"])
