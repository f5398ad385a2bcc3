import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from midreel import recipes
from midreel.datasets.dataset import Dataset
from midreel.errors import BadModel
from midreel.evaluation.moments import curves, found_moment
from midreel.experiments import edges, runs
from midreel.experiments.edges import calibrate_model, find_edges
from midreel.experiments.model_export import export_model
from midreel.features.backbones.base import Backbone
from midreel.library.searcher import Searcher
from midreel.methods.base import evaluating
from midreel.methods.model_files import EDGES, edge_calibration
from midreel.ops.edges import PLAYHOUSE, calibrated
from midreel.training.data import FeatureSet
from midreel.types import Moment
from tests.experiments.small import SETTINGS

RATE = 0.5  # of `dataset_folder`


@pytest.fixture
def model(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder / "best", tmp_path / "model"))


@pytest.fixture
def dataset(dataset_folder: Path) -> Dataset:
    return Dataset.open(dataset_folder)


@pytest.mark.parametrize("at_once", [2, 100])
def test_edges_are_those_of_the_moment_that_a_search_shows(
    model: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(edges, "VIDEOS_AT_ONCE", at_once)
    method = runs.load(str(model), dataset)
    data = FeatureSet.of(method, dataset, "val")
    found = find_edges(method, data, RATE)
    with evaluating(method):
        videos = method.encode_videos(next(data.video_batches(100)))
        queries = method.encode_queries(next(data.query_batches(100)))
        drawn = curves(queries, videos, data.video_of_query, method.similarities)
    seconds = data.durations[data.video_of_query].numpy()[:, None]
    np.testing.assert_allclose(found.found, found_moment(drawn, method.curve_weights) * seconds, rtol=1e-5)
    assert found.true.tolist() == [[query.moments[0].start, query.moments[0].end] for query in data.queries]
    assert (found.slopes >= 1 / RATE - 1e-9).all()
    assert found.contained(found.calibrated()).mean(0).min() >= 0.8


def test_of_several_moments_the_nearest_counts() -> None:
    moments = (Moment(start=0.0, end=5.0), Moment(start=20.0, end=25.0))
    assert edges._nearest([18.0, 21.0], moments) == (20, 25)


def test_a_model_keeps_its_calibration(
    model: Path, dataset: Dataset, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = runs.load(str(model), dataset)
    data = FeatureSet.of(method, dataset, "val")
    calibrate_model(model, data, RATE)
    assert not (model / EDGES).exists()  # fewer queries than a calibration needs
    assert edge_calibration(model) is None
    monkeypatch.setattr(edges, "FEWEST", 9)
    calibrate_model(model, data, RATE)
    found = find_edges(method, data, RATE)
    expected = calibrated(found.found, found.true, found.slopes)
    assert edge_calibration(model) == expected != PLAYHOUSE
    assert json.loads((model / EDGES).read_text())["queries"] == len(data.queries)

    exported = export_model(model, tmp_path / "exported").folder
    assert edge_calibration(exported) == expected
    with Searcher.create(tmp_path / "own", model=str(model)) as searcher:
        assert searcher.generation.card.edges == expected
    with Searcher.create(tmp_path / "zero-shot", backbone="tiny-clip") as searcher:
        assert searcher.generation.card.edges is None


def test_training_measures_the_edges(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "FEWEST", 9)
    recipe = recipes.build("msc", "playhouse", SETTINGS | {"epochs": 1})
    best = runs.train(dataset, recipe, tmp_path / "run")
    method = runs.load(str(best), dataset)
    assert edge_calibration(best) == find_edges(method, FeatureSet.of(method, dataset, "val"), RATE).calibrated()


def test_a_damaged_calibration(model: Path) -> None:
    (model / EDGES).write_text('{"start": [1, 2]}')
    with pytest.raises(BadModel, match=EDGES):
        edge_calibration(model)
