"""Compute the features of videos and texts with a backbone, and add them to a feature store.

Data flow:

    items ──> worker threads ──────> queue ──> the caller's thread
              decode and resize,     (_Message) encode in batches across videos,
              one video each                    store each complete video

Threads are enough: FFmpeg, Pillow and torch release Python's global lock, and frames need not be copied between
processes. Only the caller's thread encodes, writes the store and the quarantine, and reports progress.

An interrupted run loses only the videos that were not stored yet. The next run skips stored videos.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from queue import Full, Queue
from threading import Event, Lock, Semaphore, Thread
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Float, Int, UInt8

from midreel.errors import (
    BadAnnotation,
    BadFeatures,
    BadSetting,
    BadStore,
    Locked,
    MidreelError,
    MissingVideo,
    Unreachable,
    UnreadableVideo,
    Unwritable,
)
from midreel.features.backbones.base import Backbone, Image
from midreel.features.backbones.frame_windows import prepared
from midreel.features.stores import origins
from midreel.features.stores.hdf5_log import UNKNOWN, same_origin
from midreel.features.stores.quarantine import Quarantine
from midreel.features.stores.store import FeatureStore
from midreel.media.decode import Damage
from midreel.types import VideoFeatures

# The default number of decoding threads. Two keep the encoder busy on two cores (docs/results/extraction-speed.md).
# Each thread keeps some frames in memory, so the number is limited.
WORKERS = min(max(2, os.cpu_count() or 1), 8)
MAX_RATE = 240  # frames per second: no video has more, so a higher rate is probably in another unit
# The number of videos that may be in progress: from the start of decoding until they are stored.
MOST_IN_PROGRESS = 64

MIN_CHANGE = 0.02  # costs no recall on the playhouse: docs/results/still-frames.md
_STRIDE, _BLOCKS = 4, 8  # `change` looks at every fourth pixel, in 8 x 8 blocks

T = TypeVar("T")
Vector = Float[np.ndarray, " E"]
Pixels = UInt8[np.ndarray, "*window 3 H W"]


def expect_rate(rate: float) -> None:
    """Raise BadSetting unless a number of frames per second is above 0 and at most `MAX_RATE`."""
    if not 0 < rate <= MAX_RATE:
        raise BadSetting(f"rate is {rate}, expected more than 0 and at most {MAX_RATE} frames per second. Try 2.")


def without_still(frames: Iterable[tuple[float, Pixels]], min_change: float) -> Iterator[tuple[float, Pixels | None]]:
    """Yield the frames, with None instead of the pixels of those that differ too little from the last that has some.

    Args:
        frames: The time and the pixels of each frame.
        min_change: The least `change` of a frame that keeps its pixels. 0: all keep them.
    """
    shown: Pixels | None = None
    for time, pixels in frames:
        is_new = shown is None or not min_change or change(shown, pixels) >= min_change
        yield time, pixels if is_new else None
        shown = pixels if is_new else shown


def change(one: Pixels, other: Pixels) -> float:
    """Return how much two prepared frames differ, from 0 to 1: the mean difference in the block that differs most.

    The mean of the whole picture would miss a small thing that moves.

    >>> black = np.zeros((3, 64, 64), np.uint8)
    >>> spot = black.copy()
    >>> spot[:, :8, :8] = 255
    >>> change(black, black), change(black, spot)
    (0.0, 1.0)
    """
    small = [frame[..., ::_STRIDE, ::_STRIDE].astype(np.int16) for frame in (one, other)]
    differences = np.abs(small[0] - small[1]).reshape(-1, *small[0].shape[-2:]).sum(0)
    rows, columns, sizes = _blocks(*differences.shape)
    sums = np.add.reduceat(np.add.reduceat(differences, rows, 0), columns, 1)
    return float((sums / sizes).max() / (255 * (small[0].size // differences.size)))


@cache
def _blocks(height: int, width: int) -> tuple[Int[np.ndarray, " R"], Int[np.ndarray, " C"], Int[np.ndarray, "R C"]]:
    """Return the first row and the first column of each block, and the numbers of pixels in the blocks."""
    rows, columns = (np.unique(np.arange(_BLOCKS) * size // _BLOCKS) for size in (height, width))
    return rows, columns, np.outer(np.diff([*rows, height]), np.diff([*columns, width]))


@dataclass(frozen=True, kw_only=True, eq=False)
class VideoItem:
    """A video to encode.

    Attributes:
        id: The id of the video in the store.
        frames: The frames, each with its time in seconds. A worker thread iterates them, which opens the file.
        duration: The length in seconds. A function is called after the last frame.
        path: The video file, if there is one. It is used to detect changes and to quarantine unreadable files.
        origin: The origin of the file (see `origins.of_file`), if it is already known.
        state: The state of the file before its content was read. If it changes while decoding, the video fails.
        damage: A function that returns the damage of the file. It is called after the last frame.
    """

    id: str
    frames: Iterable[tuple[float, Image]]
    duration: float | Callable[[], float]
    path: Path | None = None
    origin: int | None = None
    state: origins.FileState | None = None
    damage: Callable[[], Damage] = Damage


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result for one video or text.

    Attributes:
        id: The id of the video or text.
        of: Whether it is a video or a text.
        kind: "done" if it was stored now, "skipped" if it was stored before. "failed" if it could not be stored,
            "quarantined" if an earlier run found the file unreadable and this run did not try again.
        num_frames: The number of frames that were stored now.
        damage: The parts of the file that could not be decoded.
        reason: Why it failed or is quarantined.
        lasting: Whether a retry is useless until the file changes. A missing file is not a lasting failure.
    """

    id: str
    of: Literal["video", "text"] = "video"
    kind: Literal["done", "skipped", "failed", "quarantined"]
    num_frames: int = 0
    damage: Damage = field(default_factory=Damage)
    reason: str = ""
    lasting: bool = False


