import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

from midreel.errors import Locked, Unwritable
from midreel.io import files
from midreel.io.files import SqliteFile, hold, lock, new_sqlite, sqlite_errors, write_durably


def test_a_lock_excludes_others_until_it_is_closed(tmp_path: Path) -> None:
    for path, flags in ((tmp_path, os.O_RDONLY), (tmp_path / "lock", os.O_RDWR | os.O_CREAT)):
        with hold(path, flags), pytest.raises(Locked):
            lock(path)
        os.close(lock(path))


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    os.close(lock(tmp_path))


def test_a_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"first")

    def parts() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_durably(path, parts())
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"first"}
    write_durably(path, [b"second ", b"text"])
    assert path.read_bytes() == b"second text"


def make(path: Path) -> None:
    with new_sqlite(path) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")


def numbers(connection: sqlite3.Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT number FROM numbers")]


def test_a_new_sqlite_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    with pytest.raises(sqlite3.OperationalError), new_sqlite(path) as connection:
        connection.executescript("CREATE TABLE other (number INTEGER); CREATE nonsense")
    assert not path.exists()
    make(path)
    assert [each.name for each in tmp_path.iterdir()] == ["file.sqlite"]


def test_a_leftover_log_is_not_applied_to_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    make(path)
    writer = SqliteFile(path, read_only=False)
    writer.connection.execute("INSERT INTO numbers VALUES (1)")
    left = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each != path}
    writer.close()
    path.unlink()
    for name, data in left.items():  # as after a kill
        (tmp_path / name).write_bytes(data)
    make(path)
    reader = SqliteFile(path, read_only=True)
    assert numbers(reader.connection) == []
    reader.close()


