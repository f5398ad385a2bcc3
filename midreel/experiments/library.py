"""A library is a folder: annotations, the videos they speak of, and features.h5, what a backbone saw in them."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from midreel import video
from midreel.datasets import own, playhouse
from midreel.errors import BadSetting, MissingFeatures, UnknownName, UnreadableVideo
from midreel.features.backbone import Backbone
from midreel.features.extract import ExtractionReport, Progress, VideoItem, extract_texts, extract_videos
from midreel.features.store import FeatureStore
from midreel.methods.base import Method
from midreel.training.data import FeatureSet
from midreel.types import Split

FEATURES = "features.h5"
MOST_FRAMES = 240  # per second: more than any file has, so whoever asks for more mistook the unit


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library whose features have been extracted."""

    folder: Path
    splits: Mapping[str, Split]
    store: FeatureStore

    @classmethod
    def open(cls, folder: Path) -> "Library":
        splits = own.read(folder)
        if not (folder / FEATURES).exists():
            raise MissingFeatures(f"{folder} has no {FEATURES}, expected features; run: midreel extract {folder}")
        return cls(folder=folder, splits=splits, store=FeatureStore.open(folder / FEATURES))

    def split(self, name: str) -> Split:
        """A split all of whose features are there."""
        if name not in self.splits:
            raise UnknownName.among(f"split in {own.annotation_file(self.folder)}:", name, self.splits)
        split = self.splits[name]
        self._expect_all("videos", name, split.video_ids, self.store.video_ids())
        self._expect_all("queries", name, [query.id for query in split.queries], self.store.text_ids())
        return split

    def _expect_all(self, kind: str, split: str, wanted: Sequence[str], stored: Iterable[str]) -> None:
        known = set(stored)
        missing = [name for name in wanted if name not in known]
        if missing:
            raise MissingFeatures(
                f"{self.store.path} lacks {len(missing)} of the {len(wanted)} {kind} of {split}, such as "
                f"{missing[0]!r}; run: midreel extract {self.folder}, or take them out of "
                f"{own.annotation_file(self.folder).name}"
            )

    def prepare(self, method: Method, name: str) -> FeatureSet:
        return FeatureSet.prepare(method, self.split(name), self.store)

    def card(self) -> dict[str, Any]:
        """What a run is made from, to be kept with it."""
        videos = [video_id for split in self.splits.values() for video_id in split.video_ids]
        queries = [query.id for split in self.splits.values() for query in split.queries]
        return {
            "annotations": hashlib.sha256(own.annotation_file(self.folder).read_bytes()).hexdigest(),
            "features": self.store.digest(videos, queries),
            "fingerprint": json.loads(self.store.fingerprint.to_json()),
            "queries": {name: len(split.queries) for name, split in self.splits.items()},
            "videos": {name: len(split.video_ids) for name, split in self.splits.items()},
        }


def extract(
    folder: Path,
    backbone: Backbone,
    *,
    rate: float,
    dtype: str = "float16",
    progress: Progress | None = None,
) -> tuple[ExtractionReport, ExtractionReport]:
    """Adds what the store in `folder` lacks: the features of the videos, and of the sentences. Returns both reports."""
    if not 0 < rate <= MOST_FRAMES:
        raise BadSetting(f"rate is {rate}, expected more than 0 and at most {MOST_FRAMES} frames per second; try 2")
    splits = own.read(folder)
    store = FeatureStore.resume(folder / FEATURES, replace(backbone.fingerprint, frame_rate=rate, dtype=dtype))
    queries = [(query.id, query.text) for split in splits.values() for query in split.queries]
    texts = extract_texts(queries, backbone, store, progress=progress)
    video_ids = [video_id for split in splits.values() for video_id in split.video_ids]
    return extract_videos(_items(folder, video_ids, rate), backbone, store, rate=rate, progress=progress), texts


def num_items(splits: Mapping[str, Split]) -> int:
    """How many videos and sentences `extract` tells of."""
    return sum(len(split.video_ids) + len(split.queries) for split in splits.values())


def _items(folder: Path, video_ids: Iterable[str], rate: float) -> Iterator[VideoItem]:
    """Videos from their files; those of a playhouse that have none, from their descriptions."""
    for video_id in video_ids:
        path = own.find_file(folder, video_id)
        if path is not None:
            yield video_id, video.read_frames(path, rate), partial(video.duration, path)
        else:
            yield video_id, *(playhouse.drawn(folder, video_id, rate) or (_missing(folder, video_id), 0.0))


def _missing(folder: Path, video_id: str) -> Iterator[tuple[float, video.Image]]:
    """Raises when it is iterated: a video that is not there is one that fails, not the end of all."""
    raise UnreadableVideo(
        f"{folder} has no file {video_id}, expected one of that name, with or without an ending such as .mp4; copy it"
    )
    yield
