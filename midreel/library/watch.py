"""Watch folders, and index their changes until stopped."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from threading import Event

from midreel.errors import BadIndex, BadStore, Locked, Unreachable, Unwritable
from midreel.features.backbones.base import Backbone
from midreel.library import indexer
from midreel.library.diff import Snapshot, take_snapshot
from midreel.library.place import Place
from midreel.library.report import IndexReport, Progress
from midreel.library.scan import FoundFile, absolute
from midreel.library.storage import at
from midreel.library.writer import Writer

_REST = 10  # wait at least this many times as long as a scan took, so that scans take at most a tenth of the time


def watch(
    library: Place,
    places: Sequence[Path],
    *,
    every: float = 5.0,
    tags: Sequence[str] = (),
    forget: bool = False,
    workers: int | None = None,
    min_change: float = 0.0,
    device: str = "cpu",
    stop: Event | None = None,
    on_report: Callable[[IndexReport], None] | None = None,
    on_error: Callable[[Exception], None] | None = None,
    progress: Progress | None = None,
) -> None:
    """Scan places at an interval, and index new, changed and removed files. Return when `stop` is set.

    The library is locked only while changes are written. If another process writes it, the next scan tries again.

    - A new or changed file is indexed when two scans see it unchanged: until then it may still be copied.
    - A file that disappears is removed when a second scan misses it too: after a rename, the new name is found first.
    - A file that failed is not tried again until it changes.

    Args:
        library: The folder of the library, or the URL of its database.
        places: Videos and folders. Default: every place indexed so far.
        every: Seconds between two scans, at least.
        tags: Tags for the videos in these places.
        forget: Remove videos whose whole folder is missing.
        workers: The number of decoding threads.
        min_change: The least change between frames that are encoded, from 0 to 1.
        device: The torch device for backbone and model.
        stop: Ends the watch when it is set.
        on_report: Is called with the report after each change.
        on_error: Is called with the error when the library cannot be written, once until it can be written again.
        progress: Is called after each file.

    Raises:
        MissingLibrary: There is no library in the folder.
        BadSetting: There is no place to scan.
    """
    stop, named = stop or Event(), [absolute(place) for place in places]
    before: dict[Path, FoundFile] = {}  # the files of the previous scan
    failed: dict[Path, FoundFile] = {}
    backbone: Backbone | None = None  # loaded once, and kept for later writers
    is_stuck = False

    def is_settled(file: FoundFile) -> bool:
        return before.get(file.path) == file and failed.get(file.path) != file

    def settled(found: Snapshot) -> Snapshot:
        return found.only(is_settled, lingering=before)

    while not stop.is_set():
        start = time.monotonic()
        with closing(at(library)) as storage, closing(storage.open_catalogue()) as catalogue:
            now = take_snapshot(catalogue, storage, named, forget=forget)
        seconds = time.monotonic() - start
        if settled(now).has_changes():
            try:
                with Writer.open(library, device=device, backbone=backbone) as writer:
                    report = indexer.index(
                        writer,
                        named,
                        tags=tags,
                        forget=forget,
                        workers=workers,
                        min_change=min_change,
                        settle=settled,
                        progress=progress,
                    )
                    backbone = vars(writer).get("backbone", backbone)
            except Locked:
                pass  # the next scan sees what is still to do
            except (Unwritable, Unreachable, BadStore, BadIndex, OSError) as error:
                if on_error is not None and not is_stuck:
                    on_error(error)
                is_stuck = True
            else:
                is_stuck = False
                failed |= {path: now.found.files[path] for path in report.failed if path in now.found.files}
                if on_report is not None:
                    on_report(report)
        before = now.found.files
        stop.wait(max(every, _REST * seconds))
