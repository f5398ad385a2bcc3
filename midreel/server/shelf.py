"""What is in the library, by the names that clients see: never a path of this computer, never one that they chose.

A root is a folder that videos come from; its name is as much of the end of its path as tells it from the others. A
video in it is `Videos/holidays/beach.mp4`. Names are looked up; only a request to index leads from a name to a path.
"""

import os
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from midreel.datasets import own
from midreel.errors import MidreelError
from midreel.library.catalogue import Catalogue, File
from midreel.library.filters import Filter
from midreel.server.problems import ProblemError

_FRESH = 1.0  # seconds for which what another process writes may go unseen, so that listing costs little meanwhile
NUM_EXAMPLES, _LONGEST_EXAMPLE = 6, 80
_EXAMPLES = ("a dog jumps into the pool", "someone opens a present", "the sun sets behind the hills")


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


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A file that is what was indexed, open for reading."""

    handle: int
    size: int
    modified: int


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The catalogue at one time."""

    items: dict[str, Item]  # in the order of folders and titles
    folders: dict[str, Path]
    roots: dict[str, Path]
    quarantine: dict[str, str]  # file -> reason


class Shelf:
    def __init__(self, library: Path, more_roots: Sequence[Path] = ()) -> None:
        self._catalogue, self._more_roots = Catalogue(library), [Path(os.path.abspath(root)) for root in more_roots]  # noqa: PTH100
        self._lock = threading.Lock()
        self._contents: Contents | None = None
        self._version, self._read_at = -1, 0.0
        self._examples: list[str] = []
        self._examples_of: Contents | None = None

    def close(self) -> None:
        with self._lock:
            self._catalogue.close()

    # ------------------------------------------------------------ what is there

    def contents(self, *, now: bool = False) -> Contents:
        """`now`, or as it was a moment ago."""
        with self._lock:
            version, age = self._catalogue.version(), time.monotonic() - self._read_at
            if self._contents is None or (version != self._version and (now or age > _FRESH)):
                self._contents, self._version, self._read_at = self._read(), version, time.monotonic()
            return self._contents

    def find_all(self, video_ids: Iterable[str]) -> dict[str, Item]:
        """Those that are there."""
        wanted, items = set(video_ids), self.contents().items
        if not wanted <= items.keys():
            items = self.contents(now=True).items
        return {video_id: items[video_id] for video_id in wanted if video_id in items}

    def item(self, video_id: str) -> Item:
        found = self.find_all([video_id]).get(video_id)
        if found is None:
            raise ProblemError(
                404, f"the library holds no video {video_id!r}; GET /v1/videos lists what it holds", kind="no-video"
            )
        return found

    def listed(self, *, text: str | None, folder: str | None) -> list[Item]:
        """Those in a folder whose name holds a text."""
        contents = self.contents(now=True)
        _expect_folder(folder, contents)
        sought = (text or "").casefold()
        return [
            item
            for item in contents.items.values()
            if _is_in(item.folder, folder) and sought in f"{item.folder}/{item.file}".casefold()
        ]

    def tags(self, item: Item) -> list[str]:
        with self._lock:
            return self._catalogue.tags_of(item.id)

    def filter(self, videos: Sequence[str] | None, folder: str | None) -> Filter:
        """What a search is restricted to. A file counts as a folder that holds itself."""
        contents = self.contents()
        if videos is not None:
            items = [self.item(video_id) for video_id in dict.fromkeys(videos)]
            _expect_folder(folder, self.contents())
            paths = [item.files[0].path for item in items if _is_in(item.folder, folder)]
            return Filter(folders=tuple(paths) or (_NOWHERE,))
        if folder is None:
            return Filter()
        if folder not in contents.folders:
            contents = self.contents(now=True)
        _expect_folder(folder, contents)
        return Filter(folders=(contents.folders[folder],))

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

    def open(self, item: Item) -> Opened:
        """The first of the video's files that is still what was indexed, whatever its path leads to by now."""
        for file in item.files:
            try:
                handle = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                continue
            found = os.fstat(handle)
            if stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (file.size, file.modified):
                return Opened(handle=handle, size=found.st_size, modified=found.st_mtime_ns)
            os.close(handle)
        raise ProblemError(
            410,
            f"{item.file} is no longer what was indexed: it has changed or is gone; index its folder again",
            kind="file-changed",
        )

    def path(self, item: Item) -> Path:
        """Where the video can be read."""
        opened = self.open(item)
        os.close(opened.handle)
        return next(file.path for file in item.files if (file.size, file.modified) == (opened.size, opened.modified))

    def path_named(self, name: str) -> Path:
        """The path that a client wants to be indexed, if it lies in a root, links and all."""
        roots = self.contents(now=True).roots
        parts = PurePosixPath(name).parts
        root = next(
            (root for root in roots if parts[: len(PurePosixPath(root).parts)] == PurePosixPath(root).parts), None
        )
        if root is None or ".." in parts or "\\" in name:
            known = ", ".join(roots) or "none: start the server with --root"
            raise ProblemError(
                403, f"{name!r} is not in a folder that may be indexed, expected one of: {known}", kind="outside-roots"
            )
        path = roots[root].joinpath(*parts[len(PurePosixPath(root).parts) :])
        if not path.exists():
            raise ProblemError(404, f"there is no {name!r}; name a video or a folder that exists", kind="no-file")
        if not self.may_index(path):
            raise ProblemError(
                403, f"{name!r} is a link that leads out of its root; name what is in it", kind="outside-roots"
            )
        return path

    def may_index(self, path: Path) -> bool:
        """Whether what the path leads to lies in a root: links are followed first."""
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            return False
        roots = (root.resolve() for root in self.contents().roots.values())
        return any(root == real or root in real.parents for root in roots)

    def name(self, path: Path) -> str:
        return _name(path, self.contents().roots)

    def without_paths(self, text: str) -> str:
        """A message, with roots by their names."""
        return _without_paths(text, self.contents().roots)

    # ------------------------------------------------------------ how

    def _read(self) -> Contents:
        catalogue = self._catalogue
        roots = _named([*catalogue.places(), *self._more_roots])
        files_of: dict[str, list[File]] = {}
        quarantine = {}
        for file in catalogue.files().values():
            if file.video_id is None:
                quarantine[_name(file.path, roots)] = _without_paths(file.reason, roots)
            else:
                files_of.setdefault(file.video_id, []).append(file)
        items, folders = [], dict[str, Path]()
        for video in catalogue.videos():
            files = files_of.get(video.id)
            if files:
                path = files[0].path
                folder = _name(path.parent, roots)
                folders.setdefault(folder, path.parent)
                items.append(
                    Item(
                        id=video.id,
                        title=_readable(path.stem),
                        folder=folder,
                        file=_readable(path.name),
                        duration=video.duration,
                        date=video.date,
                        files=tuple(files),
                    )
                )
        items.sort(key=lambda item: (item.folder.casefold(), item.file.casefold(), item.id))
        return Contents(
            items={item.id: item for item in items},
            folders=dict(sorted((folders | roots).items())),
            roots=roots,
            quarantine=quarantine,
        )


