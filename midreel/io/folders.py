"""Folders that are whole or absent, whatever happens while they are written, and that have one writer."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from midreel.errors import BadRun, Unwritable
from midreel.io.files import lock, sync


@contextmanager
def held(folder: Path, *, create: bool) -> Iterator[None]:
    """Keeps other processes out of the folder until the block ends, however it ends."""
    if create:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unwritable(f"{folder} cannot be made a folder ({error}); choose another place") from error
    elif not folder.is_dir():
        raise BadRun(f"{folder} holds no run to resume, expected its folder; leave out --resume to begin one")
    try:
        handle = lock(folder)
    except BlockingIOError as error:
        raise BadRun(f"{folder} is in use by another process; wait for it, or choose another folder") from error
    try:
        yield
    finally:
        os.close(handle)


def expect_new(folder: Path) -> None:
    """Raises unless something can be put there without losing anything."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Unwritable(f"{folder} is there already, expected a new or an empty folder; choose another")


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Gives a new folder to fill; when the block ends well, it takes the place of `target`.

    A folder cannot be renamed onto another, so for an instant the old one stands aside; `recover` knows.
    """
    new, old = _aside(target, "new"), _aside(target, "old")
    recover(target)
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    for path in new.rglob("*"):
        sync(path)
    sync(new)
    if target.exists():
        target.rename(old)
    new.rename(target)
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(target: Path) -> None:
    """Puts right what an interrupted `replacing` left: the old folder comes back if the new one never arrived."""
    old = _aside(target, "old")
    if old.exists() and not target.exists():
        old.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(_aside(target, "new"), ignore_errors=True)


def in_sight(target: Path) -> Path:
    """Where a folder is to be read: in its place or, while a new one is about to take that, aside. Nothing is put right
    here, for whoever is writing it may be at work.
    """
    old = _aside(target, "old")
    return old if old.exists() and not target.exists() else target


def _aside(target: Path, word: str) -> Path:
    return target.with_name(f".{target.name}.{word}")
