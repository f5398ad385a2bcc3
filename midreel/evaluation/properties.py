"""Properties of a dataset that decide how hard retrieval is: how many queries a video has, how long their moments are,
how much they overlap, and how similar the segments of a video and its sentences are.

The properties of the annotations need no features. They say what the paper says of QVHighlights: "very little overlap
between different queries and video segments for the same video" (Sec. 4).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Float

from midreel.datasets import Annotations
from midreel.datasets.dataset import Dataset
from midreel.errors import BadAnnotation
from midreel.evaluation.collapse import similarity
from midreel.features.stores.base import Features
from midreel.ops import segments
from midreel.types import Moment, Query, Split

NUM_CLIPS = 32  # of a video, as in the paper
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)  # τ, the similarity above which adaptive merging counts two clips as alike


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """The tenth, fiftieth and ninetieth percentile of some values, and their mean."""

    low: float
    median: float
    high: float
    mean: float

    @classmethod
    def of(cls, values: Sequence[float | int]) -> "Distribution":
        """Return the distribution of at least one value.

        >>> Distribution.of([1, 2, 3])
        Distribution(low=1.2, median=2.0, high=2.8, mean=2.0)
        """
        low, median, high = (float(each) for each in np.quantile(values, [0.1, 0.5, 0.9]))
        return cls(low=low, median=median, high=high, mean=float(np.mean(values)))


Properties = dict[str, Distribution | float]


def of_annotations(split: Split, durations: Mapping[str, float]) -> Properties:
    """Return the properties of the annotations of a split.

    Args:
        split: The videos and queries.
        durations: The seconds of each video. Videos without one are left out where their length matters.
    """
    of_video: dict[str, list[Query]] = defaultdict(list)
    for query in split.queries:
        of_video[query.video_id].append(query)
    located = [query for query in split.queries if query.moments]
    timed = [query for query in located if query.video_id in durations]
    pairs = [
        overlap(first.moments, second.moments)
        for queries in of_video.values()
        for first, second in combinations([query for query in queries if query.moments], 2)
    ]
    known = [durations[video_id] for video_id in split.video_ids if video_id in durations]
    values: dict[str, Sequence[float | int]] = {
        "seconds of a video": known,
        "queries of a video": [len(queries) for queries in of_video.values()],
        "words of a query": [len(query.text.split()) for query in split.queries],
        "moments of a query": [len(query.moments) for query in located],
        "seconds of a moment": [moment.end - moment.start for query in located for moment in query.moments],
        "share of the video that a query describes": [
            seconds(query.moments) / durations[query.video_id] for query in timed if durations[query.video_id] > 0
        ],
    }
    found: Properties = {"videos": float(len(split.video_ids)), "queries": float(len(split.queries))}
    found |= {name: Distribution.of(each) for name, each in values.items() if each}
    if pairs:
        found["query pairs of a video whose moments overlap"] = float(np.mean([each > 0 for each in pairs]))
    return found


def of_features(split: Split, store: Features) -> Properties:
    """Return the properties of the frozen features of a split: how similar clips and sentences of a video are.

    Args:
        split: The videos and queries.
        store: Their features.
    """
    cosines = [clip_cosines(store.video(video_id).frames) for video_id in split.video_ids]
    pairs = np.concatenate(cosines)
    found: Properties = {}
    if pairs.size:
        found["cosine of two clips of a video"] = Distribution.of(pairs.tolist())
        found |= {f"clip pairs of a video above {each:g}": float((pairs > each).mean()) for each in THRESHOLDS}
    number = {video_id: place for place, video_id in enumerate(split.video_ids)}
    sentences = torch.as_tensor(np.stack([store.text(query.id).sentence for query in split.queries]))
    alike = similarity(sentences, torch.tensor([number[query.video_id] for query in split.queries]))
    return found | {f"sentences: {name}": value for name, value in alike.figures().items()}


def clip_cosines(frames: Float[np.ndarray, "T C"], num_clips: int = NUM_CLIPS) -> Float[np.ndarray, " P"]:
    """Return the cosines of all pairs of clips of a video. Clips have equal lengths, and are means of frames.

    Args:
        frames: The frozen features of the frames.
        num_clips: The number of clips. A video with fewer frames has one clip per frame.
    """
    batch = torch.as_tensor(frames, dtype=torch.float32)[None]
    count = min(num_clips, len(frames))
    clips = segments.segment_mean(batch, segments.uniform(batch, count), count)[0]
    unit = torch.nn.functional.normalize(clips, dim=-1).numpy()
    return (unit @ unit.T)[np.triu_indices(count, 1)]


def overlap(first: Iterable[Moment], second: Iterable[Moment]) -> float:
    """Return the intersection over union of two sets of moments.

    >>> overlap([Moment(start=0.0, end=2.0)], [Moment(start=1.0, end=3.0), Moment(start=5.0, end=6.0)])
    0.25
    """
    first, second = tuple(first), tuple(second)
    union = seconds((*first, *second))
    return (seconds(first) + seconds(second) - union) / union if union else 0.0


def seconds(moments: Iterable[Moment]) -> float:
    """Return the length of the union of moments.

    >>> seconds([Moment(start=1.0, end=3.0), Moment(start=2.0, end=4.0)])
    3.0
    """
    total = reached = 0.0
    for moment in sorted(moments, key=lambda each: each.start):
        total += max(0.0, moment.end - max(moment.start, reached))
        reached = max(reached, moment.end)
    return total


def properties(source: Annotations | Dataset, split: str) -> Properties:
    """Return the properties of a split: of its annotations, and of its features if there are any.

    Args:
        source: Annotations without features, or a dataset.
        split: The name of the split.

    Raises:
        UnknownName: There is no such split.
        BadAnnotation: The split has no queries.
    """
    annotations = source.annotations if isinstance(source, Dataset) else source
    chosen = source.split(split)
    if not chosen.queries:
        raise BadAnnotation(f"{annotations.folder}: the split {split} has no queries, expected at least one.")
    if not isinstance(source, Dataset):
        return of_annotations(chosen, annotations.durations)
    durations = {each: source.store.video(each).duration for each in chosen.video_ids}
    return of_annotations(chosen, durations | dict(annotations.durations)) | of_features(chosen, source.store)


def to_text(columns: Mapping[str, Properties]) -> str:
    """Return the properties of several datasets side by side. A distribution is shown as 10 % / median / 90 %."""
    names = list(dict.fromkeys(name for each in columns.values() for name in each))
    lines = [["", *columns], *([name, *(_shown(each.get(name)) for each in columns.values())] for name in names)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _shown(value: Distribution | float | None) -> str:
    if isinstance(value, Distribution):
        return " / ".join(f"{each:.3g}" for each in (value.low, value.median, value.high))
    return "-" if value is None else f"{value:,.0f}" if value >= 10 and value.is_integer() else f"{value:.3g}"
