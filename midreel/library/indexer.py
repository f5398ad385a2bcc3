"""Bring a library up to date with its files: repair, plan, extract, commit, tidy, hear, calibrate.

    repair   compare the stores                       encode features that have no tokens
    plan     compare the files with the catalogue     which files to read, which are gone
    extract  hash, decode and encode the files        features of each new video
    commit   encode the features                      tokens, then the row, one video at a time
    tidy     remove the files that are gone           the row, then the tokens
    hear     read subtitles that have changed         their lines
    calibrate                                         confidence.json, if the library has changed enough

The order of the writes makes a crash at any time harmless: see `midreel.library.commit`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from midreel.errors import BadFeatures, BadStore, MissingTokens, expect_text
from midreel.features.backbones.base import Backbone, Image
from midreel.features.extract import WORKERS, Encode, Outcome, VideoItem, stored_videos
from midreel.features.stores import origins
from midreel.library import diff, encoder, scan, spoken
from midreel.library.commit import Committer
from midreel.library.diff import Plan, Snapshot
from midreel.library.report import Changes, Clock, IndexReport, Progress
from midreel.library.scan import FoundFile
from midreel.library.writer import Writer
from midreel.media import decode
from midreel.types import TextFeatures

# Frames per batch. A short video is committed when its batch is full, so a crash costs more with larger batches.
# A batch of 32 is as fast per frame as one of 64; a batch of 16 is a tenth slower.
_BATCH = 32
_POLL = 0.5  # seconds between two looks at what other processes have read
_WASTE = 0.25  # compact the index, or suggest --forget, when removed videos take more than this part of a store


def index(
    library: Writer,
    places: Sequence[Path] = (),
    *,
    tags: Sequence[str] = (),
    retry: bool = False,
    forget: bool = False,
    workers: int | None = None,
    encode: Encode | None = None,
    min_change: float = 0.0,
    settle: Callable[[Snapshot], Snapshot] | None = None,
    follow: Callable[[Path], bool] = lambda _: True,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> IndexReport:
    """Bring a library up to date with the files in some places.

    Args:
        library: The library, open for writing.
        places: Videos and folders. Default: every place indexed so far.
        tags: Tags for the videos in these places.
        retry: Read quarantined files again, check all features and tokens, and rebuild damaged ones.
        forget: Remove videos whose whole folder is missing, and the features of removed videos.
        workers: The number of decoding threads.
        encode: Decodes and encodes a video elsewhere, such as on a cluster. Default: here.
        min_change: The least change between frames that are encoded, from 0 to 1. See `stored_videos`.
        settle: Removes changes from the snapshot; `watch` leaves out files that are being written.
        follow: Whether to follow a symbolic link.
        progress: Is called after each file.
        stop: When it returns True, the run starts no further file, and removes nothing.

    Returns:
        The state of each file. Unreadable files are in the report and raise no error.

    Raises:
        BadSetting: A tag is not UTF-8, there is no place to index, a place is inside the library, or `min_change` is
            not from 0 to 1.
        Unwritable: The disk is full. Committed videos are kept.
    """
    for tag in tags:
        expect_text("the tag", tag)
    found = diff.take_snapshot(library.catalogue, library.storage, places, forget=forget, follow=follow)
    absent = scan.missing(found.places)
    library.catalogue.remember_places(place for place in found.places if place not in absent)
    found = settle(found) if settle else found

    clock = Clock()
    report = IndexReport(seconds=clock.seconds, unreachable=dict(found.found.unread), skipped=found.found.skipped)
    with clock.of("total"):
        complete = library.following(lambda: _repair(library, report, verify=retry))
        plan = diff.plan(found, complete, retry=retry)
        report.quarantined = {row.path: row.reason for row in plan.quarantined}
        report.not_retried, report.unchanged = len(plan.quarantined), len(plan.unchanged)
        if tags:
            rows = (found.known.get(path) for path in found.found.files)
            library.catalogue.tag({row.video_id for row in rows if row is not None and row.video_id is not None}, tags)
        changes = Changes(plan=plan, report=report, progress=progress)
        committer = Committer(library=library, tags=tags, complete=complete, changes=changes, clock=clock)
        read = partial(
            _extract_and_commit,
            committer,
            workers=workers or WORKERS,
            encode=encode,
            min_change=min_change,
            stop=stop,
        )
        damaged = read(plan.to_read)
        if damaged and stop():
            for _, file, reason in damaged:
                changes.failed(file, reason)
        elif damaged:
            # An earlier run stored these features. Delete them, and decode the files again.
            library.store.remove_videos({video_id for video_id, _, _ in damaged})
            for _, file, reason in read([file for _, file, _ in damaged]):
                changes.failed(file, reason)  # damaged again: the disk may be failing
        if not stop():  # after a stop, a missing file may have been moved to a place that was not read yet
            library.following(lambda: _tidy(library, plan, report, forget=forget))
            if forget:
                _forget_places(library, absent)
            _hear(library, found, every=retry)
            library.following(lambda: library.calibrate(library.generation, library.index, lambda: library.encoder))
        library.store.close()
        library.storage.sync_features()
    return report


# ---------------------------------------------------------------- repair


def _repair(library: Writer, report: IndexReport, *, verify: bool) -> set[str]:
    """Encode videos that have a row and features but no tokens. Return the ids of the videos that all stores contain.

    With `verify`, read everything: restore a damaged model and rebuild damaged tokens. Videos with damaged features are
    not in the result, so they will be decoded again.
    """
    if verify or not encoder.is_saved(library.generation):
        _ = library.encoder  # restores the files of the model, or raises BadLibrary
    if verify:
        library.index.verify()  # removes damaged tokens
    catalogue, stored = library.catalogue, set(library.store.video_ids())
    listed = catalogue.video_ids()
    complete = listed & set(library.index.video_ids()) & stored
    for video_id in sorted((listed & stored) - set(library.index.video_ids())):
        try:
            library.add_tokens(video_id)
        except (BadStore, BadFeatures):
            continue  # not complete, so it is decoded again if its file is found
        complete.add(video_id)
        report.repaired += catalogue.paths(video_id)[:1]
    if verify:
        complete -= {video_id for video_id in sorted(complete) if not _is_verified(library, video_id, report)}
    return complete


def _is_verified(library: Writer, video_id: str, report: IndexReport) -> bool:
    """Return whether the features of a video are intact. Correct its row from them: only features have checksums."""
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

    The decoding threads advance `items`, one at a time, and only add to these collections. The committing thread reads
    the entry of a video after it has received the outcome of the video, and all entries after the last outcome. So no
    lock is needed.

    Attributes:
        first: The first file of each video.
        copies: The other files, with their video.
        unreadable: Files that could not be hashed, with the reason.
    """

    def __init__(self) -> None:
        self.first: dict[str, FoundFile] = {}
        self.copies: list[tuple[str, FoundFile]] = []
        self.unreadable: list[tuple[FoundFile, str]] = []

    def files(self) -> list[FoundFile]:
        """Return all files, readable or not."""
        return [*self.first.values(), *(file for _, file in self.copies), *(file for file, _ in self.unreadable)]

    def items(self, files: Iterable[FoundFile], rate: float) -> Iterator[VideoItem]:
        """Hash the files, and yield the videos to decode."""
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
                duration=partial(getattr, reading, "duration"),  # it is known after all frames are read
                path=file.path,
                origin=origins.of_content(video_id),
                state=state,
                damage=partial(getattr, reading, "damage"),
            )


