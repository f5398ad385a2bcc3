"""Compare the index on engines beyond one machine with the embedded index: PostgreSQL, and the core of Qdrant.

    make bench-engines

The libraries are random vectors (benchmarks/synthetic.py). The engines take turns with the embedded index in the same
run, so that load on the machine affects both, and the ratios count rather than the times. PostgreSQL is a real server
on a temporary folder and a Unix socket, with durable commits (tools/postgres_server.py). Of Qdrant only the core is
measured, without a server (tools/qdrant_core.py).
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks import synthetic
from benchmarks.measuring import Row, at_most, machine, publish, table, three_digits
from benchmarks.search_speed import TOP, Figures, exact_scores, line, measured, ours, spread
from benchmarks.synthetic import NUM_CLIPS, NUM_FRAMES, WEIGHTS, WIDTH
from midreel.index import EmbeddedIndex, Index
from midreel.index.postgres import PostgresIndex
from midreel.index.qdrant import QdrantIndex
from midreel.types import Encoded
from tools.postgres_server import PostgresServer
from tools.qdrant_core import CoreClient

SIZES = (5_000, 20_000)
SINGLY = 100  # videos that are added one by one, each in its own commit
EMBEDDED, SCAN, GRAPH, CORE = "embedded", "PostgreSQL, exact scan", "PostgreSQL, HNSW", "Qdrant core"
LOADING = ("videos/s", "one by one", "KB/video")
SERVER = {"shared_buffers": "3GB", "max_wal_size": "8GB", "maintenance_work_mem": "1GB"}


@contextmanager
def engines(*, core: bool) -> Iterator[tuple[dict[str, Any], Callable[[str], int]]]:
    """Yield an empty index of each engine, and a function from its name to its size in bytes.

    Args:
        core: Whether to include the core of Qdrant.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="midreel-bench-engines-")))
        server = stack.enter_context(PostgresServer(SERVER))
        client = CoreClient(folder / "qdrant")
        stack.callback(client.close)
        postgres = PostgresIndex.create(server.url, branch_weights=WEIGHTS, width=WIDTH)
        indexes: dict[str, Any] = {
            EMBEDDED: EmbeddedIndex.create(folder / "embedded", branch_weights=WEIGHTS, width=WIDTH),
            SCAN: postgres,
        }
        if core:
            indexes[CORE] = QdrantIndex.create(client, branch_weights=WEIGHTS, width=WIDTH)
        for index in (postgres, indexes[EMBEDDED]):
            stack.callback(index.close)

        def size(name: str) -> int:
            if name == SCAN:
                statement = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname ~ '^(tokens|videos)_1'"
                row = postgres.transact(lambda connection: connection.execute(statement).fetchone())
                return int(row[0]) if row else 0
            place = folder / {EMBEDDED: "embedded", CORE: "qdrant"}[name]
            return sum(path.stat().st_blocks * 512 for path in place.rglob("*") if path.is_file())

        yield indexes, size


def load(indexes: dict[str, Any], num_videos: int, queries: torch.Tensor) -> tuple[dict[str, float], torch.Tensor]:
    """Add a library to all indexes in turns. Return the videos per second of each, and the best videos of each query.

    Args:
        indexes: The indexes.
        num_videos: The size of the library.
        queries: The queries.
    """
    seconds, scores = dict.fromkeys(indexes, 0.0), []
    for piece in synthetic.pieces(num_videos):
        videos = list(piece.videos())
        for name, index in indexes.items():
            start = time.perf_counter()
            index.add_all(videos)
            seconds[name] += time.perf_counter() - start
        scores.append(exact_scores(piece.clip, piece.frame, queries))
        print(f"\r{num_videos:,}: {piece.first + len(piece):,}", end="", file=sys.stderr)
    print(file=sys.stderr)
    best = torch.cat(scores).topk(TOP, 0).indices.T.contiguous()
    return {name: num_videos / each for name, each in seconds.items()}, best


def add_singly(index: Index, videos: Sequence[tuple[str, Encoded]]) -> float:
    """Add videos that are there already, each in its own commit, and return the videos per second."""
    start = time.perf_counter()
    for video_id, tokens in videos:
        index.add(video_id, tokens)
    return len(videos) / (time.perf_counter() - start)


