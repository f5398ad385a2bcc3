"""Interrupt a process that writes a library, again and again, and check each time that the library kept its promises.

    python -m tools.crash_library --times 200

Files come, go, move and change. A child process indexes them, reindexes them with the same or another model, or removes
a video, and is interrupted in one of these ways:

    kill       SIGKILL after a random time
    deletion   SIGKILL at a random rename, deletion of a file or deletion of a folder, such as inside `rmtree`
    stop       SIGSTOP after a random time; the library is checked while the process is stopped, then it is killed
    full       the disk is full, or nearly (only where a tmpfs can be mounted)

After each, every committed video is found, no video is half there, and the process gave no error that is not one of
midreel's own. Every few interruptions, an undisturbed run must make of the library what a clean build makes, and leave
no temporary file. Children are forked from a process that has loaded everything, so that they are interrupted at work
rather than while they import.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from midreel.errors import MidreelError
from midreel.library.layout import Layout
from midreel.library.reindex import reindex
from midreel.library.report import Step
from midreel.library.searcher import Searcher
from midreel.library.session import Writer
from tests.library.small import COLOURS, Eye, film, index
from tools.forking import fork

MODELS = ("zero-shot", "zero-shot-clips")
QUERIES = tuple(COLOURS)
NUM_FILMS = 10
INTERRUPTIONS_PER_BUILD = 5
DISK = 64 * 2**20  # bytes of the tmpfs
MOST_FREE = 3 * 2**20  # bytes that a disk that counts as full has left
DELETIONS = frozenset(("os.remove", "os.rmdir", "os.rename"))  # Python's audit events
MOST_DELETIONS = 24  # a reindex has about so many
LONGEST = 60.0  # seconds that a process may take
REFUSED = 3  # exit code of a child that raised one of midreel's errors

Work = Callable[[Callable[[Step], None]], None]


class BrokenPromise(AssertionError):
    """The library lost a video, holds half of one, differs from a clean build, or raised an unnamed error."""


@dataclass(kw_only=True)
class Tale:
    """What was done to the library."""

    interruptions: Counter[str] = field(default_factory=Counter)  # by kind
    num_finished: int = 0  # before they could be interrupted
    num_refused: int = 0  # with one of midreel's errors, on a full disk
    num_checks: int = 0
    committed: set[Path] = field(default_factory=set)  # by the last process

    @property
    def total(self) -> int:
        return self.interruptions.total()


def torment(*, times: int, seed: int = 0, say: Callable[[str], None] = lambda _: None) -> Tale:
    """Interrupts so many processes, beside those that finish before. Raises BrokenPromise if the library broke one."""
    chance, tale = random.Random(seed), Tale()
    with tempfile.TemporaryDirectory(prefix="midreel-crash-") as name, _small_disk(Path(name) / "disk") as disk:
        videos, library = Path(name) / "videos", Path(name) / "disk/library"
        for number in range(NUM_FILMS):
            _shoot(chance, videos / f"{number}.mp4")
        for broken in ("broken.mp4", "broken too.mp4"):
            (videos / broken).write_bytes(b"no video")
        kinds = ["kill", "kill", "deletion", "stop", *(["full"] if disk else [])]
        needed, attempt, built = 1.0, 0, 0
        while tale.total < times:
            attempt += 1
            _stir(chance, videos, attempt)
            kind, work = chance.choice(kinds), _draw_work(chance, library, videos)
            if kind == "full":
                _run_on_a_full_disk(work, library, max(0, chance.uniform(-MOST_FREE, MOST_FREE)), tale)
            elif kind == "deletion":
                _interrupt(work, kind, library, tale, deletions=chance.randrange(MOST_DELETIONS))
            else:
                lived, was_interrupted = _interrupt(work, kind, library, tale, seconds=chance.uniform(0, needed))
                # One that was killed would have needed longer, one that finished did not need more.
                needed = max(needed, 1.2 * lived) if was_interrupted else max(0.5 * (needed + lived), 0.05)
            _expect_kept(library, tale)
            if tale.total >= min(built + INTERRUPTIONS_PER_BUILD, times):
                built = tale.total
                _expect_equal(library, videos, Path(name) / f"clean-{attempt}")
                say(f"{built} of {times} interrupted, {tale.num_finished} finished before: no promise broken")
    return tale


# ---------------------------------------------------------------- what is done


def _shoot(chance: random.Random, path: Path) -> None:
    film(path, *(chance.choice(QUERIES) for _ in range(chance.randint(1, 4))))


def _stir(chance: random.Random, videos: Path, number: int) -> None:
    """Some files come, go, move and change."""
    for _ in range(chance.randint(1, 4)):
        there = sorted(path for path in videos.rglob("*.mp4") if not path.name.startswith("broken"))
        deed, path = chance.choice(("come", "go", "move", "change", "copy")), chance.choice(there)
        new = videos / chance.choice(("", "sub")) / f"{number}-{chance.randrange(10**6)}.mp4"
        new.parent.mkdir(exist_ok=True)
        if deed == "come" or len(there) < NUM_FILMS // 2:
            _shoot(chance, new)
        elif deed == "go":
            path.unlink()
        elif deed == "move":
            path.rename(new)
        elif deed == "change":
            _shoot(chance, path)
        else:
            new.write_bytes(path.read_bytes())
    for folder in (path for path in videos.iterdir() if path.is_dir() and not any(path.iterdir())):
        folder.rmdir()  # else it is taken for a disk that is not mounted


def _draw_work(chance: random.Random, library: Path, videos: Path) -> Work:
    kind = chance.random() if Layout(library).exists() else 1.0
    if kind < 0.15:
        return _remove(library, chance.random())
    if kind < 0.4:
        return _reindex(library, chance.choice((None, *MODELS)))
    return _index(library, videos, retry=chance.random() < 0.25, forget=chance.random() < 0.25)


def _index(library: Path, videos: Path, *, retry: bool, forget: bool) -> Work:
    def work(progress: Callable[[Step], None]) -> None:
        index(library, videos, progress=progress, retry=retry, forget=forget)

    return work


def _reindex(library: Path, model: str | None) -> Work:
    def work(progress: Callable[[Step], None]) -> None:
        with Writer.open(library, backbone=Eye()) as writer:
            reindex(writer, model)

    return work


def _remove(library: Path, which: float) -> Work:
    def work(progress: Callable[[Step], None]) -> None:
        with Writer.open(library, backbone=Eye()) as writer:
            ids = sorted(writer.catalogue.video_ids())
            if ids:
                writer.remove(ids[int(which * len(ids))])

    return work


# ---------------------------------------------------------------- how it is interrupted


def _interrupt(
    work: Work, kind: str, library: Path, tale: Tale, *, seconds: float = LONGEST, deletions: int | None = None
) -> tuple[float, bool]:
    """Lets a process work until it is interrupted. Returns how long it lived, and whether it had to be interrupted."""
    start = time.monotonic()
    with _child(work, deletions=deletions) as child:
        while time.monotonic() - start < seconds and os.waitid(os.P_PID, child.process, _ENDED) is None:
            time.sleep(0.002)
        lived = time.monotonic() - start
        if kind == "stop" and child.stop():
            tale.committed = child.committed()
            _expect_kept(library, tale)
        status = child.kill()
        tale.committed = child.committed()
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise BrokenPromise(f"a process ended by itself with {os.WEXITSTATUS(status)}; its output is above")
    was_interrupted = os.WIFSIGNALED(status)
    tale.interruptions[kind] += was_interrupted
    tale.num_finished += not was_interrupted
    return lived, was_interrupted


def _run_on_a_full_disk(work: Work, library: Path, free: float, tale: Tale) -> None:
    """Lets a process work where little room is left. It may finish, or refuse with one of midreel's errors."""
    ballast = library.parent / "ballast"
    room = shutil.disk_usage(library.parent).free
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, room - int(free)))
    try:
        with _child(work) as child:
            start = time.monotonic()
            while time.monotonic() - start < LONGEST and os.waitid(os.P_PID, child.process, _ENDED) is None:
                time.sleep(0.01)
            status = child.kill()
            tale.committed = child.committed()
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) not in (0, REFUSED):
            raise BrokenPromise(f"on a full disk a process ended with status {status}; its output is above")
        tale.interruptions["full"] += 1
        tale.num_refused += os.WEXITSTATUS(status) == REFUSED
        _expect_kept(library, tale)
    finally:
        ballast.unlink()


