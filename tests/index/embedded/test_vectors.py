"""Vector files say what they will read, and read the same as without."""

import mmap
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from midreel.index.embedded import vectors
from midreel.index.embedded.vectors import VectorFile, coarse_dtype

NUM_ROWS, WIDTH = 3000, 50  # ten blocks, whose borders are within rows


def written(path: Path, num_rows: int = NUM_ROWS) -> VectorFile:
    rows = np.zeros(num_rows, coarse_dtype(WIDTH))
    rows["vector"] = np.random.default_rng(0).integers(-127, 127, (num_rows, WIDTH))
    path.write_bytes(rows.tobytes())
    return VectorFile(path, coarse_dtype(WIDTH))


class Advised(VectorFile):
    """A vector file that remembers what it told the kernel."""

    def _advise(self, name: str, start: int = 0, length: int | None = None) -> None:
        super()._advise(name, start, length)
        if name == "MADV_WILLNEED" and length is not None:
            told = vars(self).setdefault("told", [])
            told += range(start, start + length)


@given(st.lists(st.tuples(st.integers(0, NUM_ROWS - 1), st.integers(1, 400)), min_size=1, max_size=6))
def test_every_byte_of_a_range_is_fetched_once(ranges: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder) / "file")
        file = Advised(Path(folder) / "file", coarse_dtype(WIDTH))
        starts = np.array([start for start, _ in ranges])
        ends = np.minimum(starts + [number for _, number in ranges], NUM_ROWS)
        for _ in range(2):
            file.fetch(starts, ends)
        told = vars(file)["told"]
        wanted = {byte for start, end in zip(starts, ends, strict=True) for byte in range(start * WIDTH, end * WIDTH)}
        assert wanted <= set(told)
        assert len(told) == len(set(told))
        # No more than the blocks that the ranges touch.
        assert {byte // vectors._BLOCK for byte in told} == {byte // vectors._BLOCK for byte in wanted}


def test_a_file_that_is_fetched_as_a_whole_says_nothing_again(tmp_path: Path) -> None:
    written(tmp_path / "file")
    file = Advised(tmp_path / "file", coarse_dtype(WIDTH))
    file.fetch(np.array([0]), np.array([NUM_ROWS]))
    told = len(vars(file)["told"])
    file.fetch(np.array([5]), np.array([6]))
    assert len(vars(file)["told"]) == told


def test_advice_does_not_change_what_is_read(tmp_path: Path) -> None:
    file = written(tmp_path / "file")
    before = file.rows.copy()
    file.fetch(np.array([0, 100]), np.array([10, 2000]))
    with file.in_order():
        assert np.array_equal(file.rows, before)
    file.drop_pages()
    assert np.array_equal(file.rows, before)


def test_an_empty_and_a_missing_file(tmp_path: Path) -> None:
    for file in (written(tmp_path / "empty", 0), VectorFile(tmp_path / "missing", coarse_dtype(WIDTH))):
        file.fetch(np.array([0]), np.array([0]))
        with file.in_order():
            assert len(file) == 0


def test_blocks_begin_at_pages() -> None:
    assert vectors._BLOCK % mmap.PAGESIZE == 0
