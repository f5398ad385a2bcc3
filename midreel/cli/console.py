"""Progress on stderr: bars, or a line now and then if stderr is not a terminal."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from midreel.features.extract import Outcome
from midreel.library.report import Step

INTERVAL = 30.0  # seconds from one line of progress to the next, without a terminal


class Bars(Progress):
    """Progress bars with a note below each bar, where it does not push the bar out of a narrow window.

    Without a terminal, each task prints a line every `INTERVAL` seconds. So a log shows that a long command is alive.
    """

    def __init__(self, *columns: ProgressColumn, **options: Any) -> None:
        super().__init__(*columns, **options)
        self._last_line = self.get_time()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Update a task. See `Progress.update`."""
        super().update(task_id, **changes)
        if self.disable and self.get_time() - self._last_line >= INTERVAL:
            self._last_line = self.get_time()
            task = self._tasks[task_id]
            total = "" if task.total is None else f" of {task.total:,.0f}"
            note = f"  {task.fields['note']}" if task.fields["note"] else ""
            print(f"  {task.description} {task.completed:,.0f}{total}{note}", file=sys.stderr, flush=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar and the note of each task."""
        for task in self.tasks:
            yield self.make_tasks_table([task])
            if task.fields["note"]:
                yield Text(task.fields["note"], style="dim")


@contextmanager
def bars(console: Console | None = None) -> Iterator[Bars]:
    """Show progress bars until the block ends, and then erase them. Default: a console on stderr.

    If the console is not a terminal, lines replace the bars.
    """
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


def files_bar(progress: Progress, total: int) -> Callable[[str], None]:
    """Show a bar of video files, and return a callback for each file that is written."""
    task = progress.add_task("videos", total=total, note="")
    return lambda video_id: progress.update(task, advance=1, note=video_id)


class ExtractionBar:
    """A callback for `extract` that shows videos per second and the number of failures.

    The bar counts only videos that must be decoded. Skipped videos and sentences take almost no time.

    Args:
        progress: The display that shows the bar.
        title: The text before the bar.
        num_videos: The number of videos to decode.
    """

    def __init__(self, progress: Progress, title: str, num_videos: int) -> None:
        self._progress = progress
        self._to_do = num_videos
        self._task = progress.add_task(title, total=num_videos, note="")
        self._num_done = self._num_frames = self._num_failed = 0
        self._start = time.monotonic()

    def __call__(self, outcome: Outcome) -> None:
        """Count the outcome of one video or sentence."""
        self._num_failed += outcome.kind in ("failed", "quarantined")
        if outcome.of == "video":
            self._num_done += outcome.kind == "done"
            self._num_frames += outcome.num_frames
            self._to_do -= outcome.kind == "skipped"
            self._progress.update(self._task, advance=outcome.kind != "skipped", total=self._to_do)
        seconds = time.monotonic() - self._start
        speed = f"{self._num_done / seconds:,.1f} videos/s  {self._num_frames / seconds:,.0f} frames/s"
        self._progress.update(self._task, note=_note(speed if self._num_done else "", self._num_failed))


class IndexingBar:
    """A callback for `indexer.index` that shows videos per second, speed against real time, and failures."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("index", total=None, note="scanning", start=False)
        self._start = 0.0
        self._num_done = self._num_failed = 0
        self._video_seconds = 0.0

    def __call__(self, step: Step) -> None:
        """Count one finished file."""
        now = time.monotonic()
        if not self._start:  # the first call ends the first video, whose start is unknown, so it has no speed
            self._start = now
            self._progress.start_task(self._task)
        else:
            self._num_done += step.seconds > 0
            self._video_seconds += step.seconds
        self._num_failed += step.state in ("quarantined", "failed")
        seconds = max(now - self._start, 1e-3)
        speed = f"{self._num_done / seconds:,.1f} videos/s  {self._video_seconds / seconds:,.0f}x real time"
        note = _note(speed if self._num_done else "", self._num_failed)
        self._progress.update(self._task, advance=1, total=step.total, note=note)


def _note(speed: str, num_failed: int) -> str:
    return "  ".join(filter(None, (speed, f"{num_failed:,} failed" if num_failed else "")))
