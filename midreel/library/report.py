"""The reports of index and reindex, as values and as text."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midreel.library import scan
from midreel.library.diff import FileState, Plan
from midreel.library.scan import FoundFile


@dataclass(frozen=True, kw_only=True)
class Step:
    """The progress of a run: a file and its state, the length of its video, and the number of files of the run."""

    path: Path
    state: FileState
    seconds: float
    total: int


Progress = Callable[[Step], None]
_SHOWN = 4  # file extensions in the summary


@dataclass(kw_only=True)
class IndexReport:
    """The state of each file after a run. The lists have the names of the values of `FileState`.

    Attributes:
        new: Files with a new video.
        changed: Files that contain another video than before.
        moved: Files whose video was in another place, which no longer has it.
        copies: Files whose video is also in another place.
        touched: Files whose date has changed, but not their content.
        repaired: Files whose video was incomplete in the library.
        removed: Files that are gone.
        unchanged: The number of files that were not read.
        quarantined: Unreadable files, with the reason. They are read again when they change, or with `retry`.
        not_retried: The number of quarantined files that an earlier run found unreadable.
        failed: Files that are unreadable now, with the reason. The next run retries them.
        damaged: Indexed files that have an unreadable part, with a description of it.
        unreachable: Places that could not be read, with the reason. Their videos are kept.
        skipped: The number of files that are not videos, by extension.
        unused: The number of removed videos whose features are kept; 0 if they take little space.
        video_seconds: The length of the decoded videos.
        seconds: The time the run took, by activity.
    """

    new: list[Path] = field(default_factory=list)
    changed: list[Path] = field(default_factory=list)
    moved: list[Path] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)
    touched: list[Path] = field(default_factory=list)
    repaired: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    unchanged: int = 0
    quarantined: dict[Path, str] = field(default_factory=dict)
    not_retried: int = 0
    failed: dict[Path, str] = field(default_factory=dict)
    damaged: dict[Path, str] = field(default_factory=dict)
    unreachable: dict[Path, str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    unused: int = 0
    video_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_partial(self) -> bool:
        """Whether some files could not be read."""
        return bool(self.quarantined or self.failed or self.unreachable)

    def files(self, state: FileState) -> list[Path]:
        """Return the list of the files in a state. Quarantined and failed files have no list."""
        found: list[Path] = getattr(self, state.value)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        listed = ("new", "changed", "moved", "copies", "touched", "repaired", "removed")
        reasons = ("quarantined", "failed", "damaged", "unreachable")
        return {
            **{name: [str(path) for path in getattr(self, name)] for name in listed},
            **{name: {str(path): why for path, why in getattr(self, name).items()} for name in reasons},
            "skipped": dict(self.skipped.most_common()),
            "unchanged": self.unchanged,
            "not_retried": self.not_retried,
            "unused": self.unused,
            "video_seconds": self.video_seconds,
            "seconds": self.seconds,
        }

    @property
    def text(self) -> str:
        """The report as text: a line for each problem, and a summary."""
        counts = {
            name: len(getattr(self, name)) for name in ("new", "changed", "moved", "copies", "repaired", "removed")
        }
        counts = {name: count for name, count in counts.items() if count or name in ("new", "removed")}
        counts |= {"unchanged": self.unchanged + len(self.touched), "quarantined": len(self.quarantined)}
        if self.failed:
            counts["failed"] = len(self.failed)
        lines = [f"partly readable {scan.shown(path)}: {damage}" for path, damage in self.damaged.items()]
        lines += [f"quarantined {scan.shown(path)}: {reason}" for path, reason in self.quarantined.items()]
        lines += [f"failed {scan.shown(path)}: {reason}" for path, reason in self.failed.items()]
        lines += [f"kept the videos in {scan.shown(path)}: {reason}" for path, reason in self.unreachable.items()]
        if self.not_retried:
            lines.append(
                f"{self.not_retried:,} of the quarantined files are unchanged and were not retried. Retry them: --retry"
            )
        if self.unused:
            lines.append(
                f"Features of removed videos are kept, in case the videos return: {self.unused:,}. Free their "
                f"space: --forget"
            )
        if not (any(counts.values()) or self.unreachable):
            lines.append(
                "No videos found. Folders are searched by file extension, such as .mp4. To index any other file, "
                "name it."
            )
        summary = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        return "\n".join([*lines, summary + self._skipped() + self._speed()])

    def _skipped(self) -> str:
        if not self.skipped:
            return ""
        usual = [f"{count:,} {scan.shown(Path(ending))}" for ending, count in self.skipped.most_common(_SHOWN)]
        more = ["…"] if len(self.skipped) > _SHOWN else []
        number = self.skipped.total()
        return f", {number:,} non-video file{'s' * (number != 1)} skipped ({', '.join(usual + more)})"

    def _speed(self) -> str:
        total, backbone = self.seconds.get("total", 0.0), self.seconds.get("backbone", 0.0)
        if not self.video_seconds or not total:
            return ""
        hours = self.video_seconds / 3600
        length = f"{hours:,.1f} hours" if hours >= 1 else f"{self.video_seconds / 60:,.1f} minutes"
        return (
            f"; {length} of video in {total:,.1f} s "
            f"({self.video_seconds / total:,.0f}x real time), {backbone / total:.0%} of it in the backbone"
        )


@dataclass(frozen=True, kw_only=True)
class ReindexReport:
    """The result of a reindex.

    Attributes:
        generation: The name of the new generation.
        model: The name or folder of its model.
        num_videos: The number of its videos.
        failed: The videos whose features are damaged, with the error. They are not in the new generation.
        seconds: The time the run took.
    """

    generation: str
    model: str
    num_videos: int
    failed: dict[str, str]
    seconds: float
    library: str

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return dict(vars(self))

    @property
    def text(self) -> str:
        """The report as text."""
        lines = [f"skipped {name}: {reason}" for name, reason in self.failed.items()]
        if self.failed:
            lines.append(f"Decode them again: midreel index --library {self.library} --retry")
        videos = "1 video is" if self.num_videos == 1 else f"{self.num_videos:,} videos are"
        return "\n".join([*lines, f"{videos} now searched with {self.model}, in {self.seconds:.1f} s"])


class Clock:
    """Measures the seconds spent on each activity."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, purpose: str) -> Iterator[None]:
        """Add the time of a block to a purpose."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[purpose] = self.seconds.get(purpose, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Reports the state of each file, in the report and to the progress callback."""

    plan: Plan
    report: IndexReport
    progress: Progress | None

    def read(
        self,
        file: FoundFile,
        video_id: str,
        *,
        is_copy: bool = False,
        seconds: float = 0.0,
        decoded: bool = False,
        damage: str = "",
    ) -> None:
        """Report a file whose video was read.

        Args:
            file: The file.
            video_id: The video in the file.
            is_copy: Whether another file of this run has the same content.
            seconds: The length of the video in seconds.
            decoded: Whether the video was decoded in this run. Otherwise its features were stored already.
            damage: Which part of the video is unreadable, or an empty text.
        """
        state = self.plan.state(file, video_id, is_copy=is_copy)
        self.report.files(state).append(file.path)
        if decoded:
            self.report.video_seconds += seconds
        if damage:
            self.report.damaged[file.path] = damage
        self._step(file, state, seconds)

    def quarantined(self, file: FoundFile, reason: str) -> None:
        """Report a file that is unreadable until it changes."""
        self.report.quarantined[file.path] = reason
        self._step(file, FileState.QUARANTINED)

    def failed(self, file: FoundFile, reason: str) -> None:
        """Report a file that could not be read now."""
        self.report.failed[file.path] = reason
        self._step(file, FileState.FAILED)

    def _step(self, file: FoundFile, state: FileState, seconds: float = 0.0) -> None:
        if self.progress is not None:
            self.progress(Step(path=file.path, state=state, seconds=seconds, total=len(self.plan.to_read)))
