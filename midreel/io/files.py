"""Files that last, locks, and SQLite files, also for those who may read them only."""

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

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

SPECIAL = "FIFO, socket or device"

# Primary codes of SQLite's errors.
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DENIED = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_SORT_IN_MEMORY = "PRAGMA temp_store = MEMORY"  # rather than in a file, for which there may be no room
_READ_PATIENCE = 1  # seconds that a reader waits for a lock before it reads a copy
_MOST_PASSES = 50  # over a file that changes while it is copied


def lock(path: Path, flags: int = os.O_RDONLY) -> int:
    """Opens a file or a folder and keeps others from locking it until what is returned is closed, or its process ends.

    Raises BlockingIOError if another has locked it, another OSError if it cannot be opened.
    """
    handle = os.open(path, flags, 0o644)
    try:
        if sys.platform != "win32":
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:
        pass  # a file system without locks: the user must keep writers apart
    return handle


@contextmanager
def locked(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """`lock` until the block ends, however it ends."""
    handle = lock(path, flags)
    try:
        yield handle
    finally:
        os.close(handle)


def is_special(status: os.stat_result) -> bool:
    """Whether it is a FIFO, a socket or a device. To open a FIFO may block forever, and a device may never end."""
    return not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode)


def open_regular(path: Path) -> FileIO:
    """Open a file for reading, without a buffer. Raises OSError also for a FIFO, a socket and a device."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        if is_special(os.fstat(handle)):
            raise OSError(errno.EINVAL, f"it is a {SPECIAL}")
        return FileIO(handle)  # which refuses a folder
    except OSError:
        os.close(handle)
        raise


def write_durably(path: Path, data: str | bytes | Iterable[bytes]) -> None:
    """Writes a file that is whole or, until then, as it was, and that lasts when this returns. Text is UTF-8."""
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
    """Makes a folder, and those that it lies in, to last; one that is there stays."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync(each.parent)


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def new_sqlite(path: Path) -> Iterator[sqlite3.Connection]:
    """A new SQLite file to fill. It has its name, and lasts, when the block has ended well."""
    new = path.with_name(f"{path.name}.new")
    # SQLite would apply the log of an earlier file of the same name to this one.
    for leftover in (new, *_beside(new), *_beside(path)):
        leftover.unlink(missing_ok=True)
    connection = sqlite3.connect(new, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # synced once, below
        yield connection
    finally:
        connection.close()
    sync(new)
    new.replace(path)
    sync(path.parent)


class SqliteFile:
    """An open SQLite file in WAL mode. One process writes it, others read its last commit.

    Readers and the writer share locks in a file beside it (-shm). A reader cannot use them if the disk is full, if it
    may not write the folder, or if the writer was stopped while it held a lock. Such a reader reads a copy of the last
    commit in memory, and `version` takes a new copy when the file has changed.
    """

    def __init__(self, path: Path, *, read_only: bool, patience: int = 10) -> None:
        self.path, self._read_only = path, read_only
        self._patience = min(patience, _READ_PATIENCE) if read_only else patience
        self._connection: sqlite3.Connection | None = None
        self._copied: list[tuple[int, ...] | None] | None = None  # the files when they were copied, if they were
        self._times_opened = 0
        self._identity: tuple[int, int] | None = None
        self._open()

    def reopen_if_replaced(self) -> bool:
        """Open the path again if another file is there now, as after a backup was restored. Return whether it was.

        A connection goes on reading a file that was deleted, and would never see what is written to the new one.
        Raises FileNotFoundError if no file is there.
        """
        if _identity(self.path.stat()) == self._identity:
            return False
        self._drop()
        self._identity = None  # to be tried again, if it cannot be opened now
        self._open()
        return True

    @property
    def connection(self) -> sqlite3.Connection:
        """Another one after `version`, `rows` or `snapshot`, if the file had to be opened again."""
        return self._connection or self._open()

    def version(self) -> tuple[int, int]:
        """Another value whenever another connection has committed something."""
        if self._copied is not None and self._copied != _stamps(self.path):
            self._drop()
        data_version = self.rows("PRAGMA data_version")[0][0]
        return self._times_opened, int(data_version)

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[Any]:
        """Execute a statement and return all its rows."""
        return self._read(lambda connection: connection.execute(statement, values).fetchall())

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection whose reads see one commit until the block ends."""
        self._read(_begin)
        connection = self.connection
        try:
            yield connection
        finally:
            if connection.in_transaction:  # some errors end it
                connection.execute("COMMIT")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _drop(self) -> None:
        """Close the file; the next use opens it again."""
        self.close()
        self._connection = self._copied = None

    def _read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """Read the file or, if SQLite cannot share it with others, a copy of it."""
        connection = self.connection
        try:
            return ask(connection)
        except sqlite3.OperationalError as error:
            if not self._may_copy(error):
                raise
            self._drop()
            return ask(self._open_copy(error))

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
        with suppress(OSError):  # which SQLite reports, too
            self._identity = _identity(self.path.stat())

    def _may_copy(self, error: sqlite3.Error) -> bool:
        return self._read_only and self._copied is None and _code(error) in _BUSY | _DENIED

    def _open_copy(self, error: sqlite3.Error) -> sqlite3.Connection:
        """Open a copy in memory, because of an error, which is raised if there is nothing to copy."""
        self._note_identity()
        stamps, content = _stamps(self.path), last_commit(self.path)
        if content is None:
            raise error
        self._connection, self._copied = _in_memory(content), stamps
        self._times_opened += 1
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        # Percent signs and question marks mean something in an address; pathlib knows how to write them.
        address = f"{self.path.absolute().as_uri()}?mode={'ro' if self._read_only else 'rw'}"
        connection = sqlite3.connect(
            address, uri=True, timeout=self._patience, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute(_SORT_IN_MEMORY)
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # SQLite opens when it is first asked
            if not self._read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


@contextmanager
def sqlite_errors(
    path: Path,
    remedy: str,
    *,
    damaged: type[Exception],
    busy: type[Exception] | None = None,
    unwritable: type[Exception] | None = None,
) -> Iterator[None]:
    """Turn what SQLite raises into errors of these classes. `remedy` is for a damaged file.

    SQLite's codes tell the errors apart. A damaged file may also hold text that is not UTF-8, even in its schema.
    """
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise  # a mistake in the program, not in the file
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
        code = _code(error)
        if code in _BUSY or isinstance(error, BlockingIOError):
            raise (busy or damaged)(
                f"{path} is locked by another process ({error}). Wait for it to end, or stop it, and run again."
            ) from error
        if code in _DENIED or getattr(error, "errno", None) in _NO_ROOM:
            raise (unwritable or damaged)(
                f"{path} cannot be written ({error}). Free disk space or change its permissions, and run again: stored "
                f"data is kept."
            ) from error
        if isinstance(error, OSError):
            raise damaged(f"{path} cannot be read ({error}). Check its permissions and its disk.") from error
        raise damaged(f"{path} is damaged ({error}). {remedy}") from error


def _code(error: Exception) -> int:
    """The primary code; 0 for an error that Python's own part of the module raised."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # BEGIN alone does not choose the commit
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _beside(path: Path) -> tuple[Path, Path]:
    """SQLite's log, and what its readers and writer share."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _identity(stat: os.stat_result) -> tuple[int, int]:
    """Tell a file from any other. No new file gets the number of a file that is still open."""
    return stat.st_dev, stat.st_ino


def _stamps(path: Path) -> list[tuple[int, ...] | None]:
    """What a stat tells of the file and its log; None for one that is not there."""
    stamps: list[tuple[int, ...] | None] = []
    for each in (path, _beside(path)[0]):
        try:
            stat = each.stat()
            stamps.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except FileNotFoundError:
            stamps.append(None)
    return stamps


# ---------------------------------------------------------------- a copy of the last commit

_VERSIONS = slice(18, 20)  # of the file's first page: 2 in WAL mode, 1 in the modes with a rollback journal
_LOG_HEADER, _FRAME_HEADER = struct.Struct(">8I"), struct.Struct(">6I")
_WORD_ORDER = {0x377F0682: "<", 0x377F0683: ">"}  # of the checksums, by the log's magic number
_CAN_DESERIALIZE = hasattr(sqlite3.Connection, "deserialize")  # needs SQLite 3.36


def last_commit(path: Path) -> bytes | None:
    """The content of a SQLite file in WAL mode, with all that is committed; None if it is not in WAL mode.

    Takes no locks. The file and its log are read again until two passes agree: what both read is what was there at the
    instant between them. SQLite recovers the last commit from the state of any instant, or a crash would lose data.
    Raises BlockingIOError if they do not stop changing, another OSError if one cannot be read.
    """
    before = None
    for _ in range(_MOST_PASSES):
        content, log = path.read_bytes(), b""
        with suppress(FileNotFoundError):
            log = _beside(path)[0].read_bytes()
        found = hashlib.sha256(content).digest(), hashlib.sha256(log).digest()
        if found == before:
            return _with_log(content, log) if content[_VERSIONS] == b"\2\2" else None
        before = found
    raise BlockingIOError(errno.EAGAIN, f"it changed during each of {_MOST_PASSES} attempts to copy it")


def _with_log(content: bytes, log: bytes) -> bytes:
    """The file as a checkpoint would leave it, in a mode that needs no log.

    The format of both: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
    """
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
    """The pages that committed transactions have put into a log, and how many pages the file has after the last."""
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
            break  # left by an earlier round of the log, or half written
        pending[number] = page
        if size_after:  # the last page of a transaction
            size = size_after
            pages.update(pending)
            pending.clear()
    return size, pages


def _checksum(data: bytes, order: str, start: tuple[int, int]) -> tuple[int, int]:
    first, second = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _in_memory(content: bytes) -> sqlite3.Connection:
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
    """What `deserialize` does, by way of a file."""
    with tempfile.TemporaryDirectory(prefix="midreel-") as folder:
        path = Path(folder) / "copy"
        path.write_bytes(content)
        copy = sqlite3.connect(path)
        try:
            copy.backup(connection)
        finally:
            copy.close()
