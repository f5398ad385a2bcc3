"""Files that last, locks, and SQLite files, also for those who may read them only."""

import errno
import os
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

if sys.platform != "win32":
    import fcntl

SPECIAL = "FIFO, socket or device"
_DENIED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


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
    """An open SQLite file, which one process writes while others read. `connection` may be another after `version`.

    Reader and writer find each other by files beside it. Where a reader may not make these and no writer has, it reads
    the file as one that never changes, and looks at each `version` whether it has.
    """

    connection: sqlite3.Connection

    def __init__(self, path: Path, *, read_only: bool, patience: int = 10) -> None:
        self.path, self._read_only, self._patience = path, read_only, patience
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._frozen: list[tuple[int, ...] | None] | None = None  # the files as they were, if they are read like that
        self._times_opened = 0
        self._open()

    def version(self) -> tuple[int, int]:
        """Another value whenever another connection has committed something."""
        if self._frozen is not None and self._frozen != _stamps(self.path):
            self.close()
            self._frozen = []  # to be tried again, if it cannot be opened now
            self._open()
        return self._times_opened, int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self.connection.close()
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None

    def _open(self) -> None:
        stamps, frozen = _stamps(self.path), False
        try:
            self.connection = self._connect(self.path, "mode=ro" if self._read_only else "mode=rw")
        except sqlite3.OperationalError as error:
            if not self._read_only or error.sqlite_errorcode & 0xFF not in _DENIED:
                raise
            self.connection, frozen = self._connect_frozen(), True
        self._frozen = stamps if frozen else None
        self._times_opened += 1

    def _connect_frozen(self) -> sqlite3.Connection:
        log = _beside(self.path)[0]
        if not log.exists() or not log.stat().st_size:
            return self._connect(self.path, "mode=ro&immutable=1")
        # A writer died and left its last commits in the log, which only one who may write can apply.
        self._copy = tempfile.TemporaryDirectory(prefix="midreel-")
        for path in (self.path, log):
            shutil.copyfile(path, Path(self._copy.name) / path.name)
        return self._connect(Path(self._copy.name) / self.path.name, "mode=rw")

    def _connect(self, path: Path, options: str) -> sqlite3.Connection:
        # Percent signs and question marks mean something in an address; pathlib knows how to write them.
        address = f"{path.absolute().as_uri()}?{options}"
        connection = sqlite3.connect(
            address, uri=True, timeout=self._patience, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # SQLite opens when it is first asked
            if not self._read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection


def _beside(path: Path) -> tuple[Path, Path]:
    """SQLite's log, and what its readers and writer share."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


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
