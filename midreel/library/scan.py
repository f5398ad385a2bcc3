"""Which files are videos."""

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

# What people put on a page, and what cameras, recorders and the years have left behind. `own.VIDEO_ENDINGS` are among
# them; importing that would bring torch, which a look at a folder does not need.
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
    """A file as it was when it was looked at."""

    path: Path  # absolute, through whatever links lead to it
    size: int
    modified: int  # nanoseconds since 1970


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The videos below some places, by path; and where nobody could look, so that videos may be there or not.

    Files that are no videos, by how they end, are `skipped`: so many of each ending. So are FIFOs, sockets and
    devices, whatever their names.
    """

    files: dict[Path, FoundFile] = field(default_factory=dict)
    unread: dict[Path, str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def says_gone(self, path: Path) -> bool:
        """Whether a file that was once found below the scanned places is known to be no longer there."""
        return path not in self.files and not self.hiding(path)

    def hiding(self, path: Path) -> list[Path]:
        """What keeps anybody from seeing whether a file is there: itself, or what it lies in."""
        return [place for place in (path, *path.parents) if place in self.unread]


LEADS_OUT = "it leads out of the folders that may be looked through; name where it leads as one of them"
_MOUNT = "; mount its disk, or let its videos go: --forget"


def scan(
    places: Iterable[Path],
    *,
    leave_out: Path | None = None,
    known: Collection[Path] = (),
    forget: bool = False,
    follow: Callable[[Path], bool] = lambda _: True,
) -> Scan:
    """Looks through folders, however deep, and at single files, which are taken whatever their names end in.

    Links are followed, each folder is entered once, and what is hidden is left alone, as is the folder `leave_out`. A
    place or link that is not to `follow` counts as not looked into.

    A `known` file is gone only if what it lay in could be listed and does not list it. A disk that is not mounted looks
    like a place that is missing, a folder in which nothing is left, or a link that leads nowhere: these count as not
    looked into, unless all is to be `forget`-ten.
    """
    look = _Look(known, forget=forget, follow=follow)
    if leave_out is not None and leave_out.exists():
        look.entered.add(_identity(leave_out))
    for place in map(absolute, places):
        look.at_place(place)
    return look.found


class _Look:
    """One scan under way."""

    def __init__(self, known: Collection[Path], *, forget: bool, follow: Callable[[Path], bool]) -> None:
        self.found, self.entered = Scan(), set[tuple[int, int]]()
        self._known, self._forget, self._follow = known, forget, follow
        self._inhabited = {folder for path in known for folder in path.parents}

    def at_place(self, place: Path) -> None:
        if self._leads_out(place):
            return
        try:
            is_folder = _is_there(place) and place.is_dir()
            file = None if is_folder else look_at(place)
            is_special = file is None and _is_special(place)
        except OSError as error:
            self._not_read(place, error)
            return
        if is_folder:
            self._below(place)
        elif file is not None:
            self.found.files[place] = file
        elif is_special:
            self.found.unread[place] = f"it is a {SPECIAL}; name a video or a folder"
        elif place in self._inhabited or (place in self._known and not _shows_something(place.parent)):
            self._lost_sight(place, "it does not exist now")

    def _below(self, top: Path) -> None:
        waiting = deque([top])
        while waiting:
            folder = waiting.pop()
            try:
                identity = _identity(folder)
                if identity in self.entered:
                    continue
                self.entered.add(identity)
                entries = _shown_in(folder)
            except OSError as error:
                self._not_read(folder, error)
                continue
            if not entries and folder in self._inhabited:
                self._lost_sight(folder, "the folder is empty now")
            for entry in entries:
                path = folder / entry.name
                if _is_dir(entry):
                    if entry.is_symlink() and self._leads_out(path):
                        continue
                    # Links come last, so that what lies in the tree itself has its own name.
                    (waiting.appendleft if entry.is_symlink() else waiting.append)(path)
                else:
                    self._at_entry(path, is_link=entry.is_symlink())

    def _at_entry(self, path: Path, *, is_link: bool) -> None:
        was_known = path in self._known or path in self._inhabited
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
            self._lost_sight(path, "the link leads nowhere now")

    def _leads_out(self, path: Path) -> bool:
        if self._follow(path):
            return False
        self.found.unread[path] = LEADS_OUT
        return True

    def _lost_sight(self, path: Path, what: str) -> None:
        if not self._forget:
            self.found.unread[path] = f"{what}{_MOUNT}"

    def _not_read(self, path: Path, error: OSError) -> None:
        self.found.unread[path] = error.strerror or str(error)


def missing(places: Iterable[Path]) -> list[Path]:
    """Those where neither a file nor a folder is."""
    found = []
    for place in map(absolute, places):
        with suppress(OSError):  # a scan says what is wrong with it
            if not _is_there(place) or _is_special(place):
                found.append(place)
    return found


def expect_any(places: Sequence[Path]) -> None:
    """Raises if none of some places is a file or a folder; before a library is made for nothing."""
    absent = missing(places)
    if absent and len(absent) == len(places):
        if _is_special(absent[0]):
            raise MissingVideo(f"{absent[0]} is a {SPECIAL}, expected a video or a folder of videos. Check the path.")
        raise MissingVideo(
            f"{absent[0]} does not exist, expected a video or a folder of videos; check the path (one with "
            f"spaces needs quotes), or mount its disk; to let go of videos that were there: --forget"
        )


def expect_apart(places: Iterable[Path], library: Path) -> None:
    """Raises if a place is a library's own folder, or in it, where no videos are looked for."""
    for place in map(absolute, places):
        if absolute(library) in (place, *place.parents):
            raise BadSetting(
                f"{place} is the library's own folder, or in it, where no videos are looked for; keep the library "
                f"elsewhere: --library {place.with_name(f'{place.name}-library')}"
            )


def absolute(path: Path) -> Path:
    """Without following links: a link may be set anew, and what it is called is what people know."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111  pathlib follows links, or raises


def shown(path: Path) -> str:
    """A name on one line that any terminal can show, whatever bytes it is made of."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def look_at(path: Path) -> FoundFile | None:
    """None where no file is; raises if that cannot be told."""
    if not _is_there(path):
        return None
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return None  # a folder, FIFO, socket or device
    return FoundFile(path=path, size=status.st_size, modified=modified_ns(status))


def modified_ns(status: os.stat_result) -> int:
    """When a file was modified, in nanoseconds since 1970, as 64 bits can say: from 1677 to 2262, the nearest."""
    return min(max(status.st_mtime_ns, -(2**63)), 2**63 - 1)


def _is_there(path: Path) -> bool:
    """Whether something is, at the end of whatever links; raises if that cannot be told."""
    try:
        path.stat()
    except ValueError:
        return False  # no name that a file can have
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise
        return False
    return True


def _is_special(path: Path) -> bool:
    return _is_there(path) and is_special(path.stat())


def _shown_in(folder: Path) -> "list[os.DirEntry[str]]":
    """By name; what is hidden is nobody's business."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _shows_something(folder: Path) -> bool:
    try:
        return bool(_shown_in(folder))
    except OSError:
        return False


def _is_dir(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, or nowhere
        return False


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
