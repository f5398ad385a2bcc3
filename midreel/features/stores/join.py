"""Join features by time: several backbones side by side, or several parts of a video end to end.

`join_stores` writes a new store. Each of its frames concatenates the frames of several stores that are nearest in time:

    slowfast.h5   frames at 0, 2, 4, … s, width 2304 ┐
                                                     ├─> features.h5   frames at 0, 2, 4, … s, width 2816
    clip.h5       frames at 0, 0.5, 1, … s, width 512┘

The first store sets the times. The store that has the sentences comes last in each frame, because zero-shot search
compares them with the last channels. Words may come from another store: a student that reads I3D frames and RoBERTa
words, and a teacher that compares CLIP frames with CLIP sentences (DL-DKD).

`WithTeacher` writes nothing. It presents the features of two backbones as one, for a method that learns from a teacher.
`JoinedParts` writes nothing. It presents the parts of a video as one video, in which their times follow each other.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
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

# The share of the frames of a video that may have no near frame in another store. One frame is always allowed, because
# a store may have one frame less at the end.
FAR_SHARE = 0.05

_ROUNDING = 1e-3  # seconds: times are float32, so smaller differences mean nothing
_BATCH = 256  # texts that are copied at once


@dataclass(frozen=True, kw_only=True)
class JoinReport:
    """The results of `join_stores`.

    Attributes:
        videos: The outcomes of the videos.
        texts: The outcomes of the texts.
        largest_gap: The largest distance in seconds between two frames that were joined.
        largest_difference: The largest difference in seconds between the durations of a joined video.
    """

    videos: ExtractionReport
    texts: ExtractionReport
    largest_gap: float
    largest_difference: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        counts = {
            kind: {"done": len(report.done), "skipped": len(report.skipped), "failed": report.failed}
            for kind, report in (("videos", self.videos), ("texts", self.texts))
        }
        return {**counts, "largest_gap": self.largest_gap, "largest_difference": self.largest_difference}

    @property
    def failed(self) -> dict[str, str]:
        """The videos and texts that were not joined, with the reasons."""
        return {**self.videos.failed, **self.texts.failed}

    @property
    def text(self) -> str:
        """The report in lines for people."""
        lines = [
            f"{kind}: {len(report.done):,} joined, {len(report.skipped):,} unchanged, {len(report.failed):,} failed"
            for kind, report in (("videos", self.videos), ("texts", self.texts))
        ]
        if self.videos.done:
            lines.append(
                f"times: joined frames differ by at most {self.largest_gap:.3f} s, durations by at most "
                f"{self.largest_difference:.3f} s"
            )
        failed = [*self.videos.failed.items(), *self.texts.failed.items()]
        return "\n".join([*lines, *(f"failed {name}: {reason}" for name, reason in failed)])


def join_stores(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    texts: str | Path | None = None,
    sentences: str | Path | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> JoinReport:
    """Join stores by time into the store `out`: each frame concatenates the frames of all stores.

    Times are taken from the first store. To each of its frames, the nearest frame of every other store is appended.
    A video fails, and the report says why, in these cases:

    - A store does not have it.
    - Its durations differ by more than the interval between two frames of the first store.
    - More than a few of its frames (FAR_SHARE) have no frame of another store within `tolerance`.

    If `out` exists, unchanged videos and texts are skipped, so an interrupted join can be run again. One video at a
    time is in memory.

    Args:
        paths: The stores, the slowest first.
        out: The store to create or complete.
        texts: The store whose texts to copy. Needed if several stores have texts.
        sentences: The store whose sentence vectors to copy, with the words of `texts`. Its frames come last. Default:
            the store of the words.
        tolerance: The largest distance in seconds between two frames that are joined. Default: half the interval
            between two frames of the first store.
        progress: A function that is called with each outcome.

    Raises:
        BadSetting: If there are fewer than two stores, or the stores do not fit `texts`, `sentences`, `tolerance` or
            `out`.
        BadStore: If a store cannot be read or written.
        FingerprintMismatch: If `out` was joined from other stores.
    """
    with _opened(paths, texts, sentences) as (stores, words, last):
        if Path(out).resolve() in [store.path.resolve() for store in stores]:
            raise BadSetting(f"{out} is one of the stores to join, expected another file. Choose a new name.")
        aligner = _Aligner(stores, tolerance)
        columns = [store for store in stores if store is not last] + ([last] if last else [])
        with FeatureStore.resume(out, _fingerprint(columns, words, stores[0])) as joined:
            copied = _report(_copy_texts(words, last, joined) if words and last else [], progress)
            videos = _report(_join_videos(stores, columns, aligner, joined), progress)
    return JoinReport(
        videos=videos, texts=copied, largest_gap=aligner.largest_gap, largest_difference=aligner.largest_difference
    )


def num_items(paths: Sequence[str | Path], texts: str | Path | None = None, sentences: str | Path | None = None) -> int:
    """Return the number of outcomes that `join_stores` reports: one for each video and text.

    Args:
        paths: The stores.
        texts: The store whose texts to copy.
        sentences: The store whose sentence vectors to copy.
    """
    with _opened(paths, texts, sentences) as (stores, words, _):
        return len(_all_videos(stores)) + (len(words.text_ids()) if words else 0)


class WithTeacher:
    """Features of a student, joined with those of a teacher: its frames come last, and its sentences are used.

    The two have the same videos and texts, but need not have frames at the same times: each frame of the student gets
    the frame of the teacher at the same share of the video. DL-DKD reads I3D frames and RoBERTa words as the student,
    and CLIP frames and sentences as the teacher.

    Args:
        student: The features that set frames, times and words.
        teacher: The features with a joint space of frames and sentences.

    Raises:
        BadSetting: If the teacher has no joint space.
    """

    def __init__(self, student: Features, teacher: Features) -> None:
        if not teacher.fingerprint.joint or teacher.fingerprint.word_width is None:
            raise BadSetting(
                f"the teacher is {teacher.fingerprint.backbone}, expected frames and sentences of one CLIP. Put the "
                f"features of CLIP last."
            )
        self._student, self._teacher = student, teacher

    @property
    def path(self) -> Path:
        """The file or folder of the student's features."""
        return self._student.path

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of both. Its weights are a hash of their fingerprints."""
        return _fingerprint([self._student, self._teacher], self._student, self._student)

    def video_ids(self) -> list[str]:
        """Return the ids of the videos that both have, as the student spells them."""
        return [video_id for video_id in self._student.video_ids() if self._teacher.has_video(video_id)]

    def text_ids(self) -> list[str]:
        """Return the ids of the texts that both have, as the student spells them."""
        return [text_id for text_id in self._student.text_ids() if self._teacher.has_text(text_id)]

    def has_video(self, video_id: str) -> bool:
        """Return whether both have features of a video."""
        return self._student.has_video(video_id) and self._teacher.has_video(video_id)

    def has_text(self, text_id: str) -> bool:
        """Return whether both have features of a text."""
        return self._student.has_text(text_id) and self._teacher.has_text(text_id)

    def video(self, video_id: str) -> VideoFeatures:
        """Return the frames of the student, each with a frame of the teacher behind it.

        Raises:
            BadFeatures: If the stored features are not valid.
            BadStore: If the stored features are damaged.
            MissingFeatures: If one of the two does not have the video.
        """
        student, teacher = self._student.video(video_id), self._teacher.video(video_id).frames
        num_frames = len(student.frames)
        places = (2 * np.arange(num_frames) + 1) * len(teacher) // (2 * num_frames)  # at the middle of each frame
        return replace(student, frames=np.concatenate((student.frames, teacher[places]), 1))

    def text(self, text_id: str) -> TextFeatures:
        """Return the words of the student with the sentence of the teacher.

        Raises:
            MissingFeatures: If one of the two does not have the text.
        """
        return replace(self._student.text(text_id), sentence=self._teacher.text(text_id).sentence)

    def text_origin(self, text_id: str) -> int:
        """Return the origin of a text: its hash, or UNKNOWN."""
        return self._student.text_origin(text_id)

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        """Return a hash of the features of these videos and texts."""
        videos, texts = list(video_ids), list(text_ids)
        digests = (each.digest(videos, texts) for each in (self._student, self._teacher))
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def close(self) -> None:
        """Close the files. The next use opens them again."""
        self._student.close()
        self._teacher.close()

    def __repr__(self) -> str:
        return f"WithTeacher({self._student!r}, {self._teacher!r})"


class JoinedParts:
    """Features in which some videos consist of parts: the parts follow each other without gaps.

    QVHighlights stores the segments of a YouTube video separately, as `{id}_{start}_{end}`. For retrieval they are one
    video. The annotations say how long each part lasts, and moments are counted by these durations. So features that
    are longer than the duration are cut off, and the last frame of shorter features is repeated.

    A video that the features contain as a whole is used as it is, even if it has parts.

    Args:
        features: The features of the parts.
        parts: For each video, its parts in order, with their durations in seconds.

    Raises:
        BadSetting: If a video has no parts, or a duration is not a finite number above 0.
    """

    def __init__(self, features: Features, parts: Mapping[str, Mapping[str, float]]) -> None:
        for video_id, durations in parts.items():
            if not durations or not all(0 < seconds < float("inf") for seconds in durations.values()):
                raise BadSetting(
                    f"the parts of video {video_id!r} are {dict(durations)}, expected at least one part, each with a "
                    f"duration above 0."
                )
        self._features, self._parts = features, {video_id: dict(durations) for video_id, durations in parts.items()}

    @property
    def path(self) -> Path:
        """The file or folder of the features."""
        return self._features.path

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the features."""
        return self._features.fingerprint

    def video_ids(self) -> list[str]:
        """Return the ids of the videos with all their parts, and of the stored videos that are not a part."""
        used = {name for names in self._parts.values() for name in names}
        whole = [video_id for video_id in self._parts if self.has_video(video_id)]
        return list(dict.fromkeys((*whole, *(name for name in self._features.video_ids() if name not in used))))

    def text_ids(self) -> list[str]:
        """Return the ids of the texts."""
        return self._features.text_ids()

    def has_video(self, video_id: str) -> bool:
        """Return whether there are features of a video, or of all its parts."""
        return all(self._features.has_video(name) for name in self._names(video_id))

    def has_text(self, text_id: str) -> bool:
        """Return whether there are features of a text."""
        return self._features.has_text(text_id)

    def video(self, video_id: str) -> VideoFeatures:
        """Return the features of a video, joined from its parts.

        Raises:
            BadFeatures: If the stored features are not valid.
            BadStore: If the stored features are damaged.
            MissingFeatures: If there are no features of the video, or of one of its parts.
        """
        names = self._names(video_id)
        missing = [name for name in names if not self._features.has_video(name)]
        if missing and video_id in self._parts:
            raise MissingFeatures(
                f"{self.path} lacks {len(missing)} of the {len(names)} parts of {video_id!r}, such as {missing[0]!r}. "
                f"Extract them, or remove the video from the annotations."
            )
        if names == (video_id,):
            return self._features.video(video_id)
        parts = [self._with_duration(self._features.video(name), self._parts[video_id][name]) for name in names]
        *starts, duration = accumulate((part.duration for part in parts), initial=0.0)
        return VideoFeatures(
            frames=np.concatenate([part.frames for part in parts]),
            times=np.concatenate([part.times + np.float32(start) for part, start in zip(parts, starts, strict=True)]),
            duration=duration,
        )

    def text(self, text_id: str) -> TextFeatures:
        """Return the features of a text."""
        return self._features.text(text_id)

    def text_origin(self, text_id: str) -> int:
        """Return the origin of a text: its hash, or UNKNOWN."""
        return self._features.text_origin(text_id)

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        """Return a hash of the features of these videos, by their parts, and of these texts."""
        return self._features.digest((name for video_id in video_ids for name in self._names(video_id)), text_ids)

    def close(self) -> None:
        """Close the files. The next use opens them again."""
        self._features.close()

    def __repr__(self) -> str:
        return f"JoinedParts({self._features!r}, {len(self._parts)} videos)"

    def _names(self, video_id: str) -> tuple[str, ...]:
        """Return the ids under which the features of a video are stored: its own, or those of its parts."""
        whole = self._features.has_video(video_id) or video_id not in self._parts
        return (video_id,) if whole else tuple(self._parts[video_id])

    def _with_duration(self, part: VideoFeatures, seconds: float) -> VideoFeatures:
        """Cut or extend a part to a duration, with evenly spaced frames."""
        rate = self.fingerprint.frame_rate or len(part.frames) / part.duration
        places = np.arange(max(1, round(seconds * rate)))
        return VideoFeatures(
            frames=part.frames[places.clip(max=len(part.frames) - 1)],
            times=(places * (seconds / len(places))).astype(np.float32),
            duration=seconds,
        )