_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


@dataclass(kw_only=True)
class _Child:
    """A process that works, and says which videos it has committed."""

    process: int
    reading: int
    said: bytes = b""

    def committed(self) -> set[Path]:
        with suppress(BlockingIOError):
            while piece := os.read(self.reading, 2**16):
                self.said += piece
        return {Path(os.fsdecode(line)) for line in self.said.split(b"\0")[:-1]}

    def stop(self) -> bool:
        """Whether it was still there to be stopped."""
        os.kill(self.process, signal.SIGSTOP)
        ended = os.waitid(os.P_PID, self.process, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        return ended is not None and ended.si_code == os.CLD_STOPPED

    def kill(self) -> int:
        """How it has ended, as `os.waitpid` tells."""
        os.kill(self.process, signal.SIGKILL)
        return os.waitpid(self.process, 0)[1]


@contextmanager
def _child(work: Work, *, deletions: int | None = None) -> Iterator[_Child]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    process = fork()
    if process == 0:
        _work_and_end(work, writing, deletions)
    os.close(writing)
    try:
        yield _Child(process=process, reading=reading)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _work_and_end(work: Work, writing: int, deletions: int | None) -> None:
    def tell(step: Step) -> None:
        if step.state not in ("quarantined", "failed"):
            os.write(writing, os.fsencode(step.path) + b"\0")

    try:
        torch.set_num_threads(1)
        if deletions is not None:
            _die_at(deletions)
        work(tell)
        os._exit(0)
    except BaseException as error:
        if not isinstance(error, MidreelError):
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(REFUSED if isinstance(error, MidreelError) else 1)


def _die_at(number: int) -> None:
    """Kills this process when it is about to rename or delete for the n-th time."""
    left = number

    def hook(event: str, _: object) -> None:
        nonlocal left
        if event in DELETIONS:
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    sys.addaudithook(hook)


@contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    """A folder that is a disk of its own. Yields False where none can be mounted; then it is a plain folder."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "midreel-crash", str(folder)]
    mounted = (
        sys.platform == "linux" and os.geteuid() == 0 and not subprocess.run(command, capture_output=True).returncode
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


# ---------------------------------------------------------------- what was promised


def _expect_kept(library: Path, tale: Tale) -> None:
    """All that was committed is found, with all that belongs to it."""
    if not Layout(library).exists():
        if tale.committed:
            raise BrokenPromise(f"{len(tale.committed)} videos were committed, and there is no library")
        return
    tale.num_checks += 1
    with Searcher.open(library, backbone=Eye()) as searcher:
        catalogue = searcher._catalogue
        listed = {path: file.video_id for path, file in catalogue.files().items() if file.video_id is not None}
        lost = sorted(tale.committed - set(listed))
        if lost:
            raise BrokenPromise(f"committed and lost: {lost}")
        hits = searcher.search(QUERIES[0], top=10**6, exact=True)
        if {hit.video_id for hit in hits} != set(listed.values()):
            raise BrokenPromise(f"{len(hits)} videos are found, {len(set(listed.values()))} are listed")
        for hit in hits:
            if not hit.moments or not hit.curve.values:
                raise BrokenPromise(f"half of {hit.path} is there")


def _expect_equal(library: Path, videos: Path, clean: Path) -> None:
    """An undisturbed run makes of the library what a clean build is, and leaves no temporary file."""
    index(library, videos)
    index(clean, videos)
    with Writer.open(clean, backbone=Eye()) as writer:
        reindex(writer, Layout(library).serving().card.model)
    found, expected = _all(library), _all(clean)
    if found != expected:
        raise BrokenPromise(f"not as a clean build: {sorted(set(found) ^ set(expected))[:6]}")
    files, serving = _names(library), Layout(library).serving().name
    if left := sorted(files - {name.replace("generations/2", f"generations/{serving}", 1) for name in _names(clean)}):
        raise BrokenPromise(f"left behind: {left}")
    shutil.rmtree(clean)


def _all(library: Path) -> list[tuple[str, str, str]]:
    with Searcher.open(library, backbone=Eye()) as searcher:
        return sorted(
            (query, f"{hit.score:.6f}", str(path))
            for query in QUERIES
            for hit in searcher.search(query, top=10**6, exact=True)
            for path in hit.paths
        )


def _names(library: Path) -> set[str]:
    """All files and folders, but those that SQLite makes and removes, and the number of an index's volume."""
    names = {str(path.relative_to(library)) for path in library.rglob("*") if not path.name.endswith(("-wal", "-shm"))}
    return {name.rpartition(".")[2] if "/index/0" in name else name for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="how many processes to interrupt")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tale = torment(times=given.times, seed=given.seed, say=lambda line: print(line, flush=True))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(tale.interruptions.items()))
    print(
        f"{tale.total} interrupted ({kinds}; {tale.num_refused} refused), {tale.num_finished} finished before, "
        f"{tale.num_checks} checks: no promise broken"
    )


if __name__ == "__main__":
    main()
