"""The contents of the library, under the names that clients see. Clients never see or choose paths.

A root is a folder (or a single file) that was given to `midreel index` or `midreel serve --root`. Its name is the
shortest end of its path that is unique among the roots. A video has a name such as `Videos/holidays/beach.mp4`. Names
are looked up in the catalogue; only a request to index turns a name into a path.
"""

import errno
import logging
import os
import stat
import sys
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import IOBase
from pathlib import Path, PurePosixPath

from midreel.datasets import own
from midreel.errors import MidreelError
from midreel.io.locations import PathMap, RemoteFile, is_remote
from midreel.library.filters import Filter
from midreel.library.records import File, Video, as_utf8
from midreel.library.scan import modified_ns
from midreel.library.storage import Storage
from midreel.server.problems import ProblemError

NUM_EXAMPLES, _MAX_EXAMPLE_LENGTH = 6, 80
_EXAMPLES = ("someone walks through a door", "two of them side by side", "seen from above")
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # the file is gone; other errors may be temporary
_log = logging.getLogger("midreel.server")


@dataclass(frozen=True, kw_only=True)
class Item:
    """A video of the library, as it was when it was indexed."""

    id: str
    title: str
    folder: str
    file: str
    duration: float
    date: float
    files: tuple[File, ...]  # all copies

    @property
    def size(self) -> int:
        """The size of the first file in bytes."""
        return self.files[0].size

    @property
    def version(self) -> str:
        """A text that changes when a file is modified, even if the id stays the same."""
        return f"{max(file.modified for file in self.files):x}"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An open file, unchanged since it was indexed.

    Attributes:
        handle: The file on a disk, if it is on one.
        remote: The file in object storage, otherwise.
        size: Bytes.
        modified: The modification time when it was indexed, in nanoseconds since 1970.
    """

    handle: int = -1
    remote: RemoteFile | None = None
    size: int
    modified: int

    @property
    def path(self) -> Path:
        """The path of the open file itself. Its original path may lead to another file by now."""
        return Path(f"/dev/fd/{self.handle}")

    @property
    def file(self) -> IOBase | None:
        """The content of a file in object storage."""
        return None if self.remote is None else self.remote.file

    def read(self, size: int, position: int) -> bytes:
        """Return the bytes from a position on."""
        return os.pread(self.handle, size, position) if self.remote is None else self.remote.read(size, position)

    def close(self) -> None:
        """Close the file."""
        if self.remote is None:
            os.close(self.handle)
        else:
            self.remote.close()


@dataclass(frozen=True, kw_only=True)
class Roots:
    """The roots of the library and the server, by name."""

    given: frozenset[Path]  # folders and single files
    folders: dict[str, Path]  # the folders that names start with: given folders, and parents of single files
    places: dict[str, Path]  # the outermost given folders and files

    @classmethod
    def of(cls, given: frozenset[Path]) -> "Roots":
        """Return the roots for a set of folders and single files."""
        single = {place for place in given if place.is_file()}
        folders = _named((given - single) | {place.parent for place in single})
        outermost = sorted(place for place in given if not (given - single).intersection(place.parents))
        return cls(given=given, folders=folders, places={_name(place, folders): place for place in outermost})

    def contains(self, real: Path) -> bool:
        """Return whether a path without links is a root or inside one."""
        around = {real, *real.parents}  # has no links either, so most roots need not be resolved
        return not around.isdisjoint(self.given) or any(place.resolve() in around for place in self.given)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A snapshot of the catalogue."""

    items: dict[str, Item]  # by id, sorted by folder and file name
    folders: dict[str, Path]
    roots: dict[str, Path]
    quarantine: dict[str, str]  # the reason for each unreadable file


