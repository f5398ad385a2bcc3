"""Kills the indexer again and again, at random points, and looks each time whether the library has kept its word:

    python -m tools.crash_library --times 200

Files come, go, move and change, and a process that indexes or reindexes them is killed with SIGKILL wherever it is.
After each kill every video that was committed is found, and none is half there; and every few kills a run that is left
in peace makes of the library what a clean build makes. Processes are forked from one that has loaded everything, so
that they are killed at work rather than while they import.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from midreel.library.indexing import Indexer, Step
from midreel.library.layout import Layout
from midreel.search import Searcher
from tests.library.small import COLOURS, Eye, film, index

MODELS = ("zero-shot", "zero-shot-clips")
QUERIES = tuple(COLOURS)
NUM_FILMS = 10
KILLS_PER_BUILD = 5


class BrokenPromise(AssertionError):
    """The library lost a video, holds half of one, or differs from a clean build."""


@dataclass(kw_only=True)
class Tale:
    """What was done to the library."""

    num_kills: int = 0
    num_finished: int = 0
    num_checked: int = 0
    committed: set[Path] = field(default_factory=set)  # by the process that was killed last


def torment(*, times: int, seed: int = 0, say: Callable[[str], None] = lambda _: None) -> Tale:
    """Kills so many processes, beside those that finish before; raises if the library broke a promise."""
    chance, tale = random.Random(seed), Tale()
    with tempfile.TemporaryDirectory(prefix="midreel-crash-") as name:
        folder = Path(name)
        videos, library = folder / "videos", folder / "library"
        for number in range(NUM_FILMS):
            _shoot(chance, videos / f"{number}.mp4")
        for name in ("broken.mp4", "broken too.mp4"):
            (videos / name).write_bytes(b"no video")
        needed, model, attempt, built = 1.0, MODELS[0], 0, 0
        while tale.num_kills < times:
            attempt += 1
            _stir(chance, videos, attempt)
            reindexing = chance.random() < 0.25 and Layout(library).exists()
            model = chance.choice(MODELS) if reindexing else model
            retry, forget = chance.random() < 0.25, chance.random() < 0.25
            work = _reindex(library, model) if reindexing else _index(library, videos, retry=retry, forget=forget)
            lived, was_killed = _killed(work, chance.uniform(0, needed), tale)
            # One that was killed would have needed longer, one that finished did not need more.
            needed = max(needed, 1.2 * lived) if was_killed else max(0.5 * (needed + lived), 0.05)
            _expect_kept(library, tale)
            if tale.num_kills >= min(built + KILLS_PER_BUILD, times):
                built = tale.num_kills
                _expect_equal(library, videos, folder / f"clean-{attempt}")
                say(f"{tale.num_kills} of {times} killed, {tale.num_finished} finished before that: all well")
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


Work = Callable[[Callable[[Step], None]], None]


def _index(library: Path, videos: Path, *, retry: bool, forget: bool) -> Work:
    def work(progress: Callable[[Step], None]) -> None:
        index(library, videos, progress=progress, retry=retry, forget=forget)

    return work


def _reindex(library: Path, model: str) -> Work:
    def work(progress: Callable[[Step], None]) -> None:
        with Indexer.open(library, backbone=Eye()) as indexer:
            indexer.reindex(model)

    return work


def _killed(work: Work, seconds: float, tale: Tale) -> tuple[float, bool]:
    """Lets a process work for so long; it says what it has committed. Returns how long it lived, and whether it had to
    be killed."""
    reading, writing = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        _work_and_end(work, writing)
    os.close(writing)
    try:
        while time.monotonic() - start < seconds and os.waitid(os.P_PID, child, _ENDED) is None:
            time.sleep(0.002)
        took = time.monotonic() - start
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as told:
            lines = told.read().split(b"\0")[:-1]
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise BrokenPromise(f"a process ended by itself with {os.WEXITSTATUS(status)}; what it said is above")
    tale.num_kills += os.WIFSIGNALED(status)
    tale.num_finished += not os.WIFSIGNALED(status)
    tale.committed = {Path(os.fsdecode(line)) for line in lines}
    return took, os.WIFSIGNALED(status)


_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def _work_and_end(work: Work, writing: int) -> None:
    def told(step: Step) -> None:
        if step.kind not in ("quarantined", "failed"):
            os.write(writing, os.fsencode(step.path) + b"\0")

    try:
        torch.set_num_threads(1)
        work(told)
        os._exit(0)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(1)


# ---------------------------------------------------------------- what was promised


def _expect_kept(library: Path, tale: Tale) -> None:
    """All that was committed is found, with all that belongs to it."""
    if not Layout(library).exists():
        if tale.committed:
            raise BrokenPromise(f"{len(tale.committed)} videos were committed, and there is no library")
        return
    tale.num_checked += 1
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
    """A run in peace makes of the library what a clean build is."""
    index(library, videos)
    index(clean, videos)
    serving = Layout(library).serving().card.model
    with Indexer.open(clean, backbone=Eye()) as indexer:
        indexer.reindex(serving)
    found, expected = _all(library), _all(clean)
    if found != expected:
        raise BrokenPromise(f"not as a clean build: {sorted(set(found) ^ set(expected))[:6]}")


def _all(library: Path) -> list[tuple[str, str, str]]:
    with Searcher.open(library, backbone=Eye()) as searcher:
        return sorted(
            (query, f"{hit.score:.6f}", str(path))
            for query in QUERIES
            for hit in searcher.search(query, top=10**6, exact=True)
            for path in hit.paths
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="how many processes to kill")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tale = torment(times=given.times, seed=given.seed, say=lambda line: print(line, flush=True))
    print(f"{tale.num_kills} killed, {tale.num_finished} finished before, {tale.num_checked} looks: no promise broken")


if __name__ == "__main__":
    main()
