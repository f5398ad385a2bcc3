"""The graph of the segments of a video, and the vectors that TF-PRVR derives from it (midreel/methods/tf_prvr.py).

Axes: N frames, M segments of all levels, S tokens, C feature width.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from midreel.ops import wavelets

_STILL = 1e-8  # added to the length of a step between two frames, which may be 0
_ROUNDING = 1e-12  # a smaller response of the wavelets is a rounding error

Variant = Literal["paper", "released"]
Edges = Int[np.ndarray, " _"]  # the first frame of each segment of a level, and the number of frames


def moment_vectors(
    frames: Float[np.ndarray, "N C"], spread: float = 0.7, variant: Variant = "released"
) -> tuple[Float[np.ndarray, "S C"], Int[np.ndarray, " N"]]:
    """Return the vectors u_τ, one for each part of the video in which no level has a cut, and the part of each frame.

    Args:
        frames: the embeddings of the frames.
        spread: β.
        variant: the paper's formulas, or those of the authors' code.
    """
    unit = _unit(frames)
    if variant == "paper" and len(frames) < 4:
        return unit, np.arange(len(frames))
    levels = [np.array([0, *cuts, len(frames)]) for cuts in level_cuts(unit, variant)]
    starts = np.concatenate([edges[:-1] for edges in levels])
    ends = np.concatenate([edges[1:] for edges in levels])
    level = np.repeat(np.arange(len(levels)), [len(edges) - 1 for edges in levels])
    sums = np.concatenate((np.zeros((1, frames.shape[1])), (unit if variant == "released" else frames).cumsum(0)))
    means = _unit((sums[ends] - sums[starts]) / (ends - starts)[:, None])
    links = segment_graph(means, starts, ends, level, across=1.0 if variant == "released" else 0.5)
    spread_means = diffusion(links, spread) @ means
    edges = np.unique(np.concatenate(levels))
    tokens = np.mean([spread_means[segment] for segment in _segments_at(edges[:-1], levels)], axis=0)
    return tokens, np.searchsorted(edges, np.arange(len(frames)), "right") - 1


def level_cuts(unit: Float[np.ndarray, "N C"], variant: Variant) -> list[Int[np.ndarray, " _"]]:
    """Return the frames that start a new segment, for each level, the finest first.

    A cut is a peak of the level's part of the signal s_t = 1 - cos(d_t, d_{t+1}), where d_t is the step from frame t to
    frame t + 1. The peak must exceed the mean of the level by its standard deviation. Without levels, the video is one
    segment.

    Args:
        unit: the embeddings of the frames, at length one.
        variant: the paper's formulas, or those of the authors' code.
    """
    num_samples = len(unit) - 2
    if num_samples < 1:
        return [np.empty(0, np.int64)]
    steps = np.diff(unit, axis=0)
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    directions = steps / (lengths + _STILL)
    signal = 1 - (directions[:-1] * directions[1:]).sum(1).clip(-1, 1)
    if variant == "released":
        still = lengths[:, 0] <= _STILL
        signal[still[:-1] & still[1:]] = 0
        num_levels, first = wavelets.max_levels(num_samples), 2
    else:
        num_levels, first = num_samples.bit_length() - 1, 1
    responses = np.abs(wavelets.detail_bands(signal, num_levels))
    cuts = [first + _peaks(response) for response in responses]
    return cuts or [np.empty(0, np.int64)]


def _peaks(response: Float[np.ndarray, " N"]) -> Int[np.ndarray, " K"]:
    """Return the local maxima that exceed the mean by the standard deviation. The ends are none, a plateau is one."""
    starts = np.flatnonzero(np.diff(response, prepend=np.nan))  # of runs of equal samples
    lasts, heights = np.append(starts[1:], len(response)) - 1, response[starts]
    is_peak = (heights[1:-1] > heights[:-2]) & (heights[1:-1] > heights[2:])
    is_peak &= heights[1:-1] > max(response.mean() + response.std(), _ROUNDING)
    return (starts[1:-1][is_peak] + lasts[1:-1][is_peak]) // 2


def segment_graph(
    means: Float[np.ndarray, "M C"],
    starts: Int[np.ndarray, " M"],
    ends: Int[np.ndarray, " M"],
    level: Int[np.ndarray, " M"],
    *,
    across: float = 1.0,
) -> Float[np.ndarray, "M M"]:
    """Return the links between all segments of all levels.

    Within a level: max(0, cos) + exp(-distance of the centres / mean length). Between neighbouring levels: the
    intersection over union of the spans, times max(0, cos). A segment has the link 1 with itself.

    Args:
        means: the segments, at length one.
        starts: the first frame of each segment.
        ends: the frame after the last of each segment.
        level: the level of each segment.
        across: a factor for the links between levels.
    """
    alike = np.maximum(means @ means.T, 0)
    lengths, centres = ends - starts, (starts + ends) / 2
    mean_length = (np.bincount(level, lengths) / np.bincount(level))[level]
    near = np.exp(-np.abs(centres[:, None] - centres) / mean_length)
    shared = np.maximum(np.minimum(ends[:, None], ends) - np.maximum(starts[:, None], starts), 0)
    overlap = shared / (lengths[:, None] + lengths - shared)
    distance = np.abs(level[:, None] - level)
    links = np.where(distance == 0, alike + near, np.where(distance == 1, across * overlap * alike, 0))
    np.fill_diagonal(links, 1)
    return links


def diffusion(links: Float[np.ndarray, "M M"], spread: float) -> Float[np.ndarray, "M M"]:
    """Return K = (1 - β) (I - β D^-½ W D^-½)^-1, where W are the links, D their row sums, and β is `spread`."""
    scale = 1 / np.sqrt(links.sum(1))
    identity = np.eye(len(links))
    kernel: Float[np.ndarray, "M M"] = (1 - spread) * np.linalg.inv(identity - spread * scale[:, None] * links * scale)
    return kernel


def _segments_at(frames: Int[np.ndarray, " S"], levels: Sequence[Edges]) -> list[Int[np.ndarray, " S"]]:
    """Return, for each level, the segment that contains each frame. Segments are numbered through all levels."""
    found, first = [], 0
    for edges in levels:
        found.append(first + np.searchsorted(edges, frames, "right") - 1)
        first += len(edges) - 1
    return found


def _unit(rows: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
    """Return the rows at length one. A row of zeros stays zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
