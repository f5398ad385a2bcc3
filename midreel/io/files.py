"""Durable files, locks, and SQLite files that can also be read on read-only or full disks.

"Durable" means that data survives a crash of the machine: both the file and its name in the folder are synced.
"""

import errno
import hashlib
import os
import sqlite3
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from midreel.errors import Locked, Unwritable

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

SPECIAL = "FIFO, socket or device"  # for error messages about `is_special` files

# Primary result codes of SQLite.
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DENIED = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_SORT_IN_MEMORY = "PRAGMA temp_store = MEMORY"  # the disk may have no space for temporary files
_READ_TIMEOUT = 1  # seconds that a reader waits for a lock before it reads a copy
_MAX_PASSES = 50  # attempts to copy a file that keeps changing


def lock(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file or folder and lock it.

    The lock is advisory. It ends when the descriptor is closed or the process ends. On file systems without locks,
    and on Windows, this opens the path and does not lock it.

    Args:
        path: The file or folder.
        flags: Flags for `os.open`.

    Returns:
        The open file descriptor.

    Raises:
        Locked: Another process or object holds the lock.
        OSError: The path cannot be opened.
    """
    handle = os.open(path, flags, 0o644)
    try:
        if sys.platform != "win32":
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise Locked(f"{path} is being written by another process or object. Wait for it, or close it.") from error
    except OSError:
        pass  # a file system without locks: users must start one writer at a time
    return handle


@contextmanager
def hold(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Hold the `lock` of a path during a block, and yield its file descriptor."""
    handle = lock(path, flags)
    try:
        yield handle
    finally:
        os.close(handle)


def is_special(status: os.stat_result) -> bool:
    """Return whether a path is a FIFO, a socket or a device.

    Opening a FIFO may block forever, and reading a device may never end.
    """
    return not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode)


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading, without a buffer.

    Raises:
        OSError: The file cannot be opened, or is a folder, a FIFO, a socket or a device.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if is_special(os.fstat(handle)):
            raise OSError(errno.EINVAL, f"it is a {SPECIAL}")
        return FileIO(handle)  # raises if it is a folder
    except OSError:
        os.close(handle)
        raise


