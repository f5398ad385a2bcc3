"""Damage files of libraries at random, and check how midreel handles them.

    python -m tools.fuzz_library --times 200 --seed 0

Each round copies a small library, damages one of its files, and runs search, info, doctor, serve, index, index --retry
and reindex on the copy, in a child process with limits on time and memory. In some rounds the videos are missing, as if
their disk was not mounted. A round fails if

- an operation raises anything but a MidreelError, or does not end,
- a search returns a video that is not in the library, or a wrong score,
- a video that was complete in all stores is no longer found, or a tag or a place is lost,
- an error advises the user to delete something.

`--only N` runs one round again and prints tracebacks.
"""

import argparse
import ctypes
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np
import torch

from midreel.cli import doctor
from midreel.errors import MidreelError
from midreel.features.stores.store import FeatureStore
from midreel.library.catalogue import Catalogue
from midreel.library.layout import FEATURES, Layout
from midreel.library.reindex import reindex
from midreel.library.report import Step
from midreel.library.searcher import Searcher
from midreel.library.storage import at
from midreel.library.summary import summarise
from midreel.library.tokens import open_index
from midreel.library.writer import Writer
from midreel.server.listing import LibraryListing
from tests.library.small import Eye, film, index
from tools.forking import fork, limit_memory, read_until_closed

SECONDS = 60.0  # timeout of a round, which usually takes one or two
MEMORY = 2**30  # bytes that a child may allocate
TAG = "holiday"
FILMS = {"sunset": ("grey", "red", "blue"), "meadow": ("grey", "green"), "sea": ("blue", "grey"), "rose": ("red",)}
OTHER_FILMS = {"wood": ("green", "grey"), "night": ("grey",)}
CATALOGUE = "catalogue.sqlite"

Found = dict[str, str]  # scores by path


@dataclass(frozen=True, kw_only=True)
class World:
    """Libraries to copy and damage, the folder of their videos, and the result of a search without damage."""

    templates: dict[str, Path]
    other: Path  # a library whose files may replace those of the copy
    videos: Path
    expected: Found


@dataclass(frozen=True, kw_only=True)
class Damage:
    """The damage to a library in one round."""

    template: str
    file: str  # relative to the library
    kind: str
    mounted: bool  # whether the videos exist
    seed: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.file} ({self.template}{'' if self.mounted else ', videos not mounted'})"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of an operation, and the contents of the library after it."""

    operation: str
    kind: str  # answer, error, or crash
    text: str = ""
    found: Found | None = None  # by a search
    notes: list[str] | None = None  # tags and places


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem in one round."""

    round: int
    damage: Damage
    problem: str

    def __str__(self) -> str:
        return f"round {self.round}, {self.damage}: {self.problem}"


@dataclass(kw_only=True)
class Report:
    """Counts of rounds and outcomes, and the findings."""

    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.outcomes.items()))
        return f"{self.rounds} rounds: {counts}; {len(self.findings)} findings"


def fuzz(
    *,
    times: int,
    seed: int = 0,
    file: str = "",
    only: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run rounds, and report the problems.

    Args:
        times: The number of rounds.
        seed: The seed of the damage.
        file: Damage only files whose names contain this.
        only: Run only the round with this number, and print tracebacks.
        say: A callback for lines of progress.
    """
    report = Report()
    with tempfile.TemporaryDirectory(prefix="midreel-fuzz-") as name:
        world = build(Path(name))
        for number in range(times) if only is None else [only]:
            damage = draw(world, number, seed, file)
            outcomes, problems = run_round(world, damage, Path(name) / f"copy-{number}", verbose=only is not None)
            report.rounds += 1
            report.outcomes.update(outcome.kind for outcome in outcomes)
            for problem in problems:
                report.findings.append(Finding(round=number, damage=damage, problem=problem))
                say(str(report.findings[-1]))
            if only is not None:
                say("\n".join(f"{each.operation}: {each.kind} {each.text}" for each in outcomes))
    return report


# ---------------------------------------------------------------- libraries


def build(base: Path) -> World:
    """Create the videos and the libraries."""
    videos = base / "videos"
    for name, colours in FILMS.items():
        film(videos / f"{name}.mp4", *colours)
    (videos / "notes.mp4").write_text("no video")
    closed, killed, other, steps = base / "closed", base / "killed", base / "other", list[Step]()

    def copy_after_the_last(step: Step) -> None:
        """Copy the library as a killed process leaves it: with SQLite's logs, and features that are marked as open."""
        steps.append(step)
        if len(steps) == len(FILMS) + 1:
            shutil.copytree(base / "written", killed, ignore=shutil.ignore_patterns("*-shm"))

    index(closed, videos, tags=[TAG])
    index(base / "written", videos, tags=[TAG], progress=copy_after_the_last)
    for name, colours in OTHER_FILMS.items():
        film(base / "other videos" / f"{name}.mp4", *colours)
    index(other, base / "other videos")
    with Writer.open(other, backbone=Eye()) as writer:
        reindex(writer, "zero-shot-clips")
    for path in other.glob("generations/2"):  # give its files the names that the other libraries use
        path.rename(path.with_name("1"))
    expected = search(base / "written")
    assert len(expected) == len(FILMS)
    return World(templates={"closed": closed, "killed": killed}, other=other, videos=videos, expected=expected)


