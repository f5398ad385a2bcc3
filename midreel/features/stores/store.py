"""A feature store: an HDF5 file with features of videos and texts, and the fingerprint of their backbone."""

import hashlib
import os
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from midreel.errors import BadFeatures, FingerprintMismatch, MissingFeatures
from midreel.features.backbones.base import Fingerprint
from midreel.features.stores.hdf5_log import UNKNOWN, Array, Column, Entry, HDF5Log
from midreel.types import TextFeatures, VideoFeatures

DTYPES = ("float16", "float32")


@runtime_checkable
class FeatureLog(Protocol):
    """Entries of arrays in tables, as `HDF5Log` stores them in a file."""

    header: str
    writable: bool
    process: int

    def ids(self, table: str) -> list[str]:
        """Return the ids of all entries, in the order in which they were added."""
        ...

    def has(self, table: str, key: str) -> bool:
        """Return whether there is an entry."""
        ...

    def read(self, table: str, key: str) -> dict[str, Array] | None:
        """Return an entry; None if there is none. Raise BadStore if it is damaged."""
        ...

    def origin(self, table: str, key: str) -> int:
        """Return the origin of an entry."""
        ...

    def digest(self, table: str, keys: Iterable[str]) -> str:
        """Return a hash of some entries."""
        ...

    def append(self, table: str, entries: Mapping[str, Entry], origins: Mapping[str, int] | None = None) -> None:
        """Add entries.

        Args:
            table: The name of the table.
            entries: The entries by id.
            origins: Their origins.
        """
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class FeatureStore:
    """Features of videos and texts with one fingerprint, in one HDF5 file. Arrays are numpy's, in float32.

    Added features survive a crash of the writer. The file is opened at the first use, separately in each process, so a
    store can be passed to the workers of a DataLoader. After `close`, the next use opens it again.

    One store at a time may write a file. Others may read it meanwhile; they see the features that were stored when
    they opened it.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from midreel.features import FeatureStore, Fingerprint
        >>> from midreel.types import VideoFeatures
        >>> fingerprint = Fingerprint(backbone="colours", weights="", width=3, frame_rate=2.0, dtype="float32")
        >>> frames = np.zeros((4, 3), np.float32)
        >>> times = np.arange(4, dtype=np.float32) / 2
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with FeatureStore.create(f"{folder}/features.h5", fingerprint) as store:
        ...         store.add_video("beach", VideoFeatures(frames=frames, times=times, duration=2.0))
        ...         store.video_ids(), store.video("beach").frames.shape
        (['beach'], (4, 3))
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._log: FeatureLog | None = None
        self._fingerprint: Fingerprint | None = None

    @classmethod
    def create(cls, path: str | Path, fingerprint: Fingerprint) -> "FeatureStore":
        """Create an empty store.

        Args:
            path: The new file.
            fingerprint: The fingerprint of the backbone, with the frame rate and the dtype on disk.

        Raises:
            BadFeatures: If the fingerprint has no frame rate, or its dtype is not float16 or float32.
            BadStore: If the file exists.
        """
        if fingerprint.frame_rate is None or fingerprint.dtype not in DTYPES:
            raise BadFeatures(
                f"the fingerprint has frame_rate {fingerprint.frame_rate} and dtype {fingerprint.dtype!r}, expected a "
                f"rate and one of {', '.join(DTYPES)}. Set both with dataclasses.replace."
            )
        HDF5Log.create(Path(path), fingerprint.to_json(), _tables(fingerprint))
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> "FeatureStore":
        """Open an existing store.

        Raises:
            BadStore: If the file is missing, damaged or not a feature store.
        """
        store = cls(path)
        store._reader()
        return store

    @classmethod
    def resume(cls, path: str | Path, fingerprint: Fingerprint) -> "FeatureStore":
        """Open the store at `path`, or create it if it does not exist.

        Raises:
            BadStore: If the file is damaged or not a feature store.
            FingerprintMismatch: If the store has another fingerprint.
        """
        if not Path(path).exists():
            return cls.create(path, fingerprint)
        store = cls.open(path)
        store.expect(fingerprint)
        return store

    @property
    def fingerprint(self) -> Fingerprint:
        """The backbone and the settings that made the features."""
        if self._fingerprint is None:
            self._fingerprint = Fingerprint.from_json(self._reader().header)
        return self._fingerprint

    def expect(self, fingerprint: Fingerprint) -> None:
        """Raise FingerprintMismatch unless the features have this fingerprint, as far as both are known."""
        differences = self.fingerprint.difference(fingerprint)
        if differences:
            stored = self.fingerprint
            raise FingerprintMismatch(
                f"{self.path} has another fingerprint (stored != expected): {'; '.join(differences)}. Use "
                f"{stored.source or stored.backbone} and --rate {stored.frame_rate:g}, or move the file away."
            )

    def video_ids(self) -> list[str]:
        """Return the ids of the videos, in the order in which they were added."""
        return self._reader().ids("videos")

    def text_ids(self) -> list[str]:
        """Return the ids of the texts, in the order in which they were added."""
        return self._reader().ids("texts") if self.fingerprint.word_width is not None else []

    def has_video(self, video_id: str) -> bool:
        """Return whether the store has a video."""
        return self._reader().has("videos", video_id)

    def has_text(self, text_id: str) -> bool:
        """Return whether the store has a text."""
        return self.fingerprint.word_width is not None and self._reader().has("texts", text_id)

    def video(self, video_id: str) -> VideoFeatures:
        """Return the features of a video.

        Raises:
            BadFeatures: If the stored features are not valid.
            BadStore: If the stored features are damaged.
            MissingFeatures: If the store does not have the video.
        """
        entry = self._read("videos", "video", video_id)
        self._check_video(video_id, entry)
        return VideoFeatures(
            frames=_float32(entry["frames"]), times=_float32(entry["times"]), duration=float(entry["duration"])
        )

    def text(self, text_id: str) -> TextFeatures:
        """Return the features of a text.

        Raises:
            BadFeatures: If the stored features are not valid.
            BadStore: If the stored features are damaged.
            MissingFeatures: If the store does not have the text.
        """
        self._expect_texts()
        entry = self._read("texts", "text", text_id)
        self._check_text(text_id, entry)
        return TextFeatures(words=_float32(entry["words"]), sentence=_float32(entry["sentence"]))

    def video_origin(self, video_id: str) -> int:
        """Return the origin of a video: a hash of its file, or UNKNOWN."""
        return self._reader().origin("videos", video_id)

    def text_origin(self, text_id: str) -> int:
        """Return the origin of a text: its hash, or UNKNOWN."""
        return self._reader().origin("texts", text_id)

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        """Return a hash of the features with these ids, without reading them. It changes if a feature changes."""
        parts = [self._reader().digest("videos", video_ids)]
        if self.fingerprint.word_width is not None:
            parts.append(self._reader().digest("texts", text_ids))
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def add_video(self, video_id: str, features: VideoFeatures, origin: int = UNKNOWN) -> None:
        """Add a video, or replace it if `origin` is another one.

        Args:
            video_id: The id of the video.
            features: Its frames, times and duration.
            origin: A hash of the file (see `origins.of_file`).

        Raises:
            BadFeatures: If the features are empty, not finite, or do not fit the fingerprint.
            BadStore: If the video is already stored with this origin, or the file cannot be written.
        """
        entry = {
            "frames": self._stored(features.frames),
            "times": np.asarray(features.times, np.float64),
            "duration": np.asarray(features.duration, "<f8"),
        }
        self._check_video(video_id, entry)
        self._append("videos", {video_id: entry}, {video_id: origin})

    def add_text(self, text_id: str, features: TextFeatures, origin: int = UNKNOWN) -> None:
        """Add a text, or replace it if `origin` is another one. See `add_texts` for the errors.

        Args:
            text_id: The id of the text.
            features: Its words and its sentence.
            origin: A hash of the text (see `origins.of_text`).
        """
        self.add_texts({text_id: features}, {text_id: origin})

    def add_texts(self, features: Mapping[str, TextFeatures], origins: Mapping[str, int] | None = None) -> None:
        """Add several texts at once, which is faster than one at a time.

        Args:
            features: The features by id.
            origins: The hashes of the texts by id (see `origins.of_text`).

        Raises:
            BadFeatures: If features are empty, not finite, or do not fit the fingerprint.
            BadStore: If a text is already stored with its origin, or the file cannot be written.
            MissingFeatures: If the backbone does not encode texts.
        """
        self._expect_texts()
        entries = {
            text_id: {"words": self._stored(text.words), "sentence": self._stored(text.sentence)}
            for text_id, text in features.items()
        }
        for text_id, entry in entries.items():
            self._check_text(text_id, entry)
        self._append("texts", entries, origins)

    def remove_videos(self, video_ids: Collection[str]) -> None:
        """Remove some videos and all damaged features, and free their space."""
        self.keep_videos(set(self.video_ids()) - set(video_ids))

    def keep_videos(self, video_ids: Container[str]) -> None:
        """Remove all other videos and all damaged features, and free their space."""
        self._reader()  # raises BadStore if a table is missing: the rewritten file would lack it forever
        self.close()
        HDF5Log.compact(self.path, {"videos": video_ids})

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def __enter__(self) -> "FeatureStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FeatureStore({str(self.path)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureStore, (self.path,)

    def _reader(self) -> FeatureLog:
        if self._log is None or self._log.process != os.getpid():
            self._log = self._open_file(writable=False)
        return self._log

    def _writer(self) -> FeatureLog:
        if not self._reader().writable:
            self.close()
            self._log = self._open_file(writable=True)
        return self._reader()

    def _open_file(self, *, writable: bool) -> FeatureLog:
        log = HDF5Log(self.path, writable=writable)
        try:
            log.expect(_tables(Fingerprint.from_json(log.header)))
        except BaseException:
            log.close()
            raise
        return log

    def _read(self, table: str, kind: str, key: str) -> Entry:
        log = self._reader()
        entry = log.read(table, key)
        if entry is None:
            raise MissingFeatures(
                f"{self.path} does not contain {kind} {key!r} (it has {len(log.ids(table)):,} {table}). "
                f"Run midreel extract."
            )
        return entry

    def _append(self, table: str, entries: Mapping[str, Entry], origins: Mapping[str, int] | None) -> None:
        try:
            self._writer().append(table, entries, origins)
        except BaseException:
            # After an interruption, the index in memory may differ from the file. Read it again at the next use.
            self.close()
            raise

    def _stored(self, vectors: Any) -> Array:
        # Values that are too large for float16 become infinite, which the following check rejects.
        dtype = np.dtype(self.fingerprint.dtype).newbyteorder("<")
        try:
            with np.errstate(over="ignore"):
                return np.asarray(vectors, np.float32).astype(dtype)
        # torch raises TypeError for a tensor on a GPU, and RuntimeError for one with a gradient.
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadFeatures(
                f"a {type(vectors).__name__} cannot be stored ({error}). Pass a numpy array; for a torch "
                f"tensor: .detach().cpu().numpy()"
            ) from error

    def _expect_texts(self) -> None:
        if self.fingerprint.word_width is None:
            raise MissingFeatures(
                f"{self.path} has features of {self.fingerprint.backbone}, which does not encode texts. Join it with a "
                f"store of a CLIP or SigLIP: midreel join."
            )

    def _check_video(self, video_id: str, entry: Entry) -> None:
        self._check(f"frames of video {video_id!r}", entry["frames"], ("T", self.fingerprint.width))
        self._check(f"times of video {video_id!r}", entry["times"], (len(entry["frames"]),))
        if (np.diff(entry["times"]) < 0).any():
            raise BadFeatures(f"the times of video {video_id!r} are not sorted. Sort its frames by time.")
        if not 0 < entry["duration"] < np.inf:
            raise BadFeatures(
                f"the duration of video {video_id!r} is {entry['duration']} s, expected a finite number above 0."
            )

    def _check_text(self, text_id: str, entry: Entry) -> None:
        self._check(f"words of text {text_id!r}", entry["words"], ("L", self.fingerprint.word_width or "C"))
        self._check(f"sentence of text {text_id!r}", entry["sentence"], (_sentence_width(self.fingerprint),))

    def _check(self, name: str, values: Array, shape: tuple[str | int, ...]) -> None:
        fits = len(values.shape) == len(shape) and all(
            length == expected or isinstance(expected, str)
            for length, expected in zip(values.shape, shape, strict=True)
        )
        if not fits or not values.size:
            raise BadFeatures(
                f"the shape of the {name} is {values.shape}, expected ({', '.join(map(str, shape))}). Use the backbone "
                f"of {self.path}."
            )
        finite = np.isfinite(values)
        if not finite.all():
            raise BadFeatures(
                f"{int((~finite).sum())} values of the {name} are NaN or infinite in {values.dtype}, expected finite "
                f"ones. Check the input and the weights, or store a wider dtype."
            )


def _tables(fingerprint: Fingerprint) -> dict[str, dict[str, Column]]:
    """Return the tables of a store with this fingerprint, and their columns."""
    vectors = np.dtype(fingerprint.dtype).newbyteorder("<").str
    tables = {
        "videos": {
            "frames": Column(dtype=vectors, width=fingerprint.width, ragged=True),
            "times": Column(dtype="<f8", ragged=True),
            "duration": Column(dtype="<f8"),
        }
    }
    if fingerprint.word_width is not None:
        tables["texts"] = {
            "words": Column(dtype=vectors, width=fingerprint.word_width, ragged=True),
            "sentence": Column(dtype=vectors, width=_sentence_width(fingerprint)),
        }
    return tables


def _sentence_width(fingerprint: Fingerprint) -> int:
    return fingerprint.sentence_width or fingerprint.width


def _float32(values: Array) -> Array:
    return values.astype(np.float32)
