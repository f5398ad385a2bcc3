"""The uncertainty of a moment's edges: a range around its start and around its end, from the curve.

A range states 80 %: it contains the true start (or end) in four of five searches in the right video. The width of a
range follows the curve at the edge. It is short where the curve rises steeply between two close frames. How wide it has
to be is measured on annotated moments, by split conformal prediction (`calibrated`): the ranges are scaled so that each
bound is exceeded by one annotated edge in ten. This holds for other videos of the same kind, whatever the distribution
of the errors is.

All functions are pure functions of numpy arrays. They process many queries at a time, each with its own video.

Axes: Q queries, S tokens, K moments of a query, N annotated moments. The last axes of slopes and ranges, 2 2, are the
edge (start, end) and the side of the edge (before, after).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from midreel.errors import BadBatch, BadSetting
from midreel.ops.moments import LEVEL, Curve, Moments, background_of

CONFIDENCE = 0.8  # what a range states
FEWEST = 100  # annotated moments of a calibration. With fewer, the share that the ranges contain varies by 4 % or more.
_SLOPE = 0.1  # the slope at an edge goes from this much below LEVEL to this much above it


@dataclass(frozen=True, kw_only=True)
class EdgeCalibration:
    """How wide ranges are, as multiples of `slopes`.

    Attributes:
        start: how far the true start may be before and after the start that was found.
        end: how far the true end may be before and after the end that was found.

    Raises:
        BadSetting: a value is negative or not finite.
    """

    start: tuple[float, float]
    end: tuple[float, float]

    def __post_init__(self) -> None:
        for name, pair in vars(self).items():
            if not all(0 <= value < math.inf for value in pair):
                raise BadSetting(f"{name} is {pair}, expected two finite numbers of 0 or more. Calibrate again.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EdgeCalibration":
        """Return the calibration of JSON values. Raise TypeError, KeyError or ValueError if they are damaged."""
        (before, after), (early, late) = values["start"], values["end"]
        return cls(start=(float(before), float(after)), end=(float(early), float(late)))

    def to_dict(self) -> dict[str, list[float]]:
        """Return the calibration as JSON values."""
        return {"start": list(self.start), "end": list(self.end)}


# Measured by `make bench-moments` on the val videos of the playhouse worlds 0, 1 and 2: zero-shot and MSC.
PLAYHOUSE = EdgeCalibration(start=(0.79, 0.62), end=(0.79, 0.67))


def slopes(curve: Curve, moments: Moments, frame_gap: float = 0.0) -> Float[np.ndarray, "Q K 2 2"]:
    """Return the width of the slope on both sides of each edge, in the unit of the curve's spans.

    Outside the moment, it is the time between the edge and the nearest token that is clearly below the threshold of
    `find_moments`. Inside, it is the time between the edge and the nearest token that is clearly above it, or else the
    best token. In both cases the distance of two frames is added, which limits how precisely any edge can be found.

    Args:
        curve: the curve in which the moments were found.
        moments: the moments of each query.
        frame_gap: the time between two frames of the video. Tokens may be closer, because a short video repeats frames.
    """
    real = np.isfinite(curve.scores)
    background = background_of(curve)[:, None]
    height = curve.scores.max(1, keepdims=True) - background
    low = real & (curve.scores < background + (LEVEL - _SLOPE) * height)
    high = real & (curve.scores >= background + (LEVEL + _SLOPE) * height)
    first, last = _bounds(curve)
    starts, ends = np.where(real, curve.spans[..., 0], np.inf), np.where(real, curve.spans[..., 1], -np.inf)
    lengths = np.where(real, curve.spans[..., 1] - curve.spans[..., 0], 0)
    # All moments at a time: (Q, K, S).
    low, high, first, last = low[:, None], high[:, None], first[:, None], last[:, None]
    starts, ends, lengths = starts[:, None], ends[:, None], lengths[:, None]
    start, end, peak = moments.spans[..., :1], moments.spans[..., 1:], moments.peaks[..., None]
    at_peak = (starts <= peak) & (peak < ends)
    rising = (high & (starts >= start) & (starts <= peak)) | at_peak
    falling = (high & (ends <= end) & (ends >= peak)) | at_peak
    outer_start = np.where(low & (ends <= start), ends, first).max(-1)
    inner_start = np.where(rising, starts, np.inf).min(-1)
    inner_end = np.where(falling, ends, -np.inf).max(-1)
    outer_end = np.where(low & (starts >= end), starts, last).min(-1)
    start, end = start[..., 0], end[..., 0]
    gaps = [
        np.where(edges == edge[..., None], lengths, 0).max(-1).clip(frame_gap)
        for edges, edge in ((starts, start), (ends, end))
    ]
    at_start = (start - outer_start + gaps[0], inner_start - start + gaps[0])
    at_end = (end - inner_end + gaps[1], outer_end - end + gaps[1])
    widths = np.stack((*at_start, *at_end), -1).reshape(*start.shape, 2, 2)
    return np.where(np.isfinite(moments.scores)[..., None, None], widths, 0)


def _bounds(curve: Curve) -> tuple[Float[np.ndarray, "Q 1"], Float[np.ndarray, "Q 1"]]:
    """Return the start of the first and the end of the last token of each query."""
    real = np.isfinite(curve.scores)
    return (
        np.where(real, curve.spans[..., 0], np.inf).min(1, keepdims=True),
        np.where(real, curve.spans[..., 1], -np.inf).max(1, keepdims=True),
    )


def with_ranges(
    curve: Curve, moments: Moments, calibration: EdgeCalibration = PLAYHOUSE, frame_gap: float = 0.0
) -> Moments:
    """Return the moments with a range for each start and end, which contains the true one with 80 % confidence.

    Ranges contain the edge that was found. They are clipped to the video and to the order of start and end: the range
    of the start neither begins nor ends after that of the end.

    Args:
        curve: the curve in which the moments were found.
        moments: the moments of each query.
        calibration: how wide ranges are. Default: as measured on the playhouse.
        frame_gap: the time between two frames of the video.
    """
    video = np.concatenate(_bounds(curve), 1)[:, None]
    ranges = edge_ranges(moments.spans, slopes(curve, moments, frame_gap), video, calibration)
    return replace(moments, ranges=np.where(np.isfinite(moments.scores)[..., None, None], ranges, 0))


def edge_ranges(
    found: Float[np.ndarray, "*N 2"],
    slopes: Float[np.ndarray, "*N 2 2"],
    video: Float[np.ndarray, "*#N 2"],
    calibration: EdgeCalibration = PLAYHOUSE,
) -> Float[np.ndarray, "*N 2 2"]:
    """Return the ranges of start and end of moments, as `with_ranges` does.

    Args:
        found: start and end of each moment.
        slopes: the slopes of each moment.
        video: start and end of the video.
        calibration: how wide ranges are.
    """
    reach = slopes * np.array((calibration.start, calibration.end))
    ranges = found[..., None] + np.stack((-reach[..., 0], reach[..., 1]), -1)
    ranges = ranges.clip(video[..., :1, None], video[..., 1:, None])
    ranges[..., 0, 1] = np.minimum(ranges[..., 0, 1], ranges[..., 1, 1])
    ranges[..., 1, 0] = np.maximum(ranges[..., 1, 0], ranges[..., 0, 0])
    return ranges


def calibrated(
    found: Float[np.ndarray, "N 2"],
    true: Float[np.ndarray, "N 2"],
    slopes: Float[np.ndarray, "N 2 2"],
    confidence: float = CONFIDENCE,
) -> EdgeCalibration:
    """Return the calibration with which ranges contain the true edges of other videos with this confidence.

    A range is missed on either side equally often. Moments that were found at the wrong place count too.

    Args:
        found: start and end of a found moment for each query.
        true: start and end of the annotated moment.
        slopes: the slopes of the found moment.
        confidence: the share of edges that ranges contain.

    Raises:
        BadBatch: there are too few moments for this confidence.
        BadSetting: the confidence is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise BadSetting(f"confidence is {confidence}, expected a number above 0 and below 1. Try {CONFIDENCE}.")
    # One more than there are, because the edge of the next video may have any rank among those that were measured.
    rank = math.ceil((len(found) + 1) * (1 + confidence) / 2)
    if rank > len(found):
        fewest = math.ceil((1 + confidence) / (1 - confidence))
        raise BadBatch(f"{len(found)} moments are too few, expected at least {fewest}. Annotate more.")
    off = np.stack((found - true, true - found), -1) / np.maximum(slopes, np.finfo(np.float64).tiny)
    start, end = np.sort(off, 0)[rank - 1].clip(0).tolist()
    return EdgeCalibration(start=tuple(start), end=tuple(end))
