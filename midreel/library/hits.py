"""Turn the matches of an index into hits: find the moments of each video that fit the query."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from midreel.errors import BadSetting
from midreel.index.base import Array, Match
from midreel.index.embedded.quantise import unit
from midreel.library.catalogue import Video
from midreel.media.subtitles import Line
from midreel.ops.calibration import THRESHOLD
from midreel.ops.edges import PLAYHOUSE, EdgeCalibration, with_ranges
from midreel.ops.moments import Curve, ScoredMoment, find_moments, fused, joined
from midreel.types import Tokens

# The most windows of one batch, after padding. It limits the memory of a search in long films.
_MOST_WINDOWS = 4096


class RelevanceCurve:
    """How well a query fits over time: the value at each second of `times`.

    A search makes it from arrays. They become tuples only for those who ask for them.

    Args:
        times: Seconds.
        values: The score at each of them.
    """

    def __init__(self, *, times: Sequence[float] | Array, values: Sequence[float] | Array) -> None:
        self._times, self._values = times, values

    @cached_property
    def times(self) -> tuple[float, ...]:
        """The times in seconds."""
        return _as_tuple(self._times)

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The score at each time."""
        return _as_tuple(self._values)

    def arrays(self) -> tuple[Array, Array]:
        """Return the times and the values as arrays of float64."""
        return np.asarray(self._times, np.float64), np.asarray(self._values, np.float64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RelevanceCurve) and (self.times, self.values) == (other.times, other.values)

    def __hash__(self) -> int:
        return hash((self.times, self.values))

    def __repr__(self) -> str:
        return f"RelevanceCurve(times={self.times}, values={self.values})"


def _as_tuple(values: Sequence[float] | Array) -> tuple[float, ...]:
    return tuple(values.tolist() if isinstance(values, np.ndarray) else values)


