"""The training loop: an epoch of steps, a validation, a checkpoint; again until it no longer helps.

A run's folder holds recipe.json (all settings), environment.json and data.json (what it ran on), metrics.jsonl (a line
an epoch), TensorBoard events where tensorboard is installed, best/ (the model to use) and last/ (the model and what it
takes to go on). Every epoch draws its random numbers from (seed, epoch), so a run that is killed and resumed from last/
ends with the same bits as one that was not (on a CPU, with the same number of threads).
"""

import json
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import midreel
from midreel.errors import BadModelFolder, RunExists, TrainingDiverged, Unwritable
from midreel.memory import keep_freed_memory
from midreel.methods import load_weights
from midreel.methods.base import Method
from midreel.training.data import FeatureSet
from midreel.training.folders import held, recover, replacing, write_text
from midreel.training.models import DATA
from midreel.training.optim import BertAdam, parameter_groups
from midreel.training.recipe import Recipe

Metrics = Mapping[str, float]
RECIPE = "recipe.json"
ENVIRONMENT = "environment.json"


@runtime_checkable
class Monitor(Protocol):
    """Who is told how it goes; a progress bar, or nobody."""

    def step(self, epoch: int, step: int, num_steps: int, terms: Metrics) -> None: ...

    def epoch(self, record: Mapping[str, Any], best: float) -> None:
        """The figures of an epoch, and the best SumR so far."""


@dataclass(kw_only=True)
class _State:
    """What last/ keeps beside the model."""

    epoch: int = 0  # the next one
    best: float = -math.inf
    best_epoch: int = -1

    def stale(self) -> int:
        return self.epoch - 1 - self.best_epoch


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
) -> Path:
    """Trains until the epochs are over or more than `patience` in a row have not improved SumR; returns best/.

    `validate` gives the figures of an epoch, among them SumR. The method is trained in place.
    """
    keep_freed_memory()
    method.to(device)
    steps_per_epoch = math.ceil(len(training_set) / recipe.batch_size)
    optimiser = BertAdam(
        parameter_groups(method, recipe.weight_decay),
        lr=recipe.lr,
        total_steps=steps_per_epoch * recipe.epochs,
        warmup=recipe.warmup,
    )
    with held(folder, create=not resume):
        if resume:
            state = _resume(folder, recipe, data_card or {}, method, optimiser)
        else:
            state = _begin(folder, recipe, data_card or {})
        with _TensorBoard(folder, state.epoch) as board:
            while state.epoch < recipe.epochs and state.stale() <= recipe.patience:
                losses = _train_epoch(method, training_set, optimiser, recipe, state.epoch, device, monitor)
                method.eval()
                metrics = dict(validate(method))
                record = {"epoch": state.epoch, "lr": recipe.lr * optimiser.rate, "loss": losses, "metrics": metrics}
                with _writing(folder):
                    if metrics["SumR"] > state.best:
                        state.best, state.best_epoch = metrics["SumR"], state.epoch
                        _save_best(folder / "best", method, data_card or {}, record)
                    state.epoch += 1
                    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                    board.write(record)
                    _save_last(folder / "last", method, optimiser, state)  # from here on the epoch has happened
                if monitor is not None:
                    monitor.epoch(record, state.best)
    return folder / "best"


def _train_epoch(
    method: Method,
    training_set: FeatureSet,
    optimiser: BertAdam,
    recipe: Recipe,
    epoch: int,
    device: str,
    monitor: Monitor | None,
) -> dict[str, float]:
    """One pass over the videos; returns the mean of each loss term."""
    torch.manual_seed(recipe.seed * 100_003 + epoch)
    batches = torch.randperm(len(training_set)).split(recipe.batch_size)
    sums: dict[str, float] = {}
    method.train()
    for number, videos in enumerate(batches):
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            terms = method.losses(training_set.batch(videos).to(device), epoch=epoch)
        torch.stack(list(terms.values())).sum().backward()
        shown = {name: term.item() for name, term in terms.items()}
        broken = [name for name, value in shown.items() if not math.isfinite(value)]
        if broken:
            raise TrainingDiverged(
                f"{', '.join(broken)} is {shown[broken[0]]} in epoch {epoch}, step {number}, expected a number; lower "
                f"lr (now {recipe.lr}) or look for extreme features. The last whole epoch is kept in last/"
            )
        optimiser.step()
        optimiser.zero_grad()
        for name, value in shown.items():
            sums[name] = sums.get(name, 0.0) + value
        if monitor is not None:
            monitor.step(epoch, number + 1, len(batches), shown)
    return {name: total / len(batches) for name, total in sums.items()}


# ---------------------------------------------------------------- a run's folder


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A disk that is full is told in one way, whoever met it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise Unwritable(
            f"{folder} cannot be written ({error}), expected room for two models and an optimiser; make room and go on "
            f"with --resume: the epochs before are kept"
        ) from error


