"""What is in the library, by the names that clients see: never a path of this computer, never one that they chose.

A root is a folder that videos come from; its name is as much of the end of its path as tells it from the others. A
video in it is `Videos/holidays/beach.mp4`. Names are looked up; only a request to index leads from a name to a path.
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
from pathlib import Path, PurePosixPath

from midreel.datasets import own
from midreel.errors import MidreelError
from midreel.library.catalogue import Catalogue, File, Video, as_utf8
from midreel.library.filters import Filter
from midreel.library.scan import modified_ns
from midreel.server.problems import ProblemError

NUM_EXAMPLES, _LONGEST_EXAMPLE = 6, 80
_EXAMPLES = ("someone walks through a door", "two of them side by side", "seen from above")
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # no file there; anything else may pass
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
    files: tuple[File, ...]  # all places where it lies

    @property
    def size(self) -> int:
        return self.files[0].size

    @property
    def version(self) -> str:
        """Another one when its files were written to, be it that they seem to hold the same."""
        return f"{max(file.modified for file in self.files):x}"


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A file that is what was indexed, open for reading."""

    handle: int
    size: int
    modified: int

    @property
    def path(self) -> Path:
        """Of the open file itself: what its name leads to may be another by now."""
        return Path(f"/dev/fd/{self.handle}")


