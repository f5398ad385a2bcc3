"""The vector files of an index: rows of fixed size, appended and never changed, read through memory maps.

See `midreel.index.embedded.storage` for the format.
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
from midreel.index.base import LONGEST
from midreel.index.embedded.quantise import LEVELS, Array
from midreel.io.files import sync, write_errors

# The kernel counts mapped pages that were read as memory of this process. For large files, drop them now and then.
_LARGE_FILE = 2**30  # bytes
_MAX_RESIDENT = 2**27  # bytes read from a large file before its pages are dropped
# The kernel reads megabytes around each page of a mapped file that is not in memory. A search reads a few kilobytes at
# many places, so it says what it will read, in blocks.
_BLOCK = 2**14  # bytes, a multiple of the size of a page
_MAX_SCALE = np.float32(1 / (LEVELS - 1))  # 1 / scale is the length of a vector with a value of LEVELS - 0.25 or more
_LIMITS = {"scale": _MAX_SCALE, "norm": np.float32(LONGEST)}


class BadRow(BadIndex):
    """A row that is visibly damaged, found before the checksum of its video was verified."""

    def __init__(self, file: "VectorFile", number: int) -> None:
        row = file.rows[number]
        found = " and ".join(f"its {name} is {row[name]}" for name in _LIMITS if name in fields_of(file.rows))
        super().__init__(f"{file.path}: row {number} is damaged, {found}.")
        self.file, self.number = file, number


def coarse_dtype(width: int) -> "np.dtype[np.void]":
    """Return the dtype of the rows of a coarse file."""
    return np.dtype([("vector", "i1", (width,))])


def token_dtype(width: int, *, norm: bool = False) -> "np.dtype[np.void]":
    """Return the dtype of the rows of a token file.

    Args:
        width: The width of the vectors.
        norm: Whether the rows have the length of the token.
    """
    fields = [("vector", "i1", (width,)), ("bits", "u1", (-(-width // 8),)), ("scale", "<f4"), ("span", "<f4", (2,))]
    return np.dtype([*fields, ("norm", "<f4")] if norm else fields)


def fields_of(rows: Array) -> tuple[str, ...]:
    """Return the names of the fields of rows."""
    return rows.dtype.names or ()


def file_paths(folder: Path, volume: int, branches: int) -> list[Path]:
    """Return the paths of the vector files of a volume: the coarse file, then one token file per branch.

    Args:
        folder: The folder of the index.
        volume: The number of the volume.
        branches: The number of branches.
    """
    return [folder / f"{volume:06}.{name}" for name in ("coarse", *(f"tokens{n}" for n in range(branches)))]


def volume_of(path: Path) -> int | None:
    """Return the volume to which a file belongs, or None if it belongs to none."""
    number, _, kind = path.name.partition(".")
    return int(number) if number.isdigit() and kind.startswith(("coarse", "tokens", "trained")) else None


class VectorFile:
    """A vector file, mapped for reading. A missing file has no rows.

    Attributes:
        path: The file.
        dtype: The type of a row.
        rows: All complete rows of the file.
    """

    def __init__(self, path: Path, dtype: "np.dtype[np.void]") -> None:
        self.path, self.dtype, self._num_read = path, dtype, 0
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else None
        except FileNotFoundError:
            size, self._map = 0, None
        except OSError as error:
            raise BadIndex(
                f"{path} cannot be read ({error.strerror}). Check its permissions, or run midreel reindex."
            ) from error
        num_rows = size // dtype.itemsize
        self.rows: Array = np.frombuffer(self._map, dtype, num_rows) if self._map is not None else np.zeros(0, dtype)
        self._bytes: Array = self.rows.view(np.uint8).reshape(num_rows, dtype.itemsize)
        self._is_fetched = np.zeros(-(-size // _BLOCK), bool)
        self._is_all_fetched = not size
        self._advise("MADV_RANDOM")

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, starts: Array, ends: Array) -> None:
        """Tell the kernel which ranges of rows will be read. It then reads all of them from the disk at the same time.

        Each block is fetched once. If the kernel needs its memory for something else, later reads wait for the disk.
        """
        if self._is_all_fetched:
            return
        first, last = starts * self.dtype.itemsize // _BLOCK, (ends * self.dtype.itemsize - 1) // _BLOCK
        counts = last - first + 1
        blocks = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        is_new = np.zeros_like(self._is_fetched)
        is_new[blocks] = True
        blocks = np.flatnonzero(is_new & ~self._is_fetched)
        if len(blocks):
            self._is_fetched[blocks] = True
            self._is_all_fetched = bool(self._is_fetched.all())
            for run in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
                self._advise("MADV_WILLNEED", int(run[0]) * _BLOCK, len(run) * _BLOCK)

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Read large parts of the file from start to end in this block. The kernel then reads ahead."""
        self._advise("MADV_NORMAL")
        try:
            yield
        finally:
            self._advise("MADV_RANDOM")

    def _advise(self, name: str, start: int = 0, length: int | None = None) -> None:
        if self._map is not None and hasattr(mmap, name):
            length = len(self._map) - start if length is None else min(length, len(self._map) - start)
            self._map.madvise(getattr(mmap, name), start, length)

    def between(self, start: int, end: int) -> Array:
        """Return a range of token rows without copying them.

        Raises:
            BadRow: A row is damaged.
        """
        self._count(end - start)
        rows = self.rows[start:end]
        if (bad := _first_bad(rows)) is not None:
            raise BadRow(self, start + bad)
        return rows

    def take(self, numbers: Array) -> Array:
        """Return a copy of some token rows.

        Raises:
            BadRow: A row is damaged.
        """
        self._count(len(numbers))
        # As bytes: numpy copies a row of bytes at once, but a record field by field.
        rows = self._bytes.take(numbers, 0).view(self.dtype)[:, 0]
        if (bad := _first_bad(rows)) is not None:
            raise BadRow(self, int(numbers[bad]))
        return rows

    def checksum(self, start: int, end: int) -> int:
        """Return the CRC-32 of a range of rows."""
        return zlib.crc32(self._bytes[start:end].data)

    def drop_pages(self) -> None:
        """Tell the kernel that this process does not need the pages read so far. They stay in the disk cache."""
        self._advise("MADV_DONTNEED")

    def _count(self, num_rows: int) -> None:
        self._num_read += num_rows * self.dtype.itemsize
        if self._num_read > _MAX_RESIDENT and self._bytes.nbytes > _LARGE_FILE:
            self.drop_pages()
            self._num_read = 0