def _begin(folder: Path, recipe: Recipe, data_card: Mapping[str, Any]) -> _State:
    if (folder / RECIPE).exists():
        raise RunExists(f"{folder} holds a run already; go on with it by --resume, or choose another folder")
    # The first two, where a run was killed as it began.
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in (DATA, ENVIRONMENT))
    if strangers:
        raise RunExists(
            f"{folder} holds other things, such as {strangers[0]}, expected a new folder or an empty one: a run "
            f"replaces what is in its folder; choose another"
        )
    with _writing(folder):
        write_text(folder / DATA, _pretty(data_card))
        write_text(folder / ENVIRONMENT, _pretty(environment()))
        write_text(folder / RECIPE, recipe.to_json())
    return _State()


def _resume(folder: Path, recipe: Recipe, data_card: Mapping[str, Any], method: Method, optimiser: BertAdam) -> _State:
    expect_same(folder, recipe, data_card)
    for name in ("last", "best"):
        recover(folder / name)
    last = folder / "last"
    if not last.exists():  # killed before the first epoch was over
        _drop_records_from(folder / "metrics.jsonl", 0)
        return _State()
    load_weights(method, last / "model.safetensors")
    try:
        kept_state = json.loads((last / "trainer.json").read_text(encoding="utf-8"))
        state, num_steps = _State(**kept_state["state"]), int(kept_state["num_steps"])
        moments = load_file(last / "optimiser.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise BadModelFolder(
            f"{last} cannot be read ({type(error).__name__}: {error}), expected what the run wrote; copy it again, or "
            f"delete {folder} and train anew"
        ) from error
    for name, parameter in method.named_parameters():
        kept = {key: moments[f"{key}/{name}"] for key in ("mean", "square") if f"{key}/{name}" in moments}
        if kept:
            optimiser.state[parameter] = {key: value.to(parameter.device) for key, value in kept.items()}
    optimiser.num_steps = num_steps
    _drop_records_from(folder / "metrics.jsonl", state.epoch)
    return state


def expect_same(folder: Path, recipe: Recipe, data_card: Mapping[str, Any]) -> None:
    """Refuses to go on with a run that was begun from another recipe, or on other data."""
    if not (folder / RECIPE).exists():
        raise RunExists(f"{folder} holds no run to resume, expected its recipe.json; leave out --resume to begin one")
    differences = Recipe.from_json((folder / RECIPE).read_text(encoding="utf-8")).difference(recipe)
    if differences:
        raise RunExists(
            f"{folder} was begun with another recipe (there, here): {'; '.join(differences)}; "
            f"resume with the settings in its recipe.json, or choose another folder"
        )
    if (folder / DATA).read_text(encoding="utf-8") != _pretty(data_card):
        raise RunExists(
            f"{folder} was begun on other data ({folder / DATA} differs from what it is given now); resume with the "
            f"same annotations and features, or choose another folder"
        )


def _pretty(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), indent=2, sort_keys=True) + "\n"


def _save_best(target: Path, method: Method, data_card: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    with replacing(target) as new:
        method.save_pretrained(new)
        write_text(new / DATA, _pretty(data_card))  # a model is of use on such features only
        write_text(new / "metrics.json", json.dumps(record, indent=2) + "\n")


def _save_last(target: Path, method: Method, optimiser: BertAdam, state: _State) -> None:
    moments = {
        f"{key}/{name}": value
        for name, parameter in method.named_parameters()
        for key, value in optimiser.state[parameter].items()
    }
    with replacing(target) as new:
        method.save_pretrained(new)
        save_file(moments, new / "optimiser.safetensors")
        kept = {"state": vars(state), "num_steps": optimiser.num_steps}
        write_text(new / "trainer.json", json.dumps(kept, indent=2) + "\n")


def _drop_records_from(path: Path, epoch: int) -> None:
    """Forgets the lines of epochs that the checkpoint does not know: they will happen again."""
    if path.exists():
        lines = [line for line in read_lines(path) if line["epoch"] < epoch]
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics.jsonl; a last line that was cut short is passed over."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def environment() -> dict[str, Any]:
    return {
        "midreel": midreel.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


class _TensorBoard:
    """Events for TensorBoard, if it is installed (the extra `tensorboard`)."""

    def __init__(self, folder: Path, first_epoch: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self.writer = None
        else:
            self.writer = SummaryWriter(str(folder), purge_step=first_epoch)

    def write(self, record: Mapping[str, Any]) -> None:
        if self.writer is not None:
            for group in ("loss", "metrics"):
                for name, value in record[group].items():
                    self.writer.add_scalar(f"{group}/{name}", value, record["epoch"])
            self.writer.flush()

    def __enter__(self) -> "_TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