def nearest(times: Float[np.ndarray, " T"], wanted: Float[np.ndarray, " S"]) -> Int[np.ndarray, " S"]:
    """Return the index of the time that is nearest to each wanted time. Of two equally near ones, the earlier wins.

    Args:
        times: Sorted times in seconds, at least one.
        wanted: Times in seconds, in any order.

    Examples:
        >>> import numpy as np
        >>> nearest(np.array([0.0, 2.0, 4.0]), np.array([0.4, 1.0, 3.5, 9.0]))
        array([0, 0, 2, 2])
    """
    after = np.searchsorted(times, wanted).clip(max=len(times) - 1)
    before = (after - 1).clip(min=0)
    return np.where(np.abs(wanted - times[before]) <= np.abs(times[after] - wanted) + _ROUNDING, before, after)


class _Aligner:
    """Selects the frames of other stores that are nearest to those of the first, and rejects videos that do not fit."""

    def __init__(self, stores: Sequence[FeatureStore], tolerance: float | None) -> None:
        reference, *others = stores
        interval = _interval(reference)
        self._reference, self._tolerance = reference.path, interval / 2 if tolerance is None else tolerance
        if not 0 < self._tolerance < float("inf"):
            raise BadSetting(f"tolerance is {tolerance}, expected a number of seconds above 0. Try 0.5.")
        self._longest = max(interval, 2 * self._tolerance)
        self.largest_gap = self.largest_difference = 0.0
        for other in others:
            # A frame may be half an interval away from the nearest frame of a store.
            if _interval(other) / 2 > self._tolerance + _ROUNDING:
                raise BadSetting(
                    f"{other.path} has a frame every {_interval(other):g} s and {reference.path} every {interval:g} s. "
                    f"Put the slower store first, or pass --tolerance {_interval(other) / 2:g}."
                )

    def align(self, reference: VideoFeatures, other: VideoFeatures, path: Path) -> Float[np.ndarray, "T C"]:
        """Return the nearest frame of another store for each frame of the reference.

        Raises:
            BadFeatures: If the durations differ, or too many frames have no near frame.
        """
        difference = abs(reference.duration - other.duration)
        if difference > self._longest + _ROUNDING:
            raise BadFeatures(
                f"it lasts {reference.duration:.2f} s in {self._reference} and {other.duration:.2f} s in {path}, "
                f"expected a difference of at most {self._longest:g} s. Extract both from the same file."
            )
        places = nearest(other.times, reference.times)
        gaps = np.abs(other.times[places] - reference.times)
        num_far, num_frames = int((gaps > self._tolerance + _ROUNDING).sum()), len(gaps)
        if num_far > max(1, FAR_SHARE * num_frames) or num_far == num_frames:
            raise BadFeatures(
                f"{num_far} of {num_frames} frames in {self._reference} ({_range(reference)}) are up to "
                f"{float(gaps.max()):.2f} s from the nearest frame in {path} ({_range(other)}), expected at most "
                f"{self._tolerance:g} s. Extract both from the same file."
            )
        self.largest_gap = max(self.largest_gap, float(gaps.max()))
        self.largest_difference = max(self.largest_difference, difference)
        return other.frames[places]