def test_a_locked_file_without_wal_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    make(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode = DELETE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        SqliteFile(path, read_only=True, patience=0)
    other.close()


READER = """
import os, sys
from pathlib import Path
from midreel.io.files import SqliteFile
if os.geteuid() == 0:
    os.setuid(65534)
reader = SqliteFile(Path(sys.argv[1]), read_only=True)
print("ready", flush=True)
for _ in sys.stdin:
    version = reader.version()
    (total,) = reader.connection.execute("SELECT total(number) FROM numbers").fetchone()
    print(total, reader.version() == version, flush=True)
reader.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
def test_a_reader_without_write_permission_sees_new_commits() -> None:
    """Before a writer starts, while it runs, after it has ended, and after it was killed."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "folder"
        folder.mkdir()
        path = folder / "file.sqlite"
        make(path)

        def permit(mode: int) -> None:
            for each in (folder, Path(place)):
                each.chmod(mode)

        def put(number: int) -> None:
            writer.connection.execute("INSERT INTO numbers VALUES (?)", (number,))

        def seen() -> str:
            reader.stdin.write("\n")
            reader.stdin.flush()
            return reader.stdout.readline().strip()

        permit(0o555)
        with subprocess.Popen(
            [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            assert seen() == "0.0 True"
            permit(0o755)  # for the writer, which may be the same user
            writer = SqliteFile(path, read_only=False)
            put(1)
            permit(0o555)
            assert seen() == "1.0 True"
            put(2)
            assert seen() == "3.0 True"
            permit(0o755)
            writer.close()
            permit(0o555)
            assert seen() == "3.0 True"
            permit(0o755)
            writer = SqliteFile(path, read_only=False)
            put(4)
            permit(0o555)
            assert seen() == "7.0 True"
            reader.stdin.close()
        put(8)
        left = {each.name: each.read_bytes() for each in folder.iterdir() if not each.name.endswith("-shm")}
        permit(0o755)
        writer.close()
        for each in folder.iterdir():
            each.unlink()
        for name, data in left.items():  # as a killed writer leaves them
            (folder / name).write_bytes(data)
        permit(0o555)
        ended = subprocess.run([sys.executable, "-c", READER, str(path)], input="\n", capture_output=True, text=True)
        permit(0o755)
        assert ended.stdout == "ready\n15.0 True\n", ended.stderr


# ---------------------------------------------------------------- readers that cannot use locks


def fill(path: Path) -> list[int]:
    """Write a file with one commit in itself and one in its log, as a killed writer leaves it."""
    make(path)
    writer = SqliteFile(path, read_only=False)
    writer.connection.execute("INSERT INTO numbers VALUES (1)")
    writer.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    writer.connection.execute("INSERT INTO numbers VALUES (2)")
    left = {each: each.read_bytes() for each in path.parent.iterdir() if not each.name.endswith("-shm")}
    writer.close()
    for each, data in left.items():
        each.write_bytes(data)
    return [1, 2]


FULL = """
import resource, sys
from pathlib import Path
from midreel.io.files import SqliteFile
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
reader = SqliteFile(Path(sys.argv[1]), read_only=True)
print(reader.rows("SELECT number FROM numbers"), reader.version() == reader.version())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
@pytest.mark.parametrize("log", [True, False])
def test_a_reader_that_cannot_extend_the_shared_memory(tmp_path: Path, log: bool) -> None:
    """SQLite cannot extend its -shm file, as on a full disk."""
    path = tmp_path / "file.sqlite"
    expected = fill(path)
    if not log:
        SqliteFile(path, read_only=False).close()
    assert path.with_name("file.sqlite-wal").exists() == log
    ended = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == (f"{[(number,) for number in expected]} True\n", "")


SORT = FULL.replace("SELECT number FROM numbers", "SELECT max(n) FROM (SELECT count(*) AS n FROM words GROUP BY text)")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
@pytest.mark.parametrize("shared", [True, False])
def test_a_reader_sorts_without_disk_space(tmp_path: Path, shared: bool) -> None:
    """By default, SQLite would sort in a temporary file."""
    path = tmp_path / "file.sqlite"
    with new_sqlite(path) as connection:
        connection.execute("CREATE TABLE words (text TEXT)")
        connection.executemany("INSERT INTO words VALUES (?)", ((f"{n * 7919 % 50000:0200}",) for n in range(50000)))
    writer = SqliteFile(path, read_only=False) if shared else None  # creates the -shm file
    ended = subprocess.run([sys.executable, "-c", SORT, str(path)], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("[(1,)] True\n", "")
    if writer is not None:
        writer.close()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill_disk(place: Path) -> None:
    with suppress(OSError), (place / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(place).free == 0


def test_a_reader_on_a_full_disk(full_disk: Path) -> None:
    path = full_disk / "file.sqlite"
    expected = fill(path)
    fill_disk(full_disk)
    with pytest.raises(sqlite3.OperationalError) as caught:
        SqliteFile(path, read_only=False)
    assert caught.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR
    reader = SqliteFile(path, read_only=True)
    assert numbers(reader.connection) == expected
    before = reader.version()
    (full_disk / "filling").unlink()
    writer = SqliteFile(path, read_only=False)
    writer.connection.execute("INSERT INTO numbers VALUES (3)")
    assert reader.version() != before
    assert numbers(reader.connection) == [*expected, 3]
    writer.close()
    reader.close()


def test_a_reader_while_the_writer_holds_an_exclusive_lock(tmp_path: Path) -> None:
    """As a writer that was stopped while it closed the file."""
    path = tmp_path / "file.sqlite"
    expected = fill(path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA locking_mode = EXCLUSIVE")
    writer.execute("INSERT INTO numbers VALUES (3)")
    writer.execute("BEGIN")
    writer.execute("INSERT INTO numbers VALUES (4)")
    reader = SqliteFile(path, read_only=True, patience=0)
    assert numbers(reader.connection) == [*expected, 3]
    before = reader.version()
    assert before == reader.version()
    writer.execute("COMMIT")
    assert reader.version() != before
    assert numbers(reader.connection) == [*expected, 3, 4]
    writer.close()
    assert reader.version() != before
    assert numbers(reader.connection) == [*expected, 3, 4]
    reader.close()


@pytest.mark.slow  # SQLite retries for ten seconds
def test_a_reader_while_the_writer_is_stopped_in_a_commit(tmp_path: Path) -> None:
    """The writer holds the write lock, and has written one of the two headers that readers compare."""
    path = tmp_path / "file.sqlite"
    make(path)
    writer = SqliteFile(path, read_only=False)
    writer.connection.execute("INSERT INTO numbers VALUES (1)")
    reader = SqliteFile(path, read_only=True, patience=0)
    assert reader.rows("SELECT number FROM numbers") == [(1,)]
    writer.connection.execute("BEGIN IMMEDIATE")
    writer.connection.execute("INSERT INTO numbers VALUES (2)")
    with path.with_name("file.sqlite-shm").open("r+b", buffering=0) as shared:
        header = shared.read(48)
        shared.seek(0)
        shared.write(bytes(48))
        with reader.snapshot():
            assert numbers(reader.connection) == [1]
        before = reader.version()
        shared.seek(0)
        shared.write(header)  # the writer continues
    writer.connection.execute("COMMIT")
    assert reader.version() != before
    assert reader.rows("SELECT number FROM numbers") == [(1,), (2,)]
    reader.close()
    writer.close()


def test_a_writer_never_uses_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    make(path)
    first, second = (SqliteFile(path, read_only=False, patience=0) for _ in range(2))
    first.connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        second.connection.execute("BEGIN IMMEDIATE")
    first.close()
    second.close()


def test_a_copy_is_read_only(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    fill(path)
    content = files.last_commit(path)
    assert content is not None
    copy = files._in_memory(content)
    with pytest.raises(sqlite3.OperationalError) as caught:
        copy.execute("DELETE FROM numbers")
    assert caught.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_READONLY
    copy.close()


@pytest.mark.parametrize("can_deserialize", [True, False])
@settings(max_examples=15)
@given(data=strategies.data())
def test_a_copy_contains_the_last_commit(can_deserialize: bool, data: strategies.DataObject) -> None:
    """After any operations of the writer, and during a transaction that has written to the log."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_CAN_DESERIALIZE", can_deserialize)
        path = Path(folder) / "file.sqlite"
        writer = sqlite3.connect(path, isolation_level=None)
        for pragma in (
            f"page_size = {data.draw(strategies.sampled_from([512, 4096, 65536]))}",
            "auto_vacuum = FULL",  # so that the file shrinks
            "journal_mode = WAL",
            "synchronous = OFF",
            "cache_size = 1",  # so that pages go to the log before they are committed
            f"wal_autocheckpoint = {data.draw(strategies.sampled_from([0, 3]))}",
        ):
            writer.execute(f"PRAGMA {pragma}")
        writer.execute("CREATE TABLE blobs (number INTEGER PRIMARY KEY, blob BLOB)")
        committed: list[tuple[int, bytes]] = []
        operations = strategies.sampled_from(["COMMIT", "ROLLBACK", "PRAGMA wal_checkpoint(RESTART)"])
        for number, operation in enumerate(data.draw(strategies.lists(operations, min_size=1, max_size=8))):
            if operation.startswith("PRAGMA"):
                writer.execute(operation)
                continue
            writer.execute("BEGIN")
            writer.executemany("INSERT INTO blobs (blob) VALUES (?)", [(bytes([number]) * 3000,)] * 5)
            writer.execute("DELETE FROM blobs WHERE number % 3 = ?", (number % 3,))
            assert rows_of_copy(path) == committed
            writer.execute(operation)
            committed = writer.execute("SELECT * FROM blobs").fetchall()
            assert rows_of_copy(path) == committed
        writer.close()


def rows_of_copy(path: Path) -> list[tuple[int, bytes]]:
    content = files.last_commit(path)
    assert content is not None
    copy = files._in_memory(content)
    try:
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return copy.execute("SELECT * FROM blobs").fetchall()
    finally:
        copy.close()


def test_a_copy_of_a_changing_file_is_consistent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two reads, one commit moves from the log to the file, and the next one replaces it in the log."""
    path = tmp_path / "file.sqlite"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    for table in ("first", "second"):  # on a page each
        writer.execute(f"CREATE TABLE {table} (number INTEGER)")
        writer.execute(f"INSERT INTO {table} VALUES (0)")
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    writer.executescript("BEGIN; UPDATE first SET number = 1; UPDATE second SET number = 1; COMMIT")
    read, reads = Path.read_bytes, list[str]()

    def read_and_change(each: Path) -> bytes:
        content = read(each)
        reads.append(each.name)
        if len(reads) == 1:
            writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            writer.execute("UPDATE second SET number = 2")
        return content

    monkeypatch.setattr(Path, "read_bytes", read_and_change)
    content = files.last_commit(path)
    assert content is not None
    copy = files._in_memory(content)
    assert copy.execute("SELECT * FROM first, second").fetchall() == [(1, 2)]
    copy.close()
    writer.close()


def test_a_file_that_keeps_changing_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.sqlite"
    make(path)
    writer = SqliteFile(path, read_only=False)
    read = Path.read_bytes

    def read_and_change(each: Path) -> bytes:
        writer.connection.execute("INSERT INTO numbers VALUES (1)")
        return read(each)

    monkeypatch.setattr(Path, "read_bytes", read_and_change)
    with pytest.raises(Locked):
        files.last_commit(path)
    writer.close()


# ---------------------------------------------------------------- errors


class Damaged(Exception):
    pass


def raised(path: Path, action: Callable[[], object]) -> Exception:
    translated = sqlite_errors(path, "Repair it.", damaged=Damaged)
    with pytest.raises((Damaged, Locked, Unwritable)) as caught, translated:
        action()
    assert str(path) in str(caught.value)
    return caught.value


def test_errors_are_distinguished_by_their_codes(tmp_path: Path) -> None:
    path = tmp_path / "full of locked readonly files"  # words that must not decide the class
    make(path)
    holder = SqliteFile(path, read_only=False, patience=0)
    other = SqliteFile(path, read_only=False, patience=0)
    holder.connection.execute("BEGIN IMMEDIATE")
    assert type(raised(path, lambda: other.connection.execute("BEGIN IMMEDIATE"))) is Locked
    holder.connection.execute("ROLLBACK")
    other.connection.execute("PRAGMA query_only = ON")
    assert type(raised(path, lambda: other.connection.execute("DELETE FROM numbers"))) is Unwritable
    holder.connection.execute("PRAGMA max_page_count = 1")
    assert type(raised(path, lambda: holder.connection.execute("CREATE TABLE more (number)"))) is Unwritable
    assert type(raised(path, lambda: holder.connection.execute("SELECT * FROM nothing"))) is Damaged
    holder.close()
    other.close()
    path.write_bytes(b"no database" * 1000)
    assert type(error := raised(path, lambda: SqliteFile(path, read_only=True))) is Damaged
    assert "Repair it." in str(error)
    path.unlink()
    assert type(raised(path, lambda: SqliteFile(path, read_only=True))) is Damaged
    path.mkdir()
    assert type(raised(path, lambda: SqliteFile(path, read_only=True))) is Damaged


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    make(path)
    for place in (b"numbers", b"CREATE TABLE"):
        damaged = path.with_name(f"damaged {place.decode()}")
        damaged.write_bytes(path.read_bytes().replace(place, b"\xff" + place[1:]))
        error = raised(damaged, lambda: SqliteFile(damaged, read_only=True).rows("SELECT * FROM numbers"))  # noqa: B023
        assert type(error) is Damaged
    text = SqliteFile(path, read_only=True)
    assert type(raised(path, lambda: text.rows("SELECT CAST(x'ff' AS TEXT)"))) is Damaged
    text.close()


def test_a_programming_error_is_not_reported_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    make(path)
    file = SqliteFile(path, read_only=True)
    file.close()
    with pytest.raises(sqlite3.ProgrammingError), sqlite_errors(path, "", damaged=Damaged):
        file.rows("SELECT number FROM numbers")
