import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from midreel.errors import BadLibrary, Locked, MissingLibrary, Unwritable
from midreel.library.catalogue import NAME, Catalogue, File, Video
from midreel.library.filters import Filter
from midreel.library.scan import FoundFile


def found(path: str | bytes, size: int = 5, modified: int = 7 * 10**9) -> FoundFile:
    return FoundFile(path=Path(os.fsdecode(path)), size=size, modified=modified)


def video(name: str, *, duration: float = 10.0, date: float = 0.0) -> Video:
    return Video(id=name, duration=duration, num_frames=20, date=date)


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path, mode="create")


def test_added_videos_are_read_back(catalogue: Catalogue) -> None:
    catalogue.add(video("v"), [found("/a/x.mp4"), found(b"/a/\xff\n.mp4")], ["beach"])
    assert catalogue.video("v") == video("v", date=7.0)
    assert list(catalogue.videos()) == [catalogue.video("v")]
    assert catalogue.video("w") is None
    assert (len(catalogue), catalogue.video_ids(), catalogue.seconds()) == (1, {"v"}, 10.0)
    assert {os.fsencode(path) for path in catalogue.paths("v")} == {b"/a/x.mp4", b"/a/\xff\n.mp4"}
    assert catalogue.files()[Path("/a/x.mp4")] == File(path=Path("/a/x.mp4"), size=5, modified=7 * 10**9, video_id="v")
    assert catalogue.video_at(Path("/a/x.mp4")) == catalogue.video("v")
    assert catalogue.video_at(Path("/a/y.mp4")) is None
    assert (catalogue.tags(), catalogue.tags_of("v"), catalogue.tags_of("w")) == ({"beach": 1}, ["beach"], [])


def test_videos_are_read_with_their_paths_as_one_by_one(catalogue: Catalogue) -> None:
    catalogue.add(video("v"), [found("/b/x.mp4", modified=9), found("/a/y.mp4", modified=8), found(b"/a/\xff.mp4")])
    catalogue.add(video("w"), [found("/a/w.mp4")])
    catalogue.add(video("without files"), [])
    for wanted in (Filter(), Filter(folders=(Path("/b"),))):
        expected = {each: (catalogue.video(each), tuple(catalogue.paths(each, wanted))) for each in ("v", "w")}
        assert catalogue.with_paths(["w", "unknown", "v", "without files"], wanted) == expected
    assert catalogue.with_paths(["v"], Filter(folders=(Path("/b"),)))["v"][1][0] == Path("/b/x.mp4")
    assert catalogue.with_paths([]) == {}


def test_a_file_has_one_video_at_a_time(catalogue: Catalogue) -> None:
    catalogue.add(video("old"), [found("/a.mp4")])
    catalogue.add(video("new"), [found("/a.mp4", size=6)])
    assert catalogue.orphans() == ["old"]
    catalogue.forget_videos(["old"])
    assert (catalogue.video_ids(), catalogue.orphans()) == ({"new"}, [])
    catalogue.add_unreadable(found("/a.mp4", size=8), "no video")
    assert catalogue.quarantine() == {Path("/a.mp4"): "no video"}
    assert catalogue.orphans() == ["new"]


def test_files_are_added_and_removed(catalogue: Catalogue) -> None:
    catalogue.add(video("v"), [found("/a.mp4")])
    catalogue.place(found("/b.mp4"), "v", ["x"])
    catalogue.forget_files([Path("/a.mp4")])
    assert catalogue.paths("v") == [Path("/b.mp4")]
    assert catalogue.tags_of("v") == ["x"]
    catalogue.forget_videos(["v"])
    assert (catalogue.files(), catalogue.tags(), len(catalogue)) == ({}, {}, 0)


