"""Measure the operators of the query language on queries whose answers are known.

    make bench-queries

Each world is a library of playhouse videos. The queries are made from the descriptions of the videos, so the relevant
videos are known. The settings are compared on other worlds than those of the report. Libraries are kept in --out.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.measuring import machine, publish
from benchmarks.query_worlds import MAKERS, MOST_RELEVANT, MadeQuery, World, make_queries, write_library
from midreel import Searcher
from midreel.datasets import playhouse
from midreel.evaluation import tables
from midreel.evaluation.tables import Spread
from midreel.index.base import Array
from midreel.index.embedded import EmbeddedIndex
from midreel.library import combined, searcher
from midreel.library.catalogue import Video
from midreel.library.filters import Filter
from midreel.library.hits import SearchedVideo, curves_of, locate
from midreel.library.query import And, Part, Said, Seen, leaves, parse
from midreel.ops import combine
from midreel.types import Tokens

DEV, TEST = (101, 102, 103), (201, 202, 203, 204, 205)
NUM_VIDEOS, NUM_QUERIES = 150, 16
DEPTH = 50  # hits that count for the average precision
TOP = 10
NUM_RESAMPLES, CONFIDENCE = 2000, 0.95
STEEPNESSES, LEVELS, SHARES = (0.2, 0.4, 0.8), (0.0, 1.0, 2.0), (0.4, 0.5, 0.6, 0.7)
SPLICED, PIECES = 5_000, 4  # videos of the large library, and the videos that each is spliced from
SAMPLES = (50, 100, 200, 400)  # numbers of candidates
ROUNDS = 3

Encoded = tuple[Seen, Mapping[Part, Mapping[str, Array]]]  # a query, and the vectors of its parts


# ---------------------------------------------------------------- measures


def _parsed(made: MadeQuery) -> Seen:
    query = parse(made.text)
    assert not isinstance(query, Said)  # these films have no subtitles
    return query


def average_precision(ranked: Sequence[str], relevant: frozenset[str]) -> float:
    """Return the average precision in percent. Relevant videos that are not in the ranking count as never found.

    >>> average_precision(["a", "b", "c"], frozenset({"a", "c"})).__round__(1)
    83.3
    """
    found, total = 0, 0.0
    for rank, name in enumerate(ranked, 1):
        if name in relevant:
            found += 1
            total += found / rank
    return 100 * total / len(relevant)


def interval(values: Sequence[float]) -> Spread:
    """Return the mean with half of its 95 % interval, by bootstrap over the queries."""
    array = np.asarray(values, np.float64)
    drawn = np.random.default_rng(0).integers(len(array), size=(NUM_RESAMPLES, len(array)))
    low, high = np.quantile(array[drawn].mean(1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Spread(mean=float(array.mean()), spread=float(high - low) / 2, num=len(array))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How well one way of asking answers one query."""

    precision: float
    first: float
    recall: float

    @classmethod
    def of(cls, ranked: Sequence[str], relevant: frozenset[str]) -> "Answer":
        """Return the figures of a ranking in percent."""
        return cls(
            precision=average_precision(ranked[:DEPTH], relevant),
            first=100.0 * (ranked[0] in relevant),
            recall=100 * len(relevant.intersection(ranked[:TOP])) / min(TOP, len(relevant)),
        )


# ---------------------------------------------------------------- worlds


def open_world(out: Path, seed: int) -> tuple[World, Searcher]:
    """Return a world and the searcher of its library, which is made if it is missing."""
    world, folder = World.make(seed, NUM_VIDEOS), out / f"world-{seed}"
    write_library(folder, world)
    return world, Searcher.open(folder / "library")


def ways(made: MadeQuery, folder: Path) -> dict[str, str | Seen]:
    """Return all ways to ask a query, the operator first."""
    if made.image is None:
        return {made.kind if made.kind != "one moment" else "one sentence": made.text, **made.others}
    video, at = made.image
    path = folder / f"{video.id}-{at:g}.png"
    if not path.exists():
        Image.fromarray(playhouse.render(video, at)).save(path)
    words, image = Part(made.text), Part("", path)
    return {
        "image + words": Part(made.text, path),
        "scores added": And((words, image)),
        "words": words,
        "image": image,
    }


