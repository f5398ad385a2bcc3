"""Compare the files in the folders of a library with the rows of its catalogue.

`look` reads both. `plan` decides, from sizes and dates alone, which files a run has to read. Whether a file is new,
changed, moved or a copy is known only when its content is hashed: `Plan.state` says which.
"""

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from midreel.errors import BadSetting
from midreel.library import scan
from midreel.library.catalogue import Catalogue, File
from midreel.library.scan import FoundFile, Scan


class FileState(StrEnum):
    """What a run did with a file. The values are the names of the lists in `IndexReport`."""

    NEW = "new"
    CHANGED = "changed"  # it contains another video than before
    MOVED = "moved"  # its video was in another place, where it is no longer
    COPY = "copies"  # its video is also in another place
    TOUCHED = "touched"  # only its date has changed
    REPAIRED = "repaired"  # the library had lost a part of its video
    QUARANTINED = "quarantined"  # unreadable until it changes
    FAILED = "failed"  # unreadable now: the next run tries again


@dataclass(frozen=True, kw_only=True)
class Look:
    """The files that are in some places now, and the files that the catalogue knows."""

    found: Scan
    known: dict[Path, File]
    places: list[Path]

    def is_new(self, file: FoundFile) -> bool:
        """Return whether a file is new or changed, according to its size and date."""
        row = self.known.get(file.path)
        return row is None or not row.is_still(file)

    def unseen(self) -> list[Path]:
        """Return the known files of these places that were not seen now."""
        return [
            path
            for path in self.known
            if path not in self.found.files and any(place in (path, *path.parents) for place in self.places)
        ]

    def gone(self) -> list[Path]:
        """Return the unseen files that no longer exist. Others may be in a folder that cannot be read now."""
        return list(filter(self.found.says_gone, self.unseen()))

    def has_changes(self) -> bool:
        """Return whether a file is new, changed or gone."""
        return any(map(self.is_new, self.found.files.values())) or bool(self.gone())

    def only(self, taken: Callable[[FoundFile], bool], *, lingering: Container[Path] = ()) -> "Look":
        """Return this look without some changes.

        Args:
            taken: Says of a new or changed file whether its change counts. Otherwise the file looks unchanged or, if
                it is new, absent.
            lingering: Files that look unchanged even if they are gone.
        """
        rows = (self.known[path] for path in self.gone() if path in lingering)
        files = {row.path: FoundFile(path=row.path, size=row.size, modified=row.modified) for row in rows}
        for path, file in self.found.files.items():
            if not self.is_new(file) or taken(file):
                files[path] = file
            elif (row := self.known.get(path)) is not None:
                files[path] = FoundFile(path=path, size=row.size, modified=row.modified)
        return replace(self, found=replace(self.found, files=files))


def look(
    catalogue: Catalogue,
    library: Path,
    named: Sequence[Path] = (),
    *,
    forget: bool = False,
    follow: Callable[[Path], bool] = lambda _: True,
) -> Look:
    """Return what is in the named places now. Without names: in every place that was ever indexed.

    Raises:
        BadSetting: No place was named and the library has none, or a place is inside the library.
    """
    places = [scan.absolute(place) for place in named] or catalogue.places()
    expect_named(library, places)
    scan.expect_apart(named, library)
    known = catalogue.files()
    found = scan.scan(places, leave_out=library, known=known, forget=forget, follow=follow)
    if named and not forget:
        for place in scan.missing(places):
            found.unread.setdefault(place, "it does not exist; check the path, or mount its disk")
    return Look(found=found, known=known, places=places)


def expect_named(library: Path, places: Sequence[Path]) -> None:
    """Raise BadSetting if there is no place to index."""
    if not places:
        raise BadSetting(f"{library} is empty, expected files or folders to index. Run: midreel index VIDEOS")


# ---------------------------------------------------------------- plan


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run has to do about each file."""

    look: Look
    to_read: list[FoundFile]  # new, changed, or of a video that the library has only in part
    unchanged: list[File]
    quarantined: list[File]  # unreadable in an earlier run, and unchanged since
    gone: set[Path]  # no longer exist
    moved_from: dict[str, list[Path]]  # by video, the unseen files; `pop` takes those first that no longer exist
    known_videos: set[str]

    def state(self, file: FoundFile, video_id: str, *, is_copy: bool) -> FileState:
        """Return the state of a file whose content is this video. A video found in another place is moved only once.

        `is_copy` tells that another file of this run has the same content.
        """
        row = self.look.known.get(file.path)
        if row is not None and row.video_id == video_id:
            return FileState.REPAIRED if row.is_still(file) else FileState.TOUCHED
        if row is not None and row.video_id is not None:
            return FileState.CHANGED
        if self.moved_from.get(video_id):
            self.moved_from[video_id].pop()
            return FileState.MOVED
        return FileState.COPY if is_copy or video_id in self.known_videos else FileState.NEW

    def moved(self) -> set[Path]:
        """Return the places that videos were moved from, as far as `state` was asked."""
        unseen = {path for path in self.look.unseen() if self.look.known[path].video_id is not None}
        return unseen - self.missing()

    def missing(self) -> set[Path]:
        """Return the unseen files whose videos were not found in another place."""
        return {path for paths in self.moved_from.values() for path in paths}

    def unreachable(self) -> dict[Path, str]:
        """Return the places that could not be read, with the reason; not those that all known files have left."""
        found, moved = self.look.found, self.moved()
        left = {place for path in moved for place in found.hiding(path)}
        still = {place for path in set(self.look.unseen()) - moved for place in found.hiding(path)}
        return {place: reason for place, reason in found.unread.items() if place not in left - still}


def plan(look: Look, complete: Collection[str], *, retry: bool = False) -> Plan:
    """Return what to do.

    Args:
        look: The files now, and the catalogue.
        complete: The videos that catalogue, index and feature store have.
        retry: Read quarantined files again.
    """
    to_read, unchanged, quarantined = list[FoundFile](), list[File](), list[File]()
    for file in look.found.files.values():
        row = look.known.get(file.path)
        if row is None or not row.is_still(file) or (row.video_id is None and retry):
            to_read.append(file)
        elif row.video_id is None:
            quarantined.append(row)
        elif row.video_id in complete:
            unchanged.append(row)
        else:
            to_read.append(file)
    gone = set(look.gone())
    moved_from: dict[str, list[Path]] = {}
    for path in sorted(look.unseen(), key=gone.__contains__):
        if (video_id := look.known[path].video_id) is not None:
            moved_from.setdefault(video_id, []).append(path)
    known_videos = {file.video_id for file in look.known.values() if file.video_id is not None}
    return Plan(
        look=look,
        to_read=to_read,
        unchanged=unchanged,
        quarantined=quarantined,
        gone=gone,
        moved_from=moved_from,
        known_videos=known_videos,
    )
