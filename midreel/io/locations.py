"""Where the files of a library are on this machine: path mapping, and files in object storage (fsspec).

A library stores the paths that the machine saw which indexed them. Another machine may have the same files elsewhere:
`PathMap` replaces the beginning of a path by another folder, or by a URL such as s3://bucket/folder.
"""

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from io import IOBase
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from midreel.errors import BadPackage, BadSetting

_BLOCK = 2**20  # bytes that a decoder reads ahead of a seek


@dataclass(frozen=True)
class PathMap:
    """Folders, and what replaces them. The longest one that fits a path counts."""

    pairs: tuple[tuple[Path, str], ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "PathMap":
        """Return the map of texts such as /mnt/videos=s3://bucket/videos.

        Raises:
            BadSetting: A text is not OLD=NEW, OLD is not absolute, or a URL holds a password.
            BadPackage: The package that reads the URLs is not installed.
        """
        pairs = []
        for text in texts:
            old, equals, new = text.partition("=")
            if not (equals and new and Path(old).is_absolute()):
                raise BadSetting("--map has no OLD=NEW with an absolute OLD, such as /mnt/videos=s3://bucket/videos.")
            if is_remote(new):
                _expect_readable(new)
            elif not Path(new).is_absolute():
                raise BadSetting(f"--map leads to {new}, expected an absolute folder or a URL.")
            pairs.append((Path(old), new.rstrip("/")))
        return cls(tuple(sorted(pairs, key=lambda pair: -len(pair[0].parts))))

    def apply(self, path: Path) -> str | None:
        """Return the path or URL of a file on this machine; None if no folder of the map contains it.

        >>> PathMap(((Path("/mnt"), "s3://bucket"),)).apply(Path("/mnt/a/b.mp4"))
        's3://bucket/a/b.mp4'
        """
        for old, new in self.pairs:
            if path.is_relative_to(old):
                return f"{new}/{path.relative_to(old).as_posix()}"
        return None

    def folder_of(self, path: Path) -> Path | None:
        """Return the local folder that replaces the beginning of a path; None if there is none."""
        found = next((new for old, new in self.pairs if path.is_relative_to(old)), None)
        return None if found is None or is_remote(found) else Path(found)


def is_remote(location: str) -> bool:
    """Return whether a location is a URL."""
    return "://" in location


def _expect_readable(url: str) -> None:
    parts = urlsplit(url)
    if parts.password is not None or "@" in parts.netloc:
        raise BadSetting("--map has a URL with credentials. Put them into the environment, such as AWS_ACCESS_KEY_ID.")
    if importlib.util.find_spec("fsspec") is None or (
        parts.scheme == "s3" and importlib.util.find_spec("s3fs") is None
    ):
        raise BadPackage(f"a package for {parts.scheme}:// is not installed. Install it: pip install 'midreel[s3]'")


class RemoteFile:
    """A file in object storage. Only the bytes that are asked for are transferred.

    Credentials and the address of the service come from the environment, as the storage's own client reads them, such
    as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL.

    Args:
        url: The URL of the file.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: It cannot be read.
    """

    def __init__(self, url: str) -> None:
        import fsspec  # type: ignore[import-untyped]

        try:
            self._system, self._path = fsspec.core.url_to_fs(url)
            # The list of a folder must not be remembered: files may change.
            self._system.invalidate_cache()
            self.size = int(self._system.info(self._path)["size"])
        except OSError:
            raise
        except Exception as error:  # clients have errors of their own, which may quote requests
            raise OSError(f"the storage does not answer ({type(error).__name__})") from None

    def read(self, size: int, position: int) -> bytes:
        """Return the bytes from a position on."""
        return cast(bytes, self._system.cat_file(self._path, start=position, end=min(self.size, position + size)))

    @cached_property
    def file(self) -> IOBase:
        """The file as a stream that can seek."""
        return cast(IOBase, self._system.open(self._path, "rb", block_size=_BLOCK))

    def close(self) -> None:
        """Close the stream."""
        if "file" in vars(self):
            self.file.close()