def measure(out: Path, seeds: Sequence[int], num_queries: int) -> dict[str, dict[str, list[Answer]]]:
    """Return the answers to all queries, by operator and way of asking.

    Args:
        out: The folder of the worlds.
        seeds: The worlds.
        num_queries: The number of queries of each operator in each world.
    """
    found: dict[str, dict[str, list[Answer]]] = {}
    for seed in seeds:
        world, library = open_world(out, seed)
        for kind in MAKERS:
            say(f"world {seed}: {kind}")
            for made in make_queries(world, kind, num_queries):
                for name, query in ways(made, out / f"world-{seed}").items():
                    hits = library.search(query, top=DEPTH, exact=True)
                    ranked = [hit.path.stem for hit in hits]
                    found.setdefault(kind, {}).setdefault(name, []).append(Answer.of(ranked, made.relevant))
        library.close()
    return found


def say(text: str) -> None:
    """Print a line about the progress to stderr."""
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- settings


def settings(out: Path, seeds: Sequence[int], num_queries: int) -> dict[str, dict[str, float]]:
    """Return the average precision of each operator for several settings.

    Args:
        out: The folder of the worlds.
        seeds: The worlds.
        num_queries: The number of queries of each operator in each world.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for seed in seeds:
        world, library = open_world(out, seed)
        known = list(library._searched(library.index.video_ids(), Filter()).values())
        for kind in ("AND", "NOT", "OR, alternatives", "THEN"):
            say(f"settings, world {seed}: {kind}")
            for made in make_queries(world, kind, num_queries):
                query = _parsed(made)
                for name, ranked in _rankings(library, query, known).items():
                    found.setdefault(name, {}).setdefault(kind, []).append(average_precision(ranked, made.relevant))
        pictured = [
            (made, ways(made, out / f"world-{seed}")) for made in make_queries(world, "image + words", num_queries)
        ]
        for share in SHARES:
            searcher._IMAGE_SHARE, kept = share, searcher._IMAGE_SHARE
            for made, asked in pictured:
                hits = library.search(asked["image + words"], top=DEPTH, exact=True)
                precision = average_precision([hit.path.stem for hit in hits], made.relevant)
                found.setdefault(f"image {share:g}, words {1 - share:g}", {}).setdefault("image + words", []).append(
                    precision
                )
            searcher._IMAGE_SHARE = kept
        library.close()
    return {name: {kind: statistics.fmean(values) for kind, values in of.items()} for name, of in found.items()}


def _rankings(library: Searcher, query: Seen, videos: Sequence[SearchedVideo]) -> dict[str, list[str]]:
    """Return the ranking of all videos for each setting."""
    parts = list(dict.fromkeys(leaves(query)))
    vectors = library.encode([part.text for part in parts])
    matches = library.index.search(vectors, top=len(videos), exact=True)
    scores = [{match.video_id: match.score for match in of} for of in matches]
    rows = [row for row in range(len(parts)) for _ in videos]
    curves = curves_of(vectors, rows, list(videos) * len(parts), library.generation.card.curve_weights)
    kept, found = (combine.STEEPNESS, combine.LEVEL), {}
    for steepness in STEEPNESSES:
        for level in LEVELS:
            combine.STEEPNESS, combine.LEVEL = steepness, level
            totals = {}
            for number, video in enumerate(videos):
                values = {
                    part: combined.values_of(
                        curves[row * len(videos) + number].scores[0],
                        scores[row][video.video.id],
                        np.array(list(scores[row].values())),
                    )
                    for row, part in enumerate(parts)
                }
                totals[video.paths[0].stem] = combined.score_of(query, values)
            found[f"slope {steepness:g}, level {level:g}"] = sorted(totals, key=lambda name: -totals[name])[:DEPTH]
    combine.STEEPNESS, combine.LEVEL = kept
    return found


# ---------------------------------------------------------------- candidates


@dataclass(frozen=True, kw_only=True)
class Large:
    """An index of many videos, each spliced from parts of videos of one world, and queries for it."""

    index: EmbeddedIndex
    weights: Mapping[str, float]
    queries: Mapping[str, Sequence[Encoded]]

    def load(self, video_ids: Sequence[str]) -> dict[str, SearchedVideo]:
        """Return videos with their tokens, as a searcher does."""
        return {
            video_id: SearchedVideo(
                video=Video(id=video_id, duration=60.0, num_frames=120, date=0.0),
                paths=(Path(video_id),),
                tokens=tokens,
                windows=((0.0, 60.0),),
            )
            for video_id, tokens in self.index.tokens_of(video_ids).items()
        }

    def find(self, query: Seen, vectors: Mapping[Part, Mapping[str, Array]], exact: bool) -> list[str]:
        """Return the ids of the best videos for a query."""
        hits = combined.find(self.index, query, vectors, self.load, weights=self.weights, top=TOP, exact=exact)
        return [hit.video_id for hit in hits]

    def find_each(self, queries: Sequence[Encoded], exact: bool) -> None:
        """Search for several queries."""
        for query, vectors in queries:
            self.find(query, vectors, exact)

    def find_each_plain(self, queries: Sequence[Encoded]) -> None:
        """Search for the first part of several queries, with the moments of the hits."""
        for _, vectors in queries:
            self.find_plain(next(iter(vectors.values())))

    def find_plain(self, vectors: Mapping[str, Array]) -> None:
        """Search for one plain sentence, with the moments of the hits."""
        (found,) = self.index.search(vectors, top=TOP)
        videos = self.load([match.video_id for match in found])
        locate(vectors, [0] * len(found), [videos[match.video_id] for match in found], self.weights)


def make_large(out: Path, seeds: Sequence[int], num_videos: int, num_queries: int) -> Large:
    """Return the large index, which is made if it is missing.

    Args:
        out: The folder of the worlds.
        seeds: The worlds.
        num_videos: The number of videos.
        num_queries: The number of queries of each operator.
    """
    folder = out / f"spliced-{num_videos}-{seeds[0]}"
    rng = np.random.default_rng(0)
    queries: dict[str, list[Encoded]] = {}
    weights: Mapping[str, float] = {}
    index = EmbeddedIndex.open(folder) if folder.exists() else None
    is_made = index is not None
    for number, seed in enumerate(seeds):
        world, library = open_world(out, seed)
        weights = library.generation.card.curve_weights
        if index is None:
            width = library.generation.card.width
            index = EmbeddedIndex.create(folder, branch_weights=library.index.branch_weights, width=width)
        if not is_made:
            say(f"splicing videos of world {seed}")
            whole = [library.index.tokens(video_id) for video_id in library.index.video_ids()]
            size = -(-num_videos // len(seeds))
            index.add_all((f"{seed}-{k}", _spliced(whole, rng)) for k in range(size))
        for kind in ("AND", "NOT", "OR, alternatives", "THEN"):
            for made in make_queries(world, kind, num_queries)[number :: len(seeds)]:
                query = _parsed(made)
                vectors = {part: library.encode([part.text]) for part in leaves(query)}
                queries.setdefault(kind, []).append((query, vectors))
        library.close()
    assert index is not None
    return Large(index=index, weights=weights, queries=queries)


def _spliced(videos: Sequence[Mapping[str, Tokens]], rng: np.random.Generator) -> dict[str, Tokens]:
    """Return a video of equal pieces of several videos."""
    chosen = [videos[k] for k in rng.integers(len(videos), size=PIECES)]
    places = rng.permutation(PIECES)
    found = {}
    for branch, first in chosen[0].items():
        length = first.vectors.shape[1] // PIECES
        cuts = [slice(place * length, (place + 1) * length) for place in places]
        vectors = np.concatenate(
            [np.asarray(v[branch].vectors)[:1, cut] for v, cut in zip(chosen, cuts, strict=True)], 1
        )
        edges = np.linspace(0, 1, PIECES * length + 1, dtype=np.float32)
        spans = np.stack((edges[:-1], edges[1:]), 1)[None]
        found[branch] = Tokens(vectors=vectors, mask=np.ones(vectors.shape[:2], bool), spans=spans)
    return found


def recalls(large: Large, numbers: Sequence[int]) -> dict[str, dict[str, Spread]]:
    """Return the share of the exact hits that a search finds with several numbers of candidates."""
    found: dict[str, dict[str, Spread]] = {}
    kept = combined.CANDIDATES
    for kind, queries in large.queries.items():
        say(f"candidates: {kind}")
        exact = [large.find(query, vectors, True) for query, vectors in queries]
        for number in numbers:
            combined.CANDIDATES = number
            shares = [
                100 * len(set(best) & set(large.find(query, vectors, False))) / len(best)
                for best, (query, vectors) in zip(exact, queries, strict=True)
            ]
            found.setdefault(f"{number} candidates", {})[kind] = interval(shares)
        combined.CANDIDATES = kept
    return found


def times(large: Large) -> dict[str, dict[str, float]]:
    """Return the time of each operator, relative to a plain search for its first part."""
    found: dict[str, dict[str, float]] = {}
    for kind, queries in large.queries.items():
        say(f"times: {kind}")
        for name, is_exact in (("with candidates", False), ("exact", True)):
            found.setdefault(f"{len(large.index):,} videos, {name}", {})[kind] = _ratio(
                partial(large.find_each, queries[:4], is_exact), partial(large.find_each_plain, queries[:4])
            )
    return found


def _ratio(above: Callable[[], None], below: Callable[[], None]) -> float:
    """Return the median ratio of two times that take turns."""
    found = []
    for turn in range(1 + ROUNDS):
        start = time.process_time()
        above()
        middle = time.process_time()
        below()
        if turn:
            found.append((middle - start) / (time.process_time() - middle))
    return statistics.median(found)


def _search_each(library: Searcher, texts: Sequence[str]) -> None:
    for text in texts:
        library.search(text)


def whole_search(out: Path, seed: int) -> dict[str, dict[str, float]]:
    """Return the time of a whole search, with the encoding of its sentences, relative to a plain one."""
    world, library = open_world(out, seed)
    found: dict[str, float] = {}
    for kind in ("AND", "NOT", "OR, alternatives", "THEN"):
        asked = make_queries(world, kind, 4)
        combined_texts, plain_texts = [each.text for each in asked], [each.others["first part"] for each in asked]
        found[kind] = _ratio(
            partial(_search_each, library, combined_texts), partial(_search_each, library, plain_texts)
        )
    library.close()
    return {f"{NUM_VIDEOS} videos, from the text to the hits": found}


# ---------------------------------------------------------------- report


def report(
    answers: Mapping[str, Mapping[str, Sequence[Answer]]],
    compared: Mapping[str, Mapping[str, float]],
    tried: Mapping[str, Mapping[str, Spread]],
    found: Mapping[str, Mapping[str, Spread]],
    ratios: Mapping[str, Mapping[str, float]],
    spliced: int,
) -> str:
    """Return the report as Markdown.

    Args:
        answers: The answers of each operator and way of asking.
        compared: The average precision of each setting.
        tried: The share of the exact hits that several numbers of candidates find, on the worlds for settings.
        found: The same for the chosen number, on the worlds of the report.
        ratios: The times relative to a plain search.
        spliced: The number of videos of the large library.
    """
    sections = []
    for kind, of in answers.items():
        first = next(iter(of))
        rows: dict[str, dict[str, tables.Cell]] = {}
        for name, each in of.items():
            gains = [ours.precision - theirs.precision for ours, theirs in zip(of[first], each, strict=True)]
            rows[name] = {
                "average precision": interval([answer.precision for answer in each]),
                "first hit right": interval([answer.first for answer in each]),
                f"recall@{TOP}": interval([answer.recall for answer in each]),
                **({} if name == first else {f"gain of {first}": interval(gains)}),
            }
        table = tables.to_markdown(rows, corner=f"{len(of[first])} queries")
        sections.append(f"### {kind[0].upper()}{kind[1:]}\n\n{_MEANINGS[kind]}\n\n{table}")
    seeds = [", ".join(map(str, each)) for each in (TEST, DEV)]
    return f"""# Operators of the query language

