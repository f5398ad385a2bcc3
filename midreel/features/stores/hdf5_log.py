"""A log of entries in an HDF5 file: entries are only appended, and they survive a crash of the writer.

Only this module and flat_hdf5.py import h5py.

**File format.** A file has a header (a text) and tables. A table is an HDF5 group of HDF5 arrays that only grow:

    TABLE/index     one row per entry: where it ends, its origin, its checksum, and the mark `complete`
    TABLE/ids       the ids of all entries in UTF-8, concatenated
    TABLE/COLUMN    the values: one row per entry (the vector of a sentence) or, if the column is ragged, several
                    rows per entry, concatenated (the vectors of its words)

Entry n has the ragged rows from `index[n - 1].end` to `index[n].end`, and its id is found by `id_end` in the same way.
Entries are never changed. A new version of an entry is appended under the same id, and the last one counts.

**Crash safety.** HDF5 promises nothing about a file whose writer was killed, except in SWMR mode (single writer,
multiple readers). In this mode flushed data stays readable at any time, as long as HDF5 arrays only grow. So:

1. `HDF5Log.create` creates all HDF5 arrays in a temporary file, and renames it when it is complete.
2. `HDF5Log.append` first writes the values and flushes. Then it writes the rows of the index, which have the mark
   `complete`, and flushes again. After a crash in between, the values have no complete row in the index, so readers
   ignore them.
3. A killed writer leaves the file marked as open. The next writer sees this mark, copies the complete entries to a new
   file, and replaces the old one. It does the same if the index is damaged.
4. Readers take no lock. A reader sees the entries that were complete when it opened the file.

Checksums detect other damage: a lost write leaves zeros, which are valid numbers.
"""

import ctypes
import hashlib
import os
import shutil
import struct
import sys
import weakref
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from midreel.errors import BadStore, Unwritable
from midreel.io.files import lock, sync, write_errors

FORMAT = "midreel features, version 2"

Array = npt.NDArray[Any]
Entry = Mapping[str, Array]  # values by column

_INDEX = np.dtype([("end", "<i8"), ("id_end", "<i8"), ("origin", "<u8"), ("checksum", "<u4"), ("complete", "<u1")])
UNKNOWN = 0  # the origin of an entry that was appended without one

_CHUNK = 2**16  # bytes: a few chunks per video, and a small store stays small
_SPARE = 2**20  # free bytes that must be left on the disk after a write, for metadata of HDF5
_BATCH = 64  # entries that are copied at once
_ATTEMPTS = 20  # to read a piece of metadata that a writer is changing: about a millisecond in total

# The superblock of an HDF5 file, version 3: signature and version, sizes of addresses and lengths, consistency flags
# (not 0 while the file is open for writing), base address, address of the extension, length of the file.
_SUPERBLOCK = struct.Struct("<9s3B3Q")


def same_origin(one: int, other: int) -> bool:
    """Return whether two origins may be the same: they are equal, or one of them is unknown."""
    return one == other or UNKNOWN in (one, other)


