"""A library: annotations of videos, and the features of both, extracted into features.h5 or published with them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from midreel import video
from midreel.datasets import Collection, find_collections, open_collection, own, playhouse, release
from midreel.errors import BadSetting, MissingFeatures, UnreadableVideo
from midreel.features.backbone import Backbone
from midreel.features.extract import ExtractionReport, Progress, VideoItem, extract_texts, extract_videos
from midreel.features.join import JoinedParts
from midreel.features.published import find_published
from midreel.features.source import Features
from midreel.features.store import FeatureStore
from midreel.methods.base import Method
from midreel.training.data import FeatureSet
from midreel.types import Split

FEATURES = "features.h5"
MOST_FRAMES = 240  # per second: more than any file has, so whoever asks for more mistook the unit


@dataclass(frozen=True, kw_only=True)
class Library:
    """A collection whose features are there."""

    collection: Collection
    store: Features

    @classmethod
    def open(cls, root: Path, name: str | None = None, *, features: str | None = None) -> "Library":
        """What lies in `root`, or in a folder in it: one's own library, a benchmark, or a PRVR release.

        `name` chooses where there are several; what is the only one there is taken whatever it is called. `features`
        chooses among the features of a release.
        """
        found = {place.name: place for place in reversed(find_collections(root))}
        collection = next(iter(found.values())).open() if len(found) == 1 else open_collection(root, name)
        return cls(collection=collection, store=find_features(collection, features))

    @property
    def folder(self) -> Path:
        return self.collection.folder

    @property
    def splits(self) -> Mapping[str, Split]:
        return self.collection.splits

    def split(self, name: str) -> Split:
        """A split all of whose features are there."""
        split = self.collection.split(name)
        self._expect_all("videos", name, split.video_ids, self.store.has_video)
        self._expect_all("queries", name, [query.id for query in split.queries], self.store.has_text)
        return split

    def _expect_all(self, kind: str, split: str, wanted: Sequence[str], has: Callable[[str], bool]) -> None:
        missing = [name for name in wanted if not has(name)]
        if missing:
            raise MissingFeatures(
                f"{self.store.path} lacks {len(missing)} of the {len(wanted)} {kind} of {split}, such as "
                f"{missing[0]!r}; run: midreel extract {self.folder}, or take them out of "
                f"{', '.join(path.name for path in self.collection.files)}"
            )

    def prepare(self, method: Method, name: str) -> FeatureSet:
        return FeatureSet.prepare(method, self.split(name), self.store)

    def card(self) -> dict[str, Any]:
        """What a run is made from, to be kept with it."""
        videos = [video_id for split in self.splits.values() for video_id in split.video_ids]
        queries = [query.id for split in self.splits.values() for query in split.queries]
        return {
            "annotations": {path.name: _hash_of(path) for path in self.collection.files},
            "features": self.store.digest(videos, queries),
            "fingerprint": json.loads(self.store.fingerprint.to_json()),
            "queries": {name: len(split.queries) for name, split in self.splits.items()},
            "videos": {name: len(split.video_ids) for name, split in self.splits.items()},
        }


def find_features(collection: Collection, features: str | None = None) -> Features:
    """What was extracted into the folder; else, of a release, what was published with it."""
    found: Features
    if (collection.folder / FEATURES).exists():
        found = FeatureStore.open(collection.folder / FEATURES)
    elif collection.layout == "release":
        theirs = {ours: name for name, ours in release.NAMES.items()}
        name = theirs.get(collection.name, collection.name)
        found = find_published(collection.folder, name, features=features, durations=collection.durations)
    else:
        raise MissingFeatures(
            f"{collection.folder} has no {FEATURES}, expected features; run: midreel extract {collection.folder}"
        )
    if not collection.parts:
        return found
    return JoinedParts(found, {video: [part.id for part in parts] for video, parts in collection.parts.items()})


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def extract(
    collection: Collection,
    backbone: Backbone,
    *,
    rate: float,
    dtype: str = "float16",
    progress: Progress | None = None,
) -> tuple[ExtractionReport, ExtractionReport]:
    """Adds what the collection's store lacks: features of videos, and of sentences. Returns the reports of both."""
    if not 0 < rate <= MOST_FRAMES:
        raise BadSetting(f"rate is {rate}, expected more than 0 and at most {MOST_FRAMES} frames per second; try 2")
    folder = collection.folder
    store = FeatureStore.resume(folder / FEATURES, replace(backbone.fingerprint, frame_rate=rate, dtype=dtype))
    queries = [(query.id, query.text) for split in collection.splits.values() for query in split.queries]
    reads = backbone.fingerprint.word_width is not None
    texts = extract_texts(queries, backbone, store, progress=progress) if reads else ExtractionReport()
    items = _items(folder, _stored_videos(collection), rate * backbone.window)
    return extract_videos(items, backbone, store, rate=rate, progress=progress), texts


def num_items(collection: Collection, backbone: Backbone) -> int:
    """How many videos and sentences `extract` tells of."""
    num_queries = sum(len(split.queries) for split in collection.splits.values())
    return len(_stored_videos(collection)) + (num_queries if backbone.fingerprint.word_width is not None else 0)


def _stored_videos(collection: Collection) -> list[str]:
    """The ids under which videos lie in the folder: a video in parts has several."""
    video_ids = [video_id for split in collection.splits.values() for video_id in split.video_ids]
    parts = {video: [part.id for part in parts] for video, parts in collection.parts.items()}
    return list(dict.fromkeys(name for video_id in video_ids for name in parts.get(video_id, [video_id])))


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
