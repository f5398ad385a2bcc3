import multiprocessing
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from midreel.errors import BadFeatures, BadStore, MissingFeatures
from midreel.features.stores.flat_hdf5 import FlatHDF5
from tests.features.published_trees import Matrix, write_flat

ENTRIES = {name: np.random.default_rng(n).standard_normal((n + 1, 4)).astype("<f4") for n, name in enumerate("abcdef")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_flat(tmp_path / "features.h5", ENTRIES)
    return tmp_path / "features.h5"


def test_matrices_are_read_by_id(path: Path) -> None:
    file = FlatHDF5(path)
    assert file.ids() == list(ENTRIES)
    assert (file.width, file.dtype) == (4, "float32")
    for name, expected in ENTRIES.items():
        assert name in file
        assert np.array_equal(file.read(name), expected)
    assert np.array_equal(file.read("A", "b"), ENTRIES["b"])
    assert repr(file) == f"FlatHDF5({str(path)!r})"


def test_ids_are_no_paths(path: Path) -> None:
    file = FlatHDF5(path)
    for name in ("", ".", "/", "/a", "a/", "./a", "\ud800", "g"):
        assert name not in file
        with pytest.raises(MissingFeatures, match=r"features.h5 has no .* among its 6"):
            file.read(name)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8"])
def test_any_precision_becomes_single(tmp_path: Path, dtype: str) -> None:
    write_flat(tmp_path / "features.h5", {"a": ENTRIES["c"].astype(dtype)})
    found = FlatHDF5(tmp_path / "features.h5").read("a")
    assert found.dtype == np.float32
    assert np.array_equal(found, ENTRIES["c"].astype(dtype).astype(np.float32))


def test_compressed_files_are_read_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "features.h5", "w") as file:
        file.create_dataset("a", data=ENTRIES["c"], chunks=(2, 4), compression="gzip")
    assert np.array_equal(FlatHDF5(tmp_path / "features.h5").read("a"), ENTRIES["c"])


def test_it_is_not_touched_until_it_is_used(tmp_path: Path) -> None:
    file = FlatHDF5(tmp_path / "later.h5")
    write_flat(file.path, ENTRIES)
    assert file.width == 4


def test_closing_lets_go_until_the_next_use(path: Path) -> None:
    file = FlatHDF5(path)
    file.read("a")
    file.close()
    write_flat(path, {"z": ENTRIES["b"]})
    assert file.ids() == ["z"]
    assert np.array_equal(file.read("z"), ENTRIES["b"])


def test_a_pickled_file_is_its_path(path: Path) -> None:
    file = FlatHDF5(path)
    file.read("a")
    copy = pickle.loads(pickle.dumps(file))
    assert copy._handle is None
    assert np.array_equal(copy.read("a"), ENTRIES["a"])


class _Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, file: FlatHDF5) -> None:
        self.file, self.ids = file, file.ids()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(self.file.read(self.ids[number]))


def test_workers_of_a_loader_read_it(path: Path) -> None:
    file = FlatHDF5(path)
    file.read("a")  # open in this process, and then once more in each worker
    context = multiprocessing.get_context("fork")
    loader = DataLoader(_Rows(file), batch_size=1, num_workers=2, multiprocessing_context=context)
    for batch, expected in zip(loader, ENTRIES.values(), strict=True):
        assert np.array_equal(batch[0].numpy(), expected)
    assert np.array_equal(file.read("f"), ENTRIES["f"])


def _read_in_child(file: FlatHDF5, results: "multiprocessing.SimpleQueue[tuple[bool, Matrix]]") -> None:
    inherited = file._handle
    found = file.read("a")
    results.put((bool(inherited), found))  # h5py's word for: not closed yet


def test_a_forked_process_lets_go_of_what_it_inherits_and_opens_anew(path: Path) -> None:
    """Else both would read through one position in the file."""
    file = FlatHDF5(path)
    file.read("a")
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(file, results))
    child.start()
    still_open, found = results.get()
    child.join()
    assert not still_open
    assert np.array_equal(found, ENTRIES["a"])
    assert file._handle
    assert np.array_equal(file.read("b"), ENTRIES["b"])