Progress = Callable[[Outcome], None]


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A video that was decoded and encoded elsewhere.

    Attributes:
        features: The features of the video.
        damage: The parts of the file that could not be decoded.
    """

    features: VideoFeatures
    damage: Damage


Encode = Callable[[VideoItem], Encoded]


@dataclass(frozen=True, kw_only=True)
class ExtractionReport:
    """The results of one run, as ids.

    Attributes:
        done: Stored by this run.
        skipped: Stored by an earlier run.
        failed: Not stored, with the reason. This includes quarantined videos.
        not_retried: Quarantined videos: an earlier run found them unreadable, and their files are unchanged.
        outdated: Failed videos whose features in the store are from an earlier version of the file.
        damaged: Stored videos with unreadable parts, and a description of these parts.
    """

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_retried: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)


def extract_videos(
    items: Iterable[VideoItem],
    backbone: Backbone,
    store: FeatureStore,
    *,
    rate: float,
    batch_size: int = 64,
    workers: int = 1,
    quarantine: Quarantine | None = None,
    progress: Progress | None = None,
    encode: Encode | None = None,
) -> ExtractionReport:
    """Add the features of videos to a store, in the order of the items, and return a report.

    Args:
        items: The videos to encode.
        backbone: The backbone that encodes the frames.
        store: The store to add to. It must have the fingerprint of the backbone.
        rate: The number of vectors a second.
        batch_size: The number of frames in a batch. A batch may contain frames of several videos.
        workers: The number of decoding threads.
        quarantine: Where to record unreadable files. They are skipped until they change.
        progress: A function that is called with each outcome.
        encode: Decodes and encodes a video elsewhere. See `stored_videos`.

    Raises:
        BadSetting: If `workers` is less than 1.
        BadStore: If the store cannot be read or written.
        FingerprintMismatch: If the store has features of another backbone or rate.
    """
    journal, stored = Journal(progress), set(store.video_ids())
    outcomes = stored_videos(
        items,
        backbone,
        store,
        rate=rate,
        batch_size=batch_size,
        workers=workers,
        quarantine=quarantine,
        encode=encode,
    )
    with closing(outcomes):
        for outcome in outcomes:
            journal.note(outcome)
    journal.report.outdated.extend(video_id for video_id in journal.report.failed if video_id in stored)
    return journal.report


def stored_videos(
    items: Iterable[VideoItem],
    backbone: Backbone,
    store: FeatureStore,
    *,
    rate: float,
    batch_size: int = 64,
    workers: int = 1,
    quarantine: Quarantine | None = None,
    in_order: bool = True,
    encode: Encode | None = None,
    min_change: float = 0.0,
) -> Generator[Outcome, None, None]:
    """Add the features of videos to a store, and yield the outcome of each video once it is stored.

    A stored video is skipped unless its file has changed. If the store has the same file under another id, its
    features are copied. A video that fails is an outcome like any other: the run continues, and the store keeps the
    features that it has. An error raised by `items` itself ends the run.

    Args:
        items: The videos to encode. Their frames are taken `rate` times `backbone.window` times a second.
        backbone: The backbone that encodes the frames.
        store: The store to add to. It is closed at the end.
        rate: The number of vectors a second.
        batch_size: The number of frames in a batch. A batch may contain frames of several videos.
        workers: The number of decoding threads. Each decodes one video at a time.
        quarantine: Where to record unreadable files. They are skipped until they change.
        in_order: Store the videos in the order of the items. Otherwise each is stored as soon as it is complete.
        encode: Decodes and encodes a video elsewhere, such as on a cluster. It is called in the worker threads. An
            error of the class Unreachable ends the run. Default: decode here, and encode with the backbone.
        min_change: Encode a frame only if its `change` from the last encoded one is at least this. Otherwise the vector
            of that one is stored again. 0: encode all frames.

    Raises:
        BadSetting: If `workers` is less than 1, or `min_change` is not from 0 to 1.
        BadStore: If the store cannot be read or written.
        FingerprintMismatch: If the store has features of another backbone or rate.
    """
    if workers < 1:
        raise BadSetting(f"workers is {workers}, expected at least 1. Try 2.")
    if not 0 <= min_change <= 1:
        raise BadSetting(f"min_change is {min_change:g}, expected 0 (encode all frames) to 1. Try {MIN_CHANGE}.")
    store.expect(replace(backbone.fingerprint, frame_rate=rate))
    slots = Semaphore(MOST_IN_PROGRESS)
    vectors_per_batch = max(1, batch_size // backbone.window)
    writer = _VideoWriter(backbone, store, vectors_per_batch, quarantine, slots, in_order)
    stored = {video_id: store.video_origin(video_id) for video_id in store.video_ids()}
    tasks = _tasks(items, backbone, stored, quarantine, encode, min_change)
    try:
        # The queue has room for two batches: one is encoded while the workers prepare the next.
        with closing(_in_background(tasks, workers=workers, limit=2 * vectors_per_batch, slots=slots)) as messages:
            for message in messages:
                yield from writer.handle(message)
        yield from writer.finish()
    finally:
        store.close()


def extract_texts(
    queries: Iterable[tuple[str, str]],
    backbone: Backbone,
    store: FeatureStore,
    *,
    batch_size: int = 256,
    progress: Progress | None = None,
) -> ExtractionReport:
    """Add the features of texts to a store, and return a report.

    A stored text is skipped unless it has changed.

    Args:
        queries: The texts, as pairs of an id and a text.
        backbone: The backbone that encodes the texts.
        store: The store to add to. It must have the fingerprint of the backbone.
        batch_size: The number of texts in a batch.
        progress: A function that is called with each outcome.

    Raises:
        BadAnnotation: If two different texts have the same id.
        BadStore: If the store cannot be read or written.
        FingerprintMismatch: If the store has features of another backbone.
    """
    store.expect(backbone.fingerprint)
    journal = Journal(progress)
    stored = {text_id: store.text_origin(text_id) for text_id in store.text_ids()}
    new: dict[str, str] = {}
    for text_id, text in queries:
        if new.get(text_id, text) != text:
            raise BadAnnotation(
                f"the id {text_id!r} has two texts, {new[text_id]!r} and {text!r}. Give each its own id."
            )
        if text_id in new or (text_id in stored and same_origin(stored[text_id], origins.of_text(text))):
            journal.note(Outcome(id=text_id, of="text", kind="skipped"))
        else:
            new[text_id] = text
    # Sorting by length puts texts of similar length into one batch, so the encoder processes little padding.
    ids = sorted(new, key=lambda text_id: len(new[text_id]))
    try:
        for start in range(0, len(ids), batch_size):
            batch = {text_id: new[text_id] for text_id in ids[start : start + batch_size]}
            _encode_texts(batch, backbone, store, journal)
    finally:
        store.close()
    return journal.report


def _encode_texts(texts: dict[str, str], backbone: Backbone, store: FeatureStore, journal: "Journal") -> None:
    """Encode and store one batch of texts. If it fails, retry each text alone, so that only the bad ones fail."""
    try:
        encoded = dict(zip(texts, backbone.encode_texts(list(texts.values())), strict=True))
        store.add_texts(encoded, {text_id: origins.of_text(text) for text_id, text in texts.items()})
    except (BadStore, Locked, Unwritable):
        raise
    except Exception as error:
        if len(texts) > 1:
            for text_id, text in texts.items():
                _encode_texts({text_id: text}, backbone, store, journal)
        else:
            journal.note(Outcome(id=next(iter(texts)), of="text", kind="failed", reason=_reason(error)))
    else:
        for text_id in texts:
            journal.note(Outcome(id=text_id, of="text", kind="done"))


class Journal:
    """Collects outcomes into a report, and passes each on to the progress callback."""

    def __init__(self, progress: Progress | None) -> None:
        self.report = ExtractionReport()
        self._progress = progress

    def note(self, outcome: Outcome) -> None:
        """Add an outcome to the report."""
        report = self.report
        match outcome.kind:
            case "done":
                report.done.append(outcome.id)
            case "skipped":
                report.skipped.append(outcome.id)
            case "failed" | "quarantined":
                report.failed[outcome.id] = outcome.reason
        if outcome.kind == "quarantined":
            report.not_retried.append(outcome.id)
        if outcome.damage:
            report.damaged[outcome.id] = str(outcome.damage)
        if self._progress is not None:
            self._progress(outcome)


@dataclass(eq=False)
class _Video:
    """A video in progress: the times of the frames that arrived, and the vectors of those that are encoded."""

    number: int
    item: VideoItem
    origin: int
    origin_if_damaged: int
    times: list[float] = field(default_factory=list)
    row_of_time: list[int] = field(default_factory=list)  # frames without a change share a row
    rows: list[Vector] = field(default_factory=list)
    duration: float | None = None

    @property
    def is_encoded(self) -> bool:
        return len(self.rows) == self.row_of_time[-1] + 1


# The messages that worker threads send for a video. Either one _Skipped, _Duplicate, _Complete or _Failed, or any
# number of _Frames in order and then one _Decoded or _Failed.


@dataclass(frozen=True, eq=False)
class _Frame:
    """The input of one vector: a frame, or the stack of frames that the backbone takes. None: as the one before."""

    video: _Video
    time: float
    pixels: Pixels | None


@dataclass(frozen=True)
class _Decoded:
    """All frames of a video have been sent."""

    video: _Video
    duration: float


@dataclass(frozen=True)
class _Complete:
    """A video that was decoded and encoded elsewhere."""

    video: _Video
    encoded: Encoded


@dataclass(frozen=True)
class _Failed:
    """A video cannot be decoded."""

    video: _Video
    error: Exception


@dataclass(frozen=True)
class _Duplicate:
    """A video whose features the store has under another id."""

    video: _Video
    stored_id: str


@dataclass(frozen=True)
class _Skipped:
    """A video that is stored already or quarantined."""

    number: int
    outcome: Outcome


_Message = _Frame | _Decoded | _Complete | _Failed | _Duplicate | _Skipped


def _tasks(
    items: Iterable[VideoItem],
    backbone: Backbone,
    stored: Mapping[str, int],
    quarantine: Quarantine | None,
    encode: Encode | None,
    min_change: float,
) -> Iterator[Iterator[_Message]]:
    """Yield a task for each item: an iterator that does the work of a worker thread and yields its messages."""
    seen: set[str] = set()
    id_of = {origin: video_id for video_id, origin in stored.items() if origin != UNKNOWN}
    for number, item in enumerate(items):
        # An id that occurs twice is skipped the second time, whatever its file.
        stored_origin = UNKNOWN if item.id in seen else stored.get(item.id)
        seen.add(item.id)
        yield _task(number, item, backbone, stored_origin, id_of, quarantine, encode, min_change)


def _task(
    number: int,
    item: VideoItem,
    backbone: Backbone,
    stored_origin: int | None,
    id_of: Mapping[int, str],
    quarantine: Quarantine | None,
    encode: Encode | None,
    min_change: float,
) -> Iterator[_Message]:
    """Decide whether a video must be decoded, and decode it if so.

    Args:
        number: The position of the item.
        item: The video.
        backbone: The backbone that prepares the frames.
        stored_origin: The origin of the stored features of this id, or None if there are none.
        id_of: The stored id of each origin.
        quarantine: The files not to try again.
        encode: Decodes and encodes a video elsewhere.
        min_change: The least change between frames that are encoded.
    """
    # The state must be taken before the content is read: a later change is then noticed.
    item = replace(item, state=item.state or _state(item.path))
    origin, origin_if_damaged = _origins(item)
    is_stored = stored_origin is not None and same_origin(stored_origin, origin)
    is_stored_as_damaged = stored_origin == origin_if_damaged
    if is_stored or is_stored_as_damaged:
        damage = Damage(details_lost=not is_stored)
        yield _Skipped(number, Outcome(id=item.id, kind="skipped", damage=damage))
    elif quarantine is not None and (reason := quarantine.reason(item.id, item.path)) is not None:
        yield _Skipped(number, Outcome(id=item.id, kind="quarantined", reason=reason))
    else:
        video = _Video(number, item, origin, origin_if_damaged)
        if (changed := _change_of(item)) is not None:
            yield _Failed(video, changed)
        elif origin in id_of:
            yield _Duplicate(video, id_of[origin])
        elif encode is not None:
            yield _encoded_elsewhere(video, encode)
        else:
            yield from _decode(video, backbone, min_change)


def _encoded_elsewhere(video: _Video, encode: Encode) -> _Message:
    try:
        encoded = encode(video.item)
        if (change := _change_of(video.item)) is not None:
            raise change
        return _Complete(video, encoded)
    except Unreachable:
        raise
    except Exception as error:
        return _Failed(video, _change_of(video.item) or error)


def _origins(item: VideoItem) -> tuple[int, int]:
    """Return the origin of a file, and the origin to store if decoding finds that the file is damaged."""
    if item.path is None:
        return UNKNOWN, UNKNOWN
    try:
        origin = origins.of_file(item.path) if item.origin is None else item.origin
        return origin, origins.if_damaged(origin, item.path)
    except OSError:
        return UNKNOWN, UNKNOWN  # decoding raises an error with a better message


def _state(path: Path | None) -> origins.FileState | None:
    try:
        return None if path is None else origins.state_of(path)
    except OSError:
        return None  # decoding raises an error with a better message


def _change_of(item: VideoItem) -> MissingVideo | None:
    """Return an error if the file has changed since its id was computed: its frames may not belong to the id."""
    if item.state is None or _state(item.path) == item.state:
        return None
    return MissingVideo(f"{item.path} changed while it was read. Run the command again.")


def _decode(video: _Video, backbone: Backbone, min_change: float) -> Iterator[_Message]:
    """Yield the frames of a video in order, and then the end or the failure."""
    item = video.item
    count = 0
    try:
        for time, pixels in without_still(prepared(item.frames, backbone), min_change):
            yield _Frame(video, float(time), pixels)
            count += 1
        if not count:
            raise UnreadableVideo("the video has no frames, expected at least one. Check that it plays.")
        if (changed := _change_of(item)) is not None:
            raise changed
        yield _Decoded(video, float(item.duration() if callable(item.duration) else item.duration))
    except Exception as error:
        yield _Failed(video, _change_of(item) or error)
    except (KeyboardInterrupt, SystemExit) as error:
        # Raised as they are in the caller's thread, they would look like a request of the user.
        raise RuntimeError(f"decoding {item.id!r} raised {type(error).__name__}: {error}") from error
    finally:
        _close(item.frames)


class _VideoWriter:
    """Encodes the frames that arrive in batches, and stores complete videos. Only the caller's thread uses it.

    A video is complete when all of its frames are decoded and encoded. A batch may mix frames of several videos, so a
    decoded video may wait for the next batch. With `in_order`, a complete video also waits for all videos before it.

    Each video in progress holds one of the `slots`. A worker acquires a slot before it starts a video, and the writer
    releases it when it stores or drops the video. This bounds the number of videos in memory.
    """

    def __init__(
        self,
        backbone: Backbone,
        store: FeatureStore,
        batch_size: int,
        quarantine: Quarantine | None,
        slots: Semaphore,
        in_order: bool,
    ) -> None:
        self._backbone, self._store, self._batch_size = backbone, store, batch_size
        self._quarantine, self._slots, self._in_order = quarantine, slots, in_order
        self._batch: list[tuple[_Video, Pixels]] = []
        # By number: videos that are decoded but not stored, and outcomes that wait for their turn.
        self._ended: dict[int, _Video | Outcome] = {}
        self._next = 0  # the number of the next video to store, if in order

    def handle(self, message: _Message) -> Iterator[Outcome]:
        """Process a message, and yield the outcomes of the videos that are complete now."""
        match message:
            case _Frame(video=video, time=time, pixels=pixels):
                before = video.row_of_time[-1] if video.times else -1
                video.times.append(time)
                video.row_of_time.append(before + (pixels is not None))
                if pixels is not None:
                    self._batch.append((video, pixels))
                if len(self._batch) == self._batch_size:
                    self._encode_batch()
            case _Decoded(video=video, duration=duration):
                video.duration = duration
                self._ended[video.number] = video
            case _Complete(video=video, encoded=encoded):
                self._set_features(video, encoded.features)
                video.item = replace(video.item, damage=lambda: encoded.damage)
                self._ended[video.number] = video
            case _Failed(video=video, error=error):
                self._batch = [each for each in self._batch if each[0] is not video]
                self._ended[video.number] = self._fail(video, error)
            case _Duplicate(video=video, stored_id=stored_id):
                self._ended[video.number] = self._copy(video, stored_id)
            case _Skipped(number=number, outcome=outcome):
                self._ended[number] = outcome
        yield from self._store_complete()
        if len(self._ended) == MOST_IN_PROGRESS:
            # All slots are taken by decoded videos, so no frame will arrive to fill the batch. Encode it as it is.
            self._encode_batch()
            yield from self._store_complete()

    def finish(self) -> Iterator[Outcome]:
        """Encode the last, partial batch, and yield the remaining outcomes."""
        if self._batch:
            self._encode_batch()
            yield from self._store_complete()

    def _encode_batch(self) -> None:
        rows = self._backbone.encode_pixels(np.stack([pixels for _, pixels in self._batch]))
        for (video, _), row in zip(self._batch, rows, strict=True):
            video.rows.append(row)
        self._batch = []

    def _copy(self, video: _Video, stored_id: str) -> _Video | Outcome:
        try:
            features = self._store.video(stored_id)
        except (BadFeatures, BadStore) as error:
            return self._fail(video, error)
        self._set_features(video, features)
        return video

    @staticmethod
    def _set_features(video: _Video, features: VideoFeatures) -> None:
        video.times, video.rows, video.duration = features.times.tolist(), list(features.frames), features.duration
        video.row_of_time = list(range(len(video.rows)))

    def _store_complete(self) -> Iterator[Outcome]:
        for number in sorted(self._ended):
            if self._in_order and number != self._next:
                return
            ended = self._ended[number]
            if isinstance(ended, _Video) and not ended.is_encoded:
                continue
            self._next += 1
            del self._ended[number]
            self._slots.release()
            yield self._store_video(ended) if isinstance(ended, _Video) else ended

    def _store_video(self, video: _Video) -> Outcome:
        assert video.duration is not None
        frames = np.stack(video.rows)[video.row_of_time]
        features = VideoFeatures(frames=frames, times=np.array(video.times), duration=video.duration)
        damage = video.item.damage()
        try:
            self._store.add_video(video.item.id, features, video.origin_if_damaged if damage else video.origin)
        except BadFeatures as error:
            return self._fail(video, error)
        if self._quarantine is not None:
            self._quarantine.release(video.item.id)
        return Outcome(id=video.item.id, kind="done", num_frames=len(video.times), damage=damage)

    def _fail(self, video: _Video, error: Exception) -> Outcome:
        reason, path = _reason(error), video.item.path
        lasting = isinstance(error, UnreadableVideo) and not isinstance(error, MissingVideo)
        if self._quarantine is not None and path is not None and lasting:
            self._quarantine.add(video.item.id, path, reason)
        return Outcome(id=video.item.id, kind="failed", reason=reason, lasting=lasting)


@dataclass(frozen=True)
class _WorkerEnd:
    """The last value that a worker thread sends, with the error that ended it, if any."""

    error: BaseException | None


def _in_background(
    tasks: Iterator[Iterator[T]], *, workers: int, limit: int, slots: Semaphore
) -> Generator[T, None, None]:
    """Run tasks in threads, and yield their values. Values of one task are in order, tasks are interleaved.

    Each thread acquires a slot, takes the next task and runs it to its end. An error of `tasks`, or of one task, is
    raised here after all values that the threads could still produce. Closing this generator stops the threads.

    Args:
        tasks: The tasks. One thread at a time advances this iterator.
        workers: The number of threads.
        limit: The number of values that may wait in the queue.
        slots: Limits the number of tasks in progress. The consumer releases the slot of a task.
    """
    values: Queue[T | _WorkerEnd] = Queue(limit)
    stop, tasks_lock = Event(), Lock()

    # Threads never block without a timeout: they must notice `stop` when the consumer takes no more values.

    def next_task() -> Iterator[T] | None:
        while not stop.is_set():
            if slots.acquire(timeout=0.1):
                with tasks_lock:
                    return next(tasks, None)
        return None

    def send(value: T | _WorkerEnd) -> bool:
        while not stop.is_set():
            try:
                values.put(value, timeout=0.1)
            except Full:
                continue
            return True
        return False

    def work() -> None:
        failure: BaseException | None = None
        try:
            while (task := next_task()) is not None:
                for value in task:
                    if not send(value):
                        break
                _close(task)
        except BaseException as error:
            failure = error
        with tasks_lock:
            _close(tasks)  # the other threads then find no further task
        send(_WorkerEnd(failure))

    # Daemon threads: a decoder that hangs must not keep the program from exiting.
    threads = [Thread(target=work, name="midreel-decode", daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        ends: list[_WorkerEnd] = []
        while len(ends) < workers:
            value = values.get()
            if isinstance(value, _WorkerEnd):
                ends.append(value)
            else:
                yield value
        for end in ends:
            if end.error is not None:
                raise end.error
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=5)


def _close(iterator: object) -> None:
    """Close a generator now, so that it closes its file. Other iterators have no `close`."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, MidreelError) else f"{type(error).__name__}: {error}"
