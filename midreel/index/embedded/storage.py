"""The folder of an index: its file format, how it changes, and what a crash can leave.

File format
===========

An index is one folder. NNNNNN is the volume, a number that compaction increases. All numbers are little-endian.

    manifest.sqlite     The videos and the positions of their rows, in SQLite in WAL mode (manifest.py).
                        Table `state`: one row, a JSON text (`State`) and its CRC-32.
                        Table `videos`: one row per video (`Row`), in the order in which videos were added.
    NNNNNN.coarse       `State.coarse` rows per window: eight-bit vectors, which every search scans.
                        Their scales are in the manifest, so that a search has them in memory.
    NNNNNN.tokens0 ...  One file per branch, in the order of `State.branch_weights`. One row per token: an eight-bit
                        vector, its ninth bits, the scale, and the span, the part of the window that the token covers.
                        Branches for whose score the length of a token counts (`types.with_norms`) have it as well.
    NNNNNN.trained      Optional: a compressed copy of the coarse vectors (ann.py): a line of JSON, then faiss indexes.

The coarse and token files are the vector files (vectors.py). In each, the rows of a video are contiguous, window after
window. Rows behind `State.ends` are unused.

Crash safety
============

A row of a vector file is never changed once the manifest refers to it. The manifest is the only file that decides what
exists, and SQLite changes it atomically.

Adding videos (`put`)
    1. Append their rows to the vector files, behind `State.ends`.
    2. Sync the vector files.
    3. Insert their rows into the manifest, delete those of replaced videos, and move `ends`, in one transaction.

    A crash before the commit of step 3 leaves unused rows behind `ends`, which the next addition overwrites. A crash
    after it leaves the videos added.

Removing a video (`remove`)
    Delete its row from the manifest in one transaction. Its rows in the vector files stay until compaction.

Compaction (`compact`)
    1. Copy the rows of all intact videos to the files of the next volume, and sync them.
    2. Replace all rows of the manifest and `State.volume` in one transaction.
    3. Delete the files of the old volume.

    A crash leaves the files of two volumes. The manifest names the valid one. The next writer deletes the other.

The compressed copy is written to a temporary file, synced and renamed. It has checksums, and its name contains its
volume. A missing or damaged copy makes searches slower, not wrong.

One writer, many readers
========================

A writer holds a lock on the folder (`flock`), so there is at most one. Readers take no lock on the folder.

Before each operation, a reader asks SQLite whether a new commit exists (`Manifest.version`). If so, it reads the new
rows, or the whole manifest if anything else changed, within one snapshot. Then it maps the vector files again. If the
manifest changes in between, the files may be of another volume, so the reader starts again. Files that are mapped stay
readable after a compaction has deleted them.

Damage
======

Disks can change data after it was written. Every row of the manifest has a checksum. The state has the number of rows
and the sum of their checksums, which reveals missing rows. The manifest also has checksums of each video's rows in the
vector files. They are verified before the video is first returned (damage.py).
"""

import os
import weakref
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from pathlib import Path

import numpy as np

from midreel.errors import BadIndex
from midreel.index.base import missing_video
from midreel.index.embedded.damage import Damage, repaired
from midreel.index.embedded.manifest import NAME, REBUILD, Manifest, Row, State, only_intact
from midreel.index.embedded.roster import Roster
from midreel.index.embedded.rows import VideoRows, read_parts
from midreel.index.embedded.vectors import (
    BadRow,
    VectorFile,
    VectorWriter,
    coarse_dtype,
    file_paths,
    token_dtype,
    volume_of,
)
from midreel.io.files import lock, make_folder
from midreel.types import with_norms

_ATTEMPTS = 5  # to read a manifest while compactions replace its volume


