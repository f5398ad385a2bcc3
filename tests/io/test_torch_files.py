"""Both formats of torch.save, and other files."""

import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from midreel.errors import BadModel
from midreel.io import safe_pickle, torch_files
from midreel.io.safe_pickle import Inert
from midreel.io.torch_files import load
from tests.io.test_safe_pickle import Call
from tests.pickles import FOUR, as_legacy, as_zip, raw_tensor, save, storage


def test_missing_storages(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="no data/0"):
        load(as_zip(tmp_path / "file", raw_tensor(4, 0, (4,), (1,))))
    # In the older format the numbers come last, so missing ones are noticed when they are read.
    found = load(as_legacy(tmp_path / "file", raw_tensor(4, 0, (4,), (1,)))).value
    with pytest.raises(BadModel, match="0 bytes, expected at least 16"):
        found.read()
    for data in (b"", struct.pack("<q", -4), struct.pack("<q", 2**60), struct.pack("<q", 4) + FOUR[:-1]):
        with pytest.raises(BadModel, match="truncated"):
            load(as_legacy(tmp_path / "file", raw_tensor(4, 0, (4,), (1,)), ["0"], data))
    with pytest.raises(BadModel, match="without a tensor"):
        load(as_legacy(tmp_path / "file", raw_tensor(4, 0, (4,), (1,)), ["1"], b""))


@pytest.mark.parametrize("compress", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compressed_archive_is_rejected(tmp_path: Path, compress: int) -> None:
    zeros = as_zip(tmp_path / "file", raw_tensor(2**22, 0, (2**22,), (1,)), {"0": bytes(2**24)}, compress)
    assert zeros.stat().st_size < 2**17
    with pytest.raises(BadModel, match="compressed"):
        load(zeros)


def test_overlapping_entries_are_not_read(tmp_path: Path) -> None:
    """A thousand directory entries refer to the same bytes, and none of them is read."""
    path = as_zip(
        tmp_path / "file", b"]" + b"".join(storage(str(k), 4) + b"a" for k in range(1000)) + b".", {"0": FOUR}
    )
    with zipfile.ZipFile(path, "a") as archive:
        first = archive.getinfo("archive/data/0")
        for k in range(1, 1000):
            copy = zipfile.ZipInfo(f"archive/data/{k}")
            copy.header_offset, copy.file_size, copy.compress_size, copy.CRC = first.header_offset, 16, 16, first.CRC
            archive.filelist.append(copy)
            archive.NameToInfo[copy.filename] = copy
        archive._didModify = True  # type: ignore[attr-defined]
    assert len(load(path).value) == 1000


def test_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(*_: object) -> None:
        raise MemoryError

    path = save([b"bytes"], tmp_path / "file")
    monkeypatch.setitem(safe_pickle.KNOWN, "_codecs.encode", exhaust)
    with pytest.raises(BadModel, match="memory"):
        load(path)


def test_a_plain_pickle(tmp_path: Path) -> None:
    """It is loaded only on request, and no code in it runs."""
    path = tmp_path / "file"
    for protocol in range(6):
        path.write_bytes(pickle.dumps({"blobs": {"a": np.arange(3.0), "run": Call(os.system, "false")}}, protocol))
        with pytest.raises(BadModel, match=r"torch\.save"):
            load(path)
        found = load(path, bare=True)
        assert found.value["blobs"]["a"].read().tolist() == [0, 1, 2]
        assert isinstance(found.value["blobs"]["run"], Inert)
        assert [name.split(".")[-1] for name in found.strangers] == ["system"]
    path.write_bytes(b"no pickle")
    with pytest.raises(BadModel, match=r"torch\.save or pickle"):
        load(path, bare=True)


def test_a_long_pickle_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_files, "MAX_PICKLE_BYTES", 100)
    with pytest.raises(BadModel, match="403 bytes"):
        load(as_zip(tmp_path / "file", b"(" + b"N" * 400 + b"t."))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"not a checkpoint", "pickle is damaged"),
        (b"PK\x03\x04", "archive is damaged"),
        (pickle.dumps({"a": 1}), r"torch\.save did not write"),
        (pickle.dumps(torch_files.LEGACY_MAGIC, 2), "truncated"),
    ],
)
def test_files_of_another_kind(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BadModel, match=message):
        load(tmp_path / "file")


def test_archives_of_another_kind(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "file", "w") as archive:
        archive.writestr("readme.txt", "no model")
    with pytest.raises(BadModel, match=r"0 data\.pkl"):
        load(tmp_path / "file")
    with zipfile.ZipFile(tmp_path / "file", "w") as archive:
        archive.writestr("a/data.pkl", b"N.")
        archive.writestr("a/byteorder", "big")
    with pytest.raises(BadModel, match="big-endian"):
        load(tmp_path / "file")
    legacy = as_legacy(tmp_path / "legacy", b"N.")
    legacy.write_bytes(legacy.read_bytes().replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"))
    with pytest.raises(BadModel, match="big-endian"):
        load(legacy)


def test_a_tensor_becomes_an_array_without_torch(tmp_path: Path) -> None:
    path, whole = tmp_path / "weights.pt", torch.arange(12, dtype=torch.float32).reshape(3, 4)
    torch.save({"view": whole.T[1:], "none": torch.empty(0, 2), "half": whole.bfloat16()}, path)
    value = load(path).value
    assert value["view"].array().tolist() == whole.T[1:].tolist()
    assert value["none"].array().shape == (0, 2)
    with pytest.raises(BadModel, match="bfloat16"):
        value["half"].array()
