"""The folder of an index: several processes, disk space and crashes."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from midreel.errors import BadIndex, Locked, Unwritable
from midreel.index import EmbeddedIndex
from midreel.index.embedded.manifest import Manifest, State
from midreel.index.embedded.vectors import file_paths
from tests.index.library import FILES, WEIGHTS, WIDTH, found, queries, video


def test_an_existing_index_is_not_created_again(folder: Path) -> None:
    with pytest.raises(BadIndex, match="already"):
        EmbeddedIndex.create(folder, branch_weights=WEIGHTS, width=WIDTH)


def test_a_missing_index_cannot_be_opened(tmp_path: Path) -> None:
    for read_only in (False, True):
        with pytest.raises(BadIndex, match=r"manifest\.sqlite"):
            EmbeddedIndex.open(tmp_path, read_only=read_only)
    with pytest.raises(BadIndex, match="No such file"):
        EmbeddedIndex.open(tmp_path / "nowhere")


def test_an_index_cannot_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadIndex, match="cannot be created"):
        EmbeddedIndex.create(tmp_path / "file", branch_weights=WEIGHTS, width=WIDTH)


# ---------------------------------------------------------------- several processes


def test_a_second_writer_is_rejected(index: EmbeddedIndex, folder: Path) -> None:
    with pytest.raises(Locked):
        EmbeddedIndex.open(folder)
    index.close()
    EmbeddedIndex.open(folder).close()


def test_a_garbage_collected_writer_releases_the_lock(folder: Path) -> None:
    writer = EmbeddedIndex.open(folder)
    del writer
    EmbeddedIndex.open(folder).close()


def test_a_second_process_can_read_but_not_write(index: EmbeddedIndex, folder: Path) -> None:
    code = f"""
from midreel.index import EmbeddedIndex
print(len(EmbeddedIndex.open({str(folder)!r}, read_only=True)))
EmbeddedIndex.open({str(folder)!r})
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout == "12\n"
    assert "Locked" in ended.stderr


def test_a_reader_cannot_write(folder: Path) -> None:
    with EmbeddedIndex.open(folder, read_only=True) as reader:
        for change in (lambda: reader.add("new", video(1)), lambda: reader.remove("v1"), reader.compact):
            with pytest.raises(BadIndex, match="read_only"):
                change()


def test_a_reader_reads_the_manifest_at_its_first_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(Manifest, "rows")
        reader = EmbeddedIndex.open(folder, read_only=True)
    with reader:
        assert len(reader.search(queries(0), top=20)[0]) == 12


def test_readers_see_new_commits(index: EmbeddedIndex, folder: Path) -> None:
    with EmbeddedIndex.open(folder, read_only=True) as reader:
        index.add("new", video(40))
        assert reader.video_ids()[-1] == "new"
        assert reader.search(queries(0)) == index.search(queries(0))
        index.remove("v3")
        assert "v3" not in reader
        index.add("v4", video(41))
        assert reader.video_ids()[-1] == "v4"
        index.compact()
        assert reader.search(queries(0)) == index.search(queries(0))
        assert reader.verify() == []
        index.add("newer", video(42))
        assert reader.search(queries(0)) == index.search(queries(0))


def test_mapped_files_stay_readable_after_compaction(index: EmbeddedIndex, folder: Path) -> None:
    with EmbeddedIndex.open(folder, read_only=True) as reader:
        reader.search(queries(0))
        cascade = reader._cascade
        query = {branch: vectors[0].numpy() for branch, vectors in queries(0).items()}
        before = cascade.best(query, 10, exact=True)
        index.remove("v0")
        index.compact()
        assert not (folder / "000001.coarse").exists()
        assert cascade.best(query, 10, exact=True) == before


