"""Measure the time that HTTP adds to a search, and the throughput of a server with several clients.

    make bench-serve

The library consists of playhouse videos. `midreel serve` runs in a separate process, and the clients on the same
machine. Every query is new, so that no answer comes from a cache. Searches over HTTP and in this process take turns, so
that load on the machine affects both. The servers of benchmarks/plain_server.py, which a user could write instead, take
turns with ours as well. Those whose engine is not installed are skipped and listed.
"""

import argparse
import asyncio
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from benchmarks.measuring import Row, machine, publish, table, three_digits
from midreel.datasets import playhouse
from midreel.library.searcher import Searcher
from tools.serving import ready, serving

CLIENTS = (1, 8, 64)
MAX_ADDED = 2.0  # milliseconds that HTTP may add in the median, with one client
MIN_RATE = 250.0  # searches per second with the most clients
MAX_TAIL = 5.0  # p99 / p50 with the most clients
OURS, ROUNDS = "midreel serve", 3
PLAIN = {"faiss": ("faiss", "FastAPI + faiss flat"), "qdrant": ("qdrant_edge", "FastAPI + Qdrant in the process")}


@dataclass(frozen=True, kw_only=True)
class Load:
    """The measurements of a number of clients that search at the same time."""

    num_clients: int
    seconds: float
    times: Sequence[float]  # seconds of each answer
    num_failed: int

    @property
    def median(self) -> float:
        """The median time of an answer."""
        return statistics.median(self.times)

    @property
    def rate(self) -> float:
        """The number of answers per second."""
        return len(self.times) / self.seconds

    def percentile(self, percent: int) -> float:
        """Return a percentile of the times."""
        return sorted(self.times)[min(len(self.times) - 1, len(self.times) * percent // 100)]


class Questions:
    """An endless iterator over different queries: sentences of the playhouse with a number."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._number = texts, count()

    def __next__(self) -> str:
        number = next(self._number)
        return f"{self._texts[number % len(self._texts)]}, number {number}"


class Connection:
    """A minimal HTTP client, which leaves the processor to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> "Connection":
        """Connect to a server."""
        parts = urlsplit(address)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def search(self, query: str) -> int:
        """Search, read the whole answer, and return its status."""
        body = json.dumps({"query": query, "top": 10}).encode()
        head = ("POST /v1/search HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json")
        self._writer.write("\r\n".join((*head, f"Content-Length: {len(body)}\r\n\r\n")).encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = answer.partition("content-length:")[2].partition("\r\n")[0]
        await self._reader.readexactly(int(length))
        return int(answer.split(" ", 2)[1])

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def load(address: str, questions: Questions, num_clients: int, num_requests: int) -> Load:
    """Search with several clients at the same time.

    Args:
        address: The address of the server.
        questions: The queries.
        num_clients: The number of clients.
        num_requests: The number of searches of all clients together.
    """
    times: list[float] = []
    num_failed, left = 0, iter(range(num_requests))

    async def ask() -> None:
        nonlocal num_failed
        connection = await Connection.open(address)
        for _ in left:
            start = time.perf_counter()
            try:
                status = await connection.search(next(questions))
            except (OSError, asyncio.IncompleteReadError):
                num_failed += 1
                connection = await Connection.open(address)
                continue
            times.append(time.perf_counter() - start)
            num_failed += status != 200
        connection.close()

    start = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(num_clients)))
    return Load(num_clients=num_clients, seconds=time.perf_counter() - start, times=times, num_failed=num_failed)


async def in_turns(searcher: Searcher, address: str, questions: Questions, number: int) -> tuple[Load, Load]:
    """Search in this process and over HTTP in turns, and return the loads of both."""
    here, there = list[float](), list[float]()
    num_failed, connection = 0, await Connection.open(address)
    for _ in range(number):
        start = time.perf_counter()
        searcher.search(next(questions), top=10)
        between = time.perf_counter()
        num_failed += await connection.search(next(questions)) != 200
        here.append(between - start)
        there.append(time.perf_counter() - between)
    connection.close()
    return (
        Load(num_clients=0, seconds=sum(here), times=here, num_failed=0),
        Load(num_clients=1, seconds=sum(there), times=there, num_failed=num_failed),
    )


def measure(
    folder: Path, *, num_videos: int, num_requests: int, library: Path | None = None
) -> tuple[Load, list[Load], dict[str, list[Load]]]:
    """Return the load of searches in this process, over HTTP for each number of clients, and of each server in turns.

    Args:
        folder: A folder for the videos and the library.
        num_videos: The number of videos.
        num_requests: The number of searches of one client.
        library: A library to search instead. The queries are the same.
    """
    split = playhouse.write_dataset(folder / "videos", seed=0, num_test=num_videos)["test"]
    questions = Questions([query.text for query in split.queries])
    if library is None:
        library = folder / "library"
        with Searcher.create(library) as made:
            made.add(folder / "videos")
    with Searcher.open(library) as searcher, ExitStack() as servers:
        searcher.search(next(questions))
        address = servers.enter_context(serving(library))
        asyncio.run(load(address, questions, 2, 20))  # warm up
        here, one = asyncio.run(in_turns(searcher, address, questions, num_requests))
        many = [asyncio.run(load(address, questions, number, num_requests * 2)) for number in CLIENTS[1:]]
        addresses = {OURS: address} | {
            name: servers.enter_context(ready(start_plain(library, engine)))
            for engine, (module, name) in PLAIN.items()
            if importlib.util.find_spec(module)
        }
        turns: dict[str, list[Load]] = {name: [] for name in addresses}
        for number in (CLIENTS[0], CLIENTS[-1]):
            parts: dict[str, list[Load]] = {name: [] for name in addresses}
            for turn in range(1 + ROUNDS):  # the first turn warms up
                for name, each in addresses.items():
                    found = asyncio.run(
                        load(each, questions, number, num_requests if number > 1 else num_requests // ROUNDS)
                    )
                    parts[name] += [found] * bool(turn)
            for name, loads in parts.items():
                turns[name].append(joined(loads))
    return here, [one, *many], turns


def start_plain(library: Path, engine: str) -> "subprocess.Popen[str]":
    """Start a server of benchmarks/plain_server.py."""
    command = [sys.executable, "-m", "benchmarks.plain_server", str(library), "--engine", engine]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def joined(loads: Sequence[Load]) -> Load:
    """Return several loads of the same number of clients as one."""
    return Load(
        num_clients=loads[0].num_clients,
        seconds=sum(each.seconds for each in loads),
        times=[time for each in loads for time in each.times],
        num_failed=sum(each.num_failed for each in loads),
    )


def report(here: Load, loads: Sequence[Load], turns: Mapping[str, Sequence[Load]], what: str) -> str:
    """Return the report as Markdown.

    Args:
        here: Searches in this process.
        loads: Our server, for each number of clients.
        turns: Each server with one and with many clients, which took turns.
        what: The library, as text.
    """
    added = 1000 * statistics.median(over - alone for over, alone in zip(loads[0].times, here.times, strict=True))
    rows = [
        Row(what="in this process, p50", measured=f"{three_digits(here.median * 1000)} ms"),
        Row(what="in this process, p99", measured=f"{three_digits(here.percentile(99) * 1000)} ms"),
        Row(
            what="HTTP adds, p50, 1 client",
            measured=f"{added:.2f} ms",
            target=f"≤ {MAX_ADDED:g} ms",
            met=added <= MAX_ADDED,
        ),
    ]
    most, tail = loads[-1], loads[-1].percentile(99) / loads[-1].median
    rows += [
        Row(
            what=f"{most.num_clients} clients: searches per second",
            measured=three_digits(most.rate),
            target=f"≥ {MIN_RATE:g}",
            met=most.rate >= MIN_RATE,
        ),
        Row(
            what=f"{most.num_clients} clients: p99 / p50",
            measured=three_digits(tail),
            target=f"≤ {MAX_TAIL:g}",
            met=tail <= MAX_TAIL,
        ),
    ]
    for each in loads:
        name = f"{each.num_clients} client{'s' if each.num_clients > 1 else ''}"
        rows += [
            Row(what=f"{name}: p50", measured=f"{three_digits(each.median * 1000)} ms"),
            Row(what=f"{name}: p99", measured=f"{three_digits(each.percentile(99) * 1000)} ms"),
            *([Row(what=f"{name}: searches per second", measured=three_digits(each.rate))] if each is not most else []),
            Row(
                what=f"{name}: failed, of {len(each.times) + each.num_failed:,}",
                measured=str(each.num_failed),
                target="0",
                met=not each.num_failed,
            ),
        ]
    missing = [name for _, name in PLAIN.values() if name not in turns]
    return "\n".join(
        [
            "# Serving speed",
            "",
            "Measured by `make bench-serve`. Searches in the process and over HTTP with one client take turns. The",
            "time that HTTP adds is the median of the differences. The times depend on the machine and its load. The",
            "clients run on the same machine as the server.",
            "",
            f"{what} Each search is a new sentence and returns 10 hits with curves.",
            "",
            machine(),
            "",
            *table(rows),
            "",
            "## Beside servers that a user could write",
            "",
            "The servers of benchmarks/plain_server.py search the frames of the same library exactly, with the same",
            "model. They return a video, a time and a score, without moments, ranges, curves, confidence, problem",
            "details, limits or metrics. All take turns. They also show how busy the machine was.",
            "",
            "| server | 1 client: p50 ms | per second | 64 clients: p50 ms | p99 ms | per second |",
            "| --- | --- | --- | --- | --- | --- |",
            *(_line(name, *each) for name, each in turns.items()),
            "",
            *([f"Not measured, because not installed: {', '.join(missing)}.", ""] if missing else []),
        ]
    )


def _line(name: str, one: Load, many: Load) -> str:
    values = (one.median * 1000, one.rate, many.median * 1000, many.percentile(99) * 1000, many.rate)
    return f"| {name} | {' | '.join(map(three_digits, values))} |"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=40, help="number of videos [40]")
    parser.add_argument(
        "--requests", type=int, default=300, help="searches of one client; several make twice as many [300]"
    )
    parser.add_argument("--library", type=Path, help="search this library instead of a new one")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        here, loads, turns = measure(
            Path(folder), num_videos=arguments.videos, num_requests=arguments.requests, library=arguments.library
        )
    what = f"{arguments.videos} videos of the playhouse, tiny-clip, zero-shot."
    if arguments.library is not None:
        what = f"The library {arguments.library}."
    text = report(here, loads, turns, what)
    publish(text, arguments.write)


if __name__ == "__main__":
    main()
