"""A library on a full disk can be searched, but not written."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from midreel.cli import doctor
from midreel.errors import Unwritable
from midreel.library.searcher import Searcher
from midreel.library.summary import summarise
from tests.library.small import Eye, everything, index


@contextmanager
def no_room() -> Iterator[None]:
    """Limit the size of files to 0, so that none can grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_library_is_searched_when_no_file_can_grow(
    videos: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(library, videos)
    expected, opened = everything(library), Searcher.open
    monkeypatch.setattr(Searcher, "open", lambda folder, backbone=None: opened(folder, backbone=Eye()))
    with no_room():
        assert everything(library) == expected
        assert summarise(library).num_videos == 3
        checks = (doctor.library_models, doctor.index, doctor.permission)
        assert [check(library).state for check in checks] == ["ok", "ok", "warning"]
        with pytest.raises(Unwritable):
            index(library, videos)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if sys.platform != "linux" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_library_on_a_full_disk_is_searched(videos: Path, library: Path, small_disk: Path) -> None:
    index(library, videos)
    copy = Path(shutil.copytree(library, small_disk / "library"))
    with suppress(OSError), (small_disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(small_disk).free == 0
    assert everything(copy) == everything(library)
    with pytest.raises(Unwritable) as caught:
        index(copy, videos)
    assert "delete" not in str(caught.value)
    (small_disk / "filling").unlink()
    assert index(copy, videos).unchanged == 3
