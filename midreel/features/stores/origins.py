"""Origins: 64-bit hashes of texts and files. A store keeps the origin of each entry, to detect changed sources."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from midreel.io.files import open_regular

_SAMPLE, _NUM_SAMPLES = 1 << 14, 64  # bytes per sample, samples per file


@dataclass(frozen=True, kw_only=True)
class FileState:
    """The properties of a file that change when it is replaced or written."""

    device: int
    inode: int
    size: int
    modified: int  # nanoseconds since 1970


def state_of(path: Path) -> FileState:
    """Return the current state of a file. If it is the same later, the content did not change in between.

    Raises:
        OSError: If the file does not exist.
    """
    status = path.stat()
    return FileState(device=status.st_dev, inode=status.st_ino, size=status.st_size, modified=status.st_mtime_ns)


def content_id(path: Path) -> str:
    """Return a hash of the content of a file, independent of its name and times.

    A file of up to a megabyte is hashed completely. Of a larger file, the length and 64 samples are hashed, evenly
    spaced from the first byte to the last. This detects every hole longer than a sixtieth of the file, and takes
    milliseconds instead of minutes.

    Raises:
        OSError: If the file cannot be read, or is not a regular file.
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
    """Return the origin of features of a text."""
    return _of_bytes(text.encode("utf-8", "surrogatepass"))


def of_file(path: Path) -> int:
    """Return the origin of features of a file. Raise OSError if the file cannot be read."""
    return of_content(content_id(path))


def of_content(content_id: str) -> int:
    """Return the origin of features of a file with this content id."""
    return _of_bytes(content_id.encode())


def if_damaged(origin: int, path: Path) -> int:
    """Return the origin of features of a damaged file, which also depends on the modification time.

    A download may fill the gaps between the samples, which `content_id` does not see. The file is then read again.
    """
    return _of_bytes(f"{origin} {path.stat().st_mtime_ns}".encode())


def _of_bytes(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") or 1  # 0 is UNKNOWN
