import fnmatch
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from midreel import recipes
from midreel.datasets import open_annotations
from midreel.datasets.dataset import Dataset
from midreel.errors import BadModel, BadRun, BadSetting, FingerprintMismatch
from midreel.evaluation.evaluate import Report
from midreel.evaluation.tables import NONE_SHOWN
from midreel.experiments import runs
from midreel.features.stores.store import FeatureStore
from midreel.methods import METHODS, MSC, ClipZeroShot
from midreel.methods.base import Method
from midreel.methods.clip_residual import ClipResidual, ClipResidualConfig
from midreel.methods.clip_zero_shot import ClipZeroShotConfig
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.fit import read_lines
from tests.datasets.test_dataset import describe
from tests.experiments.small import SETTINGS
from tests.features.fakes import FINGERPRINT
from tests.methods.small import small_config


@pytest.fixture
def dataset(dataset_folder: Path) -> Dataset:
    return Dataset.open(dataset_folder)


def recipe(**changes: object) -> Recipe:
    return recipes.build("msc", "playhouse", SETTINGS | changes)


def test_a_run_is_chosen_on_val(run_folder: Path, dataset: Dataset) -> None:
    assert (run_folder / "best/model.safetensors").exists()
    records = list(read_lines(run_folder / "metrics.jsonl"))
    best = json.loads((run_folder / "best/metrics.json").read_text())
    assert best == max(records, key=lambda record: record["metrics"]["SumR"])
    # Evaluating the best model on val gives the same results.
    method = runs.load(str(run_folder), dataset)
    report = runs.examine(method, FeatureSet.of(method, dataset, "val")).report
    assert report.recalls == pytest.approx(best["metrics"])
    assert json.loads((run_folder / "data.json").read_text()) == dataset.card()


def test_a_new_method_is_drawn_from_the_seed() -> None:
    one, same, other = (runs.new_method(recipe(seed=seed)).state_dict() for seed in (1, 1, 2))
    assert all(one[name].equal(same[name]) for name in one)
    assert not all(one[name].equal(other[name]) for name in one)


