"""Measure the speed and the recall of the embedded index, of research code, and of other engines.

    make bench-search

The libraries are random vectors (benchmarks/synthetic.py) of 474, 5,000, 20,000 and 100,000 videos with 32 clips and
128 frames of width 384. They are cached in --folder (7.8 GB for the largest) until the code of the index changes. The
largest library, of 1,000,000 windows in 100,000 films (20 GB), has only clips, and consists of shuffled copies.
Engines that are not installed are skipped and listed. The other engines index the clips and return candidates, which
are scored exactly from memory. Each engine uses the first of its settings with a recall of 99 % on hard queries.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import end_to_end, synthetic
from benchmarks.measuring import Row, at_least, at_most, machine, publish, resident_megabytes, table, three_digits
from benchmarks.synthetic import NUM_CLIPS, NUM_FRAMES, WEIGHTS, WIDTH
from midreel.experiments.demo import LIBRARY
from midreel.index import EmbeddedIndex
from midreel.index.embedded import ann, cascade

SIZES = (474, 5_000, 20_000, 100_000, 1_000_000)
WINDOWS = 1_000_000  # of the largest library
COPIED = 5_000  # the library whose copies it consists of
RIVALS_AT = 5_000
IN_MEMORY = 5_000  # largest library whose vectors are held in float32 (1.2 GB), as research code does
TOP = 10
TURN = 10  # queries per turn; after a single query, the other candidates would empty the processor's cache
BRANCHES = tuple(WEIGHTS)
GOOD = 0.99  # the recall at which a rival is not tuned further
OTHERS = ("first s", "first MB", "add ms", "floor ms", "memory MB")
EFFORTS = (512, 1024, 2048, 4096, 8192)  # of graph searches

Search = Callable[[Tensor], list[int]]  # a query's vector -> numbers of videos, best first
Figures = dict[str, Any]


# ---------------------------------------------------------------- libraries


def prepare(folder: Path, num_videos: int, num_queries: int) -> Path:
    """Build an index and the results of exact search in float32, unless they are cached. Return the index's folder."""
    place, truth = folder / f"library-{num_videos}", folder / f"truth-{num_videos}-{num_queries}.pt"
    if truth.exists() and torch.load(truth).get("sources") == sources():
        return place
    truth.unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    asked = torch.cat([synthetic.queries(kind, num_queries, num_videos) for kind in synthetic.NOISE])
    scores, seconds = [], 0.0
    with EmbeddedIndex.create(place, branch_weights=WEIGHTS, width=WIDTH) as index:
        for piece in synthetic.pieces(num_videos):
            start = time.perf_counter()
            index.add_all(piece.videos())
            seconds += time.perf_counter() - start
            scores.append(exact_scores(piece.clip, piece.frame, asked))
            print(f"\r{num_videos:,}: {piece.first + len(piece):,}", end="", file=sys.stderr)
        start = time.perf_counter()
        recall = index.train() if num_videos >= ann.FROM else None
        training = time.perf_counter() - start
    print(file=sys.stderr)
    best = torch.cat(scores).topk(TOP, 0).indices.T.contiguous()
    figures = {"add": seconds / num_videos, "train": training, "gate": recall}
    torch.save({"queries": asked, "best": best, "figures": figures, "sources": sources()}, truth)
    return place


