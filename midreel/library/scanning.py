"""Which files are videos, and which video each of them is."""

import hashlib
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from midreel.errors import MissingVideo

# What people put on a page, and what cameras, recorders and the years have left behind. `own.VIDEO_ENDINGS` are among
# them; importing that would bring torch, which a look at a folder does not need.
ENDINGS = frozenset(
    [
        *(".mp4", ".mkv", ".webm", ".mov", ".avi", ".m4v"),
        *(".mpg", ".mpeg", ".m2v", ".ts", ".m2ts", ".mts", ".vob", ".wmv", ".asf", ".flv", ".f4v"),
        *(".3gp", ".3g2", ".ogv", ".ogm", ".mxf", ".divx", ".dv", ".rm", ".rmvb", ".mjpeg", ".y4m"),
    ]
)

_SAMPLE, _NUM_SAMPLES = 1 << 16, 16


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """A file as it was when it was looked at."""

    path: Path  # absolute, through whatever links lead to it
    size: int
    modified: int  # nanoseconds since 1970


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The videos below some places, by path; and where nobody could look, so that videos may be there or not."""

    files: dict[Path, FoundFile] = field(default_factory=dict)
    unread: dict[Path, str] = field(default_factory=dict)

    def says_gone(self, path: Path) -> bool:
        """Whether a file that was once found below the scanned places is known to be no longer there."""
        return path not in self.files and not any(place == path or place in path.parents for place in self.unread)


def scan(
    places: Iterable[Path],
    *,
    leave_out: Path | None = None,
    known: Collection[Path] = (),
    must_exist: bool = True,
    forget: bool = False,
) -> Scan:
    """Looks through folders, however deep, and at single files, which are taken whatever their names end in.

    Links are followed, each folder is entered once, and what is hidden is left alone, as is the folder `leave_out`.
    A folder that is missing or empty, though `known` files were in it, is more likely a disk that is not mounted than
    one that was cleared: it counts as not looked into, unless all is to be `forget`-ten.
    """
    found = Scan()
    entered = {_identity(leave_out)} if leave_out is not None and leave_out.exists() else set()
    for place in map(absolute, places):
        if place.is_dir():
            for file in _below(place, entered, found.unread):
                found.files[file.path] = file
            if not forget and _is_empty(place) and any(place in path.parents for path in known):
                found.unread[place] = f"the folder is empty now{_MOUNT}"
        elif (file_here := _look_at(place)) is not None:
            found.files[place] = file_here
        elif must_exist and not forget:
            raise _missing(place)
        elif not forget and not (place in known and place.parent.is_dir() and not _is_empty(place.parent)):
            found.unread[place] = f"it does not exist now{_MOUNT}"
    return found


_MOUNT = "; mount its disk, or let its videos go: --forget"


def expect_all(places: Iterable[Path], *, forget: bool = False) -> None:
    """Raises if one is not there; before a library is made for nothing."""
    for place in map(absolute, places):
        if not forget and not place.is_dir() and _look_at(place) is None:
            raise _missing(place)


def _missing(place: Path) -> MissingVideo:
    return MissingVideo(
        f"{place} does not exist, expected a video or a folder of videos; check the path, or mount its disk; to let go "
        f"of videos that were there: --forget"
    )


def absolute(path: Path) -> Path:
    """Without following links: a link may be set anew, and what it is called is what people know."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111  pathlib follows links, or raises


def shown(path: Path) -> str:
    """A name on one line that any terminal can show, whatever bytes it is made of."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def content_id(path: Path) -> str:
    """Of what the file holds, not of its name: its length and samples of it, all of it where it is short.

    A megabyte tells one film from another; reading all of them would take hours.
    """
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(size.to_bytes(8, "little"))
        if size <= _SAMPLE * _NUM_SAMPLES:
            digest.update(file.read())
        else:
            for number in range(_NUM_SAMPLES):
                file.seek((size - _SAMPLE) * number // (_NUM_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def _below(top: Path, entered: set[tuple[int, int]], unread: dict[Path, str]) -> Iterator[FoundFile]:
    waiting = deque([top])
    while waiting:
        folder = waiting.pop()
        try:
            identity = _identity(folder)
            if identity in entered:
                continue
            entered.add(identity)
            with os.scandir(folder) as entries:
                names = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            unread[folder] = error.strerror or str(error)
            continue
        for entry in names:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            if _is_dir(entry):
                # Links come last, so that what lies in the tree itself has its own name.
                (waiting.appendleft if entry.is_symlink() else waiting.append)(path)
            elif path.suffix.lower() in ENDINGS and (file := _look_at(path)) is not None:
                yield file


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return False


def _is_dir(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _look_at(path: Path) -> FoundFile | None:
    """None where no file is."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    if not os.path.isfile(path):  # noqa: PTH113
        return None
    return FoundFile(path=path, size=status.st_size, modified=status.st_mtime_ns)
