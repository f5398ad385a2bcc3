"""What a run of index or reindex tells, in numbers and in words."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midreel.library import scan


@dataclass(frozen=True, kw_only=True)
class Step:
    """A file that was dealt with: what became of it, how long its video lasts, and how many there are to do in all."""

    path: Path
    kind: str  # a field of IndexReport
    seconds: float
    total: int


Progress = Callable[[Step], None]
_SHOWN = 4  # endings of what was passed over


@dataclass(kw_only=True)
class IndexReport:
    """What became of the files: paths, some with the reason.

    `touched` are those whose time has changed and nothing else. A file that `failed` is tried again next time, one in
    `quarantined` when it changes; `set_aside` of them were there before. `away` is where nobody could look, so that
    what was found there was kept. So many videos are `idle`: they have left, and their features are kept.
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
    set_aside: int = 0
    failed: dict[Path, str] = field(default_factory=dict)
    damaged: dict[Path, str] = field(default_factory=dict)
    away: dict[Path, str] = field(default_factory=dict)
    passed_over: Counter[str] = field(default_factory=Counter)  # files that end as no video does, by ending
    idle: int = 0  # if they take much of the room
    video_seconds: float = 0.0  # of what was decoded
    seconds: dict[str, float] = field(default_factory=dict)  # by what they were spent on

    @property
    def is_partial(self) -> bool:
        return bool(self.quarantined or self.failed or self.away)

    def to_dict(self) -> dict[str, Any]:
        listed = ("new", "changed", "moved", "copies", "touched", "repaired", "removed")
        reasons = ("quarantined", "failed", "damaged", "away")
        return {
            **{name: [str(path) for path in getattr(self, name)] for name in listed},
            **{name: {str(path): why for path, why in getattr(self, name).items()} for name in reasons},
            "passed_over": dict(self.passed_over.most_common()),
            "unchanged": self.unchanged,
            "set_aside": self.set_aside,
            "idle": self.idle,
            "video_seconds": self.video_seconds,
            "seconds": self.seconds,
        }

    @property
    def text(self) -> str:
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
        lines += [f"kept what was found in {scan.shown(path)}: {reason}" for path, reason in self.away.items()]
        if self.set_aside:
            lines.append(
                f"{self.set_aside:,} of the quarantined could not be read by an earlier run and have not changed "
                f"since; --retry tries them again"
            )
        if self.idle:
            lines.append(
                f"the features of {self.idle:,} videos that have left are kept, so that none is decoded again should "
                f"it come back; --forget makes room"
            )
        if not (any(counts.values()) or self.away):
            lines.append(
                "no video was found; in a folder, files are told by endings such as .mp4, and one that is named itself "
                "is taken whatever it ends in"
            )
        summary = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        return "\n".join([*lines, summary + self._passed_over() + self._speed()])

    def _passed_over(self) -> str:
        if not self.passed_over:
            return ""
        usual = [f"{count:,} {scan.shown(Path(ending))}" for ending, count in self.passed_over.most_common(_SHOWN)]
        more = ["…"] if len(self.passed_over) > _SHOWN else []
        return f", {self.passed_over.total():,} passed over as no videos ({', '.join(usual + more)})"

    def _speed(self) -> str:
        total, backbone = self.seconds.get("total", 0.0), self.seconds.get("backbone", 0.0)
        if not self.video_seconds or not total:
            return ""
        return (
            f"; {self.video_seconds / 3600:,.2f} hours of video in {total:,.1f} s "
            f"({self.video_seconds / total:,.0f} hours of it an hour), {backbone / total:.0%} of it in the backbone"
        )


@dataclass(frozen=True, kw_only=True)
class ReindexReport:
    """A new generation: how many videos it holds, and those whose features were damaged."""

    generation: str
    model: str
    num_videos: int
    failed: dict[str, str]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def text(self) -> str:
        lines = [f"left out {name}: {reason}" for name, reason in self.failed.items()]
        if self.failed:
            lines.append("midreel index decodes them again")
        return "\n".join(
            [*lines, f"{self.num_videos:,} videos are now searched with {self.model}, in {self.seconds:.1f} s"]
        )
