"""The manifest in memory, as arrays: the videos of an index, and the position of each window in the vector files.

Each video has a slot: its number in the order of reading. Each window has a position: its number in the coarse file,
counting the windows of removed videos.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from midreel.index.embedded.manifest import Row
from midreel.index.embedded.quantise import Array

GONE = -1  # the slot of a position whose video was removed


class Roster:
    """The videos and windows of an index. The positions of removed videos stay, marked as GONE.

    Attributes:
        slot_of_id: The slot of each video.
        ids: The id of the video in each slot, including removed ones.
    """

    def __init__(self, num_branches: int, coarse: int) -> None:
        self._num_branches, self._coarse = num_branches, coarse
        self.slot_of_id: dict[str, int] = {}
        self.ids: list[str] = []
        # Indexed by slot.
        self._videos = _Columns(
            number=("i8", ()),
            checksum=("i8", ()),
            position=("i8", ()),
            windows=("i8", ()),
            starts=("i8", (1 + num_branches,)),
            sums=("u4", (1 + num_branches,)),
        )
        # Indexed by position.
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
    def num_positions(self) -> int:
        """The number of positions, including those of removed videos."""
        return self._windows.size

    @property
    def slots(self) -> Array:
        """The slot of the video at each position, or GONE."""
        return self._windows["slot"]

    @property
    def window_numbers(self) -> Array:
        """The number of the window at each position within its video."""
        return self._windows["window"]

    @property
    def scales(self) -> Array:
        """[positions, coarse]: the scales of the coarse rows."""
        return self._windows["scales"]

    @property
    def last_number(self) -> int:
        """The highest row number read from the manifest."""
        return int(self._videos["number"].max(initial=0))

    def row(self, slot: int) -> tuple[int, int]:
        """Return number and checksum of a video's row in the manifest."""
        return int(self._videos["number"][slot]), int(self._videos["checksum"][slot])

    def token_rows(self, branch: int) -> tuple[Array, Array]:
        """Return the first row and the number of rows of each position in the token file of a branch."""
        return self._windows["starts"][:, branch], self._windows["counts"][:, branch]

    def positions(self, slot: int) -> "range":
        """Return the positions of a video."""
        first = int(self._videos["position"][slot])
        return range(first, first + int(self._videos["windows"][slot]))

    def counts(self, slot: int) -> Array:
        """Return the numbers of tokens of a video: [windows, branches]."""
        positions = self.positions(slot)
        return self._windows["counts"][positions.start : positions.stop]

    def extents(self, slot: int) -> list[tuple[int, int, int]]:
        """Return first row, end row and checksum of a video in each vector file."""
        counts = self.counts(slot)
        lengths = [len(counts) * self._coarse, *counts.sum(0).tolist()]
        starts, sums = self._videos["starts"][slot].tolist(), self._videos["sums"][slot].tolist()
        return [(start, start + n, checksum) for start, n, checksum in zip(starts, lengths, sums, strict=True)]

    def slot_of_row(self, branch: int, row: int) -> int:
        """Return the video to which a row in the token file of a branch belongs."""
        starts, counts = self.token_rows(branch)
        return int(self.slots[np.flatnonzero((starts <= row) & (row < starts + counts) & (self.slots >= 0))[0]])

    def cut_off(self, file_lengths: Sequence[int]) -> list[int]:
        """Return the videos whose rows reach beyond the end of a vector file."""
        positions, windows = self._videos["position"], self._videos["windows"]
        if not len(positions):
            return []
        last = positions + windows - 1
        ends = [(last + 1) * self._coarse, *(self._windows["starts"] + self._windows["counts"])[last].T]
        short = np.any([end > length for end, length in zip(ends, file_lengths, strict=True)], 0)
        return [slot for slot in np.flatnonzero(short).tolist() if self.slot_of_id.get(self.ids[slot]) == slot]

    def extend(self, rows: Sequence[Row]) -> None:
        """Add the videos of manifest rows. A video that is already present moves to the new rows."""
        if not rows:
            return
        # Column by column, because there may be a hundred thousand rows.
        columns: dict[str, Any] = dict(zip(Row._fields, zip(*rows, strict=True), strict=True))
        base, ids = len(self.ids), [name.decode("utf-8", "surrogatepass") for name in columns["name"]]
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
        position = starts[:, 0] // self._coarse
        sums = _joined(columns["checksums"], "<u4").reshape(-1, 1 + self._num_branches)
        self._videos.put(
            np.arange(base, base + len(rows)),
            number=np.array(columns["number"]),
            checksum=np.array(columns["checksum"]),
            position=position,
            windows=windows,
            starts=starts,
            sums=sums,
        )
        self._windows.put(
            position[video] + window,
            slot=base + video,
            window=window,
            starts=starts[video, 1:] + before - before[first[video]],
            counts=counts,
            scales=_joined(columns["scales"], "<f4").reshape(-1, self._coarse),
        )

    def drop(self, video_id: str) -> None:
        """Remove a video."""
        positions = self.positions(self.slot_of_id.pop(video_id))
        self._windows["slot"][positions.start : positions.stop] = GONE

    def trim(self) -> None:
        """Forget the positions after the last video: their coarse rows may be missing in the file."""
        self._windows.size = int(np.flatnonzero(self.slots >= 0)[-1]) + 1 if len(self) else 0


class _Columns:
    """Arrays of one length that grow together. New lines are GONE (-1) in signed columns, and 0 in others."""

    def __init__(self, **columns: tuple[str, tuple[int, ...]]) -> None:
        self.size = 0
        self._arrays = {name: _blank(dtype, (64, *shape)) for name, (dtype, shape) in columns.items()}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name][: self.size]

    def put(self, lines: Array, **values: Array) -> None:
        """Set lines of all columns, and grow the arrays if necessary."""
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