def draw(world: World, number: int, seed: int, file: str = "") -> Damage:
    """Return the damage of a round. Templates and files take turns, the rest is random."""
    chance = random.Random(f"{seed} {number}")
    places = [
        (name, str(path.relative_to(template)))
        for name, template in world.templates.items()
        for path in sorted(template.rglob("*"))
        if path.is_file() and path.name != "writer.lock" and file in path.name
    ]
    template, chosen = places[number % len(places)]
    kinds = [kind for kind, (fits, _) in KINDS.items() if fits(world, chosen)]
    return Damage(
        template=template,
        file=chosen,
        kind=chance.choice(kinds),
        mounted=chance.random() < 0.5,
        seed=f"{seed} {number}",
    )


# ---------------------------------------------------------------- damage


def _flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 4, 64))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def _zero(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    length = chance.choice((16, 512, 4096))
    start = chance.randrange(len(content)) // length * length
    content[start : start + length] = bytes(len(content[start : start + length]))
    path.write_bytes(content)


def _empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def _delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def _make_directory(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _make_unreadable(path: Path, chance: random.Random) -> None:
    path.chmod(0)


def _append(path: Path, chance: random.Random) -> None:
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.choice((1, 4096))))


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), 0.5),
    *("", "1", "../..", "x" * 100_000, "\0", "\ud800", [], [[]], [1], {}, {"a": 1}),
)


def _odd_json(path: Path, chance: random.Random) -> None:
    """Replace, add or remove a value somewhere in a JSON file."""
    document = json.loads(path.read_text(encoding="utf-8"))
    parents = [document, *(value for value in document.values() if isinstance(value, dict))]
    parent = chance.choice(parents)
    key = chance.choice([*parent, "unknown"])
    match chance.choice(("replace", "replace", "replace", "remove", "all")):
        case "replace":
            parent[key] = chance.choice(ODD)
        case "remove":
            parent.pop(key, None)
        case "all":
            document = chance.choice(ODD)
    path.write_text(json.dumps(document))


def _odd_cell(path: Path, chance: random.Random) -> None:
    """Put an odd value into a cell of a SQLite file. SQLite itself accepts it."""
    odd = (None, -1, 0, 2**40, 2**62, 1e308, -0.5, "", "text", b"", b"\xff", b"x" * 100_000)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = chance.choice(tables)
        columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        rows = database.execute(f"SELECT * FROM {table}").fetchall()
        if rows:
            row, column = chance.choice(rows), chance.choice(columns)
            same = " AND ".join(f"{name} IS ?" for name in columns)
            with suppress(sqlite3.Error):  # a constraint may reject the value
                database.execute(f"UPDATE {table} SET {column} = ? WHERE {same}", (chance.choice(odd), *row))
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _lose_part(path: Path, chance: random.Random) -> None:
    """Delete a group, a dataset or an attribute of an HDF5 file."""
    with (
        suppress(OSError),
        h5py.File(path, "r+", locking=False) as file,
    ):  # h5py cannot open a file that is marked as open
        parts = list[str]()
        file.visit(parts.append)
        if chance.random() < 0.2:
            del file.attrs[chance.choice(list(file.attrs))]
        else:
            del file[chance.choice(parts)]


