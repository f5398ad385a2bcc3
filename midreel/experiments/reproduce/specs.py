"""What an experiment is: its rows, its columns, what it compares, and what the paper printed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from midreel.datasets.dataset import Dataset
from midreel.errors import UnknownName
from midreel.experiments import runs
from midreel.experiments.reproduce.result import Result
from midreel.experiments.scheduler import Progress
from midreel.experiments.trainings import Place
from midreel.methods.model_files import UNTRAINED
from midreel.recipes.published import COLUMNS

RUNS = "runs"  # the subfolder of all runs, which the tables share


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: a method with some settings changed.

    Attributes:
        key: The name on the command line.
        label: The name in tables.
        method: The name of a method, or of an untrained model such as "zero-shot".
        settings: Settings that differ from the recipe of the dataset.
        offsets: Numbers to add to settings of the recipe. A threshold of cosines depends on the backbone, so the rows
            of the paper are kept as distances from its default.
        paper: What the paper printed, by column.
    """

    key: str
    label: str
    method: str = "msc"
    settings: Mapping[str, Any] = field(default_factory=dict)
    offsets: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_trained(self) -> bool:
        """Whether the row needs training."""
        return self.method not in UNTRAINED


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an experiment runs on.

    Attributes:
        place: The dataset.
        out: The folder of all results.
        seeds: The number of seeds of each row.
        rows: The keys of the rows to run. Default: all.
        changes: Settings that apply to all rows. A method ignores those that it does not have.
        sources: Feature stores of other backbones, as teachers of TCPL.
        others: Further datasets, for transfer.
        jobs: The number of runs at the same time.
        device: The torch device.
        threads: The number of threads of a run.
        notify: Receives the progress of the runs.
    """

    place: Place
    out: Path
    seeds: int = 5
    rows: Sequence[str] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    sources: tuple[Path, ...] = ()
    others: tuple[Place, ...] = ()
    jobs: int = 1
    device: str = "cpu"
    threads: int = 1
    notify: Callable[[Progress], None] | None = None

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset, opened."""
        return self.place.open()

    @cached_property
    def split(self) -> str:
        """The split that results are reported on."""
        return runs.reporting_split(self.dataset)

    @cached_property
    def video_of_query(self) -> Int[np.ndarray, " Q"]:
        """The position of the video of each query of the split."""
        split = self.dataset.splits[self.split]
        position = {video_id: index for index, video_id in enumerate(split.video_ids)}
        return np.array([position[query.video_id] for query in split.queries])


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: The name on the command line.
        title: The caption.
        make: Runs the experiment.
        rows: The rows by benchmark. Other datasets have the rows of the first one.
        columns: The metrics, as patterns of `fnmatch`.
        tested: The metric whose differences are tested.
        pairs: The keys of the rows to compare: each row with another one.
        needs: What must be at hand beside a dataset with features.
        digits: The digits after the decimal point, by column. Default: 1.
        is_timed: Whether the result contains times, which differ from run to run.
        is_trained: Whether the rows are trained.
    """

    name: str
    title: str
    make: Callable[["Experiment", Context], Result]
    rows: Mapping[str, tuple[Row, ...]] = field(default_factory=dict)
    columns: tuple[str, ...] = COLUMNS
    tested: str = "SumR"
    pairs: tuple[tuple[str, str], ...] = ()
    needs: str = ""
    digits: Mapping[str, int] = field(default_factory=dict)
    is_timed: bool = False
    is_trained: bool = True

    @property
    def folder(self) -> str:
        """The name of the folder of its result."""
        return self.name if self.name.startswith("fig") or self.name == "transfer" else f"table-{self.name}"

    @property
    def num_trained(self) -> int:
        """The number of runs for each seed."""
        return self.is_trained * sum(row.is_trained for row in next(iter(self.rows.values()), ()))

    def benchmark(self, dataset: str) -> str:
        """Return the benchmark whose printed results stand beside those of a dataset."""
        return dataset if dataset in self.rows else next(iter(self.rows), "")

    def rows_for(self, dataset: str, wanted: Sequence[str] | None = None) -> list[Row]:
        """Return the rows for a dataset, or those with the wanted keys.

        Raises:
            UnknownName: No row has one of the keys.
        """
        rows = {row.key: row for row in self.rows.get(self.benchmark(dataset), ())}
        for key in wanted or ():
            if key not in rows:
                raise UnknownName.among(f"row of {self.name}", key, rows)
        return [row for key, row in rows.items() if wanted is None or key in wanted]