def test_damage_applies_to_all_files_of_a_video(catalogue: Catalogue) -> None:
    catalogue.add(video("v"), [found("/a.mp4")], damage="it ends early")
    catalogue.place(found("/b.mp4"), "v")
    catalogue.add(video("v"), [found("/c.mp4")], damage=catalogue.damage_of("v"))
    catalogue.add(video("w"), [found("/w.mp4")])
    catalogue.add_unreadable(found("/n.mp4"), "no video")
    assert catalogue.damaged() == {Path(f"/{name}.mp4"): "it ends early" for name in "abc"}
    catalogue.add(video("v"), [found("/a.mp4")])  # now it is complete
    assert catalogue.damaged() == {}


def test_places_are_remembered_once(catalogue: Catalogue) -> None:
    catalogue.remember_places([Path("/b"), Path("/a")])
    catalogue.remember_places([Path("/a")])
    assert catalogue.places() == [Path("/a"), Path("/b")]


def test_a_file_is_unchanged_if_size_and_time_are() -> None:
    file = File(path=Path("/a"), size=5, modified=7 * 10**9, video_id="v")
    assert file.is_still(found("/a"))
    assert not file.is_still(found("/a", size=6))
    assert not file.is_still(found("/a", modified=8))


def test_filters(catalogue: Catalogue) -> None:
    def file(path: str, date: int) -> FoundFile:
        return found(path, modified=date * 10**9)

    catalogue.add(video("a", duration=10.0), [file("/x/y/a.mp4", 100), file("/z/a.mp4", 400)], ["sea", "2024"])
    catalogue.add(video("b", duration=20.0), [file("/x/b.mp4", 200)], ["sea"])
    catalogue.add(video("c", duration=30.0), [file("/x y/c%_.mp4", 300)])
    catalogue.add(video("orphan"), [])

    def matching(**wanted: object) -> str:
        return "".join(sorted(catalogue.matching(Filter(**wanted))))  # type: ignore[arg-type]

    assert matching() == "abc"
    assert matching(folders=(Path("/x"),)) == "ab"
    assert matching(folders=(Path("/x/y"), Path("/x y"))) == "ac"
    assert matching(folders=(Path("/z/a.mp4"),)) == "a"
    assert matching(folders=(Path("/"),)) == "abc"
    assert matching(tags=("sea",)) == "ab"
    assert matching(tags=("sea", "2024")) == "a"
    assert (matching(after=200.0), matching(before=200.0)) == ("abc", "a")
    assert matching(after=200.0, folders=(Path("/x"), Path("/x y"))) == "bc"  # one file must meet both
    assert (matching(longer=20.0), matching(shorter=20.0)) == ("bc", "ab")
    assert matching(folders=(Path("/x"),), longer=15.0, tags=("sea",)) == "b"
    assert matching(tags=("'; DROP TABLE videos; --",)) == ""
    assert matching(videos=()) == ""
    assert matching(videos=("a", "c", *map(str, range(100_000))), shorter=20.0) == "a"


def test_files_that_a_filter_allows_come_first(catalogue: Catalogue) -> None:
    catalogue.add(video("v"), [found("/a/1.mp4"), found("/b/2.mp4"), found("/c/3.mp4", modified=9 * 10**9)])
    assert [path.name for path in catalogue.paths("v", Filter(folders=(Path("/b"),)))] == ["2.mp4", "1.mp4", "3.mp4"]
    assert [path.name for path in catalogue.paths("v", Filter(after=8.0))] == ["3.mp4", "1.mp4", "2.mp4"]


def test_an_interrupted_transaction_changes_nothing(catalogue: Catalogue) -> None:
    def files() -> object:
        yield found("/a.mp4")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalogue.add(video("v"), files())  # type: ignore[arg-type]
    assert (len(catalogue), catalogue.files()) == (0, {})
    catalogue.add(video("v"), [found("/a.mp4")])


