import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import h5py  # type: ignore[import-untyped]
import numpy as np
import pytest

from midreel.errors import BadStore, Locked, Unwritable
from midreel.features.stores import hdf5_log
from midreel.features.stores.hdf5_log import Column, HDF5Log

TABLES = {"things": {"rows": Column(dtype="<f4", width=8, ragged=True), "single": Column(dtype="<f8")}}

# The subprocesses of these tests run this first. Entry n has n + 1 rows of the number n, and the single value n.
PREAMBLE = """
import os, sys
from pathlib import Path
import numpy as np
from midreel.features.stores.hdf5_log import HDF5Log
def entry(number):
    return {"rows": np.full((number + 1, 8), number, "<f4"), "single": np.asarray(number, "<f8")}
path = Path(sys.argv[1])
"""


def entry(number: int) -> dict[str, np.ndarray]:
    return {"rows": np.full((number + 1, 8), number, "<f4"), "single": np.asarray(number, "<f8")}


def expect_entries(path: Path, count: int) -> None:
    log = HDF5Log(path)
    assert log.ids("things") == [f"id {number}" for number in range(count)]
    for number in range(count):
        found = log.read("things", f"id {number}")
        assert found is not None
        np.testing.assert_array_equal(found["rows"], entry(number)["rows"])
        assert found["single"] == number
    log.close()


