"""What a run of index or reindex reports, as numbers and as text."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midreel.library import scan
from midreel.library.diff import FileState


@dataclass(frozen=True, kw_only=True)
class Step:
    """One file of a run: its state, the length of its video, and the number of files of the run."""

    path: Path
    state: FileState
    seconds: float
    total: int


Progress = Callable[[Step], None]
_SHOWN = 4  # file extensions in the summary


@dataclass(kw_only=True)
class IndexReport:
    """What a run did with each file. The names of the first lists are those of `FileState`.

    Attributes:
        unchanged: The number of files that were not read.
        quarantined: Unreadable files and the reason. They are read again when they change, or with `retry`.
        not_retried: The number of quarantined files that an earlier run found unreadable.
        failed: Files that could not be read now, and the reason. The next run tries again.
        damaged: Indexed files of which a part is unreadable, and which.
        unreachable: Places that could not be read, and the reason. Their videos are kept.
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
        """Return the list of the files in a state, for states without a reason."""
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
        lines = [f"damaged {scan.shown(path)}: {damage}" for path, damage in self.damaged.items()]
        lines += [f"quarantined {scan.shown(path)}: {reason}" for path, reason in self.quarantined.items()]
        lines += [f"failed {scan.shown(path)}: {reason}" for path, reason in self.failed.items()]
        lines += [f"kept the videos in {scan.shown(path)}: {reason}" for path, reason in self.unreachable.items()]
        if self.not_retried:
            lines.append(
                f"{self.not_retried:,} of the quarantined files are unchanged since an earlier run. Retry them: --retry"
            )
        if self.unused:
            lines.append(
                f"The features of {self.unused:,} removed videos are kept, in case the videos return. Free their "
                f"space: --forget"
            )
        if not (any(counts.values()) or self.unreachable):
            lines.append(
                "No video was found. In folders, only files with a video extension such as .mp4 are read; a file that "
                "you name is always read."
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
        return (
            f"; {self.video_seconds / 3600:,.2f} hours of video in {total:,.1f} s "
            f"({self.video_seconds / total:,.0f}x real time), {backbone / total:.0%} of it in the backbone"
        )


@dataclass(frozen=True, kw_only=True)
class ReindexReport:
    """A new generation: the number of its videos, and the videos whose features are damaged."""

    generation: str
    model: str
    num_videos: int
    failed: dict[str, str]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return dict(vars(self))

    @property
    def text(self) -> str:
        """The report as text."""
        lines = [f"left out {name}: {reason}" for name, reason in self.failed.items()]
        if self.failed:
            lines.append("Decode them again: midreel index --retry")
        return "\n".join(
            [*lines, f"{self.num_videos:,} videos are now searched with {self.model}, in {self.seconds:.1f} s"]
        )