def write_durably(path: Path, data: str | bytes | Iterable[bytes]) -> None:
    """Write a file atomically and durably.

    A crash leaves either the old or the new content. When this returns, the new content is on the disk.

    Args:
        path: The file to create or replace.
        data: Text, which is written as UTF-8, bytes, or parts of bytes.

    Raises:
        OSError: The file cannot be written. The old content is kept.
    """
    data = data.encode() if isinstance(data, str) else data
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably. An existing folder is kept."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync(each.parent)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def new_sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a new SQLite file in WAL mode.

    The file appears under its name, durably, when the block has succeeded.
    """
    new = path.with_name(f"{path.name}.new")
    # SQLite would apply a leftover log of an earlier file with this name to the new file.
    for leftover in (new, *_beside(new), *_beside(path)):
        leftover.unlink(missing_ok=True)
    connection = sqlite3.connect(new, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # one sync below is enough
        yield connection
    finally:
        connection.close()
    sync(new)
    new.replace(path)
    sync(path.parent)


class SqliteFile:
    """An open SQLite file in WAL mode, with one writer and many readers.

    Readers see the last commit. Usually they share locks with the writer, in the -shm file. This fails if the disk is
    full, if the folder is read-only for the reader, or if the writer is suspended with a lock. The reader then reads a
    copy of the last commit in memory. `version` makes a new copy when the file has changed.

    Args:
        path: An existing SQLite file.
        read_only: Whether to open it for reading only.
        patience: Seconds to wait for a lock.

    Raises:
        sqlite3.Error: The file cannot be opened.
    """

    def __init__(self, path: Path, *, read_only: bool, patience: int = 10) -> None:
        self.path, self._read_only = path, read_only
        self._timeout = min(patience, _READ_TIMEOUT) if read_only else patience
        self._connection: sqlite3.Connection | None = None
        self._copied: list[tuple[int, ...] | None] | None = None  # `_stamps` of the copied files, if this is a copy
        self._times_opened = 0
        self._identity: tuple[int, int] | None = None
        self._open()

    def reopen_if_replaced(self) -> bool:
        """Reopen the file if it was replaced, for example by a restored backup. Return whether it was.

        A connection keeps reading a deleted file, and would never see the new one.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        if _identity(self.path.stat()) == self._identity:
            return False
        self._drop()
        self._identity = None  # if opening fails now, the next call tries again
        self._open()
        return True

    @property
    def connection(self) -> sqlite3.Connection:
        """The current connection. It changes if `version`, `rows` or `snapshot` reopens the file."""
        return self._connection or self._open()

    def version(self) -> tuple[int, int]:
        """Return a value that changes whenever another connection commits."""
        if self._copied is not None and self._copied != _stamps(self.path):
            self._drop()
        data_version = self.rows("PRAGMA data_version")[0][0]
        return self._times_opened, int(data_version)

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """Execute a statement and return all its rows."""
        return self._read(lambda connection: connection.execute(statement, values).fetchall())

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection whose reads all see the same commit."""
        self._read(_begin)
        connection = self.connection
        try:
            yield connection
        finally:
            if connection.in_transaction:  # some errors end the transaction
                connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    def _drop(self) -> None:
        """Close the file. The next use reopens it."""
        self.close()
        self._connection = self._copied = None

    def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query on the file, or on a copy if SQLite cannot lock the file."""
        connection = self.connection
        try:
            return query(connection)
        except sqlite3.OperationalError as error:
            if not self._may_copy(error):
                raise
            self._drop()
            return query(self._open_copy(error))

    def _open(self) -> sqlite3.Connection:
        self._note_identity()
        try:
            self._connection = self._connect()
        except sqlite3.OperationalError as error:
            if not self._may_copy(error):
                raise
            return self._open_copy(error)
        self._times_opened += 1
        return self._connection

    def _note_identity(self) -> None:
        with suppress(OSError):  # SQLite reports it, too
            self._identity = _identity(self.path.stat())

    def _may_copy(self, error: sqlite3.Error) -> bool:
        return self._read_only and self._copied is None and _code(error) in _BUSY | _DENIED

    def _open_copy(self, error: sqlite3.Error) -> sqlite3.Connection:
        """Open a copy in memory. Raise `error` if the file cannot be copied."""
        self._note_identity()
        stamps, content = _stamps(self.path), last_commit(self.path)
        if content is None:
            raise error
        self._connection, self._copied = _in_memory(content), stamps
        self._times_opened += 1
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        # as_uri escapes percent signs and question marks, which are special in URIs.
        uri = f"{self.path.absolute().as_uri()}?mode={'ro' if self._read_only else 'rw'}"
        connection = sqlite3.connect(
            uri, uri=True, timeout=self._timeout, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(_SORT_IN_MEMORY)
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # SQLite opens the file at the first query
            if not self._read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of a write into Unwritable: the disk is full or fails, or the folder is read-only."""
    try:
        yield
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def sqlite_errors(
    path: Path,
    remedy: str,
    *,
    damaged: type[Exception],
) -> Iterator[None]:
    """Turn errors of SQLite and of the disk into errors of the given classes.

    SQLite's result codes distinguish them, not its messages. A damaged file may also contain text that is not UTF-8,
    even in its schema.

    Args:
        path: The SQLite file, for the message.
        remedy: A sentence for the message about a damaged file.
        damaged: The class for damaged and unreadable files.

    Raises:
        Locked: Another process did not finish its transaction in time.
        Unwritable: The disk is full, or the file is read-only.
    """
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise  # a bug in the program, not damage
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
        code = _code(error)
        if code in _BUSY:
            raise Locked(
                f"{path} is locked by another process ({error}). Wait for it or stop it, and run again."
            ) from error
        if code in _DENIED or getattr(error, "errno", None) in _NO_ROOM:
            raise _unwritable(path, error) from error
        if isinstance(error, OSError):
            raise damaged(f"{path} cannot be read ({error}). Check its permissions and its disk.") from error
        raise damaged(f"{path} is damaged ({error}). {remedy}") from error


def _unwritable(path: Path, error: Exception) -> Unwritable:
    reason = getattr(error, "strerror", None) or error
    return Unwritable(
        f"{path} cannot be written ({reason}). Free disk space or change its permissions, and run again. "
        f"Stored data is kept."
    )


def _code(error: Exception) -> int:
    """Return the primary result code of an error, or 0 if SQLite did not raise it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _begin(connection: sqlite3.Connection) -> None:
    """Start a read transaction."""
    connection.execute("BEGIN")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # the first read chooses the commit, not BEGIN
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _beside(path: Path) -> tuple[Path, Path]:
    """Return the paths of SQLite's write-ahead log and shared memory."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _identity(status: os.stat_result) -> tuple[int, int]:
    """Return a value that differs for each file. The inode of an open file is not reused."""
    return status.st_dev, status.st_ino


def _stamps(path: Path) -> list[tuple[int, ...] | None]:
    """Return inode, size and modification time of the file and of its log, or None for a missing file."""
    stamps: list[tuple[int, ...] | None] = []
    for each in (path, _beside(path)[0]):
        try:
            status = each.stat()
            stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except FileNotFoundError:
            stamps.append(None)
    return stamps


# ---------------------------------------------------------------- a copy of the last commit

# The format of both files: https://www.sqlite.org/fileformat2.html
_VERSIONS = slice(18, 20)  # in the header of the file: 2 in WAL mode, 1 with a rollback journal
_LOG_HEADER, _FRAME_HEADER = struct.Struct(">8I"), struct.Struct(">6I")
_WORD_ORDER = {0x377F0682: "<", 0x377F0683: ">"}  # byte order of the checksums, by the log's magic number
_CAN_DESERIALIZE = hasattr(sqlite3.Connection, "deserialize")  # needs SQLite 3.36


def last_commit(path: Path) -> bytes | None:
    """Return the content of a SQLite file with all commits in its log, or None if it is not in WAL mode.

    This takes no locks. It reads the file and its log until two passes agree. Both then show the state at the moment
    between the passes. SQLite can recover the last commit from the state at any moment, as it does after a crash.

    Raises:
        Locked: The files keep changing.
        OSError: A file cannot be read.
    """
    before = None
    for _ in range(_MAX_PASSES):
        content, log = path.read_bytes(), b""
        with suppress(FileNotFoundError):
            log = _beside(path)[0].read_bytes()
        found = hashlib.sha256(content).digest(), hashlib.sha256(log).digest()
        if found == before:
            return _with_log(content, log) if content[_VERSIONS] == b"\2\2" else None
        before = found
    raise Locked(f"{path} changed during {_MAX_PASSES} attempts to copy it. Wait for its writer, and run again.")


def _with_log(content: bytes, log: bytes) -> bytes:
    """Return the file as a checkpoint would leave it, in rollback mode, which needs no log."""
    size, pages = _committed(log)
    page_size = len(next(iter(pages.values()), b""))
    found = bytearray(content)
    if pages:
        num_pages = min(size, max(len(content) // page_size, *pages))
        found = found[: num_pages * page_size].ljust(num_pages * page_size, b"\0")
        for number, page in pages.items():
            if 1 <= number <= num_pages:
                found[(number - 1) * page_size : number * page_size] = page
    found[_VERSIONS] = b"\1\1"
    return bytes(found)


def _committed(log: bytes) -> tuple[int, dict[int, bytes]]:
    """Return the number of pages after the last commit in a log, and the committed pages by number."""
    size, pages, pending = 0, dict[int, bytes](), dict[int, bytes]()
    if len(log) < _LOG_HEADER.size:
        return size, pages
    magic, _, page_size, _, *salts, sum1, sum2 = _LOG_HEADER.unpack_from(log)
    order = _WORD_ORDER.get(magic)
    if order is None or page_size not in (2**power for power in range(9, 17)):
        return size, pages
    sums = _checksum(log[: _LOG_HEADER.size - 8], order, (0, 0))
    if sums != (sum1, sum2):
        return size, pages
    step = _FRAME_HEADER.size + page_size
    for start in range(_LOG_HEADER.size, len(log) - step + 1, step):
        number, size_after, *frame_salts, sum1, sum2 = _FRAME_HEADER.unpack_from(log, start)
        page = log[start + _FRAME_HEADER.size : start + step]
        sums = _checksum(log[start : start + 8] + page, order, sums)
        if frame_salts != salts or sums != (sum1, sum2):
            break  # this frame is older than the last checkpoint, or was not completely written
        pending[number] = page
        if size_after:  # the last page of a transaction
            size = size_after
            pages.update(pending)
            pending.clear()
    return size, pages


def _checksum(data: bytes, order: str, start: tuple[int, int]) -> tuple[int, int]:
    """Continue the checksum of a log."""
    first, second = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _in_memory(content: bytes) -> sqlite3.Connection:
    """Return a connection to a read-only copy in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        if _CAN_DESERIALIZE:
            connection.deserialize(content)
        else:
            _fill(connection, content)
        connection.execute(_SORT_IN_MEMORY)
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _fill(connection: sqlite3.Connection, content: bytes) -> None:
    """Do what `deserialize` does, through a temporary file."""
    with tempfile.TemporaryDirectory(prefix="midreel-") as folder:
        path = Path(folder) / "copy"
        path.write_bytes(content)
        copy = sqlite3.connect(path)
        try:
            copy.backup(connection)
        finally:
            copy.close()
