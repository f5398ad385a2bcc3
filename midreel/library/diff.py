"""What is in the places of a library, beside what its catalogue knows."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from midreel.errors import BadSetting
from midreel.library import scan
from midreel.library.catalogue import Catalogue, File
from midreel.library.scan import FoundFile, Scan


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is in some places, and what the catalogue knows."""

    found: Scan
    known: dict[Path, File]
    places: list[Path]

    def is_new(self, file: FoundFile) -> bool:
        """Whether there is something to do about it, as far as a stat tells."""
        row = self.known.get(file.path)
        return row is None or not row.is_still(file)

    def unseen(self) -> list[Path]:
        """Files that were in the places, and were not seen there now."""
        return [
            path
            for path in self.known
            if path not in self.found.files and any(place in (path, *path.parents) for place in self.places)
        ]

    def gone(self) -> list[Path]:
        """Those of the unseen that are there no more."""
        return list(filter(self.found.says_gone, self.unseen()))

    def has_changes(self) -> bool:
        return any(map(self.is_new, self.found.files.values())) or bool(self.gone())

    def only(self, taken: Callable[[FoundFile], bool], *, lingering: Container[Path] = ()) -> "Look":
        """As if those of the new and changed files that are not `taken` were as they were when they were last taken,
        and those `lingering` that are gone were still there."""
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
    """What is in the named places now, or in all that the library was ever given, and what was."""
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
    if not places:
        raise BadSetting(f"{library} holds nothing yet, and nothing was named; run: midreel index VIDEOS")
