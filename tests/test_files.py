import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from midreel import files
from midreel.files import SqliteFile, lock, locked, new_sqlite, write_durably


def test_a_lock_keeps_others_out_until_it_is_closed(tmp_path: Path) -> None:
    for path, flags in ((tmp_path, os.O_RDONLY), (tmp_path / "lock", os.O_RDWR | os.O_CREAT)):
        with locked(path, flags), pytest.raises(BlockingIOError):
            lock(path)
        os.close(lock(path))


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    os.close(lock(tmp_path))


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
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


def test_a_new_sqlite_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "book"
    with pytest.raises(sqlite3.OperationalError), new_sqlite(path) as connection:
        connection.executescript("CREATE TABLE other (number INTEGER); CREATE nonsense")
    assert not path.exists()
    make(path)
    assert [each.name for each in tmp_path.iterdir()] == ["book"]


def test_the_log_of_a_lost_file_is_not_applied_to_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "book"
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


def test_a_locked_file_is_not_taken_for_one_that_never_changes(tmp_path: Path) -> None:
    path = tmp_path / "book"
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
from midreel.files import SqliteFile
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


@pytest.mark.skipif(sys.platform == "win32", reason="rights are others there")
def test_one_who_may_read_only_sees_what_is_committed_later() -> None:
    """A folder that the reader may not write: without a writer, with one, after it has ended, after one has died."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "folder"
        folder.mkdir()
        path = folder / "book"
        make(path)

        def rights(number: int) -> None:
            for each in (folder, Path(place)):
                each.chmod(number)

        def put(number: int) -> None:
            writer.connection.execute("INSERT INTO numbers VALUES (?)", (number,))

        def seen() -> str:
            reader.stdin.write("\n")
            reader.stdin.flush()
            return reader.stdout.readline().strip()

        rights(0o555)
        with subprocess.Popen(
            [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            assert seen() == "0.0 True"
            rights(0o755)  # the writer's, who may be the same user here
            writer = SqliteFile(path, read_only=False)
            put(1)
            rights(0o555)
            assert seen() == "1.0 True"
            put(2)
            assert seen() == "3.0 True"
            rights(0o755)
            writer.close()
            rights(0o555)
            assert seen() == "3.0 True"
            rights(0o755)
            writer = SqliteFile(path, read_only=False)
            put(4)
            rights(0o555)
            assert seen() == "7.0 True"
            reader.stdin.close()
        put(8)
        left = {each.name: each.read_bytes() for each in folder.iterdir() if not each.name.endswith("-shm")}
        rights(0o755)
        writer.close()
        for each in folder.iterdir():
            each.unlink()
        for name, data in left.items():  # as a copy of what a killed writer left
            (folder / name).write_bytes(data)
        rights(0o555)
        ended = subprocess.run([sys.executable, "-c", READER, str(path)], input="\n", capture_output=True, text=True)
        rights(0o755)
        assert ended.stdout == "ready\n15.0 True\n", ended.stderr