def _join_videos(
    stores: Sequence[FeatureStore], columns: Sequence[FeatureStore], aligner: _Aligner, joined: FeatureStore
) -> Iterator[Outcome]:
    """Join all videos, and yield the outcome of each. `columns` has the stores in the order of the channels."""
    for video_id in _all_videos(stores):
        # The origin of a joined video is a hash of its features in the stores, so changed features are joined again.
        origin = origins.of_text("".join(store.digest([video_id], []) for store in columns))
        if joined.has_video(video_id) and same_origin(joined.video_origin(video_id), origin):
            yield Outcome(id=video_id, kind="skipped")
            continue
        try:
            features = _joined_video(video_id, stores, columns, aligner)
        except (BadFeatures, BadStore, MissingFeatures) as error:
            yield Outcome(id=video_id, kind="failed", reason=str(error))
        else:
            joined.add_video(video_id, features, origin)
            yield Outcome(id=video_id, kind="done", num_frames=len(features.frames))


def _joined_video(
    video_id: str, stores: Sequence[FeatureStore], columns: Sequence[FeatureStore], aligner: _Aligner
) -> VideoFeatures:
    missing = [str(store.path) for store in stores if not store.has_video(video_id)]
    if missing:
        target = "this store" if len(missing) == 1 else "these stores"
        raise MissingFeatures(f"missing in {' and '.join(missing)}. Extract it into {target}.")
    reference = stores[0].video(video_id)
    frames = [
        reference.frames if store is stores[0] else aligner.align(reference, store.video(video_id), store.path)
        for store in columns
    ]
    return VideoFeatures(frames=np.concatenate(frames, 1), times=reference.times, duration=reference.duration)


