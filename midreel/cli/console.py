"""What people see while they wait: progress on stderr, and none where stderr is not a terminal."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from midreel.experiments.progress import Audience
from midreel.features.extract import Outcome
from midreel.library.report import Step
from midreel.recipes.recipe import Recipe


class Bars(Progress):
    """A bar for each task, and under it the task's note, which would push the bar out of a narrow window."""

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield self.make_tasks_table([task])
            if task.fields["note"]:
                yield Text(task.fields["note"], style="dim")


@contextmanager
def bars(console: Console | None = None) -> Iterator[Bars]:
    """A place for progress bars, which leave when they are done."""
    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


class TrainingBar:
    """A monitor of `fit`: steps, the loss terms of the last one, SumR of the last epoch and of the best."""

    def __init__(self, progress: Progress, title: str, num_epochs: int) -> None:
        self._progress, self._num_epochs = progress, num_epochs
        self._task = progress.add_task(title, total=None, note="")
        self._terms = self._found = ""

    def step(self, epoch: int, step: int, num_steps: int, terms: Mapping[str, float]) -> None:
        self._terms = "  ".join(f"{name} {value:.3f}" for name, value in terms.items())
        self._progress.update(self._task, total=self._num_epochs * num_steps, completed=epoch * num_steps + step)
        self._note()

    def epoch(self, record: Mapping[str, Any], best: float) -> None:
        self._found = f"SumR {record['metrics']['SumR']:.1f} (best {best:.1f})  "
        self._note()

    def _note(self) -> None:
        self._progress.update(self._task, note=f"{self._found}{self._terms}")


class ExtractionBar:
    """What `extract` calls for each video and sentence: how many a second, and how many were left out.

    The bar counts the videos that there are to do. Sentences take no time to speak of, and videos that were there none.
    """

    def __init__(self, progress: Progress, title: str, num_videos: int) -> None:
        self._progress = progress
        self._to_do = num_videos
        self._task = progress.add_task(title, total=num_videos, note="")
        self._num_done = self._num_frames = self._num_left_out = 0
        self._start = time.monotonic()

    def __call__(self, outcome: Outcome) -> None:
        self._num_left_out += outcome.kind in ("failed", "quarantined")
        if outcome.of == "video":
            self._num_done += outcome.kind == "done"
            self._num_frames += outcome.num_frames
            self._to_do -= outcome.kind == "skipped"
            self._progress.update(self._task, advance=outcome.kind != "skipped", total=self._to_do)
        seconds = time.monotonic() - self._start
        speeds = f"{self._num_done / seconds:,.1f} videos/s  {self._num_frames / seconds:,.0f} frames/s  "
        left_out = f"{self._num_left_out:,} left out" if self._num_left_out else ""
        self._progress.update(self._task, note=f"{speeds if self._num_done else ''}{left_out}")


class IndexingBar:
    """What `index` calls for each file: videos a second, hours of video an hour, and what could not be read."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("index", total=None, note="looking", start=False)
        self._start = 0.0
        self._num_done = self._num_left_out = 0
        self._video_seconds = 0.0

    def __call__(self, step: Step) -> None:
        now = time.monotonic()
        if not self._start:  # nobody knows how long the first one took
            self._start = now
            self._progress.start_task(self._task)
        else:
            self._num_done += step.seconds > 0
            self._video_seconds += step.seconds
        self._num_left_out += step.state in ("quarantined", "failed")
        seconds = max(now - self._start, 1e-3)
        speeds = f"{self._num_done / seconds:,.1f} videos/s  {self._video_seconds / seconds:,.0f} hours/h  "
        left_out = f"{self._num_left_out:,} left out" if self._num_left_out else ""
        note = f"{speeds if self._num_done else ''}{left_out}"
        self._progress.update(self._task, advance=1, total=step.total, note=note)


class Stage(Audience):
    """An experiment on a terminal: a line for each step, and a bar while it lasts."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def say(self, line: str) -> None:
        self._clear()
        print(line, file=sys.stderr, flush=True)

    def files(self, total: int) -> Callable[[str], None]:
        task = self._progress.add_task("videos", total=total, note="")
        return lambda video_id: self._progress.update(task, advance=1, note=video_id)

    def features(self, total: int) -> ExtractionBar:
        return ExtractionBar(self._progress, "features", total)

    def training(self, title: str, recipe: Recipe) -> TrainingBar:
        self._clear()
        return TrainingBar(self._progress, title, recipe.epochs)

    def _clear(self) -> None:
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
