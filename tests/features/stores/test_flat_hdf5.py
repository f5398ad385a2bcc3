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


def test_ids_are_not_paths(path: Path) -> None:
    file = FlatHDF5(path)
    for name in ("", ".", "/", "/a", "a/", "./a", "\ud800", "g"):
        assert name not in file
        with pytest.raises(MissingFeatures, match="6 ids"):
            file.read(name)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8"])
def test_any_precision_is_read_as_float32(tmp_path: Path, dtype: str) -> None:
    write_flat(tmp_path / "features.h5", {"a": ENTRIES["c"].astype(dtype)})
    found = FlatHDF5(tmp_path / "features.h5").read("a")
    assert found.dtype == np.float32
    assert np.array_equal(found, ENTRIES["c"].astype(dtype).astype(np.float32))


def test_compressed_files(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "features.h5", "w") as file:
        file.create_dataset("a", data=ENTRIES["c"], chunks=(2, 4), compression="gzip")
    assert np.array_equal(FlatHDF5(tmp_path / "features.h5").read("a"), ENTRIES["c"])


def test_the_file_is_opened_at_the_first_use(tmp_path: Path) -> None:
    file = FlatHDF5(tmp_path / "later.h5")
    write_flat(file.path, ENTRIES)
    assert file.width == 4


def test_a_closed_file_opens_again(path: Path) -> None:
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


def test_data_loader_workers_read_the_file(path: Path) -> None:
    file = FlatHDF5(path)
    file.read("a")  # opens the file in this process; each worker opens it again
    context = multiprocessing.get_context("fork")
    loader = DataLoader(_Rows(file), batch_size=1, num_workers=2, multiprocessing_context=context)
    for batch, expected in zip(loader, ENTRIES.values(), strict=True):
        assert np.array_equal(batch[0].numpy(), expected)
    assert np.array_equal(file.read("f"), ENTRIES["f"])


def _read_in_child(file: FlatHDF5, results: "multiprocessing.SimpleQueue[tuple[bool, Matrix]]") -> None:
    inherited = file._handle
    found = file.read("a")
    results.put((bool(inherited), found))  # h5py: true if the file is open


def test_a_forked_process_closes_the_inherited_handle_and_opens_its_own(path: Path) -> None:
    """Otherwise both processes would share one file position."""
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


def test_the_digest_depends_on_the_content(path: Path, tmp_path: Path) -> None:
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


# ---------------------------------------------------------------- damaged files


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadStore, match=r"nothing\.h5 does not exist"):
        FlatHDF5(tmp_path / "nothing.h5").ids()


def test_a_truncated_file_or_another_format(path: Path) -> None:
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"<html>404</html>"):
        path.write_bytes(damaged)
        with pytest.raises(BadStore, match=r"features\.h5 .* truncated"):
            FlatHDF5(path).read("a")


def test_a_damaged_chunk(tmp_path: Path) -> None:
    path = tmp_path / "features.h5"
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("a", data=np.zeros((64, 4), "<f4"), chunks=(64, 4), compression="gzip")
        where = dataset.id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[where.byte_offset : where.byte_offset + where.size] = b"\xff" * where.size
    path.write_bytes(content)
    with pytest.raises(BadStore, match=r"features\.h5"):
        FlatHDF5(path).read("a")


def test_an_empty_file_and_a_file_with_groups(tmp_path: Path) -> None:
    write_flat(tmp_path / "empty.h5", {})
    with pytest.raises(BadStore, match=r"empty\.h5 is empty"):
        FlatHDF5(tmp_path / "empty.h5").ids()
    write_flat(tmp_path / "deep.h5", {"video/clip": ENTRIES["a"]})
    with pytest.raises(BadStore, match=r"deep\.h5 .* group .*'video'"):
        FlatHDF5(tmp_path / "deep.h5").read("video")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (np.zeros((2, 5), "<f4"), r"'z' has shape \(2, 5\) and dtype float32"),
        (np.zeros((0, 4), "<f4"), r"'z' has shape \(0, 4\) and dtype float32"),
        (np.zeros(4, "<f4"), r"'z' has shape \(4,\) and dtype float32"),
        (np.zeros((2, 4), "<i4"), r"'z' has shape \(2, 4\) and dtype int32"),
        (np.array(b"words"), r"'z' has shape \(\) and dtype \|S5"),
        (np.array([[0, 1, np.nan, np.inf]], "<f4"), r"2 values of 'z'"),
        (np.array([[0, 1, 2, 1e300]], "<f8"), r"1 values of 'z'"),
    ],
)
def test_invalid_matrices_are_rejected(tmp_path: Path, entry: Matrix, message: str) -> None:
    write_flat(tmp_path / "features.h5", ENTRIES | {"z": entry})
    file = FlatHDF5(tmp_path / "features.h5")
    with pytest.raises(BadFeatures, match=message):
        file.read("z")
    assert np.array_equal(file.read("a"), ENTRIES["a"])


def test_a_first_matrix_without_a_width(tmp_path: Path) -> None:
    write_flat(tmp_path / "features.h5", {"a": np.zeros(4)})
    with pytest.raises(BadStore, match=r"'a' has shape \(4,\)"):
        _ = FlatHDF5(tmp_path / "features.h5").width
