"""Measure a cold search: a new process that finds one sentence, with onnxruntime and with torch.

    make bench-start

Needs the library of the demo. The two engines take turns, each in a new process, so that load on the machine affects
both. A further process reports where its time goes. The same queries are ranked by both engines, and by onnxruntime
with texts in eight bits. At the end, the frames a second of a ViT-B/32 with random weights.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.measuring import Row, at_least, in_turns, machine, publish, table, three_digits
from midreel.datasets import open_annotations
from midreel.features.backbones.base import Engine, load_backbone
from midreel.library.searcher import Searcher
from tests.features.tiny_clip import save_base_clip

MAX_SECONDS, MAX_MEGABYTES, MAX_READY, MIN_FASTER, MAX_LOSS = 0.8, 200, 1.5, 1.5, 0.2
QUERY = "an orange rocket stands in front of a black ball"
ENGINES: tuple[Engine, ...] = ("onnx", "torch")
ALL_ENGINES: tuple[Engine, ...] = ("torch", "onnx", "onnx-int8")
BATCH = 32
# Runs a command and prints its time and its peak of memory. It is a small process of its own, because Linux counts the
# memory of the process that starts another as the memory of that one.
LAUNCH = """
import json, os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
found = {"seconds": time.perf_counter() - start, "cpu": used.ru_utime + used.ru_stime}
found["megabytes"] = used.ru_maxrss / 1024
print(json.dumps(found))
sys.exit(bool(status))
"""
# Each step of a search, timed in a process of its own.
STEPS = """
import json, sys, time
start, found = time.perf_counter(), {}
def step(name):
    global start
    now = time.perf_counter()
    found[name], start = now - start, now
import numpy
step("import numpy")
import midreel.cli
step("import the command line (typer)")
from midreel.cli.results import table
from midreel.library.searcher import Searcher
step("import the search (jaxtyping and midreel)")
import onnxruntime
step("import onnxruntime")
searcher = Searcher.open(sys.argv[1])
backbone = searcher.backbone
step("open the library; tokenizer and hash of the weights")
texts = backbone.encode_texts([sys.argv[2]])
step("load the text tower, and encode the sentence")
vectors = searcher.encoder.encode_queries(texts)
step("load the head, and apply it")
hits = searcher.search(sys.argv[2], top=10)
step("open the index and the catalogue, score, find moments")
shown = table(sys.argv[2], hits)
step("format the result")
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Cold:
    """One search in a new process."""

    seconds: float
    cpu: float
    megabytes: float


def environment() -> dict[str, str]:
    """Return the environment of the processes: they keep compiled modules, as an installation does."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def cold(library: Path, engine: str) -> Cold:
    """Search in a new process, and return its time and its peak of memory."""
    words = [sys.executable, "-m", "midreel", "search", str(library), QUERY, "--engine", engine]
    launch = [sys.executable, "-c", LAUNCH, *words]
    measured = subprocess.run(launch, check=True, capture_output=True, text=True, env=environment())
    return Cold(**json.loads(measured.stdout))


def cold_rows(library: Path, rounds: int) -> list[Row]:
    """Compare cold searches of both engines, which take turns."""
    seen: dict[str, list[Cold]] = {engine: [] for engine in ENGINES}
    for turn in range(rounds + 1):
        for engine in ENGINES:
            found = cold(library, engine)
            if turn:  # the first fills the page cache
                seen[engine].append(found)
    times = {engine: statistics.median(each.seconds for each in runs) for engine, runs in seen.items()}
    cpu = {engine: statistics.median(each.cpu for each in runs) for engine, runs in seen.items()}
    peak = {engine: max(each.megabytes for each in runs) for engine, runs in seen.items()}
    spread = [each.seconds for each in seen["onnx"]]
    wall = f"{times['onnx']:.2f} s ({min(spread):.2f} to {max(spread):.2f} s)"
    return [
        Row(
            what="`midreel search`, wall time",
            measured=wall,
            target=f"≤ {MAX_SECONDS} s",
            met=times["onnx"] <= MAX_SECONDS,
        ),
        Row(
            what="`midreel search`, peak of memory",
            measured=f"{peak['onnx']:.0f} MB",
            target=f"≤ {MAX_MEGABYTES} MB",
            met=peak["onnx"] <= MAX_MEGABYTES,
        ),
        Row(what="… time of the processor", measured=f"{cpu['onnx']:.2f} s"),
        at_least("wall time with `--engine torch` / with onnxruntime", 1, times["torch"], times["onnx"]),
        at_least("time of the processor with `--engine torch` / with onnxruntime", 1, cpu["torch"], cpu["onnx"]),
        at_least("peak of memory with `--engine torch` / with onnxruntime", 1, peak["torch"], peak["onnx"], "MB"),
    ]


def serve_row(library: Path, rounds: int) -> Row:
    """Measure the time from the start of a server to its first answer that it is ready."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        words = [sys.executable, "-m", "midreel", "serve", str(library), "--port", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as server:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            while True:
                try:
                    urllib.request.urlopen(f"{address}readyz", timeout=30).close()
                    break
                except urllib.error.HTTPError as error:
                    if error.code == 404:
                        raise
                    time.sleep(0.02)
            times.append(time.perf_counter() - start)
            server.terminate()
    median = statistics.median(times)
    return Row(
        what="`midreel serve`, from its start until a search is answered",
        measured=f"{median:.2f} s ({min(times):.2f} to {max(times):.2f} s)",
        target=f"≤ {MAX_READY} s",
        met=median <= MAX_READY,
    )


