"""Interrupt a process that writes a library, again and again, and check the library each time.

    python -m tools.crash_library --times 200

Files are added, removed, moved and changed. A child process indexes them, reindexes them with the same or another
model, or removes a video. It is interrupted in one of these ways:

    kill       SIGKILL after a random time
    deletion   SIGKILL at a random rename, deletion of a file or deletion of a folder, such as inside `rmtree`
    stop       SIGSTOP after a random time; the library is checked while the process is stopped, then it is killed
    full       the disk is full, or nearly (only where a tmpfs can be mounted)

After each interruption, a search must find every committed video, no video may be incomplete, and the process may only
have raised midreel's own errors. After every few interruptions, an undisturbed run must lead to the same library as a
clean build, without temporary files. Children are forked from a process that has imported everything, so that they are
interrupted while they write and not while they import.
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
from midreel.library.writer import Writer
from tests.library.small import COLOURS, Eye, film, index
from tools.forking import fork

MODELS = ("zero-shot", "zero-shot-clips")
QUERIES = tuple(COLOURS)
NUM_FILMS = 10
INTERRUPTIONS_PER_BUILD = 5
DISK = 64 * 2**20  # bytes of the tmpfs
MAX_FREE = 3 * 2**20  # bytes left on a disk that counts as full
DELETIONS = frozenset(("os.remove", "os.rmdir", "os.rename"))  # Python's audit events
MAX_DELETIONS = 24  # about as many as a reindex makes
MAX_SECONDS = 60.0  # of a process
REFUSED = 3  # exit code of a child that raised one of midreel's errors

Work = Callable[[Callable[[Step], None]], None]


class BrokenPromise(AssertionError):
    """The library lost a video, has an incomplete one, differs from a clean build, or raised an unexpected error."""


@dataclass(kw_only=True)
class Record:
    """Counts of interruptions, and the videos that must be in the library."""

    interruptions: Counter[str] = field(default_factory=Counter)  # by kind
    num_finished: int = 0  # processes that ended before the interruption
    num_refused: int = 0  # processes that raised one of midreel's errors on a full disk
    num_checks: int = 0
    committed: set[Path] = field(default_factory=set)  # by the last process

    @property
    def total(self) -> int:
        """The number of interruptions."""
        return self.interruptions.total()


def crash(*, times: int, seed: int = 0, say: Callable[[str], None] = lambda _: None) -> Record:
    """Interrupt writers of a library, and check the library after each.

    Args:
        times: The number of interruptions. Processes that finish earlier do not count.
        seed: The seed of the files, the work and the interruptions.
        say: A callback for lines of progress.

    Raises:
        BrokenPromise: If a check fails.
    """
    chance, record = random.Random(seed), Record()
    with tempfile.TemporaryDirectory(prefix="midreel-crash-") as name, _small_disk(Path(name) / "disk") as disk:
        videos, library = Path(name) / "videos", Path(name) / "disk/library"
        for number in range(NUM_FILMS):
            _write_film(chance, videos / f"{number}.mp4")
        for broken in ("broken.mp4", "broken too.mp4"):
            (videos / broken).write_bytes(b"no video")
        kinds = ["kill", "kill", "deletion", "stop", *(["full"] if disk else [])]
        needed, attempt, built = 1.0, 0, 0
        while record.total < times:
            attempt += 1
            _change_files(chance, videos, attempt)
            kind, work = chance.choice(kinds), _draw_work(chance, library, videos)
            if kind == "full":
                _run_on_a_full_disk(work, library, max(0, chance.uniform(-MAX_FREE, MAX_FREE)), record)
            elif kind == "deletion":
                _interrupt(work, kind, library, record, deletions=chance.randrange(MAX_DELETIONS))
            else:
                lived, was_interrupted = _interrupt(work, kind, library, record, seconds=chance.uniform(0, needed))
                # Adapt the estimate: a killed process needed more time than it lived, a finished one did not.
                needed = max(needed, 1.2 * lived) if was_interrupted else max(0.5 * (needed + lived), 0.05)
            _expect_kept(library, record)
            if record.total >= min(built + INTERRUPTIONS_PER_BUILD, times):
                built = record.total
                _expect_equal(library, videos, Path(name) / f"clean-{attempt}")
                say(f"{built} of {times} interrupted, {record.num_finished} finished earlier: no promise broken")
    return record


# ---------------------------------------------------------------- work


def _write_film(chance: random.Random, path: Path) -> None:
    film(path, *(chance.choice(QUERIES) for _ in range(chance.randint(1, 4))))


def _change_files(chance: random.Random, videos: Path, number: int) -> None:
    """Add, remove, move, change or copy a few files."""
    for _ in range(chance.randint(1, 4)):
        there = sorted(path for path in videos.rglob("*.mp4") if not path.name.startswith("broken"))
        action, path = chance.choice(("add", "remove", "move", "change", "copy")), chance.choice(there)
        new = videos / chance.choice(("", "sub")) / f"{number}-{chance.randrange(10**6)}.mp4"
        new.parent.mkdir(exist_ok=True)
        if action == "add" or len(there) < NUM_FILMS // 2:
            _write_film(chance, new)
        elif action == "remove":
            path.unlink()
        elif action == "move":
            path.rename(new)
        elif action == "change":
            _write_film(chance, path)
        else:
            new.write_bytes(path.read_bytes())
    for folder in (path for path in videos.iterdir() if path.is_dir() and not any(path.iterdir())):
        folder.rmdir()  # an empty folder looks like a disk that is not mounted


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


# ---------------------------------------------------------------- interruptions


def _interrupt(
    work: Work, kind: str, library: Path, record: Record, *, seconds: float = MAX_SECONDS, deletions: int | None = None
) -> tuple[float, bool]:
    """Run work in a process until it is interrupted. Return its seconds, and whether the interruption ended it."""
    start = time.monotonic()
    with _child(work, deletions=deletions) as child:
        while time.monotonic() - start < seconds and os.waitid(os.P_PID, child.process, _ENDED) is None:
            time.sleep(0.002)
        lived = time.monotonic() - start
        if kind == "stop" and child.stop():
            record.committed = child.committed()
            _expect_kept(library, record)
        status = child.kill()
        record.committed = child.committed()
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise BrokenPromise(f"a process ended with code {os.WEXITSTATUS(status)}, see its output above")
    was_interrupted = os.WIFSIGNALED(status)
    record.interruptions[kind] += was_interrupted
    record.num_finished += not was_interrupted
    return lived, was_interrupted


def _run_on_a_full_disk(work: Work, library: Path, free: float, record: Record) -> None:
    """Run work on a disk with little free space. It may finish, or raise one of midreel's errors."""
    ballast = library.parent / "ballast"
    room = shutil.disk_usage(library.parent).free
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, room - int(free)))
    try:
        with _child(work) as child:
            start = time.monotonic()
            while time.monotonic() - start < MAX_SECONDS and os.waitid(os.P_PID, child.process, _ENDED) is None:
                time.sleep(0.01)
            status = child.kill()
            record.committed = child.committed()
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) not in (0, REFUSED):
            raise BrokenPromise(f"a process on a full disk ended with status {status}, see its output above")
        record.interruptions["full"] += 1
        record.num_refused += os.WEXITSTATUS(status) == REFUSED
        _expect_kept(library, record)
    finally:
        ballast.unlink()