Measured by `make bench-queries`. Each world is a zero-shot library of {NUM_VIDEOS} playhouse videos with the tiny CLIP.
The queries are made from the descriptions of the videos, so the relevant videos are known. The worlds of the report
have the seeds {seeds[0]}. The settings were compared on the seeds {seeds[1]}.
[Operators](../search.md#operators) explains the meaning of each operator.

{machine()}

## Operators and other ways to ask

{chr(10).join(sections)}
Figures are percentages ± half of a 95 % interval by bootstrap over the queries. Average precision counts the first
{DEPTH} hits of an exact search. Recall@{TOP} is the share of the relevant videos among the first {TOP} hits; if there
are more than {TOP}, the share of {TOP}. The gain is the difference in average precision on the same queries. A query
has one or more relevant videos, at most {100 * MOST_RELEVANT:g} % of the library.

## Settings

{tables.to_markdown(compared, corner="average precision")}
A score becomes 1/2 where it is `level` standard deviations above the mean over the library. `slope` is
the slope of the logistic function. The product uses slope {combine.STEEPNESS:g}, level {combine.LEVEL:g} and a share of
{searcher._IMAGE_SHARE:g} for the image.

## Candidates and time

A library of {spliced:,} videos, each spliced from {PIECES} parts of videos of one world. Shares are means
over {next(iter(next(iter(found.values())).values())).num} queries of each operator.

{tables.to_markdown(found, corner=f"share of the {TOP} exact hits, %")}
The number of candidates of each part was chosen on a library of the worlds for settings:

{tables.to_markdown(tried, corner=f"share of the {TOP} exact hits, %")}
{tables.to_markdown(ratios, corner="time / plain search")}
Times are CPU time, as the median of {ROUNDS} rounds in which both take turns. The large library is searched with
vectors, without the encoding of sentences.

## How far to trust it

The playhouse is generated, and the parts name things, colours and places, which the tiny CLIP sees in single frames.
Queries about actions need a trained model. The figures compare ways to ask the same model, not models.
"""


_MEANINGS = {
    "AND": "Relevant: videos that show both parts, at any time.",
    "NOT": "Relevant: videos with an event that shows the first part without the second.",
    "OR, synonyms": "Relevant: videos that show what all three wordings describe.",
    "OR, alternatives": "Relevant: videos that show one part or both.",
    "THEN": "Relevant: videos in which the first part ends before the second begins. Other videos show them in the\n"
    "other order only.",
    "image + words": "The image shows a thing. The words name another place or a second thing. Relevant: videos with\n"
    "an event that shows both. *Scores added* compares image and words with the whole video, not with one moment.",
    "one moment": "Two things in one event. This is what a plain sentence describes. So AND means the same video,\n"
    "not the same moment.",
}


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/queries"), help="keep the libraries here [runs/queries]")
    parser.add_argument(
        "--queries", type=int, default=NUM_QUERIES, metavar="N", help=f"queries of a kind and world [{NUM_QUERIES}]"
    )
    parser.add_argument(
        "--worlds", type=int, default=len(TEST), metavar="N", help=f"worlds of the report [{len(TEST)}]"
    )
    parser.add_argument("--spliced", type=int, default=SPLICED, metavar="N", help=f"videos to splice [{SPLICED:,}]")
    parser.add_argument("--write", type=Path, help="also write the report to this file")
    given = parser.parse_args(command_line)
    torch.set_num_threads(1)
    answers = measure(given.out, TEST[: given.worlds], given.queries)
    compared = settings(given.out, DEV[: given.worlds], given.queries)
    tried = recalls(make_large(given.out, DEV[: given.worlds], given.spliced, given.queries), SAMPLES)
    large = make_large(given.out, TEST[: given.worlds], given.spliced, given.queries)
    found = recalls(large, [combined.CANDIDATES])
    ratios = times(large) | whole_search(given.out, TEST[0])
    publish(report(answers, compared, tried, found, ratios, given.spliced), given.write)


if __name__ == "__main__":
    main()
