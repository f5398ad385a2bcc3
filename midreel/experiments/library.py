"""A library is a folder: annotations.jsonl, the videos it speaks of, and features.h5, what a backbone saw in them.

Features can also be made of videos that nobody has described.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from midreel import video
from midreel.datasets import annotated, playhouse
from midreel.errors import BadAnnotation, BadSetting, MissingFeatures, MissingVideo, UnknownName
from midreel.features.backbone import Backbone
from midreel.features.extract import ExtractionReport, Progress, VideoItem, extract_texts, extract_videos
from midreel.features.quarantine import Quarantine
from midreel.features.store import FeatureStore
from midreel.methods.base import Method
from midreel.training.data import FeatureSet
from midreel.types import Split

FEATURES = "features.h5"
VIDEO_ENDINGS = (
    ".mp4",
    ".mkv",
    ".webm",
    ".mov",
    ".avi",
    ".m4v",
    ".mpg",
    ".mpeg",
    ".ts",
    ".flv",
    ".wmv",
    ".3gp",
    ".ogv",
)
WORKERS = 2  # that decode


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library whose features have been extracted."""

    folder: Path
    splits: Mapping[str, Split]
    store: FeatureStore

    @classmethod
    def open(cls, folder: Path) -> "Library":
        splits = annotated.read(folder)
        if not (folder / FEATURES).exists():
            raise MissingFeatures(f"{folder} has no {FEATURES}, expected features; run: midreel extract {folder}")
        return cls(folder=folder, splits=splits, store=FeatureStore.open(folder / FEATURES))

    def split(self, name: str) -> Split:
        """A split all of whose features are there."""
        if name not in self.splits:
            raise UnknownName.among(f"split in {self.folder / annotated.FILE_NAME}:", name, self.splits)
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
                f"{missing[0]!r}; run: midreel extract {self.folder}, or take them out of {annotated.FILE_NAME}"
            )

    def prepare(self, method: Method, name: str) -> FeatureSet:
        return FeatureSet.prepare(method, self.split(name), self.store)

    def card(self) -> dict[str, Any]:
        """What a run is made from, to be kept with it."""
        return {
            "annotations": hashlib.sha256((self.folder / annotated.FILE_NAME).read_bytes()).hexdigest(),
            "fingerprint": json.loads(self.store.fingerprint.to_json()),
            "queries": {name: len(split.queries) for name, split in self.splits.items()},
            "videos": {name: len(split.video_ids) for name, split in self.splits.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Source:
    """What features are made from: videos, by ids that `find_file` knows in `folder`, and sentences as (id, text)."""

    folder: Path
    video_ids: Sequence[str]
    queries: Sequence[tuple[str, str]] = ()
    store: Path  # where the features go, unless they are wanted elsewhere

    @classmethod
    def find(cls, path: Path) -> "Source":
        """A library; a folder of videos, however deep they lie; a text file with the path of a video on each line,
        relative to itself; or a single video.
        """
        if path.is_dir():
            if (path / annotated.FILE_NAME).exists():
                return cls._of_library(path)
            files = [file for file in sorted(path.rglob("*")) if _is_video(file.relative_to(path)) and file.is_file()]
            if not files:
                raise BadAnnotation(
                    f"{path} has no {annotated.FILE_NAME} and no video ({', '.join(VIDEO_ENDINGS)}), expected a "
                    f"library or a folder of videos; make one (midreel playhouse {path}) or copy videos into it"
                )
            names = [file.relative_to(path).as_posix() for file in files]
            return cls(folder=path, video_ids=_ids(path, names), store=path / FEATURES)
        if not path.exists():
            raise BadAnnotation(
                f"{path} does not exist, expected a library, a folder of videos or a list of them; check the path"
            )
        names = [path.name] if _is_video(Path(path.name)) else _lines(path)
        return cls(folder=path.parent, video_ids=_ids(path.parent, names), store=path.with_suffix(".h5"))

    @classmethod
    def _of_library(cls, folder: Path) -> "Source":
        splits = annotated.read(folder).values()
        return cls(
            folder=folder,
            video_ids=[video_id for split in splits for video_id in split.video_ids],
            queries=[(query.id, query.text) for split in splits for query in split.queries],
            store=folder / FEATURES,
        )


def extract(
    path: Path,
    backbone: Backbone,
    *,
    rate: float,
    dtype: str = "float16",
    out: Path | None = None,
    workers: int | None = None,
    retry: bool = False,
    progress: Progress | None = None,
) -> tuple[ExtractionReport, ExtractionReport]:
    """Adds what the store lacks of what is at `path`: the features of videos, and of sentences. Returns both reports.

    Without `out`, the store of a folder is its features.h5. What an earlier run could not read, and has not changed
    since, is tried again only with `retry`.
    """
    if not 0 < rate < math.inf:
        raise BadSetting(f"rate is {rate}, expected more than 0 frames per second; try 2")
    workers = WORKERS if workers is None else workers
    source = Source.find(path)
    out = out or source.store
    quarantine = Quarantine(out, retry=retry)
    store = FeatureStore.resume(out, replace(backbone.fingerprint, frame_rate=rate, dtype=dtype))
    has_texts = backbone.fingerprint.word_width is not None
    texts = extract_texts(source.queries if has_texts else (), backbone, store, progress=progress)
    videos = extract_videos(
        _items(source, rate, threads=max(1, (os.cpu_count() or 1) // max(1, workers))),
        backbone,
        store,
        rate=rate,
        workers=workers,
        quarantine=quarantine,
        progress=progress,
    )
    return videos, texts


def num_videos(path: Path) -> int:
    """How many videos `extract` tells of."""
    return len(Source.find(path).video_ids)


def _items(source: Source, rate: float, threads: int) -> Iterator[VideoItem]:
    """Videos from their files; those of a playhouse that have none, from their descriptions."""
    folder = source.folder
    for video_id in source.video_ids:
        path = find_file(folder, video_id)
        if path is not None:
            yield _item(video_id, path, video.read_frames(path, rate, threads=threads))
        else:
            frames, duration = playhouse.drawn(folder, video_id, rate) or (_missing(folder, video_id), 0.0)
            yield VideoItem(id=video_id, frames=frames, duration=duration)


def _item(video_id: str, path: Path, reading: video.Reading) -> VideoItem:
    return VideoItem(
        id=video_id,
        frames=reading,
        duration=lambda: reading.duration,
        path=path,
        num_damaged=lambda: reading.num_damaged,
    )


def find_file(folder: Path, video_id: str) -> Path | None:
    """The file that annotations mean by `video_id`, which may leave out the ending."""
    candidates = (folder / f"{video_id}{ending}" for ending in ("", *VIDEO_ENDINGS))
    return next((path for path in candidates if path.is_file()), None)


def _is_video(name: Path) -> bool:
    """By its name; what is hidden is somebody's own business."""
    return name.suffix.lower() in VIDEO_ENDINGS and not any(part.startswith(".") for part in name.parts)


def _ids(folder: Path, names: Iterable[str]) -> list[str]:
    """The names of files without their endings; with it, where that would mean another file, or none."""
    ids = []
    for name in dict.fromkeys(names):
        bare = name.removesuffix(Path(name).suffix)
        ids.append(bare if find_file(folder, bare) == folder / name else name)
    return ids


def _lines(path: Path) -> list[str]:
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BadAnnotation(
            f"{path} is not UTF-8 ({error}), expected the path of a video on each line; save it again"
        ) from error
    if not names:
        raise BadAnnotation(f"{path} is empty, expected the path of a video on each line; write some")
    return names


def _missing(folder: Path, video_id: str) -> Iterator[tuple[float, video.Image]]:
    """Raises when it is iterated: a video that is not there is one that fails, not the end of all."""
    raise MissingVideo(
        f"{folder} has no file {video_id}, expected one of that name, with or without an ending such as .mp4; copy it"
    )
    yield
