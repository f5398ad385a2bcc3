"""The training loop: an epoch of steps, a validation, a checkpoint; again until it no longer helps.

A run's folder holds recipe.json (all settings), environment.json and data.json (what it ran on), metrics.jsonl (a line
an epoch), TensorBoard events where tensorboard is installed, best/ (the model to use) and last/ (the model and what it
takes to go on). Every epoch draws its random numbers from (seed, epoch), so a run that is killed and resumed from last/
ends with the same bits as one that was not (on a CPU, with the same number of threads).

In all these files, and in the recipe, epochs are counted from 0; where people read of them, from 1.
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
from midreel.errors import BadModel, BadRun, TrainingDiverged, Unwritable
from midreel.io.files import sync, write_durably
from midreel.io.folders import held, recover, replacing
from midreel.methods import load_weights
from midreel.methods.base import Method
from midreel.methods.loading import DATA
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.memory import keep_freed_memory
from midreel.training.optim import BertAdam, parameter_groups

Metrics = Mapping[str, float]
RECIPE = "recipe.json"
ENVIRONMENT = "environment.json"
LOG = "metrics.jsonl"  # of the epochs
METRICS = "metrics.json"  # of the epoch that a model is of


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

    def over(self, recipe: Recipe) -> bool:
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
) -> Path:
    """Trains until the epochs are over or more than `patience` in a row have not improved SumR; returns best/.

    `validate` gives the figures of an epoch, among them SumR. The method is trained in place. A run that has finished
    is left as it is.
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
        if state.over(recipe):
            return folder / "best"
        with _TensorBoard(folder, state.epoch) as board:
            while not state.over(recipe):
                losses = _train_epoch(method, training_set, optimiser, recipe, state.epoch, device, monitor)
                method.eval()
                metrics = dict(validate(method))
                record = {"epoch": state.epoch, "lr": recipe.lr * optimiser.rate, "loss": losses, "metrics": metrics}
                with _writing(folder):
                    if metrics["SumR"] > state.best:
                        state.best, state.best_epoch = metrics["SumR"], state.epoch
                        _save_best(folder / "best", method, recipe, data_card or {}, record)
                    state.epoch += 1
                    with (folder / LOG).open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                    sync(folder / LOG)  # a line that last/ takes for written is not written again
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
                f"{', '.join(broken)} is {shown[broken[0]]} in epoch {epoch + 1}, step {number + 1}, expected a "
                f"number; lower lr (now {recipe.lr}) or look for extreme features. last/ keeps the last whole epoch"
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
        raise BadRun(f"{folder} holds a run already; go on with it by --resume, or choose another folder")
    # What is written first, whole or not, where a run was killed as it began.
    begun = {f"{name}{ending}" for name in (DATA, ENVIRONMENT, RECIPE) for ending in ("", ".new")}
    strangers = sorted(path.name for path in folder.iterdir() if path.name not in begun)
    if strangers:
        raise BadRun(
            f"{folder} holds other things, such as {strangers[0]}, expected a new folder or an empty one: a run "
            f"replaces what is in its folder; choose another"
        )
    with _writing(folder):
        write_durably(folder / DATA, _pretty(data_card))
        write_durably(folder / ENVIRONMENT, _pretty(environment()))
        write_durably(folder / RECIPE, recipe.to_json())
    return _State()


def _resume(folder: Path, recipe: Recipe, data_card: Mapping[str, Any], method: Method, optimiser: BertAdam) -> _State:
    expect_same(folder, recipe, data_card)
    for name in ("last", "best"):
        recover(folder / name)
    last = folder / "last"
    if not last.exists():  # killed before the first epoch was over
        _drop_records_from(folder / LOG, 0)
        return _State()
    load_weights(method, last / "model.safetensors")
    with _reading(last):
        state, num_steps = _read_state(last)
        moments = load_file(last / "optimiser.safetensors")
    for name, parameter in method.named_parameters():
        kept = {key: moments[f"{key}/{name}"] for key in ("mean", "square") if f"{key}/{name}" in moments}
        if kept:
            optimiser.state[parameter] = {key: value.to(parameter.device) for key, value in kept.items()}
    optimiser.num_steps = num_steps
    _drop_records_from(folder / LOG, state.epoch)
    return state


def is_finished(folder: Path, recipe: Recipe) -> bool:
    """Whether there is a run in `folder` that has nothing left to do, if it is one of this recipe."""
    last = folder / "last"
    if not last.exists():
        return False
    with _reading(last):
        return _read_state(last)[0].over(recipe)


def _read_state(last: Path) -> tuple[_State, int]:
    """How far the training has come, and in how many steps of the optimiser."""
    kept = json.loads((last / "trainer.json").read_text(encoding="utf-8"))
    return _State(**kept["state"]), int(kept["num_steps"])


@contextmanager
def _reading(last: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise BadModel(
            f"{last} cannot be read ({type(error).__name__}: {error}), expected what the run wrote; copy it again, or "
            f"delete {last.parent} and train anew"
        ) from error


def expect_same(folder: Path, recipe: Recipe, data_card: Mapping[str, Any]) -> None:
    """Refuses to go on with a run that was begun from another recipe, or on other data."""
    if not (folder / RECIPE).exists():
        raise BadRun(f"{folder} holds no run to resume, expected its recipe.json; leave out --resume to begin one")
    differences = Recipe.from_json((folder / RECIPE).read_text(encoding="utf-8")).difference(recipe)
    if differences:
        raise BadRun(
            f"{folder} was begun with another recipe (there, here): {'; '.join(differences)}; "
            f"resume with the settings in its recipe.json, or choose another folder"
        )
    if (folder / DATA).read_text(encoding="utf-8") != _pretty(data_card):
        raise BadRun(
            f"{folder} was begun on other data ({folder / DATA} differs from what it is given now); resume with the "
            f"same annotations and features, or choose another folder"
        )


def _pretty(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), indent=2, sort_keys=True) + "\n"


def _save_best(
    target: Path, method: Method, recipe: Recipe, data_card: Mapping[str, Any], record: Mapping[str, Any]
) -> None:
    with replacing(target) as new:
        write_durably(new / DATA, _pretty(data_card))  # a model is of use on such features only
        write_durably(new / METRICS, json.dumps(record, indent=2) + "\n")
        write_durably(new / RECIPE, recipe.to_json())
        method.save_pretrained(new, model_card_kwargs=known_of(new))


def known_of(model: Path) -> dict[str, Any]:
    """What a model's folder tells of its making, as its card takes it."""
    files = {"recipe": RECIPE, "data": DATA, "record": METRICS}
    try:
        return {
            name: json.loads((model / file).read_text(encoding="utf-8"))
            for name, file in files.items()
            if (model / file).is_file()
        }
    except ValueError as error:
        raise BadModel(
            f"{model} holds {', '.join(files.values())}, of which one is not JSON ({error}); copy the model again"
        ) from error


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
        write_durably(new / "trainer.json", json.dumps(kept, indent=2) + "\n")


def _drop_records_from(path: Path, epoch: int) -> None:
    """Forgets the lines of epochs that the checkpoint does not know: they will happen again."""
    if path.exists():
        kept = "".join(json.dumps(line) + "\n" for line in read_lines(path) if line["epoch"] < epoch)
        if kept.encode() != path.read_bytes():
            write_durably(path, kept)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics.jsonl, up to the first that is not whole: a writer may have been cut off at its last."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
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
