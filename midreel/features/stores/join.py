"""Joining features by time: those of several backbones side by side, those of a video's parts end to end."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from midreel.errors import BadFeatures, BadSetting, BadStore, MissingFeatures
from midreel.features.backbones.base import Fingerprint
from midreel.features.extract import ExtractionReport, Journal, Outcome, Progress
from midreel.features.stores import origins
from midreel.features.stores.base import Features
from midreel.features.stores.hdf5_log import same_origin
from midreel.features.stores.store import DTYPES, FeatureStore
from midreel.types import TextFeatures, VideoFeatures

FAR_SHARE = 0.05  # of a video's frames, or one, may have no frame near them: a store may have one less at the end

_SAME = 1e-3  # seconds that mean nothing: times are kept in single precision
_TEXTS = 256  # that are copied at a time


@dataclass(frozen=True, kw_only=True)
class JoinReport:
    """What became of all videos and texts, and how far apart the clocks of what was joined now were at most."""

    videos: ExtractionReport
    texts: ExtractionReport
    largest_gap: float  # seconds between a frame and one that was joined to it
    largest_difference: float  # seconds between the durations of a video

    def to_dict(self) -> dict[str, Any]:
        counts = {
            kind: {"done": len(report.done), "skipped": len(report.skipped), "failed": report.failed}
            for kind, report in (("videos", self.videos), ("texts", self.texts))
        }
        return {**counts, "largest_gap": self.largest_gap, "largest_difference": self.largest_difference}

    @property
    def failed(self) -> dict[str, str]:
        return {**self.videos.failed, **self.texts.failed}

    @property
    def text(self) -> str:
        lines = [
            f"{kind}: {len(report.done):,} joined, {len(report.skipped):,} were there, {len(report.failed):,} left out"
            for kind, report in (("videos", self.videos), ("texts", self.texts))
        ]
        if self.videos.done:
            lines.append(
                f"clocks: frames at most {self.largest_gap:.3f} s apart, durations at most "
                f"{self.largest_difference:.3f} s"
            )
        failed = [*self.videos.failed.items(), *self.texts.failed.items()]
        return "\n".join([*lines, *(f"left out {name}: {reason}" for name, reason in failed)])


def join_stores(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    texts: str | Path | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> JoinReport:
    """Makes or completes the store `out`, in which a frame is the frames of these stores side by side.

    The first store's clock counts: its frames are kept, and the frame of every other store that is nearest in time is
    joined to each. What cannot be joined is left out, and the report says why: a video that a store lacks, whose
    durations differ by more than a frame's interval, or of which more than a few frames (FAR_SHARE) have no frame
    within `tolerance` seconds, which is half that interval unless it is given.

    Texts are those of the one store that has texts; `texts` names it where several have. Its channels come last, where
    zero-shot search looks for CLIP's. One video is in memory at a time; interrupted, it goes on where it stopped; what
    has changed in the stores is joined again.
    """
    with _opened(paths, texts) as (stores, speaker):
        if Path(out).resolve() in [store.path.resolve() for store in stores]:
            raise BadSetting(f"{out} is one of the stores to join, expected another file; choose a new name")
        clocks = _Clocks(stores, tolerance)
        in_order = [store for store in stores if store is not speaker] + ([speaker] if speaker else [])
        with FeatureStore.resume(out, _fingerprint(in_order, speaker, stores[0])) as joined:
            copied = _reported(_copy_texts(speaker, joined) if speaker else [], progress)
            videos = _reported(_join_videos(stores, in_order, clocks, joined), progress)
    return JoinReport(
        videos=videos, texts=copied, largest_gap=clocks.largest_gap, largest_difference=clocks.largest_difference
    )


def num_items(paths: Sequence[str | Path], texts: str | Path | None = None) -> int:
    """How many videos and texts `join_stores` tells of."""
    with _opened(paths, texts) as (stores, speaker):
        return len(_all_videos(stores)) + (len(speaker.text_ids()) if speaker else 0)


class JoinedParts:
    """Features in which some videos are parts of others, end to end, in the order given, as if nothing lay between.

    QVHighlights keeps the segments of a YouTube video apart, under `{id}_{start}_{end}`; for retrieval they are one
    video. `parts` has the parts of each video, and the seconds that each lasts by its annotations, which is where the
    moments of the next ones count from: features that go on longer are cut off, and where they end early, the last
    frame stays. A video that the features hold as a whole, or that is not said to have parts, is the one of that id.
    """

    def __init__(self, features: Features, parts: Mapping[str, Mapping[str, float]]) -> None:
        for video_id, lasting in parts.items():
            if not lasting or not all(0 < seconds < float("inf") for seconds in lasting.values()):
                raise BadSetting(
                    f"the video {video_id!r} has the parts {dict(lasting)}, expected at least one, and of each the "
                    f"seconds that it lasts; name them or leave it out"
                )
        self._features, self._parts = features, {video_id: dict(lasting) for video_id, lasting in parts.items()}

    @property
    def path(self) -> Path:
        return self._features.path

    @property
    def fingerprint(self) -> Fingerprint:
        return self._features.fingerprint

    def video_ids(self) -> list[str]:
        """The videos all of whose parts are there, and what belongs to none."""
        used = {name for names in self._parts.values() for name in names}
        whole = [video_id for video_id in self._parts if self.has_video(video_id)]
        return list(dict.fromkeys((*whole, *(name for name in self._features.video_ids() if name not in used))))

    def text_ids(self) -> list[str]:
        return self._features.text_ids()

    def has_video(self, video_id: str) -> bool:
        return all(self._features.has_video(name) for name in self._names(video_id))

    def has_text(self, text_id: str) -> bool:
        return self._features.has_text(text_id)

    def video(self, video_id: str) -> VideoFeatures:
        names = self._names(video_id)
        missing = [name for name in names if not self._features.has_video(name)]
        if missing and video_id in self._parts:
            raise MissingFeatures(
                f"{self.path} lacks {len(missing)} of the {len(names)} parts of {video_id!r}, such as {missing[0]!r}; "
                f"extract them, or take the video out of the annotations"
            )
        if names == (video_id,):
            return self._features.video(video_id)
        parts = [self._lasting(self._features.video(name), self._parts[video_id][name]) for name in names]
        *starts, duration = accumulate((part.duration for part in parts), initial=0.0)
        return VideoFeatures(
            frames=np.concatenate([part.frames for part in parts]),
            times=np.concatenate([part.times + np.float32(start) for part, start in zip(parts, starts, strict=True)]),
            duration=duration,
        )

    def text(self, text_id: str) -> TextFeatures:
        return self._features.text(text_id)

    def text_origin(self, text_id: str) -> int:
        return self._features.text_origin(text_id)

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        return self._features.digest((name for video_id in video_ids for name in self._names(video_id)), text_ids)

    def close(self) -> None:
        self._features.close()

    def __repr__(self) -> str:
        return f"JoinedParts({self._features!r}, {len(self._parts)} videos)"

    def _names(self, video_id: str) -> tuple[str, ...]:
        whole = self._features.has_video(video_id) or video_id not in self._parts
        return (video_id,) if whole else tuple(self._parts[video_id])

    def _lasting(self, part: VideoFeatures, seconds: float) -> VideoFeatures:
        """A part that is as long as it is said to be, its frames evenly spread, as all who use features take them."""
        rate = self.fingerprint.frame_rate or len(part.frames) / part.duration
        places = np.arange(max(1, round(seconds * rate)))
        return VideoFeatures(
            frames=part.frames[places.clip(max=len(part.frames) - 1)],
            times=(places * (seconds / len(places))).astype(np.float32),
            duration=seconds,
        )


def nearest(times: Float[np.ndarray, " T"], wanted: Float[np.ndarray, " S"]) -> Int[np.ndarray, " S"]:
    """The place of the time nearest to each wanted one, of two as near the earlier; `times` are in order."""
    after = np.searchsorted(times, wanted).clip(max=len(times) - 1)
    before = (after - 1).clip(min=0)
    return np.where(np.abs(wanted - times[before]) <= np.abs(times[after] - wanted) + _SAME, before, after)


class _Clocks:
    """Brings other stores' frames to the first one's times, and refuses a video about which the clocks disagree."""

    def __init__(self, stores: Sequence[FeatureStore], tolerance: float | None) -> None:
        reference, *others = stores
        interval = _interval(reference)
        self._reference, self._tolerance = reference.path, interval / 2 if tolerance is None else tolerance
        if not 0 < self._tolerance < float("inf"):
            raise BadSetting(f"tolerance is {tolerance}, expected more than 0 seconds; leave it out for half a frame")
        self._longest = max(interval, 2 * self._tolerance)
        self.largest_gap = self.largest_difference = 0.0
        for other in others:
            if _interval(other) / 2 > self._tolerance + _SAME:
                raise BadSetting(
                    f"{other.path} has a frame every {_interval(other):g} s and {reference.path} every {interval:g} s, "
                    f"so that a frame's nearest is up to {_interval(other) / 2:g} s away, expected at most "
                    f"{self._tolerance:g} s; name the slower store first, or allow that distance as the tolerance"
                )

    def aligned(self, reference: VideoFeatures, other: VideoFeatures, path: Path) -> Float[np.ndarray, "T C"]:
        """The other store's frame for each frame of the reference."""
        difference = abs(reference.duration - other.duration)
        if difference > self._longest + _SAME:
            raise BadFeatures(
                f"it lasts {reference.duration:.2f} s in {self._reference} and {other.duration:.2f} s in {path}, "
                f"expected a difference of at most {self._longest:g} s; extract both from the same file"
            )
        places = nearest(other.times, reference.times)
        gaps = np.abs(other.times[places] - reference.times)
        num_far, num_frames = int((gaps > self._tolerance + _SAME).sum()), len(gaps)
        if num_far > max(1, FAR_SHARE * num_frames) or num_far == num_frames:
            raise BadFeatures(
                f"{num_far} of its {num_frames} frames in {self._reference} ({_range(reference)}) are up to "
                f"{float(gaps.max()):.2f} s away from the nearest in {path} ({_range(other)}), expected at most "
                f"{self._tolerance:g} s; extract both from the same file"
            )
        self.largest_gap = max(self.largest_gap, float(gaps.max()))
        self.largest_difference = max(self.largest_difference, difference)
        return other.frames[places]