@dataclass(frozen=True, kw_only=True)
class Column:
    """The type of a column.

    Attributes:
        dtype: The dtype of the numbers, in numpy's notation.
        width: The length of each vector. None for a column of numbers.
        ragged: Whether an entry has any number of rows. Otherwise it has one.
    """

    dtype: str
    width: int | None = None
    ragged: bool = False

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row: empty for a number."""
        return () if self.width is None else (self.width,)


Tables = Mapping[str, Mapping[str, Column]]
Keep = Mapping[str, Container[str]]  # ids by table


class _Table:
    """A table of an open file, with its index in memory."""

    def __init__(self, group: Any, *, left_open: bool) -> None:
        self.columns = {name: group[name] for name in group if name not in ("index", "ids")}
        self.ragged = {name for name, dataset in self.columns.items() if dataset.attrs["ragged"]}
        self._index, self._ids = group["index"], group["ids"]
        rows = self._index[:]
        if left_open:
            # The writer may have been killed. Ignore the first row without its mark, and all rows after it.
            rows = rows[: int(rows["complete"].argmin())] if not rows["complete"].all() else rows
        else:
            # The writer closed the file, so a missing mark is damage of this one row. Its checksum is still compared.
            rows = rows[: 1 + int(np.flatnonzero(rows["complete"]).max(initial=-1))]
        # Entry n has the ragged rows from bounds[n] to bounds[n + 1].
        self.bounds: list[int] = [0, *rows["end"].tolist()]
        self.checksums: list[int] = rows["checksum"].tolist()
        self.origins: list[int] = rows["origin"].tolist()
        id_bounds = [0, *rows["id_end"].tolist()]
        self._id_bytes = id_bounds[-1]
        names = self._ids[: max(id_bounds)].tobytes()
        # Of several entries with one id, the last one wins.
        self.number_of_id = {
            _decode_id(names[start:end]): number for number, (start, end) in enumerate(pairwise(id_bounds))
        }
        # After a damaged row of the index, an append would overwrite other entries.
        ends = {"end": min((len(self.columns[name]) for name in self.ragged), default=0), "id_end": len(self._ids)}
        self.is_consistent = bool(rows["complete"].all()) and all(
            np.all(np.diff(rows[name], prepend=0) >= 0) and rows[name].max(initial=0) <= length
            for name, length in ends.items()
        )

    def __len__(self) -> int:
        return len(self.checksums)

    @property
    def schema(self) -> dict[str, Column]:
        return {
            name: Column(
                dtype=dataset.dtype.str,
                width=dataset.shape[1] if dataset.ndim == 2 else None,
                ragged=name in self.ragged,
            )
            for name, dataset in self.columns.items()
        }

    def read(self, number: int) -> dict[str, Array]:
        start, end = self.bounds[number : number + 2]
        return {
            name: dataset[start:end] if name in self.ragged else np.asarray(dataset[number])
            for name, dataset in self.columns.items()
        }

    def write(self, entries: Mapping[str, Entry], origins: Mapping[str, int]) -> Array:
        """Write values after the last complete entry, and return the rows of the index that make them count."""
        rows = np.zeros(len(entries), _INDEX)
        rows["origin"] = [origins.get(key, UNKNOWN) for key in entries]
        names = [key.encode("utf-8", "surrogatepass") for key in entries]
        lengths = [len(next(entry[name] for name in self.ragged)) for entry in entries.values()]
        rows["end"] = np.cumsum(lengths) + self.bounds[-1]
        rows["id_end"] = np.cumsum([len(name) for name in names]) + self._id_bytes
        rows["checksum"] = [checksum(key, entry) for key, entry in entries.items()]
        rows["complete"] = 1
        for name, dataset in self.columns.items():
            values = [entry[name] for entry in entries.values()]
            if name in self.ragged:
                _write_rows(dataset, self.bounds[-1], np.concatenate(values))
            else:
                _write_rows(dataset, len(self), np.stack(values))
        _write_rows(self._ids, self._id_bytes, np.frombuffer(b"".join(names), np.uint8))
        return rows

    def complete(self, rows: Array) -> None:
        """Write rows of the index, so that their entries count."""
        _write_rows(self._index, len(self), rows)

    def remember(self, entries: Mapping[str, Entry], rows: Array) -> None:
        """Add rows of the index to those in memory."""
        self.number_of_id |= {key: len(self) + number for number, key in enumerate(entries)}
        self.bounds += rows["end"].tolist()
        self.checksums += rows["checksum"].tolist()
        self.origins += rows["origin"].tolist()
        self._id_bytes = int(rows["id_end"][-1])


class HDF5Log:
    """An open file of tables. One process at a time writes it; any number of processes read it meanwhile.

    Args:
        path: The file, which must exist.
        writable: Open the file for writing. A file that was left open or has a damaged index is repaired first.

    Raises:
        BadStore: If the file is missing, damaged, of another format.
        Locked: If another writer has opened the file.
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path, self.writable, self.process = path, writable, os.getpid()
        if writable:
            self._keep_lock(_lock(path))
            if _was_left_open(path) or not _is_consistent(path):
                copy_lock = _rewrite(path)
                self._unlock()
                self._keep_lock(copy_lock)
        left_open = _was_left_open(path)  # also raises BadStore for a truncated file, or one of another kind
        self._file = _open(path, writable=writable)
        if writable:
            _WRITERS.add(self)
        try:
            with _reading(path):
                self.header = str(self._file.attrs["header"])
                self._tables = {name: _Table(group, left_open=left_open) for name, group in self._file.items()}
        except BaseException:
            self.close()
            raise

    @staticmethod
    def create(path: Path, header: str, tables: Tables) -> None:
        """Create a file with empty tables. It appears under its name only when it is complete.

        Args:
            path: The new file. Missing folders are created.
            header: A text that is stored in the file.
            tables: The columns of each table, by name.

        Raises:
            BadStore: If the file exists.
            Unwritable: If the file cannot be written.
        """
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with write_errors(path), _temporary_name(path) as temporary:
            _create_file(temporary, header, tables)
            if path.exists():
                raise BadStore(f"{path} already exists, expected a new file. Open it, or delete it first.")
            temporary.replace(path)

    @staticmethod
    def compact(path: Path, keep: Keep) -> None:
        """Rewrite a file without damaged entries, and without entries that are not needed.

        A new file replaces the old one, so the file is complete at any time. Open readers continue to read the old one.

        Args:
            path: The file.
            keep: The ids to keep, by table. All entries of other tables are kept.

        Raises:
            Unwritable: If the file cannot be rewritten. It is unchanged then.
        """
        handle = _lock(path)
        try:
            os.close(_rewrite(path, keep))
        finally:
            os.close(handle)

    def expect(self, tables: Tables) -> None:
        """Raise BadStore unless the file has these tables, with these columns."""
        found = {name: table.schema for name, table in self._tables.items()}
        for name, columns in tables.items():
            if found.get(name) != columns:
                raise BadStore(f"{self.path} has no table {name!r} with the expected columns. {_RESTORE}")

    def ids(self, table: str) -> list[str]:
        """Return the ids of a table, in the order in which they were first appended."""
        return list(self._tables[table].number_of_id)

    def has(self, table: str, key: str) -> bool:
        """Return whether a table has an entry."""
        return key in self._tables[table].number_of_id

    def read(self, table: str, key: str) -> dict[str, Array] | None:
        """Return the values of an entry by column, or None if there is no such entry.

        Raises:
            BadStore: If the entry cannot be read, or its checksum is wrong.
        """
        number = self._tables[table].number_of_id.get(key)
        if number is None:
            return None
        with _reading(self.path):
            entry = self._tables[table].read(number)
        if checksum(key, entry) != self._tables[table].checksums[number]:
            raise BadStore(f"{self.path}: {key!r} in {table} is damaged, its checksum is wrong. {_RESTORE}")
        return entry

    def origin(self, table: str, key: str) -> int:
        """Return the origin of an entry: a hash of its source, or UNKNOWN."""
        return self._tables[table].origins[self._tables[table].number_of_id[key]]

    def digest(self, table: str, keys: Iterable[str]) -> str:
        """Return a hash of the entries with these ids, from their checksums. Missing entries are ignored."""
        found = self._tables[table]
        return digest_of({key: found.checksums[found.number_of_id[key]] for key in keys if self.has(table, key)})

    def append(self, table: str, entries: Mapping[str, Entry], origins: Mapping[str, int] | None = None) -> None:
        """Add entries. After a crash or an error, each entry is either stored completely or not at all.

        Args:
            table: The table.
            entries: The values of each entry, by id.
            origins: The origin of each entry, by id. An entry with a new origin replaces the stored one.

        Raises:
            BadStore: If an entry is already stored with the same or an unknown origin.
            Unwritable: If the disk is full.
        """
        if not entries:
            return
        origins = origins or {}
        stored = [
            key
            for key in entries
            if self.has(table, key) and origins.get(key, UNKNOWN) in (UNKNOWN, self.origin(table, key))
        ]
        if stored:
            raise BadStore(f"{self.path} already has {stored[0]!r} in {table}. Add only new ids.")
        self._expect_free_space(sum(column.nbytes for entry in entries.values() for column in entry.values()))
        try:
            rows = self._tables[table].write(entries, origins)
            self._file.flush()
            self._tables[table].complete(rows)
            self._file.flush()
        except (OSError, RuntimeError) as error:
            self._discard_writes()
            self.close()
            raise Unwritable(
                f"{self.path} cannot be written ({error}). Free disk space or repair the disk, and run again: stored "
                f"entries are kept."
            ) from error
        self._tables[table].remember(entries, rows)

    def close(self) -> None:
        """Close the file, and release the lock of a writer."""
        if self._file:  # h5py: false if the file is closed
            try:
                self._file.flush()
            except (OSError, RuntimeError):
                self._discard_writes()
            self._file.close()
        if self.writable:
            self._unlock()
            _WRITERS.discard(self)

    def _keep_lock(self, handle: int) -> None:
        self._unlock = weakref.finalize(self, os.close, handle)
        # At exit, HDF5 closes the file after all finalizers have run. The lock must last until then.
        self._unlock.atexit = False

    def _expect_free_space(self, size: int) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if free < size + _SPARE:
            raise Unwritable(
                f"the disk of {self.path} has {free / 1e6:.1f} MB free, expected {(size + _SPARE) / 1e6:.1f} MB. Free "
                f"some space and run again: stored entries are kept."
            )

    def _discard_writes(self) -> None:
        """Redirect all further writes of HDF5 to /dev/null.

        HDF5 writes cached data again when it closes a file. If the file cannot be written, this crashes at exit.
        """
        sink = os.open(os.devnull, os.O_RDWR)
        os.dup2(sink, self._file.id.get_vfd_handle())
        os.close(sink)


