"""How fast the embedded index searches, and what it finds, beside the way of research code and other engines.

    make bench-search

Libraries of random vectors (benchmarks/synthetic.py) of 474, 5,000, 20,000 and 100,000 videos with 32 clips and 128
frames of width 384. They are kept in --folder (7.8 GB for the largest) and used again
unless the code of the index has changed. What is not installed is left
out and named. Other engines get the clips, name candidates, and the candidates are scored exactly from memory; each
walks up its settings until it finds 99 % on hard queries.
"""

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import end_to_end, synthetic
from benchmarks.measuring import Row, at_least, at_most, machine, table, three_digits
from benchmarks.synthetic import NUM_CLIPS, NUM_FRAMES, WEIGHTS, WIDTH
from midreel.index import EmbeddedIndex
from midreel.index.embedded import ann, cascade

SIZES = (474, 5_000, 20_000, 100_000)
RIVALS_AT = 5_000
IN_MEMORY = 5_000  # videos of which all vectors are kept in float32 (1.2 GB), for the way of research code
TOP = 10
TURN = 10  # queries that a search answers before the next has its turn; one alone would find its cache emptied
BRANCHES = tuple(WEIGHTS)
GOOD = 0.99  # of recall, at which a rival need not be tuned further
OTHERS = ("open s", "first s", "add ms", "floor ms")
EFFORTS = (512, 1024, 2048, 4096, 8192)  # of those that search graphs

Search = Callable[[Tensor], list[int]]  # a query's vector -> numbers of videos, best first
Figures = dict[str, Any]


# ---------------------------------------------------------------- libraries


def prepare(folder: Path, num_videos: int, num_queries: int) -> Path:
    """An index of that many videos, and what exact search in float32 finds for easy and hard queries."""
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


def sources() -> int:
    """Of what a library is made by: one that was made by other code would be measured for it."""
    paths = [Path(synthetic.__file__), *sorted(Path(cascade.__file__).parent.glob("*.py"))]
    return zlib.crc32(b"".join(path.read_bytes() for path in paths))


def exact_scores(clips: Tensor, frames: Tensor, queries: Tensor) -> Tensor:
    """[B, Q], all vectors being of length one."""
    parts = {"clip": clips, "frame": frames}
    return torch.stack(
        [
            weight * (parts[branch].flatten(0, 1) @ queries.T).view(*parts[branch].shape[:2], -1).amax(1)
            for branch, weight in WEIGHTS.items()
        ]
    ).sum(0)


def truth_of(folder: Path, num_videos: int, num_queries: int) -> tuple[dict[str, Tensor], dict[str, Tensor], Figures]:
    """Queries, best videos by kind, and what building cost."""
    kept = torch.load(folder / f"truth-{num_videos}-{num_queries}.pt")
    kinds = list(synthetic.NOISE)
    return (
        dict(zip(kinds, kept["queries"].split(num_queries), strict=True)),
        dict(zip(kinds, kept["best"].split(num_queries), strict=True)),
        kept["figures"],
    )


# ---------------------------------------------------------------- what is measured


def measured(searches: dict[str, Search], queries: Tensor, best: Tensor) -> dict[str, Figures]:
    """Median and 95th percentile of the milliseconds, and recall, of searches that take turns, a few queries each."""
    times: dict[str, list[float]] = {name: [] for name in searches}
    found: dict[str, list[float]] = {name: [] for name in searches}
    asked = list(zip(queries, best.tolist(), strict=True))
    for turn in range(2):  # the first warms up
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
    def search(query: Tensor) -> list[int]:
        (matches,) = index.search(dict.fromkeys(BRANCHES, query[None]), top=TOP, **options)
        return [int(match.video_id.rpartition("-")[2]) for match in matches]

    return search


def research(clips: Tensor, frames: Tensor) -> Search:
    """All tokens in float32, a product, a maximum."""
    tokens = torch.cat((clips, frames), 1)

    def search(query: Tensor) -> list[int]:
        products = (tokens.flatten(0, 1) @ query).view(tokens.shape[:2])
        scores = WEIGHTS["clip"] * products[:, :NUM_CLIPS].amax(1) + WEIGHTS["frame"] * products[:, NUM_CLIPS:].amax(1)
        return scores.topk(TOP).indices.tolist()

    return search


