"""From files to features to tokens, one video after the other; and new tokens from features that were kept.

A video is committed in three steps: its features, its tokens, its row in the catalogue. Each can be repeated, and none
is needed to repeat another, so whatever is cut off in between is completed by the next run, without decoding what was
decoded. What the catalogue does not list is not found by a search.
"""

import json
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxtyping import Float, UInt8
from torch import Tensor

from midreel import video
from midreel.errors import (
    BadFeatures,
    BadSetting,
    BadStore,
    FingerprintMismatch,
    MissingFeatures,
    Unwritable,
)
from midreel.features import origins
from midreel.features.backbone import LOCAL, Backbone, Fingerprint, Image, load_backbone
from midreel.features.extract import Outcome, VideoItem, extract_videos
from midreel.features.store import FeatureStore
from midreel.index.embedded import EmbeddedIndex
from midreel.library import scanning, tokens
from midreel.library.catalogue import NAME, Catalogue, File, Video
from midreel.library.layout import Generation, Layout, Settings
from midreel.library.scanning import FoundFile, Scan
from midreel.methods import load_method
from midreel.methods.base import Method
from midreel.training.models import UNTRAINED, ZERO_SHOT, load_model, model_folder, trained_on
from midreel.types import TextFeatures

DEFAULT_BACKBONE, DEFAULT_RATE, DTYPE = "tiny-clip", 2.0, "float16"
WORKERS = 2  # by measurement, on two cores: docs/results/extraction-speed.md
# Frames that are encoded at a time. A short video waits for others to fill the batch, and is lost if all ends before;
# by measurement, 32 take no longer each than 64, and 16 a tenth longer.
_BATCH = 32
_WASTE = 0.25  # of what is kept may be of videos that have left, before it is thrown out


# ---------------------------------------------------------------- what a run tells


@dataclass(frozen=True, kw_only=True)
class Step:
    """A file that was dealt with: what became of it, how long its video lasts, and how many there are to do in all."""

    path: Path
    kind: str  # a field of IndexReport
    seconds: float
    total: int


Progress = Callable[[Step], None]


@dataclass(kw_only=True)
class IndexReport:
    """What became of the files: paths, some with the reason.

    `touched` are those whose time has changed and nothing else. A file that `failed` is tried again next time, one in
    `quarantined` when it changes; `set_aside` of them were there before. `away` is where nobody could look, so that
    what was found there was kept. So many videos are `idle`: they have left, and their features are kept.
    """

    new: list[Path] = field(default_factory=list)
    changed: list[Path] = field(default_factory=list)
    moved: list[Path] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)
    touched: list[Path] = field(default_factory=list)
    repaired: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    unchanged: int = 0
    quarantined: dict[Path, str] = field(default_factory=dict)
    set_aside: int = 0
    failed: dict[Path, str] = field(default_factory=dict)
    damaged: dict[Path, str] = field(default_factory=dict)
    away: dict[Path, str] = field(default_factory=dict)
    idle: int = 0  # if they take much of the room
    video_seconds: float = 0.0  # of what was decoded
    seconds: dict[str, float] = field(default_factory=dict)  # by what they were spent on

    @property
    def is_partial(self) -> bool:
        return bool(self.quarantined or self.failed or self.away)

    def to_dict(self) -> dict[str, Any]:
        listed = ("new", "changed", "moved", "copies", "touched", "repaired", "removed")
        reasons = ("quarantined", "failed", "damaged", "away")
        return {
            **{name: [str(path) for path in getattr(self, name)] for name in listed},
            **{name: {str(path): why for path, why in getattr(self, name).items()} for name in reasons},
            "unchanged": self.unchanged,
            "set_aside": self.set_aside,
            "idle": self.idle,
            "video_seconds": self.video_seconds,
            "seconds": self.seconds,
        }

    @property
    def text(self) -> str:
        counts = {
            name: len(getattr(self, name)) for name in ("new", "changed", "moved", "copies", "repaired", "removed")
        }
        counts = {name: count for name, count in counts.items() if count or name in ("new", "removed")}
        counts |= {"unchanged": self.unchanged + len(self.touched), "quarantined": len(self.quarantined)}
        if self.failed:
            counts["failed"] = len(self.failed)
        lines = [f"damaged {scanning.shown(path)}: {damage}" for path, damage in self.damaged.items()]
        lines += [f"quarantined {scanning.shown(path)}: {reason}" for path, reason in self.quarantined.items()]
        lines += [f"failed {scanning.shown(path)}: {reason}" for path, reason in self.failed.items()]
        lines += [f"kept what was found in {scanning.shown(path)}: {reason}" for path, reason in self.away.items()]
        if self.set_aside:
            lines.append(
                f"{self.set_aside:,} of the quarantined could not be read by an earlier run and have not changed "
                f"since; --retry tries them again"
            )
        if self.idle:
            lines.append(
                f"the features of {self.idle:,} videos that have left are kept, so that none is decoded again should "
                f"it come back; --forget makes room"
            )
        return "\n".join([*lines, ", ".join(f"{count:,} {name}" for name, count in counts.items()) + self._speed()])

    def _speed(self) -> str:
        total, backbone = self.seconds.get("total", 0.0), self.seconds.get("backbone", 0.0)
        if not self.video_seconds or not total:
            return ""
        return (
            f"; {self.video_seconds / 3600:,.2f} hours of video in {total:,.1f} s "
            f"({self.video_seconds / total:,.0f} h/h), {backbone / total:.0%} of it in the backbone"
        )


