"""Measure the stages of a search and of indexing. Part of `make bench-search`.

Uses the dataset and the library in `runs/demo`, which `make demo` creates.
"""

import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measuring import Row, table
from midreel.datasets import own
from midreel.experiments.demo import DATASET, LIBRARY
from midreel.library import indexer
from midreel.library.searcher import Searcher
from midreel.library.writer import Wanted, Writer
from tests.features.tiny_clip import save_base_clip

ROUNDS = 3  # over the queries, after one to warm up
NUM_QUERIES = 100
NUM_FILMS = 8  # to index with a large backbone, which is slow
MAX_SEARCH, MAX_OUTSIDE = 6.0, 0.1  # milliseconds of a search; share of indexing with tiny-clip outside the backbone
TINY = "tiny-clip"


class Stopwatch:
    """A stopwatch that adds up the seconds in methods, by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, target: Any, method: str, stage: str) -> None:
        """Replace a method of an object by one that counts its seconds for a stage."""
        plain = getattr(target, method)

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return plain(*arguments, **options)
            finally:
                self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

        setattr(target, method, timed)


def query_stages(library: Path, queries: Sequence[str]) -> dict[str, float]:
    """Return the median milliseconds of a search by stage, when everything is loaded. The stage "all" is the total."""
    watch, taken = Stopwatch(), list[dict[str, float]]()
    with Searcher.open(library) as searcher:
        searcher.search(queries[0])  # loads everything
        watch.watch(searcher.backbone, "encode_texts", "words, by the backbone")
        watch.watch(searcher.encoder, "encode_queries", "query, by the head")
        watch.watch(searcher.index, "search", "index")
        watch.watch(searcher.index, "tokens_of", "tokens of the hits")
        watch.watch(searcher, "search", "all")
        for turn in range(1 + ROUNDS):
            for query in queries:
                watch.seconds = {}
                searcher._unload()  # forget the vectors of recent queries
                searcher.search(query)
                if turn:
                    taken.append(dict(watch.seconds))
    stages = {name: 1e3 * statistics.median(each[name] for each in taken) for name in taken[0]}
    others = [each["all"] - sum(value for name, value in each.items() if name != "all") for each in taken]
    return stages | {"moments, curves, catalogue": 1e3 * statistics.median(others)}


def indexing_seconds(files: Iterable[Path], backbone: str) -> dict[str, float]:
    """Return the seconds of indexing by stage. The entry "video" is the duration of the films."""
    with TemporaryDirectory() as folder, Writer.open(Path(folder) / "library", Wanted(backbone=backbone)) as writer:
        report = indexer.index(writer, list(files))
    if report.is_partial:
        raise SystemExit(report.text)
    return {**report.seconds, "video": report.video_seconds}


def measure(demo: Path) -> dict[str, Any]:
    """Measure everything on a demo, and return figures for `lines`."""
    test = own.read(demo / DATASET)["test"]
    films = sorted((demo / DATASET).glob("*.mp4"))
    with TemporaryDirectory() as folder:
        large = f"local-dir:{save_base_clip(Path(folder))}"
        indexing = {
            f"{TINY}, {len(films)} films": indexing_seconds(films, TINY),
            f"a ViT-B/32, {NUM_FILMS} films": indexing_seconds(films[:NUM_FILMS], large),
        }
    queries = [query.text for query in test.queries[:NUM_QUERIES]]
    return {"videos": len(films), "stages": query_stages(demo / LIBRARY, queries), "indexing": indexing}


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    stages = figures["stages"]
    rows = [f"| {name} | {value:.2f} | {value / stages['all']:.0%} |" for name, value in stages.items()]
    return [
        f"## From a sentence to its moments, {figures['videos']} videos",
        "",
        "The library and the model of the demo, one query at a time, everything loaded. The parts are medians, so they",
        "need not add up to the total.",
        "",
        "| part | ms | share |",
        "| --- | --- | --- |",
        *sorted(rows, key=lambda row: row.startswith("| all")),
        "",
        *table(_targets(figures)),
        "",
        "## From a file to the index",
        "",
        "Decoding runs in parallel with the backbone, as far as the cores allow. The time outside the backbone is for",
        "the decoder, the disk, the tokens, the index and the catalogue.",
        "",
        "| backbone | speed, x real time | not in the backbone | tokens | index and catalogue |",
        "| --- | --- | --- | --- | --- |",
        *(_indexing_line(name, seconds) for name, seconds in figures["indexing"].items()),
        "",
    ]


def _targets(figures: dict[str, Any]) -> list[Row]:
    """Return the rows that have a bound."""
    search = figures["stages"]["all"]
    (tiny,) = (seconds for name, seconds in figures["indexing"].items() if name.startswith(TINY))
    outside = 1 - tiny["backbone"] / tiny["total"]
    return [
        Row(
            what="from a sentence to its moments",
            measured=f"{search:.2f} ms",
            target=f"≤ {MAX_SEARCH:g} ms",
            met=search <= MAX_SEARCH,
        ),
        Row(
            what=f"indexing with {TINY}, not in the backbone",
            measured=f"{outside:.0%}",
            target=f"≤ {MAX_OUTSIDE:.0%}",
            met=outside <= MAX_OUTSIDE,
        ),
    ]


def _indexing_line(name: str, seconds: dict[str, float]) -> str:
    total = seconds["total"]
    stored = seconds["index"] + seconds["catalogue"]
    return (
        f"| {name} | {seconds['video'] / total:,.0f} | {1 - seconds['backbone'] / total:.0%} | "
        f"{seconds['tokens'] / total:.0%} | {stored / total:.0%} |"
    )
