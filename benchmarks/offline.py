"""Measure the backbone `offline` on real footage, and show how its settings were chosen.

    make bench-offline VIDEOS=FOLDER STAMPS=FOLDER

VIDEOS has the films that benchmarks/data/real_footage.jsonl names. Its sentences were written from the pictures before
any model was run on them. STAMPS is the folder of the Debian package tuxpaint-stamps-default: photographs of things,
with a sentence about each. The settings were chosen on these (benchmarks/offline_choice.py).
"""

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import offline_choice
from benchmarks.measuring import machine, publish
from midreel import Searcher
from midreel.library import indexer
from midreel.library.hits import Hit
from midreel.library.writer import Wanted, Writer

SENTENCES = Path(__file__).parent / "data" / "real_footage.jsonl"
BACKBONES = ("offline", "tiny-clip")
NUM_RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence, and what it describes.

    Attributes:
        text: The sentence.
        videos: The names of the films that it is true of.
        windows: The start and end of each part that it describes, by film. Films without an obvious part are absent.
    """

    text: str
    videos: frozenset[str]
    windows: dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a search for a sentence found.

    Attributes:
        rank: The rank of the first right film, from 1.
        overlap: The largest intersection over union of its best moment with a described part, or None if unknown.
        inside: Whether the peak of the best moment is in a described part, or None if unknown.
    """

    rank: int
    overlap: float | None = None
    inside: bool | None = None


def read_sentences(path: Path = SENTENCES) -> list[Sentence]:
    """Return the sentences in a JSON Lines file."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        Sentence(
            text=row["query"],
            videos=frozenset(row["videos"]),
            windows={name: [(start, end) for start, end in spans] for name, spans in row["relevant_windows"].items()},
        )
        for row in rows
    ]


def overlap(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return the intersection over union of two spans.

    >>> overlap((0, 2), (1, 4))
    0.25
    """
    shared = max(0.0, min(first[1], second[1]) - max(first[0], second[0]))
    return shared / (max(first[1], second[1]) - min(first[0], second[0])) if shared else 0.0


def outcome(sentence: Sentence, hits: Sequence[Hit]) -> Outcome:
    """Compare the hits of a search with a sentence."""
    for rank, hit in enumerate(hits, start=1):
        if hit.path.name not in sentence.videos:
            continue
        spans, best = sentence.windows.get(hit.path.name), hit.moments[0]
        if spans is None:
            return Outcome(rank=rank)
        return Outcome(
            rank=rank,
            overlap=max(overlap((best.start, best.end), span) for span in spans),
            inside=any(start <= best.peak <= end for start, end in spans),
        )
    return Outcome(rank=len(hits) + 1)


def measure(folder: Path, videos: Path, backbone: str, sentences: Sequence[Sentence]) -> list[Outcome]:
    """Index the films with a backbone, and search for each sentence.

    Args:
        folder: The folder of the library. One that exists is used.
        videos: The films.
        backbone: The name of the backbone.
        sentences: The sentences.
    """
    with Writer.open(folder, Wanted(backbone=backbone)) as writer:
        indexer.index(writer, [videos])
    with Searcher.open(folder) as searcher:
        found = searcher.search_all([sentence.text for sentence in sentences], top=len(searcher), exact=True)
    return [outcome(sentence, hits) for sentence, hits in zip(sentences, found, strict=True)]


def chance(sentences: Sequence[Sentence], videos: int, depth: int) -> float:
    """Return the expected recall in percent of a random ranking: 1 - ∏ (n - r - i) / (n - i) for i < depth.

    Args:
        sentences: The sentences.
        videos: The number n of films.
        depth: The number of hits that count.
    """
    missed = [
        np.prod([max(0, videos - len(sentence.videos) - at) / (videos - at) for at in range(depth)])
        for sentence in sentences
    ]
    return float(100 * (1 - np.mean(missed)))


def percent(values: Iterable[bool]) -> str:
    """Return a share in percent, with the 95 % interval of a bootstrap over the sentences."""
    given = np.array(list(values), float)
    drawn = np.random.default_rng(0).choice(given, (NUM_RESAMPLES, len(given))).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{100 * given.mean():.1f} ({100 * low:.0f} to {100 * high:.0f})"


def row(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return a row of the table of results."""
    timed = [found for found in outcomes if found.overlap is not None]
    cells = [percent(found.rank <= depth for found in outcomes) for depth in (1, 3, 5)]
    cells += [percent(bool(found.inside) for found in timed)]
    cells += [percent((found.overlap or 0) >= share for found in timed) for share in (0.3, 0.5)]
    return f"| {name} | {' | '.join(cells)} |"


def report(videos: Path, stamps: Path, libraries: Path) -> str:
    """Return the page of results.

    Args:
        videos: The folder of the films.
        stamps: The folder of the stamps.
        libraries: Where libraries are kept.
    """
    sentences = read_sentences()
    names = {name for sentence in sentences for name in sentence.videos}
    outcomes = {name: measure(libraries / name, videos, name, sentences) for name in BACKBONES}
    timed = sum(found.overlap is not None for found in outcomes["offline"])
    guessed = " | ".join(f"{chance(sentences, len(names), depth):.1f}" for depth in (1, 3, 5))
    lines = [
        "# The offline backbone on real footage",
        "",
        "How well does midreel search real videos without a model hub? The page is written by",
        "`make bench-offline VIDEOS=FOLDER STAMPS=FOLDER`. [The model card](../offline.md) says what the backbone is.",
        "",
        f"{len(sentences)} sentences about {len(names)} short films (nature, animation, a car race of 1906, a rocket,",
        "a campus, towers at night). The sentences were written from the pictures and committed before any model was",
        "run on them: `benchmarks/data/real_footage.jsonl`. The films are not part of midreel; that file has",
        "their names.",
        "",
        "Percent of sentences, with a 95 % interval of a bootstrap over the sentences. R@K: a right film is among the",
        f"first K. The last three columns are about the {timed} sentences with an obvious time: the best moment in the",
        "right film has its peak in the described part, or an intersection over union of at least 0.3 or 0.5 with it.",
        "",
        "| Backbone | R@1 | R@3 | R@5 | Peak inside | IoU ≥ 0.3 | IoU ≥ 0.5 |",
        "|---|---|---|---|---|---|---|",
        *(row(f"`{name}`", found) for name, found in outcomes.items()),
        f"| a random order | {guessed} | | | |",
        "",
        "Nine films are few: a random order has a right film among five in more than half of the cases. R@1 says more.",
        "",
        "Sentences whose film is not first with `offline`:",
        "",
        *(
            f"- {sentence.text} (rank {found.rank})"
            for sentence, found in zip(sentences, outcomes["offline"], strict=True)
            if found.rank > 1
        ),
        "",
        *offline_choice.report(stamps),
        "",
        machine(),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description="Measure the backbone `offline` on real footage.")
    parser.add_argument("--videos", type=Path, required=True, help="the folder of the films")
    parser.add_argument("--stamps", type=Path, required=True, help="usr/share/tuxpaint/stamps of the Debian package")
    parser.add_argument("--libraries", type=Path, help="keep the libraries in this folder")
    parser.add_argument("--write", type=Path, help="the page to write")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        publish(report(given.videos, given.stamps, given.libraries or Path(scratch)), given.write)


if __name__ == "__main__":
    main()
