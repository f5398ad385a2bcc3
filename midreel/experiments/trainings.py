"""A training of an experiment: a run in a folder that is named after everything that decides its result."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from midreel.datasets.dataset import Dataset
from midreel.errors import BadRun
from midreel.experiments import runs
from midreel.experiments.scheduler import Tick
from midreel.features.stores.store import FeatureStore
from midreel.features.stores.text_teacher import WithTextTeacher
from midreel.io.files import write_durably
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.fit import environment

RESULT = "result.json"  # of a run: its outcome
DECISIVE = ("midreel", "torch")  # parts of the environment that change results


@dataclass(frozen=True, kw_only=True)
class Place:
    """A dataset on the disk, as the command line names it.

    Attributes:
        folder: The folder of the dataset.
        name: The dataset to choose if there are several, which is also its recipe.
        features: The kind of features.
        teacher: A feature store of another backbone, whose sentences TCPL preserves.
    """

    folder: Path
    name: str | None = None
    features: str | None = None
    teacher: Path | None = None

    def open(self) -> Dataset:
        """Open the dataset, with the sentences of the teacher if there is one."""
        dataset = Dataset.open(self.folder, self.name, features=self.features)
        if self.teacher is None:
            return dataset
        return replace(dataset, store=WithTextTeacher(dataset.store, FeatureStore.open(self.teacher)))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a model does on the queries of a split.

    Attributes:
        figures: All metrics by name.
        ranks: The rank of the right video for each query.
        overlaps: The overlap of the found moment with the annotated one, in the right video. None without annotation.
    """

    figures: Mapping[str, float]
    ranks: Sequence[int]
    overlaps: Sequence[float | None]

    @classmethod
    def of(cls, examination: runs.Examination) -> "Outcome":
        """Return the outcome of an examination."""
        report = examination.report
        return cls(figures=examination.figures(), ranks=report.ranks, overlaps=report.overlaps)

    @classmethod
    def read(cls, folder: Path) -> "Outcome":
        """Return the outcome of a finished run.

        Raises:
            BadRun: The run is not finished, or its result is damaged.
        """
        try:
            return cls(**json.loads((folder / RESULT).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise BadRun(f"{folder} has no readable {RESULT} ({error}). Delete the folder, and run again.") from error

    def write(self, folder: Path) -> None:
        """Write the outcome into the folder of its run. NaN is written as JavaScript writes it."""
        write_durably(folder / RESULT, json.dumps(asdict(self)) + "\n")


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run to train and evaluate.

    Attributes:
        place: The dataset.
        recipe: The settings.
        split: The split to evaluate on.
        folder: The run folder.
        device: The torch device.
        threads: The number of threads. Results have the same bits for the same number.
    """

    place: Place
    recipe: Recipe
    split: str
    folder: Path
    device: str = "cpu"
    threads: int = 1

    @property
    def is_finished(self) -> bool:
        """Whether the run is trained and evaluated."""
        return (self.folder / RESULT).exists()

    @classmethod
    def plan(
        cls, place: Place, dataset: Dataset, recipe: Recipe, out: Path, *, device: str = "cpu", threads: int = 1
    ) -> "Training":
        """Return the training of a recipe on a dataset. Equal trainings share one folder.

        Args:
            place: The dataset on the disk.
            dataset: The same dataset, opened.
            recipe: The settings.
            out: The folder of all runs.
            device: The torch device.
            threads: The number of threads.
        """
        split = runs.reporting_split(dataset)
        settings = asdict(recipe)
        del settings["features"]  # a name; the widths are in the settings, and the features in the card
        versions = {name: environment()[name] for name in DECISIVE}
        decisive = [settings, dataset.card(), split, device, threads, versions]
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        folder = out / f"{recipe.config.method}-{digest[:12]}"
        return cls(place=place, recipe=recipe, split=split, folder=folder, device=device, threads=threads)


def work(training: Training, tick: Tick) -> None:
    """Train and evaluate, unless that is finished. See `scheduler.run_tasks`."""
    if training.is_finished:
        return
    dataset = training.place.open()
    with num_threads(training.threads):
        runs.train_or_resume(
            dataset, training.recipe, training.folder, device=training.device, monitor=_Shares(training.recipe, tick)
        )
        method = runs.load(str(training.folder), dataset)
        data = FeatureSet.of(method, dataset, training.split)
        Outcome.of(runs.examine(method, data, device=training.device)).write(training.folder)


@contextmanager
def num_threads(number: int) -> Iterator[None]:
    """Compute with this number of threads during a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Shares:
    """A monitor that reports the finished share of a training."""

    def __init__(self, recipe: Recipe, tick: Tick) -> None:
        self._num_epochs, self._tick = recipe.epochs, tick

    def step(self, epoch: int, step: int, num_steps: int, terms: Mapping[str, float]) -> None:
        """Report a finished step. See `training.fit.Monitor`.

        Args:
            epoch: The epoch, from 0.
            step: The number of finished steps in this epoch.
            num_steps: The number of steps in an epoch.
            terms: The loss terms of the step by name.
        """
        self._tick((epoch + step / num_steps) / self._num_epochs)

    def epoch(self, record: Mapping[str, Any], best: float) -> None:
        """Do nothing: the last step of the epoch was reported."""