def run(code: str, path: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PREAMBLE + code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the entries 0 to 2."""
    HDF5Log.create(tmp_path / "log.h5", "a header", TABLES)
    log = HDF5Log(tmp_path / "log.h5", writable=True)
    log.append("things", {"id 0": entry(0)})
    log.append("things", {"id 1": entry(1), "id 2": entry(2)})
    log.append("things", {})
    log.close()
    return tmp_path / "log.h5"


def test_entries_are_read_back(path: Path) -> None:
    expect_entries(path, 3)
    log = HDF5Log(path)
    assert log.header == "a header"
    assert log.read("things", "id 3") is None
    assert [file.name for file in path.parent.iterdir()] == ["log.h5"]


def test_a_reader_sees_the_entries_that_were_complete_when_it_opened(path: Path) -> None:
    code = """
writer = HDF5Log(path, writable=True)
writer.append("things", {"id 3": entry(3)})
print("written", flush=True)
sys.stdin.readline()
"""
    command = [sys.executable, "-c", PREAMBLE + code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        expect_entries(path, 4)  # while it is being written
        with pytest.raises(Locked):
            HDF5Log(path, writable=True)
        writer.stdin.write("\n")
    expect_entries(path, 4)


def test_a_process_that_exits_without_closing_leaves_a_clean_file(path: Path) -> None:
    ended = run("HDF5Log(path, writable=True).append('things', {'id 3': entry(3)})\nraise KeyboardInterrupt", path)
    assert "KeyboardInterrupt" in ended.stderr
    assert path.read_bytes()[11] == 0
    expect_entries(path, 4)


@pytest.mark.parametrize("moment", ["_Table.write", "_Table.complete"])
def test_a_writer_killed_before_the_mark_is_written(path: Path, moment: str) -> None:
    """The entry is on disk, but its mark is not: it is ignored and can be appended again."""
    code = f"""
from midreel.features.stores import hdf5_log as module
original = module.{moment}
def write(table, *entries):
    rows = original(table, *entries)
    writer._file.flush()
    os._exit(9)
module.{moment} = write if "{moment}" == "_Table.write" else lambda table, rows: os._exit(9)
writer = HDF5Log(path, writable=True)
writer.append("things", {{"id 3": entry(3)}})
"""
    assert run(code, path).returncode == 9
    expect_entries(path, 3)
    writer = HDF5Log(path, writable=True)
    writer.append("things", {"id 3": entry(3)})
    writer.close()
    expect_entries(path, 4)
    assert [file.name for file in path.parent.iterdir()] == ["log.h5"]


def test_an_index_row_without_its_mark_is_ignored(path: Path) -> None:
    code = """
writer = HDF5Log(path, writable=True)
table = writer._tables["things"]
rows = table.write({"id 3": entry(3), "id 4": entry(4)}, {})
rows["complete"] = [0, 1]
table.complete(rows)
writer._file.flush()
os._exit(9)
"""
    assert run(code, path).returncode == 9
    expect_entries(path, 3)
    writer = HDF5Log(path, writable=True)
    writer.append("things", {"id 3": entry(3)})
    writer.close()
    expect_entries(path, 4)


def test_a_writer_killed_at_any_time(path: Path) -> None:
    """Every entry that was reported as written is stored, and every stored entry is complete."""
    code = """
writer = HDF5Log(path, writable=True)
for number in range(len(writer.ids("things")), 10**6):
    writer.append("things", {f"id {number}": entry(number)})
    print(number, flush=True)
"""
    reported = 2
    for wait in (0.0, 0.01, 0.03, 0.07):
        command = [sys.executable, "-c", PREAMBLE + code, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(wait)
            writer.send_signal(signal.SIGKILL)
            reported = int((first + writer.stdout.read()).rsplit("\n", 2)[-2])
        log = HDF5Log(path)
        count = len(log.ids("things"))
        log.close()
        assert count in (reported + 1, reported + 2)
        expect_entries(path, count)


def test_a_truncated_file(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    for length in (0, 5, 40, 100, 1000, 5000, len(whole) // 2, len(whole) - 3000, len(whole) - 1):
        cut = tmp_path / f"{length}.h5"
        cut.write_bytes(whole[:length])
        for writable in (False, True):
            with pytest.raises(BadStore, match="truncated"):
                HDF5Log(cut, writable=writable)


def test_a_truncated_file_that_was_left_open(path: Path, tmp_path: Path) -> None:
    """The recorded length is outdated then. Lost entries are missing or raise an error, without a long wait."""
    assert run("writer = HDF5Log(path, writable=True); os._exit(9)", path).returncode == 9
    whole = path.read_bytes()
    for length in (40, 100, 1000, 5000, len(whole) // 2, len(whole) - 3000):
        cut = tmp_path / f"{length}.h5"
        cut.write_bytes(whole[:length])
        for writable in (False, True):
            try:
                log = HDF5Log(cut, writable=writable)
            except BadStore:
                continue
            for number, name in enumerate(log.ids("things")):
                with suppress(BadStore):
                    found = log.read("things", name)
                    assert found is not None
                    np.testing.assert_array_equal(found["rows"], entry(number)["rows"])
            log.close()


def change_index(path: Path, number: int, field: str, value: int) -> None:
    with h5py.File(path, "r+", locking=False) as file:
        rows = file["things/index"][:]
        rows[field][number] = value
        file["things/index"][:] = rows


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    ("field", "value"),
    [("complete", 0), ("end", 0), ("end", 2), ("end", -1), ("end", 2**40), ("id_end", 0), ("id_end", 2**40)],
)
def test_a_damaged_index_row_loses_at_most_its_own_entry_and_the_next(
    path: Path, number: int, field: str, value: int
) -> None:
    """Even if others are appended, which start where the last entry seems to end."""
    change_index(path, number, field, value)
    writer = HDF5Log(path, writable=True)
    writer.append("things", {"id 3": entry(3)})
    writer.close()
    log = HDF5Log(path)
    for each in set(range(4)) - {number, number + 1 if number < 2 else number}:
        found = log.read("things", f"id {each}")
        assert found is not None
        np.testing.assert_array_equal(found["rows"], entry(each)["rows"])
    log.close()


def test_a_damaged_id_loses_only_its_own_entry(path: Path) -> None:
    with h5py.File(path, "r+", locking=False) as file:
        file["things/ids"][5] = 0xFF
    writer = HDF5Log(path, writable=True)
    writer.append("things", {"id 1": entry(1)})
    writer.close()
    log = HDF5Log(path)
    for number in range(3):
        found = log.read("things", f"id {number}")
        assert found is not None
        np.testing.assert_array_equal(found["rows"], entry(number)["rows"])
    log.close()


def test_entries_that_a_failing_disk_cannot_read_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def fail(table: hdf5_log._Table, number: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(hdf5_log._Table, "read", fail)
        with pytest.raises(BadStore, match="Input/output error"):
            HDF5Log.compact(path, {})
    assert path.read_bytes() == before
    HDF5Log.compact(path, {})
    expect_entries(path, 3)


def test_a_directory_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(BadStore):
        HDF5Log(tmp_path)
    with pytest.raises(Unwritable):
        HDF5Log(tmp_path, writable=True)


def test_a_damaged_entry_is_detected(path: Path) -> None:
    whole = path.read_bytes()
    rows = entry(2)["rows"].tobytes()
    assert whole.count(rows) == 1
    path.write_bytes(whole.replace(rows, bytes(len(rows))))
    log = HDF5Log(path)
    assert log.read("things", "id 1") is not None
    with pytest.raises(BadStore, match=r"'id 2'.*checksum"):
        log.read("things", "id 2")
    log.close()


def test_a_damaged_entry_is_dropped_when_the_file_is_rewritten(path: Path) -> None:
    assert run("writer = HDF5Log(path, writable=True); os._exit(9)", path).returncode == 9
    whole = path.read_bytes()
    rows = entry(2)["rows"].tobytes()
    path.write_bytes(whole.replace(rows, bytes(len(rows))))
    HDF5Log(path, writable=True).close()
    expect_entries(path, 2)


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = HDF5Log(path, writable=True)
    usage = shutil.disk_usage(path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(Unwritable, match=r"0\.0 MB free, expected 1\.0 MB"):
        writer.append("things", {"id 3": entry(3)})
    writer.close()
    expect_entries(path, 3)


def test_a_failing_write(path: Path) -> None:
    """The disk fills up, or a quota is exceeded: stored entries are kept, and the process exits normally."""
    limit = path.stat().st_size + 100_000
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from midreel.errors import Unwritable
writer = HDF5Log(path, writable=True)
number = 3
try:
    while True:
        writer.append("things", {{f"id {{number}}": entry(number)}})
        number += 1
except Unwritable as error:
    print(number, error)
"""
    ended = run(code, path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    count, message = ended.stdout.split(" ", 1)
    assert "cannot be written" in message
    assert int(count) > 10
    expect_entries(path, int(count))
    writer = HDF5Log(path, writable=True)
    writer.append("things", {f"id {count}": entry(int(count))})
    writer.close()
    expect_entries(path, int(count) + 1)


def test_a_repair_on_a_full_disk(path: Path) -> None:
    """A file that a killed writer left open is rewritten first. If the disk is full, it stays as it is."""
    writer = HDF5Log(path, writable=True)
    left_open = path.with_name("left open.h5")
    shutil.copy(path, left_open)
    writer.close()
    before = left_open.read_bytes()
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
from midreel.errors import Unwritable
try:
    HDF5Log(path, writable=True)
except Unwritable as error:
    print(error)
"""
    ended = run(code, left_open)
    assert (ended.returncode, "cannot be written" in ended.stdout) == (0, True), ended.stderr
    assert left_open.read_bytes() == before
    assert not left_open.with_name(f"{left_open.name}.tmp").exists()
    expect_entries(left_open, 3)


def test_other_files_are_rejected(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w", libver="latest") as file:
        file["data"] = [1]
    for writable in (False, True):
        with pytest.raises(BadStore, match="None, expected 'midreel features, version 2'"):
            HDF5Log(tmp_path / "other.h5", writable=writable)
        with pytest.raises(BadStore, match=r"nothing\.h5 does not exist"):
            HDF5Log(tmp_path / "nothing.h5", writable=writable)
    (tmp_path / "text.h5").write_text("hello, I am long enough to be taken for a file")
    with pytest.raises(BadStore, match=r"text\.h5"):
        HDF5Log(tmp_path / "text.h5")


def test_an_existing_file_is_not_overwritten(path: Path) -> None:
    with pytest.raises(BadStore, match="already exists"):
        HDF5Log.create(path, "another header", TABLES)
    expect_entries(path, 3)
    assert [file.name for file in path.parent.iterdir()] == ["log.h5"]


def test_a_stored_entry_is_not_added_again(path: Path) -> None:
    writer = HDF5Log(path, writable=True)
    with pytest.raises(BadStore, match="already has 'id 1'"):
        writer.append("things", {"id 3": entry(3), "id 1": entry(1)})
    writer.close()
    expect_entries(path, 3)


def test_an_entry_with_a_new_origin_replaces_the_stored_one(path: Path) -> None:
    writer = HDF5Log(path, writable=True)
    assert writer.origin("things", "id 1") == 0
    before = writer.digest("things", ["id 1", "id 2"])
    writer.append("things", {"id 1": entry(7), "id 3": entry(3)}, {"id 1": 2**64 - 1})
    with pytest.raises(BadStore, match="already has 'id 1'"):
        writer.append("things", {"id 1": entry(8)}, {"id 1": 2**64 - 1})
    assert writer.digest("things", ["id 2", "id 1"]) != before
    for log in (writer, HDF5Log(path)):
        assert log.ids("things") == ["id 0", "id 1", "id 2", "id 3"]
        assert [log.origin("things", f"id {number}") for number in range(4)] == [0, 2**64 - 1, 0, 0]
        found = log.read("things", "id 1")
        assert found is not None
        np.testing.assert_array_equal(found["rows"], entry(7)["rows"])
    writer.close()


def test_a_rewritten_file_is_synced_before_it_replaces_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power failure could lose both."""
    old, synced = path.stat().st_ino, []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, path.stat().st_ino)))
    HDF5Log.compact(path, {"things": {"id 0"}})
    new = path.stat().st_ino
    assert synced == [(new, old), (path.parent.stat().st_ino, new)]


def test_a_rewritten_file_keeps_the_last_entry_of_each_id_and_its_origin(path: Path) -> None:
    code = """
writer = HDF5Log(path, writable=True)
writer.append("things", {"id 1": entry(7)}, {"id 1": 5})
os._exit(9)
"""
    assert run(code, path).returncode == 9
    HDF5Log(path, writable=True).close()
    log = HDF5Log(path)
    assert log.ids("things") == ["id 0", "id 1", "id 2"]
    assert log.origin("things", "id 1") == 5
    found = log.read("things", "id 1")
    assert found is not None
    assert found["single"] == 7
    log.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file(path: Path) -> None:
    path.chmod(0o400)
    expect_entries(path, 3)
    with pytest.raises(BadStore, match="permissions"):
        HDF5Log(path, writable=True)


def test_a_garbage_collected_writer_releases_its_lock(path: Path) -> None:
    writer = HDF5Log(path, writable=True)
    del writer
    writer = HDF5Log(path, writable=True)
    writer.append("things", {"id 3": entry(3)})
    writer.close()
    expect_entries(path, 4)
