"""Files of torch.save, of either format, and bare pickles, read without running what is in them (`safe_pickle`)."""

import mmap
import struct
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from midreel.errors import BadModel
from midreel.io.safe_pickle import Machine, Refused, Storage

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # the first object in files of torch.save before version 1.6
LEGACY_PROTOCOL = 1001
MAX_PICKLE_BYTES = 64 << 20  # the tensors lie outside of it; those of released models have less than 1 MB


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a file holds, and the names of the classes and functions in it that became `Inert`."""

    value: Any
    strangers: tuple[str, ...]


def load(path: str | Path, *, bare: bool = False) -> Contents:
    """The object in a file of torch.save, of either format; its tensors wait to be read (`StoredTensor.read`).

    `bare` also takes a pickle that torch had no part in, by any Python since 2.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise BadModel(f"{path} is empty, expected a file of torch.save; copy it again") from error
    except OSError as error:
        raise BadModel(
            f"{path} cannot be opened ({error.strerror}), expected a file of torch.save; check the path"
        ) from error
    try:
        return _load_zip(path, memory) if memory[:4] == ZIP_MAGIC else _load_pickles(memory, bare)
    except Refused as error:
        kinds = "torch.save or pickle" if bare else "torch.save"
        raise BadModel(f"{path} cannot be read: {error}; expected a file of {kinds}, whole and unaltered") from error
    except MemoryError as error:
        raise BadModel(
            f"{path} needs more memory than there is, expected a file of torch.save; free some, if you trust the file"
        ) from error


def _load_zip(path: Path, memory: mmap.mmap) -> Contents:
    """Since torch 1.6: an archive with data.pkl and a file per storage, none of them compressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename: info for info in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, struct.error) as error:
        raise Refused(f"its archive is damaged ({error})") from error
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise Refused(f"its archive holds {len(pickles)} data.pkl")
    prefix = pickles[0].removesuffix("data.pkl")

    def part(name: str) -> tuple[int, int]:
        if prefix + name not in entries:
            raise Refused(f"its archive has no {name}")
        return _place(entries[prefix + name], memory)

    def storage(key: str, dtype: torch.dtype, num: int) -> Storage:
        start, num_bytes = part(f"data/{key}")
        return Storage(memory=memory, dtype=dtype, num=num, start=start, num_bytes=num_bytes)

    if prefix + "byteorder" in entries:
        start, num_bytes = part("byteorder")
        if memory[start : start + num_bytes] != b"little":
            raise Refused("it was written on a big-endian machine")
    start, num_bytes = part("data.pkl")
    if num_bytes > MAX_PICKLE_BYTES:
        raise Refused(f"its pickle has {num_bytes:,} bytes, more than {MAX_PICKLE_BYTES:,}")
    machine = Machine(storage=storage, num_bytes=num_bytes)
    value = machine.run(BytesIO(memory[start : start + num_bytes]))
    return Contents(value=value, strangers=tuple(machine.strangers))


def _place(info: zipfile.ZipInfo, memory: mmap.mmap) -> tuple[int, int]:
    """Where an entry's bytes are. A compressed one could unfold to any size; torch.save does not compress."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise Refused(f"its archive has {info.filename} compressed or encrypted")
    header = memory[max(info.header_offset, 0) : info.header_offset + 30]
    if len(header) < 30 or not header.startswith(ZIP_MAGIC):
        raise Refused(f"its archive is damaged at {info.filename}")
    start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
    if start + info.file_size > len(memory):
        raise Refused(f"its archive ends within {info.filename}")
    return start, info.file_size


def _load_pickles(memory: mmap.mmap, bare: bool) -> Contents:
    """Before torch 1.6: five pickles (two marks, the machine, the object, the keys of its storages), then numbers.

    A pickle of something else is no mark, and whole by itself.
    """
    storages: dict[str, Storage] = {}

    def storage(key: str, dtype: torch.dtype, num: int) -> Storage:
        return storages.setdefault(key, Storage(memory=memory, dtype=dtype, num=num))

    machine = Machine(storage=storage, num_bytes=len(memory))
    first = machine.run(memory)
    if bare and first != LEGACY_MAGIC:
        return Contents(value=first, strangers=tuple(machine.strangers))
    if first != LEGACY_MAGIC or machine.run(memory) != LEGACY_PROTOCOL:
        raise Refused("it is neither an archive nor has the mark of torch.save")
    system = machine.run(memory)
    if not isinstance(system, dict) or not system.get("little_endian"):
        raise Refused("it was written on a big-endian machine")
    value = machine.run(memory)
    keys = machine.run(memory)
    for key in keys if isinstance(keys, list) else ():
        if not isinstance(key, str) or key not in storages:
            raise Refused("it has a storage that belongs to no tensor")
        found, head = storages[key], memory.read(8)
        (num,) = struct.unpack("<q", head) if len(head) == 8 else (-1,)
        found.start, found.num_bytes = memory.tell(), num * found.dtype.itemsize
        if num < 0 or found.start + found.num_bytes > len(memory):
            raise Refused("it ends within a tensor")
        memory.seek(found.num_bytes, 1)
    return Contents(value=value, strangers=tuple(machine.strangers))
