"""A long video in stretches that a method can take in, so that a film of hours is found as a clip of seconds is.

A method makes a fixed number of tokens of a video, be it ever so long. A video of more than `longest` frames is cut
into windows of `size` that overlap, so that what happens at the end of one is whole in the next; each is encoded as if
it were a video of its own, and the best of them is the video's score.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

from midreel.errors import BadSetting


@dataclass(frozen=True, kw_only=True)
class Window:
    """Frames from `first` up to, not including, `last` of a video that has `total`."""

    first: int
    last: int
    total: int

    def seconds(self, duration: float) -> tuple[float, float]:
        """When it begins and ends in a video that lasts `duration`: frames are taken at a steady rate."""
        return self.first / self.total * duration, self.last / self.total * duration


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """How videos are cut; kept with what was encoded so, for the places of windows follow from it."""

    size: int
    longest: int
    overlap: float = 0.25  # of a window, with the next

    def __post_init__(self) -> None:
        whole = isinstance(self.size, int) and isinstance(self.longest, int)
        if not (whole and 1 <= self.size <= self.longest and 0 <= self.overlap < 1):
            raise BadSetting(
                f"windows of {self.size} frames that overlap by {self.overlap}, in videos of more than {self.longest}; "
                f"expected 1 <= size <= longest and 0 <= overlap < 1"
            )

    @classmethod
    def of(cls, num_frames: int) -> "Windowing":
        """For a method that takes `num_frames`. Of twice as many it still sees every other one, as it does in the
        benchmarks; so what is not much longer stays whole."""
        return cls(size=num_frames, longest=2 * num_frames)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Windowing":
        return cls(**values)

    def number(self, total: int) -> int:
        """How many windows a video of `total` frames has."""
        return 1 if total <= self.longest else 1 + ceil((total - self.size) / max(1.0, self.size * (1 - self.overlap)))

    def windows(self, total: int) -> list[Window]:
        """Of a video of `total` frames: the first window begins with it, the last ends with it, evenly spread.

        >>> [(window.first, window.last) for window in Windowing(size=4, longest=8).windows(11)]
        [(0, 4), (2, 6), (5, 9), (7, 11)]
        """
        steps = self.number(total) - 1
        if not steps:
            return [Window(first=0, last=total, total=total)]
        starts = (round(number * (total - self.size) / steps) for number in range(steps + 1))
        return [Window(first=start, last=start + self.size, total=total) for start in starts]