@dataclass(frozen=True, kw_only=True)
class Roots:
    """What the library or the server was given, by name."""

    given: frozenset[Path]  # folders, and files that were given one by one
    folders: dict[str, Path]  # that names begin with: those, and where such files lie
    places: dict[str, Path]  # the outermost of what was given

    @classmethod
    def of(cls, given: frozenset[Path]) -> "Roots":
        single = {place for place in given if place.is_file()}
        folders = _named((given - single) | {place.parent for place in single})
        outermost = sorted(place for place in given if not (given - single).intersection(place.parents))
        return cls(given=given, folders=folders, places={_name(place, folders): place for place in outermost})

    def hold(self, real: Path) -> bool:
        """Whether a path that is free of links is, or lies in, what was given."""
        around = {real, *real.parents}  # free of links as well, so that most need not be followed
        return not around.isdisjoint(self.given) or any(place.resolve() in around for place in self.given)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The catalogue at one time."""

    items: dict[str, Item]  # in the order of folders and titles
    folders: dict[str, Path]
    roots: dict[str, Path]
    quarantine: dict[str, str]  # file -> reason


class Shelf:
    """The catalogue as it is now. Each method asks for its version first, which raises MissingLibrary if the library
    is missing."""

    def __init__(self, library: Path, more_roots: Sequence[Path] = ()) -> None:
        # One that is asked for a few videos, at once; and one that reads all, for which nobody else need wait.
        self._catalogue, self._whole = Catalogue(library), Catalogue(library)
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._more_roots = [Path(os.path.abspath(root)) for root in more_roots]  # noqa: PTH100
        self._roots = Roots.of(frozenset())
        self._items: dict[str, Item] = {}  # that were asked for
        self._items_version = -1
        self._contents: Contents | None = None
        self._contents_version = -1
        self._examples: list[str] = []
        self._examples_of: Contents | None = None

    def close(self) -> None:
        with self._lock, self._reading:
            self._catalogue.close()
            self._whole.close()

    # ------------------------------------------------------------ what is there

    def __len__(self) -> int:
        with self._lock:
            self._catalogue.version()
            return len(self._catalogue)

    def contents(self) -> Contents:
        with self._reading:
            version = self._whole.version()
            if self._contents is None or version != self._contents_version:
                self._contents, self._contents_version = self._read(), version
            return self._contents

    def roots(self) -> Roots:
        with self._lock:
            self._catalogue.version()
            given = frozenset((*self._catalogue.places(), *self._more_roots))
            if given != self._roots.given:
                self._roots = Roots.of(given)
            return self._roots

    def find_all(self, video_ids: Iterable[str]) -> dict[str, Item]:
        """Those that are there."""
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
        found = self.find_all([video_id]).get(video_id)
        if found is None:
            raise _no_video(video_id)
        return found

    def listed(self, *, text: str | None, folder: str | None) -> list[Item]:
        """Those in a folder whose name holds a text."""
        contents = self.contents()
        _expect_folder(folder, contents)
        sought = (text or "").casefold()
        return [
            item
            for item in contents.items.values()
            if _is_in(item.folder, folder) and sought in f"{item.folder}/{item.file}".casefold()
        ]

    def tags(self, item: Item) -> list[str]:
        with self._lock:
            self._catalogue.version()
            return self._catalogue.tags_of(item.id)

    def filter(self, videos: Sequence[str] | None, folder: str | None) -> Filter:
        """What a search is restricted to; all of it must be there."""
        wanted = None if videos is None else tuple(dict.fromkeys(videos))
        known = self.find_all(wanted or ())
        for video_id in wanted or ():
            if video_id not in known:
                raise _no_video(video_id)
        return Filter(folders=() if folder is None else (self._folder(folder),), videos=wanted)

    def _folder(self, name: str) -> Path:
        """What a name stood for stays so while the roots are the same; to read all of the catalogue takes seconds."""
        contents = self._contents
        if contents is None or name not in contents.folders or contents.roots != self.roots().places:
            contents = self.contents()
        _expect_folder(name, contents)
        return contents.folders[name]

    def examples(self) -> list[str]:
        """Sentences about videos that are here, if somebody wrote some; otherwise what a sentence may be like."""
        contents = self.contents()
        if self._examples_of is not contents:  # which is another whenever something has changed
            titles = {item.title for item in contents.items.values()}
            found = [text for root in contents.roots.values() for text in _sentences(root, titles)]
            step = max(1, len(found) // NUM_EXAMPLES)
            self._examples, self._examples_of = found[::step][:NUM_EXAMPLES] or list(_EXAMPLES), contents
        return self._examples

    # ------------------------------------------------------------ files

    @contextmanager
    def opened(self, item: Item) -> Iterator[Opened]:
        opened = self.open(item)
        try:
            yield opened
        finally:
            os.close(opened.handle)

    def open(self, item: Item) -> Opened:
        """The first of the video's files that is still what was indexed, in a place that was given.

        It is opened first and judged then: whatever is said of a path may be untrue when it is opened.
        """
        blocked = None
        for file in item.files:
            try:
                handle = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                blocked = blocked if error.errno in _GONE else error
                continue
            found = os.fstat(handle)
            modified = modified_ns(found)
            is_same = (found.st_size, modified) == (file.size, file.modified)
            if stat.S_ISREG(found.st_mode) and is_same and self.roots().hold(_place_of(handle)):
                return Opened(handle=handle, size=found.st_size, modified=modified)
            os.close(handle)
        if blocked is not None:
            _log.warning("a file cannot be opened: %s", blocked)
            raise ProblemError(
                503,
                f"{item.file} cannot be opened ({blocked.strerror}); try again, or have a look at its disk",
                kind="file-unreadable",
                headers={"Retry-After": "5"},
            )
        raise ProblemError(
            410,
            f"{item.file} is no longer what was indexed: it has changed, is gone, or is a link that leads out of the "
            f"library's folders; index its folder again, or start the server with --root for where the link leads",
            kind="file-changed",
        )

    def path_named(self, name: str) -> Path:
        """The path that a client wants to be indexed, if it lies in a root, links and all."""
        places = self.roots().places
        parts = PurePosixPath(name).parts
        root = next(
            (root for root in places if parts[: len(PurePosixPath(root).parts)] == PurePosixPath(root).parts), None
        )
        if root is None or ".." in parts or "\\" in name:
            known = ", ".join(places) or "none: start the server with --root"
            raise ProblemError(
                403, f"{name!r} is not in a folder that may be indexed, expected one of: {known}", kind="outside-roots"
            )
        path = places[root].joinpath(*parts[len(PurePosixPath(root).parts) :])
        # Asked first, or what is told would tell which files there are outside.
        if not self.may_index(path):
            raise ProblemError(
                403, f"{name!r} is a link that leads out of its root; name what is in it", kind="outside-roots"
            )
        if not os.path.exists(path):  # noqa: PTH110  which of a name that no disk would take says no
            raise ProblemError(404, f"there is no {name!r}; name a video or a folder that exists", kind="no-file")
        return path

    def may_index(self, path: Path) -> bool:
        """Whether what the path leads to lies in a root: links are followed first."""
        try:
            return self.roots().hold(path.resolve())
        except (OSError, RuntimeError):  # a link that leads to itself
            return False

    def name(self, path: Path) -> str:
        return _name(path, self.roots().folders)

    def without_paths(self, text: str, path: Path) -> str:
        """A message about a file, with its name in place of its path."""
        return _without_paths(text, path, self.roots().folders)

    # ------------------------------------------------------------ how

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


def _place_of(handle: int) -> Path:
    """Where an open file lies, free of links, by the system's own word."""
    if sys.platform == "darwin":
        import fcntl

        return Path(os.fsdecode(fcntl.fcntl(handle, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")))
    return Path(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115  whose bytes need not be a name


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
    """The outermost folders by name: as much of the end of each path as tells it from the others, to the eye.

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
    return _readable(path.name)  # of a place that is no longer one


def _readable(text: str) -> str:
    """Names are bytes; what is no UTF-8, or would be obeyed by a terminal, is shown as such."""
    if text.isprintable():  # almost all are
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
        404, f"the library holds no video {video_id!r}; GET /v1/videos lists what it holds", kind="no-video"
    )


def _expect_folder(folder: str | None, contents: Contents) -> None:
    if folder is not None and folder not in contents.folders:
        raise ProblemError(404, f"the library has no folder {folder!r}; GET /v1/library lists them", kind="no-folder")


def _sentences(root: Path, titles: set[str]) -> list[str]:
    if not root.is_dir():
        return []
    try:
        queries = [query for split in own.read(root).values() for query in split.queries]
    except (MidreelError, OSError, ValueError):
        return []
    return [
        query.text for query in queries if Path(query.video_id).stem in titles and len(query.text) <= _LONGEST_EXAMPLE
    ]
