"""Progress bars of training and of the demo, on stderr."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.progress import Progress

from midreel.cli.console import ExtractionBar, files_bar
from midreel.experiments.progress import Audience
from midreel.recipes.recipe import Recipe


class TrainingBar:
    """A `Monitor` that shows steps, the latest loss terms, and the SumR of the last and the best epoch.

    Args:
        progress: The display that shows the bar.
        title: The text before the bar.
        num_epochs: The maximum number of epochs.
    """

    def __init__(self, progress: Progress, title: str, num_epochs: int) -> None:
        self._progress, self._num_epochs = progress, num_epochs
        self._task = progress.add_task(title, total=None, note="")
        self._terms = self._metrics = ""

    def step(self, epoch: int, step: int, num_steps: int, terms: Mapping[str, float]) -> None:
        """Show a finished step and its loss terms.

        Args:
            epoch: The epoch, from 0.
            step: The number of finished steps in this epoch.
            num_steps: The number of steps in an epoch.
            terms: The loss terms of the step by name.
        """
        self._terms = "  ".join(f"{name} {value:.3f}" for name, value in terms.items())
        self._progress.update(self._task, total=self._num_epochs * num_steps, completed=epoch * num_steps + step)
        self._note()

    def epoch(self, record: Mapping[str, Any], best: float) -> None:
        """Show the metrics of a finished epoch."""
        self._metrics = f"SumR {record['metrics']['SumR']:.1f} (best {best:.1f})  "
        self._note()

    def _note(self) -> None:
        self._progress.update(self._task, note=f"{self._metrics}{self._terms}")


class Stage(Audience):
    """The progress of an experiment: a line on stderr for each step, and a bar while the step runs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def say(self, line: str) -> None:
        """Print a line, and remove the bars of the step before."""
        self._clear()
        print(line, file=sys.stderr, flush=True)

    def files(self, total: int) -> Callable[[str], None]:
        """Return a callback for each video file that is written."""
        return files_bar(self._progress, total)

    def features(self, total: int) -> ExtractionBar:
        """Return a bar for the extraction of `total` videos."""
        return ExtractionBar(self._progress, "features", total)

    def training(self, title: str, recipe: Recipe) -> TrainingBar:
        """Return a bar for one training."""
        self._clear()
        return TrainingBar(self._progress, title, recipe.epochs)

    def _clear(self) -> None:
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