def test_a_new_catalogue_ignores_the_log_of_a_deleted_one(catalogue: Catalogue, tmp_path: Path) -> None:
    """A killed writer leaves its log, which must not be applied to the new file."""
    catalogue.add(video("v"), [found("/a.mp4")])
    kept = {path.name: path.read_bytes() for path in tmp_path.glob(f"{NAME}-*")}
    catalogue.close()
    (tmp_path / NAME).unlink()
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    assert (tmp_path / f"{NAME}-wal").stat().st_size > 0
    with closing(Catalogue(tmp_path, mode="create")) as new:
        assert (len(new), new.files()) == (0, {})


def test_a_locked_catalogue_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midreel.library.catalogue._TIMEOUT", 0)
    with closing(Catalogue(tmp_path, mode="create")) as catalogue, closing(sqlite3.connect(tmp_path / NAME)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Locked, match="locked"):
            catalogue.remember_places([Path("/a")])


def test_a_reader_sees_commits_and_cannot_write(catalogue: Catalogue, tmp_path: Path) -> None:
    with closing(Catalogue(tmp_path)) as reader:
        assert len(reader) == 0
        catalogue.add(video("v"), [found("/a.mp4")])
        assert len(reader) == 1
        with pytest.raises(Unwritable, match="readonly"):
            reader.remember_places([Path("/a")])


