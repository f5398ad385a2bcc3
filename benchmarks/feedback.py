"""Measure what a library learns from feedback, with simulated users on the playhouse.

    make bench-feedback

The protocol, written before the first run:

1. The library has 200 videos of a playhouse that no model was trained on, and the sentences about them. One library is
   zero-shot, the other has MSC, trained on other videos of this playhouse.
2. A user looks for half of the videos, drawn with the seed, and knows half of the sentences about them. The user types
   these sentences in random order and looks at the first ten hits. If the right video is among them, the user marks the
   moment that is shown with "this is it". If the first hit is another video, the user marks it with "not this". The
   user stops after a number of pieces of feedback.
3. `midreel.experiments.adapt` learns from the feedback, and decides on held-out feedback whether the library switches.
   If it does not, the gain is 0.
4. All sentences about all videos are searched before and after. The gain is reported for three groups: the sentences
   that got feedback, other sentences about the same half of the videos, and sentences about the other half.
5. Careless users do the same, but each piece says the opposite with a probability of 10 %.

Each row is the mean over the seeds. Adaptations are applied to the queries of the same index, without a new generation,
which has the same tokens. Finished cells are kept in --out and not repeated.
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning_curves import prepare
from benchmarks.measuring import machine, publish
from benchmarks.methods import interval, say
from midreel import recipes
from midreel.datasets import own, playhouse
from midreel.evaluation import metrics, plots, tables
from midreel.evaluation.tables import Spread
from midreel.experiments import adapt, runs
from midreel.experiments.adaptation_learning import learn
from midreel.features import load_backbone
from midreel.features.backbones.base import Backbone
from midreel.io.files import write_durably
from midreel.library import encoder as encoders
from midreel.library import reindex
from midreel.library.adaptation import Adaptation, sentence_vectors
from midreel.library.feedback import Feedback
from midreel.library.hits import Hit
from midreel.library.searcher import Searcher
from midreel.library.writer import Writer
from midreel.types import Query, TextFeatures

LIBRARIES = ("zero-shot", "MSC")
GROUPS = ("sentences with feedback", "other sentences, same videos", "other videos")
USERS = {"careful": 0.0, "careless": 0.1}  # the share of wrong feedback
RESULTS = "results.json"
HITS = 10  # that a user looks at


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is measured."""

    sizes: tuple[int, ...] = (10, 30, 100, 300)
    seeds: int = 5
    num_train: int = 1000  # videos to train MSC on
    num_val: int = 150
    num_test: int = 200


class RememberingBackbone:
    """A backbone that encodes each text once."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone, self._texts = backbone, dict[str, TextFeatures]()
        self.fingerprint, self.window, self.prepare = backbone.fingerprint, backbone.window, backbone.prepare
        self.encode_images, self.encode_pixels = backbone.encode_images, backbone.encode_pixels

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Return the features of the texts."""
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        self._texts |= dict(zip(new, self._backbone.encode_texts(new) if new else [], strict=True))
        return [self._texts[text] for text in texts]


# ---------------------------------------------------------------- libraries


def make_libraries(out: Path, budget: Budget) -> dict[str, Path]:
    """Train MSC, index the test videos, and return the libraries by name. Keep what is finished."""
    dataset = prepare(out / "dataset", 0, num_train=budget.num_train, num_val=budget.num_val, num_test=budget.num_test)
    model = runs.train_or_resume(dataset, recipes.build("msc", "playhouse", {"seed": 1}), out / "msc")
    videos = out / "Videos"
    playhouse.write_dataset(videos, seed=0, num_test=budget.num_test)
    folders = {name: out / name for name in LIBRARIES}
    if not folders["MSC"].exists():
        with Searcher.create(folders["MSC"], model=str(model)) as searcher:
            searcher.add(videos)
    if not folders["zero-shot"].exists():
        shutil.copytree(folders["MSC"], out / "copy", dirs_exist_ok=True)
        with Writer.open(out / "copy") as writer:
            reindex.reindex(writer, "zero-shot")
        (out / "copy").rename(folders["zero-shot"])
    return folders


