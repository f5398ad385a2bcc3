"""A run is never handed over worse than zero-shot."""

import json
import shutil
from pathlib import Path

import pytest

from midreel import load_method, recipes
from midreel.datasets.dataset import Dataset
from midreel.experiments import fallback, runs
from midreel.io import folders
from midreel.recipes.recipe import Recipe
from tests.experiments.small import SETTINGS


@pytest.fixture
def dataset(dataset_folder: Path) -> Dataset:
    return Dataset.open(dataset_folder)


@pytest.fixture
def run(run_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


@pytest.fixture
def recipe() -> Recipe:
    return recipes.build("msc", "playhouse", SETTINGS)


def set_sum(run: Path, value: float) -> None:
    """Change the SumR that the best epoch had, so that either model wins."""
    path = run / "best/metrics.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"metrics": record["metrics"] | {"SumR": value}}))


def method_in(folder: Path) -> str:
    return str(load_method(folder).config.method)


def test_a_better_model_is_kept(run: Path, dataset: Dataset, recipe: Recipe) -> None:
    set_sum(run, 400.0)
    weights = (run / "best/model.safetensors").read_bytes()
    found = fallback.compare(dataset, recipe, run)
    assert found is not None
    assert (found.kept, found.is_worse, found.num_videos) == ("best", False, 3)
    assert found.gain == 400.0 - found.zero_shot >= 0
    assert (run / "best/model.safetensors").read_bytes() == weights
    assert not (run / "trained").exists()
    assert f"{found.gain:+.1f} SumR" in found.text(run)


def test_a_worse_model_is_replaced_and_kept_aside(run: Path, dataset: Dataset, recipe: Recipe) -> None:
    set_sum(run, 1.0)
    weights = (run / "best/model.safetensors").read_bytes()
    found = fallback.compare(dataset, recipe, run)
    assert found is not None
    assert (found.kept, found.is_worse) == ("trained", True)
    assert (run / "trained/model.safetensors").read_bytes() == weights
    assert method_in(run / "best") == "clip_zero_shot"
    assert method_in(run / "trained") == "msc"
    # The model in best/ has the figures that were compared, by evaluating it again.
    recalls, _ = runs.recalls_for_choosing(runs.load(str(run), dataset), dataset, recipe)
    assert recalls["SumR"] == pytest.approx(found.zero_shot)
    assert "without training" in (run / "best/README.md").read_text()
    assert str(run / "trained") in found.text(run)


def test_zero_shot_is_the_better_of_two(run: Path, dataset: Dataset, recipe: Recipe) -> None:
    found = fallback.compare(dataset, recipe, run)
    assert found is not None
    both = [
        runs.recalls_for_choosing(runs.load(name, dataset, recipe), dataset, recipe)[0]["SumR"]
        for name in ("zero-shot", "zero-shot-clips")
    ]
    assert found.zero_shot == max(both)


def test_a_comparison_is_made_once(
    run: Path, dataset: Dataset, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_sum(run, 1.0)
    first = fallback.compare(dataset, recipe, run)
    monkeypatch.setattr(runs, "recalls_for_choosing", None)
    assert fallback.compare(dataset, recipe, run) == first


@pytest.mark.parametrize("replaced", [0, 1])
def test_a_killed_comparison_is_made_again(
    run: Path, dataset: Dataset, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, replaced: int
) -> None:
    """Killed before the trained model was copied, and before zero-shot was written."""
    set_sum(run, 1.0)
    weights = (run / "best/model.safetensors").read_bytes()
    count = iter(range(9))

    def kill(target: Path) -> object:
        if next(count) == replaced:
            raise KeyboardInterrupt
        return folders.replacing(target)

    with monkeypatch.context() as patch:
        patch.setattr(fallback, "replacing", kill)
        with pytest.raises(KeyboardInterrupt):
            fallback.compare(dataset, recipe, run)
    assert not (run / "zero_shot.json").exists()
    found = fallback.compare(dataset, recipe, run)
    assert found is not None
    assert found.trained == 1.0
    assert (run / "trained/model.safetensors").read_bytes() == weights
    assert method_in(run / "best") == "clip_zero_shot"


def test_the_trained_model_can_be_restored(run: Path, dataset: Dataset, recipe: Recipe) -> None:
    set_sum(run, 1.0)
    weights = (run / "best/model.safetensors").read_bytes()
    fallback.compare(dataset, recipe, run)
    fallback.restore(run)
    assert (run / "best/model.safetensors").read_bytes() == weights
    assert not (run / "trained").exists()
    assert not (run / "zero_shot.json").exists()
    fallback.restore(run)  # again: nothing to do
    assert (run / "best/model.safetensors").read_bytes() == weights