def measure_library(folder: Path, num_videos: int, num_queries: int) -> Figures:
    """All about one library, in a process of its own, whose memory is its own."""
    queries, best, figures = truth_of(folder, num_videos, num_queries)
    place = folder / f"library-{num_videos}"
    before = time.perf_counter()
    index = EmbeddedIndex.open(place, read_only=True)
    figures["open"] = time.perf_counter() - before
    ours(index)(queries["easy"][0])
    figures["first"] = time.perf_counter() - before
    figures["disk"] = sum(path.stat().st_size for path in place.iterdir()) / num_videos
    for kind in synthetic.NOISE:
        figures[kind] = measured({"ours": ours(index)}, queries[kind], best[kind])
    figures["resident"] = peak_megabytes()
    exact = slice(0, max(3, num_queries * 474 // num_videos))
    figures["exact"] = measured({"exact": ours(index, exact=True)}, queries["hard"][exact], best["hard"][exact])[
        "exact"
    ]
    if num_videos <= IN_MEMORY:
        clips, frames = tokens_of(num_videos)
        few = slice(0, max(5, num_queries // 4))
        pair = {"ours": ours(index), "research": research(clips, frames)}
        figures["pair"] = measured(pair, queries["hard"][few], best["hard"][few])
    figures["read"] = bytes_read(index)
    figures["bandwidth"] = bandwidth()
    return figures


def tokens_of(num_videos: int) -> tuple[Tensor, Tensor]:
    pieces = list(synthetic.pieces(num_videos))
    return torch.cat([piece.clip for piece in pieces]), torch.cat([piece.frame for piece in pieces])


def bytes_read(index: EmbeddedIndex) -> float:
    """Of vectors, by one search."""
    copy, row = index._cascade.trained, WIDTH + -(-WIDTH // 8) + 12
    if copy is None:
        places, first = len(index), len(index) * index._storage.state.coarse * WIDTH
    else:
        places = copy.let_through
        first = copy.places * index._storage.state.coarse * WIDTH // 4 + places * index._storage.state.coarse * WIDTH
    numbers = [min(index._cascade._number(usual, TOP), places) for usual in (cascade.CANDIDATES, cascade.FINALISTS)]
    return first + numbers[0] * NUM_CLIPS * row + numbers[1] * NUM_FRAMES * row


def bandwidth() -> float:
    """Bytes per second that all threads together read from memory."""
    threads = torch.get_num_threads()
    parts = [np.ones(2**28, np.int8) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - start)
    return threads * 2**28 / min(seconds)


def peak_megabytes() -> float:
    """The most memory that this process ever had, torch and all."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


# ---------------------------------------------------------------- rivals


def rescored(candidates: Callable[[Tensor], Sequence[int]], clips: Tensor, frames: Tensor, number: int) -> Search:
    """From an engine's clips, best first, to videos, of which the first `number` are scored exactly."""

    tokens = torch.cat((clips, frames), 1).numpy()

    def search(query: Tensor) -> list[int]:
        videos = list(dict.fromkeys(clip // NUM_CLIPS for clip in candidates(query)))[:number]
        # Video by video: gathering them first would copy megabytes.
        products = np.stack([tokens[video] @ query.numpy() for video in videos])
        best = {"clip": products[:, :NUM_CLIPS].max(1), "frame": products[:, NUM_CLIPS:].max(1)}
        order = np.argsort(-sum(weight * best[branch] for branch, weight in WEIGHTS.items()))
        return [videos[line] for line in order[:TOP]]

    return search


def faiss_flat(clips: Tensor, folder: Path) -> Iterator[tuple[str, Any]]:
    import faiss

    index = faiss.IndexScalarQuantizer(WIDTH, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    vectors = clips.flatten(0, 1).numpy()
    index.train(vectors[: 2**16])
    index.add(vectors)
    for k in (200, 400, 800, 2000):
        yield f"k={k}", lambda query, k=k: index.search(query[None].numpy(), k)[1][0].tolist()


def faiss_hnsw(clips: Tensor, folder: Path) -> Iterator[tuple[str, Any]]:
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
    from usearch.index import Index

    index = Index(ndim=WIDTH, metric="ip", dtype="i8")
    index.add(np.arange(clips.shape[0] * NUM_CLIPS), clips.flatten(0, 1).numpy())
    for ef in EFFORTS:

        def candidates(query: Tensor, ef: int = ef) -> list[int]:
            index.expansion_search = ef
            return index.search(query.numpy(), min(ef, 2000)).keys.tolist()

        yield f"int8, ef={ef}", candidates


def lancedb_table(clips: Tensor, folder: Path) -> Any:
    import lancedb
    import pyarrow as pa

    vectors = clips.flatten(0, 1).numpy()
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH)
    data = pa.table({"clip": pa.array(np.arange(len(vectors))), "vector": column})
    return lancedb.connect(folder).create_table("clips", data)


def lancedb_flat(clips: Tensor, folder: Path) -> Iterator[tuple[str, Any]]:
    kept = lancedb_table(clips, folder)

    def exhaustive(query: Tensor) -> list[int]:
        asked = kept.search(query.numpy()).distance_type("dot").limit(1000).select(["clip", "_distance"])
        return asked.to_arrow()["clip"].to_pylist()

    yield "no index", exhaustive


def lancedb_hnsw(clips: Tensor, folder: Path) -> Iterator[tuple[str, Any]]:
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
    """A rival at the first setting that is good enough on hard queries, or at its best."""
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


# ---------------------------------------------------------------- how it is shown


def in_own_process(*arguments: object, may_fail: bool = False) -> Figures:
    command = [sys.executable, "-m", "benchmarks.search_speed", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        words = ended.stderr.strip() or "?"
        if may_fail:
            return {"failed": words.splitlines()[-1]}
        raise SystemExit(f"{' '.join(command)} failed:\n{words}")
    return json.loads(ended.stdout.splitlines()[-1])


def targets(libraries: dict[int, Figures]) -> list[Row]:
    rows: list[Row] = []
    for size, figures in libraries.items():
        if size == 5_000:
            pair = figures["pair"]
            rows.append(
                at_least(
                    "5,000 videos, way of research code / ours", 20, pair["research"]["p50"], pair["ours"]["p50"], "ms"
                )
            )
            rows += [
                _recall(f"5,000 videos, recall on {kind} queries", figures[kind], 0.99) for kind in synthetic.NOISE
            ]
        if size == 100_000:
            if 5_000 in libraries:
                small = libraries[5_000]["hard"]["ours"]["p50"]
                rows.append(at_most("100,000 videos / 5,000 videos", 6, figures["hard"]["ours"]["p50"], small, "ms"))
            rows.append(_recall("100,000 videos, recall on hard queries", figures["hard"], 0.98))
            rows.append(
                _at_most(
                    "100,000 videos, resident memory at its peak, the whole process", figures["resident"], 2000, "MB"
                )
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
    return "| " + " | ".join(map(str, cells)) + " |"


def spread(figures: Figures) -> str:
    return f"{figures['p50']:.1f} / {figures['p95']:.1f}"


def report(libraries: dict[int, Figures], rivals: dict[str, Figures], missing: Sequence[str], num_queries: int) -> str:
    lines = [
        "# Search speed",
        "",
        "Measured by `make bench-search`: one query at a time, milliseconds as median / 95th percentile, recall of the",
        "ten best videos against exact search in float32. The ratio to the way of research code (torch, all tokens in",
        f"float32, one product and a maximum, the same threads) is taken in turns of {TURN} queries.",
        "",
        f"Libraries of random vectors: {NUM_CLIPS} clips and {NUM_FRAMES} frames of width {WIDTH} a video,",
        f"{num_queries} easy queries (cosine 0.71 with their frame) and as many hard ones (0.32); see",
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
        easy, hard, exact = figures["easy"]["ours"], figures["hard"]["ours"], figures["exact"]
        cells = [f"{size:,}", spread(easy), f"{easy['recall']:.4f}", spread(hard), f"{hard['recall']:.4f}"]
        cells += [spread(exact), f"{exact['recall']:.4f}", f"{figures['open']:.2f}", f"{figures['first']:.2f}"]
        cells.append(f"{1e3 * figures['add']:.1f}")
        lines.append(line(*cells, f"{1e3 * figures['read'] / figures['bandwidth']:.2f}"))
    lines += [
        "",
        "The floor is the time to read the bytes of vectors that a search touches, at the speed at which this machine",
        "reads memory. `exact` scores every token. `open` is lazy; `first` is opening and the first answer, most of it",
        f"reading what the kernel has not in its cache. From {ann.FROM:,} videos on, the compressed copy:",
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
                "way of research code",
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
    lines += ["", "Each at the first of its settings that finds 99 % on hard queries, or at its best one."]
    if missing:
        lines += ["", f"Not installed, so not measured: {', '.join(missing)}."]
    return "\n".join([*lines, ""])


def copy_of(figures: Figures) -> str:
    built = f"built in {figures['train']:.0f} s"
    if figures["gate"] is None:
        return f"none, for faiss is not installed or its recall was too low ({built}); the scan serves"
    return f"{built}, recall {figures['gate']:.3f} of what the scan finds"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "midreel-bench-search")
    parser.add_argument("--write", type=Path, help="also write the tables to this file")
    parser.add_argument("--library", type=int, help="measure one library that is there, and print JSON")
    parser.add_argument(
        "--rival", choices=RIVALS, help="measure one rival on the library of --rivals-at, and print JSON"
    )
    parser.add_argument("--rivals-at", type=int, default=RIVALS_AT)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="what make demo has made")
    parser.add_argument("--end-to-end", action="store_true", help="measure the demo's library only, and print JSON")
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
    if not (arguments.demo / "search").exists():
        raise SystemExit(f"{arguments.demo} has no library to search; run make demo first, or say where it is: --demo")
    folder.mkdir(parents=True, exist_ok=True)
    for size in arguments.sizes:
        prepare(folder, size, number)
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
    print(text)
    if arguments.write:
        arguments.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
