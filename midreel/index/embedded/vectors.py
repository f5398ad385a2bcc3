"""The files that hold vectors: rows of one size, only ever appended, mapped into memory to be read.

A volume is a set of such files, one per plane. Plane 0 holds a few eight-bit vectors per window, which are scanned;
the plane of a branch holds its tokens: an eight-bit vector, the ninth bits, their scale, and the part of the window
that the token stands for.
"""

import mmap
import os
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from midreel.errors import BadIndex
from midreel.index.embedded.quantise import LEVELS, Array
from midreel.io.files import sync

_LARGE = 2**30  # bytes of a plane, from which not all that was read may count as this process's memory
_RESIDENT = 2**27  # bytes that may, then
_LARGEST_SCALE = np.float32(1 / (LEVELS - 1))  # of a token: its largest number is LEVELS, or a quarter less, times it


class BadRow(BadIndex):
    """A row that nobody wrote. The checksum of its video would tell, but is not looked at before it is scored."""

    def __init__(self, plane: "Plane", number: int) -> None:
        super().__init__(f"{plane.path}: row {number} is damaged: its scale is {plane.rows['scale'][number]}")
        self.plane, self.number = plane, number


def coarse_rows(width: int) -> "np.dtype[np.void]":
    return np.dtype([("vector", "i1", (width,))])


def token_rows(width: int) -> "np.dtype[np.void]":
    bits = -(-width // 8)
    return np.dtype([("vector", "i1", (width,)), ("bits", "u1", (bits,)), ("scale", "<f4"), ("span", "<f4", (2,))])


def plane_paths(folder: Path, volume: int, branches: int) -> list[Path]:
    return [folder / f"{volume:06}.{name}" for name in ("coarse", *(f"tokens{n}" for n in range(branches)))]


def volume_of(path: Path) -> int | None:
    """Which volume a file of the folder belongs to, if it is one of a volume's."""
    number, _, kind = path.name.partition(".")
    return int(number) if number.isdigit() and kind.startswith(("coarse", "tokens", "trained")) else None


class Plane:
    """A plane for reading: all the whole rows that its file holds; none, if the file is gone."""

    def __init__(self, path: Path, dtype: "np.dtype[np.void]") -> None:
        self.path, self.dtype, self._read = path, dtype, 0
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else None
        except FileNotFoundError:
            size, self._map = 0, None
        except OSError as error:
            raise BadIndex(
                f"{path} cannot be read ({error.strerror}). Check its permissions, or make the index again: midreel "
                f"reindex"
            ) from error
        whole = size // dtype.itemsize
        self.rows: Array = np.frombuffer(self._map, dtype, whole) if self._map is not None else np.zeros(0, dtype)
        self.bytes: Array = self.rows.view(np.uint8).reshape(whole, dtype.itemsize)

    def __len__(self) -> int:
        return len(self.rows)

    def between(self, start: int, end: int) -> Array:
        """Rows of tokens side by side, where they lie."""
        self._count(end - start)
        rows = self.rows[start:end]
        if (bad := _first_bad_scale(rows)) is not None:
            raise BadRow(self, start + bad)
        return rows

    def take(self, numbers: Array) -> Array:
        """Some of the rows of tokens, copied."""
        self._count(len(numbers))
        # By bytes: numpy copies rows of bytes at once, and records field by field.
        rows = self.bytes.take(numbers, 0).view(self.dtype)[:, 0]
        if (bad := _first_bad_scale(rows)) is not None:
            raise BadRow(self, int(numbers[bad]))
        return rows

    def _count(self, rows: int) -> None:
        """Lets go now and then of a large file, which would otherwise count as this process's memory, page by page."""
        self._read += rows * self.dtype.itemsize
        if self._read > _RESIDENT and self.bytes.nbytes > _LARGE:
            self.let_go()
            self._read = 0

    def checksum(self, start: int, end: int) -> int:
        return zlib.crc32(self.bytes[start:end].data)

    def let_go(self) -> None:
        """Lets the kernel count the pages read so far as its own, not as this process's."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


class Volume:
    """The planes of one volume for writing."""

    def __init__(self, paths: Sequence[Path], dtypes: Sequence["np.dtype[np.void]"]) -> None:
        self.paths, self._dtypes = list(paths), list(dtypes)
        with self._plainly():
            for path in paths:
                path.touch()
            # Numbers, not file objects, which would complain if they were forgotten instead of closed.
            self._files = [os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0)) for path in paths]
            self.close = weakref.finalize(self, _close, self._files)
            sync(paths[0].parent)

    def write(self, starts: Sequence[int], parts: Sequence[Array]) -> list[int]:
        """Puts rows into each plane from these row numbers on; returns their checksums. They last after `sync`."""
        sums = []
        with self._plainly():
            for file, dtype, start, part in zip(self._files, self._dtypes, starts, parts, strict=True):
                data = memoryview(part.tobytes())
                sums.append(zlib.crc32(data))
                os.lseek(file, start * dtype.itemsize, os.SEEK_SET)
                while data:
                    data = data[os.write(file, data) :]
        return sums

    def sync(self) -> None:
        with self._plainly():
            for file in self._files:
                os.fsync(file)

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadIndex(
                f"cannot write to {self.paths[0].parent} ({error.strerror}); make room, allow writing or mend the "
                f"disk, and run again: what was stored is kept"
            ) from error


def _first_bad_scale(rows: Array) -> int | None:
    # As integers, the bits of negative, infinite and undefined numbers are greater than those of positive ones.
    bits, largest = rows["scale"].view("<u4"), _LARGEST_SCALE.view("<u4")
    return int((bits > largest).argmax()) if len(bits) and bits.max() > largest else None


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
