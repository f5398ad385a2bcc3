"""A dataset: annotations of videos, and the features of its videos and queries."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from midreel.datasets import Annotations, find_annotations, open_annotations, own, playhouse, release
from midreel.datasets.discovery import ORIGINALS
from midreel.datasets.sources import FEATURES, Source
from midreel.errors import BadFeatures, BadSetting, MissingFeatures, MissingVideo, UnknownName
from midreel.features.backbones.base import Backbone, hash_of_files
from midreel.features.extract import (
    WORKERS,
    Encode,
    ExtractionReport,
    Progress,
    VideoItem,
    expect_rate,
    extract_texts,
    extract_videos,
)
from midreel.features.kinds import KINDS, widths_of
from midreel.features.stores import origins
from midreel.features.stores.base import Features
from midreel.features.stores.hdf5_log import same_origin
from midreel.features.stores.join import JoinedParts, WithTeacher
from midreel.features.stores.published import LAYOUTS, find_published
from midreel.features.stores.quarantine import Quarantine
from midreel.features.stores.store import FeatureStore
from midreel.media import decode as video
from midreel.types import Query, Split


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Annotations with their features.

    Attributes:
        annotations: The splits of videos and queries.
        store: The features of the videos and queries, by id.
    """

    annotations: Annotations
    store: Features

    @classmethod
    def open(cls, root: Path, name: str | None = None, *, features: str | None = None) -> "Dataset":
        """Open the dataset in a folder: your own annotations, a benchmark, or a PRVR release.

        Args:
            root: The folder of the dataset, or the folder above it.
            name: The dataset to choose if there are several. If there is only one, its name may differ, so that any
                recipe can be tried on it. The exception is a recipe of one benchmark on another benchmark.
            features: The features to use, if a release has several, or the kind of features to expect.

        Raises:
            BadAnnotation: There is no such dataset, or its annotations cannot be read.
            MissingFeatures: The features were not extracted.
        """
        names = {place.name for place in find_annotations(root)}
        name_matters = len(names) > 1 or (name in ORIGINALS and names <= ORIGINALS.keys())
        annotations = open_annotations(root, name if name_matters else None)
        return cls(annotations=annotations, store=find_features(annotations, features))

    @property
    def name(self) -> str:
        """The name of the benchmark, or `own`."""
        return self.annotations.name

    @property
    def folder(self) -> Path:
        """The folder of the dataset."""
        return self.annotations.folder

    @property
    def splits(self) -> Mapping[str, Split]:
        """All splits by name. Features of a split may be missing; `split` checks that."""
        return self.annotations.splits

    def split(self, name: str) -> Split:
        """Return a split after checking that all its features are present and up to date.

        Raises:
            UnknownName: There is no such split.
            MissingFeatures: A video or a query has no features.
            BadFeatures: A query was edited after its features were extracted.
        """
        split = self.annotations.split(name)
        self._expect_readable(name, split.video_ids)
        self._expect_all("videos", name, split.video_ids, self.store.has_video)
        self._expect_all("queries", name, [query.id for query in split.queries], self.store.has_text)
        changed = changed_sentences(split.queries, self.store)
        if changed:
            raise BadFeatures(
                f"{self.store.path} has features of other sentences for {len(changed)} of the {len(split.queries)} "
                f"queries of {name}, such as {changed[0].id!r}, now {changed[0].text[:80]!r}. Run again: midreel "
                f"extract {self.folder} (and midreel join, if you joined several stores)"
            )
        return split

    def _expect_readable(self, split: str, video_ids: Iterable[str]) -> None:
        """Raise MissingFeatures with the reason if `extract` could not read a video. Extracting again cannot help."""
        missing = [video_id for video_id in video_ids if not self.store.has_video(video_id)]
        if not missing:
            return
        quarantine = Quarantine(self.store.path)
        for video_id in missing:
            parts = self.annotations.parts.get(video_id)
            for file_id in [video_id] if parts is None else [part.id for part in parts]:
                reason = quarantine.reason(file_id, own.find_file(self.folder, file_id))
                if reason is not None:
                    raise MissingFeatures(
                        f"{video_id!r} of {split} cannot be read: {reason.rstrip('.')}. Repair it and run midreel "
                        f"extract {self.folder}, or remove it from {self._file_names}."
                    )

    def _expect_all(self, kind: str, split: str, ids: Sequence[str], has: Callable[[str], bool]) -> None:
        """Raise MissingFeatures unless every id has features."""
        missing = [each for each in ids if not has(each)]
        if missing:
            raise MissingFeatures(
                f"{self.store.path} lacks {len(missing)} of the {len(ids)} {kind} of {split}, such as {missing[0]!r}. "
                f"Run midreel extract {self.folder}, or remove them from {self._file_names}."
            )

    @property
    def _file_names(self) -> str:
        return ", ".join(path.name for path in self.annotations.files)

    def card(self) -> dict[str, Any]:
        """Return hashes and counts that identify the dataset. A run stores them."""
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
    """Open the features of a dataset: features.h5 in its folder, or else the published features of a release.

    Args:
        annotations: The annotations of the dataset.
        features: The published features to use, even if there is a features.h5. "A+B" are the features A with B as
            the teacher of a method that has one. Or a kind of features such as clip-l14: then a features.h5 must have,
            and published features are chosen by, the widths of this kind.

    Raises:
        MissingFeatures: There are no features.
        BadSetting: `features` is given but the dataset is not a release, or has other widths than this kind. Or it is
            needed and not given.
        UnknownName: No published features have this name. The message lists the names.
    """
    is_release = annotations.layout == "release"
    if features is not None and features not in KINDS and not is_release:
        raise BadSetting(
            f"--features is {features}, but {annotations.folder} is not a release with published features. Remove "
            f"the option, or name a kind of features: {', '.join(KINDS)}"
        )
    found: Features | None = None
    if (annotations.folder / FEATURES).exists() and (features is None or features in KINDS):
        found = FeatureStore.open(annotations.folder / FEATURES)
        if features is not None and not _is_of_kind(found, annotations.name, features, strict=not is_release):
            found = None  # the release may have published features of this kind
    if found is None and is_release:
        release_name = _release_name(annotations)
        wanted = [None] if features is None else features.split("+", 1)
        names = [_published_name(release_name, annotations.name, name) for name in wanted]
        found, *teacher = (
            find_published(annotations.folder, release_name, features=name, durations=annotations.durations)
            for name in names
        )
        if teacher:
            found = WithTeacher(found, *teacher)
    if found is None:
        raise MissingFeatures(
            f"{annotations.folder} has no {FEATURES}, expected features; run: midreel extract {annotations.folder}"
        )
    if not annotations.parts:
        return found
    return JoinedParts(
        found, {video_id: {part.id: part.duration for part in parts} for video_id, parts in annotations.parts.items()}
    )