def _copy_texts(source: FeatureStore, sentences: FeatureStore, joined: FeatureStore) -> Iterator[Outcome]:
    """Copy the words of `source` with the vectors of `sentences`, which may be the same store."""
    batch: dict[str, TextFeatures] = {}
    for text_id in source.text_ids():
        if joined.has_text(text_id) and same_origin(joined.text_origin(text_id), source.text_origin(text_id)):
            yield Outcome(id=text_id, kind="skipped")
            continue
        try:
            words, sentence = source.text(text_id), _sentence(text_id, source, sentences)
            batch[text_id] = replace(words, sentence=sentence.sentence)
        except (BadFeatures, BadStore, MissingFeatures) as error:
            yield Outcome(id=text_id, kind="failed", reason=str(error))
        if len(batch) == _BATCH:
            yield from _add_texts(batch, source, joined)
            batch = {}
    yield from _add_texts(batch, source, joined)


def _sentence(text_id: str, source: FeatureStore, sentences: FeatureStore) -> TextFeatures:
    """Return the features of a text in the store of sentences. Raise if it has none, or those of another text."""
    if not sentences.has_text(text_id):
        raise MissingFeatures(f"missing in {sentences.path}. Extract it into this store.")
    if not same_origin(sentences.text_origin(text_id), source.text_origin(text_id)):
        raise BadFeatures(
            f"{sentences.path} has features of another sentence than {source.path}. Extract both from the same "
            f"annotations."
        )
    return sentences.text(text_id)


