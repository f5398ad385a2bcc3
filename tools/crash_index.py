"""Kill a process that writes an index, again and again, and check the index each time.

    python -m tools.crash_index --times 200
    python -m tools.crash_index --times 200 --postgres

A child process adds, replaces, removes and compacts at random, and reports each finished change. It is killed after a
random time. Finished changes must be in the index. The change in progress must be complete or absent. At the end, a
search must return the same as in an index that was built without kills.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from midreel.index import EmbeddedIndex, ExactIndex
from midreel.index.postgres import PostgresIndex
from midreel.types import Encoded, Similarity, Tokens, with_norms
from tools.forking import fork
from tools.postgres_server import PostgresServer

WIDTH = 32
# Branches with and without stored lengths, of every similarity.
WEIGHTS = {"whole": 0.2, "clip": 0.3, "frame": 0.4, "key": 0.0, "scene": 0.1}
SIMILARITIES = {
    "frame": Similarity(kind="attention", guide="clip", keys="key"),
    "scene": Similarity(kind="dot"),
}
NUM_TOKENS = {"whole": 1, "clip": 8, "frame": 32, "key": 32, "scene": 5}
NAMES = [f"video {number}" for number in range(40)]
MAX_SECONDS = 0.08  # of a child's work

Opener = Callable[[], EmbeddedIndex | PostgresIndex]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of the index.

    Attributes:
        name: The video to add or remove, or None to compact the index.
        seed: The seed of the video's vectors, or None to remove the video.
    """

    name: str | None
    seed: int | None


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="number of kills [200]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the changes and the kills [0]")
    parser.add_argument("--postgres", action="store_true", help="an index in a temporary PostgreSQL server")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        if arguments.postgres:
            engine = in_postgres(stack.enter_context(PostgresServer()).url, "crash")
        else:
            engine = in_folder(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "index")
        print(crash(engine, arguments.times, arguments.seed))


def in_folder(folder: Path) -> Opener:
    """Create an index in a new folder, and return a function that opens it."""
    EmbeddedIndex.create(folder, branch_weights=WEIGHTS, width=WIDTH, similarities=SIMILARITIES).close()
    return lambda: EmbeddedIndex.open(folder)


def in_postgres(url: str, name: str) -> Opener:
    """Create an index in a database, and return a function that opens it once no killed client is being served.

    Args:
        url: The database.
        name: The name of the index.
    """
    PostgresIndex.create(url, name=name, branch_weights=WEIGHTS, width=WIDTH, similarities=SIMILARITIES).close()

    def opened() -> PostgresIndex:
        index = PostgresIndex.open(url, name=name)
        others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'midreel' AND pid <> pg_backend_pid()"
        while index.transact(lambda connection: connection.execute(others).fetchone()) != (0,):
            time.sleep(0.01)  # the server may still commit the last change of a killed client
        return index

    return opened


def crash(open_index: Opener, times: int, seed: int) -> str:
    """Kill writers of an index, and return a summary.

    Args:
        open_index: Opens the index, which is empty.
        times: The number of kills.
        seed: The seed of the changes and of the times of the kills.

    Raises:
        AssertionError: If a kill damaged the index.
    """
    torch.set_num_threads(1)  # a forked child does not have torch's other threads
    expected: dict[str, int] = {}
    chance = random.Random(seed)
    done = in_flight = 0
    for time_ in range(times):
        steps = [_draw(chance) for _ in range(400)]
        finished = _run_and_kill(open_index, steps, chance.uniform(0, MAX_SECONDS))
        for step in steps[:finished]:
            _apply(expected, step)
        done += finished
        after = dict(expected)
        if finished < len(steps):
            _apply(after, steps[finished])
        found = _check(open_index, [expected, after], f"kill {time_ + 1} of {times}, seed {seed}")
        in_flight += found != expected
        expected = found
    _compare_with_clean_build(open_index, expected)
    return f"{times} kills, {done} finished changes, {in_flight} changes in progress took effect"


def _draw(chance: random.Random) -> Step:
    kind = chance.random()
    if kind < 0.04:
        return Step(name=None, seed=None)
    return Step(name=chance.choice(NAMES), seed=None if kind < 0.25 else chance.randrange(10**6))


def _apply(videos: dict[str, int], step: Step) -> None:
    if step.name is None:
        return
    videos.pop(step.name, None)
    if step.seed is not None:
        videos[step.name] = step.seed


def _run_and_kill(open_index: Opener, steps: list[Step], seconds: float) -> int:
    """Run the steps in a child, kill it after some seconds, and return the number of finished steps."""
    reader, writer = os.pipe()
    child = fork()
    if not child:
        try:
            os.close(reader)
            _work(open_index, steps, writer)
        finally:
            os._exit(1)
    os.close(writer)
    ready = os.read(reader, 1)  # wait until the index is open
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    finished = b""
    while piece := os.read(reader, 2**16):
        finished += piece
    os.close(reader)
    if ready != b"o" or set(finished) - set(b"."):
        raise AssertionError("the child failed before it was killed, see its traceback above")
    return len(finished)


def _work(open_index: Opener, steps: list[Step], writer: int) -> None:
    index = open_index()
    os.write(writer, b"o")
    for step in steps:
        if step.name is None:
            index.compact()
        elif step.seed is not None:
            index.add(step.name, video(step.seed))
        elif step.name in index:
            index.remove(step.name)
        os.write(writer, b".")
    time.sleep(60)


def _check(open_index: Opener, either: list[dict[str, int]], when: str) -> dict[str, int]:
    """Return the state that the index is in. It must be one of the two, and complete."""
    with open_index() as index:
        if isinstance(index, EmbeddedIndex):
            with EmbeddedIndex.open(index.folder, read_only=True) as reader:
                assert reader.video_ids() == index.video_ids(), when
            assert index.verify() == [], when
        states = [state for state in either if list(state) == index.video_ids()]
        for state in states:
            if all(_same(index.tokens(name), video(seed)) for name, seed in state.items()):
                return state
    raise AssertionError(f"{when}: the index is neither in the state before the last change nor in the state after it")


def _same(kept: Encoded, made: Encoded) -> bool:
    expected = {
        branch: part.vectors if branch in with_norms(SIMILARITIES) else F.normalize(part.vectors, dim=-1)
        for branch, part in made.items()
    }
    return all(
        kept[branch].vectors.shape == vectors.shape
        and np.allclose(kept[branch].vectors, vectors, atol=0.01 * float(vectors.norm(dim=-1).max()))
        for branch, vectors in expected.items()
    )


def _compare_with_clean_build(open_index: Opener, videos: dict[str, int]) -> None:
    clean = ExactIndex(WEIGHTS, SIMILARITIES)
    for name, seed in videos.items():
        clean.add(name, video(seed))
    asked = {branch: torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1)) for branch in WEIGHTS}
    with open_index() as index:
        for ours, theirs in zip(index.search(asked), clean.search(asked), strict=True):
            # Nine bits cost a thousandth of a score: here up to 3 for dot products, with weight 0.1.
            assert all(abs(a.score - b.score) < 0.03 for a, b in zip(ours, theirs, strict=True))


def video(seed: int) -> dict[str, Tokens]:
    """Return random tokens of a video with one to three windows."""
    generator = torch.Generator().manual_seed(seed)
    windows = 1 + seed % 3
    return {
        branch: Tokens(
            vectors=torch.randn(windows, number, WIDTH, generator=generator),
            mask=torch.ones(windows, number, dtype=torch.bool),
            spans=torch.rand(windows, number, 2, generator=generator),
        )
        for branch, number in NUM_TOKENS.items()
    }


if __name__ == "__main__":
    main()
