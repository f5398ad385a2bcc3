import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets.own import VIDEO_ENDINGS
from midreel.errors import BadSetting, MissingVideo
from midreel.library import scan as scanning
from midreel.library.scan import absolute, expect_apart, scan, shown

ODD_NAMES = (
    b"a b.mp4",
    b"quo\"te's.mp4",
    b"new\nline.mp4",
    b"not \xff utf8.mp4",
    b"-n.mp4",
    "日本.MP4".encode(),
    b"50% #1?.mkv",
)


def touch(folder: Path, *names: str | bytes) -> list[Path]:
    paths = [folder / os.fsdecode(name) for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(path.name))
    return paths


def names(found: scanning.Scan, folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in found.files}


def test_videos_are_found_by_extension_in_all_subfolders(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", "deep/er/b.MKV", "deep/c.m2ts", "notes.txt", ".hidden.mp4", ".cache/d.mp4", "mp4")
    assert names(scan([tmp_path]), tmp_path) == {"a.mp4", "deep/er/b.MKV", "deep/c.m2ts"}


@pytest.mark.parametrize("ending", ["mjpg", "mk3d", "nut", "h264", "hevc", "mj2", "m2t"])
def test_less_common_extensions(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"film.{ending}").touch()
    assert len(scan([tmp_path]).files) == 1


def test_extensions_of_datasets_are_included() -> None:
    assert set(VIDEO_ENDINGS) < scanning.ENDINGS


def test_a_named_file_may_have_any_extension(tmp_path: Path) -> None:
    (path,) = touch(tmp_path, "recording.0001")
    found = scan([path]).files[path]
    assert (found.size, found.modified) == (len("recording.0001"), path.stat().st_mtime_ns)


def test_names_of_any_bytes(tmp_path: Path) -> None:
    paths = touch(tmp_path, *ODD_NAMES)
    assert set(scan([tmp_path]).files) == set(paths)


def test_circular_and_broken_links(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.mp4")
    (tmp_path / "real/up").symlink_to(tmp_path)
    (tmp_path / "also").symlink_to(tmp_path / "real")
    (tmp_path / "itself.mp4").symlink_to(tmp_path / "itself.mp4")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "nowhere.mp4").symlink_to(tmp_path / "nothing")
    (tmp_path / "link.mp4").symlink_to(tmp_path / "real/a.mp4")
    assert names(scan([tmp_path]), tmp_path) == {"real/a.mp4", "link.mp4"}


def test_links_that_are_not_followed_are_unread(tmp_path: Path) -> None:
    touch(tmp_path, "out/a.mp4", "out/deep/b.mp4", "in/c.mp4")
    for name, target in {"in/out": "out", "in/d.mp4": "out/a.mp4", "in/notes": "out/a.mp4", "in/again": "in"}.items():
        (tmp_path / name).symlink_to(tmp_path / target)
    inside = tmp_path / "in"
    entered = list[Path]()

    def follow(path: Path) -> bool:
        entered.append(path)
        return inside in (path.resolve(), *path.resolve().parents)

    found = scan([inside, tmp_path / "out/a.mp4"], known=[inside / "out/a.mp4"], follow=follow)
    assert names(found, inside) == {"c.mp4"}
    assert set(found.unread) == {inside / "out", inside / "d.mp4", tmp_path / "out/a.mp4"}
    assert set(found.unread.values()) == {scanning.LEADS_OUT}
    assert not found.says_gone(inside / "out/a.mp4")
    assert len(entered) == 5  # both places, and the links to folders and videos


def test_a_folder_is_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", "library/b.mp4")
    assert names(scan([tmp_path], leave_out=tmp_path / "library"), tmp_path) == {"a.mp4"}


def test_missing_places(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    with pytest.raises(MissingVideo, match=f"{nothing}.*--forget"):
        scanning.expect_any([nothing])
    with pytest.raises(MissingVideo, match=str(nothing)) as caught:
        scanning.expect_any([nothing], is_new=True)
    assert "--forget" not in str(caught.value)
    scanning.expect_any([])
    scanning.expect_any([nothing, tmp_path])
    assert scanning.missing([tmp_path, nothing, tmp_path / "a\0b", tmp_path / ("x" * 300)])[0] == nothing
    assert scan([nothing]) == scanning.Scan()


def test_fifos_and_devices_are_reported_and_never_opened(tmp_path: Path) -> None:
    touch(tmp_path, "folder/a.mp4")
    for name in ("fifo", "folder/b.mp4"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "folder/c.mp4").symlink_to("/dev/zero")
    special = [tmp_path / "fifo", Path("/dev/zero")]
    found = scan([tmp_path / "folder", *special])
    assert names(found, tmp_path) == {"folder/a.mp4"}
    assert list(found.unread) == special
    assert found.skipped.total() == 2
    assert scanning.missing(special) == special
    with pytest.raises(MissingVideo, match="FIFO"):
        scanning.expect_any(special)
    scanning.expect_any([*special, tmp_path])


def test_known_files_of_a_missing_or_empty_folder_are_not_gone(tmp_path: Path) -> None:
    disk, gone = tmp_path / "disk", tmp_path / "gone"
    disk.mkdir()
    known = [disk / "a.mp4", gone / "b.mp4"]
    found = scan([disk, gone], known=known)
    assert list(found.unread) == [disk, gone]
    assert all("--forget" in reason for reason in found.unread.values())
    assert not any(map(found.says_gone, known))
    found = scan([disk, gone], known=known, forget=True)
    assert all(map(found.says_gone, known))
    touch(disk, "notes.txt")  # the disk is mounted
    assert scan([disk], known=known).says_gone(disk / "a.mp4")


def test_an_unmounted_disk_below_a_place(tmp_path: Path) -> None:
    """Its mount point has only hidden files, and links to its files are broken."""
    touch(tmp_path, "here.mp4", "usb/a.mp4", "usb/deep/b.mp4", "folder/c.mp4", "file/d.mp4", "old/e.mp4", "old/f.mp4")
    (tmp_path / "to folder").symlink_to(tmp_path.with_name("disk"))
    (tmp_path / "to file.mp4").symlink_to(tmp_path.with_name("disk") / "d.mp4")
    known = [*scan([tmp_path]).files, tmp_path / "to folder/c.mp4", tmp_path / "to file.mp4"]
    for path in (tmp_path / "usb/a.mp4", tmp_path / "usb/deep/b.mp4", tmp_path / "old/e.mp4"):
        path.unlink()
    (tmp_path / "usb/deep").rmdir()
    touch(tmp_path, "usb/.keep")
    found = scan([tmp_path], known=known)
    assert {path.name: reason.partition(".")[0] for path, reason in found.unread.items()} == {
        "usb": "the folder is empty",
        "to folder": "the link is broken",
        "to file.mp4": "the link is broken",
    }
    assert [path.name for path in known if found.says_gone(path)] == ["e.mp4"]
    assert scan([tmp_path]).unread == {}  # without known files, nothing is missing


def test_files_of_a_deleted_folder_are_gone(tmp_path: Path) -> None:
    touch(tmp_path, "other.mp4")
    assert scan([tmp_path], known=[tmp_path / "trip/a.mp4"]).says_gone(tmp_path / "trip/a.mp4")


def test_a_single_file_that_was_deleted_is_gone(tmp_path: Path) -> None:
    lone = tmp_path / "a.0001"
    assert not scan([lone], known=[lone]).says_gone(lone)  # its folder is empty
    touch(tmp_path, "other.mp4")
    assert scan([lone], known=[lone]).says_gone(lone)


def test_a_known_file_may_have_any_extension(tmp_path: Path) -> None:
    (lone,) = touch(tmp_path, "a.0001")
    assert set(scan([tmp_path], known=[lone]).files) == {lone}


@pytest.mark.parametrize("folder", [True, False])
def test_files_on_a_failing_disk_are_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool) -> None:
    (path,) = touch(tmp_path, "a.mp4")
    bad, real = tmp_path if folder else path, Path.stat

    def fail(self: Path, **options: bool) -> os.stat_result:
        if self == bad:
            raise OSError(5, "Input/output error")
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", fail)
    found = scan([tmp_path], known=[path])
    assert found.unread == {bad: "Input/output error"}
    assert not found.says_gone(path)


def test_files_of_an_unreadable_folder_are_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "open/a.mp4", "closed/b.mp4")
    look = os.scandir

    def refuse(folder: Path) -> object:
        if folder.name == "closed":
            raise PermissionError(13, "Permission denied")
        return look(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    found = scan([tmp_path])
    assert found.unread == {tmp_path / "closed": "Permission denied"}
    assert not found.says_gone(tmp_path / "closed/b.mp4")
    assert found.says_gone(tmp_path / "open/c.mp4")


def test_absolute_does_not_resolve_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    assert absolute(Path("link/../link/a.mp4")) == tmp_path / "link/a.mp4"


@given(st.binary(min_size=1, max_size=30))
def test_any_name_is_shown_as_printable_text(name: bytes) -> None:
    text = shown(Path(os.fsdecode(name.replace(b"\0", b""))))
    assert text.isprintable()
    text.encode("utf-8")


def test_shown_names() -> None:
    assert shown(Path("a\nb")) == "a\\nb"
    assert shown(Path(os.fsdecode(b"\xff.mp4"))) == "\\xff.mp4"
    assert shown(Path("日本.mp4")) == "日本.mp4"


@pytest.mark.parametrize("place", ["library", "library/generations"])
def test_a_place_inside_the_library_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(BadSetting, match=str(tmp_path / place)):
        expect_apart([tmp_path / "films", tmp_path / place], tmp_path / "library")
    expect_apart([tmp_path, tmp_path / "library-of-films"], tmp_path / "library")