def _join_videos(
    stores: Sequence[FeatureStore], in_order: Sequence[FeatureStore], clocks: _Clocks, joined: FeatureStore
) -> Iterator[Outcome]:
    for video_id in _all_videos(stores):
        # What a joined video was made from is features, whatever these were made from.
        origin = origins.of_text("".join(store.digest([video_id], []) for store in in_order))
        if joined.has_video(video_id) and same_origin(joined.video_origin(video_id), origin):
            yield Outcome(id=video_id, kind="skipped")
            continue
        try:
            features = _joined_video(video_id, stores, in_order, clocks)
        except (BadFeatures, BadStore, MissingFeatures) as error:
            yield Outcome(id=video_id, kind="failed", reason=str(error))
        else:
            joined.add_video(video_id, features, origin)
            yield Outcome(id=video_id, kind="done", num_frames=len(features.frames))


def _joined_video(
    video_id: str, stores: Sequence[FeatureStore], in_order: Sequence[FeatureStore], clocks: _Clocks
) -> VideoFeatures:
    lacking = [str(store.path) for store in stores if not store.has_video(video_id)]
    if lacking:
        raise MissingFeatures(f"it is not in {' nor in '.join(lacking)}, expected it in all stores; extract it there")
    reference = stores[0].video(video_id)
    columns = [
        reference.frames if store is stores[0] else clocks.aligned(reference, store.video(video_id), store.path)
        for store in in_order
    ]
    return VideoFeatures(frames=np.concatenate(columns, 1), times=reference.times, duration=reference.duration)


