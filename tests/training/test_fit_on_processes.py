"""Training on several real processes: one writer, the same bits after a resume, and clean ends."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from midreel.errors import BadRun
from midreel.methods import METHODS, load_method
from midreel.ops.processes import Processes
from midreel.recipes.recipe import Recipe
from midreel.training.fit import read_lines
from tests.experiments.small import as_options
from tests.methods.small import small_config, train
from tests.ops.test_processes import run_together
from tests.training.worlds import Stop, StopAt, recipe


def whole_and_resumed(together: Processes, folder: Path, settings: Recipe) -> Any:
    own = folder / "other disk" / str(together.rank)  # the others need not see the folder of the first
    place = folder if together.is_first else own
    train(place / "whole", settings, processes=together)
    with pytest.raises(Stop):
        train(place / "parts", settings, processes=together, monitor=StopAt(2, 1))
    train(place / "parts", settings, processes=together, resume=True)
    return own.exists()


@pytest.mark.slow
def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    """With dropout and random negatives. The last batch of an epoch has fewer videos than the others."""
    settings = recipe(batch_size=10, epochs=3)
    assert settings.config.dropout > 0
    written = run_together(tmp_path, whole_and_resumed, 2, tmp_path, settings)
    assert written == [False, False]
    whole, parts = (list(read_lines(tmp_path / run / "metrics.jsonl")) for run in ("whole", "parts"))
    assert whole == parts
    assert len(whole) == 3
    for part in ("best/model", "last/model", "last/optimiser"):
        expected, found = (load_file(tmp_path / run / f"{part}.safetensors") for run in ("whole", "parts"))
        assert expected.keys() == found.keys()
        assert all(weight.equal(found[key]) for key, weight in expected.items())


def train_without_dropout(together: Processes, folder: Path, settings: Recipe) -> None:
    train(folder / f"run {together.rank}", settings, processes=together)


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    settings = Recipe(config=small_config("msc", dropout=0.0, input_dropout=0.0), lr=1e-3, batch_size=6, epochs=3)
    train(tmp_path / "alone", settings)
    run_together(tmp_path, train_without_dropout, 2, tmp_path, settings)
    alone, together = (list(read_lines(tmp_path / run / "metrics.jsonl")) for run in ("alone", "run 0"))
    assert len(alone) == len(together) == 3
    for one, two in zip(alone, together, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
    start = METHODS["msc"](settings.config).state_dict()
    expected, found = (load_method(tmp_path / run / "last").state_dict() for run in ("alone", "run 0"))
    for key, weight in expected.items():
        torch.testing.assert_close(found[key], weight, rtol=1e-3, atol=1e-4)
    assert any(not weight.allclose(start[key], atol=1e-2) for key, weight in expected.items())


def fail_to_begin(together: Processes, folder: Path) -> str:
    (folder / "taken").mkdir(exist_ok=True)
    (folder / "taken" / "notes.txt").touch()
    try:
        train(folder / "taken", recipe(batch_size=4), processes=together)
    except BadRun as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_an_error_of_the_writer_reaches_all_processes(tmp_path: Path) -> None:
    first, second = run_together(tmp_path, fail_to_begin, 2, tmp_path)
    assert "notes.txt" in first
    assert second == first


def run_torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, "-m", "midreel", *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_torchrun_trains_a_dataset(tmp_path: Path, dataset_folder: Path) -> None:
    common = ["train", "--dataset", str(dataset_folder), "--keep-trained", "--out", str(tmp_path / "run")]
    done = run_torchrun(*common, *as_options(batch_size=4), "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"model"') == 1
    assert len(list(read_lines(tmp_path / "run" / "metrics.jsonl"))) == 2
    again = run_torchrun(*common, "--resume")
    assert "already finished" in again.stdout
    odd = run_torchrun(*common[:-1], str(tmp_path / "odd"), *as_options(batch_size=3))
    assert odd.returncode != 0
    assert "batch_size=2" in odd.stderr