def _flip_entry(path: Path, chance: random.Random) -> None:
    """Flip a bit in the tables of an HDF5 file. A random position would almost always hit the vectors."""
    with suppress(OSError), h5py.File(path, "r+", locking=False) as file:
        part = file["videos"][chance.choice(("index", "ids", "duration"))]
        content = bytearray(part[:].tobytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        part[:] = np.frombuffer(bytes(content), part.dtype)


Fits = Callable[[World, str], bool]
KINDS: dict[str, tuple[Fits, Callable[[Path, random.Random], None]]] = {
    "flipped bits": (lambda world, file: True, _flip),
    "truncation": (lambda world, file: True, _cut),
    "zeroed block": (lambda world, file: True, _zero),
    "emptying": (lambda world, file: True, _empty),
    "deletion": (lambda world, file: True, _delete),
    "directory in place": (lambda world, file: True, _make_directory),
    "lost permissions": (lambda world, file: True, _make_unreadable),
    "appended bytes": (lambda world, file: True, _append),
    "odd JSON": (lambda world, file: file.endswith(".json"), _odd_json),
    "odd cell": (lambda world, file: file.endswith(".sqlite"), _odd_cell),
    "lost part": (lambda world, file: file.endswith(".h5"), _lose_part),
    "flipped bit of an entry": (lambda world, file: file.endswith(".h5"), _flip_entry),
}
SWAP = "swap with another library's file"
KINDS[SWAP] = (lambda world, file: (world.other / file).is_file(), lambda path, chance: None)


def damaged_copy(world: World, damage: Damage, copy: Path) -> None:
    """Copy a library, and damage the copy."""
    shutil.copytree(world.templates[damage.template], copy)
    path = copy / damage.file
    if damage.kind == SWAP:
        shutil.copyfile(world.other / damage.file, path)
    elif path.stat().st_size:
        KINDS[damage.kind][1](path, random.Random(damage.seed))


# ---------------------------------------------------------------- operations


def search(library: Path) -> Found:
    """Search a library, and return the scores of all hits by path."""
    with Searcher.open(library, backbone=Eye()) as searcher:
        hits = searcher.search("red", top=99)
        searcher.search("green", exact=True, where=["longer=0"])
        searcher.unsearchable()
    return {str(hit.path): f"{hit.score:.5f}" for hit in hits}


def _like(library: Path, videos: Path) -> None:
    with Searcher.open(library, backbone=Eye()) as searcher:
        searcher.search_like(videos / "sunset.mp4", at=1.0)


def _info(library: Path, videos: Path) -> None:
    summary = summarise(library)
    json.dumps(summary.to_dict())
    summary.text.encode("utf-8", "replace")


def _doctor(library: Path, videos: Path) -> None:
    doctor.catalogue(library)
    doctor.index(library)


def _serve(library: Path, videos: Path) -> None:
    with closing(LibraryListing(at(library))) as listing:
        for item in listing.contents().items.values():
            listing.tags(item)


def _reindex(library: Path, videos: Path) -> None:
    with Writer.open(library, backbone=Eye()) as writer:
        reindex(writer, "zero-shot")


READERS: dict[str, Callable[[Path, Path], object]] = {
    "search": lambda library, videos: search(library),
    "like": _like,
    "info": _info,
    "doctor": _doctor,
    "serve": _serve,
}
WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "index": lambda library, videos: index(library, *([videos] if videos.exists() else [])),
    "retry": lambda library, videos: index(library, *([videos] if videos.exists() else []), retry=True),
    "reindex": _reindex,
}


def operate(library: Path, videos: Path, order: random.Random, *, verbose: bool) -> Iterator[Outcome]:
    """Run all operations: first those that read, then those that write, each followed by a search."""

    def attempt(name: str, work: Callable[[Path, Path], object]) -> Outcome:
        try:
            answer = work(library, videos)
        except MidreelError as error:
            return Outcome(operation=name, kind="error", text=f"{type(error).__name__}: {error}")
        except BaseException as error:
            if verbose:
                traceback.print_exception(error)
            return Outcome(operation=name, kind="crash", text="".join(traceback.format_exception(error))[-2000:])
        return Outcome(operation=name, kind="answer", found=answer if isinstance(answer, dict) else None)

    for name, work in READERS.items():
        yield attempt(name, work)
    whole = attempt("look", lambda library, videos: whole_videos(library))
    yield whole if whole.kind == "crash" else Outcome(operation="look", kind="answer", found=whole.found or {})
    writers = list(WRITERS)
    order.shuffle(writers)
    for name in writers:
        yield Outcome(**vars(attempt(name, WRITERS[name])) | {"notes": notes(library)})
        found = attempt("search", READERS["search"])
        yield Outcome(**vars(found) | {"operation": f"search after {name}"})
        whole = attempt("look", lambda library, videos: whole_videos(library))
        yield Outcome(**vars(whole) | {"operation": f"look after {name}"})


def whole_videos(library: Path) -> Found:
    """Return the videos that are in all stores and undamaged."""
    layout = Layout(library)
    serving = layout.generation(layout.settings().serving)
    whole = dict[str, str]()
    with (
        closing(Catalogue(library)) as catalogue,
        FeatureStore.open(library / FEATURES) as store,
        open_index(serving, read_only=True) as tokens,
    ):
        tokens.verify()
        for video_id in catalogue.video_ids() & set(tokens.video_ids()) & set(store.video_ids()):
            with suppress(MidreelError):
                store.video(video_id)
                whole |= {str(path): "" for path in catalogue.paths(video_id)}
    return whole


def notes(library: Path) -> list[str] | None:
    """Return the tags and places, which are in the catalogue only, or None if it cannot be read."""
    try:
        with closing(Catalogue(library)) as catalogue:
            return [*catalogue.tags(), *map(str, catalogue.places())]
    except (MidreelError, OSError):
        return None


# ---------------------------------------------------------------- a round


