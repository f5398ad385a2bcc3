"""Measure the time that HTTP adds to a search, and the throughput of a server with several clients.

    make bench-serve

The library consists of playhouse videos. `midreel serve` runs in a separate process, and the clients on the same
machine. Every query is new, so that no answer comes from a cache. Searches over HTTP and in this process take turns, so
that load on the machine affects both.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from benchmarks.measuring import Row, machine, publish, table, three_digits
from midreel.datasets import playhouse
from midreel.library.searcher import Searcher
from tools.serving import serving

CLIENTS = (1, 8, 64)
MAX_ADDED = 5.0  # milliseconds that HTTP may add in the median, with one client


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


def measure(folder: Path, *, num_videos: int, num_requests: int) -> tuple[Load, list[Load]]:
    """Return the load of searches in this process, and over HTTP for each number of clients."""
    split = playhouse.write_dataset(folder / "videos", seed=0, num_test=num_videos)["test"]
    questions = Questions([query.text for query in split.queries])
    with Searcher.create(folder / "library") as searcher:
        searcher.add(folder / "videos")
        searcher.search(next(questions))
        with serving(folder / "library") as address:
            asyncio.run(load(address, questions, 2, 20))  # warm up
            here, one = asyncio.run(in_turns(searcher, address, questions, num_requests))
            many = [asyncio.run(load(address, questions, number, num_requests * 2)) for number in CLIENTS[1:]]
    return here, [one, *many]


def report(here: Load, loads: Sequence[Load], num_videos: int) -> str:
    """Return the report as Markdown."""
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
    for each in loads:
        name = f"{each.num_clients} client{'s' if each.num_clients > 1 else ''}"
        rows += [
            Row(what=f"{name}: p50", measured=f"{three_digits(each.median * 1000)} ms"),
            Row(what=f"{name}: p99", measured=f"{three_digits(each.percentile(99) * 1000)} ms"),
            Row(what=f"{name}: searches per second", measured=three_digits(len(each.times) / each.seconds)),
            Row(
                what=f"{name}: failed, of {len(each.times) + each.num_failed:,}",
                measured=str(each.num_failed),
                target="0",
                met=not each.num_failed,
            ),
        ]
    return "\n".join(
        [
            "# Serving speed",
            "",
            "Measured by `make bench-serve`. Searches in the process and over HTTP with one client take turns. The",
            "time that HTTP adds is the median of the differences. The times depend on the machine and its load. The",
            "clients run on the same machine as the server.",
            "",
            f"{num_videos} videos of the playhouse, tiny-clip, zero-shot. Each search is a new sentence and returns 10 "
            f"hits with curves.",
            "",
            machine(),
            "",
            *table(rows),
            "",
        ]
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=40, help="number of videos [40]")
    parser.add_argument(
        "--requests", type=int, default=300, help="searches of one client; several make twice as many [300]"
    )
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        here, loads = measure(Path(folder), num_videos=arguments.videos, num_requests=arguments.requests)
    text = report(here, loads, arguments.videos)
    publish(text, arguments.write)


if __name__ == "__main__":
    main()