@dataclass(frozen=True, kw_only=True)
class Hit(Match):
    """A match of the index, with the video's files and the moments in it.

    Attributes:
        path: A file of the video that the filter allows, and that exists if any does.
        paths: All files of the video, first those that the filter allows.
        duration: The length of the video in seconds.
        moments: Where in the video the query fits, best first.
        curve: How well the query fits over time.
        confidence: The probability that the video matches the query, from 0 to 1. None if the library is not
            calibrated, or the query is an image.
        said: The lines of the subtitles that fit the query, best first.

    >>> hit = Hit(
    ...     video_id="f1",
    ...     score=0.5,
    ...     branch_scores={"frame": 0.5},
    ...     path=Path("film.mp4"),
    ...     paths=(Path("film.mp4"),),
    ...     duration=90.0,
    ...     moments=(ScoredMoment(start=12.0, end=17.5, score=0.5, peak=14.0),),
    ...     curve=RelevanceCurve(times=(14.0,), values=(0.5,)),
    ... )
    >>> hit.moments[0].start
    12.0
    >>> hit.to_dict()["path"]
    'film.mp4'
    """

    path: Path
    paths: tuple[Path, ...]
    duration: float
    moments: tuple[ScoredMoment, ...]
    curve: RelevanceCurve
    confidence: float | None = None
    said: tuple[Line, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as JSON values."""
        return {
            "video_id": self.video_id,
            "path": str(self.path),
            "paths": [str(path) for path in self.paths],
            "duration": self.duration,
            "score": self.score,
            "confidence": self.confidence,
            "branch_scores": dict(self.branch_scores),
            "moments": [moment.to_dict() for moment in self.moments],
            "curve": {"times": list(self.curve.times), "values": list(self.curve.values)},
            "said": [asdict(line) for line in self.said],
        }

    def _repr_html_(self) -> str:
        """Return the hit as notebooks show it."""
        from midreel.library.notebook import hit_html  # it decodes a frame

        return hit_html(self)


def is_confident(hits: Sequence[Hit], threshold: float | int = THRESHOLD) -> bool | None:
    """Return whether any hit is confident: its confidence is at least the threshold. None if no hit has a confidence.

    Raises:
        BadSetting: The threshold is not from 0 to 1.
    """
    if not 0 <= threshold <= 1:
        raise BadSetting(f"threshold is {threshold}, expected a probability from 0 to 1. Try {THRESHOLD}.")
    known = [hit.confidence for hit in hits if hit.confidence is not None]
    return max(known) >= threshold if known else None


@dataclass(frozen=True, kw_only=True)
class SearchedVideo:
    """A video that a search found.

    Attributes:
        video: The row of the catalogue.
        paths: The files of the video.
        tokens: The tokens of each branch that a query is compared with, a row for each window. They are unit
            vectors, but those of a branch of dot products keep their length.
        windows: The start and end of each window in seconds.
    """

    video: Video
    paths: tuple[Path, ...]
    tokens: Mapping[str, Tokens]
    windows: tuple[tuple[float, float], ...]

    @property
    def path(self) -> Path:
        """The first file that exists, or else the first. A single file is not checked, to save a disk access."""
        existing = (path for path in self.paths if os.path.exists(path))  # noqa: PTH110  pathlib raises PermissionError
        return next(existing, self.paths[0]) if len(self.paths) > 1 else self.paths[0]


def locate(
    queries: Mapping[str, Array],
    rows: Sequence[int],
    videos: Sequence[SearchedVideo],
    weights: Mapping[str, float],
    *,
    edges: EdgeCalibration = PLAYHOUSE,
    frame_gap: float = 0.0,
) -> list[tuple[RelevanceCurve, tuple[ScoredMoment, ...]]]:
    """Return the curve and the moments of each pair of a query and a video, computed in batches.

    Args:
        queries: The vectors of each branch, a row for each query.
        rows: The row of the query of each pair.
        videos: The video of each pair.
        weights: The weight of each branch in the curve.
        edges: How wide the ranges of starts and ends are.
        frame_gap: The seconds between two frames.
    """
    found: dict[int, tuple[RelevanceCurve, tuple[ScoredMoment, ...]]] = {}
    for pairs, curve, lengths in _batched_curves(queries, rows, videos, weights):
        moments = with_ranges(curve, find_moments(curve), edges, frame_gap).listed()
        times = (curve.spans[..., 0] + curve.spans[..., 1]) / 2
        for pair, when, values, length, parts in zip(pairs, times, curve.scores, lengths, moments, strict=True):
            found[pair] = RelevanceCurve(times=when[:length], values=values[:length]), tuple(parts)
    return [found[pair] for pair in range(len(videos))]


def curves_of(
    queries: Mapping[str, Array],
    rows: Sequence[int],
    videos: Sequence[SearchedVideo],
    weights: Mapping[str, float],
) -> list[Curve]:
    """Return the curve of each pair of a query and a video, in seconds. The arguments are those of `locate`.

    Args:
        queries: The vectors of each branch, a row for each query.
        rows: The row of the query of each pair.
        videos: The video of each pair.
        weights: The weight of each branch in the curve.
    """
    found: dict[int, Curve] = {}
    for pairs, curve, lengths in _batched_curves(queries, rows, videos, weights):
        for number, (pair, length) in enumerate(zip(pairs, lengths, strict=True)):
            own = slice(number, number + 1), slice(length)
            found[pair] = Curve(scores=curve.scores[own], spans=curve.spans[own])
    return [found[pair] for pair in range(len(videos))]


def _batched_curves(
    queries: Mapping[str, Array], rows: Sequence[int], videos: Sequence[SearchedVideo], weights: Mapping[str, float]
) -> Iterator[tuple[list[int], Curve, list[int]]]:
    """Yield pairs of a query and a video, as positions in `videos`, with a curve in seconds and its length for each."""
    units = {branch: unit(vectors) for branch, vectors in queries.items()}
    for pairs in _batches([len(video.windows) for video in videos]):
        curve = _curves(units, [rows[pair] for pair in pairs], [videos[pair] for pair in pairs], weights)
        yield pairs, curve, np.isfinite(curve.scores).sum(1).tolist()


def _batches(num_windows: Sequence[int]) -> Iterator[list[int]]:
    """Group pairs with similar numbers of windows, so that there is little padding."""
    batch: list[int] = []
    for pair in sorted(range(len(num_windows)), key=num_windows.__getitem__):
        if batch and (len(batch) + 1) * num_windows[pair] > _MOST_WINDOWS:
            yield batch
            batch = []
        batch.append(pair)
    if batch:
        yield batch


def _curves(
    units: Mapping[str, Array], rows: Sequence[int], videos: Sequence[SearchedVideo], weights: Mapping[str, float]
) -> Curve:
    """Return one curve in seconds for each pair, over all windows of its video. The queries have length 1."""
    branches = {
        branch: _fit([units[branch][row] for row in rows], [video.tokens[branch] for video in videos])
        for branch in videos[0].tokens
    }
    starts, ends = np.array([window for video in videos for window in video.windows], np.float32).T
    numbers = np.repeat(np.arange(len(videos)), [len(video.windows) for video in videos])
    return joined(fused(branches, weights), starts, ends, numbers)


def _fit(queries: Sequence[Array], videos: Sequence[Tokens]) -> Curve:
    """Return the scores of one branch for pairs of a query and a video: a row for each window, padded to the longest.

    A product for each pair, because gathering the tokens of all videos first would copy megabytes.
    """
    bounds = [0, *accumulate(map(len, videos))]
    shape = bounds[-1], max(part.mask.shape[1] for part in videos)
    dtype = np.result_type(videos[0].vectors, queries[0])
    scores, spans = np.full(shape, -np.inf, dtype), np.zeros((*shape, 2), videos[0].spans.dtype)
    for query, part, (start, end) in zip(queries, videos, pairwise(bounds), strict=True):
        own = slice(start, end), slice(part.mask.shape[1])
        np.copyto(scores[own], part.vectors @ query, where=part.mask)
        spans[own] = part.spans
    return Curve(scores=scores, spans=spans)