@dataclass(frozen=True, kw_only=True)
class World:
    """A library, the sentences about its videos, and what it answers before any feedback.

    Attributes:
        library: The library, open for writing.
        queries: The sentences. `video_id` is the id in the library.
        hits: The first hits of each sentence.
        vectors: The vectors of each branch, a row for each sentence.
        sentences: The sentence vectors.
    """

    library: Writer
    queries: tuple[Query, ...]
    hits: Sequence[Sequence[Hit]]
    vectors: Mapping[str, Any]
    sentences: Any

    @classmethod
    def of(cls, library: Writer, videos: Path) -> "World":
        """Search all sentences of the split test."""
        ids = {path.name: file.video_id for path, file in library.catalogue.files().items()}
        queries = [
            replace(query, video_id=str(ids[f"{query.video_id.removesuffix('.mp4')}.mp4"]))
            for query in own.read(videos)["test"].queries
        ]
        texts = library.backbone.encode_texts([query.text for query in queries])
        encoder = encoders.open_generation(library.generation, "cpu", adapted=False)
        with Searcher.open(library.place, backbone=library.backbone) as searcher:
            hits = searcher.search_all([query.text for query in queries], top=HITS, exact=True)
        return cls(
            library=library,
            queries=tuple(queries),
            hits=hits,
            vectors=encoder.encode_queries(texts),
            sentences=sentence_vectors(texts),
        )

    def ranks(self, adaptation: Adaptation | None = None, before: Sequence[int] = ()) -> list[int]:
        """Return the rank of the right video for each sentence.

        Args:
            adaptation: What was learned. Default: nothing.
            before: The ranks without an adaptation. Sentences beyond its reach keep theirs, and are not searched again.
        """
        rows = list(range(len(self.queries)))
        vectors = self.vectors
        if adaptation is not None:
            rows = np.flatnonzero(adaptation.likeness(self.sentences).max(1)).tolist()
            vectors = adaptation.applied(self.vectors, self.sentences)
        index, ranks = self.library.index, list(before) or rows.copy()
        found = index.search({branch: each[rows] for branch, each in vectors.items()}, top=len(index), exact=True)
        for row, matches in zip(rows, found, strict=True):
            ranks[row] = 1 + [match.video_id for match in matches].index(self.queries[row].video_id)
        return ranks


# ---------------------------------------------------------------- simulated users


