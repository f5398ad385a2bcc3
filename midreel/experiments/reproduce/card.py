"""The reproduction card: everything that is needed to run an experiment again, and a hash of its result."""

import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midreel.errors import BadRun
from midreel.experiments.reproduce.result import Result
from midreel.experiments.reproduce.specs import Context, Experiment
from midreel.experiments.trainings import Place
from midreel.training.fit import environment

CARD = "card.json"
PACKAGES = ("numpy", "scipy", "safetensors")


def describe(experiment: Experiment, context: Context, result: Result) -> dict[str, Any]:
    """Return the card of a result as JSON values.

    Args:
        experiment: The experiment.
        context: What it ran on.
        result: What it found.
    """
    return {
        "experiment": experiment.name,
        "command": command(experiment, context),
        "options": _options(context),
        "dataset": context.dataset.card() | {"name": context.dataset.name, "split": context.split},
        "others": [place.open().card() for place in context.others],
        "recipes": dict(result.recipes),
        "runs": {label: list(each) for label, each in result.runs.items()},
        "versions": environment() | {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "threads of a run": context.threads},
        "result": None if experiment.is_timed else digest(result),
    }


def digest(result: Result) -> str:
    """Return a hash of a result without the places of its runs."""
    values = {name: value for name, value in result.to_dict().items() if name != "runs"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def command(experiment: Experiment, context: Context) -> str:
    """Return the command line that runs an experiment again."""
    words: list[object] = ["midreel", "reproduce", experiment.name]
    for place in (context.place, *context.others):
        words += ["--dataset", place.folder]
    if context.place.name:
        words += ["--recipe", context.place.name]
    if context.place.features:
        words += ["--features", context.place.features]
    words += ["--seeds", context.seeds, "--out", context.out]
    if context.rows is not None:
        words += ["--rows", ",".join(context.rows)]
    for path in context.sources:
        words += ["--source", path]
    for name, value in context.changes.items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    if context.threads != 1:
        words += ["--threads", context.threads]
    if context.device != "cpu":
        words += ["--device", context.device]
    return shlex.join(map(str, words))


@dataclass(frozen=True, kw_only=True)
class Card:
    """A card that was read from a file.

    Attributes:
        experiment: The name of the experiment.
        context: What it ran on.
        result: The hash of its result, or None if it contains times.
        dataset: The hashes and counts of its dataset.
    """

    experiment: str
    context: Context
    result: str | None
    dataset: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Card":
        """Read a card.

        Raises:
            BadRun: The file is not a card.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            options = values["options"]
            places = [_place(each) for each in options.pop("places")]
            context = Context(
                place=places[0],
                others=tuple(places[1:]),
                out=Path(options.pop("out")),
                sources=tuple(map(Path, options.pop("sources"))),
                **options,
            )
            return cls(
                experiment=values["experiment"], context=context, result=values["result"], dataset=values["dataset"]
            )
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise BadRun(f"{path} is not a reproduction card ({type(error).__name__}: {error}).") from error

    def expect_same_dataset(self, context: Context) -> None:
        """Raise BadRun unless the dataset is the one of the card."""
        found = context.dataset.card()
        changed = [name for name, value in found.items() if self.dataset.get(name) != value]
        if changed:
            raise BadRun(
                f"{context.place.folder} differs from the dataset of the card in {', '.join(changed)}. "
                f"Restore it, or run the experiment without --card."
            )


def _options(context: Context) -> dict[str, Any]:
    places = [
        {"folder": str(place.folder.resolve()), "name": place.name, "features": place.features}
        for place in (context.place, *context.others)
    ]
    return {
        "places": places,
        "out": str(context.out.resolve()),
        "sources": [str(path.resolve()) for path in context.sources],
        "seeds": context.seeds,
        "rows": None if context.rows is None else list(context.rows),
        "changes": dict(context.changes),
        "device": context.device,
        "threads": context.threads,
    }


def _place(values: dict[str, Any]) -> Place:
    return Place(folder=Path(values["folder"]), name=values["name"], features=values["features"])


def _processor() -> str:
    """Return the name of the processor, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