def _add_texts(batch: Mapping[str, TextFeatures], source: FeatureStore, joined: FeatureStore) -> Iterator[Outcome]:
    joined.add_texts(batch, {text_id: source.text_origin(text_id) for text_id in batch})
    for text_id in batch:
        yield Outcome(id=text_id, kind="done")


def _report(outcomes: Iterable[Outcome], progress: Progress | None) -> ExtractionReport:
    journal = Journal(progress)
    for outcome in outcomes:
        journal.note(outcome)
    return journal.report


@contextmanager
def _opened(
    paths: Sequence[str | Path], texts: str | Path | None, sentences: str | Path | None
) -> Iterator[tuple[list[FeatureStore], FeatureStore | None, FeatureStore | None]]:
    """Open the stores, and yield them with the one of the words and the one of the sentences, if any."""
    if len({Path(path).resolve() for path in paths}) != len(paths) or len(paths) < 2:
        raise BadSetting(f"the stores are [{', '.join(map(str, paths))}], expected two or more different ones.")
    with ExitStack() as stack:
        stores = [stack.enter_context(FeatureStore.open(path)) for path in paths]
        last = None if sentences is None else _sentence_store(stores, sentences)
        words = _text_store([store for store in stores if store is not last] if texts is None else stores, texts)
        yield stores, words or last, last or words


