"""Files of torch.save, by torch and by hand."""

import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from midreel.io import torch_files

FORMATS = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])


def save(value: Any, path: Path, is_zip: bool = True, protocol: int = 2) -> Path:
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
    return path


def as_zip(path: Path, pickled: bytes, storages: dict[str, bytes] | None = None, compress: int = 0) -> Path:
    """An archive as torch.save writes it, with this pickle in it."""
    with zipfile.ZipFile(path, "w", compress) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")
        for key, data in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def as_legacy(path: Path, pickled: bytes, keys: list[str] | None = None, data: bytes = b"") -> Path:
    """The older format, with this pickle in it."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    marks = [pickle.dumps(value, 2) for value in (torch_files.LEGACY_MAGIC, torch_files.LEGACY_PROTOCOL, system)]
    path.write_bytes(b"".join(marks) + pickled + pickle.dumps(keys or [], 2) + data)
    return path


def both(path: Path, pickled: bytes) -> list[Path]:
    return [as_zip(path / "zip.ckpt", pickled), as_legacy(path / "legacy.ckpt", pickled)]


def raw_global(module: str, name: str) -> bytes:
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def storage(key: str, num: int, place: str = "cpu") -> bytes:
    """A reference to a storage of single-precision numbers."""
    kind, count = raw_global("torch", "FloatStorage"), pickle.dumps(num, 2)[2:-1]
    return b"(" + text("storage") + kind + text(key) + text(place) + count + b"tQ"


def raw_tensor(num: int, offset: Any, size: Any, stride: Any) -> bytes:
    parts = b"".join(pickle.dumps(part, 2)[2:-1] for part in (offset, size, stride, False))
    return raw_global("torch._utils", "_rebuild_tensor_v2") + b"(" + storage("0", num) + parts + b"}tR."


FOUR = struct.pack("<4f", 1, 2, 3, 4)