def test_a_read_only_folder() -> None:
    """A reader sees commits of others, and a writer is rejected. As another user, because root may write everything."""
    code = """
import os, sys
from midreel.errors import Unwritable
from midreel.index import EmbeddedIndex
from tests.index.library import queries
if os.geteuid() == 0:
    os.setuid(65534)
index = EmbeddedIndex.open(sys.argv[1], read_only=True)
print(len(index.search(queries(0), top=20)[0]), index.verify())
try:
    EmbeddedIndex.open(sys.argv[1])
except Unwritable as error:
    print(error, flush=True)
for _ in sys.stdin:
    print(len(index.search(queries(0), top=20)[0]), index.verify(), flush=True)
"""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "index"
        with EmbeddedIndex.create(folder, branch_weights=WEIGHTS, width=WIDTH) as index:
            index.add_all((f"v{number}", video(number)) for number in range(12))

        def permit(mode: int) -> None:
            for path in (folder.parent, folder):
                path.chmod(mode)

        permit(0o555)
        with subprocess.Popen(
            [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            first, second = reader.stdout.readline(), reader.stdout.readline()
            permit(0o755)
            with EmbeddedIndex.open(folder) as index:
                index.remove("v3")
                index.compact()
                index.add_all((f"new {number}", video(number)) for number in range(3))
                permit(0o555)
                reader.stdin.write("\n")
                reader.stdin.flush()
                during = reader.stdout.readline()
                permit(0o755)
                index.remove("v4")
            permit(0o555)
            after, _ = reader.communicate("\n")
        permit(0o755)
    assert (first, during, after) == ("12 []\n", "14 []\n", "13 []\n")
    assert "cannot be written" in second


# ---------------------------------------------------------------- disk space


def test_compaction_frees_space(index: EmbeddedIndex, folder: Path) -> None:
    def size() -> int:
        return sum(path.stat().st_size for path in folder.glob("0*"))

    full = size()
    for number in range(0, 12, 2):
        index.remove(f"v{number}")
    assert size() == full
    index.compact()
    assert size() < 0.75 * full


def test_files_of_an_interrupted_compaction_are_removed(folder: Path) -> None:
    (folder / "000002.coarse").write_bytes(b"half")
    before = found(folder)
    EmbeddedIndex.open(folder).close()
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert found(folder) == before


@pytest.mark.parametrize("full", ["vector files", "manifest"])
def test_a_failed_compaction_changes_nothing(
    index: EmbeddedIndex, folder: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    index.remove("v3")
    before, files = index.search(queries(0), top=12), {path.name for path in folder.iterdir()}

    def refuse(*_: object, **__: object) -> None:
        raise (
            OSError(errno.ENOSPC, "No space left on device") if full == "vector files" else Unwritable("No space left")
        )

    with monkeypatch.context() as patch:
        if full == "vector files":
            patch.setattr(os, "write", refuse)
        else:
            patch.setattr(index._storage.manifest, "replace_all", refuse)
        with pytest.raises(Unwritable, match="No space left"):
            index.compact()
    assert {path.name for path in folder.iterdir()} == files
    assert index.search(queries(0), top=12) == before
    index.add("new", video(5))
    index.compact()
    assert index.verify() == []
    assert len(index) == 12


def test_a_disk_that_becomes_full(folder: Path) -> None:
    limit = 1_000_000
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from midreel.errors import Unwritable
from midreel.index import EmbeddedIndex
from tests.index.library import video, queries
index = EmbeddedIndex.open({str(folder)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
number = 12
try:
    while True:
        index.add(f"v{{number}}", video(number, frames=4000))
        number += 1
except Unwritable as error:
    print(number, error)
assert len(index) == number
assert len(index.search(queries(0), top=99)[0]) == number
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    count, message = ended.stdout.split(" ", 1)
    assert str(folder) in message
    assert "File too large" in message
    with EmbeddedIndex.open(folder) as index:
        assert index.video_ids() == [f"v{number}" for number in range(int(count))]
        assert index.verify() == []
        index.add("one more", video(5))
        assert index.verify() == []


# ---------------------------------------------------------------- crashes


def test_rows_are_synced_before_the_commit_that_refers_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync, write = set[tuple[int, int]](), os.fsync, Manifest._write
    volumes = []

    def mark(stat: os.stat_result) -> tuple[int, int]:
        return stat.st_ino, stat.st_size

    def noted_sync(handle: int) -> None:
        sync(handle)
        synced.add(mark(os.fstat(handle)))

    def checked_write(manifest: Manifest, state: State, *rest: Any) -> None:
        paths = file_paths(manifest.path.parent, state.volume, 2)
        assert {mark(path.stat()) for path in (*paths, manifest.path.parent, tmp_path, tmp_path / "new")} <= synced
        volumes.append(state.volume)
        write(manifest, state, *rest)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Manifest, "_write", checked_write)
    with EmbeddedIndex.create(tmp_path / "new" / "index", branch_weights=WEIGHTS, width=WIDTH) as index:
        index.add("a", video(0))
        index.add_all([("b", video(1)), ("a", video(2))])
        index.compact()
        index.add("c", video(3))
    assert volumes == [1, 1, 2, 2]


def test_commits_survive_a_kill(folder: Path) -> None:
    code = f"""
import os
from midreel.index import EmbeddedIndex
from tests.index.library import video
index = EmbeddedIndex.open({str(folder)!r})
index.add("last", video(77))
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert (folder / "manifest.sqlite-wal").exists()
    for read_only in (True, False):
        with EmbeddedIndex.open(folder, read_only=read_only) as index:
            assert index.video_ids()[-1] == "last"
            assert index.verify() == []