def measure(num_videos: int, num_queries: int, *, core: bool) -> Iterator[Figures]:
    """Measure all engines on one library. Yield the figures without the graph, and with it.

    Args:
        num_videos: The size of the library.
        num_queries: The number of easy and of hard queries.
        core: Whether to include the core of Qdrant.
    """
    kinds = list(synthetic.NOISE)
    asked = {kind: synthetic.queries(kind, num_queries, num_videos) for kind in kinds}
    with engines(core=core) as (indexes, size):
        rates, best = load(indexes, num_videos, torch.cat([asked[kind] for kind in kinds]))
        right = dict(zip(kinds, best.split(num_queries), strict=True))
        indexes[SCAN].compact()
        if core:
            indexes[CORE]._server._client.optimize(indexes[CORE].collection)
        figures: Figures = {"rate": rates, "bytes": {name: size(name) / num_videos for name in indexes}}
        same = list(synthetic.piece(0, min(synthetic.PIECE, num_videos)).videos())[:SINGLY]
        figures["singly"] = {name: add_singly(index, same) for name, index in indexes.items()}
        searches = {name: ours(index) for name, index in indexes.items()}
        figures["found"] = {kind: measured(searches, asked[kind], right[kind]) for kind in kinds}
        yield figures
        start = time.perf_counter()
        figures["graph"] = indexes[SCAN].build_graph(least=0.0)
        figures["build"] = time.perf_counter() - start
        both = {EMBEDDED: searches[EMBEDDED], GRAPH: searches[SCAN]}
        for kind in kinds:
            again = measured(both, asked[kind], right[kind])
            figures["found"][kind][GRAPH] = again[GRAPH] | {"ratio": again[GRAPH]["p50"] / again[EMBEDDED]["p50"]}
        yield figures


def ratio(figures: Figures, kind: str, name: str) -> float:
    """Return the ratio of the median of an engine to that of the embedded index, from the same turns."""
    found = figures["found"][kind]
    return float(found[name].get("ratio") or found[name]["p50"] / found[EMBEDDED]["p50"])


def targets(libraries: dict[int, Figures]) -> list[Row]:
    """Return the rows of the table of targets."""
    rows = []
    for size, figures in libraries.items():
        hard = figures["found"]["hard"]
        rows += [
            at_most(f"{size:,} windows, {SCAN} / {EMBEDDED}", 15, hard[SCAN]["p50"], hard[EMBEDDED]["p50"], "ms"),
            *(_recall(size, kind, figures["found"][kind][SCAN]["recall"]) for kind in synthetic.NOISE),
            Row(
                what=f"{size:,} windows, {SCAN}, videos added per second",
                measured=three_digits(figures["rate"][SCAN]),
                target="≥ 200",
                met=figures["rate"][SCAN] >= 200,
            ),
        ]
    return rows


def _recall(size: int, kind: str, recall: float) -> Row:
    return Row(
        what=f"{size:,} windows, {SCAN}, recall on {kind} queries",
        measured=f"{recall:.4f}",
        target="1",
        met=recall >= 1,
    )


def report(libraries: dict[int, Figures], num_queries: int) -> str:
    """Return the report as Markdown."""
    lines = [
        "# Engines",
        "",
        "Measured by `make bench-engines`, one query at a time. Times are median / 95th percentile in milliseconds,",
        "ratios are of medians to the embedded index, which takes turns with the others. Recall compares the ten best",
        f"videos with exact search in float32, over {num_queries} easy and {num_queries} hard queries.",
        "",
        f"Libraries of random vectors: one window per video with {NUM_CLIPS} clips and {NUM_FRAMES} frames of width",
        f"{WIDTH}. See benchmarks/synthetic.py.",
        "",
        f"PostgreSQL is a real server with {SERVER['shared_buffers']} of shared buffers and durable commits, on a Unix",
        "socket. Qdrant core is the engine without its server: no network, one shard. Videos are added 500 at a time,",
        f"or one by one, each durable before the next ({SINGLY} videos, replaced).",
        "",
        f"{machine()} Load average: {os.getloadavg()[0]:.0f}.",
        "",
        *table(targets(libraries)),
    ]
    for size, figures in libraries.items():
        lines += [
            "",
            f"## {size:,} windows",
            "",
            line("engine", *("easy ms", "ratio", "recall", "hard ms", "ratio", "recall"), *LOADING),
            line(*["---"] * 10),
        ]
        for name in (each for each in (EMBEDDED, SCAN, GRAPH, CORE) if each in figures["found"]["hard"]):
            cells = [name]
            for kind in synthetic.NOISE:
                found = figures["found"][kind][name]
                cells += [spread(found), f"{ratio(figures, kind, name):.1f}", f"{found['recall']:.4f}"]
            stored = [("rate", 1), ("singly", 1), ("bytes", 1024)]
            cells += [three_digits(figures[key][name] / unit) if name in figures[key] else "" for key, unit in stored]
            lines.append(line(*cells))
        if "graph" not in figures:
            continue
        graph = figures["graph"]
        lines += [
            "",
            f"The HNSW graph was built in {figures['build']:.0f} s, with its test of recall. Against the scan, with",
            f"hard queries drawn from the index, it has a recall of {graph.recall:.3f} at ef_search {graph.effort},",
            "the smallest tried that reaches 0.99, or the largest that pgvector allows.",
        ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of videos")
    parser.add_argument("--queries", type=int, default=40, help="number of easy and of hard queries [40]")
    parser.add_argument("--core-up-to", type=int, default=20_000, help="largest library of Qdrant's core [20000]")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    arguments = parser.parse_args()
    libraries: dict[int, Figures] = {}
    for size in arguments.sizes:
        for figures in measure(size, arguments.queries, core=size <= arguments.core_up_to):
            libraries[size] = figures
            publish(report(libraries, arguments.queries), arguments.write)  # at once: the rest takes long


if __name__ == "__main__":
    main()
