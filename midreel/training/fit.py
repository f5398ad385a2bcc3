"""The training loop, its checkpoints, and the folder of a run.

A run folder contains:

    recipe.json         all settings
    environment.json    versions of Python, torch and midreel
    data.json           a description of the dataset
    metrics.jsonl       one line per epoch
    best/               the model of the best epoch
    last/               the model of the last epoch, with the state of the optimiser
    events.out.*        TensorBoard events, if tensorboard is installed (see `reporters`)

Every epoch seeds its random numbers with (seed, epoch). A run that was killed and resumed from last/ therefore ends
with weights that are bit-identical to an uninterrupted one, on a CPU with the same number of threads and processes.

Several processes can train together (`ops.processes`). The first one validates and writes the folder. The others only
take part in the steps.

Files and recipes count epochs from 0. Messages count them from 1.
"""

import json
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import midreel
from midreel.errors import BadModel, BadRun, TrainingDiverged, Unwritable
from midreel.io.files import sync, write_durably
from midreel.io.folders import locked, recover, replacing
from midreel.methods import load_weights
from midreel.methods.base import Method, evaluating
from midreel.methods.model_files import DATA
from midreel.ops.processes import Processes, by_first
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.memory import keep_freed_memory
from midreel.training.optim import BertAdam, parameter_groups
from midreel.training.reporters import Reporter, expect_reporter, open_reporter

Metrics = Mapping[str, float]
RECIPE = "recipe.json"
ENVIRONMENT = "environment.json"
LOG = "metrics.jsonl"  # one line per epoch of a run
METRICS = "metrics.json"  # the epoch of a saved model


@runtime_checkable
class Monitor(Protocol):
    """A receiver of progress, such as a progress bar."""

    def step(self, epoch: int, step: int, num_steps: int, terms: Metrics) -> None:
        """Receive the loss terms of a training step.

        Args:
            epoch: The epoch, from 0.
            step: The number of finished steps in this epoch.
            num_steps: The number of steps in an epoch.
            terms: The loss terms of the step by name.
        """

    def epoch(self, record: Mapping[str, Any], best: float) -> None:
        """Receive the record of a finished epoch, and the best SumR so far."""


@dataclass(kw_only=True)
class _State:
    """The progress of a run, saved in last/."""

    epoch: int = 0  # the next epoch to train
    best: float = -math.inf
    best_epoch: int = -1

    def is_final(self, recipe: Recipe) -> bool:
        return self.epoch >= recipe.epochs or self.epoch - 1 - self.best_epoch > recipe.patience


def fit(
    method: Method,
    training_set: FeatureSet,
    validate: Callable[[Method], Metrics],
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: str = "cpu",
    data_card: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    report_to: str | None = None,
    processes: Processes | None = None,
) -> Path:
    """Train a method and return the folder of its best epoch.

    Training ends after `recipe.epochs` epochs, or when more than `recipe.patience` in a row did not improve SumR.
    A finished run stays unchanged.

    Args:
        method: The method to train, in place.
        training_set: The videos and queries to train on.
        validate: Returns the metrics of the method after an epoch. "SumR" must be one of them.
        recipe: The settings. A resumed run must have the same ones.
        folder: The run folder: new or empty, unless `resume` is set.
        resume: Continue the run in `folder`.
        device: The torch device to train on.
        data_card: A description of the dataset, saved with the run. A resumed run must have the same one.
        monitor: Receives progress.
        report_to: One of `reporters.REPORTERS`. Default: tensorboard if it is installed.
        processes: The processes that train together, each with the same arguments. Only the first one validates and
            writes. Default: this process alone.

    Raises:
        BadPackage: The package of the reporter is not installed.
        UnknownName: There is no such reporter.
        BadRun: `folder` contains other files, another run, or no run to resume.
        BadModel: The checkpoint to resume from is damaged.
        BadSetting: The batch size is not a multiple of the number of processes.
        TrainingDiverged: A loss is NaN or infinite.
        Unreachable: Another process has ended.
        Unwritable: `folder` cannot be written.
    """
    card = data_card or {}
    expect_reporter(report_to)
    keep_freed_memory()
    method.to(device)
    method.processes = processes
    if processes is not None:
        processes.expect_divisible(recipe.batch_size)
    steps_per_epoch = math.ceil(len(training_set) / recipe.batch_size)
    optimiser = BertAdam(
        parameter_groups(method, recipe.weight_decay),
        lr=recipe.lr,
        total_steps=steps_per_epoch * recipe.epochs,
        warmup=recipe.warmup,
        schedule=recipe.schedule,
    )
    with ExitStack() as lock:

        def begin() -> _State:
            lock.enter_context(locked(folder, create=not resume))
            return _resume(folder, recipe, card, method, optimiser) if resume else _begin(folder, recipe, card)

        state = by_first(processes, begin)
        _copy_progress(processes, method, optimiser)
        if state.is_final(recipe):
            return folder / "best"
        shown_in = report_to if processes is None or processes.is_first else "none"
        with open_reporter(shown_in, folder, state.epoch, json.loads(recipe.to_json())) as reporter:
            while not state.is_final(recipe):
                losses = _train_epoch(method, training_set, optimiser, recipe, state.epoch, device, monitor)
                arguments = (folder, method, optimiser, state, losses, recipe, card, validate, reporter)
                record, state = by_first(processes, partial(_close_epoch, *arguments))
                _copy_progress(processes, method, optimiser)
                if monitor is not None:
                    monitor.epoch(record, state.best)
    return folder / "best"


