"""Replace whole folders atomically, and lock them for one writer.

`replacing` writes a new folder beside the target: `.NAME.new`. A folder cannot be renamed onto another. So the
target is first renamed to `.NAME.old`, then the new folder to the target. Then the old one is deleted.
A crash leaves one of these states:

    NAME  .NAME.new             while the new folder is written: the old content counts
    .NAME.old  .NAME.new        between the two renames: the old content counts
    NAME  .NAME.old             after both renames: the new content counts

`recover` restores the folder NAME in each case. `readable_folder` finds the folder to read, and changes nothing.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from midreel.errors import BadRun, Unwritable
from midreel.io.files import hold, sync


@contextmanager
def locked(folder: Path, *, create: bool) -> Iterator[None]:
    """Lock the folder of a run during a block.

    Args:
        folder: The folder of the run.
        create: Whether to create the folder if it is missing.

    Raises:
        BadRun: The folder is missing.
        Locked: Another process has locked it.
        Unwritable: The folder cannot be created.
    """
    if create:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unwritable(f"{folder} cannot be created ({error}). Choose another folder.") from error
    elif not folder.is_dir():
        raise BadRun(f"{folder} does not exist, expected a run to resume. Start one without --resume.")
    with hold(folder):
        yield


def expect_new(folder: Path) -> None:
    """Raise Unwritable unless a folder is missing or empty, so that nothing is overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Unwritable(f"{folder} already exists, expected a new or an empty folder. Choose another.")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a new folder to fill. When the block has succeeded, it replaces `target`.

    If the block raises, `target` is unchanged.
    """
    new, old = _beside(target, "new"), _beside(target, "old")
    recover(target)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    # Sync everything before the renames, so that they never refer to content that a crash would lose.
    for path in new.rglob("*"):
        sync(path)
    sync(new)
    if target.exists():
        target.rename(old)
    new.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(target: Path) -> None:
    """Clean up after an interrupted `replacing`. Call this only from the writer."""
    old = _beside(target, "old")
    if old.exists() and not target.exists():
        old.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(_beside(target, "new"), ignore_errors=True)


def readable_folder(target: Path) -> Path:
    """Return the folder to read for `target`: itself, or its old content while it is being replaced.

    This changes nothing, because a writer may be at work.
    """
    old = _beside(target, "old")
    return old if old.exists() and not target.exists() else target


def _beside(target: Path, word: str) -> Path:
    return target.with_name(f".{target.name}.{word}")