def prepare_films(folder: Path, num_windows: int, num_queries: int, copied: int = COPIED) -> Path:
    """Build an index of films, and the results of exact search in float32, unless they are cached. See `synthetic`.

    Args:
        folder: The cache.
        num_windows: The number of windows.
        num_queries: The number of queries of each kind.
        copied: The size of a prepared library whose copies make the films.
    """
    place, truth = folder / f"library-{num_windows}", folder / f"truth-{num_windows}-{num_queries}.pt"
    if truth.exists() and torch.load(truth).get("sources") == sources():
        return place
    truth.unlink(missing_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    start = time.perf_counter()
    with (
        EmbeddedIndex.open(folder / f"library-{copied}", read_only=True) as source,
        EmbeddedIndex.create(place, branch_weights={"clip": 1.0}, width=WIDTH) as index,
    ):
        rows = synthetic.films(source, num_windows // copied)
        while some := list(islice(rows, 200)):
            index._storage.put(some)
        seconds, start = time.perf_counter() - start, time.perf_counter()
        recall = index.train() if num_windows >= ann.FROM else None
        training = time.perf_counter() - start
    asked = torch.cat([synthetic.queries(kind, num_queries, copied) for kind in synthetic.NOISE])
    clips, scores = tokens_of(copied)[0], []
    for copy in range(num_windows // copied):
        products = clips.flatten(0, 1) @ synthetic.unshuffled(asked, copy).T
        whole = products[: copied // synthetic.FILM * synthetic.FILM * NUM_CLIPS]
        scores.append(whole.view(-1, synthetic.FILM * NUM_CLIPS, len(asked)).amax(1))
    best = torch.cat(scores).topk(TOP, 0).indices.T.contiguous()
    figures = {"add": seconds / num_windows, "train": training, "gate": recall, "build": seconds}
    torch.save({"queries": asked, "best": best, "figures": figures, "sources": sources()}, truth)
    return place


def sources() -> int:
    """Return a checksum of the code that builds a library. A library of other code must not be measured."""
    paths = [Path(synthetic.__file__), *sorted(Path(cascade.__file__).parent.glob("*.py"))]
    return zlib.crc32(b"".join(path.read_bytes() for path in paths))


def exact_scores(clips: Tensor, frames: Tensor, queries: Tensor) -> Tensor:
    """Return the scores [B, Q] of unit vectors."""
    parts = {"clip": clips, "frame": frames}
    return torch.stack(
        [
            weight * (parts[branch].flatten(0, 1) @ queries.T).view(*parts[branch].shape[:2], -1).amax(1)
            for branch, weight in WEIGHTS.items()
        ]
    ).sum(0)


def truth_of(folder: Path, num_videos: int, num_queries: int) -> tuple[dict[str, Tensor], dict[str, Tensor], Figures]:
    """Return the queries and the best videos by kind, and the cost of the build."""
    kept = torch.load(folder / f"truth-{num_videos}-{num_queries}.pt")
    kinds = list(synthetic.NOISE)
    return (
        dict(zip(kinds, kept["queries"].split(num_queries), strict=True)),
        dict(zip(kinds, kept["best"].split(num_queries), strict=True)),
        kept["figures"],
    )


# ---------------------------------------------------------------- measurements


def measured(searches: dict[str, Search], queries: Tensor, best: Tensor) -> dict[str, Figures]:
    """Time searches that take turns, and return the median, the 95th percentile (ms) and the recall of each.

    Args:
        searches: The candidates, by name.
        queries: The queries.
        best: The numbers of the best videos of each query.
    """
    times: dict[str, list[float]] = {name: [] for name in searches}
    found: dict[str, list[float]] = {name: [] for name in searches}
    asked = list(zip(queries, best.tolist(), strict=True))
    for turn in range(2):  # the first turn warms up
        for first in range(0, len(asked), TURN):
            for name, search in searches.items():
                for query, right in asked[first : first + TURN]:
                    start = time.perf_counter()
                    numbers = search(query)
                    if turn:
                        times[name].append(1e3 * (time.perf_counter() - start))
                        found[name].append(len(set(numbers) & set(right)) / TOP)
    return {
        name: {
            "p50": float(np.median(times[name])),
            "p95": float(np.percentile(times[name], 95)),
            "recall": float(np.mean(found[name])),
        }
        for name in searches
    }


def ours(index: EmbeddedIndex, **options: Any) -> Search:
    """Return a search in the embedded index."""

    def search(query: Tensor) -> list[int]:
        (matches,) = index.search(dict.fromkeys(BRANCHES, query[None]), top=TOP, **options)
        return [int(match.video_id.rpartition("-")[2]) for match in matches]

    return search


def research(clips: Tensor, frames: Tensor) -> Search:
    """Return a search as research code does it: all tokens in float32, one product, a maximum."""
    tokens = torch.cat((clips, frames), 1)

    def search(query: Tensor) -> list[int]:
        products = (tokens.flatten(0, 1) @ query).view(tokens.shape[:2])
        scores = WEIGHTS["clip"] * products[:, :NUM_CLIPS].amax(1) + WEIGHTS["frame"] * products[:, NUM_CLIPS:].amax(1)
        return scores.topk(TOP).indices.tolist()

    return search


def measure_library(folder: Path, num_videos: int, num_queries: int) -> Figures:
    """Measure one library. Call it in a fresh process, because it measures the memory of the process."""
    queries, best, figures = truth_of(folder, num_videos, num_queries)
    place = folder / f"library-{num_videos}"
    evict(place)
    already, before = read_from_disk(), time.perf_counter()
    index = EmbeddedIndex.open(place, read_only=True)
    figures["open"] = time.perf_counter() - before
    ours(index)(queries["easy"][0])
    figures["first"] = time.perf_counter() - before
    figures["first read"] = read_from_disk() - already
    figures["disk"] = sum(path.stat().st_size for path in place.iterdir()) / num_videos
    for kind in synthetic.NOISE:
        figures[kind] = measured({"ours": ours(index)}, queries[kind], best[kind])
    figures["resident"] = resident_megabytes("VmHWM")
    if num_videos < WINDOWS:  # exact search would read the 14 GB of all tokens for each query
        exact = slice(0, max(3, num_queries * 474 // num_videos))
        found = measured({"exact": ours(index, exact=True)}, queries["hard"][exact], best["hard"][exact])
        figures["exact"] = found["exact"]
    if num_videos <= IN_MEMORY:
        clips, frames = tokens_of(num_videos)
        few = slice(0, max(5, num_queries // 4))
        pair = {"ours": ours(index), "research": research(clips, frames)}
        figures["pair"] = measured(pair, queries["hard"][few], best["hard"][few])
    figures["read"] = bytes_read(index)
    figures["bandwidth"] = bandwidth()
    return figures


def evict(place: Path) -> None:
    """Remove the files of a folder from the memory of the kernel, so that they are read from the disk again."""
    for path in place.iterdir():
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read_from_disk() -> int:
    """Return the bytes that this process has read from the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def tokens_of(num_videos: int) -> tuple[Tensor, Tensor]:
    """Return the clips and the frames of a library."""
    pieces = list(synthetic.pieces(num_videos))
    return torch.cat([piece.clip for piece in pieces]), torch.cat([piece.frame for piece in pieces])


def bytes_read(index: EmbeddedIndex) -> float:
    """Return the bytes of vectors that one search reads."""
    copy, row = index._cascade.trained, WIDTH + -(-WIDTH // 8) + 12
    if copy is None:
        places = index._storage.roster.num_positions
        first = places * index._storage.state.coarse * WIDTH
    else:
        places = copy.let_through
        first = copy.positions * index._storage.state.coarse * WIDTH // 4 + places * index._storage.state.coarse * WIDTH
    numbers = [min(index._cascade._number(usual, TOP), places) for usual in (cascade.CANDIDATES, cascade.FINALISTS)]
    num_frames = NUM_FRAMES if "frame" in index.branch_weights else 0
    return first + numbers[0] * NUM_CLIPS * row + numbers[1] * num_frames * row


def bandwidth() -> float:
    """Return the bytes per second that all threads together read from memory."""
    threads = torch.get_num_threads()
    parts = [np.ones(2**28, np.int8) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - start)
    return threads * 2**28 / min(seconds)


# ---------------------------------------------------------------- rivals


def rescored(candidates: Callable[[Tensor], Sequence[int]], clips: Tensor, frames: Tensor, number: int) -> Search:
    """Return a search that scores the candidates of an engine exactly.

    Args:
        candidates: The engine: a function from a query to the numbers of clips, best first.
        clips: All clips.
        frames: All frames.
        number: The number of videos to score.
    """

    tokens = torch.cat((clips, frames), 1).numpy()

    def search(query: Tensor) -> list[int]:
        videos = list(dict.fromkeys(clip // NUM_CLIPS for clip in candidates(query)))[:number]
        # Score video by video, because gathering them first would copy megabytes.
        products = np.stack([tokens[video] @ query.numpy() for video in videos])
        best = {"clip": products[:, :NUM_CLIPS].max(1), "frame": products[:, NUM_CLIPS:].max(1)}
        order = np.argsort(-sum(weight * best[branch] for branch, weight in WEIGHTS.items()))
        return [videos[line] for line in order[:TOP]]

    return search


def faiss_flat(clips: Tensor, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield settings of faiss with 8-bit vectors and without a graph."""
    import faiss

    index = faiss.IndexScalarQuantizer(WIDTH, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    vectors = clips.flatten(0, 1).numpy()
    index.train(vectors[: 2**16])
    index.add(vectors)
    for k in (200, 400, 800, 2000):
        yield f"k={k}", lambda query, k=k: index.search(query[None].numpy(), k)[1][0].tolist()


def faiss_hnsw(clips: Tensor, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield settings of faiss with a graph."""
    import faiss

    index = faiss.IndexHNSWFlat(WIDTH, 32, faiss.METRIC_INNER_PRODUCT)
    index.add(clips.flatten(0, 1).numpy())
    for ef in EFFORTS:

        def candidates(query: Tensor, ef: int = ef) -> list[int]:
            index.hnsw.efSearch = ef
            found = index.search(query[None].numpy(), min(ef, 2000))[1][0]
            return found[found >= 0].tolist()

        yield f"M=32, ef={ef}", candidates


def usearch_hnsw(clips: Tensor, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield settings of usearch."""
    from usearch.index import Index

    index = Index(ndim=WIDTH, metric="ip", dtype="i8")
    index.add(np.arange(clips.shape[0] * NUM_CLIPS), clips.flatten(0, 1).numpy())
    for ef in EFFORTS:

        def candidates(query: Tensor, ef: int = ef) -> list[int]:
            index.expansion_search = ef
            return index.search(query.numpy(), min(ef, 2000)).keys.tolist()

        yield f"int8, ef={ef}", candidates


def lancedb_table(clips: Tensor, folder: Path) -> Any:
    """Return a table of all clips."""
    import lancedb
    import pyarrow as pa

    vectors = clips.flatten(0, 1).numpy()
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH)
    data = pa.table({"clip": pa.array(np.arange(len(vectors))), "vector": column})
    return lancedb.connect(folder).create_table("clips", data)


def lancedb_flat(clips: Tensor, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield LanceDB without an index."""
    kept = lancedb_table(clips, folder)

    def exhaustive(query: Tensor) -> list[int]:
        asked = kept.search(query.numpy()).distance_type("dot").limit(1000).select(["clip", "_distance"])
        return asked.to_arrow()["clip"].to_pylist()

    yield "no index", exhaustive


def lancedb_hnsw(clips: Tensor, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield settings of LanceDB with a graph."""
    kept = lancedb_table(clips, folder)
    kept.create_index("dot", vector_column_name="vector", index_type="IVF_HNSW_SQ", num_partitions=1)
    for ef in EFFORTS:

        def candidates(query: Tensor, ef: int = ef) -> list[int]:
            asked = kept.search(query.numpy()).distance_type("dot").nprobes(1).ef(ef).limit(min(ef, 1000))
            return asked.select(["clip", "_distance"]).to_arrow()["clip"].to_pylist()

        yield f"SQ8, ef={ef}", candidates


RIVALS: dict[str, tuple[str, Callable[[Tensor, Path], Iterator[tuple[str, Any]]]]] = {
    "faiss flat SQ8": ("faiss", faiss_flat),
    "faiss HNSW": ("faiss", faiss_hnsw),
    "usearch HNSW": ("usearch", usearch_hnsw),
    "LanceDB flat": ("lancedb", lancedb_flat),
    "LanceDB HNSW": ("lancedb", lancedb_hnsw),
}


def measure_rival(folder: Path, name: str, num_videos: int, num_queries: int) -> Figures:
    """Measure a rival at the first setting with a good recall on hard queries, or at its best setting."""
    queries, best, _ = truth_of(folder, num_videos, num_queries)
    clips, frames = tokens_of(num_videos)
    tried: list[Figures] = []
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        for setting, candidates in RIVALS[name][1](clips, Path(place)):
            build = time.perf_counter() - start if not tried else tried[0]["build"]
            for number in (100, 200):
                search = {name: rescored(candidates, clips, frames, number)}
                figures = {kind: measured(search, queries[kind], best[kind])[name] for kind in synthetic.NOISE}
                tried.append({**figures, "setting": f"{setting}, {number} videos", "build": build})
                if figures["hard"]["recall"] >= GOOD:
                    return tried[-1]
    return max(tried, key=lambda figures: figures["hard"]["recall"])


# ---------------------------------------------------------------- report


def in_own_process(*arguments: object, may_fail: bool = False) -> Figures:
    """Run this module in a fresh process, and return the JSON that it prints.

    Args:
        arguments: The command line.
        may_fail: Return the error of a failed process instead of exiting.
    """
    command = [sys.executable, "-m", "benchmarks.search_speed", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        error = ended.stderr.strip() or "?"
        if may_fail:
            return {"failed": error.splitlines()[-1]}
        raise SystemExit(f"{' '.join(command)} failed:\n{error}")
    return json.loads(ended.stdout.splitlines()[-1])


def targets(libraries: dict[int, Figures]) -> list[Row]:
    """Return the rows that have a bound."""
    rows: list[Row] = []
    for size, figures in libraries.items():
        if size == 5_000:
            pair = figures["pair"]
            rows.append(
                at_least("5,000 videos, research code / ours", 20, pair["research"]["p50"], pair["ours"]["p50"], "ms")
            )
            rows += [
                _recall(f"5,000 videos, recall on {kind} queries", figures[kind], 0.99) for kind in synthetic.NOISE
            ]
        if size == 100_000:
            if 5_000 in libraries:
                small = libraries[5_000]["hard"]["ours"]["p50"]
                rows.append(at_most("100,000 videos / 5,000 videos", 6, figures["hard"]["ours"]["p50"], small, "ms"))
            rows.append(_recall("100,000 videos, recall on hard queries", figures["hard"], 0.98))
            rows.append(_at_most("100,000 videos, first answer from a cold disk cache", figures["first"], 1, "s"))
            floor = figures["read"] / figures["bandwidth"] * 1e3
            rows.append(
                at_most("100,000 videos, p50 / floor", 4, figures["hard"]["ours"]["p50"], floor, "ms"),
            )
            rows.append(
                _at_most("100,000 videos, peak resident memory of the process", figures["resident"], 2000, "MB")
            )
        if size in (5_000, 100_000):
            rows.append(_at_most(f"{size:,} videos, disk per video", figures["disk"] / 1e3, 80, "KB"))
    return rows


def _recall(what: str, figures: Figures, bound: float) -> Row:
    found = figures["ours"]["recall"]
    return Row(what=what, measured=f"{found:.4f}", target=f"≥ {bound}", met=found >= bound)


def _at_most(what: str, value: float, bound: float, unit: str) -> Row:
    return Row(what=what, measured=f"{three_digits(value)} {unit}", target=f"≤ {bound:,} {unit}", met=value <= bound)


def line(*cells: object) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def spread(figures: Figures) -> str:
    """Return the median and the 95th percentile as text."""
    return f"{figures['p50']:.1f} / {figures['p95']:.1f}"


def report(libraries: dict[int, Figures], rivals: dict[str, Figures], missing: Sequence[str], num_queries: int) -> str:
    """Return the report as Markdown."""
    lines = [
        "# Search speed",
        "",
        "Measured by `make bench-search`, one query at a time. Times are median / 95th percentile in milliseconds.",
        "Recall compares the ten best videos with exact search in float32. Research code means torch with all tokens",
        f"in float32, one product and a maximum, on the same threads. It takes turns with our search, {TURN} queries",
        "at a time.",
        "",
        f"Libraries of random vectors: {NUM_CLIPS} clips and {NUM_FRAMES} frames of width {WIDTH} per video,",
        f"{num_queries} easy queries (cosine 0.71 with their frame) and as many hard ones (0.32). See",
        "benchmarks/synthetic.py.",
        "",
        machine(),
        "",
        *table(targets(libraries)),
        "",
        "## Ours",
        "",
        line("videos", *("easy ms", "recall", "hard ms", "recall", "exact ms", "recall"), *OTHERS),
        line(*["---"] * (7 + len(OTHERS))),
    ]
    for size, figures in libraries.items():
        easy, hard, exact = figures["easy"]["ours"], figures["hard"]["ours"], figures.get("exact")
        cells = [f"{size:,}", spread(easy), f"{easy['recall']:.4f}", spread(hard), f"{hard['recall']:.4f}"]
        cells += [spread(exact), f"{exact['recall']:.4f}"] if exact else ["", ""]
        cells += [f"{figures['first']:.2f}", three_digits(figures["first read"] / 1e6), f"{1e3 * figures['add']:.1f}"]
        cells += [f"{1e3 * figures['read'] / figures['bandwidth']:.2f}", three_digits(figures["resident"])]
        lines.append(line(*cells))
    lines += [
        "",
        "`floor` is the time that this machine needs to read the vectors of a search from memory. `exact` scores every",
        "token. `first` is the time to open the library and answer the first query, with none of its files in the",
        "kernel's cache, and what it reads from the disk. `memory` is the peak of the process. The largest library has",
        f"{WINDOWS:,} windows in films of {synthetic.FILM} windows, with clips only. From {ann.FROM:,} windows on,",
        "there is a compressed copy:",
        "",
        *(f"- {size:,} videos: {copy_of(figures)}" for size, figures in libraries.items() if size >= ann.FROM),
        "",
        f"## Others, {RIVALS_AT:,} videos",
        "",
        line("engine", "setting", "easy ms", "recall", "hard ms", "recall", "build s"),
        line(*["---"] * 7),
    ]
    if RIVALS_AT in libraries and "pair" in libraries[RIVALS_AT]:
        lines.append(
            line(
                "torch float32",
                "research code",
                "",
                "",
                spread(libraries[RIVALS_AT]["pair"]["research"]),
                "1",
                "",
            )
        )
    for name, figures in rivals.items():
        if "failed" in figures:
            lines.append(line(name, f"failed: {figures['failed']}", *[""] * 5))
            continue
        easy, hard = figures["easy"], figures["hard"]
        cells = [name, figures["setting"], spread(easy), f"{easy['recall']:.3f}", spread(hard), f"{hard['recall']:.3f}"]
        lines.append(line(*cells, f"{figures['build']:.0f}"))
    lines += ["", "Each at its first setting with a recall of 99 % on hard queries, or at its best setting."]
    if missing:
        lines += ["", f"Not measured, because not installed: {', '.join(missing)}."]
    return "\n".join([*lines, ""])


def copy_of(figures: Figures) -> str:
    """Return a line about the compressed copy of a library."""
    built = f"built in {figures['train']:.0f} s"
    if figures["gate"] is None:
        return f"none, because faiss is not installed or its recall is too low ({built}), so searches scan"
    return f"{built}, recall {figures['gate']:.3f} compared with a scan"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of videos")
    parser.add_argument("--queries", type=int, default=200, help="number of easy and of hard queries [200]")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "midreel-bench-search",
        help="cache for the libraries",
    )
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    parser.add_argument("--library", type=int, help="measure one cached library, and print JSON")
    parser.add_argument(
        "--rival", choices=RIVALS, help="measure one rival on the library of --rivals-at, and print JSON"
    )
    parser.add_argument("--rivals-at", type=int, default=RIVALS_AT, help="size of the rivals' library [5000]")
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="the folder of make demo [runs/demo]")
    parser.add_argument(
        "--end-to-end", action="store_true", help="measure only the library of the demo, and print JSON"
    )
    arguments = parser.parse_args()
    folder, number = arguments.folder, arguments.queries
    if arguments.library:
        print(json.dumps(measure_library(folder, arguments.library, number)))
        return
    if arguments.rival:
        print(json.dumps(measure_rival(folder, arguments.rival, arguments.rivals_at, number)))
        return
    if arguments.end_to_end:
        print(json.dumps(end_to_end.measure(arguments.demo)))
        return
    if not (arguments.demo / LIBRARY).exists():
        raise SystemExit(f"{arguments.demo} has no library. Run make demo, or name its folder with --demo.")
    folder.mkdir(parents=True, exist_ok=True)
    for size in arguments.sizes:
        (prepare_films if size >= WINDOWS else prepare)(folder, size, number)
    common = ("--folder", folder, "--queries", number)
    libraries = {size: in_own_process("--library", size, *common) for size in arguments.sizes}
    present = {name for name, (module, _) in RIVALS.items() if importlib.util.find_spec(module)}
    rivals = {
        name: in_own_process("--rival", name, "--rivals-at", arguments.rivals_at, *common, may_fail=True)
        for name in RIVALS
        if name in present and arguments.rivals_at in arguments.sizes
    }
    text = report(libraries, rivals, [name for name in RIVALS if name not in present], number)
    text += "\n" + "\n".join(end_to_end.lines(in_own_process("--end-to-end", "--demo", arguments.demo)))
    publish(text, arguments.write)


if __name__ == "__main__":
    main()
