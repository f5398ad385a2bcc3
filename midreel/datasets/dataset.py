"""A dataset: annotations of videos, and the features of both, extracted into features.h5 or published with them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from midreel.datasets import Annotations, find_annotations, open_annotations, own, playhouse, release
from midreel.datasets.discovery import ORIGINALS
from midreel.datasets.sources import FEATURES, Source
from midreel.datasets.verify import changed_sentences
from midreel.errors import BadFeatures, BadSetting, MissingFeatures, MissingVideo
from midreel.features.backbones.base import Backbone, hash_of_files
from midreel.features.extract import (
    WORKERS,
    ExtractionReport,
    Progress,
    VideoItem,
    extract_texts,
    extract_videos,
)
from midreel.features.stores.base import Features
from midreel.features.stores.join import JoinedParts
from midreel.features.stores.published import find_published
from midreel.features.stores.quarantine import Quarantine
from midreel.features.stores.store import FeatureStore
from midreel.media import decode as video
from midreel.types import Split

MOST_FRAMES = 240  # per second: more than any file has, so whoever asks for more mistook the unit


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset whose features are there."""

    annotations: Annotations
    store: Features

    @classmethod
    def open(cls, root: Path, name: str | None = None, *, features: str | None = None) -> "Dataset":
        """Open the dataset in `root`, or in a folder in it: your own, a benchmark, or a PRVR release.

        `name`, of a recipe, chooses where there are several. A recipe may be tried on what is the only one there, but
        not that of one benchmark on another. `features` chooses among the features of a release.
        """
        names = {place.name for place in find_annotations(root)}
        chooses = len(names) > 1 or (name in ORIGINALS and names <= ORIGINALS.keys())
        annotations = open_annotations(root, name if chooses else None)
        return cls(annotations=annotations, store=find_features(annotations, features))

    @property
    def name(self) -> str:
        """Of the benchmark; `own` for annotations of your own."""
        return self.annotations.name

    @property
    def folder(self) -> Path:
        return self.annotations.folder

    @property
    def splits(self) -> Mapping[str, Split]:
        return self.annotations.splits

    def split(self, name: str) -> Split:
        """A split all of whose features are there."""
        split = self.annotations.split(name)
        self._expect_readable(name, split.video_ids)
        self._expect_all("videos", name, split.video_ids, self.store.has_video)
        self._expect_all("queries", name, [query.id for query in split.queries], self.store.has_text)
        changed = changed_sentences(split.queries, self.store)
        if changed:
            raise BadFeatures(
                f"{self.store.path} was made of other sentences: {len(changed)} of the {len(split.queries)} queries of "
                f"{name} have changed since, such as {changed[0].id!r}, now {changed[0].text[:80]!r}; run again: "
                f"midreel extract {self.folder} (and midreel join, if it was joined of several)"
            )
        return split

    def _expect_readable(self, split: str, wanted: Sequence[str]) -> None:
        """Of what `extract` could not read it is said why, for to run it again would not help."""
        missing = [name for name in wanted if not self.store.has_video(name)]
        if not missing:
            return
        set_aside = Quarantine(self.store.path)
        for name in missing:
            for part in (
                (part.id for part in self.annotations.parts[name]) if name in self.annotations.parts else [name]
            ):
                reason = set_aside.reason(part, own.find_file(self.folder, part))
                if reason is not None:
                    raise MissingFeatures(
                        f"{name!r} of {split} could not be read: {reason}; mend it and run midreel extract "
                        f"{self.folder}, or take it out of {', '.join(path.name for path in self.annotations.files)}"
                    )

    def _expect_all(self, kind: str, split: str, wanted: Sequence[str], has: Callable[[str], bool]) -> None:
        missing = [name for name in wanted if not has(name)]
        if missing:
            raise MissingFeatures(
                f"{self.store.path} lacks {len(missing)} of the {len(wanted)} {kind} of {split}, such as "
                f"{missing[0]!r}; run: midreel extract {self.folder}, or take them out of "
                f"{', '.join(path.name for path in self.annotations.files)}"
            )

    def card(self) -> dict[str, Any]:
        """What a run is made from, to be kept with it."""
        videos = [video_id for split in self.splits.values() for video_id in split.video_ids]
        queries = [query.id for split in self.splits.values() for query in split.queries]
        return {
            "annotations": {path.name: hash_of_files([path]) for path in self.annotations.files},
            "features": self.store.digest(videos, queries),
            "fingerprint": json.loads(self.store.fingerprint.to_json()),
            "queries": {name: len(split.queries) for name, split in self.splits.items()},
            "videos": {name: len(split.video_ids) for name, split in self.splits.items()},
        }


