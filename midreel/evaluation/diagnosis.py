"""Measures of a collection of videos that need no annotations: drift, hubs and near-duplicates. All are numpy.

Axes: N videos, P positions in a video, C feature width, Q sentences.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from midreel.errors import BadModel

POSITIONS = 8  # of a sketch
SAME_LENGTH = 0.05  # the largest part by which the lengths of near-duplicates differ
AT_ONCE = 512  # videos whose sketches are compared together

# ---------------------------------------------------------------- drift


@dataclass(frozen=True, kw_only=True)
class FeatureStatistics:
    """The features of a set of videos, in short: mean and standard deviation, over videos, of their mean frames.

    Every video counts the same, whatever its length.

    Attributes:
        num_videos: The number of videos.
        mean: The mean in each dimension.
        std: The standard deviation in each dimension, of a sample (N - 1); 0 for a single video.
    """

    num_videos: int
    mean: Float[np.ndarray, " C"]
    std: Float[np.ndarray, " C"]

    @classmethod
    def of(cls, videos: Iterable[Float[np.ndarray, "_ C"]]) -> "FeatureStatistics | None":
        """Return the statistics of videos, given by the features of their frames. None if there is no video."""
        means = [frames.mean(0, dtype=np.float64) for frames in videos if len(frames)]
        if not means:
            return None
        stacked = np.stack(means)
        std = stacked.std(0, ddof=1) if len(stacked) > 1 else np.zeros(stacked.shape[1])
        return cls(num_videos=len(stacked), mean=stacked.mean(0), std=std)

    def to_json(self) -> str:
        """Return the statistics as JSON, with six significant digits."""
        values: dict[str, Any] = {"num_videos": self.num_videos}
        values |= {name: [float(f"{value:.6g}") for value in getattr(self, name)] for name in ("mean", "std")}
        return json.dumps(values) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "FeatureStatistics":
        """Return the statistics in a JSON text. Raise BadModel if it is damaged."""
        try:
            values = json.loads(text)
            mean, std = (np.array(values[name], np.float64) for name in ("mean", "std"))
            number = values["num_videos"]
            if mean.ndim != 1 or mean.shape != std.shape or not isinstance(number, int) or number < 1:
                raise ValueError(f"mean {mean.shape}, std {std.shape}, num_videos {number!r:.20}")
            if not np.isfinite(mean).all() or not (np.isfinite(std) & (std >= 0)).all():
                raise ValueError("a value is not finite")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadModel(f"the feature statistics are damaged ({error}). Copy the model again.") from error
        return cls(num_videos=number, mean=mean, std=std)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far the features of some videos are from those that a model was trained on.

    Attributes:
        distance: The root mean square, over dimensions, of the difference of the means, in standard deviations of the
            training videos. Videos that differ from the training as much as training videos do from each other have 1.
        by_chance: The distance to expect for as many videos of the same kind as the training.
        spread: The standard deviation of the videos, as a factor of that of the training videos.
    """

    distance: float
    by_chance: float
    spread: float

    @property
    def ratio(self) -> float:
        """The distance as a multiple of that by chance: about 1 without drift."""
        return self.distance / self.by_chance


def drift(training: FeatureStatistics, found: FeatureStatistics) -> Drift | None:
    """Return the drift from training videos to other videos. None if the training videos do not differ.

    If both sets are drawn from one distribution, the squared distance is 1/n + 1/m on average, for n and m videos. The
    root of that is `by_chance`.

    >>> a = FeatureStatistics(num_videos=4, mean=np.array([0.0, 1.0]), std=np.array([1.0, 2.0]))
    >>> b = FeatureStatistics(num_videos=4, mean=np.array([1.0, 1.0]), std=np.array([1.0, 2.0]))
    >>> drift(a, b)
    Drift(distance=0.7071067811865476, by_chance=0.7071067811865476, spread=1.0)

    Raises:
        BadModel: The statistics have different widths.
    """
    if training.mean.shape != found.mean.shape:
        raise BadModel(
            f"the model was trained on features of width {len(training.mean)}, but these have {len(found.mean)}. "
            f"Name its own model: --model"
        )
    varied = training.std > 0
    if not varied.any():
        return None
    steps = (found.mean - training.mean)[varied] / training.std[varied]
    return Drift(
        distance=float(np.sqrt(np.square(steps).mean())),
        by_chance=math.sqrt(1 / training.num_videos + 1 / found.num_videos),
        spread=float(np.sqrt(np.square(found.std).sum() / np.square(training.std).sum())),
    )