class Storage:
    """The files of an index, and their contents in memory. Not thread-safe.

    A writer reads the manifest when it opens the index. A reader reads it at the first call of `refresh`.

    Attributes:
        manifest: The manifest.
        roster: The videos and windows, as of the last `refresh`.
        files: The vector files: the coarse file, then one token file per branch.
        damage: The damage found so far.

    Raises:
        BadIndex: The folder is not an index, is damaged, or has another writer.
    """

    roster: Roster
    files: list[VectorFile]
    damage: Damage

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self.folder, self.read_only = folder, read_only
        self._version: tuple[int, int] | None = None  # of the manifest when it was last read
        # A finalizer, so that the lock ends even if the index is never closed.
        self._unlock = weakref.finalize(self, os.close, _lock(folder)) if not read_only else None
        self._writer: VectorWriter | None = None
        with ExitStack() as undo:
            if self._unlock:
                undo.callback(self._unlock)
            self.manifest = Manifest(folder / NAME, read_only=read_only)
            undo.callback(self.manifest.close)
            if not read_only:
                self._remove_other_volumes()
                self._writer = VectorWriter(*_vector_files(folder, self.state))
                self._load()
            undo.pop_all()

    @staticmethod
    def create(folder: Path, state: State) -> None:
        """Create an empty index.

        Raises:
            BadIndex: The folder already is an index, or cannot be written.
        """
        if (folder / NAME).exists():
            raise BadIndex(f"{folder} already is an index. Open it, or choose another folder.")
        try:
            make_folder(folder)
            handle = _lock(folder)
            try:
                Manifest.create(folder / NAME, state)
            finally:
                os.close(handle)
        except OSError as error:
            raise BadIndex(f"{folder} cannot be created ({error.strerror}). Choose another folder.") from error

    @property
    def state(self) -> State:
        """The state of the manifest."""
        return self.manifest.state

    def close(self) -> None:
        """Close all files and release the lock."""
        if self._writer is not None:
            self._writer.close()
        self.manifest.close()
        if self._unlock:
            self._unlock()

    # ------------------------------------------------------------ reading the manifest

    def refresh(self) -> Roster:
        """Read the commits of other processes since the last call, and return the roster."""
        if self._version is None:
            self._load()
        elif self.read_only and self.manifest.version() != self._version:
            self._load_new_rows()
        self._map_files_if_changed()
        return self.roster

    def _load_new_rows(self) -> None:
        """Read the new rows of the manifest, or all rows if others changed as well."""
        # The version is read before the rows: a commit in between is then noticed at the next refresh.
        old, version = self.state, self.manifest.version()
        with self.manifest.snapshot() as state:
            rows = list(chain.from_iterable(self.manifest.rows(after=self.roster.last_number)))
        added = sum(row.checksum for row in rows)
        only_new = (state.volume, state.videos, state.sum) == (old.volume, old.videos + len(rows), old.sum + added)
        if not only_new or not all(row.is_intact() for row in rows):
            self._load()
            return
        self.roster.extend(rows)
        self._map_files()
        self._version = version
        if any(len(file) < end for file, end in zip(self.files, state.ends, strict=True)):
            self._load()  # which excludes the videos that are cut off

    def _load(self) -> None:
        """Read the whole manifest, map the vector files, and exclude videos beyond their ends."""
        for _ in range(_ATTEMPTS):
            version = self.manifest.version()
            with self.manifest.snapshot():
                self._read_manifest()
            self._map_files()
            if self.manifest.version() == version:  # otherwise a compaction may have replaced the files
                break
        self._version = version
        cut_off = self.roster.cut_off([len(file) for file in self.files])
        self._exclude(dict.fromkeys(cut_off, f"is cut off: a file in {self.folder} is truncated"))
        if cut_off:
            self.roster.trim()

    def _read_manifest(self) -> None:
        path, state = self.manifest.path, self.state
        roster, problems = Roster(len(state.branch_weights), state.coarse), []
        num_rows = num_damaged = total = 0
        for rows in self.manifest.rows():
            intact = only_intact(rows)
            roster.extend(intact)
            num_rows, num_damaged = num_rows + len(rows), num_damaged + len(rows) - len(intact)
            total += sum(map(itemgetter(6), rows))  # the checksums
        if num_damaged:
            problems.append(f"{path}: {num_damaged} of {num_rows} rows do not match their checksums. {REBUILD}")
        if (state.videos, state.sum) != (num_rows, total):
            problems.append(f"{path} has {num_rows} rows, expected {state.videos}, or they were changed. {REBUILD}")
        self.roster, self.damage = roster, Damage(problems)

    def _map_files_if_changed(self) -> None:
        if self._mapped != (self.state.volume, self.state.ends):
            self._map_files()

    def _map_files(self) -> None:
        self.files = [
            VectorFile(path, dtype) for path, dtype in zip(*_vector_files(self.folder, self.state), strict=True)
        ]
        self._mapped = self.state.volume, self.state.ends

    # ------------------------------------------------------------ damage

    def exclude_damaged(self, slots: Iterable[int], *, again: bool = False) -> bool:
        """Verify the checksums of videos, and exclude damaged ones. Return whether there are any.

        Args:
            slots: The videos to check.
            again: Whether to check videos that were intact before.
        """
        reasons = self.damage.find(slots, self.roster, self.files, again=again)
        self._exclude(reasons)
        return bool(reasons)

    def exclude_video_of(self, row: BadRow) -> bool:
        """Exclude the video of a damaged row. Return whether its checksum confirms the damage."""
        branch = self.files.index(row.file) - 1
        return self.exclude_damaged([self.roster.slot_of_row(branch, row.number)], again=True)

    def verify(self) -> None:
        """Verify the checksums of all videos."""
        slots = self.refresh().slot_of_id.values()
        with ExitStack() as reading:
            for file in self.files:
                reading.enter_context(file.in_order())
            self.exclude_damaged(slots, again=True)
        for file in self.files:
            file.drop_pages()

    def _exclude(self, reasons: Mapping[int, str]) -> None:
        """Remove damaged videos from the roster. A writer repairs those with intact tokens."""
        if not reasons:
            return
        if self._writer is not None:
            with suppress(BadIndex):  # the disk may be full; the next writer tries again
                self.put(repaired(reasons, self.roster, self.files, self.state))
        self.damage.exclude(reasons, self.roster)  # ignores the repaired ones, which have new slots
        self._map_files_if_changed()

    # ------------------------------------------------------------ changes

    def require_writer(self) -> VectorWriter:
        """Return the writer of the vector files. Raise BadIndex if the index is open for reading only."""
        if self._writer is None:
            raise BadIndex(f"{self.folder} is open for reading only. Open it without read_only=True.")
        return self._writer

    def put(self, videos: Iterable[VideoRows]) -> None:
        """Add or replace videos in one commit. See "Crash safety" above."""
        writer, state = self.require_writer(), self.state
        ends, rows, scanned = list(state.ends), dict[str, Row](), state.scanned
        for number, video in enumerate(videos, state.next_number):
            checksums, scanned = writer.write(ends, video.parts), video.scanned
            rows.pop(video.video_id, None)  # if an id comes twice, the last one wins and comes last
            rows[video.video_id] = video.manifest_row(number, ends, checksums)
            ends = [end + len(part) for end, part in zip(ends, video.parts, strict=True)]
        if not rows:
            return
        writer.sync()
        self.manifest.change(drop=self._manifest_rows(rows), add=list(rows.values()), ends=ends, scanned=scanned)
        self.damage.forget(rows)
        self.roster.extend(list(rows.values()))

    def remove(self, video_id: str) -> None:
        """Remove a video, intact or damaged.

        Raises:
            MissingTokens: The index does not contain the video.
        """
        self.require_writer()
        dropped = self._manifest_rows([video_id])
        if not dropped:
            raise missing_video(video_id, len(self.roster))
        self.manifest.change(drop=dropped)
        if video_id in self.roster.slot_of_id:
            self.roster.drop(video_id)
        self.damage.forget([video_id])

    def _manifest_rows(self, video_ids: Collection[str]) -> dict[int, int]:
        """Return the manifest rows of videos, intact or damaged, as checksums by number."""
        slots = self.roster.slot_of_id
        intact = dict(self.roster.row(slots[video_id]) for video_id in video_ids if video_id in slots)
        return intact | self.damage.rows_of(video_ids)

    # ------------------------------------------------------------ compaction

    def compact(self) -> None:
        """Copy all intact videos to a new volume, and delete the old one. See "Crash safety" above."""
        self.require_writer()
        self.verify()
        state = self.state
        paths, dtypes = _vector_files(self.folder, replace(state, volume=state.volume + 1))
        for path in paths:
            path.unlink(missing_ok=True)
        writer = None
        try:
            writer = VectorWriter(paths, dtypes)
            rows, ends = self._copy_to(writer)
            self.manifest.replace_all(rows, volume=state.volume + 1, ends=ends)
        finally:
            # Even if an error was raised, the commit may have succeeded: the manifest tells which volume is valid.
            with self.manifest.snapshot() as now:
                old, new = (self._writer, writer) if now.volume != state.volume else (writer, self._writer)
            if old is not None:
                old.close()
            self._writer = new
            self._load()
            self._remove_other_volumes()

    def _copy_to(self, writer: VectorWriter) -> tuple[list[Row], list[int]]:
        """Copy all intact videos. Return their new manifest rows, and the number of rows in each file."""
        ends, rows = [0] * len(self.files), list[Row]()
        for row in chain.from_iterable(self.manifest.rows()):
            slot = self.roster.slot_of_id.get(row.video_id) if row.is_intact() else None
            if slot is None:
                continue
            parts = read_parts(self.files, self.roster.extents(slot))
            writer.write(ends, parts)
            rows.append(row._replace(starts=np.array(ends, "<i8").tobytes()).signed())
            ends = [end + len(part) for end, part in zip(ends, parts, strict=True)]
        writer.sync()
        return rows, ends

    def _remove_other_volumes(self) -> None:
        """Delete the files that a compaction has replaced, or that an interrupted one has left."""
        for path in self.folder.iterdir():
            if volume_of(path) not in (None, self.state.volume):
                with suppress(OSError):  # the next writer tries again
                    path.unlink()


def _vector_files(folder: Path, state: State) -> tuple[list[Path], list["np.dtype[np.void]"]]:
    """Return the paths and the row types of the vector files."""
    paths, long_branches = file_paths(folder, state.volume, len(state.branch_weights)), with_norms(state.similarities)
    of_tokens = [token_dtype(state.width, norm=branch in long_branches) for branch in state.branch_weights]
    return paths, [coarse_dtype(state.width), *of_tokens]


def _lock(folder: Path) -> int:
    """Lock the folder against other writers, and return the file descriptor of the lock."""
    try:
        return lock(folder)
    except OSError as error:
        raise BadIndex(f"{folder} cannot be opened ({error.strerror}). Create an index there first.") from error