def _extract_and_commit(
    committer: Committer,
    files: Sequence[FoundFile],
    *,
    workers: int,
    encode: Encode | None,
    min_change: float,
    stop: Callable[[], bool],
) -> list[tuple[str, FoundFile, str]]:
    """Read files and commit their videos. Return video, file and reason for files whose stored features are damaged.

    Other processes may read some of these files. This returns when they have, or takes over what they have left.
    """
    storage, damaged = committer.library.storage, list[tuple[str, FoundFile, str]]()
    unread, left = {file.path: file for file in files}, files
    if files:
        storage.plan(files)
    while left and not stop():
        with storage.claimed(left) as claimed:
            contents = _Contents()
            readable = takewhile(lambda _: not stop(), claimed)
            damaged += _read_claimed(
                committer, contents, readable, workers=workers, encode=encode, min_change=min_change
            )
        for file in contents.files():
            unread.pop(file.path, None)
        left = storage.claimed_by_others(unread.values())
        if left:
            time.sleep(_POLL)
    if unread and not stop():
        _report_others(committer, list(unread.values()))
    return damaged


def _report_others(committer: Committer, files: Sequence[FoundFile]) -> None:
    """Report the files that other processes have read."""
    rows = committer.library.catalogue.files()
    for file in files:
        row = rows.get(file.path)
        if row is None or not row.is_still(file):
            committer.changes.failed(file, "another process could not read it. Run the command again.")
        elif row.video_id is None:
            committer.changes.quarantined(file, row.reason)
        else:
            committer.changes.read(file, row.video_id, damage=row.reason)


