"""Compare the files in the folders of a library with its catalogue.

`take_snapshot` reads both. `plan` decides from sizes and dates which files a run has to read. After a file is hashed,
`Plan.state` says whether it is new, changed, moved or a copy.
"""

from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from midreel.errors import BadSetting
from midreel.features.shards import Shard
from midreel.library import scan
from midreel.library.records import File, Records
from midreel.library.scan import FoundFile, Scan
from midreel.library.storage import Storage


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
class Snapshot:
    """The files that a scan of some places found, and the files that the catalogue lists."""

    found: Scan
    known: dict[Path, File]
    places: list[Path]

    def is_new(self, file: FoundFile) -> bool:
        """Return whether a file is new, or its size or date has changed."""
        row = self.known.get(file.path)
        return row is None or not row.is_still(file)

    def unseen(self) -> list[Path]:
        """Return the known files of these places that the scan did not find."""
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

    def only(self, taken: Callable[[FoundFile], bool], *, lingering: Container[Path] = ()) -> "Snapshot":
        """Return this snapshot without some changes.

        Args:
            taken: Returns whether to keep the change of a new or changed file. Otherwise a changed file looks
                unchanged, and a new file looks absent.
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


def take_snapshot(
    catalogue: Records,
    library: Storage,
    named: Sequence[Path] = (),
    *,
    forget: bool = False,
    follow: Callable[[Path], bool] = lambda _: True,
) -> Snapshot:
    """Scan places, and read the files of the catalogue.

    Args:
        catalogue: The catalogue of the library.
        library: Where the library is stored. Its folder is not scanned.
        named: Files and folders. Default: every place indexed so far.
        forget: Count files of missing folders as gone.
        follow: Whether to follow a symbolic link.

    Raises:
        BadSetting: There is no place to scan, or a place is inside the library.
    """
    places = [scan.absolute(place) for place in named] or catalogue.places()
    expect_named(str(library), places)
    if library.folder is not None:
        scan.expect_apart(named, library.folder)
    known = catalogue.files()
    found = scan.scan(places, leave_out=library.folder, known=known, forget=forget, follow=follow)
    if named and not forget:
        for place in scan.missing(places):
            found.unread.setdefault(place, "it does not exist. Check the path, or mount its disk.")
    return Snapshot(found=found, known=known, places=places)


def only_shard(shard: Shard) -> Callable[[Snapshot], Snapshot]:
    """Return a function that removes the new and changed files of other shards from a snapshot."""
    return lambda found: found.only(lambda file: shard.has_file(file.path))


def expect_named(library: str, places: Sequence[Path]) -> None:
    """Raise BadSetting if there is no place to index."""
    if not places:
        raise BadSetting(
            f"no paths to index: nothing was indexed into {library} before. "
            f"Run: midreel index VIDEOS --library {library}"
        )


# ---------------------------------------------------------------- plan


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The files that a run has to read, to skip and to remove.

    Attributes:
        snapshot: The files now, and the catalogue.
        to_read: Files that are new or changed, or whose video is incomplete in the library.
        unchanged: Files to skip.
        quarantined: Files to skip, because an earlier run could not read them.
        gone: Files that no longer exist.
        moved_from: The unseen files of each video, those that no longer exist last. `state` removes from the end.
        known_videos: The videos that the catalogue has files of.
    """

    snapshot: Snapshot
    to_read: list[FoundFile]
    unchanged: list[File]
    quarantined: list[File]
    gone: set[Path]
    moved_from: dict[str, list[Path]]
    known_videos: set[str]

    def state(self, file: FoundFile, video_id: str, *, is_copy: bool) -> FileState:
        """Return the state of a file. Call this once per file, because it pairs a moved file with its old place.

        Args:
            file: The file.
            video_id: The video in the file.
            is_copy: Whether another file of this run has the same content.
        """
        row = self.snapshot.known.get(file.path)
        if row is not None and row.video_id == video_id:
            return FileState.REPAIRED if row.is_still(file) else FileState.TOUCHED
        if row is not None and row.video_id is not None:
            return FileState.CHANGED
        if self.moved_from.get(video_id):
            self.moved_from[video_id].pop()
            return FileState.MOVED
        return FileState.COPY if is_copy or video_id in self.known_videos else FileState.NEW

    def moved(self) -> set[Path]:
        """Return the old places of the files that `state` found to be moved."""
        unseen = {path for path in self.snapshot.unseen() if self.snapshot.known[path].video_id is not None}
        return unseen - self.missing()

    def missing(self) -> set[Path]:
        """Return the unseen files whose videos were not found in another place."""
        return {path for paths in self.moved_from.values() for path in paths}

    def unreachable(self) -> dict[Path, str]:
        """Return the places that could not be read, with the reason, unless all their files were moved elsewhere."""
        found, moved = self.snapshot.found, self.moved()
        left = {place for path in moved for place in found.hiding(path)}
        still = {place for path in set(self.snapshot.unseen()) - moved for place in found.hiding(path)}
        return {place: reason for place, reason in found.unread.items() if place not in left - still}


def plan(snapshot: Snapshot, complete: Collection[str], *, retry: bool = False) -> Plan:
    """Decide which files a run has to read, to skip and to remove.

    Args:
        snapshot: The files now, and the catalogue.
        complete: The videos that catalogue, index and feature store contain.
        retry: Read quarantined files again.
    """
    to_read, unchanged, quarantined = list[FoundFile](), list[File](), list[File]()
    for file in snapshot.found.files.values():
        row = snapshot.known.get(file.path)
        if row is None or not row.is_still(file) or (row.video_id is None and retry):
            to_read.append(file)
        elif row.video_id is None:
            quarantined.append(row)
        elif row.video_id in complete:
            unchanged.append(row)
        else:
            to_read.append(file)
    gone = set(snapshot.gone())
    moved_from: dict[str, list[Path]] = {}
    for path in sorted(snapshot.unseen(), key=gone.__contains__):
        if (video_id := snapshot.known[path].video_id) is not None:
            moved_from.setdefault(video_id, []).append(path)
    known_videos = {file.video_id for file in snapshot.known.values() if file.video_id is not None}
    return Plan(
        snapshot=snapshot,
        to_read=to_read,
        unchanged=unchanged,
        quarantined=quarantined,
        gone=gone,
        moved_from=moved_from,
        known_videos=known_videos,
    )