def _close_epoch(
    folder: Path,
    method: Method,
    optimiser: BertAdam,
    state: _State,
    losses: Metrics,
    recipe: Recipe,
    card: Mapping[str, Any],
    validate: Callable[[Method], Metrics],
    reporter: Reporter,
) -> tuple[dict[str, Any], _State]:
    """Validate a trained epoch, save it, and return its record and the new state."""
    method.eval()
    metrics = dict(validate(method))
    record = {"epoch": state.epoch, "lr": recipe.lr * optimiser.rate, "loss": losses, "metrics": metrics}
    with _expect_writable(folder):
        if metrics["SumR"] > state.best:
            state.best, state.best_epoch = metrics["SumR"], state.epoch
            _save_best(folder / "best", method, recipe, card, record)
        state.epoch += 1
        with (folder / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        sync(folder / LOG)  # before last/, because a resumed run does not write this line again
        reporter.write(record)
        # last/ commits the epoch. A run that is killed before this line repeats the epoch.
        _save_last(folder / "last", method, optimiser, state)
    return record, state


def _copy_progress(processes: Processes | None, method: Method, optimiser: BertAdam) -> None:
    """Copy the weights and the state of the optimiser from the first process to the others."""
    if processes is None:
        return
    processes.copy_weights(method)
    moments = {key: value.cpu() for key, value in _moments(method, optimiser).items()}
    optimiser.num_steps, moments = processes.of_first((optimiser.num_steps, moments))
    if not processes.is_first:
        _set_moments(method, optimiser, moments)


def _train_epoch(
    method: Method,
    training_set: FeatureSet,
    optimiser: BertAdam,
    recipe: Recipe,
    epoch: int,
    device: str,
    monitor: Monitor | None,
) -> dict[str, float]:
    """Train on every video once, and return the mean of each loss term."""
    with evaluating(method):
        method.start_epoch(epoch, (batch.to(device) for batch in training_set.batches(recipe.batch_size)))
    seed = recipe.seed * 100_003 + epoch
    torch.manual_seed(seed)
    if method.processes is not None:
        method.processes.seed(seed)
    batches = torch.randperm(len(training_set)).split(recipe.batch_size)
    sums: dict[str, float] = {}
    method.train()
    for number, batch in enumerate(training_set.each(batches)):
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            terms = method.losses(batch.to(device), epoch=epoch)
        loss = torch.stack(list(terms.values())).sum()
        if method.processes is None:
            loss.backward()
        else:
            (loss / method.processes.count).backward()
            method.processes.sum_gradients(method.parameters())
        shown = {name: term.item() for name, term in terms.items()}
        broken = [name for name, value in shown.items() if not math.isfinite(value)]
        if broken:
            raise TrainingDiverged(
                f"{', '.join(broken)} is {shown[broken[0]]} in epoch {epoch + 1}, step {number + 1}, expected a finite "
                f"number. Lower lr (now {recipe.lr}) or check the features for extreme values."
            )
        optimiser.step()
        optimiser.zero_grad()
        for name, value in shown.items():
            sums[name] = sums.get(name, 0.0) + value
        if monitor is not None:
            monitor.step(epoch, number + 1, len(batches), shown)
    return {name: total / len(batches) for name, total in sums.items()}


# ---------------------------------------------------------------- the folder of a run


@contextmanager
def _expect_writable(folder: Path) -> Iterator[None]:
    """Raise Unwritable for the errors of all the libraries that write into a run folder."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise Unwritable(
            f"{folder} cannot be written ({error}). The run needs space for two models and the optimiser state. "
            f"Free space and continue with --resume."
        ) from error


def _begin(folder: Path, recipe: Recipe, data_card: Mapping[str, Any]) -> _State:
    if (folder / RECIPE).exists():
        raise BadRun(f"{folder} contains a run, expected a new folder. Continue the run with --resume.")
    # A run that was killed at its start leaves some of these files. They are safe to overwrite.
    leftovers = {f"{name}{ending}" for name in (DATA, ENVIRONMENT, RECIPE) for ending in ("", ".new")}
    others = sorted(path.name for path in folder.iterdir() if path.name not in leftovers)
    if others:
        raise BadRun(f"{folder} contains {others[0]}, expected a new or empty folder. Choose another one.")
    with _expect_writable(folder):
        write_durably(folder / DATA, _pretty(data_card))
        write_durably(folder / ENVIRONMENT, _pretty(environment()))
        write_durably(folder / RECIPE, recipe.to_json())
    return _State()


def _resume(folder: Path, recipe: Recipe, data_card: Mapping[str, Any], method: Method, optimiser: BertAdam) -> _State:
    expect_same(folder, recipe, data_card)
    for name in ("last", "best"):
        recover(folder / name)
    last = folder / "last"
    if not last.exists():  # killed before the end of the first epoch
        _drop_records_from(folder / LOG, 0)
        return _State()
    load_weights(method, last / "model.safetensors")
    with _expect_readable(last):
        state, num_steps = _read_state(last)
        moments = load_file(last / "optimiser.safetensors")
    _set_moments(method, optimiser, moments)
    optimiser.num_steps = num_steps
    _drop_records_from(folder / LOG, state.epoch)
    return state


def is_finished(folder: Path, recipe: Recipe) -> bool:
    """Return whether `folder` contains a run that training with this recipe would not continue.

    Raises:
        BadModel: The state of the run is damaged.
    """
    last = folder / "last"
    if not last.exists():
        return False
    with _expect_readable(last):
        return _read_state(last)[0].is_final(recipe)


def _read_state(last: Path) -> tuple[_State, int]:
    """Return the progress of a run, and the number of steps of its optimiser."""
    kept = json.loads((last / "trainer.json").read_text(encoding="utf-8"))
    return _State(**kept["state"]), int(kept["num_steps"])


@contextmanager
def _expect_readable(last: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise BadModel(
            f"{last} is damaged ({type(error).__name__}: {error}), expected a checkpoint. "
            f"Restore it, or delete {last.parent} and train again."
        ) from error


def expect_same(folder: Path, recipe: Recipe, data_card: Mapping[str, Any]) -> None:
    """Raise BadRun unless a run has this recipe and this dataset.

    Args:
        folder: The folder of the run.
        recipe: The settings of the new training.
        data_card: The description of its dataset, as in the run's data.json.
    """
    if not (folder / RECIPE).exists():
        raise BadRun(f"{folder} has no {RECIPE}, expected a run to resume. Start one without --resume.")
    differences = Recipe.from_json((folder / RECIPE).read_text(encoding="utf-8")).difference(recipe)
    if differences:
        raise BadRun(
            f"{folder} has another recipe (there, here): {'; '.join(differences)}. "
            f"Use the settings of its {RECIPE}, or choose another folder."
        )
    if (folder / DATA).read_text(encoding="utf-8") != _pretty(data_card):
        raise BadRun(
            f"{folder} was trained on another dataset: its {DATA} differs. "
            f"Use the same annotations and features, or choose another folder."
        )


def _pretty(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), indent=2, sort_keys=True) + "\n"


def _save_best(
    target: Path, method: Method, recipe: Recipe, data_card: Mapping[str, Any], record: Mapping[str, Any]
) -> None:
    with replacing(target) as new:
        write_durably(new / DATA, _pretty(data_card))  # a model works only with the features it was trained on
        write_durably(new / METRICS, json.dumps(record, indent=2) + "\n")
        write_durably(new / RECIPE, recipe.to_json())
        method.save_pretrained(new, model_card_kwargs=known_of(new))


def known_of(model: Path) -> dict[str, Any]:
    """Return the recipe, the dataset and the metrics of a model folder, for its model card.

    Raises:
        BadModel: One of these files is not JSON.
    """
    files = {"recipe": RECIPE, "data": DATA, "record": METRICS}
    return {name: _read_json(model, file) for name, file in files.items() if (model / file).is_file()}


def _read_json(model: Path, file: str) -> Any:
    try:
        return json.loads((model / file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadModel(f"{model} is damaged: {file} is not valid JSON ({error}). Copy the model again.") from error


def _save_last(target: Path, method: Method, optimiser: BertAdam, state: _State) -> None:
    moments = _moments(method, optimiser)
    with replacing(target) as new:
        method.save_pretrained(new)
        save_file(moments, new / "optimiser.safetensors")
        kept = {"state": vars(state), "num_steps": optimiser.num_steps}
        write_durably(new / "trainer.json", json.dumps(kept, indent=2) + "\n")


def _moments(method: Method, optimiser: BertAdam) -> dict[str, Tensor]:
    """Return the state of the optimiser by the names of the parameters."""
    return {
        f"{key}/{name}": value
        for name, parameter in method.named_parameters()
        for key, value in optimiser.state[parameter].items()
    }


def _set_moments(method: Method, optimiser: BertAdam, moments: Mapping[str, Tensor]) -> None:
    for name, parameter in method.named_parameters():
        kept = {key: moments[f"{key}/{name}"] for key in ("mean", "square") if f"{key}/{name}" in moments}
        if kept:
            optimiser.state[parameter] = {key: value.to(parameter.device) for key, value in kept.items()}


def _drop_records_from(path: Path, epoch: int) -> None:
    """Remove the records from `epoch` on. The checkpoint does not have these epochs, so they will be repeated."""
    if path.exists():
        kept = "".join(json.dumps(line) + "\n" for line in read_lines(path) if line["epoch"] < epoch)
        if kept.encode() != path.read_bytes():
            write_durably(path, kept)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the records of a metrics.jsonl, up to the first incomplete line.

    A run that was killed may leave its last line incomplete.
    """
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def environment() -> dict[str, Any]:
    """Return the versions and the platform that a run depends on."""
    return {
        "midreel": midreel.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }
