"""An HDF5 file of tables to which entries are only ever appended. With flat_hdf5.py the only file that imports h5py.

HDF5 makes no promise about a file whose writer was killed, except in its SWMR mode (single writer, multiple readers):
there, what is flushed stays readable at any moment, as long as datasets only grow. So all datasets exist from the
start, entries lie end to end in them, and an entry counts once its row of the index says `complete`, which is written
after the entry itself has been flushed:

    table/index   a row per entry: where it ends in each dataset, what it was made from, its checksum, complete
    table/ids     the ids, UTF-8, end to end
    table/<name>  a column: one row per entry (a sentence's vector) or, if ragged, several (the vectors of its words)

An entry whose origin has changed is appended again; the last of an id counts. A reader opened at any time sees the
complete entries. A writer that died leaves the file marked as open; the next writer copies the complete entries into a
new file and takes that, as it does if the index is damaged. Rows after the last complete entry are overwritten.
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

from midreel.errors import BadStore
from midreel.io.files import lock, sync

FORMAT = "midreel features, version 2"

Array = npt.NDArray[Any]
Entry = Mapping[str, Array]  # by column

_INDEX = np.dtype([("end", "<i8"), ("id_end", "<i8"), ("origin", "<u8"), ("checksum", "<u4"), ("complete", "<u1")])
UNKNOWN = 0  # the origin of an entry of which nobody said it

_CHUNK = 2**16  # bytes; a video's frames are a few of them, and a small store stays small
_SPARE = 2**20  # bytes that a disk must have left after a write, for HDF5's own needs
_BATCH = 64  # entries that are copied at a time
_ATTEMPTS = 20  # at reading a piece of metadata that is just being written: a millisecond in all

# Signature and version, sizes of addresses and lengths, marks of being written, two addresses, the length of the file.
_FIRST_BLOCK = struct.Struct("<9s3B3Q")


def same_origin(one: int, other: int) -> bool:
    """Whether nothing is known to have changed from one to the other."""
    return one == other or UNKNOWN in (one, other)


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a column holds: a number (no width) or a vector, once per entry or, if ragged, once per row of it."""

    dtype: str
    width: int | None = None
    ragged: bool = False

    @property
    def row_shape(self) -> tuple[int, ...]:
        return () if self.width is None else (self.width,)


Tables = Mapping[str, Mapping[str, Column]]
Keep = Mapping[str, Container[str]]  # keys, by table


class _Table:
    """One table of an open file, its index in memory."""

    def __init__(self, group: Any, *, left_open: bool) -> None:
        self.columns = {name: group[name] for name in group if name not in ("index", "ids")}
        self.ragged = {name for name, dataset in self.columns.items() if dataset.attrs["ragged"]}
        self._index, self._ids = group["index"], group["ids"]
        rows = self._index[:]
        if left_open:  # a row whose writing was cut off, and all after it, do not count
            rows = rows[: int(rows["complete"].argmin())] if not rows["complete"].all() else rows
        else:  # a mark that is missing is damage, and the entry's checksum tells whether more is
            rows = rows[: 1 + int(np.flatnonzero(rows["complete"]).max(initial=-1))]
        self.bounds: list[int] = [
            0,
            *rows["end"].tolist(),
        ]  # entry n has the ragged rows from bounds[n] to bounds[n + 1]
        self.checksums: list[int] = rows["checksum"].tolist()
        self.origins: list[int] = rows["origin"].tolist()
        id_bounds = [0, *rows["id_end"].tolist()]
        self._id_bytes = id_bounds[-1]
        names = self._ids[: max(id_bounds)].tobytes()
        self.number_of_id = {_id(names[start:end]): number for number, (start, end) in enumerate(pairwise(id_bounds))}
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
        """Writes the entries after the last complete one, and returns the rows of the index that complete them."""
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
                _put(dataset, self.bounds[-1], np.concatenate(values))
            else:
                _put(dataset, len(self), np.stack(values))
        _put(self._ids, self._id_bytes, np.frombuffer(b"".join(names), np.uint8))
        return rows

    def complete(self, rows: Array) -> None:
        _put(self._index, len(self), rows)

    def remember(self, entries: Mapping[str, Entry], rows: Array) -> None:
        self.number_of_id |= {key: len(self) + number for number, key in enumerate(entries)}
        self.bounds += rows["end"].tolist()
        self.checksums += rows["checksum"].tolist()
        self.origins += rows["origin"].tolist()
        self._id_bytes = int(rows["id_end"][-1])


class Ledger:
    """An open file of tables. One process writes at a time; any number read, also while it is written."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path, self.writable, self.process = path, writable, os.getpid()
        if writable:
            self._hold(_lock(path))
            if _was_left_open(path) or not _is_consistent(path):
                copy_lock = _salvage(path)
                self._unlock()
                self._hold(copy_lock)
        left_open = _was_left_open(path)  # refuses what is no store, or not all of it
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
        """A new file with empty tables. It appears under its name only when it is whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with _beside(path) as temporary:
            _make(temporary, header, tables)
            if path.exists():
                raise BadStore(f"{path} exists already, expected a new file; open it, or delete it first")
            temporary.replace(path)

    @staticmethod
    def compact(path: Path, keep: Keep) -> None:
        """Makes the file anew without the entries that nobody needs any more, and without those that are damaged.

        It is whole at any moment; those who read it meanwhile go on reading what was there.
        """
        lock = _lock(path)
        try:
            os.close(_salvage(path, keep))
        except OSError as error:
            raise BadStore(f"{path} cannot be made anew ({error}); make room and run again: it is as it was") from error
        finally:
            os.close(lock)

    def expect(self, tables: Tables) -> None:
        """Raise BadStore unless the file has these tables, with these columns."""
        found = {name: table.schema for name, table in self._tables.items()}
        for name, columns in tables.items():
            if found.get(name) != columns:
                raise BadStore(
                    f"{self.path} has no table {name!r} of the columns that its fingerprint asks for; {_COPY_AGAIN}"
                )

    def ids(self, table: str) -> list[str]:
        """The complete entries, in the order in which they came."""
        return list(self._tables[table].number_of_id)

    def has(self, table: str, key: str) -> bool:
        return key in self._tables[table].number_of_id

    def read(self, table: str, key: str) -> dict[str, Array] | None:
        """The columns of one entry, or None if there is no such entry."""
        number = self._tables[table].number_of_id.get(key)
        if number is None:
            return None
        with _reading(self.path):
            entry = self._tables[table].read(number)
        if checksum(key, entry) != self._tables[table].checksums[number]:
            raise BadStore(
                f"{self.path}: what is stored of {key!r} in {table} does not match its checksum, so it was damaged; "
                f"{_COPY_AGAIN}"
            )
        return entry

    def origin(self, table: str, key: str) -> int:
        """A number that tells what an entry was made from; UNKNOWN, if nobody said."""
        return self._tables[table].origins[self._tables[table].number_of_id[key]]

    def digest(self, table: str, keys: Iterable[str]) -> str:
        """Of the entries of these ids that are stored, without reading them."""
        found = self._tables[table]
        sums = [(key, found.checksums[found.number_of_id[key]]) for key in sorted(set(keys)) if self.has(table, key)]
        return hashlib.sha256(repr(sums).encode("utf-8", "surrogatepass")).hexdigest()

    def append(self, table: str, entries: Mapping[str, Entry], origins: Mapping[str, int] | None = None) -> None:
        """Adds entries: all of them or, whatever happens, none that is not whole. One that was made from something
        else than the stored one of its id takes its place."""
        if not entries:
            return
        origins = origins or {}
        stored = [
            key
            for key in entries
            if self.has(table, key) and origins.get(key, UNKNOWN) in (UNKNOWN, self.origin(table, key))
        ]
        if stored:
            raise BadStore(f"{self.path} holds {stored[0]!r} in {table} already; skip what is stored")
        self._expect_room(sum(column.nbytes for entry in entries.values() for column in entry.values()))
        try:
            rows = self._tables[table].write(entries, origins)
            self._file.flush()
            self._tables[table].complete(rows)
            self._file.flush()
        except (OSError, RuntimeError) as error:
            self._divert()
            self.close()
            raise BadStore(
                f"cannot write to {self.path} ({error}); make room or mend the disk and run again: what was stored "
                f"is kept"
            ) from error
        self._tables[table].remember(entries, rows)

    def close(self) -> None:
        if self._file:  # h5py's word for: not closed yet
            try:
                self._file.flush()
            except (OSError, RuntimeError):
                self._divert()
            self._file.close()
        if self.writable:
            self._unlock()
            _WRITERS.discard(self)

    def _hold(self, lock: int) -> None:
        self._unlock = weakref.finalize(self, os.close, lock)
        self._unlock.atexit = False  # HDF5 is still to close the file then

    def _expect_room(self, size: int) -> None:
        free = shutil.disk_usage(self.path.parent).free
        if free < size + _SPARE:
            raise BadStore(
                f"the disk of {self.path} has {free / 1e6:.1f} MB left, {(size + _SPARE) / 1e6:.1f} MB are needed; "
                f"make room and run again: what was stored is kept"
            )

    def _divert(self) -> None:
        """Makes a file that cannot be written closable: HDF5 would insist and crash at exit, so it gets a sink."""
        sink = os.open(os.devnull, os.O_RDWR)
        os.dup2(sink, self._file.id.get_vfd_handle())
        os.close(sink)


_WRITERS: "weakref.WeakSet[Ledger]" = weakref.WeakSet()


def _let_go_of_the_parents_files() -> None:
    """A forked process that closes its parent's files, as it does at its end, would write to them."""
    for ledger in list(_WRITERS):
        ledger._divert()
        ledger.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go_of_the_parents_files)


def checksum(key: str, entry: Entry) -> int:
    """Of an entry as it lies on disk: zeros that a lost write leaves are finite numbers too."""
    value = zlib.crc32(key.encode("utf-8", "surrogatepass"))
    for name in sorted(entry):
        value = zlib.crc32(np.ascontiguousarray(entry[name]).data, value)
    return value


_COPY_AGAIN = "restore it from a backup, or move it away: midreel extract, or midreel index, writes a new one"


def _id(name: bytes) -> str:
    """An id that is damaged is that of no entry anybody asks for."""
    try:
        return name.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return name.decode("utf-8", "replace")


def _put(dataset: Any, start: int, values: Array) -> None:
    end = start + len(values)
    if end > len(dataset):
        dataset.resize(end, axis=0)
    if len(values):
        dataset[start:end] = values


def _make(path: Path, header: str, tables: Tables) -> None:
    with h5py.File(path, "w", libver="v110", locking=False) as file:
        file.attrs.update({"format": FORMAT, "header": header})
        for table, columns in tables.items():
            group = file.create_group(table)
            _grow(group, "index", _INDEX, ())
            _grow(group, "ids", np.dtype(np.uint8), ())
            for name, column in columns.items():
                _grow(group, name, np.dtype(column.dtype), column.row_shape).attrs["ragged"] = column.ragged


def _grow(group: Any, name: str, dtype: "np.dtype[Any]", row_shape: tuple[int, ...]) -> Any:
    rows = max(1, _CHUNK // (dtype.itemsize * int(np.prod(row_shape))))
    return group.create_dataset(
        name, shape=(0, *row_shape), maxshape=(None, *row_shape), chunks=(rows, *row_shape), dtype=dtype
    )


# In so many ways h5py and numpy say that a file is damaged.
_UNREADABLE = (
    *(AttributeError, IndexError, KeyError, MemoryError, OSError, OverflowError, RuntimeError, TypeError, ValueError),
)


def _open(path: Path, *, writable: bool) -> Any:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_file_locking(False, True)
    _limit_attempts(access)
    # h5py's own way would begin the SWMR mode after opening; a writer killed in between leaves a file nobody can open.
    read, write = h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ, h5py.h5f.ACC_RDWR | h5py.h5f.ACC_SWMR_WRITE
    try:
        file = h5py.File(h5py.h5f.open(os.fsencode(path), write if writable else read, access))
        found = file.attrs.get("format")
    except _UNREADABLE as error:
        remedy = f"close other stores of it in this process; or {_COPY_AGAIN}" if writable else _COPY_AGAIN
        raise BadStore(f"{path} cannot be opened ({error}); {remedy}") from error
    if found != FORMAT:
        file.close()
        raise BadStore(
            f"{path} is of the format {found!r}, expected {FORMAT!r}; extract the features with this midreel"
        )
    return file


def _limit_attempts(access: Any) -> None:
    """Damaged metadata is to be an error. A reader in SWMR mode would try a hundred times, and wait twice as long each
    time. h5py has no word for this, so HDF5 is asked through the library that h5py has loaded.
    """
    try:
        limit = ctypes.CDLL(h5py.h5p.__file__).H5Pset_metadata_read_attempts
    except (AttributeError, OSError):
        return
    with h5py._objects.phil:
        limit(ctypes.c_int64(access.id), ctypes.c_uint(_ATTEMPTS))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """One error for all of them."""
    try:
        yield
    except _UNREADABLE as error:
        raise BadStore(f"{path} cannot be read, it may be cut short ({error}); {_COPY_AGAIN}") from error


def _lock(path: Path) -> int:
    """Holds other writers off, in this process and others. HDF5's own lock ends where the SWMR mode begins."""
    while True:
        try:
            handle = lock(path, os.O_RDWR)
        except FileNotFoundError as error:
            raise _no_file(path) from error
        except BlockingIOError as error:
            raise BadStore(f"{path} is being written by another process or store; wait for it, or close it") from error
        except OSError as error:
            raise BadStore(f"{path} cannot be written ({error}); change its permissions or copy it") from error
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
        os.close(handle)  # replaced by a writer that salvaged it in between


def _was_left_open(path: Path) -> bool:
    """Whether the file is marked as being written, which HDF5 notes in its first block, together with its length."""
    try:
        with path.open("rb") as file:
            start = file.read(_FIRST_BLOCK.size)
    except FileNotFoundError as error:
        raise _no_file(path) from error
    except OSError as error:
        raise BadStore(f"{path} cannot be read ({error.strerror}). Check its permissions and its disk.") from error
    if not start.startswith(b"\x89HDF\r\n\x1a\n\x03") or len(start) < _FIRST_BLOCK.size:
        raise BadStore(f"{path} is no feature store, or cut short; {_COPY_AGAIN}")
    *_, marks, _, _, end = _FIRST_BLOCK.unpack(start)
    size = path.stat().st_size
    if not marks and size < end:
        raise BadStore(f"{path} is cut short: {size} bytes, expected {end}; {_COPY_AGAIN}")
    return bool(marks)


def _is_consistent(path: Path) -> bool:
    """Whether entries can be appended: after a damaged row of the index they would be written over others."""
    ledger = Ledger(path)
    try:
        return all(table.is_consistent for table in ledger._tables.values())
    finally:
        ledger.close()


def _salvage(path: Path, keep: Keep | None = None) -> int:
    """Copies the complete entries of a file whose writer died, puts the copy in its place, and returns its lock.

    Of the tables that `keep` names, only the entries of these keys are copied.
    """
    old = Ledger(path)
    with _beside(path) as temporary:
        _make(temporary, old.header, {name: table.schema for name, table in old._tables.items()})
        new = Ledger(temporary, writable=True)
        for name in old._tables:
            for batch in _batches(old, name, (keep or {}).get(name)):
                new.append(name, batch, {key: old.origin(name, key) for key in batch})
        new.close()
        old.close()
        lock = _lock(temporary)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    return lock


def _batches(ledger: Ledger, table: str, keep: Container[str] | None) -> Iterator[dict[str, Entry]]:
    """The entries of a table that can be read, some at a time; what is damaged will be extracted again."""
    batch: dict[str, Entry] = {}
    for key in ledger.ids(table):
        if keep is not None and key not in keep:
            continue
        try:
            batch[key] = ledger.read(table, key) or {}
        except BadStore as error:
            if getattr(error.__cause__, "errno", None) is not None:
                raise  # the disk failed, and another time it may not: what is on it is not to be dropped
            continue
        if len(batch) == _BATCH:
            yield batch
            batch = {}
    yield batch


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A name in the same folder, so that a file made there can take the other's place at once."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _no_file(path: Path) -> BadStore:
    return BadStore(f"{path} does not exist, expected a feature store; extract the features first: midreel extract")