class LibraryListing:
    """The current contents of the library. Other processes may change it at any time.

    Each method first reads the version of the catalogue, to discard outdated caches. This raises MissingLibrary if the
    library is missing.

    Args:
        library: Where the library is stored.
        more_roots: Folders that clients may index, in addition to the folders that the library was made from.
        locations: Where the files are on this machine.
    """

    def __init__(
        self,
        library: Storage,
        more_roots: Sequence[Path] = (),
        locations: PathMap = PathMap(),  # noqa: B008
    ) -> None:
        self._locations = locations
        # Two connections: lookups of a few videos must not wait while the other one reads the whole catalogue.
        self._catalogue, self._whole = library.open_catalogue(), library.open_catalogue()
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._more_roots = [Path(os.path.abspath(root)) for root in more_roots]  # noqa: PTH100
        self._roots = Roots.of(frozenset())
        self._items: dict[str, Item] = {}  # cache of looked up videos
        self._items_version = -1
        self._contents: Contents | None = None
        self._contents_version = -1
        self._examples: list[str] = []
        self._examples_of: Contents | None = None

    def close(self) -> None:
        """Close the catalogue."""
        with self._lock, self._reading:
            self._catalogue.close()
            self._whole.close()

    # ------------------------------------------------------------ videos and folders

    def __len__(self) -> int:
        with self._lock:
            self._catalogue.version()
            return len(self._catalogue)

    def contents(self) -> Contents:
        """Return everything in the catalogue. After a change this takes seconds for a large library."""
        with self._reading:
            version = self._whole.version()
            if self._contents is None or version != self._contents_version:
                self._contents, self._contents_version = self._read(), version
            return self._contents

    def roots(self) -> Roots:
        """Return the roots of the library and the server."""
        with self._lock:
            self._catalogue.version()
            given = frozenset((*self._catalogue.places(), *self._more_roots))
            if given != self._roots.given:
                self._roots = Roots.of(given)
            return self._roots

    def find_all(self, video_ids: Iterable[str]) -> dict[str, Item]:
        """Return the videos with these ids. Unknown ids are skipped."""
        wanted, folders = set(video_ids), self.roots().folders
        with self._lock:
            version = self._catalogue.version()
            if version != self._items_version:
                self._items, self._items_version = {}, version
            for video_id in wanted - self._items.keys():
                video, files = self._catalogue.video(video_id), self._catalogue.files_of(video_id)
                if video is not None and files:
                    self._items[video_id] = _item(video, files, _name(files[0].path.parent, folders))
            return {video_id: self._items[video_id] for video_id in wanted if video_id in self._items}

    def item(self, video_id: str) -> Item:
        """Return a video. Raise ProblemError if there is none with this id."""
        found = self.find_all([video_id]).get(video_id)
        if found is None:
            raise _no_video(video_id)
        return found

    def listed(self, *, text: str | None, folder: str | None) -> list[Item]:
        """Return the videos in a folder whose name contains a text, in any case. None does not restrict them."""
        contents = self.contents()
        _expect_folder(folder, contents)
        sought = (text or "").casefold()
        return [
            item
            for item in contents.items.values()
            if _is_in(item.folder, folder) and sought in f"{item.folder}/{item.file}".casefold()
        ]

    def tags(self, item: Item) -> list[str]:
        """Return the tags of a video."""
        with self._lock:
            self._catalogue.version()
            return self._catalogue.tags_of(item.id)

    def filter(self, videos: Sequence[str] | None, folder: str | None) -> Filter:
        """Return a filter for a search. Raise ProblemError if a video or the folder does not exist."""
        wanted = None if videos is None else tuple(dict.fromkeys(videos))
        known = self.find_all(wanted or ())
        for video_id in wanted or ():
            if video_id not in known:
                raise _no_video(video_id)
        return Filter(folders=() if folder is None else (self._folder(folder),), videos=wanted)

    def _folder(self, name: str) -> Path:
        # A cached snapshot is good enough while the roots are the same: reading the whole catalogue takes seconds.
        contents = self._contents
        if contents is None or name not in contents.folders or contents.roots != self.roots().places:
            contents = self.contents()
        _expect_folder(name, contents)
        return contents.folders[name]

    def examples(self) -> list[str]:
        """Return example queries: annotations of videos in the library, otherwise general ones."""
        contents = self.contents()
        if self._examples_of is not contents:  # a changed library has a new snapshot
            titles = {item.title for item in contents.items.values()}
            found = [text for root in contents.roots.values() for text in _annotated_queries(root, titles)]
            step = max(1, len(found) // NUM_EXAMPLES)
            self._examples, self._examples_of = found[::step][:NUM_EXAMPLES] or list(_EXAMPLES), contents
        return self._examples

    # ------------------------------------------------------------ files

    @contextmanager
    def opened(self, item: Item) -> Iterator[Opened]:
        """Open the file of a video, and close it at the end of the `with` block. See `open`."""
        opened = self.open(item)
        try:
            yield opened
        finally:
            opened.close()

    def open(self, item: Item) -> Opened:
        """Open the first file of a video that is unchanged since it was indexed and inside a root.

        The caller closes it.

        Raises:
            ProblemError: All files are missing, changed or outside the roots (410), or cannot be opened now (503).
        """
        # Open first and check the open file: another process may replace a path between a check and the opening.
        blocked = None
        for file in item.files:
            location = self._locations.apply(file.path)
            try:
                if location is not None and is_remote(location):
                    opened = self._opened_remote(file, location)
                else:
                    opened = self._opened_local(file, location)
            except OSError as error:
                is_gone = isinstance(error, FileNotFoundError) or error.errno in _NO_FILE
                blocked = blocked if is_gone else error
                continue
            if opened is not None:
                return opened
        if blocked is not None:
            _log.warning("cannot open a file: %s", blocked)
            raise ProblemError(
                503,
                f"{item.file} cannot be opened ({blocked.strerror or blocked}). Try again, or check its disk.",
                kind="file-unreadable",
                headers={"Retry-After": "5"},
            )
        raise ProblemError(
            410,
            f"{item.file} was changed, removed or replaced by a link out of the roots. Index its folder again, or add "
            f"the target of the link: midreel serve --root",
            kind="file-changed",
        )

    def _opened_local(self, file: File, location: str | None) -> Opened | None:
        """Open a file on a disk, here or where the map leads; None if it has changed or is outside its root."""
        handle = os.open(location or file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        found, real = os.fstat(handle), _real_path(handle)
        if location is None:
            is_same = (found.st_size, modified_ns(found)) == (file.size, file.modified)
            is_inside = self.roots().contains(real)
        else:  # the date of a copy may differ
            root = self._locations.folder_of(file.path)
            is_same, is_inside = found.st_size == file.size, root is not None and real.is_relative_to(root.resolve())
        if stat.S_ISREG(found.st_mode) and is_same and is_inside:
            return Opened(handle=handle, size=file.size, modified=file.modified)
        os.close(handle)
        return None

    def _opened_remote(self, file: File, url: str) -> Opened | None:
        """Open a file in object storage; None if its size has changed."""
        remote = RemoteFile(url)
        return Opened(remote=remote, size=file.size, modified=file.modified) if remote.size == file.size else None

    def path_named(self, name: str) -> Path:
        """Return the path for a name in a request to index.

        Raises:
            ProblemError: The name is not inside a root (403), or there is no such file (404).
        """
        places = self.roots().places
        parts = PurePosixPath(name).parts
        root = next(
            (root for root in places if parts[: len(PurePosixPath(root).parts)] == PurePosixPath(root).parts), None
        )
        if root is None or ".." in parts or "\\" in name:
            known = ", ".join(places) or "none. Start the server with --root"
            raise ProblemError(403, f"{name!r} is not inside a root, expected one of: {known}.", kind="outside-roots")
        path = places[root].joinpath(*parts[len(PurePosixPath(root).parts) :])
        # This comes before the check for existence, which would reveal which files exist outside the roots.
        if not self.may_index(path):
            raise ProblemError(403, f"{name!r} is a link that leads out of its root.", kind="outside-roots")
        if not os.path.exists(path):  # noqa: PTH110  Path.exists raises if the name is too long
            raise ProblemError(404, f"No file or folder {name!r}.", kind="no-file")
        return path

    def may_index(self, path: Path) -> bool:
        """Return whether the target of a path is inside a root. Links are followed."""
        try:
            return self.roots().contains(path.resolve())
        except (OSError, RuntimeError):  # a link that leads to itself
            return False

    def name(self, path: Path) -> str:
        """Return the name of a path."""
        return _name(path, self.roots().folders)

    def without_paths(self, text: str, path: Path) -> str:
        """Replace the path of a file in a message by its name."""
        return _without_paths(text, path, self.roots().folders)

    # ------------------------------------------------------------ reading the catalogue

    def _read(self) -> Contents:
        roots = self.roots()
        files_of: dict[str, list[File]] = {}
        quarantine = {}
        for file in self._whole.files().values():
            if file.video_id is None:
                quarantine[_name(file.path, roots.folders)] = _without_paths(file.reason, file.path, roots.folders)
            else:
                files_of.setdefault(file.video_id, []).append(file)
        items, name_of = [], dict[Path, str]()
        for video in self._whole.videos():
            files = files_of.get(video.id)
            if files:
                parent = files[0].path.parent
                if parent not in name_of:
                    name_of[parent] = _name(parent, roots.folders)
                items.append(_item(video, files, name_of[parent]))
        items.sort(key=lambda item: (item.folder.casefold(), item.file.casefold(), item.id))
        folders = {name: path for path, name in reversed(name_of.items())} | roots.folders
        return Contents(
            items={item.id: item for item in items},
            folders=dict(sorted(folders.items())),
            roots=roots.places,
            quarantine=quarantine,
        )


def _real_path(handle: int) -> Path:
    """Ask the operating system for the path of an open file, without links."""
    if sys.platform == "darwin":
        import fcntl

        return Path(os.fsdecode(fcntl.fcntl(handle, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
    return Path(f"/proc/self/fd/{handle}").readlink()


def _item(video: Video, files: Sequence[File], folder: str) -> Item:
    path = files[0].path
    return Item(
        id=video.id,
        title=_readable(path.stem),
        folder=folder,
        file=_readable(path.name),
        duration=video.duration,
        date=video.date,
        files=tuple(files),
    )


def _named(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the outermost folders by name: the shortest end of each path that is visibly different from the others.

    >>> list(_named([Path("/home/ann/Videos"), Path("/disk/Videos"), Path("/disk/Videos/new"), Path("/films")]))
    ['disk/Videos', 'films', 'ann/Videos']
    """
    given = set(folders)
    outer = sorted(folder for folder in given if not given.intersection(folder.parents))
    shown = {folder: [_readable(part).replace("/", "") or "root" for part in folder.parts] for folder in outer}
    alike = {folder: [unicodedata.normalize("NFKC", part).casefold() for part in shown[folder]] for folder in outer}
    names: dict[str, Path] = {}
    for folder, parts in shown.items():
        others = [alike[other] for other in outer if other != folder]
        length = next(
            (n for n in range(1, len(parts)) if all(other[-n:] != alike[folder][-n:] for other in others)), len(parts)
        )
        name = "/".join(parts[-length:])
        again = sum(1 for other in names if other == name or other.startswith(f"{name} ("))
        names[f"{name} ({again + 1})" if again else name] = folder
    return names


def _name(path: Path, roots: dict[str, Path]) -> str:
    for name, root in roots.items():
        if path == root or root in path.parents:
            return _readable("/".join((name, *path.relative_to(root).parts)))
    return _readable(path.name)  # its root is not a root any more


def _readable(text: str) -> str:
    """Replace bytes that are not UTF-8, and characters that a terminal would interpret."""
    if text.isprintable():  # the common case
        return text
    text = os.fsencode(text).decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _without_paths(text: str, path: Path, roots: dict[str, Path]) -> str:
    text = text.replace(as_utf8(str(path)), _name(path, roots))
    for name, root in roots.items():
        text = text.replace(as_utf8(f"{root}/"), f"{name}/")
    return _readable(text)


def _is_in(folder: str, wanted: str | None) -> bool:
    return wanted is None or folder == wanted or folder.startswith(f"{wanted}/")


def _no_video(video_id: str) -> ProblemError:
    return ProblemError(
        404, f"No video {video_id!r} in this library. GET /v1/videos lists all videos.", kind="no-video"
    )


def _expect_folder(folder: str | None, contents: Contents) -> None:
    if folder is not None and folder not in contents.folders:
        raise ProblemError(
            404, f"No folder {folder!r} in this library. GET /v1/library lists all folders.", kind="no-folder"
        )


def _annotated_queries(root: Path, titles: set[str]) -> list[str]:
    """Return the queries of an annotated folder about videos that are in the library."""
    if not root.is_dir():
        return []
    try:
        queries = [query for split in own.read(root).values() for query in split.queries]
    except (MidreelError, OSError, ValueError):
        return []
    return [
        query.text
        for query in queries
        if Path(query.video_id).stem in titles and len(query.text) <= _MAX_EXAMPLE_LENGTH
    ]