def test_the_digest_tells_contents_apart(path: Path, tmp_path: Path) -> None:
    digest = FlatHDF5(path).digest()
    write_flat(tmp_path / "copy.h5", dict(reversed(ENTRIES.items())))
    assert FlatHDF5(tmp_path / "copy.h5").digest() == digest
    changed = {
        "number": ENTRIES | {"c": ENTRIES["c"] + 1},
        "name": {name.upper(): rows for name, rows in ENTRIES.items()},
        "length": ENTRIES | {"c": ENTRIES["c"][:-1]},
        "precision": {name: rows.astype("<f2") for name, rows in ENTRIES.items()},
    }
    for name, entries in changed.items():
        write_flat(tmp_path / name, entries)
    assert len({digest, *(FlatHDF5(tmp_path / name).digest() for name in changed)}) == 5


# ---------------------------------------------------------------- what is wrong with it


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadStore, match=r"nothing.h5 does not exist, expected a file of features; download it"):
        FlatHDF5(tmp_path / "nothing.h5").ids()


def test_a_file_that_is_cut_short_or_something_else(path: Path) -> None:
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"<html>404</html>"):
        path.write_bytes(damaged)
        with pytest.raises(BadStore, match=r"features.h5 cannot be read, it may be cut short or no HDF5 .*; download"):
            FlatHDF5(path).read("a")


def test_a_chunk_that_was_damaged(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("a", data=np.zeros((64, 4), "<f4"), chunks=(64, 4), compression="gzip")
        where = dataset.id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[where.byte_offset : where.byte_offset + where.size] = b"\xff" * where.size
    path.write_bytes(content)
    with pytest.raises(BadStore, match=r"features.h5 cannot be read"):
        FlatHDF5(path).read("a")


def test_a_file_that_is_empty_or_not_flat(tmp_path: Path) -> None:
    write_flat(tmp_path / "empty.h5", {})
    with pytest.raises(BadStore, match=r"empty.h5 is empty, expected a dataset for each id"):
        FlatHDF5(tmp_path / "empty.h5").ids()
    write_flat(tmp_path / "deep.h5", {"video/clip": ENTRIES["a"]})
    with pytest.raises(BadStore, match=r"deep.h5 holds a group under 'video', expected a flat file, a dataset for e"):
        FlatHDF5(tmp_path / "deep.h5").read("video")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (np.zeros((2, 5), "<f4"), r"'z' has shape \(2, 5\) of float32, expected rows of 4 floats, as the first one"),
        (np.zeros((0, 4), "<f4"), r"'z' has shape \(0, 4\) of float32, expected rows of 4 floats"),
        (np.zeros(4, "<f4"), r"'z' has shape \(4,\) of float32"),
        (np.zeros((2, 4), "<i4"), r"'z' has shape \(2, 4\) of int32, expected rows of 4 floats"),
        (np.array(b"words"), r"'z' has shape \(\) of \|S5, expected rows of 4 floats"),
        (np.array([[0, 1, np.nan, np.inf]], "<f4"), r"'z' holds 2 values that are NaN or infinite, expected finite"),
        (np.array([[0, 1, 2, 1e300]], "<f8"), r"'z' holds 1 values that are NaN or infinite"),
    ],
)
def test_entries_that_are_refused(tmp_path: Path, entry: Matrix, message: str) -> None:
    write_flat(tmp_path / "features.h5", ENTRIES | {"z": entry})
    file = FlatHDF5(tmp_path / "features.h5")
    with pytest.raises(BadFeatures, match=message):
        file.read("z")
    assert np.array_equal(file.read("a"), ENTRIES["a"])


def test_a_first_entry_that_has_no_width(tmp_path: Path) -> None:
    write_flat(tmp_path / "features.h5", {"a": np.zeros(4)})
    with pytest.raises(BadStore, match=r"'a' has shape \(4,\), expected rows of one width; download it again"):
        _ = FlatHDF5(tmp_path / "features.h5").width