def _read_claimed(
    committer: Committer,
    contents: _Contents,
    files: Iterable[FoundFile],
    *,
    workers: int,
    encode: Encode | None,
    min_change: float,
) -> list[tuple[str, FoundFile, str]]:
    """Read files that no other process reads. See `_extract_and_commit`."""
    library = committer.library
    rate, backbone = library.settings.rate, _TimedBackbone(library.backbone, committer.clock)
    items = contents.items(files, rate * backbone.window)
    stored = stored_videos(
        items,
        backbone,
        library.store,
        rate=rate,
        batch_size=_BATCH,
        workers=workers,
        in_order=False,
        encode=encode,
        min_change=min_change,
    )
    outcomes, damaged = dict[str, Outcome](), dict[str, str]()
    with closing(stored):
        for outcome in stored:
            outcomes[outcome.id] = outcome
            if reason := committer.commit(outcome, contents.first[outcome.id]):
                damaged[outcome.id] = reason
    for video_id, file in contents.copies:
        if video_id not in damaged:
            committer.place(outcomes[video_id], file, is_copy=True)
    for file, reason in contents.unreadable:
        committer.changes.failed(file, reason)
    files_of_videos = [*contents.first.items(), *contents.copies]
    return [(video_id, file, damaged[video_id]) for video_id, file in files_of_videos if video_id in damaged]


# ---------------------------------------------------------------- tidy


def _tidy(library: Writer, plan: Plan, report: IndexReport, *, forget: bool) -> None:
    """Remove files that are gone, videos without files, and the leftovers of interrupted runs."""
    catalogue, tokens = library.catalogue, library.index
    moved, missing = plan.moved(), plan.missing()
    report.removed = [path for path in plan.snapshot.unseen() if path in plan.gone and path in missing]
    report.unreachable = plan.unreachable()
    catalogue.forget_files(plan.gone | moved)
    for video_id in catalogue.orphans():
        library.remove(video_id)
    # Read in this order: another process may commit a video in between, which must not look like a leftover.
    indexed = set(tokens.video_ids())
    listed = catalogue.video_ids()
    # If a file names a video without a row, the catalogue is damaged. A run that can read the file repairs it, so keep
    # the tokens until then.
    named = {file.video_id for file in catalogue.files().values()}
    for video_id in indexed - listed - named:
        with suppress(MissingTokens):  # another process may have removed it
            tokens.remove(video_id)
    if tokens.waste > _WASTE:
        tokens.compact()
    library.storage.drop_generations(but=library.settings.serving)  # of an interrupted reindex
    stored = set(library.store.video_ids())
    if forget and stored - listed:
        library.store.keep_videos(listed)
    elif len(stored - listed) > _WASTE * len(stored):
        report.unused = len(stored - listed)


def _hear(library: Writer, found: Snapshot, *, every: bool) -> None:
    """Read subtitles that are new or have changed since their video was read; with `every`, all of them."""
    if not library.catalogue.KEEPS_SUBTITLES:
        return
    files: dict[str, list[Path]] = {}
    for path, file in library.catalogue.files().items():
        if file.video_id is not None and path in found.found.files:
            files.setdefault(file.video_id, []).append(path)
    spoken.refresh(library.catalogue, files, every=every)


def _forget_places(library: Writer, absent: Sequence[Path]) -> None:
    """Forget missing places. A place that still has files is kept: only a run that scans it can remove them.

    This is the last write of a run. After a crash before it, the next run scans the places again.
    """
    files = library.catalogue.files()
    library.catalogue.forget_places(
        place for place in absent if not any(place in (path, *path.parents) for path in files)
    )


# ---------------------------------------------------------------- timing


class _TimedBackbone:
    """A backbone whose encoding time is measured."""

    def __init__(self, backbone: Backbone, clock: Clock) -> None:
        self._backbone, self._clock = backbone, clock
        self.fingerprint, self.window, self.prepare = backbone.fingerprint, backbone.window, backbone.prepare
        self.encode_images: Callable[[Sequence[Image]], Float[np.ndarray, "N E"]] = backbone.encode_images
        self.encode_texts: Callable[[Sequence[str]], list[TextFeatures]] = backbone.encode_texts

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N *window 3 H W"]) -> Float[np.ndarray, "N E"]:
        with self._clock.of("backbone"):
            return self._backbone.encode_pixels(pixels)