def _release_name(annotations: Annotations) -> str:
    release_names = {ours: theirs for theirs, ours in release.NAMES.items()}
    return release_names.get(annotations.name, annotations.name)


def _published_name(release_name: str, dataset: str, features: str | None) -> str | None:
    """Return the published features of a kind: those with its widths. Other names stay as they are."""
    if features is None or features not in KINDS:
        return features
    widths = widths_of(features, dataset)
    layouts = LAYOUTS.get(release_name, {})
    found = [name for name, layout in layouts.items() if layout.widths == widths]
    if not found:
        raise UnknownName.among(f"features of {dataset}", features, layouts)
    return found[0]


def _is_of_kind(store: Features, dataset: str, kind: str, *, strict: bool) -> bool:
    """Return whether a store has the widths of a kind of features. If `strict`, raise BadSetting unless it has."""
    found, expected = store.fingerprint, widths_of(kind, dataset)
    if (found.width, found.word_width) == expected:
        return True
    if strict:
        raise BadSetting(
            f"--features is {kind}, with frames of width {expected.video} and words of width {expected.text}, but "
            f"{store.path} has {found.width} and {found.word_width} ({found.source or found.backbone}). Remove the "
            f"option, or extract these features."
        )
    return False


def changed_sentences(queries: Iterable[Query], features: Features) -> list[Query]:
    """Return the queries with features of another sentence. Features of unknown origin count as unchanged."""
    return [
        query
        for query in queries
        if features.has_text(query.id) and not same_origin(features.text_origin(query.id), origins.of_text(query.text))
    ]


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
    encode: Encode | None = None,
) -> tuple[ExtractionReport, ExtractionReport]:
    """Extract the missing features of videos and sentences into a store.

    Args:
        source: The videos and sentences.
        backbone: The encoder of frames and words.
        rate: Frames per second.
        dtype: The precision of the stored features.
        out: The store. Default: the store of the source.
        workers: The number of videos to decode at the same time.
        retry: Retry unreadable videos even if their files are unchanged.
        progress: Called after each video and each sentence.
        encode: Decodes and encodes a video elsewhere, such as on a cluster. Default: here.

    Returns:
        The report on the videos, and the report on the sentences.

    Raises:
        BadSetting: The rate is out of range.
        FingerprintMismatch: The store has features of another backbone, or with other settings.
    """
    expect_rate(rate)
    source = Source.of(source) if isinstance(source, Annotations) else source
    out = out or source.store
    quarantine = Quarantine(out, retry=retry)
    store = FeatureStore.resume(out, replace(backbone.fingerprint, frame_rate=rate, dtype=dtype))
    has_text_encoder = backbone.fingerprint.word_width is not None
    texts = (
        extract_texts(source.queries, backbone, store, progress=progress) if has_text_encoder else ExtractionReport()
    )
    videos = extract_videos(
        _video_items(source, rate * backbone.window),
        backbone,
        store,
        rate=rate,
        workers=WORKERS if workers is None else workers,
        quarantine=quarantine,
        progress=progress,
        encode=encode,
    )
    return videos, texts


def _video_items(source: Source, rate: float) -> Iterator[VideoItem]:
    """Yield each video with its frames. A playhouse video without a file is drawn."""
    for video_id in source.video_ids:
        path = own.find_file(source.folder, video_id)
        if path is not None:
            yield _file_item(video_id, path, video.read_frames(path, rate))
            continue
        drawn = playhouse.draw_frames(source.folder, video_id, rate)
        frames, duration = drawn or (_raise_missing(source.folder, video_id), 0.0)
        yield VideoItem(id=video_id, frames=frames, duration=duration)


def _file_item(video_id: str, path: Path, reading: video.Reading) -> VideoItem:
    # Duration and damage are known only after the frames are read, so they are functions.
    return VideoItem(
        id=video_id,
        frames=reading,
        duration=lambda: reading.duration,
        path=path,
        damage=lambda: reading.damage,
    )


def _raise_missing(folder: Path, video_id: str) -> Iterator[tuple[float, video.Image]]:
    """Raise MissingVideo at the first frame, so that only this video fails and the others continue."""
    raise MissingVideo(
        f"{folder} has no file {video_id}, expected a video with this name, with or without an ending such as .mp4. "
        f"Copy it there."
    )
    yield  # makes this function a generator
