"""From files to features to tokens, one video after the other.

A video is committed in three steps: its features, its tokens, its row in the catalogue. Each can be repeated, and none
is needed to repeat another, so whatever is cut off in between is completed by the next run, without decoding what was
decoded. What the catalogue does not list is not found by a search.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from jaxtyping import Float, UInt8
from torch import Tensor

from midreel.errors import BadFeatures, BadStore
from midreel.features.backbones.base import Backbone, Image
from midreel.features.extract import Outcome, VideoItem, stored_videos
from midreel.features.stores import origins
from midreel.library import tokens
from midreel.library.catalogue import Video
from midreel.library.diff import Look
from midreel.library.report import IndexReport, Progress, Step
from midreel.library.scan import FoundFile
from midreel.library.session import Writer
from midreel.media import decode
from midreel.types import TextFeatures

# Frames that are encoded at a time. A short video waits for others to fill the batch, and is lost if all ends before;
# by measurement, 32 take no longer each than 64, and 16 a tenth longer.
_BATCH = 32
_WASTE = 0.25  # of what is kept may be of videos that have left, before it is thrown out


class Run:
    """One run of `midreel index`."""

    def __init__(
        self,
        library: Writer,
        look: Look,
        tags: Sequence[str],
        retry: bool,
        forget: bool,
        workers: int,
        progress: Progress | None,
        stop: Callable[[], bool],
    ) -> None:
        self._library, self._look, self._tags, self._retry = library, look, tags, retry
        self._forget, self._workers, self._progress, self._stop = forget, workers, progress, stop
        self._clock = _Clock()
        self._report = IndexReport(
            seconds=self._clock.seconds, away=dict(look.found.unread), passed_over=look.found.passed_over
        )
        if retry or not tokens.has_model(library.generation):
            _ = library.method  # restores its files, or says what is lost
        if retry:
            library.index.verify()  # what is damaged leaves it, and is made again
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
                self._verify()
            files = self._to_do()
            self._total = len(files)
            self._pass(files)
            if self._spoilt:
                store = self._library.store
                store.keep_videos(set(store.video_ids()) - self._spoilt.keys())
                self._pass([file for file, _ in self._taken_back()])
                for file, reason in self._taken_back():  # the disk may be failing, or the memory
                    self._tell(file, "failed", reason)
            if not self._stop():  # what seems gone may have been moved to where nobody has looked yet
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

    def _verify(self) -> None:
        """Read all features. A video whose features are damaged is made again; a row that differs from them is
        corrected, because they have checksums and the catalogue has none."""
        library = self._library
        for video_id in sorted(self._whole):
            try:
                features = library.store.video(video_id)
            except (BadStore, BadFeatures):
                self._whole.remove(video_id)
                continue
            row = library.catalogue.video(video_id)
            if row is None:
                continue
            corrected = replace(row, duration=features.duration, num_frames=len(features.frames))
            if corrected != row:
                library.catalogue.add(corrected, [], damage=library.catalogue.damage_of(video_id))
                self._report.repaired += library.catalogue.paths(video_id)[:1]

    def _pass(self, files: Sequence[FoundFile]) -> None:
        if not files:
            return
        library = self._library
        backbone = _Timed(library.backbone, self._clock)
        stored = stored_videos(
            self._items(files, library.settings.rate * backbone.window),
            backbone,
            library.store,
            rate=library.settings.rate,
            batch_size=_BATCH,
            workers=self._workers,
            in_order=False,
        )
        with closing(stored):
            for outcome in stored:
                self._commit(outcome)
        for video_id, outcome in self._outcomes.items():
            self._place(outcome, self._files_of[video_id][self._num_placed[video_id] :])
        for file, reason in self._unread:
            self._tell(file, "failed", reason)
        self._outcomes, self._unread = {}, []

    def _items(self, files: Iterable[FoundFile], rate: float) -> Iterator[VideoItem]:
        """What is to be decoded, each video once; iterated by the threads that decode, one at a time."""
        for file in takewhile(lambda _: not self._stop(), files):
            try:
                state = origins.state_of(file.path)
                video_id = origins.content_id(file.path)
            except OSError as error:
                self._unread.append((file, f"{file.path} cannot be read ({error.strerror}); check its permissions"))
                continue
            others = self._files_of.setdefault(video_id, [])
            others.append(file)
            if len(others) == 1:
                reading = decode.read_frames(file.path, rate)
                yield VideoItem(
                    id=video_id,
                    frames=reading,
                    duration=_duration_of(reading),
                    path=file.path,
                    origin=origins.of_content(video_id),
                    state=state,
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
                date=files[0].modified / 1e9,
            )
            # Features that are kept tell whether all could be read, and the catalogue, if it was kept, what could not.
            known = library.catalogue.damage_of(video_id) if outcome.kind == "skipped" else ""
            damage = known or str(outcome.damage)
            with self._clock.of("catalogue"):
                library.catalogue.add(found, files, self._tags, damage)
            self._whole.add(video_id)
            self._report.video_seconds += features.duration if outcome.kind == "done" else 0
            if damage:
                self._report.damaged[files[0].path] = damage
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
        # A file that names a video without a row is damage, for --retry to repair, and no reason to delete its tokens.
        named = {file.video_id for file in catalogue.files().values()}
        strays = set(index.video_ids()) - ids - named
        for video_id in strays:
            index.remove(video_id)
        if index.waste > _WASTE:
            index.compact()
        library.layout.drop_generations(but=library.settings.serving)  # of a reindex that was not finished
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


def _duration_of(reading: decode.Reading) -> Callable[[], float]:
    return lambda: reading.duration


def _damage_of(reading: decode.Reading) -> Callable[[], decode.Damage]:
    return lambda: reading.damage