READ = """
import os, sys
from pathlib import Path
from midreel.library.catalogue import Catalogue
os.setuid(65534)
print(sorted(Catalogue(Path(sys.argv[1])).video_ids()))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("left_open", [False, True])
def test_a_read_only_folder_is_read_with_all_commits(catalogue: Catalogue, tmp_path: Path, left_open: bool) -> None:
    """Also if a writer died, and its last transactions are only in the log."""
    catalogue.add(video("v"), [found("/a.mp4")])
    folder = Path(tempfile.mkdtemp())  # other users cannot read pytest's folders
    folder.chmod(0o755)
    try:
        if not left_open:
            catalogue.close()
        for path in tmp_path.glob(f"{NAME}*"):
            if not path.name.endswith("-shm"):
                shutil.copyfile(path, folder / path.name)
        assert (folder / f"{NAME}-wal").exists() == left_open
        before = sorted(folder.iterdir())
        run = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, timeout=60)
        assert (run.stdout, run.stderr) == ("['v']\n", "")
        assert sorted(folder.iterdir()) == before
    finally:
        shutil.rmtree(folder)


def test_a_missing_catalogue(tmp_path: Path) -> None:
    with pytest.raises(MissingLibrary, match=NAME):
        Catalogue(tmp_path)


def test_a_reader_follows_a_catalogue_that_is_replaced(tmp_path: Path) -> None:
    for name, video_id in (("library", "old"), ("backup", "new")):
        (tmp_path / name).mkdir()
        with closing(Catalogue(tmp_path / name, mode="create")) as made:
            made.add(video(video_id), [found("/a.mp4")])
    with closing(Catalogue(tmp_path / "library")) as reader:
        before = reader.version()
        shutil.rmtree(tmp_path / "library")
        with pytest.raises(MissingLibrary):
            reader.version()
        (tmp_path / "backup").rename(tmp_path / "library")
        assert reader.version() != before
        assert (reader.video_ids(), reader.times_replaced) == ({"new"}, 1)
        with closing(Catalogue(tmp_path / "library", mode="write")) as writer:
            writer.forget_videos(["new"])
        assert len(reader) == 0


def test_a_reader_recovers_when_a_damaged_catalogue_is_replaced(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.add(video("v"), [found("/a.mp4")])
    catalogue.close()
    whole = (tmp_path / NAME).read_bytes()
    with closing(Catalogue(tmp_path)) as reader:
        for content in (b"no database" * 1000, whole):
            (tmp_path / NAME).unlink()  # the next file may get the same inode
            (tmp_path / NAME).write_bytes(content)
            if content == whole:
                reader.version()
                assert reader.video_ids() == {"v"}
            else:
                with pytest.raises(BadLibrary):
                    reader.version()


def test_format_1_is_read_and_upgraded(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.add(video("v", date=7.0), [found("/a.mp4")], ["beach"])
    catalogue.close()
    with closing(sqlite3.connect(tmp_path / NAME)) as database:
        database.execute("ALTER TABLE videos ADD COLUMN num_damaged INTEGER NOT NULL DEFAULT 0")
        database.execute("PRAGMA user_version = 1")
    for mode in ("read", "write", "read"):
        with closing(Catalogue(tmp_path, mode=mode)) as old:  # type: ignore[arg-type]
            assert (old.video_ids(), old.tags()) == ({"v"}, {"beach": 1})
            if mode == "write":
                old.add(video("w"), [found("/b.mp4")])
                assert len(old) == 2
                old.forget_videos(["w"])


def test_a_newer_format(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.close()
    with closing(sqlite3.connect(tmp_path / NAME)) as database:
        database.execute("PRAGMA user_version = 9")
    for mode in ("read", "write"):
        with pytest.raises(BadLibrary, match="format 9"):
            Catalogue(tmp_path, mode=mode)  # type: ignore[arg-type]


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    for mode in ("read", "write"):
        with pytest.raises(BadLibrary, match="damaged"):
            Catalogue(tmp_path, mode=mode)  # type: ignore[arg-type]


def test_a_damaged_catalogue(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.close()
    (tmp_path / NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(BadLibrary) as caught:
        Catalogue(tmp_path)
    assert "delete" not in str(caught.value)  # only the catalogue has the tags and places


@pytest.mark.parametrize(
    ("statement", "reads"),
    [
        ("UPDATE videos SET duration = 'long'", [Catalogue.videos]),
        ("UPDATE videos SET duration = 9e999", [Catalogue.videos]),
        ("UPDATE videos SET duration = -1", [Catalogue.videos]),
        ("UPDATE videos SET num_frames = 'many'", [Catalogue.videos]),
        ("UPDATE videos SET num_frames = 0", [Catalogue.videos]),
        ("UPDATE videos SET id = x'00'", [Catalogue.videos, Catalogue.video_ids, Catalogue.orphans]),
        ("UPDATE files SET path = 1", [Catalogue.files, lambda catalogue: catalogue.paths("v")]),
        ("UPDATE files SET size = 'large'", [Catalogue.files]),
        ("UPDATE files SET modified = 'late'", [Catalogue.files]),
        ("UPDATE files SET reason = x'00'", [Catalogue.files, Catalogue.damaged]),
        ("UPDATE files SET reason = CAST(x'ff' AS TEXT)", [Catalogue.files, Catalogue.damaged]),
        ("UPDATE tags SET tag = x'00'", [Catalogue.tags, lambda catalogue: catalogue.tags_of("v")]),
        ("UPDATE places SET path = 'text'", [Catalogue.places]),
    ],
)
def test_damaged_values(
    catalogue: Catalogue, tmp_path: Path, statement: str, reads: list[Callable[[Catalogue], object]]
) -> None:
    catalogue.add(video("v"), [found("/a.mp4")], ["beach"])
    catalogue.remember_places([Path("/")])
    catalogue.close()
    with closing(sqlite3.connect(tmp_path / NAME, isolation_level=None)) as database:
        database.execute(statement)
    with closing(Catalogue(tmp_path)) as damaged:
        for read in reads:
            with pytest.raises(BadLibrary):
                read(damaged)


def test_a_folder_name_with_url_characters(tmp_path: Path) -> None:
    folder = tmp_path / "50% of #1?mode=ro"
    folder.mkdir()
    Catalogue(folder, mode="create").add(video("v"), [])
    with closing(Catalogue(folder)) as reader:
        assert len(reader) == 1


def test_an_interrupted_creation_is_repeated(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.new").write_bytes(b"half")
    assert len(Catalogue(tmp_path, mode="create")) == 0
