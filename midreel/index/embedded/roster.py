"""The manifest of an index as arrays: where each window is stored, in the order of the rows in plane 0.

A window's place counts windows from the beginning of plane 0, those of removed videos included.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from midreel.index.embedded.manifest import Row
from midreel.index.embedded.quantise import Array

GONE = -1


class Roster:
    """Grows by rows of the book; a video that leaves it leaves its places behind."""

    def __init__(self, num_branches: int, coarse: int) -> None:
        self._num_branches, self._coarse = num_branches, coarse
        self.slot_of_id: dict[str, int] = {}
        self.ids: list[str] = []  # by slot, as everything that concerns a video
        self._videos = _Columns(
            number=("i8", ()),
            checksum=("i8", ()),
            place=("i8", ()),
            windows=("i8", ()),
            starts=("i8", (1 + num_branches,)),
            sums=("u4", (1 + num_branches,)),
        )
        self._windows = _Columns(
            slot=("i8", ()),
            window=("i8", ()),
            starts=("i8", (num_branches,)),
            counts=("i8", (num_branches,)),
            scales=("f4", (coarse,)),
        )

    def __len__(self) -> int:
        return len(self.slot_of_id)

    @property
    def num_places(self) -> int:
        return self._windows.size

    @property
    def slots(self) -> Array:
        """The video at each place, or GONE."""
        return self._windows["slot"]

    @property
    def window_numbers(self) -> Array:
        return self._windows["window"]

    @property
    def scales(self) -> Array:
        """Of the rows of plane 0, a line per place."""
        return self._windows["scales"]

    @property
    def last_number(self) -> int:
        """Of the rows of the book that were taken up."""
        return int(self._videos["number"].max(initial=0))

    def row(self, slot: int) -> tuple[int, int]:
        """Number and checksum of a video's row in the book."""
        return int(self._videos["number"][slot]), int(self._videos["checksum"][slot])

    def token_rows(self, branch: int) -> tuple[Array, Array]:
        """Where the tokens of each place begin in a branch's plane, and how many they are."""
        return self._windows["starts"][:, branch], self._windows["counts"][:, branch]

    def places(self, slot: int) -> "range":
        first = int(self._videos["place"][slot])
        return range(first, first + int(self._videos["windows"][slot]))

    def counts(self, slot: int) -> Array:
        """[windows, branches]: how many tokens each window of a video has."""
        places = self.places(slot)
        return self._windows["counts"][places.start : places.stop]

    def extents(self, slot: int) -> list[tuple[int, int, int]]:
        """A video's first row, the row behind its last and its checksum, in each plane."""
        counts = self.counts(slot)
        lengths = [len(counts) * self._coarse, *counts.sum(0).tolist()]
        starts, sums = self._videos["starts"][slot].tolist(), self._videos["sums"][slot].tolist()
        return [(start, start + n, checksum) for start, n, checksum in zip(starts, lengths, sums, strict=True)]

    def slot_of_row(self, branch: int, row: int) -> int:
        """The video that a row of a branch's plane belongs to."""
        starts, counts = self.token_rows(branch)
        return int(self.slots[np.flatnonzero((starts <= row) & (row < starts + counts) & (self.slots >= 0))[0]])

    def cut_off(self, plane_lengths: Sequence[int]) -> list[int]:
        """The videos whose rows are not all there."""
        places, windows = self._videos["place"], self._videos["windows"]
        if not len(places):
            return []
        last = places + windows - 1
        ends = [(last + 1) * self._coarse, *(self._windows["starts"] + self._windows["counts"])[last].T]
        short = np.any([end > length for end, length in zip(ends, plane_lengths, strict=True)], 0)
        return [slot for slot in np.flatnonzero(short).tolist() if self.slot_of_id.get(self.ids[slot]) == slot]

    def extend(self, rows: Sequence[Row]) -> None:
        """Takes up videos; one that is there already moves to where the new row says."""
        if not rows:
            return
        # Column by column, for there may be a hundred thousand.
        columns: dict[str, Any] = dict(zip(Row._fields, zip(*rows, strict=True), strict=True))
        base, ids = len(self.ids), [row.video_id for row in rows]
        for video_id in self.slot_of_id.keys() & ids:
            self.drop(video_id)
        self.ids += ids
        self.slot_of_id.update(zip(ids, range(base, len(self.ids)), strict=True))
        starts = _joined(columns["starts"], "<i8").reshape(-1, 1 + self._num_branches)
        counts = _joined(columns["counts"], "<u4").reshape(-1, self._num_branches).astype(np.int64)
        windows = np.fromiter(map(len, columns["counts"]), np.int64) // (4 * self._num_branches)
        first = np.cumsum(windows) - windows
        video = np.repeat(np.arange(len(rows)), windows)
        window = np.arange(len(video)) - first[video]
        before = np.cumsum(counts, 0) - counts
        place = starts[:, 0] // self._coarse
        sums = _joined(columns["checksums"], "<u4").reshape(-1, 1 + self._num_branches)
        self._videos.put(
            np.arange(base, base + len(rows)),
            number=np.array(columns["number"]),
            checksum=np.array(columns["checksum"]),
            place=place,
            windows=windows,
            starts=starts,
            sums=sums,
        )
        self._windows.put(
            place[video] + window,
            slot=base + video,
            window=window,
            starts=starts[video, 1:] + before - before[first[video]],
            counts=counts,
            scales=_joined(columns["scales"], "<f4").reshape(-1, self._coarse),
        )

    def drop(self, video_id: str) -> None:
        places = self.places(self.slot_of_id.pop(video_id))
        self._windows["slot"][places.start : places.stop] = GONE

    def trim(self) -> None:
        """Ends with the last place that a video has, for there may be no rows behind it."""
        self._windows.size = int(np.flatnonzero(self.slots >= 0)[-1]) + 1 if len(self) else 0


class _Columns:
    """Arrays of one length that grow together. A new line is all GONE (-1) where it is signed, else 0."""

    def __init__(self, **columns: tuple[str, tuple[int, ...]]) -> None:
        self.size = 0
        self._arrays = {name: _blank(dtype, (64, *shape)) for name, (dtype, shape) in columns.items()}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name][: self.size]

    def put(self, lines: Array, **values: Array) -> None:
        self.size = max(self.size, int(lines.max()) + 1)
        for name, value in values.items():
            array = self._arrays[name]
            if self.size > len(array):
                grown = _blank(array.dtype.str, (max(self.size, 2 * len(array)), *array.shape[1:]))
                grown[: len(array)] = array
                self._arrays[name] = array = grown
            array[lines] = value


def _blank(dtype: str, shape: tuple[int, ...]) -> Array:
    return np.full(shape, GONE if np.dtype(dtype).kind == "i" else 0, dtype)


def _joined(parts: Sequence[bytes], dtype: str) -> Array:
    return np.frombuffer(b"".join(parts), dtype)