# ---------------------------------------------------------------- hubs


@dataclass(frozen=True, kw_only=True)
class Hubness:
    """How evenly searches find videos: for each video, the number of sentences that have it among their best `top`.

    Attributes:
        counts: The number of sentences for each video.
        num_sentences: The number of sentences.
        top: The number of hits of each sentence.
    """

    counts: Int[np.ndarray, " N"]
    num_sentences: int
    top: int

    @property
    def expected(self) -> float:
        """The mean count."""
        return self.num_sentences * self.top / len(self.counts)

    @property
    def skewness(self) -> float:
        """The skewness of the counts: 0 if they are symmetric, above 1 if a few videos take most places."""
        away = self.counts - self.counts.mean()
        variance = float(np.square(away).mean())
        return float((away**3).mean()) / variance**1.5 if variance > 0 else 0.0

    @property
    def never(self) -> float:
        """The part of the videos that no sentence finds."""
        return float((self.counts == 0).mean())

    @property
    def never_by_chance(self) -> float:
        """The part that no sentence would find if hits were drawn at random."""
        return (1 - self.top / len(self.counts)) ** self.num_sentences

    def hubs(self, factor: float = 5.0) -> list[int]:
        """Return the videos whose count is at least `factor` times the mean, most frequent first."""
        order = np.argsort(-self.counts, kind="stable")
        return [int(video) for video in order if self.counts[video] >= factor * self.expected]

    def rare(self) -> list[int]:
        """Return the videos that no sentence finds, if hits at random would find nearly all of them."""
        return np.flatnonzero(self.counts == 0).tolist() if self.never_by_chance < 0.01 else []


# ---------------------------------------------------------------- near-duplicates


def sketch(frames: Float[np.ndarray, "T C"], positions: int = POSITIONS) -> Float[np.ndarray, "P C"]:
    """Return the means of equal parts of a video. A video of fewer frames repeats them.

    >>> sketch(np.array([[1.0], [3.0], [5.0], [7.0]], np.float32), 2).tolist()
    [[2.0], [6.0]]
    """
    starts = np.arange(positions) * len(frames) // positions
    ends = np.maximum((np.arange(positions) + 1) * len(frames) // positions, starts + 1)
    return np.stack([frames[start:end].mean(0) for start, end in zip(starts, ends, strict=True)])


def near_duplicates(
    sketches: Float[np.ndarray, "N P C"],
    durations: Sequence[float],
    centre: Float[np.ndarray, " C"] | None = None,
    threshold: float = 0.95,
) -> list[tuple[int, int, float]]:
    """Return pairs of videos of nearly the same length whose parts look alike one by one, most similar first.

    The similarity is the mean cosine of the parts at the same position, after the mean of all videos is subtracted:
    frozen features have a large part in common, so that without this all videos look alike.

    Args:
        sketches: The sketch of each video.
        durations: Their lengths in seconds.
        centre: What to subtract. Default: the mean of all sketches.
        threshold: The least similarity.
    """
    if len(sketches) < 2:
        return []
    moved = sketches.astype(np.float32) - (sketches.mean((0, 1)) if centre is None else centre)
    lengths = np.linalg.norm(moved, axis=-1, keepdims=True)
    flat = (moved / np.maximum(lengths, 1e-12) / math.sqrt(moved.shape[1])).reshape(len(moved), -1)
    seconds = np.asarray(durations, np.float64)
    found = []
    for start in range(0, len(flat), AT_ONCE):
        cosines = flat[start : start + AT_ONCE] @ flat.T
        longer = np.maximum(seconds[start : start + AT_ONCE, None], seconds)
        near = np.abs(seconds[start : start + AT_ONCE, None] - seconds) <= SAME_LENGTH * longer
        for row, other in zip(*np.nonzero((cosines >= threshold) & near), strict=True):
            if start + row < other:
                found.append((int(start + row), int(other), min(1.0, float(cosines[row, other]))))
    return sorted(found, key=lambda pair: (-pair[2], pair[:2]))