def _copy_texts(speaker: FeatureStore, joined: FeatureStore) -> Iterator[Outcome]:
    batch: dict[str, TextFeatures] = {}
    for text_id in speaker.text_ids():
        if joined.has_text(text_id) and same_origin(joined.text_origin(text_id), speaker.text_origin(text_id)):
            yield Outcome(id=text_id, kind="skipped")
            continue
        try:
            batch[text_id] = speaker.text(text_id)
        except (BadFeatures, BadStore) as error:
            yield Outcome(id=text_id, kind="failed", reason=str(error))
        if len(batch) == _TEXTS:
            yield from _add_texts(batch, speaker, joined)
            batch = {}
    yield from _add_texts(batch, speaker, joined)


def _add_texts(batch: Mapping[str, TextFeatures], speaker: FeatureStore, joined: FeatureStore) -> Iterator[Outcome]:
    joined.add_texts(batch, {text_id: speaker.text_origin(text_id) for text_id in batch})
    for text_id in batch:
        yield Outcome(id=text_id, kind="done")


def _reported(outcomes: Iterable[Outcome], progress: Progress | None) -> ExtractionReport:
    journal = Journal(progress)
    for outcome in outcomes:
        journal.note(outcome)
    return journal.report


@contextmanager
def _opened(
    paths: Sequence[str | Path], texts: str | Path | None
) -> Iterator[tuple[list[FeatureStore], FeatureStore | None]]:
    """The stores, and the one whose texts are taken."""
    if len({Path(path).resolve() for path in paths}) != len(paths) or len(paths) < 2:
        raise BadSetting(f"joining {', '.join(map(str, paths)) or 'nothing'}, expected two stores or more; name them")
    with ExitStack() as stack:
        stores = [stack.enter_context(FeatureStore.open(path)) for path in paths]
        yield stores, _speaker(stores, texts)


