"""Bring a library up to date with its files: plan, extract, commit, tidy.

    plan     compare the files with the catalogue         which files must be read, which are gone
    extract  hash, decode and encode the files            features of each new video
    commit   features -> tokens -> catalogue row          one video at a time
    tidy     remove what is gone                          catalogue row -> tokens

Crash safety. A video is in three stores: the feature store, the index (its tokens) and the catalogue (its row). Each
store writes atomically. The order of the writes makes every state that a kill can leave safe:

- Adding writes features, then tokens, then the row. A search returns only videos that have a row, so it never returns
  a video without tokens.
- Removing deletes the row, then the tokens. Features stay until `forget`, so a video that returns is not decoded again.
- Each step can be repeated, and none is needed to repeat another. The next run finds a video that lacks a part, because
  it compares the stores: features without tokens are encoded, not decoded; tokens without a row are committed again if
  the file is still there, and else removed.
- Progress callbacks only report. Nothing that lasts depends on them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from midreel.errors import BadFeatures, BadStore, expect_text
from midreel.features.backbones.base import Backbone, Image
from midreel.features.extract import WORKERS, Outcome, VideoItem, stored_videos
from midreel.features.stores import origins
from midreel.library import diff, encoder, scan
from midreel.library.catalogue import Video
from midreel.library.diff import FileState, Look, Plan
from midreel.library.report import IndexReport, Progress, Step
from midreel.library.scan import FoundFile
from midreel.library.session import Writer
from midreel.media import decode
from midreel.types import TextFeatures

# Frames per batch. A short video waits for others to fill the batch, and is decoded again if the run ends before.
# By measurement, a frame takes as long in a batch of 32 as in one of 64, and a tenth longer in one of 16.
_BATCH = 32
_WASTE = 0.25  # the part of the index that removed videos may take before it is compacted


def index(
    library: Writer,
    places: Sequence[Path] = (),
    *,
    tags: Sequence[str] = (),
    retry: bool = False,
    forget: bool = False,
    workers: int | None = None,
    settle: Callable[[Look], Look] | None = None,
    follow: Callable[[Path], bool] = lambda _: True,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> IndexReport:
    """Bring a library up to date with the files in some places.

    Args:
        library: The library, open for writing.
        places: Videos and folders. Default: every place that was indexed so far.
        tags: Words to attach to the videos in these places.
        retry: Read quarantined files again, check all features and tokens, and rebuild damaged ones.
        forget: Remove videos whose whole folder is missing, and the features of removed videos.
        workers: Decoding threads.
        settle: Changes the look at the places before it is used; `watch` leaves out files that are being written.
        follow: Whether to follow a symbolic link.
        progress: Is called after each file.
        stop: When it returns True, no further file is begun.

    Returns:
        What became of each file. Unreadable files are in the report; they do not raise.

    Raises:
        BadSetting: A tag is not UTF-8, or no place is known.
        Unwritable: The disk is full. All committed videos are kept.
    """
    for tag in tags:
        expect_text("the tag", tag)
    found = diff.look(library.catalogue, library.folder, places, forget=forget, follow=follow)
    absent = scan.missing(found.places)
    library.catalogue.remember_places(place for place in found.places if place not in absent)
    if forget:
        library.catalogue.forget_places(absent)
    found = settle(found) if settle else found

    clock = _Clock()
    report = IndexReport(seconds=clock.seconds, unreachable=dict(found.found.unread), skipped=found.found.skipped)
    with clock.of("total"):
        complete = _repair(library, report, verify=retry)
        plan = diff.plan(found, complete, retry=retry)
        report.quarantined = {row.path: row.reason for row in plan.quarantined}
        report.not_retried, report.unchanged = len(plan.quarantined), len(plan.unchanged)
        if tags:
            rows = (found.known.get(path) for path in found.found.files)
            library.catalogue.tag({row.video_id for row in rows if row is not None and row.video_id is not None}, tags)
        changes = _Changes(plan=plan, report=report, progress=progress)
        committer = _Committer(library=library, tags=tags, complete=complete, changes=changes, clock=clock)
        read = partial(_extract_and_commit, committer, workers=workers or WORKERS, stop=stop)
        damaged = read(plan.to_read)
        if damaged:  # features of an earlier run: make them again
            store = library.store
            store.keep_videos(set(store.video_ids()) - {video_id for video_id, _, _ in damaged})
            for _, file, reason in read([file for _, file, _ in damaged]):  # again: the disk may be failing
                changes.failed(file, reason)
        if not stop():  # after a stop, a file that seems gone may have been moved to a place that was not read yet
            _tidy(library, plan, report, forget=forget)
        library.store.close()
        library.layout.sync_features()
    return report


# ---------------------------------------------------------------- repair


def _repair(library: Writer, report: IndexReport, *, verify: bool) -> set[str]:
    """Encode videos that lack tokens, and return the videos that all three stores have.

    To `verify` is to read everything: a damaged model is restored, damaged tokens are made again, and videos with
    damaged features are left out of the result, so that they are decoded again.
    """
    if verify or not encoder.is_saved(library.generation):
        _ = library.encoder  # restores its files, or says what is lost
    if verify:
        library.index.verify()  # removes damaged tokens
    catalogue, stored = library.catalogue, set(library.store.video_ids())
    listed = catalogue.video_ids()
    complete = listed & set(library.index.video_ids()) & stored
    for video_id in sorted((listed & stored) - set(library.index.video_ids())):
        try:
            library.add_tokens(video_id)
        except (BadStore, BadFeatures):
            continue  # decoded again, if its file is found
        complete.add(video_id)
        report.repaired += catalogue.paths(video_id)[:1]
    if verify:
        complete -= {video_id for video_id in sorted(complete) if not _is_verified(library, video_id, report)}
    return complete


def _is_verified(library: Writer, video_id: str, report: IndexReport) -> bool:
    """Return whether the features of a video are whole. Correct its row from them: they have checksums, it has none."""
    try:
        features = library.store.video(video_id)
    except (BadStore, BadFeatures):
        return False
    row = library.catalogue.video(video_id)
    if row is not None:
        corrected = replace(row, duration=features.duration, num_frames=len(features.frames))
        if corrected != row:
            library.catalogue.add(corrected, [], damage=library.catalogue.damage_of(video_id))
            report.repaired += library.catalogue.paths(video_id)[:1]
    return True


# ---------------------------------------------------------------- extract


class _Contents:
    """The videos in some files, by content. Only the first file of each video is decoded.

    The decoding threads call `items`, one at a time, and only add to these collections. The committing thread reads a
    video's entry after it has received the video's outcome, and all entries after the last outcome.
    """

    def __init__(self) -> None:
        self.first: dict[str, FoundFile] = {}
        self.copies: list[tuple[str, FoundFile]] = []
        self.unreadable: list[tuple[FoundFile, str]] = []

    def items(self, files: Iterable[FoundFile], rate: float) -> Iterator[VideoItem]:
        """Hash the files, and yield what has to be decoded."""
        for file in files:
            try:
                state = origins.state_of(file.path)
                video_id = origins.content_id(file.path)
            except OSError as error:
                reason = f"{file.path} cannot be read ({error.strerror}). Check its permissions."
                self.unreadable.append((file, reason))
                continue
            if video_id in self.first:
                self.copies.append((video_id, file))
                continue
            self.first[video_id] = file
            reading = decode.read_frames(file.path, rate)
            yield VideoItem(
                id=video_id,
                frames=reading,
                duration=partial(getattr, reading, "duration"),  # known when all frames are read
                path=file.path,
                origin=origins.of_content(video_id),
                state=state,
                damage=partial(getattr, reading, "damage"),
            )


def _extract_and_commit(
    committer: "_Committer", files: Sequence[FoundFile], *, workers: int, stop: Callable[[], bool]
) -> list[tuple[str, FoundFile, str]]:
    """Read files and commit their videos. Return the files whose stored features are damaged, with video and reason."""
    if not files:
        return []
    library, contents = committer.library, _Contents()
    rate, backbone = library.settings.rate, _TimedBackbone(library.backbone, committer.clock)
    items = contents.items(takewhile(lambda _: not stop(), files), rate * backbone.window)
    stored = stored_videos(
        items, backbone, library.store, rate=rate, batch_size=_BATCH, workers=workers, in_order=False
    )
    outcomes, damaged = dict[str, Outcome](), dict[str, str]()
    with closing(stored):
        for outcome in stored:
            outcomes[outcome.id] = outcome
            try:
                committer.commit(outcome, contents.first[outcome.id])
            except (BadStore, BadFeatures) as error:
                damaged[outcome.id] = str(error)
    for video_id, file in contents.copies:
        if video_id not in damaged:
            committer.place(outcomes[video_id], file, is_copy=True)
    for file, reason in contents.unreadable:
        committer.changes.failed(file, reason)
    files_of_videos = [*contents.first.items(), *contents.copies]
    return [(video_id, file, damaged[video_id]) for video_id, file in files_of_videos if video_id in damaged]


# ---------------------------------------------------------------- commit


@dataclass(kw_only=True)
class _Committer:
    """Completes videos whose features are stored."""

    library: Writer
    tags: Sequence[str]
    complete: set[str]  # videos that all three stores have
    changes: "_Changes"
    clock: "_Clock"

    def commit(self, outcome: Outcome, file: FoundFile) -> None:
        """Add tokens and row of a video. Raise BadStore or BadFeatures if its features are damaged."""
        is_stored = outcome.kind in ("done", "skipped")
        if not is_stored or outcome.id in self.complete:
            self.place(outcome, file)
            return
        library, is_decoded = self.library, outcome.kind == "done"
        with self.clock.of("tokens"):
            features = library.store.video(outcome.id)
            tokens = encoder.encode_windows(library.encoder, features.frames, library.generation.card.windows)
        with self.clock.of("index"):
            library.index.add(outcome.id, tokens)
        video = Video(
            id=outcome.id,
            duration=features.duration,
            num_frames=len(features.frames),
            date=file.modified / 1e9,
        )
        # The feature store knows whether a part of the video was unreadable; the catalogue, which part.
        known = "" if is_decoded else library.catalogue.damage_of(outcome.id)
        damage = known or str(outcome.damage)
        with self.clock.of("catalogue"):
            library.catalogue.add(video, [file], self.tags, damage)
        self.complete.add(outcome.id)
        self.changes.read(file, outcome.id, seconds=features.duration, decoded=is_decoded, damage=damage)

    def place(self, outcome: Outcome, file: FoundFile, *, is_copy: bool = False) -> None:
        """Record a file whose video is complete, or cannot be read."""
        if outcome.kind in ("done", "skipped"):
            self.library.catalogue.place(file, outcome.id, self.tags)
            self.changes.read(file, outcome.id, is_copy=is_copy)
        elif outcome.lasting:
            self.library.catalogue.add_unreadable(file, outcome.reason)
            self.changes.quarantined(file, outcome.reason)
        else:
            self.changes.failed(file, outcome.reason)


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """Reports what became of each file."""

    plan: Plan
    report: IndexReport
    progress: Progress | None

    def read(
        self,
        file: FoundFile,
        video_id: str,
        *,
        is_copy: bool = False,
        seconds: float = 0.0,
        decoded: bool = False,
        damage: str = "",
    ) -> None:
        state = self.plan.state(file, video_id, is_copy=is_copy)
        self.report.files(state).append(file.path)
        if decoded:
            self.report.video_seconds += seconds
        if damage:
            self.report.damaged[file.path] = damage
        self._step(file, state, seconds)

    def quarantined(self, file: FoundFile, reason: str) -> None:
        self.report.quarantined[file.path] = reason
        self._step(file, FileState.QUARANTINED)

    def failed(self, file: FoundFile, reason: str) -> None:
        self.report.failed[file.path] = reason
        self._step(file, FileState.FAILED)

    def _step(self, file: FoundFile, state: FileState, seconds: float = 0.0) -> None:
        if self.progress is not None:
            self.progress(Step(path=file.path, state=state, seconds=seconds, total=len(self.plan.to_read)))


# ---------------------------------------------------------------- tidy


def _tidy(library: Writer, plan: Plan, report: IndexReport, *, forget: bool) -> None:
    """Remove files that are gone, videos without files, and what interrupted runs have left."""
    catalogue, tokens = library.catalogue, library.index
    moved, missing = plan.moved(), plan.missing()
    report.removed = [path for path in plan.look.unseen() if path in plan.gone and path in missing]
    report.unreachable = plan.unreachable()
    catalogue.forget_files(plan.gone | moved)
    for video_id in catalogue.orphans():
        library.remove(video_id)
    listed = catalogue.video_ids()
    # A file that names a video without a row is damage that --retry repairs, and no reason to delete its tokens.
    named = {file.video_id for file in catalogue.files().values()}
    for video_id in set(tokens.video_ids()) - listed - named:
        tokens.remove(video_id)
    if tokens.waste > _WASTE:
        tokens.compact()
    library.layout.drop_generations(but=library.settings.serving)  # of a reindex that was not finished
    stored = set(library.store.video_ids())
    if forget and stored - listed:
        library.store.keep_videos(listed)
    elif len(stored - listed) > _WASTE * len(stored):
        report.unused = len(stored - listed)


# ---------------------------------------------------------------- times


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


class _TimedBackbone:
    """A backbone whose encoding time is measured."""

    def __init__(self, backbone: Backbone, clock: _Clock) -> None:
        self._backbone, self._clock = backbone, clock
        self.fingerprint, self.window, self.prepare = backbone.fingerprint, backbone.window, backbone.prepare
        self.encode_images: Callable[[Sequence[Image]], Float[np.ndarray, "N E"]] = backbone.encode_images
        self.encode_texts: Callable[[Sequence[str]], list[TextFeatures]] = backbone.encode_texts

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N *window 3 H W"]) -> Float[np.ndarray, "N E"]:
        with self._clock.of("backbone"):
            return self._backbone.encode_pixels(pixels)