_WRITERS: "weakref.WeakSet[HDF5Log]" = weakref.WeakSet()


def _close_writers_of_parent() -> None:
    """Close the writers that a forked process inherits, without writing.

    Otherwise HDF5 closes them when the child exits, and writes to files that the parent still writes.
    """
    for log in list(_WRITERS):
        log._discard_writes()
        log.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_writers_of_parent)


def digest_of(checksums: Mapping[str, int]) -> str:
    """Return a hash of entries, from their checksums by id."""
    return hashlib.sha256(repr(sorted(checksums.items())).encode("utf-8", "surrogatepass")).hexdigest()


def checksum(key: str, entry: Entry) -> int:
    """Return the CRC-32 of the id and the values of an entry, in the byte order of the file."""
    value = zlib.crc32(key.encode("utf-8", "surrogatepass"))
    for name in sorted(entry):
        value = zlib.crc32(np.ascontiguousarray(entry[name]).data, value)
    return value


_RESTORE = "Restore it from a backup, or move it away and run midreel extract or midreel index again."


def _decode_id(name: bytes) -> str:
    """Decode an id. A damaged one becomes an id that no caller asks for."""
    try:
        return name.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return name.decode("utf-8", "replace")


def _write_rows(dataset: Any, start: int, values: Array) -> None:
    end = start + len(values)
    if end > len(dataset):
        dataset.resize(end, axis=0)
    if len(values):
        dataset[start:end] = values


