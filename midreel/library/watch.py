"""Again whenever something has changed, for as long as nobody says stop."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event

from midreel.errors import BadIndex, BadStore, LibraryBusy, Unwritable
from midreel.features.backbones.base import Backbone
from midreel.library import indexer
from midreel.library.catalogue import Catalogue
from midreel.library.diff import Look, look
from midreel.library.report import IndexReport, Progress
from midreel.library.scan import FoundFile, absolute
from midreel.library.session import Writer

_SHARE = 10  # looking takes at most one part in so many of the time


def watch(
    folder: Path,
    places: Sequence[Path],
    *,
    every: float = 5.0,
    tags: Sequence[str] = (),
    forget: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    stop: Event | None = None,
    told: Callable[[IndexReport], None] | None = None,
    warned: Callable[[Exception], None] | None = None,
    progress: Progress | None = None,
) -> None:
    """Looks at the places every so many seconds, and indexes what is new, changed or gone.

    A file is taken when it is the same at two looks, for one that is being copied is not whole yet; and gone when it is
    missed at two, for one that was renamed is to be found under its new name first. What fails is not tried again until
    it changes. The library is held for others only while there is something to write. When it cannot be written, which
    is told once, it is tried again: somebody may make room.
    """
    stop, named = stop or Event(), [absolute(place) for place in places]
    before: dict[Path, FoundFile] = {}
    given_up: dict[Path, FoundFile] = {}
    backbone: Backbone | None = None
    is_stuck = False

    def is_settled(file: FoundFile) -> bool:
        return before.get(file.path) == file and given_up.get(file.path) != file

    def settled(found: Look) -> Look:
        return found.only(is_settled, lingering=before)

    while not stop.is_set():
        start = time.monotonic()
        with closing(Catalogue(folder)) as catalogue:
            now = look(catalogue, folder, named, forget=forget)
        taken = time.monotonic() - start
        if settled(now).has_changes():
            try:
                with Writer.open(folder, device=device, backbone=backbone) as writer:
                    report = indexer.index(
                        writer, named, tags=tags, forget=forget, workers=workers, settle=settled, progress=progress
                    )
                    backbone = vars(writer).get("backbone", backbone)
            except LibraryBusy:
                pass  # whoever writes may be doing the same
            except (Unwritable, BadStore, BadIndex, OSError) as error:
                if warned is not None and not is_stuck:
                    warned(error)
                is_stuck = True
            else:
                is_stuck = False
                given_up |= {path: now.found.files[path] for path in report.failed if path in now.found.files}
                if told is not None:
                    told(report)
        before = now.found.files
        stop.wait(max(every, _SHARE * taken))
