from pathlib import Path

import numpy as np
import pytest

from midreel import recipes
from midreel.datasets.dataset import Dataset
from midreel.experiments import comparison, runs
from midreel.training.data import FeatureSet
from tests.experiments.small import SETTINGS

LIKE = recipes.build("msc", "playhouse", SETTINGS)


@pytest.fixture(scope="module")
def dataset(dataset_folder: Path) -> Dataset:
    return Dataset.open(dataset_folder)


def test_groups_partition_the_queries(dataset: Dataset) -> None:
    method = runs.load("zero-shot", dataset, LIKE)
    data = FeatureSet.of(method, dataset, "test")
    found = comparison.groups_of(dataset, data)
    for kind in ("moment", "video", "scenes"):
        assert (sum(chosen.astype(int) for name, chosen in found.items() if kind in name) == 1).all() or kind == "video"
    examination = runs.examine(method, data)
    rows = comparison.recalls_by_group(examination, dataset, data)
    assert list(rows) == list(found)
    weighted = sum(rows[name]["queries"] * rows[name]["SumR"] for name in rows if "scenes" in name)
    assert weighted / len(data.queries) == pytest.approx(examination.report.recalls["SumR"])


def test_other_datasets_do_not_tell_what_moves(tmp_path: Path) -> None:
    assert comparison.still_or_moving(tmp_path, ["some video"]) == {}


def test_two_models(dataset: Dataset, run_folder: Path) -> None:
    found = comparison.compare([str(run_folder)], ["zero-shot"], dataset, "test", like=LIKE)
    same = comparison.compare(["zero-shot"], ["zero-shot"], dataset, "test", like=LIKE)
    assert found.rows[comparison.ALL]["B"] == same.rows[comparison.ALL]["A"]
    for row in same.rows.values():
        assert row["A - B"] == 0
        assert row["p, videos"] == 1
    assert "several runs" in found.text()
    assert np.isfinite(found.rows[comparison.ALL]["from"])
    assert found.to_dict()["runs"] == [1, 1]
