"""Find the video files in folders, and tell deleted files from files that cannot be seen now."""

import errno
import os
import stat
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from midreel.errors import BadSetting, MissingVideo
from midreel.io.files import SPECIAL, is_special

# The extensions of video files: common ones first, then those of cameras, recorders and older programs. They include
# `datasets.own.VIDEO_ENDINGS`, which a test checks.
ENDINGS = frozenset(
    [
        *(".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v"),
        *(".mpg", ".mpeg", ".m2v", ".ts", ".m2ts", ".mts", ".vob", ".wmv", ".asf", ".flv", ".f4v"),
        *(".3gp", ".3g2", ".ogv", ".ogm", ".mxf", ".divx", ".dv", ".rm", ".rmvb", ".mjpeg", ".mjpg", ".y4m", ".mj2"),
        *(".qt", ".mk3d", ".mpe", ".m1v", ".m2t", ".tp", ".trp", ".tod", ".wtv", ".dif", ".dav", ".insv", ".amv"),
        *(".nut", ".nsv", ".gxf", ".ivf", ".obu", ".h264", ".264", ".avc", ".h265", ".265", ".hevc", ".ismv", ".evo"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A file when it was scanned."""

    path: Path  # absolute; symbolic links are not resolved
    size: int
    modified: int  # nanoseconds since 1970


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The result of a scan.

    Attributes:
        files: The videos, by path.
        unread: Files and folders that could not be read, with the reason. A video below them may or may not exist.
        skipped: The number of other files, by extension. FIFOs, sockets and devices are one entry.
    """

    files: dict[Path, FoundFile] = field(default_factory=dict)
    unread: dict[Path, str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def says_gone(self, path: Path) -> bool:
        """Return whether a file of the scanned places no longer exists. If it may be unreadable, the answer is no."""
        return path not in self.files and not self.hiding(path)

    def hiding(self, path: Path) -> list[Path]:
        """Return the unread places that may contain a file: the file itself, or its parent folders."""
        return [place for place in (path, *path.parents) if place in self.unread]


LEADS_OUT = "the link leads out of the allowed folders. Allow its target: midreel serve --root TARGET"
_MOUNT = "Mount its disk, or remove its videos: --forget"


def scan(
    places: Iterable[Path],
    *,
    leave_out: Path | None = None,
    known: Collection[Path] = (),
    forget: bool = False,
    follow: Callable[[Path], bool] = lambda _: True,
) -> Scan:
    """Find the videos in some places: single files with any extension, and folders with all their subfolders.

    The scan follows links, enters each folder once, and skips hidden files and folders.

    A known file counts as deleted only if its folder can be listed and does not contain it. An unmounted disk looks
    like a missing place, an empty folder or a broken link. The result lists these as unread if known files are below.

    Args:
        places: Files and folders.
        leave_out: A folder to skip: the library.
        known: The files that earlier scans found.
        forget: Count all known files that are not found as deleted.
        follow: Whether to follow a place or a link. The result lists the others as unread.
    """
    scanner = _Scanner(known, forget=forget, follow=follow)
    if leave_out is not None and leave_out.exists():
        scanner.entered.add(_identity(leave_out))
    for place in map(absolute, places):
        scanner.scan_place(place)
    return scanner.found


class _Scanner:
    """The state of one scan."""

    def __init__(self, known: Collection[Path], *, forget: bool, follow: Callable[[Path], bool]) -> None:
        self.found, self.entered = Scan(), set[tuple[int, int]]()
        self._known, self._forget, self._follow = known, forget, follow
        self._known_folders = {folder for path in known for folder in path.parents}

    def scan_place(self, place: Path) -> None:
        if self._leads_out(place):
            return
        try:
            is_folder = _exists(place) and place.is_dir()
            file = None if is_folder else look_at(place)
            is_special = file is None and _is_special(place)
        except OSError as error:
            self._not_read(place, error)
            return
        if is_folder:
            self._scan_folder(place)
        elif file is not None:
            self.found.files[place] = file
        elif is_special:
            self.found.unread[place] = f"it is a {SPECIAL}, expected a video or a folder"
        elif place in self._known_folders or (place in self._known and not _has_entries(place.parent)):
            self._may_be_unmounted(place, "it does not exist")

    def _scan_folder(self, top: Path) -> None:
        waiting = deque([top])
        while waiting:
            folder = waiting.pop()
            try:
                identity = _identity(folder)
                if identity in self.entered:
                    continue
                self.entered.add(identity)
                entries = _visible_entries(folder)
            except OSError as error:
                self._not_read(folder, error)
                continue
            if not entries and folder in self._known_folders:
                self._may_be_unmounted(folder, "the folder is empty")
            for entry in entries:
                path = folder / entry.name
                if _is_dir(entry):
                    if entry.is_symlink() and self._leads_out(path):
                        continue
                    # Links come last. A folder that is reached both directly and by a link keeps its own name.
                    (waiting.appendleft if entry.is_symlink() else waiting.append)(path)
                else:
                    self._scan_file(path, is_link=entry.is_symlink())

    def _scan_file(self, path: Path, *, is_link: bool) -> None:
        was_known = path in self._known or path in self._known_folders
        if path.suffix.lower() not in ENDINGS and not was_known:
            self.found.skipped[path.suffix.lower() or "without ending"] += 1
            return
        if is_link and self._leads_out(path):
            return
        try:
            file = look_at(path)
            is_special = file is None and _is_special(path)
        except OSError as error:
            self._not_read(path, error)
            return
        if file is not None:
            self.found.files[path] = file
        elif is_special:
            self.found.skipped[SPECIAL] += 1
        elif is_link and was_known:
            self._may_be_unmounted(path, "the link is broken")

    def _leads_out(self, path: Path) -> bool:
        if self._follow(path):
            return False
        self.found.unread[path] = LEADS_OUT
        return True

    def _may_be_unmounted(self, path: Path, problem: str) -> None:
        if not self._forget:
            self.found.unread[path] = f"{problem}. {_MOUNT}"

    def _not_read(self, path: Path, error: OSError) -> None:
        self.found.unread[path] = error.strerror or str(error)


def missing(places: Iterable[Path]) -> list[Path]:
    """Return the places that are neither a file nor a folder. Places that cannot be checked are not included."""
    found = []
    for place in map(absolute, places):
        with suppress(OSError):  # the scan reports it
            if not _exists(place) or _is_special(place):
                found.append(place)
    return found


def expect_any(places: Sequence[Path], *, is_new: bool = False) -> None:
    """Raise MissingVideo if there are places and all of them are missing. Call this before you create a library.

    Args:
        places: Files and folders.
        is_new: Whether the library is new. A new library has no videos to remove.
    """
    absent = missing(places)
    if absent and len(absent) == len(places):
        if _is_special(absent[0]):
            raise MissingVideo(f"{absent[0]} is a {SPECIAL}, expected a video or a folder of videos. Check the path.")
        remedy = "Check the path." if is_new else "Check the path, or remove its videos: --forget"
        raise MissingVideo(f"{absent[0]} does not exist, expected a video or a folder of videos. {remedy}")


def expect_apart(places: Iterable[Path], library: Path) -> None:
    """Raise BadSetting if a place is the folder of the library, or inside it."""
    for place in map(absolute, places):
        if absolute(library) in (place, *place.parents):
            raise BadSetting(
                f"{place} is inside the library folder. Keep videos outside it: --library "
                f"{place.with_name(f'{place.name}-library')}"
            )


def absolute(path: Path) -> Path:
    """Return an absolute path. Links are not resolved: a link may change, and users know its name."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111  pathlib follows links, or raises


def shown(path: Path | str) -> str:
    """Return a path as printable text on one line. Other bytes and characters are escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def look_at(path: Path) -> FoundFile | None:
    """Return a regular file; None if the path is something else or missing. Raise OSError if it cannot be checked."""
    if not _exists(path):
        return None
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return None  # a folder, FIFO, socket or device
    return FoundFile(path=path, size=status.st_size, modified=modified_ns(status))


def modified_ns(status: os.stat_result) -> int:
    """Return the modification time in nanoseconds since 1970, clamped to 64 bits: the years 1677 to 2262."""
    return min(max(status.st_mtime_ns, -(2**63)), 2**63 - 1)


def _exists(path: Path) -> bool:
    """Return whether the target of a path exists. Raise OSError if it cannot be checked; `Path.exists` hides that."""
    try:
        path.stat()
    except ValueError:
        return False  # the path contains a null byte
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        return False
    return True


def _is_special(path: Path) -> bool:
    return _exists(path) and is_special(path.stat())


def _visible_entries(folder: Path) -> "list[os.DirEntry[str]]":
    """Return the entries of a folder that are not hidden, sorted by name."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _has_entries(folder: Path) -> bool:
    try:
        return bool(_visible_entries(folder))
    except OSError:
        return False


def _is_dir(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
