import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from midreel.errors import BadModel, BadRun, Locked, TrainingDiverged, Unwritable
from midreel.io.folders import locked
from midreel.methods import MSC, load_method
from midreel.methods.base import Method
from midreel.recipes.recipe import Recipe
from midreel.training import fit as fitting
from midreel.training.data import FeatureSet
from midreel.training.fit import fit, is_finished, read_lines
from tests.training.worlds import Stop, StopAt, World, recipe


def train(folder: Path, how: Recipe, **options: Any) -> Path:
    torch.manual_seed(how.seed)
    method = MSC(how.config)
    world = World()
    training_set = FeatureSet.prepare(method, world.split, world)

    def validate(trained: Method) -> dict[str, float]:
        with torch.no_grad():
            scores = trained.score(
                trained.encode_queries(next(training_set.query_batches(999))),
                trained.encode_videos(next(training_set.video_batches(999))),
            )
        return {"SumR": 100 * (scores.argmax(1) == training_set.video_of_query).float().mean().item()}

    return fit(method, training_set, options.pop("validate", validate), how, folder, **options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def records(folder: Path) -> list[dict[str, Any]]:
    return list(read_lines(folder / "metrics.jsonl"))


def test_files_of_a_run(tmp_path: Path) -> None:
    best = train(tmp_path / "run", recipe(), data_card={"videos": 12})
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"recipe.json", "environment.json", "data.json", "metrics.jsonl", "best", "last"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert not any(name.startswith(".") for name in names)
    assert isinstance(load_method(best), MSC)
    assert json.loads((tmp_path / "run/data.json").read_text()) == {"videos": 12}
    assert [record["epoch"] for record in records(tmp_path / "run")] == [0, 1, 2, 3]
    assert set(records(tmp_path / "run")[0]["loss"]) >= {"clip_nce", "tcpl_angle", "cbva"}


@pytest.mark.slow
def test_each_epoch_starts_with_the_whole_training_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def start_epoch(method: Method, epoch: int, batches: Any) -> None:
        assert not method.training
        assert not torch.is_grad_enabled()
        seen.append((epoch, sum(len(batch.videos) for batch in batches)))

    monkeypatch.setattr(MSC, "start_epoch", start_epoch)
    train(tmp_path / "run", recipe(epochs=2))
    assert seen == [(0, 12), (1, 12)]


@pytest.mark.slow
def test_training_learns(tmp_path: Path) -> None:
    how = recipe(epochs=20, patience=20, lr=1e-2)
    train(tmp_path, replace(how, config=replace(how.config, dropout=0.0, input_dropout=0.0)))
    history = records(tmp_path)
    assert sum(history[-1]["loss"].values()) < 0.7 * sum(history[0]["loss"].values())
    assert max(record["metrics"]["SumR"] for record in history) > 60


@pytest.mark.slow
def test_runs_depend_on_the_seed_alone(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(tmp_path / name, recipe(seed=seed))
    assert records(tmp_path / "a") == records(tmp_path / "b") != records(tmp_path / "c")
    for key, weight in weights(tmp_path / "a/last").items():
        assert weight.equal(weights(tmp_path / "b/last")[key])


@pytest.mark.slow
def test_a_stopped_and_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    train(tmp_path / "whole", recipe())

    for number, at in enumerate([(0, 1), (3, 2)]):
        with pytest.raises(Stop):
            train(tmp_path / "parts", recipe(), resume=number > 0, monitor=StopAt(*at))
        with (tmp_path / "parts/metrics.jsonl").open("ab") as log:  # as after a power failure
            log.write(b'{"epoch": 3, "lr\0\xff')
    train(tmp_path / "parts", recipe(), resume=True)
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    for part in ("best", "last"):
        for key, weight in weights(tmp_path / "whole" / part).items():
            assert weight.equal(weights(tmp_path / "parts" / part)[key])


def test_the_log_is_synced_before_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk: dict[int, int] = {}  # bytes of each file
    to_disk, save_last, saved = os.fsync, fitting._save_last, []

    def fsync(handle: int) -> None:
        to_disk(handle)
        on_disk[os.fstat(handle).st_ino] = os.fstat(handle).st_size

    def watched(*given: Any) -> None:
        log = (tmp_path / "metrics.jsonl").stat()
        saved.append(on_disk.get(log.st_ino) == log.st_size)
        save_last(*given)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(fitting, "_save_last", watched)
    train(tmp_path, recipe(epochs=2))
    assert saved == [True, True]


@pytest.mark.slow
def test_a_killed_and_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    train(tmp_path / "whole", recipe(epochs=12, patience=12))
    code = (
        "import sys, torch; torch.set_num_threads(1); "  # the order of sums depends on the number of threads
        "from pathlib import Path; from tests.training.test_fit import train; "
        "from tests.training.worlds import recipe; "
        "folder = Path(sys.argv[1]); "
        "train(folder, recipe(epochs=12, patience=12), resume=(folder / 'recipe.json').exists())"
    )
    folder = tmp_path / "killed"
    kills = 0
    for wait in (0.0, 0.05, 0.11, 0.16, 0.2, 600.0):
        process = subprocess.Popen([sys.executable, "-c", code, str(folder)])
        while not (folder / "recipe.json").exists() and process.poll() is None:
            time.sleep(0.01)
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
            process.wait()
    assert process.returncode == 0
    assert kills > 0
    assert records(folder) == records(tmp_path / "whole")
    for key, weight in weights(tmp_path / "whole/last").items():
        assert weight.equal(weights(folder / "last")[key])


def test_a_record_without_a_checkpoint_is_repeated(tmp_path: Path) -> None:
    train(tmp_path, recipe(epochs=1))
    before = records(tmp_path)
    shutil.rmtree(tmp_path / "last")
    train(tmp_path, recipe(epochs=1), resume=True)
    assert records(tmp_path) == before


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("midreel.training.fit.save_file", fail)
        with pytest.raises(Unwritable, match="No space left"):
            train(tmp_path, recipe(epochs=1))
    assert isinstance(load_method(tmp_path / "best"), MSC)
    train(tmp_path, recipe(epochs=1), resume=True)
    assert [record["epoch"] for record in records(tmp_path)] == [0]


def test_the_monitor_receives_steps_and_epochs(tmp_path: Path) -> None:
    steps, bests = [], []

    class Listener:
        def step(self, epoch: int, step: int, num_steps: int, terms: Any) -> None:
            steps.append((epoch, step, num_steps, "cbva" in terms))

        def epoch(self, record: Any, best: float) -> None:
            bests.append(best)

    figures = iter([7.0, 6.0])
    train(tmp_path, recipe(epochs=2), monitor=Listener(), validate=lambda _: {"SumR": next(figures)})
    assert steps == [(epoch, step, 3, True) for epoch in range(2) for step in (1, 2, 3)]
    assert bests == [7.0, 7.0]


@pytest.mark.slow
def test_it_stops_when_it_no_longer_helps(tmp_path: Path) -> None:
    figures = iter([1.0, 5.0, 4.0, 5.0, 3.0, 2.0, 9.0])
    train(tmp_path, recipe(epochs=7, patience=2), validate=lambda _: {"SumR": next(figures)})
    # Epoch 1 is the best; 2, 3 and 4 are not better, which is one more than the patience.
    assert [record["epoch"] for record in records(tmp_path)] == [0, 1, 2, 3, 4]
    assert json.loads((tmp_path / "best/metrics.json").read_text())["epoch"] == 1


def test_half_precision(tmp_path: Path) -> None:
    train(tmp_path, recipe(precision="bf16", epochs=2))
    assert all(torch.tensor(list(record["loss"].values())).isfinite().all() for record in records(tmp_path))


def test_divergence_names_the_loss(tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"is (nan|inf) in epoch \d+, step \d+"):
        train(tmp_path, recipe(lr=1e30, epochs=5, warmup=0.5))


def test_a_folder_in_use(tmp_path: Path) -> None:
    train(tmp_path, recipe(epochs=1))
    with pytest.raises(BadRun, match="--resume"):
        train(tmp_path, recipe(epochs=1))
    other = recipe(epochs=1, lr=0.1)
    other = replace(other, config=replace(other.config, tcpl=False))
    with pytest.raises(BadRun, match=r"config.tcpl: True, False; lr: 0.003, 0.1"):
        train(tmp_path, other, resume=True)
    with pytest.raises(BadRun, match="nowhere"):
        train(tmp_path / "nowhere", recipe(), resume=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRun, match=r"recipe.json"):
        train(tmp_path / "empty", recipe(), resume=True)


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best/thesis.txt").write_text("years of work")
    with pytest.raises(BadRun, match="contains best"):
        train(tmp_path, recipe(epochs=1))
    assert (tmp_path / "best/thesis.txt").read_text() == "years of work"
    with pytest.raises(Unwritable, match=r"thesis.txt"):
        train(tmp_path / "best/thesis.txt", recipe(epochs=1))


def test_a_run_that_was_killed_at_its_start_starts_again(tmp_path: Path) -> None:
    for name in ("data.json", "environment.json.new", "recipe.json.new"):
        (tmp_path / name).write_text("{")
    assert train(tmp_path, recipe(epochs=1)) == tmp_path / "best"
    assert not list(tmp_path.glob("*.new"))


def test_a_run_has_one_writer(tmp_path: Path) -> None:
    with locked(tmp_path, create=True), pytest.raises(Locked):
        train(tmp_path, recipe(epochs=1))
    train(tmp_path, recipe(epochs=1))


@pytest.mark.parametrize("name", ["trainer.json", "optimiser.safetensors"])
def test_a_damaged_checkpoint(tmp_path: Path, name: str) -> None:
    train(tmp_path, recipe(epochs=1))
    (tmp_path / "last" / name).write_text("{")
    with pytest.raises(BadModel, match="last"):
        train(tmp_path, recipe(epochs=1), resume=True)


def test_the_data_card_is_saved_and_compared(tmp_path: Path) -> None:
    best = train(tmp_path, recipe(epochs=1), data_card={"videos": 12})
    assert json.loads((best / "data.json").read_text()) == {"videos": 12}
    with pytest.raises(BadRun, match=r"data.json"):
        train(tmp_path, recipe(epochs=1), resume=True, data_card={"videos": 13})


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    assert not is_finished(tmp_path, recipe())
    train(tmp_path, recipe())
    assert is_finished(tmp_path, recipe())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert train(tmp_path, recipe(), resume=True) == tmp_path / "best"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert not is_finished(tmp_path, recipe(epochs=5))
    (tmp_path / "last/trainer.json").write_text("{")
    with pytest.raises(BadModel, match="last"):
        is_finished(tmp_path, recipe())


def test_a_run_out_of_patience_is_finished(tmp_path: Path) -> None:
    figures = iter([5.0, 4.0, 4.0])
    train(tmp_path, recipe(epochs=7, patience=1), validate=lambda _: {"SumR": next(figures)})
    assert is_finished(tmp_path, recipe(epochs=7, patience=1))
    assert not is_finished(tmp_path, recipe(epochs=7, patience=2))