def _create_file(path: Path, header: str, tables: Tables) -> None:
    with h5py.File(path, "w", libver="v110", locking=False) as file:
        file.attrs.update({"format": FORMAT, "header": header})
        for table, columns in tables.items():
            group = file.create_group(table)
            _create_dataset(group, "index", _INDEX, ())
            _create_dataset(group, "ids", np.dtype(np.uint8), ())
            for name, column in columns.items():
                _create_dataset(group, name, np.dtype(column.dtype), column.row_shape).attrs["ragged"] = column.ragged


def _create_dataset(group: Any, name: str, dtype: "np.dtype[Any]", row_shape: tuple[int, ...]) -> Any:
    rows = max(1, _CHUNK // (dtype.itemsize * int(np.prod(row_shape))))
    return group.create_dataset(
        name, shape=(0, *row_shape), maxshape=(None, *row_shape), chunks=(rows, *row_shape), dtype=dtype
    )


# The errors that h5py and numpy raise for a damaged file.
_UNREADABLE = (
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)


def _open(path: Path, *, writable: bool) -> Any:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_file_locking(False, True)
    _limit_attempts(access)
    # h5py.File would open the file first and start SWMR mode later. A writer that is killed in between leaves a file
    # that cannot be opened, so use the low-level API, which does both at once.
    read, write = h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ, h5py.h5f.ACC_RDWR | h5py.h5f.ACC_SWMR_WRITE
    try:
        file = h5py.File(h5py.h5f.open(os.fsencode(path), write if writable else read, access))
        found = file.attrs.get("format")
    except _UNREADABLE as error:
        remedy = f"Close other stores of this file in this process. {_RESTORE}" if writable else _RESTORE
        raise BadStore(f"{path} cannot be opened ({error}). {remedy}") from error
    if found != FORMAT:
        file.close()
        raise BadStore(
            f"{path} has the format {found!r}, expected {FORMAT!r}. Extract the features with this version of midreel."
        )
    return file


def _limit_attempts(access: Any) -> None:
    """Limit the attempts to read metadata, so that damaged metadata is an error.

    By default, a reader in SWMR mode tries a hundred times and doubles the waiting time each time. h5py does not expose
    this setting, so this calls the HDF5 library that h5py has loaded.
    """
    try:
        limit = ctypes.CDLL(h5py.h5p.__file__).H5Pset_metadata_read_attempts
    except (AttributeError, OSError):
        return
    with h5py._objects.phil:
        limit(ctypes.c_int64(access.id), ctypes.c_uint(_ATTEMPTS))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of h5py and numpy into BadStore."""
    try:
        yield
    except _UNREADABLE as error:
        raise BadStore(f"{path} cannot be read, it may be truncated ({error}). {_RESTORE}") from error


def _lock(path: Path) -> int:
    """Lock a file against other writers, in this process and others, and return the handle that holds the lock.

    HDF5 has locks of its own, but it releases them when SWMR mode starts.
    """
    while True:
        try:
            handle = lock(path, os.O_RDWR)
        except FileNotFoundError as error:
            raise _no_file(path) from error
        except OSError as error:
            raise Unwritable(f"{path} cannot be written ({error}). Change its permissions, or copy it.") from error
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
        os.close(handle)  # another writer has replaced the file since: lock the new one


def _was_left_open(path: Path) -> bool:
    """Return whether a file is marked as open for writing: it is being written, or its writer was killed.

    Raises:
        BadStore: If the file is missing, truncated or not an HDF5 file of this version.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_SUPERBLOCK.size)
    except FileNotFoundError as error:
        raise _no_file(path) from error
    except OSError as error:
        raise BadStore(f"{path} cannot be read ({error.strerror}). Check its permissions and its disk.") from error
    if not start.startswith(b"\x89HDF\r\n\x1a\n\x03") or len(start) < _SUPERBLOCK.size:
        raise BadStore(f"{path} is not a feature store, or it is truncated. {_RESTORE}")
    *_, flags, _, _, end = _SUPERBLOCK.unpack(start)
    size = path.stat().st_size
    # While the file is being written, its recorded length is not up to date.
    if not flags and size < end:
        raise BadStore(f"{path} is truncated: it has {size} bytes, expected {end}. {_RESTORE}")
    return bool(flags)


