"""From videos and texts to a store of their features. Interrupted anywhere, it goes on where it stopped.

Threads decode and resize while the caller's encodes: both are done outside of Python and release its lock, and what
they make is not copied from one process to another.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Full, Queue
from threading import Event, Lock, Semaphore, Thread
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Float, UInt8

from midreel.errors import BadAnnotation, BadFeatures, BadSetting, BadStore, MidreelError, MissingVideo, UnreadableVideo
from midreel.features.backbones.base import Backbone, Image
from midreel.features.backbones.frame_windows import prepared
from midreel.features.stores import origins
from midreel.features.stores.hdf5_log import UNKNOWN, same_origin
from midreel.features.stores.quarantine import Quarantine
from midreel.features.stores.store import FeatureStore
from midreel.media.decode import Damage
from midreel.types import VideoFeatures

# Videos that are decoded at a time, each by one thread. Two keep the encoder busy on two cores, by measurement
# (docs/results/extraction-speed.md). Each holds some frames in memory, so there is a limit.
WORKERS = min(max(2, os.cpu_count() or 1), 8)
# Videos that wait, encoded, for one before them: they are stored in the order of the items.
MOST_WAITING = 64

T = TypeVar("T")
Vector = Float[np.ndarray, " E"]


@dataclass(frozen=True, kw_only=True, eq=False)
class VideoItem:
    """A video to be encoded: its frames with their instants in seconds, and how many seconds it lasts.

    A worker iterates the frames, which is where a file is opened; what is known only after that is a function, and is
    asked then. `path` is the video's file, if it has one, and `state` the file's state before the id was taken from its
    content. If its state is another after decoding, the video fails and may be tried again.
    """

    id: str
    frames: Iterable[tuple[float, Image]]
    duration: float | Callable[[], float]
    path: Path | None = None
    origin: int | None = None  # of the file, if it is known already
    state: origins.FileState | None = None
    damage: Callable[[], Damage] = Damage


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one video or text. What is quarantined was found unreadable by an earlier run.

    A failure is lasting if it is the file's own: what is missing today may be there tomorrow; what is no video will not
    be one until somebody changes it.
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
class ExtractionReport:
    """What became of all: stored now, stored before, and not stored, with the reason.

    `not_retried` are those of the failed that an earlier run could not read and this one did not try; `outdated` are
    those of which the store still holds what they were before their files changed; `damaged` are those of the done and
    the skipped of which something could not be read, and what.
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
) -> ExtractionReport:
    """Add the features of videos to a store, in the order of the items, and report what became of each.

    A video that cannot be read is put into `quarantine`, and not tried again until its file changes. `stored_videos`
    does the work, and says more.
    """
    journal, stored = Journal(progress), set(store.video_ids())
    outcomes = stored_videos(
        items, backbone, store, rate=rate, batch_size=batch_size, workers=workers, quarantine=quarantine
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
) -> Generator[Outcome, None, None]:
    """Add the features of videos to a store, and yield the outcome of each when its features are stored.

    A video that the store holds is skipped, unless the file it was made from has changed; if the store holds the same
    file by another id, its features are copied. Videos are stored in the order of the items or, not `in_order`, each as
    soon as it is complete.

    The items, of frames taken `rate` times a second (or for each vector, as many as the backbone sees), are iterated,
    decoded and resized by `workers` threads, each at a video of its own, while the caller's thread encodes. Batches, of
    `batch_size` frames, run across videos: many short ones cost no more than a long one.

    A video that fails, or has no frames, is an outcome like any other, and what the store holds of it is kept. An error
    of `items` itself ends the run.
    """
    if workers < 1:
        raise BadSetting(f"workers is {workers}, expected at least 1; try 2")
    store.expect(replace(backbone.fingerprint, frame_rate=rate))
    turns = Semaphore(MOST_WAITING)
    batch_size = max(1, batch_size // backbone.window)  # of vectors
    results = _Results(backbone, store, batch_size, quarantine, turns, in_order)
    stored = {video_id: store.video_origin(video_id) for video_id in store.video_ids()}
    tasks = _tasks(items, backbone, stored, quarantine)
    try:
        with closing(_in_background(tasks, workers=workers, limit=2 * batch_size, turns=turns)) as arriving:
            for message in arriving:
                yield from results.take(message)
        yield from results.finish()
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
    """Adds the features of texts, given as (id, text), to the store; what it holds is skipped, what fails reported.

    A text that has changed since it was stored is encoded again.
    """
    store.expect(backbone.fingerprint)
    journal = Journal(progress)
    stored = {text_id: store.text_origin(text_id) for text_id in store.text_ids()}
    new: dict[str, str] = {}
    for text_id, text in queries:
        if new.get(text_id, text) != text:
            raise BadAnnotation(f"the id {text_id!r} stands for {new[text_id]!r} and {text!r}; give each text its own")
        if text_id in new or (text_id in stored and same_origin(stored[text_id], origins.of_text(text))):
            journal.note(Outcome(id=text_id, of="text", kind="skipped"))
        else:
            new[text_id] = text
    # Texts of about one length share a batch, which then has little padding to encode.
    ids = sorted(new, key=lambda text_id: len(new[text_id]))
    try:
        for start in range(0, len(ids), batch_size):
            batch = {text_id: new[text_id] for text_id in ids[start : start + batch_size]}
            _encode_texts(batch, backbone, store, journal)
    finally:
        store.close()
    return journal.report


def _encode_texts(texts: dict[str, str], backbone: Backbone, store: FeatureStore, journal: "Journal") -> None:
    """One batch; if it fails, one text at a time, to find the one to blame."""
    try:
        encoded = dict(zip(texts, backbone.encode_texts(list(texts.values())), strict=True))
        store.add_texts(encoded, {text_id: origins.of_text(text) for text_id, text in texts.items()})
    except BadStore:
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
    """Keeps the report, and passes each outcome on."""

    def __init__(self, progress: Progress | None) -> None:
        self.report = ExtractionReport()
        self._progress = progress

    def note(self, outcome: Outcome) -> None:
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
    """A video on its way: the instants of the frames that arrived, the rows of those that are encoded."""

    number: int
    item: VideoItem
    origin: int
    origin_if_damaged: int
    times: list[float] = field(default_factory=list)
    rows: list[Vector] = field(default_factory=list)
    duration: float | None = None


@dataclass(frozen=True, eq=False)
class _Frame:
    """What becomes one vector: a frame, or for some backbones a stack of them."""

    video: _Video
    time: float
    pixels: UInt8[np.ndarray, "*window 3 H W"]


@dataclass(frozen=True)
class _Ended:
    video: _Video
    duration: float


@dataclass(frozen=True)
class _Failed:
    video: _Video
    error: Exception


@dataclass(frozen=True)
class _Known:
    """A video that the store holds by another id."""

    video: _Video
    other: str


@dataclass(frozen=True)
class _Untouched:
    """A video that need not, or must not, be tried."""

    number: int
    outcome: Outcome


_Message = _Frame | _Ended | _Failed | _Known | _Untouched


def _tasks(
    items: Iterable[VideoItem], backbone: Backbone, stored: Mapping[str, int], quarantine: Quarantine | None
) -> Iterator[Iterator[_Message]]:
    """For each item, what there is to do and to tell."""
    seen: set[str] = set()
    id_of = {origin: video_id for video_id, origin in stored.items() if origin != UNKNOWN}
    for number, item in enumerate(items):
        known = UNKNOWN if item.id in seen else stored.get(item.id)
        seen.add(item.id)
        yield _task(number, item, backbone, known, id_of, quarantine)


def _task(
    number: int,
    item: VideoItem,
    backbone: Backbone,
    known: int | None,
    id_of: Mapping[int, str],
    quarantine: Quarantine | None,
) -> Iterator[_Message]:
    """What a worker does about a video: nothing, if it is `known` by what it was made from, or not to be tried; `id_of`
    has the ids of what was made from the same."""
    item = replace(item, state=item.state or _state(item.path))  # before the content is looked at
    origin, origin_if_damaged = _origins(item)
    reason = quarantine.reason(item.id, item.path) if quarantine is not None else None
    if known is not None and (known == origin_if_damaged or same_origin(known, origin)):
        damage = Damage(untold=not same_origin(known, origin))
        yield _Untouched(number, Outcome(id=item.id, kind="skipped", damage=damage))
    elif reason is not None:
        yield _Untouched(number, Outcome(id=item.id, kind="quarantined", reason=reason))
    else:
        video = _Video(number, item, origin, origin_if_damaged)
        if (change := _change_of(item)) is not None:
            yield _Failed(video, change)
        elif origin in id_of:
            yield _Known(video, id_of[origin])
        else:
            yield from _decoded(video, backbone)


def _origins(item: VideoItem) -> tuple[int, int]:
    """Of the file, and if it turns out to be damaged."""
    if item.path is None:
        return UNKNOWN, UNKNOWN
    try:
        origin = origins.of_file(item.path) if item.origin is None else item.origin
        return origin, origins.if_damaged(origin, item.path)
    except OSError:
        return UNKNOWN, UNKNOWN  # whoever decodes it will say what is wrong


def _state(path: Path | None) -> origins.FileState | None:
    try:
        return None if path is None else origins.state_of(path)
    except OSError:
        return None  # whoever decodes it will say what is wrong


def _change_of(item: VideoItem) -> MissingVideo | None:
    """The error of a file that is not what it was: whatever was made of it may be of another content than its id."""
    if item.state is None or _state(item.path) == item.state:
        return None
    return MissingVideo(f"{item.path} changed while it was read. Run the command again.")


def _decoded(video: _Video, backbone: Backbone) -> Iterator[_Message]:
    """Its frames in order, then what became of it."""
    item = video.item
    count = 0
    try:
        for time, pixels in prepared(item.frames, backbone):
            yield _Frame(video, float(time), pixels)
            count += 1
        if not count:
            raise UnreadableVideo("no frames, expected at least one; look whether the video plays")
        if (change := _change_of(item)) is not None:
            raise change
        yield _Ended(video, float(item.duration() if callable(item.duration) else item.duration))
    except Exception as error:
        yield _Failed(video, _change_of(item) or error)
    except (KeyboardInterrupt, SystemExit) as error:
        raise RuntimeError(f"the worker at {item.id!r} ended with {type(error).__name__}: {error}") from error
    finally:
        _close(item.frames)


class _Results:
    """Encodes the frames that arrive, a batch at a time, and stores each video when it, and if in order all before it,
    are whole."""

    def __init__(
        self,
        backbone: Backbone,
        store: FeatureStore,
        batch_size: int,
        quarantine: Quarantine | None,
        turns: Semaphore,
        in_order: bool,
    ) -> None:
        self._backbone, self._store, self._batch_size = backbone, store, batch_size
        self._quarantine, self._turns, self._in_order = quarantine, turns, in_order
        self._batch: list[_Frame] = []
        self._ended: dict[int, _Video | Outcome] = {}  # by number
        self._next = 0

    def take(self, message: _Message) -> Iterator[Outcome]:
        """Work on what has arrived, and yield the outcomes of the videos that are complete now."""
        match message:
            case _Frame(video=video, time=time):
                video.times.append(time)
                self._batch.append(message)
                if len(self._batch) == self._batch_size:
                    self._encode()
            case _Ended(video=video, duration=duration):
                video.duration = duration
                self._ended[video.number] = video
            case _Failed(video=video, error=error):
                self._batch = [frame for frame in self._batch if frame.video is not video]
                self._ended[video.number] = self._failed(video, error)
            case _Known(video=video, other=other):
                self._ended[video.number] = self._copied(video, other)
            case _Untouched(number=number, outcome=outcome):
                self._ended[number] = outcome
        yield from self._settle()

    def finish(self) -> Iterator[Outcome]:
        if self._batch:
            self._encode()
            yield from self._settle()

    def _copied(self, video: _Video, other: str) -> _Video | Outcome:
        try:
            features = self._store.video(other)
        except (BadFeatures, BadStore) as error:
            return self._failed(video, error)
        video.times, video.rows, video.duration = features.times.tolist(), list(features.frames), features.duration
        return video

    def _encode(self) -> None:
        rows = self._backbone.encode_pixels(np.stack([frame.pixels for frame in self._batch]))
        for frame, row in zip(self._batch, rows, strict=True):
            frame.video.rows.append(row)
        self._batch = []

    def _settle(self) -> Iterator[Outcome]:
        """Store what is due."""
        yield from self._due()
        if len(self._ended) == MOST_WAITING:
            self._encode()  # rather than wait for a full batch: no video is begun before some are stored
            yield from self._due()

    def _due(self) -> Iterator[Outcome]:
        whole = [number for number in sorted(self._ended) if _is_whole(self._ended[number])]
        for number in whole:
            if self._in_order and number != self._next:
                return
            self._next += 1
            due = self._ended.pop(number)
            self._turns.release()
            yield self._stored(due) if isinstance(due, _Video) else due

    def _stored(self, video: _Video) -> Outcome:
        assert video.duration is not None
        features = VideoFeatures(
            frames=np.stack(video.rows),
            times=np.array(video.times),
            duration=video.duration,
        )
        damage = video.item.damage()
        try:
            self._store.add_video(video.item.id, features, video.origin_if_damaged if damage else video.origin)
        except BadFeatures as error:
            return self._failed(video, error)
        if self._quarantine is not None:
            self._quarantine.release(video.item.id)
        return Outcome(id=video.item.id, kind="done", num_frames=len(video.times), damage=damage)

    def _failed(self, video: _Video, error: Exception) -> Outcome:
        reason, path = _reason(error), video.item.path
        lasting = isinstance(error, UnreadableVideo) and not isinstance(error, MissingVideo)
        if self._quarantine is not None and path is not None and lasting:
            self._quarantine.add(video.item.id, path, reason)
        return Outcome(id=video.item.id, kind="failed", reason=reason, lasting=lasting)


def _is_whole(due: _Video | Outcome) -> bool:
    return isinstance(due, Outcome) or len(due.rows) == len(due.times)


@dataclass(frozen=True)
class _End:
    failure: BaseException | None


def _in_background(
    tasks: Iterator[Iterator[T]], *, workers: int, limit: int, turns: Semaphore
) -> Generator[T, None, None]:
    """The values of the tasks, made by so many threads at most `limit` ahead: of one task in order, of several mixed.

    Each task takes a turn. An error of the tasks is raised here, after the values of those that were begun; when this
    generator is closed, the threads end.
    """
    values: Queue[T | _End] = Queue(limit)
    stop, taking = Event(), Lock()

    def next_task() -> Iterator[T] | None:
        while not stop.is_set():
            if turns.acquire(timeout=0.1):
                with taking:
                    return next(tasks, None)
        return None

    def hand_over(value: T | _End) -> bool:
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
                    if not hand_over(value):
                        break
                _close(task)
        except BaseException as error:
            failure = error
        with taking:
            _close(tasks)
        hand_over(_End(failure))

    # Daemons, so that a decoder that hangs cannot keep the program from ending.
    threads = [Thread(target=work, name="midreel-decode", daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    try:
        ends: list[_End] = []
        while len(ends) < workers:
            value = values.get()
            if isinstance(value, _End):
                ends.append(value)
            else:
                yield value
        for end in ends:
            if end.failure is not None:
                raise end.failure
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=5)


def _close(iterator: object) -> None:
    """Lets it clean up now, whenever Python would have thought of it."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, MidreelError) else f"{type(error).__name__}: {error}"