def simulate(world: World, number: int, seed: int, wrong: float) -> tuple[list[Feedback], dict[str, list[int]]]:
    """Return the feedback of a user, and the sentences of each group.

    Args:
        world: The library.
        number: The pieces of feedback after which the user stops.
        seed: The seed of the user.
        wrong: The probability that a piece says the opposite.
    """
    draw = np.random.default_rng(seed)
    videos = sorted({query.video_id for query in world.queries})
    wanted = {videos[k] for k in draw.permutation(len(videos))[: len(videos) // 2]}
    about = [row for row, query in enumerate(world.queries) if query.video_id in wanted]
    typed = [about[k] for k in draw.permutation(len(about))[: len(about) // 2]]
    pieces: list[Feedback] = []
    for row in typed:
        query, hits = world.queries[row], world.hits[row]
        right = next((hit for hit in hits if hit.video_id == query.video_id), None)
        marks = [(right, True)] if right is not None else []
        marks += [(hits[0], False)] if hits[0] is not right else []
        for hit, match in marks[: number - len(pieces)]:
            says = match if draw.random() >= wrong else not match
            best = hit.moments[0]
            pieces.append(
                Feedback(
                    id=len(pieces) + 1,
                    query=query.text,
                    video_id=hit.video_id,
                    match=says,
                    start=best.start,
                    end=best.end,
                    created=0.0,
                )
            )
        if len(pieces) >= number:
            break
    told = {piece.query for piece in pieces}
    groups = {
        GROUPS[0]: [row for row in about if world.queries[row].text in told],
        GROUPS[1]: [row for row in about if world.queries[row].text not in told],
        GROUPS[2]: [
            row for row, query in enumerate(world.queries) if query.video_id not in wanted and query.text not in told
        ],
    }
    return pieces, groups


def cell(world: World, before: Sequence[int], number: int, seed: int, wrong: float) -> dict[str, Any]:
    """Return the result of one user: the figures before and after by group, and the decision.

    Args:
        world: The library.
        before: The rank of the right video for each sentence, without feedback.
        number: The pieces of feedback.
        seed: The seed of the user.
        wrong: The share of wrong feedback.
    """
    pieces, groups = simulate(world, number, seed, wrong)
    lessons = adapt.prepare(world.library, pieces)
    plain = adapt.agreement(lessons, world.library.index)
    held_out = adapt.cross_validated(lessons, world.library)
    learned = learn(lessons, world.library)
    always = world.ranks(learned, before)
    switched = held_out.reciprocal_rank >= plain.reciprocal_rank
    after = always if switched else before
    return {
        "pieces": len(pieces),
        "matches": sum(piece.match for piece in pieces),
        "switched": switched,
        "plain": asdict(plain),
        "held_out": asdict(held_out),
        "groups": {
            name: {
                when: metrics.recalls(torch.tensor([ranks[row] for row in rows]))
                for when, ranks in (("before", before), ("after", after), ("always", always))
            }
            for name, rows in groups.items()
        },
    }


def study(out: Path, budget: Budget) -> dict[str, Any]:
    """Measure all cells that are not finished, and return them by library, user, number and seed."""
    path = out / RESULTS
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    backbone = RememberingBackbone(load_backbone("tiny-clip"))
    for name, folder in make_libraries(out, budget).items():
        with Writer.open(folder, backbone=backbone) as library:
            # Cells read the tokens of the same videos again and again.
            vars(library.index)["tokens"] = cache(library.index.tokens)
            world = World.of(library, out / "Videos")
            before = world.ranks()
            for user, wrong in USERS.items():
                for number in budget.sizes:
                    for seed in range(1, 1 + budget.seeds):
                        key = f"{name}/{user}/{number}/{seed}"
                        if key not in found:
                            say(key)
                            found[key] = cell(world, before, number, seed, wrong)
                            write_durably(path, json.dumps(found, indent=1))
    return found


# ---------------------------------------------------------------- report


def gains(
    found: Mapping[str, Any], budget: Budget, name: str, user: str, metric: str, when: str = "after"
) -> dict[str, dict[str, Spread]]:
    """Return the mean gain over the seeds, by group and number of pieces.

    Args:
        found: The result of `study`.
        budget: What was measured.
        name: The library.
        user: The kind of user.
        metric: The name of the metric.
        when: "after", or "always" to ignore the decision.
    """
    return {
        group: {
            f"{number}": interval(
                [
                    each["groups"][group][when][metric] - each["groups"][group]["before"][metric]
                    for each in _cells(found, budget, name, user, number)
                ]
            )
            for number in budget.sizes
        }
        for group in GROUPS
    }


def _cells(found: Mapping[str, Any], budget: Budget, name: str, user: str, number: int) -> list[Any]:
    return [found[f"{name}/{user}/{number}/{seed}"] for seed in range(1, 1 + budget.seeds)]


def _levels(found: Mapping[str, Any], budget: Budget, name: str) -> dict[str, dict[str, Spread]]:
    cells = _cells(found, budget, name, "careful", budget.sizes[-1])
    return {
        group: {
            f"{metric} {when}": interval([each["groups"][group][when][metric] for each in cells])
            for metric in ("R@1", "SumR")
            for when in ("before", "after")
        }
        for group in GROUPS
    }


def report(found: Mapping[str, Any], budget: Budget) -> str:
    """Return the report as Markdown."""
    last = [_cells(found, budget, name, user, budget.sizes[-1]) for name in LIBRARIES for user in USERS]
    least = min(each["pieces"] for cells in last for each in cells)
    parts = [
        f"""# What a library learns from feedback

Measured by `make bench-feedback` with simulated users: {budget.seeds} seeds, libraries of {budget.num_test} generated
videos, features of the tiny CLIP. Cells are means over the seeds ± half of a 95 % interval.
[Feedback](../feedback.md) describes what is learned and how.

{machine()}

## Protocol

A user looks for half of the videos and knows half of the sentences about them. The user types these sentences in random
order and looks at the first ten hits. If the right video is among them, the user marks its moment with "this is it". If
the first hit is another video, the user marks it with "not this". The user stops after the given number of pieces of
feedback, or a little earlier if there are no sentences left (at least {least} of {budget.sizes[-1]}).
The library then adapts, unless that is worse on feedback held out. Careless users do the same, but say the opposite
with a probability of 10 %. The protocol was written before the first run (`benchmarks/feedback.py`).

The reach and the penalty were chosen in trials on the same videos, with a zero-shot model and three users. So the
figures of the zero-shot library are a little optimistic. Nothing was chosen on MSC.

Three groups of sentences are searched before and after: those that got feedback, other sentences about the same half of
the videos, and sentences about the other half. One of the sentences with feedback may have the same text as one about
another video; such a sentence counts as one with feedback.

![Gain in R@1 by the pieces of feedback](feedback.png)
"""
    ]
    for name in LIBRARIES:
        for user in USERS:
            parts.append(f"\n## {name} library, {user} users\n")
            for metric in ("R@1", "SumR"):
                table = tables.to_markdown(gains(found, budget, name, user, metric), corner=f"gain in {metric} after")
                parts.append(f"{table}")
            decisions = ", ".join(
                f"{sum(each['switched'] for each in _cells(found, budget, name, user, number))} of {budget.seeds} "
                f"after {number}"
                for number in budget.sizes
            )
            parts.append(f"The library switched in {decisions} pieces of feedback.\n")
        levels = tables.to_markdown(_levels(found, budget, name), corner=f"careful, {budget.sizes[-1]} pieces")
        parts.append(f"\nThe figures themselves:\n\n{levels}")
    return "\n".join(parts)


def draw(found: Mapping[str, Any], budget: Budget, path: Path) -> None:
    """Draw the gain in R@1 by the pieces of feedback, for each library."""
    plots.by_size(
        {
            f"{name} library": {
                f"{group}, {user}": {number: row[f"{number}"] for number in budget.sizes}
                for user in USERS
                for group, row in gains(found, budget, name, user, "R@1").items()
            }
            for name in LIBRARIES
        },
        path,
        x="pieces of feedback",
        y="gain in R@1",
    )


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    default = Budget()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/feedback"), help="keep the libraries and results here")
    sizes = ",".join(map(str, default.sizes))
    parser.add_argument("--sizes", default=sizes, metavar="N,N", help=f"pieces of feedback [{sizes}]")
    parser.add_argument("--seeds", type=int, default=default.seeds, metavar="N", help=f"users [{default.seeds}]")
    for name, text in (("train", "videos to train MSC on"), ("val", "validation videos"), ("test", "videos to search")):
        value = getattr(default, f"num_{name}")
        parser.add_argument(
            f"--{name}", dest=f"num_{name}", type=int, default=value, metavar="N", help=f"{text} [{value}]"
        )
    parser.add_argument("--write", type=Path, help="also write the report to this file, and the plot beside it")
    arguments = vars(parser.parse_args(command_line))
    out, path, wanted = (arguments.pop(name) for name in ("out", "write", "sizes"))
    budget = Budget(**arguments, sizes=tuple(int(size) for size in wanted.split(",")))
    torch.set_num_threads(1)  # the arrays are small, and results then have the same bits on every machine
    found = study(out, budget)
    draw(found, budget, (path.parent if path is not None else out) / "feedback.png")
    publish(report(found, budget), path)


if __name__ == "__main__":
    main()