_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


@dataclass(kw_only=True)
class _Child:
    """A process that runs work, and writes the path of each committed video to a pipe."""

    process: int
    reading: int
    written: bytes = b""

    def committed(self) -> set[Path]:
        with suppress(BlockingIOError):
            while piece := os.read(self.reading, 2**16):
                self.written += piece
        return {Path(os.fsdecode(line)) for line in self.written.split(b"\0")[:-1]}

    def stop(self) -> bool:
        """Stop the process, and return False if it had already ended."""
        os.kill(self.process, signal.SIGSTOP)
        ended = os.waitid(os.P_PID, self.process, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        return ended is not None and ended.si_code == os.CLD_STOPPED

    def kill(self) -> int:
        """Kill the process, and return its status as `os.waitpid` does."""
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
    def report(step: Step) -> None:
        if step.state not in ("quarantined", "failed"):
            os.write(writing, os.fsencode(step.path) + b"\0")

    try:
        torch.set_num_threads(1)
        if deletions is not None:
            _die_at(deletions)
        work(report)
        os._exit(0)
    except BaseException as error:
        if not isinstance(error, MidreelError):
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(REFUSED if isinstance(error, MidreelError) else 1)


def _die_at(number: int) -> None:
    """Kill this process when it is about to rename or delete a file for the n-th time."""
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
    """Mount a small tmpfs at `folder`. Yield False if that is not possible; the folder is then a plain folder."""
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


# ---------------------------------------------------------------- checks


def _expect_kept(library: Path, record: Record) -> None:
    """Raise BrokenPromise unless a search finds all committed videos, each complete."""
    if not Layout(library).exists():
        if record.committed:
            raise BrokenPromise(f"{len(record.committed)} videos were committed, but the library is missing")
        return
    record.num_checks += 1
    with Searcher.open(library, backbone=Eye()) as searcher:
        catalogue = searcher._catalogue
        listed = {path: file.video_id for path, file in catalogue.files().items() if file.video_id is not None}
        lost = sorted(record.committed - set(listed))
        if lost:
            raise BrokenPromise(f"committed videos are lost: {lost}")
        hits = searcher.search(QUERIES[0], top=10**6, exact=True)
        if {hit.video_id for hit in hits} != set(listed.values()):
            raise BrokenPromise(f"{len(hits)} videos are found, {len(set(listed.values()))} are listed")
        for hit in hits:
            if not hit.moments or not hit.curve.values:
                raise BrokenPromise(f"{hit.path} is incomplete")


def _expect_equal(library: Path, videos: Path, clean: Path) -> None:
    """Raise BrokenPromise unless an undisturbed run leads to the library of a clean build."""
    index(library, videos)
    index(clean, videos)
    with Writer.open(clean, backbone=Eye()) as writer:
        reindex(writer, Layout(library).serving().card.model)
    found, expected = _all(library), _all(clean)
    if found != expected:
        raise BrokenPromise(f"different from a clean build: {sorted(set(found) ^ set(expected))[:6]}")
    files, serving = _names(library), Layout(library).serving().name
    if left := sorted(files - {name.replace("generations/2", f"generations/{serving}", 1) for name in _names(clean)}):
        raise BrokenPromise(f"temporary files are left: {left}")
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
    """Return all files and folders, without SQLite's logs and the numbers of the index's volumes."""
    names = {str(path.relative_to(library)) for path in library.rglob("*") if not path.name.endswith(("-wal", "-shm"))}
    return {name.rpartition(".")[2] if "/index/0" in name else name for name in names}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="number of processes to interrupt [200]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the files and the interruptions [0]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    record = crash(times=given.times, seed=given.seed, say=lambda line: print(line, flush=True))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(record.interruptions.items()) if count)
    print(
        f"{record.total} interrupted ({kinds}; {record.num_refused} refused), {record.num_finished} finished earlier, "
        f"{record.num_checks} checks: no promise broken"
    )


if __name__ == "__main__":
    main()
