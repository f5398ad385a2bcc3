import os
from contextlib import closing
from pathlib import Path

import pytest

from midreel.library.catalogue import Catalogue, File, Video
from midreel.library.scan import FoundFile
from midreel.library.storage import at
from midreel.server.listing import Item, LibraryListing
from midreel.server.problems import ProblemError
from tests.server.conftest import World

OUTSIDE = "urn:midreel:problem:outside-roots"


def item_named(name: str) -> Item:
    file = File(path=Path("/x") / name, size=1, modified=1, video_id="a")
    return Item(id="a", title=name, folder="x", file=name, duration=1.0, date=0.0, files=(file,))


def a_catalogue(folder: Path, files: dict[Path, str]) -> None:
    catalogue = Catalogue(folder, mode="create")
    for path, video_id in files.items():
        found = FoundFile(path=path, size=1, modified=1)
        catalogue.add(Video(id=video_id, duration=2.0, num_frames=2), [found])
    catalogue.remember_places({path.parent for path in files})
    catalogue.close()


def test_invalid_bytes_and_control_characters_in_names_are_replaced(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    odd = {os.fsdecode(name): str(number) for number, name in enumerate([b"a\xffb.mp4", b"c\nd.mp4", b"e\x1b[31m.mp4"])}
    a_catalogue(tmp_path, {videos / name: video_id for name, video_id in odd.items()})
    listing = LibraryListing(at(tmp_path))
    names = sorted(item.file for item in listing.contents().items.values())
    assert names == ["a�b.mp4", "c�d.mp4", "e�[31m.mp4"]
    "".join(names).encode("utf-8")
    listing.close()


def test_reasons_contain_no_paths(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"vid\xe9os/\xe9t\xe9.mp4")
    path.parent.mkdir()
    with closing(Catalogue(tmp_path, mode="create")) as catalogue:
        catalogue.remember_places([path.parent])
        catalogue.add_unreadable(
            FoundFile(path=path, size=1, modified=1), f"{path} cannot be decoded, nor {path.parent}/x"
        )
    with closing(LibraryListing(at(tmp_path))) as listing:
        ((file, reason),) = listing.contents().quarantine.items()
    assert reason.startswith(f"{file} cannot")
    assert str(tmp_path) not in reason


def test_folders_with_the_same_name_get_different_names(tmp_path: Path) -> None:
    for name in ("ann/Videos", "bob/Videos"):
        (tmp_path / name).mkdir(parents=True)
    a_catalogue(tmp_path, {tmp_path / "ann/Videos/a.mp4": "a", tmp_path / "bob/Videos/b.mp4": "b"})
    listing = LibraryListing(at(tmp_path), [tmp_path / "ann"])
    assert list(listing.contents().roots) == ["ann", "Videos"]
    assert sorted(item.folder for item in listing.contents().items.values()) == ["Videos", "ann/Videos"]
    listing.close()


def test_folders_that_look_alike_get_different_names(tmp_path: Path) -> None:
    odd = [os.fsdecode(b"x\xff"), os.fsdecode(b"x\xfe")]
    roots = [tmp_path / name for name in ("a/Videos", "b/VIDEOS", *odd)]
    for root in roots:
        root.mkdir(parents=True)
    a_catalogue(tmp_path, {})
    listing = LibraryListing(at(tmp_path), roots)
    names = dict(zip(listing.contents().roots.values(), listing.contents().roots, strict=True))
    assert (names[roots[0]], names[roots[1]]) == ("a/Videos", "b/VIDEOS")
    assert sorted(names) == sorted(roots)
    listing.close()


def test_changes_by_another_process_are_visible(tmp_path: Path) -> None:
    a_catalogue(tmp_path, {tmp_path / "a.mp4": "a"})
    listing = LibraryListing(at(tmp_path))
    assert listing.find_all(["a", "b"]).keys() == {"a"}
    writer = Catalogue(tmp_path, mode="write")
    writer.add(Video(id="b", duration=1.0, num_frames=1), [FoundFile(path=tmp_path / "b.mp4", size=1, modified=1)])
    assert listing.item("b").file == "b.mp4"
    writer.close()
    listing.close()


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "..", "../etc", "Videos/../..", "Videos/holidays/../../..", "file:///etc/passwd", "C:\\Videos",
     "Videos\\..\\..", "http://example.org/a.mp4", "/", "videos", "Video", "~", "Videos2", "concat:a|b"],
)  # fmt: skip
def test_only_paths_in_a_root_may_be_indexed(world: World, name: str) -> None:
    listing = LibraryListing(at(world.library))
    with pytest.raises(ProblemError, match="Videos") as error:
        listing.path_named(name)
    assert (error.value.problem.status, error.value.problem.type) == (403, OUTSIDE)
    listing.close()


