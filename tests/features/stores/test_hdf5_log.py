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

from midreel.errors import BadStore
from midreel.features.stores import hdf5_log as ledger_module
from midreel.features.stores.hdf5_log import Column, Ledger

TABLES = {"things": {"rows": Column(dtype="<f4", width=8, ragged=True), "single": Column(dtype="<f8")}}

# What the other processes of these tests run first: entry n holds n + 1 rows of n, and n.
PREAMBLE = """
import os, sys
from pathlib import Path
import numpy as np
from midreel.features.stores.hdf5_log import Ledger
def entry(number):
    return {"rows": np.full((number + 1, 8), number, "<f4"), "single": np.asarray(number, "<f8")}
path = Path(sys.argv[1])
"""


def entry(number: int) -> dict[str, np.ndarray]:
    return {"rows": np.full((number + 1, 8), number, "<f4"), "single": np.asarray(number, "<f8")}


def expect_entries(path: Path, count: int) -> None:
    ledger = Ledger(path)
    assert ledger.ids("things") == [f"id {number}" for number in range(count)]
    for number in range(count):
        found = ledger.read("things", f"id {number}")
        assert found is not None
        np.testing.assert_array_equal(found["rows"], entry(number)["rows"])
        assert found["single"] == number
    ledger.close()


def run(code: str, path: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PREAMBLE + code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the entries 0 to 2."""
    Ledger.create(tmp_path / "ledger.h5", "a header", TABLES)
    ledger = Ledger(tmp_path / "ledger.h5", writable=True)
    ledger.append("things", {"id 0": entry(0)})
    ledger.append("things", {"id 1": entry(1), "id 2": entry(2)})
    ledger.append("things", {})
    ledger.close()
    return tmp_path / "ledger.h5"


def test_entries_are_read_back(path: Path) -> None:
    expect_entries(path, 3)
    ledger = Ledger(path)
    assert ledger.header == "a header"
    assert ledger.read("things", "id 3") is None
    assert [file.name for file in path.parent.iterdir()] == ["ledger.h5"]


def test_a_reader_sees_what_was_there_when_it_opened(path: Path) -> None:
    code = """
writer = Ledger(path, writable=True)
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
        with pytest.raises(BadStore, match=r"is being written by another process or store; wait for it, or close it"):
            Ledger(path, writable=True)
        writer.stdin.write("\n")
    expect_entries(path, 4)


def test_a_process_that_ends_without_closing_leaves_a_clean_file(path: Path) -> None:
    ended = run("Ledger(path, writable=True).append('things', {'id 3': entry(3)})\nraise KeyboardInterrupt", path)
    assert "KeyboardInterrupt" in ended.stderr
    assert path.read_bytes()[11] == 0
    expect_entries(path, 4)


@pytest.mark.parametrize("moment", ["_Table.write", "_Table.complete"])
def test_killed_between_an_entry_and_its_mark(path: Path, moment: str) -> None:
    """The entry is on disk, its mark is not: it does not count, and can be written again."""
    code = f"""
from midreel.features.stores import hdf5_log as module
original = module.{moment}
def write(table, *entries):
    rows = original(table, *entries)
    writer._file.flush()
    os._exit(9)
module.{moment} = write if "{moment}" == "_Table.write" else lambda table, rows: os._exit(9)
writer = Ledger(path, writable=True)
writer.append("things", {{"id 3": entry(3)}})
"""
    assert run(code, path).returncode == 9
    expect_entries(path, 3)
    writer = Ledger(path, writable=True)
    writer.append("things", {"id 3": entry(3)})
    writer.close()
    expect_entries(path, 4)
    assert [file.name for file in path.parent.iterdir()] == ["ledger.h5"]


def test_a_row_of_the_index_that_is_not_marked_complete_does_not_count(path: Path) -> None:
    code = """
writer = Ledger(path, writable=True)
table = writer._tables["things"]
rows = table.write({"id 3": entry(3), "id 4": entry(4)}, {})
rows["complete"] = [0, 1]
table.complete(rows)
writer._file.flush()
os._exit(9)
"""
    assert run(code, path).returncode == 9
    expect_entries(path, 3)
    writer = Ledger(path, writable=True)
    writer.append("things", {"id 3": entry(3)})
    writer.close()
    expect_entries(path, 4)


def test_killed_at_any_moment(path: Path) -> None:
    """Every entry that was reported as written is there, and every one that is there is whole."""
    code = """
writer = Ledger(path, writable=True)
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
        ledger = Ledger(path)
        count = len(ledger.ids("things"))
        ledger.close()
        assert count in (reported + 1, reported + 2)
        expect_entries(path, count)


def test_a_file_that_is_cut_short_anywhere(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    for length in (0, 5, 40, 100, 1000, 5000, len(whole) // 2, len(whole) - 3000, len(whole) - 1):
        cut = tmp_path / f"{length}.h5"
        cut.write_bytes(whole[:length])
        for writable in (False, True):
            with pytest.raises(BadStore, match="cut short"):
                Ledger(cut, writable=writable)


def test_a_file_that_is_cut_short_and_was_left_open(path: Path, tmp_path: Path) -> None:
    """Where its writer died, the length says nothing. What is lost is refused or not there, and nobody waits for it."""
    assert run("writer = Ledger(path, writable=True); os._exit(9)", path).returncode == 9
    whole = path.read_bytes()
    for length in (40, 100, 1000, 5000, len(whole) // 2, len(whole) - 3000):
        cut = tmp_path / f"{length}.h5"
        cut.write_bytes(whole[:length])
        for writable in (False, True):
            try:
                ledger = Ledger(cut, writable=writable)
            except BadStore:
                continue
            for number, name in enumerate(ledger.ids("things")):
                with suppress(BadStore):
                    found = ledger.read("things", name)
                    assert found is not None
                    np.testing.assert_array_equal(found["rows"], entry(number)["rows"])
            ledger.close()


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
def test_a_damaged_row_costs_its_own_entry_and_the_next(path: Path, number: int, field: str, value: int) -> None:
    """Also when others are appended, which begin where the last one seems to end."""
    change_index(path, number, field, value)
    writer = Ledger(path, writable=True)
    writer.append("things", {"id 3": entry(3)})
    writer.close()
    ledger = Ledger(path)
    for each in set(range(4)) - {number, number + 1 if number < 2 else number}:
        found = ledger.read("things", f"id {each}")
        assert found is not None
        np.testing.assert_array_equal(found["rows"], entry(each)["rows"])
    ledger.close()


def test_a_damaged_id_costs_its_own_entry(path: Path) -> None:
    with h5py.File(path, "r+", locking=False) as file:
        file["things/ids"][5] = 0xFF
    writer = Ledger(path, writable=True)
    writer.append("things", {"id 1": entry(1)})
    writer.close()
    ledger = Ledger(path)
    for number in range(3):
        found = ledger.read("things", f"id {number}")
        assert found is not None
        np.testing.assert_array_equal(found["rows"], entry(number)["rows"])
    ledger.close()


def test_what_a_failing_disk_does_not_read_is_not_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def fail(table: ledger_module._Table, number: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_module._Table, "read", fail)
        with pytest.raises(BadStore, match="Input/output error"):
            Ledger.compact(path, {})
    assert path.read_bytes() == before
    Ledger.compact(path, {})
    expect_entries(path, 3)


def test_a_directory_in_place_of_a_file(tmp_path: Path) -> None:
    for writable in (False, True):
        with pytest.raises(BadStore):
            Ledger(tmp_path, writable=writable)


def test_a_damaged_entry_is_noticed(path: Path) -> None:
    whole = path.read_bytes()
    rows = entry(2)["rows"].tobytes()
    assert whole.count(rows) == 1
    path.write_bytes(whole.replace(rows, bytes(len(rows))))
    ledger = Ledger(path)
    assert ledger.read("things", "id 1") is not None
    with pytest.raises(BadStore, match=r"'id 2'.*checksum"):
        ledger.read("things", "id 2")
    ledger.close()


def test_a_damaged_entry_is_dropped_when_a_killed_file_is_salvaged(path: Path) -> None:
    assert run("writer = Ledger(path, writable=True); os._exit(9)", path).returncode == 9
    whole = path.read_bytes()
    rows = entry(2)["rows"].tobytes()
    path.write_bytes(whole.replace(rows, bytes(len(rows))))
    Ledger(path, writable=True).close()
    expect_entries(path, 2)


def test_a_disk_that_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Ledger(path, writable=True)
    usage = shutil.disk_usage(path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(BadStore, match=r"has 0.0 MB left, 1.0 MB are needed; make room and run again: what was stored"):
        writer.append("things", {"id 3": entry(3)})
    writer.close()
    expect_entries(path, 3)


def test_a_write_that_fails(path: Path) -> None:
    """A quota, or a disk that fills up in the middle: what was stored is kept, and the process ends in good order."""
    limit = path.stat().st_size + 100_000
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from midreel.errors import BadStore
writer = Ledger(path, writable=True)
number = 3
try:
    while True:
        writer.append("things", {{f"id {{number}}": entry(number)}})
        number += 1
except BadStore as error:
    print(number, error)
"""
    ended = run(code, path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    count, message = ended.stdout.split(" ", 1)
    assert message.startswith("cannot write to")
    assert "make room or mend the disk and run again: what was stored is kept" in message
    assert int(count) > 10
    expect_entries(path, int(count))
    writer = Ledger(path, writable=True)
    writer.append("things", {f"id {count}": entry(int(count))})
    writer.close()
    expect_entries(path, int(count) + 1)


def test_what_is_no_ledger(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "other.h5", "w", libver="latest") as file:
        file["data"] = [1]
    for writable in (False, True):
        with pytest.raises(BadStore, match=r"of the format None, expected 'midreel features, version 2'"):
            Ledger(tmp_path / "other.h5", writable=writable)
        with pytest.raises(BadStore, match=r"nothing.h5 does not exist, expected a feature store; extract"):
            Ledger(tmp_path / "nothing.h5", writable=writable)
    (tmp_path / "text.h5").write_text("hello, I am long enough to be taken for a file")
    with pytest.raises(BadStore, match=r"text\.h5"):
        Ledger(tmp_path / "text.h5")


def test_a_file_is_made_once(path: Path) -> None:
    with pytest.raises(BadStore, match=r"exists already, expected a new file; open it, or delete it first"):
        Ledger.create(path, "another header", TABLES)
    expect_entries(path, 3)
    assert [file.name for file in path.parent.iterdir()] == ["ledger.h5"]


def test_an_entry_is_added_once(path: Path) -> None:
    writer = Ledger(path, writable=True)
    with pytest.raises(BadStore, match=r"holds 'id 1' in things already; skip what is stored"):
        writer.append("things", {"id 3": entry(3), "id 1": entry(1)})
    writer.close()
    expect_entries(path, 3)


def test_an_entry_of_another_origin_takes_the_place_of_the_first(path: Path) -> None:
    writer = Ledger(path, writable=True)
    assert writer.origin("things", "id 1") == 0
    before = writer.digest("things", ["id 1", "id 2"])
    writer.append("things", {"id 1": entry(7), "id 3": entry(3)}, {"id 1": 2**64 - 1})
    with pytest.raises(BadStore, match="holds 'id 1' in things already"):
        writer.append("things", {"id 1": entry(8)}, {"id 1": 2**64 - 1})
    assert writer.digest("things", ["id 2", "id 1"]) != before
    for ledger in (writer, Ledger(path)):
        assert ledger.ids("things") == ["id 0", "id 1", "id 2", "id 3"]
        assert [ledger.origin("things", f"id {number}") for number in range(4)] == [0, 2**64 - 1, 0, 0]
        found = ledger.read("things", "id 1")
        assert found is not None
        np.testing.assert_array_equal(found["rows"], entry(7)["rows"])
    writer.close()


def test_a_file_that_is_made_anew_is_on_the_disk_before_it_takes_the_others_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a power cut would leave neither."""
    old, synced = path.stat().st_ino, []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, path.stat().st_ino)))
    Ledger.compact(path, {"things": {"id 0"}})
    new = path.stat().st_ino
    assert synced == [(new, old), (path.parent.stat().st_ino, new)]


def test_a_file_that_is_salvaged_keeps_the_last_of_each_id_and_its_origin(path: Path) -> None:
    code = """
writer = Ledger(path, writable=True)
writer.append("things", {"id 1": entry(7)}, {"id 1": 5})
os._exit(9)
"""
    assert run(code, path).returncode == 9
    Ledger(path, writable=True).close()
    ledger = Ledger(path)
    assert ledger.ids("things") == ["id 0", "id 1", "id 2"]
    assert ledger.origin("things", "id 1") == 5
    found = ledger.read("things", "id 1")
    assert found is not None
    assert found["single"] == 7
    ledger.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_file_that_may_not_be_written(path: Path) -> None:
    path.chmod(0o400)
    expect_entries(path, 3)
    with pytest.raises(BadStore, match=r"cannot be written \(.*\); change its permissions or copy it"):
        Ledger(path, writable=True)


def test_a_writer_that_is_forgotten_lets_go_of_the_file(path: Path) -> None:
    writer = Ledger(path, writable=True)
    del writer
    writer = Ledger(path, writable=True)
    writer.append("things", {"id 3": entry(3)})
    writer.close()
    expect_entries(path, 4)
