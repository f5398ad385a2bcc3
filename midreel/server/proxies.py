"""Proxies: small H.264 and AAC clips of moments whose files browsers cannot play, such as HEVC, AVI or MPEG-2.

A proxy is made when a player asks for it. It is kept on disk, in the user's cache folder, until newer ones need the
space.
"""

import hashlib
import os
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from midreel.errors import Unwritable
from midreel.io.cache import cache_folder
from midreel.server.listing import Item, LibraryListing, Opened
from midreel.server.problems import ProblemError

MAX_SECONDS = 60.0  # of one proxy
HEIGHT = 480  # pixels, at most
MAX_BYTES = 1 << 30  # of all proxies


@dataclass(frozen=True, kw_only=True)
class Key:
    """Identifies a proxy: the video and its version, and the start and end in seconds."""

    video_id: str
    version: str
    start: float
    end: float

    @classmethod
    def of(cls, item: Item, start: float, end: float) -> "Key":
        """Return the key of a request. Times are rounded outwards to whole seconds, so that neighbours share a proxy.

        Args:
            item: The video.
            start: The start in seconds.
            end: The end in seconds. At most MAX_SECONDS after the start count, and nothing after the end of the video.
        """
        first = min(float(int(start)), max(0.0, item.duration - 1.0))
        last = min(max(float(-int(-end // 1)), first + 1.0), first + MAX_SECONDS, item.duration)
        return cls(video_id=item.id, version=item.version, start=first, end=max(last, first + 0.1))

    @property
    def name(self) -> str:
        """The name of its file."""
        text = f"{self.video_id} {self.version} {self.start:g} {self.end:g} {HEIGHT}"
        return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.mp4"


class Proxies:
    """The proxies on disk: the most recently used ones, up to a total size.

    Args:
        folder: Where they are kept. Default: a folder in the user's cache or, if that cannot be written, a temporary
            one.
        max_bytes: The size that all proxies may have together.
    """

    def __init__(self, folder: Path | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        self._wanted, self._max_bytes = folder, max_bytes
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    def get(self, key: Key) -> Opened | None:
        """Return an open proxy, or None if there is none. The caller closes it."""
        return _opened(self._folder() / key.name)

    def make(self, listing: LibraryListing, item: Item, key: Key) -> None:
        """Make a proxy, unless there is one.

        Args:
            listing: The library.
            item: The video.
            key: What to make.

        Raises:
            MidreelError: The file cannot be decoded, or the disk is full.
            ProblemError: The file is in object storage (404).
        """
        from midreel.media import cut  # not needed to search

        target = self._folder() / key.name
        if target.exists():
            return
        with listing.opened(item) as source:
            if source.file is not None:  # picture and sound are read at the same time, from two open files
                raise ProblemError(
                    404, "Files in object storage have no proxies. Map the folder to a disk: --map.", kind="no-proxy"
                )
            cut.write_clip(source.path, target, key.start, key.end, exact=True, height=HEIGHT)
        self._shrink(but=target)

    def close(self) -> None:
        """Remove a temporary folder."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _folder(self) -> Path:
        with self._lock:
            if self._temporary is not None:
                return Path(self._temporary.name)
            cache = cache_folder()
            folder = self._wanted or (cache / "proxies" if cache else None)
            try:
                if folder is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                    if os.access(folder, os.W_OK):
                        return folder
            except OSError:
                pass
            try:
                self._temporary = tempfile.TemporaryDirectory(prefix="midreel-proxies-")
            except OSError as error:
                raise Unwritable(
                    f"no folder for proxies can be written ({error.strerror}). Free disk space."
                ) from error
            return Path(self._temporary.name)

    def _shrink(self, but: Path) -> None:
        """Remove the least recently used proxies until the others fit. The last one stays, whatever its size."""
        with self._lock:
            found = []
            for path in but.parent.glob("*.mp4"):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # another server shares the folder
                found.append((status.st_mtime_ns, status.st_size, path))
            total = sum(size for _, size, _ in found)
            for _, size, path in sorted(found):
                if total <= self._max_bytes:
                    return
                if path != but:
                    path.unlink(missing_ok=True)  # a player that reads it keeps its open file
                    total -= size


def _opened(path: Path) -> Opened | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(handle)
    with suppress(OSError):
        os.utime(path)  # the most recently used
    return Opened(handle=handle, size=status.st_size, modified=status.st_ino)  # its time changes with each use