def step_lines(library: Path, rounds: int) -> list[str]:
    """Return a table of the steps of a cold search."""
    words = [sys.executable, "-c", STEPS, str(library), QUERY]
    given = environment() | {"OPENBLAS_NUM_THREADS": "1"}  # as the command sets it
    runs = [json.loads(subprocess.run(words, check=True, capture_output=True, env=given).stdout) for _ in range(rounds)]
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    total = sum(medians.values())
    lines = [f"| {name} | {1000 * took:.0f} ms | {took / total:.0%} |" for name, took in medians.items()]
    return ["| step | time | share |", "|---|---|---|", *lines, f"| all | {1000 * total:.0f} ms | |"]


def quality(library: Path, dataset: Path) -> tuple[list[Row], list[str]]:
    """Rank the queries of the demo with each engine. Return rows, and the lines of differing rankings."""
    queries = open_annotations(dataset).splits["test"].queries
    texts = [query.text for query in queries]
    found = {}
    for engine in ALL_ENGINES:
        with Searcher.open(library, engine=engine) as searcher:
            found[engine] = searcher.search_all(texts, top=10, exact=True)
    ids = {engine: [[hit.path.stem for hit in hits] for hits in each] for engine, each in found.items()}
    recalls = {
        engine: [
            100 * np.mean([query.video_id in hits[:top] for query, hits in zip(queries, each, strict=True)])
            for top in (1, 5, 10)
        ]
        for engine, each in ids.items()
    }
    differing = [n for n, (a, b) in enumerate(zip(ids["torch"], ids["onnx"], strict=True)) if a != b]
    scores = [
        abs(a.score - b.score)
        for one, other in zip(found["torch"], found["onnx"], strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    loss = max(float(a - b) for a, b in zip(recalls["onnx"], recalls["onnx-int8"], strict=True))
    shown = {engine: " / ".join(f"{recall:.2f}" for recall in each) for engine, each in recalls.items()}
    rows = [
        Row(
            what=f"queries of the demo whose ten hits differ between the engines, of {len(texts)}",
            measured=str(len(differing)),
            target="0",
            met=not differing,
        ),
        Row(
            what="largest difference of a score",
            measured=f"{max(scores):.1e}",
            target="≤ 1e-4",
            met=max(scores) <= 1e-4,
        ),
        Row(what="R@1 / R@5 / R@10 with torch, with onnxruntime", measured=f"{shown['torch']}; {shown['onnx']}"),
        Row(
            what="loss of recall by texts in eight bits (`--engine onnx-int8`), the largest of three",
            measured=f"{loss:.2f} points ({shown['onnx-int8']})",
            target=f"< {MAX_LOSS}",
            met=loss < MAX_LOSS,
        ),
    ]
    lines = [f"- “{texts[n]}”: torch {ids['torch'][n]}, onnxruntime {ids['onnx'][n]}" for n in differing]
    return rows, lines


def vit_rows(rounds: int) -> list[Row]:
    """Compare the frames a second of a ViT-B/32 of random weights."""
    with TemporaryDirectory() as folder:
        spec = f"local-dir:{save_base_clip(Path(folder) / 'clip')}"
        backbones = [load_backbone(spec, engine=engine) for engine in ALL_ENGINES]
        pixels = np.random.default_rng(0).integers(0, 256, (BATCH, 3, 224, 224), dtype=np.uint8)
        torch, onnx, int8 = in_turns([lambda b=b: b.encode_pixels(pixels) for b in backbones], rounds)  # type: ignore[misc]
        exact, rounded = (backbone.encode_pixels(pixels) for backbone in backbones[1:])
    norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(rounded, axis=1)
    cosines = (exact * rounded).sum(1) / norms
    rates = [BATCH / seconds for seconds in (torch, onnx, int8)]
    return [
        at_least("ViT-B/32, onnxruntime / torch, frames a second", MIN_FASTER, rates[1], rates[0], "/s"),
        at_least("ViT-B/32, onnxruntime in eight bits / torch, frames a second", MIN_FASTER, rates[2], rates[0], "/s"),
        Row(
            what="cosine of vectors in eight bits with exact ones: mean, lowest",
            measured=f"{cosines.mean():.5f}, {cosines.min():.5f}",
        ),
    ]


def report(library: Path, dataset: Path, rounds: int) -> str:
    """Measure everything, and return the report as Markdown."""
    load = os.getloadavg()[0]
    rows = [*cold_rows(library, rounds), serve_row(library, max(3, rounds // 2))]
    steps = step_lines(library, rounds)
    ranked, differing = quality(library, dataset)
    lines = [
        "# Start speed",
        "",
        "Measured by `make bench-start`, on the library of the demo: 200 videos, tiny CLIP, MSC. Each search is a new",
        f"process. Medians of {rounds} rounds, in which the engines take turns. The load of the machine was",
        f"{three_digits(load)} when the measurement began; seconds depend on it, ratios hardly.",
        "",
        machine(),
        "",
        "## Cold start",
        "",
        *table(rows),
        "",
        "## Where the time goes",
        "",
        "The steps of one search in a new process, after the start of Python itself.",
        "",
        *steps,
        "",
        "## The same results",
        "",
        *table(ranked),
        *(["", "The queries that differ:", "", *differing] if differing else []),
        "",
        "## Frames a second",
        "",
        f"A ViT-B/32 of random weights, batches of {BATCH}. Random weights have no outliers, so eight bits may cost",
        "more with trained ones.",
        "",
        *table(vit_rows(rounds)),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=Path("runs/demo/library"))
    parser.add_argument("--dataset", type=Path, default=Path("runs/demo/dataset"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--write", type=Path, default=None)
    options = parser.parse_args(arguments)
    publish(report(options.library, options.dataset, options.rounds), options.write)


if __name__ == "__main__":
    main()
