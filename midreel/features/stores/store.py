"""The file that keeps features: videos and texts by id, and the fingerprint of what made them."""

import hashlib
import os
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from midreel.errors import BadFeatures, FingerprintMismatch, MissingFeatures
from midreel.features.backbones.base import Fingerprint
from midreel.features.stores.hdf5_log import UNKNOWN, Array, Column, Entry, Ledger
from midreel.types import TextFeatures, VideoFeatures

DTYPES = ("float16", "float32")


class FeatureStore:
    """Features of one fingerprint in one HDF5 file.

    What was added stays, whatever happens to the writer; what was being added does not count. The file is opened when
    it is first used, in each process anew, so a store can be handed to the workers of a DataLoader; `close` lets go of
    it until the next use. One store writes at a time; others may read meanwhile, and see what was there when they
    opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._ledger: Ledger | None = None
        self._fingerprint: Fingerprint | None = None

    @classmethod
    def create(cls, path: str | Path, fingerprint: Fingerprint) -> "FeatureStore":
        """A new, empty store. The fingerprint says at which rate frames are taken and in which dtype they are kept."""
        if fingerprint.frame_rate is None or fingerprint.dtype not in DTYPES:
            raise BadFeatures(
                f"a store of frame_rate {fingerprint.frame_rate} and dtype {fingerprint.dtype!r}, expected a rate and "
                f"one of {', '.join(DTYPES)}; choose them: dataclasses.replace(backbone.fingerprint, frame_rate=…)"
            )
        Ledger.create(Path(path), fingerprint.to_json(), _tables(fingerprint))
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> "FeatureStore":
        """A store that exists."""
        store = cls(path)
        store._reader()
        return store

    @classmethod
    def resume(cls, path: str | Path, fingerprint: Fingerprint) -> "FeatureStore":
        """The store at `path` if there is one, which must have this fingerprint, or a new one."""
        if not Path(path).exists():
            return cls.create(path, fingerprint)
        store = cls.open(path)
        store.expect(fingerprint)
        return store

    @property
    def fingerprint(self) -> Fingerprint:
        if self._fingerprint is None:
            self._fingerprint = Fingerprint.from_json(self._reader().header)
        return self._fingerprint

    def expect(self, fingerprint: Fingerprint) -> None:
        """Refuses features that another backbone or preparation made; what `fingerprint` leaves open is free."""
        differences = self.fingerprint.difference(fingerprint)
        if differences:
            made = self.fingerprint
            raise FingerprintMismatch(
                f"{self.path} does not fit (stored != expected): {'; '.join(differences)}; move it away to extract "
                f"again, or use what it was made with: {made.source or made.backbone}, --rate {made.frame_rate:g}"
            )

    def video_ids(self) -> list[str]:
        """In the order in which they were added."""
        return self._reader().ids("videos")

    def text_ids(self) -> list[str]:
        """In the order in which they were added; none, where the backbone reads no texts."""
        return self._reader().ids("texts") if self.fingerprint.word_width is not None else []

    def has_video(self, video_id: str) -> bool:
        return self._reader().has("videos", video_id)

    def has_text(self, text_id: str) -> bool:
        return self.fingerprint.word_width is not None and self._reader().has("texts", text_id)

    def video(self, video_id: str) -> VideoFeatures:
        entry = self._read("videos", "video", video_id)
        self._check_video(video_id, entry)
        return VideoFeatures(
            frames=_single(entry["frames"]), times=_single(entry["times"]), duration=float(entry["duration"])
        )

    def text(self, text_id: str) -> TextFeatures:
        self._expect_texts()
        entry = self._read("texts", "text", text_id)
        self._check_text(text_id, entry)
        return TextFeatures(words=_single(entry["words"]), sentence=_single(entry["sentence"]))

    def video_origin(self, video_id: str) -> int:
        """Of which file, as `origins` has it; UNKNOWN, if nobody said."""
        return self._reader().origin("videos", video_id)

    def text_origin(self, text_id: str) -> int:
        return self._reader().origin("texts", text_id)

    def digest(self, video_ids: Iterable[str], text_ids: Iterable[str]) -> str:
        """Tells whether the features of these are the same as before, without reading them."""
        parts = [self._reader().digest("videos", video_ids)]
        if self.fingerprint.word_width is not None:
            parts.append(self._reader().digest("texts", text_ids))
        return hashlib.sha256("".join(parts).encode()).hexdigest()

    def add_video(self, video_id: str, features: VideoFeatures, origin: int = UNKNOWN) -> None:
        """Adds a video; takes the place of one of that id if it comes from another `origin`."""
        entry = {
            "frames": self._stored(features.frames),
            "times": np.asarray(features.times, np.float64),
            "duration": np.asarray(features.duration, "<f8"),
        }
        self._check_video(video_id, entry)
        self._append("videos", {video_id: entry}, {video_id: origin})

    def add_text(self, text_id: str, features: TextFeatures, origin: int = UNKNOWN) -> None:
        self.add_texts({text_id: features}, {text_id: origin})

    def add_texts(self, features: Mapping[str, TextFeatures], origins: Mapping[str, int] | None = None) -> None:
        """Adds several at once, which is faster."""
        self._expect_texts()
        entries = {
            text_id: {"words": self._stored(text.words), "sentence": self._stored(text.sentence)}
            for text_id, text in features.items()
        }
        for text_id, entry in entries.items():
            self._check_text(text_id, entry)
        self._append("texts", entries, origins)

    def keep_videos(self, video_ids: Container[str]) -> None:
        """Forgets all other videos, and what is damaged, and gives back their room."""
        self._reader()  # raises before a file that lacks a table is made anew without it
        self.close()
        Ledger.compact(self.path, {"videos": video_ids})

    def close(self) -> None:
        """Lets go of the file; the next use opens it again."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

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

    def _reader(self) -> Ledger:
        if self._ledger is None or self._ledger.process != os.getpid():
            self._ledger = self._open_file(writable=False)
        return self._ledger

    def _writer(self) -> Ledger:
        if not self._reader().writable:
            self.close()
            self._ledger = self._open_file(writable=True)
        return self._reader()

    def _open_file(self, *, writable: bool) -> Ledger:
        ledger = Ledger(self.path, writable=writable)
        try:
            ledger.expect(_tables(Fingerprint.from_json(ledger.header)))
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _read(self, table: str, kind: str, key: str) -> Entry:
        ledger = self._reader()
        entry = ledger.read(table, key)
        if entry is None:
            raise MissingFeatures(
                f"{self.path} has no {kind} {key!r} among its {len(ledger.ids(table))}; extract it: midreel extract"
            )
        return entry

    def _append(self, table: str, entries: Mapping[str, Entry], origins: Mapping[str, int] | None) -> None:
        try:
            self._writer().append(table, entries, origins)
        except BaseException:
            # Interrupted anywhere, memory and file may tell different stories: the file's is the one to go on with.
            self.close()
            raise

    def _stored(self, vectors: Any) -> Array:
        # Too large for float16 becomes infinite, which the check that follows refuses.
        with np.errstate(over="ignore"):
            return np.asarray(vectors, np.float32).astype(np.dtype(self.fingerprint.dtype).newbyteorder("<"))

    def _expect_texts(self) -> None:
        if self.fingerprint.word_width is None:
            raise MissingFeatures(
                f"{self.path} is of {self.fingerprint.backbone}, which reads no texts, expected one that does; join it "
                f"with a store of such a backbone"
            )

    def _check_video(self, video_id: str, entry: Entry) -> None:
        self._check(f"frames of video {video_id!r}", entry["frames"], ("T", self.fingerprint.width))
        self._check(f"times of video {video_id!r}", entry["times"], (len(entry["frames"]),))
        if (np.diff(entry["times"]) < 0).any():
            raise BadFeatures(f"the times of video {video_id!r} go backwards, expected them in order; sort its frames")
        if not 0 < entry["duration"] < np.inf:
            raise BadFeatures(
                f"the duration of video {video_id!r} is {entry['duration']} s, expected more than 0; give its length"
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
            what = "are empty" if not values.size else f"have shape {values.shape}"
            raise BadFeatures(
                f"the {name} {what}, expected ({', '.join(map(str, shape))}) as the fingerprint of {self.path} says; "
                f"use the backbone of the store"
            )
        finite = np.isfinite(values)
        if not finite.all():
            raise BadFeatures(
                f"the {name} hold {int((~finite).sum())} values that are NaN or infinite in {values.dtype}, "
                f"expected finite ones; look at the input and the weights, or keep a wider dtype"
            )


def _tables(fingerprint: Fingerprint) -> dict[str, dict[str, Column]]:
    """What a store of this fingerprint holds."""
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


def _single(values: Array) -> Array:
    return values.astype(np.float32)