def find_features(annotations: Annotations, features: str | None = None) -> Features:
    """What was extracted into the folder; else, of a release, what was published with it. Who names `features` means
    published ones.
    """
    found: Features
    if features is not None and annotations.layout != "release":
        raise BadSetting(
            f"--features {features} chooses among those that were published with a release, but {annotations.folder} "
            f"holds no release, expected {FEATURES} there; leave it out"
        )
    if features is None and (annotations.folder / FEATURES).exists():
        found = FeatureStore.open(annotations.folder / FEATURES)
    elif annotations.layout == "release":
        theirs = {ours: name for name, ours in release.NAMES.items()}
        name = theirs.get(annotations.name, annotations.name)
        found = find_published(annotations.folder, name, features=features, durations=annotations.durations)
    else:
        raise MissingFeatures(
            f"{annotations.folder} has no {FEATURES}, expected features; run: midreel extract {annotations.folder}"
        )
    if not annotations.parts:
        return found
    return JoinedParts(
        found, {video: {part.id: part.duration for part in parts} for video, parts in annotations.parts.items()}
    )


def extract(
    source: Annotations | Source,
    backbone: Backbone,
    *,
    rate: float,
    dtype: str = "float16",
    out: Path | None = None,
    workers: int | None = None,
    retry: bool = False,
    progress: Progress | None = None,
) -> tuple[ExtractionReport, ExtractionReport]:
    """Adds what the store lacks: features of videos, and of sentences. Returns the reports of both.

    Without `out`, the store is the one that belongs to the source. What an earlier run could not read, and has not
    changed since, is tried again only with `retry`.
    """
    if not 0 < rate <= MOST_FRAMES:
        raise BadSetting(f"rate is {rate}, expected more than 0 and at most {MOST_FRAMES} frames per second; try 2")
    source = Source.of(source) if isinstance(source, Annotations) else source
    out = out or source.store
    quarantine = Quarantine(out, retry=retry)
    store = FeatureStore.resume(out, replace(backbone.fingerprint, frame_rate=rate, dtype=dtype))
    reads = backbone.fingerprint.word_width is not None
    texts = extract_texts(source.queries, backbone, store, progress=progress) if reads else ExtractionReport()
    workers = WORKERS if workers is None else workers
    items = _items(source, rate * backbone.window)
    videos = extract_videos(
        items, backbone, store, rate=rate, workers=workers, quarantine=quarantine, progress=progress
    )
    return videos, texts


def _items(source: Source, rate: float) -> Iterator[VideoItem]:
    """Videos from their files; those of a playhouse that have none, from their descriptions."""
    folder = source.folder
    for video_id in source.video_ids:
        path = own.find_file(folder, video_id)
        if path is not None:
            yield _of_file(video_id, path, video.read_frames(path, rate))
        else:
            frames, duration = playhouse.drawn(folder, video_id, rate) or (_missing(folder, video_id), 0.0)
            yield VideoItem(id=video_id, frames=frames, duration=duration)


def _of_file(video_id: str, path: Path, reading: video.Reading) -> VideoItem:
    return VideoItem(
        id=video_id,
        frames=reading,
        duration=lambda: reading.duration,
        path=path,
        damage=lambda: reading.damage,
    )


def _missing(folder: Path, video_id: str) -> Iterator[tuple[float, video.Image]]:
    """Raises when it is iterated: a video that is not there is one that fails, not the end of all."""
    raise MissingVideo(
        f"{folder} has no file {video_id}, expected one of that name, with or without an ending such as .mp4; copy it"
    )
    yield