def _sentence_store(stores: Sequence[FeatureStore], sentences: str | Path) -> FeatureStore:
    """Return the chosen store of sentences, which must have a joint space."""
    fitting = [store for store in stores if store.fingerprint.word_width is not None and store.fingerprint.joint]
    chosen = [store for store in fitting if store.path.resolve() == Path(sentences).resolve()]
    if not chosen:
        raise BadSetting(
            f"sentences is {str(sentences)!r}, expected a store with sentences and frames of one CLIP. Pass "
            f"--sentences with one of: {', '.join(str(store.path) for store in fitting) or '(there is none)'}"
        )
    return chosen[0]


def _text_store(stores: Sequence[FeatureStore], texts: str | Path | None) -> FeatureStore | None:
    """Return the store whose texts are copied: the chosen one, or the only one that has texts."""
    candidates = [store for store in stores if store.fingerprint.word_width is not None]
    if texts is not None:
        chosen = [store for store in candidates if store.path.resolve() == Path(texts).resolve()]
    else:
        chosen = candidates if len(candidates) == 1 else [store for store in candidates if store.text_ids()]
    if (candidates or texts) and len(chosen) != 1:
        raise BadSetting(
            f"texts is {None if texts is None else str(texts)!r}, expected one store with texts. Pass --texts with one "
            f"of: {', '.join(str(store.path) for store in candidates) or '(none has texts)'}"
        )
    return chosen[0] if chosen else None


def _fingerprint(columns: Sequence[Features], words: Features | None, reference: Features) -> Fingerprint:
    """Return the fingerprint of joined features. Its weights are a hash of the fingerprints of the parts.

    Args:
        columns: The stores in the order of the channels. The last one has the sentences, if there are texts.
        words: The store of the words.
        reference: The store of the times.
    """
    parts = [store.fingerprint for store in columns]
    known_fields = [
        {name: value for name, value in asdict(part).items() if name != "source" and value is not None}
        for part in parts
    ]
    text_fields: dict[str, Any] = {}
    mixed = []
    if words is not None:
        sentences = columns[-1]
        text_fields = {
            name: getattr(words.fingerprint, name) for name in ("word_width", "vocabulary", "context_length")
        }
        text_fields["joint"] = sentences.fingerprint.joint
        text_fields["sentence_width"] = sentences.fingerprint.sentence_width or sentences.fingerprint.width
        mixed = [] if words is sentences else [columns.index(words)]
    content = json.dumps([known_fields, columns.index(reference), *mixed], sort_keys=True)
    return Fingerprint(
        backbone=" + ".join(part.backbone for part in parts),
        weights=hashlib.sha256(content.encode()).hexdigest(),
        width=sum(part.width for part in parts),
        **text_fields,
        frame_rate=reference.fingerprint.frame_rate,
        dtype=max((part.dtype for part in parts if part.dtype), key=DTYPES.index),
        source=" + ".join(part.source or part.backbone for part in parts),
    )


def _all_videos(stores: Sequence[FeatureStore]) -> list[str]:
    return list(dict.fromkeys(video_id for store in stores for video_id in store.video_ids()))


def _interval(store: FeatureStore) -> float:
    """Return the seconds between two frames. Every store has a frame rate; `or` is for the type checker."""
    return 1 / (store.fingerprint.frame_rate or 1.0)


def _range(video: VideoFeatures) -> str:
    return f"{float(video.times[0]):.2f} to {float(video.times[-1]):.2f} s"
