"""Windows of long videos, so that a search finds a moment of a three-hour film as well as one of a short clip.

A model makes a fixed number of tokens from a video of any length, so the tokens of a long video would be coarse.
Therefore a long video is split into windows. Each window is encoded like a video, and the best window gives the score.
Windows overlap, so an event at the end of one window is whole in the next.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

from midreel.errors import BadSetting


@dataclass(frozen=True, kw_only=True)
class Window:
    """The frames of a window.

    Attributes:
        first: The first frame.
        last: The frame after the last one.
        total: The number of frames of the video.
    """

    first: int
    last: int
    total: int

    def seconds(self, duration: float) -> tuple[float, float]:
        """Return start and end of the window in a video of `duration` seconds. Frames are spaced evenly."""
        return self.first / self.total * duration, self.last / self.total * duration


@dataclass(frozen=True, kw_only=True)
class Windowing:
    """How videos are split. A generation stores it, because the times of its tokens depend on it.

    Attributes:
        size: The number of frames of a window.
        longest: The number of frames of the longest video that is not split.
        overlap: The part of a window that overlaps the next, from 0 to 1.

    Raises:
        BadSetting: A value is out of range.
    """

    size: int
    longest: int
    overlap: float = 0.25

    def __post_init__(self) -> None:
        whole = isinstance(self.size, int) and isinstance(self.longest, int)
        if not (whole and 1 <= self.size <= self.longest and 0 <= self.overlap < 1):
            raise BadSetting(
                f"size is {self.size}, longest {self.longest}, overlap {self.overlap}, expected whole numbers "
                f"1 <= size <= longest, and 0 <= overlap < 1"
            )

    @classmethod
    def of(cls, num_frames: int) -> "Windowing":
        """Return the windows for a model that resamples videos to `num_frames`.

        A video of up to twice as many frames is not split: the model still sees every other frame, as in the
        benchmarks.
        """
        return cls(size=num_frames, longest=2 * num_frames)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Windowing":
        """Return the windowing with these fields, as `generation.json` stores them."""
        return cls(**values)

    def number(self, total: int) -> int:
        """Return the number of windows of a video of `total` frames."""
        return 1 if total <= self.longest else 1 + ceil((total - self.size) / max(1.0, self.size * (1 - self.overlap)))

    def windows(self, total: int) -> list[Window]:
        """Return the windows of a video of `total` frames. They are evenly spaced and cover the whole video.

        >>> [(window.first, window.last) for window in Windowing(size=4, longest=8).windows(11)]
        [(0, 4), (2, 6), (5, 9), (7, 11)]
        """
        steps = self.number(total) - 1
        if not steps:
            return [Window(first=0, last=total, total=total)]
        starts = (round(number * (total - self.size) / steps) for number in range(steps + 1))
        return [Window(first=start, last=start + self.size, total=total) for start in starts]