def test_holding_out_does_not_use_val(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    prepare = runs.FeatureSet.prepare
    monkeypatch.setattr(
        runs.FeatureSet, "prepare", lambda m, s, o, **_: seen.append(len(s.video_ids)) or prepare(m, s, o)
    )
    runs.train(dataset, recipe(selection="holdout", holdout=0.3, epochs=1), tmp_path / "run")
    assert seen == [4, 2]


def test_choosing_an_epoch_needs_val(dataset: Dataset, tmp_path: Path) -> None:
    splits = {name: split for name, split in dataset.splits.items() if name != "val"}
    without = replace(dataset, annotations=replace(dataset.annotations, splits=splits))
    with pytest.raises(BadSetting, match="train, test, expected val"):
        runs.train(without, recipe(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert runs.remarks_on_choosing(without, recipe(selection="holdout", holdout=0.5)) == []


def test_choosing_on_one_video_has_a_remark(dataset: Dataset) -> None:
    assert runs.remarks_on_choosing(dataset, recipe()) == []
    (remark,) = runs.remarks_on_choosing(dataset, recipe(selection="holdout", holdout=0.1))  # of six videos
    assert "1 video" in remark
    val = dataset.splits["val"]
    queries = tuple(query for query in val.queries if query.video_id == val.video_ids[0])
    one = replace(dataset.annotations, splits={**dataset.splits, "val": replace(val, queries=queries)})
    assert runs.remarks_on_choosing(replace(dataset, annotations=one), recipe()) == [remark]


def test_train_or_resume(dataset: Dataset, run_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert runs.train_or_resume(dataset, recipe(), folder) == folder / "best"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(BadRun, match="another recipe"):
        runs.train_or_resume(dataset, recipe(width=16), folder)


def test_an_examination_has_all_figures(dataset: Dataset) -> None:
    method = runs.load("zero-shot", dataset)
    assert isinstance(method, ClipZeroShot)
    data = FeatureSet.of(method, dataset, "test")
    figures = runs.examine(method, data).figures()
    # The queries of this dataset have one moment each, so there is no mAP, and it has no dense labels.
    missing = {pattern for pattern in runs.COLUMNS if not fnmatch.filter(figures, pattern)}
    assert {pattern for pattern in missing if not pattern.startswith("multi ")} == {
        f"found mAP@{threshold}" for threshold in (0.3, 0.5, 0.7)
    }
    assert figures["R@100"] == 100.0
    assert runs.examine(method, data).figures() == figures


def test_loading_a_run_and_a_model(dataset: Dataset, run_folder: Path, tmp_path: Path) -> None:
    of_run, of_model = runs.load(str(run_folder), dataset), runs.load(str(run_folder / "best"), dataset)
    assert isinstance(of_run, MSC)
    assert all(weight.equal(of_model.state_dict()[name]) for name, weight in of_run.state_dict().items())
    shutil.copytree(run_folder / "best", tmp_path / "bare")
    (tmp_path / "bare/data.json").unlink()  # its dataset is unknown
    assert isinstance(runs.load(str(tmp_path / "bare"), dataset), MSC)
    (tmp_path / "bare/data.json").write_text("{}")
    assert isinstance(runs.load(str(tmp_path / "bare"), dataset), MSC)


def test_loading_a_folder_without_a_model(dataset: Dataset, tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadModel, match="zero-shot-clips"):
            runs.load(str(name), dataset)


def test_a_model_of_other_features_is_rejected(dataset: Dataset, run_folder: Path, tmp_path: Path) -> None:
    other = replace(dataset.store.fingerprint, weights="f" * 64, frame_rate=2.0)
    store = FeatureStore.create(tmp_path / "features.h5", other)
    with pytest.raises(FingerprintMismatch, match=r"weights .*; frame_rate 0.5 != 2.0.* --rate 0.5"):
        runs.load(str(run_folder), replace(dataset, store=store))


def test_wrong_widths_are_rejected_before_training(dataset: Dataset, tmp_path: Path) -> None:
    message = (
        r"features.h5 has video_width 24 \(local-dir:.*the recipe tvr expects video_width 768.*--set video_width=24$"
    )
    with pytest.raises(BadSetting, match=message):
        runs.train(dataset, recipe(video_width=768), tmp_path / "run", asked="the recipe tvr")
    assert not (tmp_path / "run").exists()


def test_wrong_widths_name_a_recipe_that_fits(tmp_path: Path) -> None:
    describe(tmp_path, "beach")
    fingerprint = replace(FINGERPRINT, width=128, word_width=128, sentence_width=None)
    store = FeatureStore.create(tmp_path / "features.h5", fingerprint)
    found = Dataset(annotations=open_annotations(tmp_path), store=store)
    with pytest.raises(BadSetting, match=r"video_width 768, text_width 768.*: playhouse, playhouse-large$"):
        runs.train(found, recipes.build("msc", "tvr"), tmp_path / "run")


@pytest.mark.parametrize("name", METHODS)
def test_a_remark_on_reconstructions(name: str) -> None:
    method = METHODS[name](small_config(name))
    found = runs.remarks_on_method(method)
    assert len(found) == method.reconstruction
    assert all(method.paper.method in remark for remark in found)


def test_remarks_on_recalls_that_are_always_100() -> None:
    def remarks(num_videos: int) -> list[str]:
        return runs.remarks(Report(num_queries=9, num_videos=num_videos, recalls={}, ranks=()))

    assert remarks(101) == []
    assert remarks(100) == ["with 100 videos, R@100 is always 100"]
    assert remarks(1) == ["with 1 video, R@1, R@5, R@10, R@100 are always 100"]


def test_too_long_queries(dataset: Dataset, tmp_path: Path) -> None:
    few = recipe()
    few = replace(few, config=replace(few.config, max_words=3))
    with pytest.raises(BadSetting, match=r"expected at most 3.*--set max_words=\d+"):
        runs.train(dataset, few, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_device(dataset: Dataset, tmp_path: Path) -> None:
    method = runs.load("zero-shot", dataset)
    with pytest.raises(BadSetting, match="'abacus'"):
        runs.examine(method, FeatureSet.of(method, dataset, "test"), device="abacus")
    with pytest.raises(BadSetting, match="'abacus'"):
        runs.train(dataset, recipe(), tmp_path / "run", device="abacus")
    assert not (tmp_path / "run").exists()


def test_a_trec_file(dataset: Dataset, tmp_path: Path) -> None:
    method = runs.load("zero-shot", dataset)
    data = FeatureSet.of(method, dataset, "test")
    examination = runs.examine(method, data, keep_scores=True)
    runs.write_trec(tmp_path / "run.txt", examination, data)
    first: dict[str, str] = {}
    for line in (tmp_path / "run.txt").read_text().splitlines():
        query, _, video, *_ = line.split()
        first.setdefault(query, video)
    relevant = dict(line.split()[::2] for line in (tmp_path / "run.txt.qrels").read_text().splitlines())
    hits = [first[query] == video for query, video in relevant.items()]
    assert 100 * sum(hits) / len(hits) == pytest.approx(examination.report.recalls["R@1"])
    spaced = replace(data, video_ids=tuple(f"my 100 % {video_id}" for video_id in data.video_ids))
    runs.write_trec(tmp_path / "new/folder/run.txt", examination, spaced)
    line = (tmp_path / "new/folder/run.txt").read_text().splitlines()[0]
    assert line.split()[2].startswith("my%20100%20%25%20")
    assert len(line.split()) == 6
    with pytest.raises(BadSetting, match="keep_scores=True"):
        runs.write_trec(tmp_path / "run.txt", runs.examine(method, data), data)


def test_tables_have_the_columns_of_their_rows() -> None:
    rows = {"one": {"R@1": 1.0, "text Diff. Norm": 0.1234, "clip R@1": 3.0}, "two": {"R@1": math.nan}}
    markdown = runs.table(rows)
    assert markdown.splitlines()[0] == "|  | R@1 | text Diff. Norm |"
    assert markdown.splitlines()[2:] == ["| one | 1.0 | 0.123 |", f"| two | {NONE_SHOWN} | {NONE_SHOWN} |"]
    assert runs.table(rows, "latex").count("&") == 6
    assert runs.table(rows, "csv").splitlines() == [",R@1,text Diff. Norm,clip R@1", "one,1.0,0.1234,3.0", "two,,,"]


def test_evaluation_draws_no_random_numbers(dataset: Dataset) -> None:
    method = runs.load("zero-shot", dataset)
    data = FeatureSet.of(method, dataset, "test")
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    runs.examine(method, data)
    assert torch.rand(1) == expected


# ---------------------------------------------------------------- the share of a residual


WIDTHS = {"video_width": 24, "joint_width": 24}
RESIDUAL = {"epochs": 2, "lr": 0.5, "seed": 1, "num_frames": 8, "num_clips": 4, **WIDTHS}


def residual() -> ClipResidual:
    return ClipResidual(ClipResidualConfig(video_width=4, joint_width=4, num_frames=4, num_clips=2, rank=2)).eval()


@pytest.mark.parametrize(
    ("sums", "expected"),
    [
        ({0.25: 3.0, 0.5: 5.0, 0.75: 4.0, 1.0: 2.0, 0.0: 1.0}, 0.5),
        ({0.25: 5.0, 0.5: 5.0, 0.75: 5.0, 1.0: 5.0, 0.0: 5.0}, 0.25),  # of equal ones the smallest that adds something
        ({0.25: 4.0, 0.5: 3.0, 0.75: 2.0, 1.0: 1.0, 0.0: 4.5}, 0.0),  # zero-shot
    ],
)
def test_the_share_with_the_highest_sum_is_kept(sums: dict[float, float], expected: float) -> None:
    method = residual()

    def validate(method: Method) -> dict[str, float]:
        return {"SumR": sums[method.get_buffer("share.value").item()]}

    found = runs.at_best_share(validate)(method)
    assert found["SumR"] == max(sums.values())
    assert method.get_buffer("share.value").item() == expected


def test_a_method_without_a_residual_is_validated_once() -> None:
    calls = []
    runs.at_best_share(lambda method: calls.append(method) or {"SumR": 1.0})(ClipZeroShot(ClipZeroShotConfig(width=4)))
    assert len(calls) == 1


def test_a_residual_is_never_worse_than_zero_shot_on_val(dataset: Dataset, tmp_path: Path) -> None:
    """A learning rate of 0.5 ruins the residual. Share 0 is then zero-shot."""
    bad = recipes.build("clip_residual", "playhouse", RESIDUAL)
    best = runs.train(dataset, bad, tmp_path / "run")
    found, _ = runs.recalls_for_choosing(runs.load(str(best.parent), dataset), dataset, bad)
    zero_shot, _ = runs.recalls_for_choosing(runs.load("zero-shot-clips", dataset, bad), dataset, bad)
    assert found["SumR"] >= zero_shot["SumR"]
    assert found["SumR"] == pytest.approx(json.loads((best / "metrics.json").read_text())["metrics"]["SumR"])
