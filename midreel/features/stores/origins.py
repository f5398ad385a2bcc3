"""What features were made from, as a number: whether a sentence or a file is still the same costs a comparison."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from midreel.io.files import open_regular

_SAMPLE, _NUM_SAMPLES = 1 << 14, 64  # bytes


@dataclass(frozen=True, kw_only=True)
class FileState:
    """What differs when a file was replaced or written to."""

    device: int
    inode: int
    size: int
    modified: int  # nanoseconds since 1970


def state_of(path: Path) -> FileState:
    """The file's state now. If it is the same later, whoever read the file in between read one and the same content."""
    status = path.stat()
    return FileState(device=status.st_dev, inode=status.st_ino, size=status.st_size, modified=status.st_mtime_ns)


def content_id(path: Path) -> str:
    """Of what the file holds, not of its name or age: its length and samples of it, all of it up to a megabyte.

    The samples are spread evenly from the first byte to the last. A megabyte tells one film from another, and sees any
    hole longer than a sixtieth of it; reading all of them would take hours.
    """
    digest = hashlib.blake2b(digest_size=16)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        if size <= _SAMPLE * _NUM_SAMPLES:
            digest.update(file.read())
        else:
            for number in range(_NUM_SAMPLES):
                file.seek((size - _SAMPLE) * number // (_NUM_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def of_text(text: str) -> int:
    return _of_bytes(text.encode("utf-8", "surrogatepass"))


def of_file(path: Path) -> int:
    return of_content(content_id(path))


def of_content(content_id: str) -> int:
    """The origin of what was made from a file of this content."""
    return _of_bytes(content_id.encode())


def if_damaged(origin: int, path: Path) -> int:
    """Of its time of modification too: a download may go on between the samples, and then the rest is wanted."""
    return _of_bytes(f"{origin} {path.stat().st_mtime_ns}".encode())


def _of_bytes(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") or 1  # 0 means unknown
