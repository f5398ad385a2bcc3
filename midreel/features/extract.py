"""From videos and texts to a store of their features. Interrupted anywhere, it goes on where it stopped."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from queue import Full, Queue
from threading import Event, Thread
from typing import Literal, TypeVar

import torch
from jaxtyping import UInt8
from torch import Tensor

from midreel.errors import BadAnnotation, BadFeatures, BadStore, MidreelError
from midreel.features import origins
from midreel.features.backbone import Backbone, Image
from midreel.features.ledger import UNKNOWN
from midreel.features.store import FeatureStore
from midreel.types import VideoFeatures

# A video's id, its frames with their instants in seconds, and its duration or, where that is known only after
# decoding, a function that says it then.
VideoItem = tuple[str, Iterable[tuple[float, Image]], float | Callable[[], float]]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one video or text."""

    id: str
    kind: Literal["done", "skipped", "failed"]
    num_frames: int = 0
    reason: str = ""


Progress = Callable[[Outcome], None]


@dataclass(frozen=True, kw_only=True)
class ExtractionReport:
    """What became of all: stored now, stored before, and not stored, with the reason."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def extract_videos(
    items: Iterable[VideoItem],
    backbone: Backbone,
    store: FeatureStore,
    *,
    rate: float,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> ExtractionReport:
    """Adds the features of the videos to the store, each as soon as it is whole; what the store holds is skipped.

    The items, of frames taken `rate` times a second, are iterated, decoded and resized in a thread while this one
    encodes. Batches run across videos, so many short ones cost no more than a long one. A video that fails or has no
    frames is reported and the rest goes on. Opening a file belongs into the iterator of its frames: an error of `items`
    itself ends the run.
    """
    store.expect(replace(backbone.fingerprint, frame_rate=rate))
    results = _Results(backbone, store, batch_size, progress)
    try:
        messages = _decoded(items, backbone, set(store.video_ids()))
        with closing(_in_background(messages, limit=2 * batch_size)) as arriving:
            for message in arriving:
                results.take(message)
        results.finish()
    finally:
        store.close()
    return results.report


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
    journal = _Journal(progress)
    stored = {text_id: store.text_origin(text_id) for text_id in store.text_ids()}
    new: dict[str, str] = {}
    for text_id, text in queries:
        if new.get(text_id, text) != text:
            raise BadAnnotation(f"the id {text_id!r} stands for {new[text_id]!r} and {text!r}; give each text its own")
        if stored.get(text_id) in (UNKNOWN, origins.of_text(text)) or text_id in new:
            journal.note(Outcome(id=text_id, kind="skipped"))
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


def _encode_texts(texts: dict[str, str], backbone: Backbone, store: FeatureStore, journal: "_Journal") -> None:
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
            journal.note(Outcome(id=next(iter(texts)), kind="failed", reason=_reason(error)))
    else:
        for text_id in texts:
            journal.note(Outcome(id=text_id, kind="done"))


class _Journal:
    """Keeps the report, and passes each outcome on."""

    def __init__(self, progress: Progress | None) -> None:
        self.report = ExtractionReport()
        self._progress = progress

    def note(self, outcome: Outcome) -> None:
        if outcome.kind == "failed":
            self.report.failed[outcome.id] = outcome.reason
        else:
            (self.report.done if outcome.kind == "done" else self.report.skipped).append(outcome.id)
        if self._progress is not None:
            self._progress(outcome)


@dataclass(eq=False)
class _Video:
    """A video on its way: the instants of the frames that arrived, the rows of those that are encoded."""

    id: str
    times: list[float] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    duration: float | None = None


@dataclass(frozen=True, eq=False)
class _Frame:
    video: _Video
    time: float
    pixels: UInt8[Tensor, "3 H W"]


@dataclass(frozen=True)
class _Ended:
    video: _Video
    duration: float


@dataclass(frozen=True)
class _Failed:
    video: _Video
    reason: str


@dataclass(frozen=True)
class _Skipped:
    id: str


_Message = _Frame | _Ended | _Failed | _Skipped


def _decoded(items: Iterable[VideoItem], backbone: Backbone, stored: set[str]) -> Iterator[_Message]:
    """What the thread does: frames in order, then what became of their video."""
    seen = set(stored)
    for video_id, frames, duration in items:
        if video_id in seen:
            yield _Skipped(video_id)
            continue
        seen.add(video_id)
        video, count = _Video(video_id), 0
        try:
            for time, image in frames:
                yield _Frame(video, float(time), backbone.prepare(image))
                count += 1
            if count:
                yield _Ended(video, float(duration() if callable(duration) else duration))
            else:
                yield _Failed(video, "no frames, expected at least one; look whether the video plays")
        except Exception as error:
            yield _Failed(video, _reason(error))
        finally:
            if isinstance(frames, Generator):
                frames.close()  # lets go of its file


class _Results:
    """Encodes the frames that arrive, a batch at a time, and stores each video once it is whole."""

    def __init__(self, backbone: Backbone, store: FeatureStore, batch_size: int, progress: Progress | None) -> None:
        self._backbone, self._store, self._batch_size = backbone, store, batch_size
        self._journal = _Journal(progress)
        self._batch: list[_Frame] = []
        self._ended: list[_Video] = []

    @property
    def report(self) -> ExtractionReport:
        return self._journal.report

    def take(self, message: _Message) -> None:
        match message:
            case _Frame(video=video, time=time):
                video.times.append(time)
                self._batch.append(message)
                if len(self._batch) == self._batch_size:
                    self._encode()
            case _Ended(video=video, duration=duration):
                video.duration = duration
                self._ended.append(video)
                self._store_whole()
            case _Failed(video=video, reason=reason):
                self._batch = [frame for frame in self._batch if frame.video is not video]
                self._journal.note(Outcome(id=video.id, kind="failed", reason=reason))
            case _Skipped(id=video_id):
                self._journal.note(Outcome(id=video_id, kind="skipped"))

    def finish(self) -> None:
        if self._batch:
            self._encode()

    def _encode(self) -> None:
        rows = self._backbone.encode_pixels(torch.stack([frame.pixels for frame in self._batch]))
        for frame, row in zip(self._batch, rows, strict=True):
            frame.video.rows.append(row)
        self._batch = []
        self._store_whole()

    def _store_whole(self) -> None:
        while self._ended and len(self._ended[0].rows) == len(self._ended[0].times):
            self._store_one(self._ended.pop(0))

    def _store_one(self, video: _Video) -> None:
        assert video.duration is not None
        features = VideoFeatures(
            frames=torch.stack(video.rows),
            times=torch.tensor(video.times, dtype=torch.float64),
            duration=video.duration,
        )
        try:
            self._store.add_video(video.id, features)
        except BadFeatures as error:
            self._journal.note(Outcome(id=video.id, kind="failed", reason=_reason(error)))
        else:
            self._journal.note(Outcome(id=video.id, kind="done", num_frames=len(video.times)))


@dataclass(frozen=True)
class _End:
    failure: BaseException | None


def _in_background(source: Iterator[T], *, limit: int) -> Generator[T, None, None]:
    """The values of `source`, made by a thread at most `limit` ahead.

    An error of the source is raised here, after the values before it; when this generator is closed, the thread ends.
    """
    values: Queue[T | _End] = Queue(limit)
    stop = Event()

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
            for value in source:
                if not hand_over(value):
                    break
            if isinstance(source, Generator):
                source.close()
        except BaseException as error:
            failure = error
        hand_over(_End(failure))

    # A daemon, so that a decoder that hangs cannot keep the program from ending.
    thread = Thread(target=work, name="midreel-decode", daemon=True)
    thread.start()
    try:
        while True:
            value = values.get()
            if isinstance(value, _End):
                if value.failure is not None:
                    raise value.failure
                return
            yield value
    finally:
        stop.set()
        thread.join(timeout=5)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, MidreelError) else f"{type(error).__name__}: {error}"