def test_a_name_maps_to_its_path(world: World) -> None:
    listing = LibraryListing(at(world.library))
    assert listing.path_named("Videos") == world.videos
    assert listing.path_named("Videos/holidays") == world.videos / "holidays"
    with pytest.raises(ProblemError, match="'Videos/nothing'"):
        listing.path_named("Videos/nothing")
    listing.close()


def test_links_out_of_a_root_are_refused(world: World, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "out.mp4").symlink_to(world.videos / "broken.mp4")
    (root / "away").symlink_to(tmp_path)
    (root / "self").symlink_to(root / "self")
    (root / "here.mp4").write_bytes(b"x")
    (root / "in.mp4").symlink_to(root / "here.mp4")
    a_catalogue(tmp_path, {})
    listing = LibraryListing(at(tmp_path), [root])
    for name in ("root/out.mp4", "root/away", "root/away/root/out.mp4"):
        with pytest.raises(ProblemError, match="link") as error:
            listing.path_named(name)
        assert error.value.problem.type == OUTSIDE
    assert not listing.may_index(root / "self")
    assert listing.path_named("root/in.mp4") == root / "in.mp4"
    listing.close()


def test_a_single_file_as_root_gives_access_to_nothing_else(world: World, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "private").mkdir(parents=True)
    for name in ("film.mp4", "other.mp4", "private/secret.mp4"):
        (home / name).write_bytes(b"x")
    catalogue = Catalogue(tmp_path, mode="create")
    status = (home / "film.mp4").stat()
    found = FoundFile(path=home / "film.mp4", size=1, modified=status.st_mtime_ns)
    catalogue.add(Video(id="a", duration=1.0, num_frames=1), [found])
    catalogue.remember_places([home / "film.mp4"])
    catalogue.close()
    listing = LibraryListing(at(tmp_path))
    assert list(listing.contents().roots) == ["home/film.mp4"]
    assert listing.item("a").folder == "home"
    assert listing.path_named("home/film.mp4") == home / "film.mp4"
    with listing.opened(listing.item("a")) as opened:
        assert opened.path.read_bytes() == b"x"
    for name in ("home", "home/private", "home/other.mp4"):
        with pytest.raises(ProblemError, match=r"home/film\.mp4"):
            listing.path_named(name)
    listing.close()


def test_a_copy_is_opened_if_the_first_file_is_missing(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    catalogue = Catalogue(tmp_path, mode="create")
    paths = [videos / "a.mp4", videos / "b.mp4"]
    for path in paths:
        path.write_bytes(b"film")
        os.utime(path, ns=(10**18, 10**18))
    files = [FoundFile(path=path, size=4, modified=10**18) for path in paths]
    catalogue.add(Video(id="a", duration=1.0, num_frames=1), files)
    catalogue.remember_places([videos])
    catalogue.close()
    paths[0].unlink()
    listing = LibraryListing(at(tmp_path))
    with listing.opened(listing.item("a")) as opened:
        assert opened.path.read_bytes() == b"film"
    listing.close()


def test_errors_do_not_reveal_files_outside_the_roots(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "away").symlink_to(tmp_path)
    (tmp_path / "there").write_bytes(b"")
    a_catalogue(tmp_path, {})
    listing = LibraryListing(at(tmp_path), [root])
    for name in ("root/away/there", "root/away/not there"):
        with pytest.raises(ProblemError, match="link") as error:
            listing.path_named(name)
        assert error.value.problem.type == OUTSIDE
    with pytest.raises(ProblemError, match="'root/aaa") as error:
        listing.path_named("root/" + "a" * 300)
    assert error.value.problem.status == 404
    listing.close()


def test_a_filter_accepts_hundreds_of_videos(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    a_catalogue(tmp_path, {videos / f"{number}.mp4": f"{number}" for number in range(260)})
    listing = LibraryListing(at(tmp_path))
    wanted = listing.filter([str(number) for number in range(260)], None)
    with closing(Catalogue(tmp_path)) as catalogue:
        assert len(catalogue.matching(wanted)) == 260
    with pytest.raises(ProblemError, match="'x'"):
        listing.filter(["1", "x"], None)
    listing.close()