def run_round(world: World, damage: Damage, copy: Path, *, verbose: bool) -> tuple[list[Outcome], list[str]]:
    """Run all operations on a damaged copy, and return their outcomes and the problems."""
    try:
        damaged_copy(world, damage, copy)
        with _mounted(world, damage.mounted):
            outcomes, end = _in_child(copy, world.videos, random.Random(damage.seed), verbose=verbose)
    finally:
        for folder in copy.rglob("*"):
            folder.chmod(0o755)
        shutil.rmtree(copy, ignore_errors=True)
    return outcomes, [*problems(world, damage, outcomes), *([end] if end else [])]


@contextmanager
def _mounted(world: World, mounted: bool) -> Iterator[None]:
    if mounted:
        yield
        return
    away = world.videos.with_name("videos elsewhere")
    world.videos.rename(away)
    try:
        yield
    finally:
        away.rename(world.videos)


def _in_child(library: Path, videos: Path, order: random.Random, *, verbose: bool) -> tuple[list[Outcome], str]:
    """Run all operations in a child. Return their outcomes, and how the child ended if it did not finish."""
    reading, writing = os.pipe()
    child = fork()
    if not child:
        try:
            os.close(reading)
            _limit()
            with os.fdopen(writing, "w") as lines:
                for outcome in operate(library, videos, order, verbose=verbose):
                    lines.write(json.dumps(vars(outcome)) + "\n")
                    lines.flush()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    lines_written, is_late = read_until_closed(reading, SECONDS)
    os.close(reading)
    if is_late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    outcomes = [Outcome(**json.loads(line)) for line in lines_written.split(b"\n")[:-1]]
    after = outcomes[-1].operation if outcomes else "the start"
    if is_late:
        return outcomes, f"no end within {SECONDS:.0f} s, after {after}"
    return outcomes, f"ended with {os.waitstatus_to_exitcode(status)}, after {after}" if status else ""


def _limit() -> None:
    torch.set_num_threads(1)
    limit_memory(MEMORY)
    if os.geteuid() == 0:  # drop the capabilities of root, which ignores permissions
        header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        ctypes.CDLL(None).capset(header, nothing)


def problems(world: World, damage: Damage, outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the promises that the library broke."""
    by_operation = {outcome.operation: outcome for outcome in outcomes}
    of_catalogue = damage.file.startswith(CATALOGUE)  # it has no checksums, so wrong values cannot be detected
    first = by_operation["search"].found if "search" in by_operation else None
    whole = by_operation["look"].found if "look" in by_operation else None
    kept = {path: world.expected[path] for path in whole or {} if path in world.expected}
    crashes = dict[str, list[Outcome]]()
    for outcome in outcomes:
        if outcome.kind == "crash":
            crashes.setdefault(outcome.text.strip().splitlines()[-1], []).append(outcome)
    for error, crashed in crashes.items():
        yield f"{', '.join(each.operation for each in crashed)} crashed: {error}\n{crashed[0].text}"
    for outcome in outcomes:
        name, found = outcome.operation, outcome.found
        if outcome.kind == "error" and re.search(r"\bdelete\b", outcome.text):
            yield f"{name} advises to delete: {outcome.text}"
        if name.startswith("search") and found is not None and not of_catalogue and not _is_part(found, world.expected):
            yield f"{name} found wrong videos or scores: {found}, expected {world.expected}"
        if name.startswith("look after") and found is not None and not kept.keys() <= found.keys():
            yield f"incomplete {name.removeprefix('look ')}: {sorted(kept.keys() - found.keys())}"
        if not name.startswith("search after"):
            continue
        wrote = by_operation[name.removeprefix("search after ")]
        if found is None and first is not None:
            yield f"search fails after {wrote.operation} ({wrote.text}): {outcome.text}"
        must = kept if wrote.kind == "answer" or first is not None else {}
        if found is not None and not _is_part(must, found):
            yield f"{wrote.operation} lost {sorted(set(must.items()) - set(found.items()))}"
        retried = wrote.operation == "retry" and wrote.kind == "answer" and damage.mounted and not of_catalogue
        if retried and found not in (None, world.expected):
            yield f"retry did not repair: {found}, expected {world.expected}"
        if not of_catalogue and wrote.notes is not None and not {TAG, str(world.videos)} <= set(wrote.notes):
            yield f"{wrote.operation} lost a tag or a place: {wrote.notes}"


def _is_part(part: Found, of: Found) -> bool:
    return part.items() <= of.items()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="number of rounds [200]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the damage [0]")
    parser.add_argument("--file", default="", help="damage only files whose names contain this")
    parser.add_argument("--only", type=int, help="run only the round with this number")
    given = parser.parse_args()
    report = fuzz(**vars(given), say=lambda line: print(line, flush=True))
    print(report)
    sys.exit(bool(report.findings))


if __name__ == "__main__":
    main()
