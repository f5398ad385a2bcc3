"""The directory of an index: its book and its files of rows, what of them is in memory, and how they change.

Rows are written and synced before the book says that they count, and are never changed afterwards; so a kill at any
moment leaves either the video or what was there before, and readers go on while a writer writes.
"""

import os
import weakref
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from midreel.errors import BadIndex
from midreel.index.base import absent
from midreel.index.embedded import vectors as planes
from midreel.index.embedded.damage import Damage, mended
from midreel.index.embedded.manifest import NAME, REBUILD, Manifest, Row, State
from midreel.index.embedded.roster import Roster
from midreel.index.embedded.rows import Stored, parts_of
from midreel.index.embedded.vectors import BadRow, Plane, Volume
from midreel.io.files import lock, make_folder

_ATTEMPTS = 5  # at reading a book whose volume is just being replaced


class Storage:
    """One process writes at a time; any number read. One thread at a time asks it something.

    A writer reads the book when it opens it, a reader when it is first asked something.
    """

    roster: Roster
    planes: list[Plane]
    damage: Damage

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self.folder, self.read_only = folder, read_only
        self._version: tuple[int, int] | None = None  # of the book, when it was last read
        # Also when it is forgotten instead of closed.
        self._unlock = weakref.finalize(self, os.close, _lock(folder)) if not read_only else None
        self._volume: Volume | None = None
        with ExitStack() as undo:
            if self._unlock:
                undo.callback(self._unlock)
            self.manifest = Manifest(folder / NAME, read_only=read_only)
            undo.callback(self.manifest.close)
            if not read_only:
                self._remove_leftovers()
                self._volume = Volume(*_files(folder, self.state))
                self._load()
            undo.pop_all()

    @staticmethod
    def create(folder: Path, state: State) -> None:
        if (folder / NAME).exists():
            raise BadIndex(f"{folder} holds an index already; open it, or choose another folder")
        try:
            make_folder(folder)
            handle = _lock(folder)
            try:
                Manifest.create(folder / NAME, state)
            finally:
                os.close(handle)
        except OSError as error:
            raise BadIndex(f"no index can be made in {folder} ({error.strerror}); choose another place") from error

    @property
    def state(self) -> State:
        return self.manifest.state

    def close(self) -> None:
        if self._volume is not None:
            self._volume.close()
        self.manifest.close()
        if self._unlock:
            self._unlock()

    # ------------------------------------------------------------ keeping what is in memory current

    def current(self) -> Roster:
        """The roster, after taking up what another process has committed."""
        if self._version is None:
            self._load()
        elif self.read_only and self.manifest.version() != self._version:
            self._take_up()
        self._map_what_grew()
        return self.roster

    def _take_up(self) -> None:
        """Reads what is new in the book, or all of it if that is not all that has changed."""
        old, version = self.state, self.manifest.version()
        with self.manifest.snapshot() as state:
            rows = list(chain.from_iterable(self.manifest.rows(after=self.roster.last_number)))
        added = sum(row.checksum for row in rows)
        only_new = (state.volume, state.videos, state.sum) == (old.volume, old.videos + len(rows), old.sum + added)
        if not only_new or not all(row.is_whole() for row in rows):
            self._load()
            return
        self.roster.extend(rows)
        self._map_planes()
        self._version = version
        if any(len(plane) < end for plane, end in zip(self.planes, state.ends, strict=True)):
            self._load()

    def _load(self) -> None:
        for _ in range(_ATTEMPTS):
            version = self.manifest.version()
            with self.manifest.snapshot():
                self._read_book()
            self._map_planes()
            if self.manifest.version() == version:  # else the files may have been replaced meanwhile
                break
        self._version = version
        cut_off = self.roster.cut_off([len(plane) for plane in self.planes])
        self._set_aside(dict.fromkeys(cut_off, f"is cut off, for a file of {self.folder} is shorter than it was"))
        if cut_off:
            self.roster.trim()

    def _read_book(self) -> None:
        path, state = self.manifest.path, self.state
        roster, losses = Roster(len(state.branch_weights), state.coarse), []
        number = lost = total = 0
        for rows in self.manifest.rows():
            whole = [row for row in rows if row.is_whole()]
            roster.extend(whole)
            number, lost = number + len(rows), lost + len(rows) - len(whole)
            total += sum(row.checksum for row in rows)
        if lost:
            losses.append(f"{path}: {lost} of {number} rows do not match their checksums; {REBUILD}")
        if (state.videos, state.sum) != (number, total):
            losses.append(f"{path} holds {number} videos, expected {state.videos}, or other ones; {REBUILD}")
        self.roster, self.damage = roster, Damage(losses)

    def _map_what_grew(self) -> None:
        if self._mapped != (self.state.volume, self.state.ends):
            self._map_planes()

    def _map_planes(self) -> None:
        self.planes = [Plane(path, dtype) for path, dtype in zip(*_files(self.folder, self.state), strict=True)]
        self._mapped = self.state.volume, self.state.ends

    # ------------------------------------------------------------ whether it is whole

    def sift(self, slots: Iterable[int], *, again: bool = False) -> bool:
        """Whether some of the videos are not what was written; these are set aside. The others are not read again,
        unless it is asked for."""
        reasons = self.damage.find(slots, self.roster, self.planes, again=again)
        self._set_aside(reasons)
        return bool(reasons)

    def sift_bad_row(self, row: BadRow) -> bool:
        """The same of the video that a row belongs to."""
        return self.sift([self.roster.slot_of_row(self.planes.index(row.plane) - 1, row.number)], again=True)

    def sift_all(self) -> None:
        self.sift(self.current().slot_of_id.values(), again=True)
        for plane in self.planes:
            plane.let_go()

    def _set_aside(self, reasons: Mapping[int, str]) -> None:
        """Takes out videos that are not whole; a writer brings back those of which only coarse rows are lost."""
        if not reasons:
            return
        if self._volume is not None:
            with suppress(BadIndex):  # a disk that is full: they can be brought back another time
                self.put(mended(reasons, self.roster, self.planes, self.state))
        self.damage.set_aside(reasons, self.roster)
        self._map_what_grew()

    # ------------------------------------------------------------ changing it

    def writable(self) -> Volume:
        if self._volume is None:
            raise BadIndex(f"{self.folder} is open for reading only; open it again without read_only=True")
        return self._volume

    def put(self, videos: Iterable[Stored]) -> None:
        """Adds videos, in the place of those of the same name, in one commit."""
        volume, state = self.writable(), self.state
        ends, rows, scanned = list(state.ends), dict[str, Row](), state.scanned
        for number, video in enumerate(videos, state.next_number):
            sums, scanned = volume.write(ends, video.parts), video.scanned
            rows.pop(video.video_id, None)
            rows[video.video_id] = video.row(number, ends, sums)
            ends = [end + len(part) for end, part in zip(ends, video.parts, strict=True)]
        if not rows:
            return
        volume.sync()
        self.manifest.change(drop=self._rows_of(rows), add=list(rows.values()), ends=ends, scanned=scanned)
        self.damage.forget(rows)
        self.roster.extend(list(rows.values()))

    def remove(self, video_id: str) -> None:
        self.writable()
        dropped = self._rows_of([video_id])
        if not dropped:
            raise absent(video_id, len(self.roster))
        self.manifest.change(drop=dropped)
        if video_id in self.roster.slot_of_id:
            self.roster.drop(video_id)
        self.damage.forget([video_id])

    def _rows_of(self, video_ids: Collection[str]) -> dict[int, int]:
        """Which rows of the book the videos have, whole or damaged, as checksums by number."""
        slots = self.roster.slot_of_id
        whole = dict(self.roster.row(slots[video_id]) for video_id in video_ids if video_id in slots)
        return whole | self.damage.rows_of(video_ids)

    # ------------------------------------------------------------ giving back room

    def compact(self) -> None:
        """Copies what is whole into a new volume and lets go of the old one."""
        self.writable()
        self.sift_all()
        state = self.state
        paths, dtypes = _files(self.folder, replace(state, volume=state.volume + 1))
        for path in paths:
            path.unlink(missing_ok=True)
        volume = None
        try:
            volume = Volume(paths, dtypes)
            rows, ends = self._copy_to(volume)
            self.manifest.replace_all(rows, volume=state.volume + 1, ends=ends)
        finally:
            # The book says which of them counts now; the other one goes.
            with self.manifest.snapshot() as now:
                old, new = (self._volume, volume) if now.volume != state.volume else (volume, self._volume)
            if old is not None:
                old.close()
            self._volume = new
            self._load()
            self._remove_leftovers()

    def _copy_to(self, volume: Volume) -> tuple[list[Row], list[int]]:
        """The rows of the book that its videos have there, and where each plane ends."""
        ends, rows = [0] * len(self.planes), list[Row]()
        for row in chain.from_iterable(self.manifest.rows()):
            slot = self.roster.slot_of_id.get(row.video_id) if row.is_whole() else None
            if slot is None:
                continue
            parts = parts_of(self.planes, self.roster.extents(slot))
            volume.write(ends, parts)
            rows.append(row._replace(starts=np.array(ends, "<i8").tobytes()).signed())
            ends = [end + len(part) for end, part in zip(ends, parts, strict=True)]
        volume.sync()
        return rows, ends

    def _remove_leftovers(self) -> None:
        """What a compaction leaves behind: the old volume, or, if it failed or was killed, a new one that does not
        count."""
        for path in self.folder.iterdir():
            if planes.volume_of(path) not in (None, self.state.volume):
                with suppress(OSError):  # tried again at the next opening
                    path.unlink()


def _files(folder: Path, state: State) -> tuple[list[Path], list["np.dtype[np.void]"]]:
    """Where the planes lie, and what their rows are."""
    branches = len(state.branch_weights)
    paths = planes.plane_paths(folder, state.volume, branches)
    return paths, [planes.coarse_rows(state.width), *[planes.token_rows(state.width)] * branches]


def _lock(folder: Path) -> int:
    """Keeps other writers out for as long as the returned file is open."""
    try:
        return lock(folder)
    except BlockingIOError as error:
        raise BadIndex(f"{folder} is being written by another; wait for it, or open it with read_only=True") from error
    except OSError as error:
        raise BadIndex(f"{folder} cannot be opened ({error.strerror}); create an index there first") from error
