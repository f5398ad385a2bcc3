"""Load files of torch.save, in both formats, and plain pickles, without running code in them (`safe_pickle`)."""

import mmap
import struct
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from midreel.errors import BadModel
from midreel.io.safe_pickle import Machine, Number, Refused, Storage

ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # the first object in files of torch.save before version 1.6
LEGACY_PROTOCOL = 1001
MAX_PICKLE_BYTES = 64 << 20  # without the tensors; pickles of released models have less than 1 MB


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The content of a file.

    Attributes:
        value: The saved object. Its tensors are `StoredTensor`, its unknown objects `Inert`.
        strangers: The names of unknown classes and functions in the file.
    """

    value: Any
    strangers: tuple[str, ...]


def load(path: str | Path, *, bare: bool = False) -> Contents:
    """Load a file of torch.save in either format. Tensors are read later, by `StoredTensor.read`.

    Args:
        path: The file.
        bare: Whether to accept a plain pickle as well, of Python 2 or later.

    Raises:
        BadModel: The file cannot be opened, is damaged, or is not a file of torch.save.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise BadModel(f"{path} is empty, expected a file of torch.save. Copy it again.") from error
    except OSError as error:
        raise BadModel(
            f"{path} cannot be opened ({error.strerror}), expected a file of torch.save. Check the path."
        ) from error
    try:
        return _load_zip(path, memory) if memory[:4] == ZIP_MAGIC else _load_pickles(memory, bare)
    except Refused as error:
        kinds = "torch.save or pickle" if bare else "torch.save"
        raise BadModel(f"{path} cannot be read: {error}. Expected an intact file of {kinds}: copy it again.") from error
    except MemoryError as error:
        raise BadModel(f"{path} needs more memory than is free. Free some if you trust the file.") from error


def _load_zip(path: Path, memory: mmap.mmap) -> Contents:
    """Load the format since torch 1.6: an uncompressed zip archive of data.pkl and one file per storage."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {info.filename: info for info in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, struct.error) as error:
        raise Refused(f"its archive is damaged ({error})") from error
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise Refused(f"its archive has {len(pickles)} data.pkl files, not 1")
    prefix = pickles[0].removesuffix("data.pkl")

    def locate(name: str) -> tuple[int, int]:
        if prefix + name not in entries:
            raise Refused(f"its archive has no {name}")
        return _position(entries[prefix + name], memory)

    def storage(key: str, kind: Number, num: int) -> Storage:
        start, num_bytes = locate(f"data/{key}")
        return Storage(memory=memory, kind=kind, num=num, start=start, num_bytes=num_bytes)

    if prefix + "byteorder" in entries:
        start, num_bytes = locate("byteorder")
        if memory[start : start + num_bytes] != b"little":
            raise Refused("it was written on a big-endian machine")
    start, num_bytes = locate("data.pkl")
    if num_bytes > MAX_PICKLE_BYTES:
        raise Refused(f"its pickle has {num_bytes:,} bytes, more than {MAX_PICKLE_BYTES:,}")
    machine = Machine(storage=storage, num_bytes=num_bytes)
    value = machine.run(BytesIO(memory[start : start + num_bytes]))
    return Contents(value=value, strangers=tuple(machine.strangers))


def _position(info: zipfile.ZipInfo, memory: mmap.mmap) -> tuple[int, int]:
    """Return start and size of an entry in the file.

    Compressed entries are rejected: they could expand to any size, and torch.save does not write them.
    """
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise Refused(f"{info.filename} in its archive is compressed or encrypted")
    header = memory[max(info.header_offset, 0) : info.header_offset + 30]
    if len(header) < 30 or not header.startswith(ZIP_MAGIC):
        raise Refused(f"{info.filename} in its archive is damaged")
    start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
    if start + info.file_size > len(memory):
        raise Refused(f"{info.filename} in its archive is truncated")
    return start, info.file_size


def _load_pickles(memory: mmap.mmap, bare: bool) -> Contents:
    """Load the format before torch 1.6: five pickles, then the numbers of the storages.

    The pickles are the magic number, the protocol, the byte order and type sizes, the object, and the keys of its
    storages. If `bare`, a first pickle that is not the magic number is the result.
    """
    storages: dict[str, Storage] = {}

    def storage(key: str, kind: Number, num: int) -> Storage:
        return storages.setdefault(key, Storage(memory=memory, kind=kind, num=num))

    machine = Machine(storage=storage, num_bytes=len(memory))
    first = machine.run(memory)
    if bare and first != LEGACY_MAGIC:
        return Contents(value=first, strangers=tuple(machine.strangers))
    if first != LEGACY_MAGIC or machine.run(memory) != LEGACY_PROTOCOL:
        raise Refused("torch.save did not write it")
    system = machine.run(memory)
    if not isinstance(system, dict) or not system.get("little_endian"):
        raise Refused("it was written on a big-endian machine")
    value = machine.run(memory)
    keys = machine.run(memory)
    for key in keys if isinstance(keys, list) else ():
        if not isinstance(key, str) or key not in storages:
            raise Refused("it has a storage without a tensor")
        found, head = storages[key], memory.read(8)
        (num,) = struct.unpack("<q", head) if len(head) == 8 else (-1,)
        found.start, found.num_bytes = memory.tell(), num * found.kind.itemsize
        if num < 0 or found.start + found.num_bytes > len(memory):
            raise Refused("a tensor in it is truncated")
        memory.seek(found.num_bytes, 1)
    return Contents(value=value, strangers=tuple(machine.strangers))
