"""Measure how precisely a model finds the start and end of moments, and save it with the model."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float

from midreel.evaluation.moments import curves
from midreel.io.files import write_durably
from midreel.methods import load_method
from midreel.methods.base import Method, evaluating
from midreel.methods.model_files import EDGES
from midreel.ops.devices import on_device
from midreel.ops.edges import CONFIDENCE, FEWEST, PLAYHOUSE, EdgeCalibration, calibrated, edge_ranges, slopes
from midreel.ops.moments import Curve, find_moments, fused
from midreel.training.data import FeatureSet
from midreel.types import Moment

VIDEOS_AT_ONCE = 100


@dataclass(frozen=True, kw_only=True)
class FoundEdges:
    """The best moment that a search finds for each query, within the right video, in seconds.

    Attributes:
        found: the start and end that were found.
        true: the start and end of the annotated moment that is nearest.
        slopes: the slopes of the curve at the edges (`ops.edges.slopes`).
        videos: 0 and the duration of the video.
    """

    found: Float[np.ndarray, "N 2"]
    true: Float[np.ndarray, "N 2"]
    slopes: Float[np.ndarray, "N 2 2"]
    videos: Float[np.ndarray, "N 2"]

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.found)

    def calibrated(self, confidence: float = CONFIDENCE) -> EdgeCalibration:
        """Return the calibration for other videos of this kind. Raise BadBatch if there are too few queries."""
        return calibrated(self.found, self.true, self.slopes, confidence)

    def ranges(self, calibration: EdgeCalibration = PLAYHOUSE) -> Float[np.ndarray, "N 2 2"]:
        """Return the ranges of each start and end."""
        return edge_ranges(self.found, self.slopes, self.videos, calibration)

    def contained(self, calibration: EdgeCalibration = PLAYHOUSE) -> Bool[np.ndarray, "N 2"]:
        """Return whether the ranges contain the true start and the true end."""
        ranges = self.ranges(calibration)
        return (ranges[..., 0] <= self.true) & (self.true <= ranges[..., 1])


def draw_curves(method: Method, data: FeatureSet, *, device: str = "cpu") -> Iterator[tuple[list[int], Curve]]:
    """Yield the curves of queries over their own videos, in seconds, in batches. Skip queries without a moment.

    Args:
        method: The model.
        data: The videos and queries.
        device: The torch device.

    Yields:
        The positions of some queries, and the curves of these queries.
    """
    annotated = torch.tensor([len(query.moments) > 0 for query in data.queries])
    on_device(method, device)
    with evaluating(method):
        for videos in torch.arange(len(data)).split(VIDEOS_AT_ONCE):
            here = (data.video_of_query >= videos[0]) & (data.video_of_query <= videos[-1])
            rows = (annotated & here).nonzero()[:, 0]
            if not len(rows):
                continue
            own = data.video_of_query[rows]
            tokens = method.encode_videos(data.video_batch(videos).to(device))
            vectors = method.encode_queries(data.query_batch(rows).to(device))
            drawn = curves(vectors, tokens, (own - videos[0]).to(device), method.similarities)
            curve = fused(drawn, method.curve_weights)
            seconds = data.durations[own].double().numpy()
            yield rows.tolist(), Curve(scores=curve.scores, spans=curve.spans * seconds[:, None, None])


def find_edges(method: Method, data: FeatureSet, frame_rate: float | None, *, device: str = "cpu") -> FoundEdges:
    """Find the best moment of each query that has an annotated moment, within the right video.

    Args:
        method: The model.
        data: The videos and queries.
        frame_rate: The frames per second of the features, if known.
        device: The torch device.
    """
    gap = 1 / frame_rate if frame_rate else 0.0
    parts = [(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros((0, 2, 2)), np.zeros((0, 2)))]
    for rows, curve in draw_curves(method, data, device=device):
        moments = find_moments(curve, most=1)
        best = moments.spans[:, 0]
        nearest = [_nearest(edges, data.queries[row].moments) for row, edges in zip(rows, best.tolist(), strict=True)]
        seconds = data.durations[data.video_of_query[rows]].double().numpy()
        ends = np.stack((np.zeros_like(seconds), seconds), 1)
        parts.append((best, np.array(nearest), slopes(curve, moments, gap)[:, 0], ends))
    found, true, widths, videos = (np.concatenate(column) for column in zip(*parts, strict=True))
    return FoundEdges(found=found, true=true, slopes=widths, videos=videos)


def _nearest(found: list[float], moments: tuple[Moment, ...]) -> tuple[float, float]:
    """Return the annotated moment whose start and end are nearest to those of a found one."""
    nearest = min(moments, key=lambda moment: abs(moment.start - found[0]) + abs(moment.end - found[1]))
    return nearest.start, nearest.end


def calibrate_model(folder: Path, data: FeatureSet, frame_rate: float | None, *, device: str = "cpu") -> None:
    """Save with a model how wide the ranges of starts and ends must be. Keep an existing file.

    Nothing is saved if fewer than `ops.edges.FEWEST` queries have an annotated moment. Libraries of the model then use
    `ops.edges.PLAYHOUSE`.

    Args:
        folder: The folder of the model.
        data: Videos and queries on which the model was not trained.
        frame_rate: The frames per second of the features, if known.
        device: The torch device.
    """
    if (folder / EDGES).exists() or sum(len(query.moments) > 0 for query in data.queries) < FEWEST:
        return
    edges = find_edges(load_method(folder), data, frame_rate, device=device)
    write_durably(folder / EDGES, json.dumps(edges.calibrated().to_dict() | {"queries": len(edges)}, indent=2) + "\n")