def _is_consistent(path: Path) -> bool:
    """Return whether entries can be appended without overwriting others."""
    log = HDF5Log(path)
    try:
        return all(table.is_consistent for table in log._tables.values())
    finally:
        log.close()


def _rewrite(path: Path, keep: Keep | None = None) -> int:
    """Copy the readable entries to a new file, replace the old file by it, and return the lock of the new file.

    Of a table in `keep`, only the entries with these ids are copied.
    """
    old = HDF5Log(path)
    with write_errors(path), _temporary_name(path) as temporary:
        _create_file(temporary, old.header, {name: table.schema for name, table in old._tables.items()})
        new = HDF5Log(temporary, writable=True)
        for name in old._tables:
            for batch in _batches(old, name, (keep or {}).get(name)):
                new.append(name, batch, {key: old.origin(name, key) for key in batch})
        new.close()
        old.close()
        # Lock the new file before it gets its name, so that no other writer comes first. Sync it before the rename:
        # otherwise a power failure could leave neither the old file nor the new one.
        handle = _lock(temporary)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    return handle


def _batches(log: HDF5Log, table: str, keep: Container[str] | None) -> Iterator[dict[str, Entry]]:
    """Yield the readable entries of a table in batches. Damaged entries are left out, to be extracted again."""
    batch: dict[str, Entry] = {}
    for key in log.ids(table):
        if keep is not None and key not in keep:
            continue
        try:
            batch[key] = log.read(table, key) or {}
        except BadStore as error:
            if getattr(error.__cause__, "errno", None) is not None:
                raise  # the disk failed, perhaps only now: do not drop the entry
            continue
        if len(batch) == _BATCH:
            yield batch
            batch = {}
    yield batch


@contextmanager
def _temporary_name(path: Path) -> Iterator[Path]:
    """Yield a name in the same folder, from which a file can be renamed atomically. Remove the file at the end."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _no_file(path: Path) -> BadStore:
    return BadStore(f"{path} does not exist, expected a feature store. Run midreel extract first.")