def _speaker(stores: Sequence[FeatureStore], texts: str | Path | None) -> FeatureStore | None:
    able = [store for store in stores if store.fingerprint.word_width is not None]
    if texts is not None:
        chosen = [store for store in able if store.path.resolve() == Path(texts).resolve()]
    else:
        chosen = able if len(able) == 1 else [store for store in able if store.text_ids()]
    if (able or texts) and len(chosen) != 1:
        raise BadSetting(
            f"the texts of {texts or 'several stores'} cannot be taken, expected one store that has some; name it "
            f"(texts=, --texts): {', '.join(str(store.path) for store in able) or 'none of these has'}"
        )
    return chosen[0] if chosen else None


def _fingerprint(
    in_order: Sequence[FeatureStore], speaker: FeatureStore | None, reference: FeatureStore
) -> Fingerprint:
    parts = [store.fingerprint for store in in_order]
    decides = [
        {name: value for name, value in asdict(part).items() if name != "source" and value is not None}
        for part in parts
    ]
    made = json.dumps([decides, in_order.index(reference)], sort_keys=True)
    speech: dict[str, Any] = {}
    if speaker is not None:
        of_texts = ("word_width", "joint", "vocabulary", "context_length")
        speech = {name: getattr(speaker.fingerprint, name) for name in of_texts}
        speech["sentence_width"] = speaker.fingerprint.sentence_width or speaker.fingerprint.width
    return Fingerprint(
        backbone=" + ".join(part.backbone for part in parts),
        weights=hashlib.sha256(made.encode()).hexdigest(),
        width=sum(part.width for part in parts),
        **speech,
        frame_rate=reference.fingerprint.frame_rate,
        dtype=max((part.dtype for part in parts if part.dtype), key=DTYPES.index),
        source=" + ".join(part.source or part.backbone for part in parts),
    )


def _all_videos(stores: Sequence[FeatureStore]) -> list[str]:
    return list(dict.fromkeys(video_id for store in stores for video_id in store.video_ids()))


def _interval(store: FeatureStore) -> float:
    """Seconds from one frame to the next; a store cannot be made without its rate."""
    return 1 / (store.fingerprint.frame_rate or 1.0)


def _range(video: VideoFeatures) -> str:
    return f"{float(video.times[0]):.2f} to {float(video.times[-1]):.2f} s"