_NOWHERE = Path("/dev/null/nowhere")


def _named(places: Iterable[Path]) -> dict[str, Path]:
    """The outermost folders by name: as much of the end of each path as tells it from the others.

    >>> list(_named([Path("/home/ann/Videos"), Path("/disk/Videos"), Path("/disk/Videos/new"), Path("/films")]))
    ['disk/Videos', 'films', 'ann/Videos']
    """
    folders = {place.parent if place.is_file() else place for place in places}
    outer = sorted(folder for folder in folders if not folders.intersection(folder.parents))
    names = {}
    for folder in outer:
        parts = [_readable(part).replace("/", "") or "root" for part in folder.parts]
        others = [[_readable(part) for part in other.parts] for other in outer if other != folder]
        length = next(
            (n for n in range(1, len(parts)) if all(other[-n:] != parts[-n:] for other in others)), len(parts)
        )
        names["/".join(parts[-length:])] = folder
    return names


def _name(path: Path, roots: dict[str, Path]) -> str:
    for name, root in roots.items():
        if path == root or root in path.parents:
            return _readable("/".join((name, *path.relative_to(root).parts)))
    return _readable(path.name)  # of a place that is no longer one


def _readable(text: str) -> str:
    """Names are bytes; what is no UTF-8, or would be obeyed by a terminal, is shown as such."""
    text = os.fsencode(text).decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _without_paths(text: str, roots: dict[str, Path]) -> str:
    for name, root in roots.items():
        text = text.replace(f"{root}/", f"{name}/")
    return _readable(text)


def _is_in(folder: str, wanted: str | None) -> bool:
    return wanted is None or folder == wanted or folder.startswith(f"{wanted}/")


def _expect_folder(folder: str | None, contents: Contents) -> None:
    if folder is not None and folder not in contents.folders:
        raise ProblemError(404, f"the library has no folder {folder!r}; GET /v1/library lists them", kind="no-folder")


def _sentences(root: Path, titles: set[str]) -> list[str]:
    try:
        queries = [query for split in own.read(root).values() for query in split.queries]
    except (MidreelError, OSError, ValueError):
        return []
    return [
        query.text for query in queries if Path(query.video_id).stem in titles and len(query.text) <= _LONGEST_EXAMPLE
    ]
