import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from midreel import recipes
from midreel.datasets.dataset import Dataset
from midreel.errors import BadRun, BadSetting
from midreel.experiments.trainings import RESULT, Outcome, Place, Training, num_threads, work
from midreel.features.stores.store import FeatureStore
from midreel.features.stores.text_teacher import WithTextTeacher
from midreel.methods.base import join_texts
from midreel.types import TextFeatures, VideoFeatures
from tests.experiments.small import SETTINGS

RECIPE = recipes.build("msc", "playhouse", SETTINGS | {"epochs": 1})


def write_teacher(path: Path, dataset: Dataset, width: int = 6) -> Path:
    """Write a store of another backbone, with the sentences of a dataset and one video."""
    fingerprint = replace(dataset.store.fingerprint, backbone="other", word_width=width, source="other")
    rng = np.random.default_rng(0)
    store = FeatureStore.resume(path, fingerprint)
    frames = np.zeros((1, fingerprint.width), np.float32)
    store.add_video("unused", VideoFeatures(frames=frames, times=np.zeros(1, np.float32), duration=1.0))
    for text_id in dataset.store.text_ids():
        words = rng.normal(size=(2, width)).astype(np.float32)
        store.add_text(text_id, TextFeatures(words=words, sentence=np.zeros(fingerprint.width, np.float32)))
    store.close()
    return path


def test_a_folder_for_everything_that_decides_the_result(dataset_folder: Path, tmp_path: Path) -> None:
    place = Place(folder=dataset_folder)
    dataset = place.open()
    plan = Training.plan(place, dataset, RECIPE, tmp_path)
    assert plan.folder.name.startswith("msc-")
    assert plan.split == "test"
    same = replace(RECIPE, features="another name of the same features")
    assert Training.plan(place, dataset, same, tmp_path).folder == plan.folder
    others = [
        Training.plan(place, dataset, replace(RECIPE, seed=2), tmp_path),
        Training.plan(place, dataset, replace(RECIPE, config=replace(RECIPE.config, tcpl=False)), tmp_path),
        Training.plan(place, dataset, RECIPE, tmp_path, threads=2),
    ]
    assert len({each.folder for each in (plan, *others)}) == 4


def test_a_training_is_done_once(dataset_folder: Path, tmp_path: Path) -> None:
    place = Place(folder=dataset_folder)
    plan = Training.plan(place, place.open(), RECIPE, tmp_path)
    with pytest.raises(BadRun, match=RESULT):
        Outcome.read(plan.folder)
    shares: list[float] = []
    work(plan, shares.append)
    assert shares == [0.5, 1.0]  # two batches
    outcome = Outcome.read(plan.folder)
    num_queries = len(place.open().splits["test"].queries)
    assert len(outcome.ranks) == len(outcome.overlaps) == num_queries
    assert outcome.figures["R@1"] == pytest.approx(100 * np.mean(np.array(outcome.ranks) == 1))
    inside = np.array(outcome.overlaps) >= 0.5
    assert outcome.figures["found R1@0.5"] == pytest.approx(100 * inside.mean())
    replace(outcome, ranks=[7]).write(plan.folder)
    work(plan, shares.append)
    assert (len(shares), Outcome.read(plan.folder).ranks) == (2, [7])
    (plan.folder / RESULT).write_text(json.dumps({"ranks": []}))
    with pytest.raises(BadRun, match=RESULT):
        Outcome.read(plan.folder)


def test_another_backbone_teaches(dataset_folder: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    teacher = write_teacher(tmp_path / "other.h5", dataset)
    place = Place(folder=dataset_folder, teacher=teacher)
    taught = place.open()
    assert taught.store.fingerprint == dataset.store.fingerprint
    assert taught.card() != dataset.card()
    text_id = dataset.store.text_ids()[0]
    expected = FeatureStore.open(teacher).text(text_id).words[-1]
    found = taught.store.text(text_id)
    np.testing.assert_allclose(found.teacher, expected / np.linalg.norm(expected), rtol=1e-6)
    np.testing.assert_array_equal(found.words, dataset.store.text(text_id).words)
    assert join_texts([found, found]).teacher.shape == (2, 6)
    assert join_texts([dataset.store.text(text_id)]).teacher is None
    plans = [Training.plan(each, each.open(), RECIPE, tmp_path) for each in (place, Place(folder=dataset_folder))]
    assert plans[0].folder != plans[1].folder
    work(plans[0], lambda share: None)
    assert Outcome.read(plans[0].folder).ranks


def test_a_teacher_needs_texts(dataset_folder: Path, tmp_path: Path) -> None:
    student = Dataset.open(dataset_folder).store
    silent = FeatureStore.create(tmp_path / "silent.h5", replace(student.fingerprint, word_width=None))
    with pytest.raises(BadSetting, match="silent"):
        WithTextTeacher(student, silent)


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    with num_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
