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


def test_videos_however_deep_by_their_endings(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", "deep/er/b.MKV", "deep/c.m2ts", "notes.txt", ".hidden.mp4", ".cache/d.mp4", "mp4")
    assert names(scan([tmp_path]), tmp_path) == {"a.mp4", "deep/er/b.MKV", "deep/c.m2ts"}


@pytest.mark.parametrize("ending", ["mjpg", "mk3d", "nut", "h264", "hevc", "mj2", "m2t"])
def test_what_other_programs_write_is_a_video(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"film.{ending}").touch()
    assert len(scan([tmp_path]).files) == 1


def test_what_annotations_may_leave_out_is_an_ending() -> None:
    assert set(VIDEO_ENDINGS) < scanning.ENDINGS


def test_a_file_that_is_named_is_taken_whatever_it_is_called(tmp_path: Path) -> None:
    (path,) = touch(tmp_path, "recording.0001")
    found = scan([path]).files[path]
    assert (found.size, found.modified) == (len("recording.0001"), path.stat().st_mtime_ns)


def test_names_of_any_bytes(tmp_path: Path) -> None:
    paths = touch(tmp_path, *ODD_NAMES)
    assert set(scan([tmp_path]).files) == set(paths)


def test_links_that_lead_in_a_circle(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.mp4")
    (tmp_path / "real/up").symlink_to(tmp_path)
    (tmp_path / "also").symlink_to(tmp_path / "real")
    (tmp_path / "itself.mp4").symlink_to(tmp_path / "itself.mp4")
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    (tmp_path / "nowhere.mp4").symlink_to(tmp_path / "nothing")
    (tmp_path / "link.mp4").symlink_to(tmp_path / "real/a.mp4")
    assert names(scan([tmp_path]), tmp_path) == {"real/a.mp4", "link.mp4"}


def test_a_link_that_is_not_to_be_followed_is_told_and_hides_what_is_known_behind_it(tmp_path: Path) -> None:
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
    assert len(entered) == 5  # what is no link was not asked about, nor what lies behind one


def test_a_folder_is_left_out_wherever_it_lies(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", "library/b.mp4")
    assert names(scan([tmp_path], leave_out=tmp_path / "library"), tmp_path) == {"a.mp4"}


def test_what_is_not_there(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    with pytest.raises(
        MissingVideo, match=r"nothing does not exist, expected a video or a folder of videos; .* --forget"
    ):
        scanning.expect_any([nothing])
    scanning.expect_any([])
    scanning.expect_any([nothing, tmp_path])
    assert scanning.missing([tmp_path, nothing, tmp_path / "a\0b", tmp_path / ("x" * 300)])[0] == nothing
    assert scan([nothing]) == scanning.Scan()


def test_fifos_and_devices_are_named_or_counted_and_never_opened(tmp_path: Path) -> None:
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


def test_a_folder_that_is_missing_or_empty_is_not_one_that_was_cleared(tmp_path: Path) -> None:
    disk, gone = tmp_path / "disk", tmp_path / "gone"
    disk.mkdir()
    known = [disk / "a.mp4", gone / "b.mp4"]
    found = scan([disk, gone], known=known)
    assert found.unread == {
        disk: "the folder is empty now; mount its disk, or let its videos go: --forget",
        gone: "it does not exist now; mount its disk, or let its videos go: --forget",
    }
    assert not any(map(found.says_gone, known))
    found = scan([disk, gone], known=known, forget=True)
    assert all(map(found.says_gone, known))
    touch(disk, "notes.txt")  # so it is mounted
    assert scan([disk], known=known).says_gone(disk / "a.mp4")


def test_a_disk_below_a_place_that_is_not_mounted(tmp_path: Path) -> None:
    """Its mount point is empty, but for what is hidden; and links to what is on it lead nowhere."""
    touch(tmp_path, "here.mp4", "usb/a.mp4", "usb/deep/b.mp4", "folder/c.mp4", "file/d.mp4", "old/e.mp4", "old/f.mp4")
    (tmp_path / "to folder").symlink_to(tmp_path.with_name("disk"))
    (tmp_path / "to file.mp4").symlink_to(tmp_path.with_name("disk") / "d.mp4")
    known = [*scan([tmp_path]).files, tmp_path / "to folder/c.mp4", tmp_path / "to file.mp4"]
    for path in (tmp_path / "usb/a.mp4", tmp_path / "usb/deep/b.mp4", tmp_path / "old/e.mp4"):
        path.unlink()
    (tmp_path / "usb/deep").rmdir()
    touch(tmp_path, "usb/.keep")
    found = scan([tmp_path], known=known)
    assert {path.name: reason.partition(";")[0] for path, reason in found.unread.items()} == {
        "usb": "the folder is empty now",
        "to folder": "the link leads nowhere now",
        "to file.mp4": "the link leads nowhere now",
    }
    assert [path.name for path in known if found.says_gone(path)] == ["e.mp4"]
    assert scan([tmp_path]).unread == {}  # nothing is missed there


def test_a_folder_that_was_deleted_is_gone(tmp_path: Path) -> None:
    touch(tmp_path, "other.mp4")
    assert scan([tmp_path], known=[tmp_path / "trip/a.mp4"]).says_gone(tmp_path / "trip/a.mp4")


def test_a_single_file_that_was_deleted_is_gone(tmp_path: Path) -> None:
    lone = tmp_path / "a.0001"
    assert not scan([lone], known=[lone]).says_gone(lone)  # nothing else is there either
    touch(tmp_path, "other.mp4")
    assert scan([lone], known=[lone]).says_gone(lone)


def test_a_known_file_is_seen_whatever_it_is_called(tmp_path: Path) -> None:
    (lone,) = touch(tmp_path, "a.0001")
    assert set(scan([tmp_path], known=[lone]).files) == {lone}


@pytest.mark.parametrize("folder", [True, False])
def test_what_a_failing_disk_does_not_tell_is_not_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bool
) -> None:
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


def test_what_may_not_be_looked_into_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_paths_are_absolute_and_links_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    assert absolute(Path("link/../link/a.mp4")) == tmp_path / "link/a.mp4"


@given(st.binary(min_size=1, max_size=30))
def test_any_name_is_shown_on_one_line(name: bytes) -> None:
    text = shown(Path(os.fsdecode(name.replace(b"\0", b""))))
    assert text.isprintable()
    text.encode("utf-8")


def test_how_names_are_shown() -> None:
    assert shown(Path("a\nb")) == "a\\nb"
    assert shown(Path(os.fsdecode(b"\xff.mp4"))) == "\\xff.mp4"
    assert shown(Path("日本.mp4")) == "日本.mp4"


@pytest.mark.parametrize("place", ["library", "library/generations"])
def test_a_library_is_not_made_of_its_own_folder(tmp_path: Path, place: str) -> None:
    with pytest.raises(BadSetting, match="where no videos are looked for; keep the library elsewhere: --library"):
        expect_apart([tmp_path / "films", tmp_path / place], tmp_path / "library")
    expect_apart([tmp_path, tmp_path / "library-of-films"], tmp_path / "library")