@dataclass(frozen=True, kw_only=True)
class ReindexReport:
    """A new generation: how many videos it holds, and those whose features were damaged."""

    generation: str
    model: str
    num_videos: int
    failed: dict[str, str]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @property
    def text(self) -> str:
        lines = [f"left out {name}: {reason}" for name, reason in self.failed.items()]
        if self.failed:
            lines.append("midreel index decodes them again")
        return "\n".join(
            [*lines, f"{self.num_videos:,} videos are now searched with {self.model}, in {self.seconds:.1f} s"]
        )


# ---------------------------------------------------------------- a library that is written


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a library is to be made with; None is what it was made with or, if it is new, what fits the rest."""

    model: str | None = None
    backbone: str | None = None
    rate: float | None = None


class Indexer:
    """A library open for writing: one at a time. What is slow to load is loaded when it is needed."""

    def __init__(self, folder: Path, wanted: Wanted, device: str, backbone: Backbone | None = None) -> None:
        self.layout, self._wanted, self._device, self._given = Layout(folder), wanted, device, backbone
        if not self.layout.exists():
            self._create()
        self.settings = self.layout.settings()
        mode = "write" if (folder / NAME).exists() else "create"
        with ExitStack() as opened:
            self.catalogue = opened.enter_context(closing(Catalogue(folder, mode=mode)))  # type: ignore[arg-type]
            self.store = opened.enter_context(FeatureStore.resume(self.layout.features, self.fingerprint))
            self._expect_wanted()
            self._opened = opened.pop_all()

    @classmethod
    @contextmanager
    def open(
        cls,
        folder: Path,
        wanted: Wanted | None = None,
        *,
        device: str = "cpu",
        backbone: Backbone | None = None,
    ) -> Iterator["Indexer"]:
        """The library in `folder`, a new one if there is none. A `backbone` that is loaded already saves loading it."""
        layout = Layout(scanning.absolute(folder))
        with layout.held():
            indexer = cls(layout.folder, wanted or Wanted(), device, backbone)
            try:
                yield indexer
            finally:
                indexer._close()

    def _close(self) -> None:
        with self._opened:
            if "index" in vars(self):
                self.index.close()

    # ------------------------------------------------------------ what it is made with

    @property
    def folder(self) -> Path:
        return self.layout.folder

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint.from_json(json.dumps(self.settings.fingerprint))

    @cached_property
    def generation(self) -> Generation:
        return self.layout.generation(self.settings.serving)

    @cached_property
    def index(self) -> EmbeddedIndex:
        return tokens.open_index(self.generation, read_only=False)

    @cached_property
    def method(self) -> Method:
        return tokens.on_device(load_method(self.generation.model), self._device)

    @cached_property
    def backbone(self) -> Backbone:
        found = self._given or load_backbone(self._wanted.backbone or self.settings.backbone, self._device)
        differences = self.fingerprint.difference(found.fingerprint)
        if differences:
            raise FingerprintMismatch(
                f"{self.folder} was made with {self.settings.backbone}, which differs from "
                f"{found.fingerprint.source or found.fingerprint.backbone} (there != here): {'; '.join(differences)}; "
                f"use the former, or index into a new library"
            )
        return found

    def _create(self) -> None:
        """The settings of a library, and what it begins with; or only the settings, if these were lost."""
        if (found := self._recovered()) is not None:
            self.layout.write(found)
            return
        model, trained = self._wanted.model or ZERO_SHOT, None
        if model not in UNTRAINED:
            trained = trained_on(model_folder(model, f"or one of the words {', '.join(UNTRAINED)}"))
        spec = self._wanted.backbone or (trained.source if trained is not None else "") or DEFAULT_BACKBONE
        rate = self._wanted.rate or (trained.frame_rate if trained is not None else None) or DEFAULT_RATE
        dtype = (trained.dtype if trained is not None else None) or DTYPE
        backbone = self._given or load_backbone(spec, self._device)
        if backbone.fingerprint.word_width is None:
            raise BadSetting(
                f"{spec} reads no texts, expected a backbone that understands queries; choose a CLIP or a SigLIP"
            )
        fingerprint = replace(backbone.fingerprint, frame_rate=float(rate), dtype=dtype)
        method = self._load(model, fingerprint)
        if not (self.folder / NAME).exists():
            Catalogue(self.folder, mode="create").close()
        FeatureStore.resume(self.layout.features, fingerprint).close()
        generation = self._begin(method, model)
        self._given = self._given or backbone
        self.layout.write(
            Settings(backbone=_anywhere(spec), rate=float(rate), fingerprint=vars(fingerprint), serving=generation.name)
        )
        self.layout.drop_generations(but=generation.name)

    def _recovered(self) -> Settings | None:
        """The settings that features and a generation were made with. Of several generations the fullest serves, for
        another was only begun; of equal ones the latest, for others were left behind."""
        generations = self.layout.generations()
        if not generations or not self.layout.features.exists():
            return None
        with FeatureStore.open(self.layout.features) as store:
            made = store.fingerprint
        serving = max(reversed(generations), key=tokens.num_videos)
        return Settings(
            backbone=_anywhere(self._wanted.backbone or made.source),
            rate=float(made.frame_rate or DEFAULT_RATE),
            fingerprint=vars(made),
            serving=serving.name,
        )

    def _load(self, model: str, fingerprint: Fingerprint) -> Method:
        again = f"index into a new library: midreel index VIDEOS --library NEW --model {model}"
        return load_model(model, fingerprint, where=self.folder, again=again)

    def _begin(self, method: Method, model: str) -> Generation:
        """A generation of this method without tokens; or one that was begun and not finished, and does not serve."""
        card = tokens.card_of(method, model if model in UNTRAINED else str(scanning.absolute(Path(model))))
        serving = self.layout.settings().serving if self.layout.exists() else None
        for generation in self.layout.generations():
            if generation.name != serving and generation.card == card:
                tokens.ensure_index(generation)
                return generation
        saved = self.folder / "model.new"
        with _making_room(self.folder):
            tokens.save(method, saved)
        generation = self.layout.begin_generation(card, saved)
        tokens.ensure_index(generation)
        return generation

    def _expect_wanted(self) -> None:
        wanted, settings = self._wanted, self.settings
        if wanted.rate is not None and wanted.rate != settings.rate:
            raise FingerprintMismatch(
                f"{self.folder} has {settings.rate:g} frames a second, not {wanted.rate:g}; leave out --rate, or index "
                f"into a new library"
            )
        if wanted.backbone is not None and _anywhere(wanted.backbone) != settings.backbone:
            _ = self.backbone  # of another name; the fingerprint tells whether it is another
        if wanted.model is not None and not self.serves(wanted.model):
            raise BadSetting(
                f"{self.folder} is searched with {self.generation.card.model}, not {wanted.model}; to change that "
                f"without decoding anything: midreel reindex {self.folder} --model {wanted.model}"
            )

    def serves(self, model: str) -> bool:
        """Whether it is this model, as it is now, that the library is searched with."""
        return tokens.digest(self._load(model, self.fingerprint)) == self.generation.card.digest

    # ------------------------------------------------------------ index

    def run(
        self,
        places: Sequence[Path] = (),
        *,
        tags: Sequence[str] = (),
        retry: bool = False,
        forget: bool = False,
        workers: int | None = None,
        settle: Callable[["Look"], "Look"] | None = None,
        progress: Progress | None = None,
    ) -> IndexReport:
        """Brings the library up to date with the files in `places`, or in all places it ever was given.

        `retry` what could not be read, files and features; `forget` what was found in places and folders of which
        nothing is there any more, and the features of all that has left; `settle` what is still being written. Places
        that are missing are told of as away.
        """
        found = look(self.catalogue, self.folder, places, forget=forget)
        absent = scanning.missing(found.places)
        self.catalogue.remember_places(place for place in found.places if place not in absent)
        if forget:
            self.catalogue.forget_places(absent)
        found = settle(found) if settle else found
        return _Run(self, found, tags, retry, forget, workers or WORKERS, progress).run()

    def remove(self, video_id: str) -> None:
        """A video leaves, wherever it lies; found again by a later run, it is back."""
        if video_id in self.index:
            self.index.remove(video_id)
        self.catalogue.forget_videos([video_id])

    def add_tokens(self, video_id: str, index: EmbeddedIndex, method: Method, generation: Generation) -> Video:
        """From the features that are kept."""
        features = self.store.video(video_id)
        index.add(video_id, tokens.encode(method, features, generation.card.windows))
        return Video(id=video_id, duration=features.duration, num_frames=len(features.frames))

    # ------------------------------------------------------------ reindex

    def reindex(self, model: str | None = None, progress: Progress | None = None) -> ReindexReport:
        """Makes the tokens of another model, or the same tokens again, from the features; nothing is decoded.

        The old ones serve until all of the new ones are there. Interrupted, it goes on where it was.
        """
        start = time.perf_counter()
        ids, kept = self.catalogue.video_ids(), set(self.store.video_ids())
        if ids - kept:
            raise MissingFeatures(
                f"{self.layout.features} lacks {len(ids - kept):,} of {len(ids):,} videos, expected all of them; run "
                f"first: midreel index --library {self.folder}"
            )
        name = model or self.generation.card.model
        method = load_method(self.generation.model) if model is None else self._load(model, self.fingerprint)
        method = tokens.on_device(method, self._device)
        generation = self._begin(method, name)
        with closing(tokens.open_index(generation, read_only=False)) as index:
            failed = self._fill(index, method, generation, ids, progress)
        if ids and len(failed) == len(ids):
            raise BadStore(
                f"{self.layout.features}: of {len(ids):,} videos none could be encoded, expected some; the old index "
                f"serves on. Run first, to decode them again: midreel index --library {self.folder} --retry. One says: "
                f"{next(iter(failed.values()))}"
            )
        self.layout.sync_features()
        self.settings = replace(self.settings, serving=generation.name)
        self.layout.write(self.settings)
        if "index" in vars(self):
            self.index.close()
        for name_of_old in ("generation", "index", "method"):
            vars(self).pop(name_of_old, None)
        self.layout.drop_generations(but=generation.name)
        return ReindexReport(
            generation=generation.name,
            model=generation.card.model,
            num_videos=len(ids) - len(failed),
            failed=failed,
            seconds=time.perf_counter() - start,
        )

    def _fill(
        self, index: EmbeddedIndex, method: Method, generation: Generation, ids: set[str], progress: Progress | None
    ) -> dict[str, str]:
        """Adds what the index lacks of these videos, and takes out what is not of them; returns what is damaged."""
        failed = {}
        for stray in set(index.video_ids()) - ids:
            index.remove(stray)
        for video_id in sorted(ids):
            seconds = 0.0
            try:
                if video_id not in index:
                    seconds = self.add_tokens(video_id, index, method, generation).duration
            except (BadStore, BadFeatures) as error:
                failed[video_id] = str(error)
            if progress is not None:
                path = next(iter(self.catalogue.paths(video_id)), Path(video_id))
                progress(Step(path=path, kind="new", seconds=seconds, total=len(ids)))
        return failed


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is in some places, and what the catalogue knows."""

    found: Scan
    known: dict[Path, File]
    places: list[Path]

    def is_new(self, file: FoundFile) -> bool:
        """Whether there is something to do about it, as far as a stat tells."""
        row = self.known.get(file.path)
        return row is None or not row.is_still(file)

    def unseen(self) -> list[Path]:
        """Files that were in the places, and were not seen there now."""
        return [
            path
            for path in self.known
            if path not in self.found.files and any(place in (path, *path.parents) for place in self.places)
        ]

    def gone(self) -> list[Path]:
        """Those of the unseen that are there no more."""
        return list(filter(self.found.says_gone, self.unseen()))

    def has_changes(self) -> bool:
        return any(map(self.is_new, self.found.files.values())) or bool(self.gone())

    def only(self, taken: Callable[[FoundFile], bool], *, lingering: Container[Path] = ()) -> "Look":
        """As if those of the new and changed files that are not `taken` were as they were when they were last taken,
        and those `lingering` that are gone were still there."""
        rows = (self.known[path] for path in self.gone() if path in lingering)
        files = {row.path: FoundFile(path=row.path, size=row.size, modified=row.modified) for row in rows}
        for path, file in self.found.files.items():
            if not self.is_new(file) or taken(file):
                files[path] = file
            elif (row := self.known.get(path)) is not None:
                files[path] = FoundFile(path=path, size=row.size, modified=row.modified)
        return replace(self, found=replace(self.found, files=files))


