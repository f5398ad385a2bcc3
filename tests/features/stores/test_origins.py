import os
import shutil
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midreel.features.stores import origins
from midreel.features.stores.hdf5_log import UNKNOWN
from tools.fuzz_videos import Outcome, in_child


@given(st.text(), st.text())
def test_different_texts_have_different_origins(first: str, second: str) -> None:
    assert (origins.of_text(first) == origins.of_text(second)) == (first == second)
    assert UNKNOWN < origins.of_text(first) < 2**64


def test_a_copy_has_the_same_content_id_whatever_its_name_and_time(tmp_path: Path) -> None:
    for size in (0, 1, 1 << 14, 1 << 20, 5 << 20):
        file, copy = tmp_path / "film", tmp_path / "copy"
        file.write_bytes(bytes(size))
        shutil.copy(file, copy)
        os.utime(copy, (1, 1))
        assert origins.content_id(file) == origins.content_id(copy)
        assert origins.of_file(file) == origins.of_file(copy)
        assert len(origins.content_id(file)) == 32


def test_another_length_start_or_end_changes_the_content_id(tmp_path: Path) -> None:
    path = tmp_path / "film"
    seen = set()
    for size, changed in ((5 << 20, None), (5 << 20, 0), (5 << 20, -1), ((5 << 20) + 1, None)):
        content = bytearray(size)
        if changed is not None:
            content[changed] = 1
        path.write_bytes(content)
        seen.add(origins.content_id(path))
        seen.add(str(origins.of_file(path)))
    assert len(seen) == 8


@given(size=st.integers(1, 4 << 20), place=st.floats(0, 1))
@settings(max_examples=30)
def test_a_hole_of_a_sixtieth_changes_the_content_id_and_in_a_short_file_any_byte(
    tmp_path_factory: pytest.TempPathFactory, size: int, place: float
) -> None:
    """Some downloads set the full length of a file before they are complete."""
    path = tmp_path_factory.getbasetemp() / "film"
    path.write_bytes(b"\xff" * size)
    whole = origins.content_id(path)
    hole = 1 if size <= 1 << 20 else ceil(size / 60)
    start = round(place * (size - hole))
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(hole))
    assert origins.content_id(path) != whole


def test_a_fifo_or_device_has_no_content(tmp_path: Path) -> None:
    """In a child process, because opening a FIFO may block forever, and a device may never end."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        outcome, _ = in_child(lambda path=path: Outcome(kind=origins.content_id(path)), seconds=10.0, memory=2**28)
        assert outcome.kind == "OSError"


def test_the_state_of_a_file_changes_when_it_is_replaced_or_written(tmp_path: Path) -> None:
    path, other = tmp_path / "film", tmp_path / "other"
    path.write_bytes(b"film")
    first = origins.state_of(path)
    assert origins.state_of(path) == first
    shutil.copy2(path, other)  # same content, length and modification time
    other.replace(path)
    second = origins.state_of(path)
    assert second != first
    with path.open("ab") as file:
        file.write(b"!")
    assert origins.state_of(path) != second