class VectorWriter:
    """The vector files of one volume, open for writing.

    The files and their names are on the disk when the constructor returns.

    Raises:
        BadIndex: A name is taken by a folder.
        Unwritable: The files cannot be written. All methods raise it.
    """

    def __init__(self, paths: Sequence[Path], dtypes: Sequence["np.dtype[np.void]"]) -> None:
        self.paths, self._dtypes = list(paths), list(dtypes)
        if folders := [path for path in paths if path.is_dir()]:
            raise BadIndex(f"{folders[0]} is a folder, expected a vector file. Move it away, and run midreel reindex.")
        with write_errors(self.paths[0].parent):
            for path in paths:
                path.touch()
            # Descriptors, because file objects would warn if they were garbage-collected instead of closed.
            self._files = [os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0)) for path in paths]
            self.close = weakref.finalize(self, _close, self._files)
            sync(paths[0].parent)

    def write(self, starts: Sequence[int], parts: Sequence[Array]) -> list[int]:
        """Write rows to each file, and return their checksums. They are durable after `sync`.

        Args:
            starts: The number of the first row in each file.
            parts: The rows for each file.
        """
        checksums = []
        with write_errors(self.paths[0].parent):
            for file, dtype, start, part in zip(self._files, self._dtypes, starts, parts, strict=True):
                data = memoryview(part.tobytes())
                checksums.append(zlib.crc32(data))
                os.lseek(file, start * dtype.itemsize, os.SEEK_SET)
                while data:
                    data = data[os.write(file, data) :]
        return checksums

    def sync(self) -> None:
        """Flush all files to the disk."""
        with write_errors(self.paths[0].parent):
            for file in self._files:
                os.fsync(file)


def _first_bad(rows: Array) -> int | None:
    """Return the number of the first row whose scale or norm is negative, not finite or too large."""
    for name, limit in _LIMITS.items():
        if name in fields_of(rows) and len(rows):
            # Compared as unsigned integers, the bits of negative, infinite and NaN floats exceed those of valid ones.
            bits, largest = rows[name].view("<u4"), limit.view("<u4")
            if bits.max() > largest:
                return int((bits > largest).argmax())
    return None


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