def look(catalogue: Catalogue, library: Path, named: Sequence[Path] = (), *, forget: bool = False) -> Look:
    """What is in the named places now, or in all that the library was ever given, and what was."""
    places = [scanning.absolute(place) for place in named] or catalogue.places()
    if not places:
        raise BadSetting(f"{library} holds nothing yet, and nothing was named; run: midreel index VIDEOS")
    known = catalogue.files()
    found = scanning.scan(places, leave_out=library, known=known, forget=forget)
    if named and not forget:
        for place in scanning.missing(places):
            found.unread.setdefault(place, "it does not exist; check the path, or mount its disk")
    return Look(found=found, known=known, places=places)


class _Run:
    """One run of `midreel index`."""

    def __init__(
        self,
        library: Indexer,
        look: Look,
        tags: Sequence[str],
        retry: bool,
        forget: bool,
        workers: int,
        progress: Progress | None,
    ) -> None:
        self._library, self._look, self._tags, self._retry = library, look, tags, retry
        self._forget, self._workers, self._progress = forget, workers, progress
        self._clock = _Clock()
        self._report = IndexReport(seconds=self._clock.seconds)
        self._whole = library.catalogue.video_ids() & set(library.index.video_ids()) & set(library.store.video_ids())
        self._unseen = look.unseen()
        self._gone = set(look.gone())
        # Where a video that is come across may have been moved from; from where it is gone, rather than out of sight.
        self._moved_from: dict[str, list[Path]] = {}
        for path in sorted(self._unseen, key=self._gone.__contains__):
            if (video_id := look.known[path].video_id) is not None:
                self._moved_from.setdefault(video_id, []).append(path)
        self._was_known = {file.video_id for file in look.known.values() if file.video_id is not None}
        # Of the videos that were come across: written by the threads that look into files, which only ever add.
        self._files_of: dict[str, list[FoundFile]] = {}
        self._num_placed: dict[str, int] = {}  # of these files, from the first
        self._outcomes: dict[str, Outcome] = {}
        self._unread: list[tuple[FoundFile, str]] = []  # by the threads that look into files
        self._spoilt: dict[str, str] = {}  # videos whose features are damaged, and how
        self._total = 0

    def run(self) -> IndexReport:
        with self._clock.of("total"):
            self._mend()
            if self._retry:
                self._whole -= self._unreadable()
            files = self._to_do()
            self._total = len(files)
            self._pass(files)
            if self._spoilt:
                store = self._library.store
                store.keep_videos(set(store.video_ids()) - self._spoilt.keys())
                self._pass([file for file, _ in self._taken_back()])
                for file, reason in self._taken_back():  # the disk may be failing, or the memory
                    self._tell(file, "failed", reason)
            self._tidy()
            library = self._library
            library.store.close()
            library.layout.sync_features()
        return self._report

    def _taken_back(self) -> list[tuple[FoundFile, str]]:
        """The files of videos whose features are damaged, as if nobody had come across them."""
        found = [(file, reason) for video_id, reason in self._spoilt.items() for file in self._files_of.pop(video_id)]
        self._spoilt = {}
        return found

    def _to_do(self) -> list[FoundFile]:
        """What a stat does not show to be as it was; the rest is counted."""
        files, report = [], self._report
        for file in self._look.found.files.values():
            row = self._look.known.get(file.path)
            if row is None or not row.is_still(file) or (row.video_id is None and self._retry):
                files.append(file)
            elif row.video_id is None:
                report.quarantined[file.path] = row.reason
                report.set_aside += 1
            elif row.video_id not in self._whole:
                files.append(file)
            else:
                report.unchanged += 1
        if self._tags:
            known = self._look.known
            ids = {row.video_id for path in self._look.found.files if (row := known.get(path)) is not None}
            self._library.catalogue.tag([video_id for video_id in ids if video_id is not None], self._tags)
        return files

    def _mend(self) -> None:
        """Tokens that are missing are made again from the features, wherever the files may be."""
        library = self._library
        kept = set(library.store.video_ids())
        for video_id in sorted(library.catalogue.video_ids() - set(library.index.video_ids())):
            if video_id in kept:
                try:
                    library.add_tokens(video_id, library.index, library.method, library.generation)
                except (BadStore, BadFeatures):
                    continue  # decoded again, if its file is found
                self._whole.add(video_id)
                self._report.repaired += library.catalogue.paths(video_id)[:1]

    def _unreadable(self) -> set[str]:
        """Videos whose features are damaged, which shows when they are read."""
        found = set()
        for video_id in self._whole:
            try:
                self._library.store.video(video_id)
            except (BadStore, BadFeatures):
                found.add(video_id)
        return found

    def _pass(self, files: Sequence[FoundFile]) -> None:
        if not files:
            return
        library = self._library
        threads = max(1, (os.cpu_count() or 1) // self._workers)
        backbone = _Timed(library.backbone, self._clock)
        extract_videos(
            self._items(files, library.settings.rate * backbone.window, threads),
            backbone,
            library.store,
            rate=library.settings.rate,
            batch_size=_BATCH,
            workers=self._workers,
            progress=self._commit,
            in_order=False,
        )
        for video_id, outcome in self._outcomes.items():
            self._place(outcome, self._files_of[video_id][self._num_placed[video_id] :])
        for file, reason in self._unread:
            self._tell(file, "failed", reason)
        self._outcomes, self._unread = {}, []

    def _items(self, files: Iterable[FoundFile], rate: float, threads: int) -> Iterator[VideoItem]:
        """What is to be decoded, each video once; iterated by the threads that decode, one at a time."""
        for file in files:
            try:
                video_id = origins.content_id(file.path)
            except OSError as error:
                self._unread.append((file, f"{file.path} cannot be read ({error.strerror}); check its permissions"))
                continue
            others = self._files_of.setdefault(video_id, [])
            others.append(file)
            if len(others) == 1:
                reading = video.read_frames(file.path, rate, threads=threads)
                yield VideoItem(
                    id=video_id,
                    frames=reading,
                    duration=_duration_of(reading),
                    path=file.path,
                    damage=_damage_of(reading),
                )

    def _commit(self, outcome: Outcome) -> None:
        """Tokens and row of a video whose features are stored, and so the video is there to stay."""
        library, video_id = self._library, outcome.id
        files = list(self._files_of[video_id])  # copies of it may be come across later
        if outcome.kind == "done" or (outcome.kind == "skipped" and video_id not in self._whole):
            try:
                with self._clock.of("tokens"):
                    features = library.store.video(video_id)
                    encoded = tokens.encode(library.method, features, library.generation.card.windows)
            except (BadStore, BadFeatures) as error:
                self._spoilt[video_id] = str(error)
                return
            with self._clock.of("index"):
                library.index.add(video_id, encoded)
            found = Video(
                id=video_id,
                duration=features.duration,
                num_frames=len(features.frames),
                num_damaged=outcome.damage.num_packets,
                date=files[0].modified / 1e9,
            )
            with self._clock.of("catalogue"):
                library.catalogue.add(found, files, self._tags)
            self._whole.add(video_id)
            self._report.video_seconds += features.duration if outcome.kind == "done" else 0
            if outcome.damage:
                self._report.damaged[files[0].path] = str(outcome.damage)
            self._tell_all(files, video_id, features.duration)
        else:
            self._place(outcome, files)
        self._outcomes[video_id] = outcome
        self._num_placed[video_id] = len(files)

    def _place(self, outcome: Outcome, files: Sequence[FoundFile]) -> None:
        """Files of which it is known what they hold."""
        for file in files:
            if outcome.kind in ("done", "skipped"):
                self._library.catalogue.place(file, outcome.id, self._tags)
                self._tell_all([file], outcome.id, 0.0)
            elif outcome.lasting:
                self._library.catalogue.set_aside(file, outcome.reason)
                self._tell(file, "quarantined", outcome.reason)
            else:
                self._tell(file, "failed", outcome.reason)

    def _tell_all(self, files: Sequence[FoundFile], video_id: str, seconds: float) -> None:
        for number, file in enumerate(files):
            self._tell(file, self._kind(file, video_id, number), seconds=0.0 if number else seconds)

    def _kind(self, file: FoundFile, video_id: str, number: int) -> str:
        row = self._look.known.get(file.path)
        if row is not None and row.video_id == video_id:
            return "touched" if not row.is_still(file) else "repaired"
        if row is not None and row.video_id is not None:
            return "changed"
        if self._moved_from.get(video_id):
            self._moved_from[video_id].pop()
            return "moved"
        return "copies" if number or video_id in self._was_known or video_id in self._outcomes else "new"

    def _tell(self, file: FoundFile, kind: str, reason: str | None = None, seconds: float = 0.0) -> None:
        listed = getattr(self._report, kind)
        if reason is None:
            listed.append(file.path)
        else:
            listed[file.path] = reason
        if self._progress is not None:
            self._progress(Step(path=file.path, kind=kind, seconds=seconds, total=self._total))

    def _tidy(self) -> None:
        """What is gone leaves, and so does what a run that was cut off has left behind."""
        library = self._library
        catalogue, index = library.catalogue, library.index
        unmoved = {path for paths in self._moved_from.values() for path in paths}
        moved = {path for path in self._unseen if self._look.known[path].video_id is not None} - unmoved
        self._report.removed = [path for path in self._unseen if path in self._gone and path in unmoved]
        self._report.away = self._away(moved)
        catalogue.forget_files(self._gone | moved)
        left = catalogue.orphans()
        for video_id in left:
            library.remove(video_id)
        ids = catalogue.video_ids()
        strays = set(index.video_ids()) - ids
        for video_id in strays:
            index.remove(video_id)
        if index.waste > _WASTE:
            index.compact()
        stored = set(library.store.video_ids())
        if self._forget and stored - ids:
            library.store.keep_videos(ids)
        elif len(stored - ids) > _WASTE * len(stored):
            self._report.idle = len(stored - ids)

    def _away(self, moved: set[Path]) -> dict[Path, str]:
        """Where nobody could look, unless all that was known to be there has moved."""
        found = self._look.found
        emptied = {place for path in moved for place in found.hiding(path)}
        still = {place for path in set(self._unseen) - moved for place in found.hiding(path)}
        return {place: reason for place, reason in found.unread.items() if place not in emptied - still}


class _Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, purpose: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[purpose] = self.seconds.get(purpose, 0.0) + time.perf_counter() - start


class _Timed:
    """A backbone whose time is taken."""

    def __init__(self, backbone: Backbone, clock: _Clock) -> None:
        self._backbone, self._clock = backbone, clock
        self.fingerprint, self.window, self.prepare = backbone.fingerprint, backbone.window, backbone.prepare
        self.encode_images: Callable[[Sequence[Image]], Tensor] = backbone.encode_images
        self.encode_texts: Callable[[Sequence[str]], list[TextFeatures]] = backbone.encode_texts

    def encode_pixels(self, pixels: UInt8[Tensor, "N *window 3 H W"]) -> Float[Tensor, "N E"]:
        with self._clock.of("backbone"):
            return self._backbone.encode_pixels(pixels)


def _duration_of(reading: video.Reading) -> Callable[[], float]:
    return lambda: reading.duration


def _damage_of(reading: video.Reading) -> Callable[[], video.Damage]:
    return lambda: reading.damage


def _anywhere(spec: str) -> str:
    """The same backbone, from whatever folder midreel is called."""
    kind, colon, path = spec.partition(":")
    return f"{kind}:{scanning.absolute(Path(path))}" if colon and f"{kind}:" == LOCAL else spec


@contextmanager
def _making_room(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{folder} cannot be written ({error}); make room and run again") from error
