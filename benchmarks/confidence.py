"""Measure confidence where the truth is known: on the playhouse, with sentences that no video matches.

    make bench-confidence

A world is a playhouse with its own things, colours and backdrops. The scheme and its two constants are chosen on some
worlds and measured on others. Features, runs and scores are kept in --out, so an interrupted measurement continues.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize  # type: ignore[import-untyped]

from benchmarks.absent_queries import SENTENCES, is_absent, is_present, make_queries
from benchmarks.measuring import in_turns, machine, publish
from benchmarks.methods import interval
from midreel import recipes
from midreel.datasets import open_annotations, playhouse
from midreel.datasets.dataset import Dataset, extract
from midreel.errors import BadRun
from midreel.evaluation import plots, tables
from midreel.evaluation.tables import Cell
from midreel.experiments import runs
from midreel.features import load_backbone
from midreel.index.embedded.quantise import unit
from midreel.io.files import write_durably
from midreel.library import confidence as calibrations
from midreel.library import encoder as encoders
from midreel.library.encoder import Encoder
from midreel.library.searcher import Searcher
from midreel.ops import calibration
from midreel.types import Tokens

Array = np.ndarray[Any, Any]

FRAME_RATE = 1.0
KEPT, FALSE_ALARMS = 0.95, 0.10  # the target: keep this share of present queries, answer at most this share of others
SIZES = (1, 2, 20, 200)  # videos in a library
CHOSEN, REFITTED = "background", "held-out pairs"
ZERO_SHOT, TRAINED = "zero-shot", "MSC"
BUDGET = "budget.json"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The worlds, and the training of their models."""

    num_train: int = 1000
    num_val: int = 150
    num_test: int = 200
    epochs: int = 10
    batch_size: int = 32
    chosen_on: tuple[int, ...] = (31, 32, 33, 34)  # seeds of worlds
    chosen_on_trained: tuple[int, ...] = (31,)
    tested_on: tuple[int, ...] = (41, 42, 43, 44, 45, 46)
    tested_on_trained: tuple[int, ...] = (41, 42, 43)
    rounds: int = 101  # of timing


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The scores of all queries of one world with one model.

    Attributes:
        queries: The score of each query with each video.
        background: The score of each background sentence with each video.
        kinds: The kind of each query.
        owners: The video of each sentence of the dataset.
        held_out: The best score of each sentence of the split val in the videos of val. Empty if nothing was trained.
        held_out_background: The best score of each background sentence in these videos.
    """

    queries: Array
    background: Array
    kinds: Array
    owners: Array
    held_out: Array
    held_out_background: Array


# ---------------------------------------------------------------- worlds and scores


def expect_same_budget(out: Path, budget: Budget) -> None:
    """Raise BadRun if the folder has worlds of another size. More worlds may be added."""
    mine = {name: value for name, value in asdict(budget).items() if isinstance(value, int) and name != "rounds"}
    path = out / BUDGET
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(mine) + "\n")
    theirs = json.loads(path.read_text(encoding="utf-8"))
    if theirs != mine:
        raise BadRun(f"{out} has the budget {theirs}, expected {mine}. Choose another folder with --out.")


def prepare_world(out: Path, budget: Budget, seed: int) -> Dataset:
    """Generate the videos and features of a world, or what is missing of them.

    Args:
        out: The folder of the measurement.
        budget: The sizes of the splits.
        seed: The seed of the world.
    """
    folder = out / f"world-{seed}"
    sizes = {"test": budget.num_test}
    if seed in budget.chosen_on_trained + budget.tested_on_trained:
        sizes |= {"train": budget.num_train, "val": budget.num_val}
    known = open_annotations(folder).splits if (folder / playhouse.DESCRIPTION).exists() else {}
    if any(name not in known or len(known[name].video_ids) != number for name, number in sizes.items()):
        numbers = {f"num_{name}": number for name, number in sizes.items()}
        playhouse.write_dataset(folder, seed=seed, files=(), **numbers)  # type: ignore[arg-type]
    extract(open_annotations(folder), load_backbone("tiny-clip"), rate=FRAME_RATE)
    return Dataset.open(folder)


def scores_of(out: Path, budget: Budget, seed: int, model: str) -> Scores:
    """Return the scores of a world, computed unless they are in the folder.

    Args:
        out: The folder of the measurement.
        budget: The budget of the world and the run.
        seed: The seed of the world.
        model: `ZERO_SHOT` or `TRAINED`.
    """
    path = out / f"scores-{seed}-{model}.npz"
    if not path.exists():
        say(f"world {seed}, {model}")
        dataset, name = prepare_world(out, budget, seed), ZERO_SHOT
        if model == TRAINED:
            changes = {"epochs": budget.epochs, "batch_size": budget.batch_size, "seed": 0}
            name = str(out / f"run-{seed}")
            runs.train_or_resume(dataset, recipes.build("msc", "playhouse", changes), Path(name))
        encoder = encoders.open_model(name, dataset.store.fingerprint, "cpu", library=out)
        found = _score(encoder, dataset, seed, budget.num_test, budget.num_val if model == TRAINED else 0)
        with tempfile.NamedTemporaryFile(dir=out, suffix=".npz", delete=False) as file:
            np.savez_compressed(file, **vars(found))
        Path(file.name).replace(path)
    with np.load(path) as stored:
        return Scores(**stored)


def _score(encoder: Encoder, dataset: Dataset, seed: int, num_videos: int, num_held_out: int) -> Scores:
    videos, held_out = playhouse.make_split(seed, "test", num_videos), playhouse.make_split(seed, "val", num_held_out)
    queries, sentences = make_queries(seed, videos), calibrations.background_sentences()
    backbone = load_backbone("tiny-clip")

    def score(texts: Sequence[str], of: Sequence[playhouse.PlayhouseVideo]) -> Array:
        vectors = encoder.encode_queries(backbone.encode_texts(list(texts)))
        tokens = (encoder.encode_videos(dataset.store.video(video.id).frames[None]) for video in of)
        return np.stack([_max_cosines(encoder, vectors, of_video) for of_video in tokens], 1)

    texts_held_out = [query.text for video in held_out for query in video.queries]
    return Scores(
        queries=score([text for texts in queries.values() for text in texts], videos),
        background=score(sentences, videos),
        kinds=np.array([kind for kind, texts in queries.items() for _ in texts]),
        owners=np.array([number for number, video in enumerate(videos) for _ in video.queries]),
        held_out=score(texts_held_out, held_out).max(1) if held_out else np.zeros(0),
        held_out_background=score(sentences, held_out).max(1) if held_out else np.zeros(0),
    )


def _max_cosines(encoder: Encoder, vectors: Mapping[str, Array], tokens: Mapping[str, Tokens]) -> Array:
    weights = {branch: weight for branch, weight in encoder.branch_weights.items() if weight}
    return np.sum(
        [
            weight * (unit(vectors[branch]) @ unit(tokens[branch].vectors[tokens[branch].mask]).T).max(1)
            for branch, weight in weights.items()
        ],
        axis=0,
    )


def say(text: str) -> None:
    """Print a line about the progress to stderr."""
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- schemes


def _of_library(scores: Array, background: Array) -> Array:
    spread = np.maximum(scores.std(1), 1e-6)
    return (scores.max(1) - np.median(scores, 1)) / spread


def _of_cohort(scores: Array, background: Array) -> Array:
    """The best score above the level that the best tenth of the background sentences has in the same video."""
    level = np.sort(background, 0)[-max(1, len(background) // 10) :].mean(0)
    return scores.max(1) - level[scores.argmax(1)]


def _of_background(scores: Array, background: Array) -> Array:
    found = calibration.background(background.max(1))
    return (scores.max(1) - found.location) / found.scale


# From the scores of queries and of background sentences with each video to one value of each query.
SCHEMES: dict[str, Callable[[Array, Array], Array]] = {
    "score": lambda scores, background: scores.max(1),
    "library": _of_library,
    "gap": lambda scores, background: scores.max(1) - 0.5 * np.median(scores, 1),
    "cohort": _of_cohort,
    CHOSEN: _of_background,
}
_MEANINGS = {
    "score": "the best score",
    "library": "the best score against the other videos: standard deviations above their median",
    "gap": "the best score minus half the median over the videos",
    "cohort": "the best score minus the level of the background sentences in the same video",
    CHOSEN: "the best score against the best scores of background sentences: standard deviations above their median",
    REFITTED: f"*{CHOSEN}*, with the two constants of each run fitted on the pairs of its split val, against the "
    "background sentences",
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The values of all queries in one library.

    Attributes:
        values: The value of each query.
        kinds: The kind of each query.
        weights: Weights that make present and absent queries equally many, and each absent kind as many as another.
    """

    values: Array
    kinds: Array
    weights: Array

    @property
    def is_match(self) -> Array:
        """Whether each query has a match."""
        return np.array([is_present(kind) for kind in self.kinds])

    def of(self, kind: str) -> Array:
        """Return the values of one kind."""
        return self.values[self.kinds == kind]

    @property
    def absent_kinds(self) -> list[str]:
        """The kinds without a match."""
        return [kind for kind in dict.fromkeys(self.kinds.tolist()) if is_absent(kind)]

    def false_alarms(self, threshold: float) -> float:
        """Return the share of absent queries from a threshold on: the mean over the kinds."""
        return float(np.mean([(self.of(kind) >= threshold).mean() for kind in self.absent_kinds]))

    def auroc(self) -> float:
        """Return the mean over the absent kinds of the AUROC against sentences."""
        present = self.of(SENTENCES)
        return float(np.mean([calibration.auroc(present, self.of(kind)) for kind in self.absent_kinds]))


def libraries(found: Scores, scheme: str, size: int) -> Iterator[Sample]:
    """Yield the values of queries in libraries of a size: parts of a world. A sentence needs its own video in it.

    Args:
        found: The scores of a world.
        scheme: A key of `SCHEMES`.
        size: The number of videos.
    """
    total = found.queries.shape[1]
    for start in range(0, total - size + 1, max(size, 20)):
        part = slice(start, start + size)
        values = SCHEMES[scheme](found.queries[:, part], found.background[:, part])
        own = np.zeros(len(values), bool)
        own[: len(found.owners)] = (found.owners >= start) & (found.owners < start + size)
        others = np.array([not is_present(kind) or (size == total and kind != SENTENCES) for kind in found.kinds])
        kept = own | others
        kinds = found.kinds[kept]
        yield Sample(values=values[kept], kinds=kinds, weights=_weights(kinds))


def _weights(kinds: Array) -> Array:
    absent = [kind for kind in dict.fromkeys(kinds.tolist()) if is_absent(kind)]
    weight = {kind: 0.5 / len(absent) / (kinds == kind).sum() for kind in absent}
    weight[SENTENCES] = 0.5 / max(1, (kinds == SENTENCES).sum())
    return np.array([weight.get(kind, 0.0) for kind in kinds])


def log_loss(logits: Array, is_match: Array, weights: Array) -> float:
    """Return the weighted mean negative log likelihood of stated probabilities."""
    losses = np.logaddexp(0, np.where(is_match, -logits, logits))
    return float((weights * losses).sum() / weights.sum())


def fit(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the slope and the midpoint of the logistic function with the least mean log loss."""
    scale = float(np.mean([sample.values.std() for sample in samples])) or 1.0
    middle = float(np.mean([np.median(sample.values) for sample in samples]))

    def loss(constants: Array) -> float:
        slope, midpoint = constants[0] / scale, middle + constants[1] * scale
        return float(np.mean([log_loss(slope * (s.values - midpoint), s.is_match, s.weights) for s in samples]))

    found = minimize(loss, np.array([1.0, 0.0]), method="Nelder-Mead").x
    return float(found[0] / scale), float(middle + found[1] * scale)


# ---------------------------------------------------------------- the measurement


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The scores of all worlds by model and seed, and the ratios of times."""

    chosen: Mapping[str, Mapping[int, Scores]]
    tested: Mapping[str, Mapping[int, Scores]]
    times: Mapping[str, float]


def measure(out: Path, budget: Budget) -> Measurement:
    """Compute everything that is not in the folder."""
    expect_same_budget(out, budget)
    get = partial(scores_of, out, budget)
    seeds = {
        "chosen": {ZERO_SHOT: budget.chosen_on, TRAINED: budget.chosen_on_trained},
        "tested": {ZERO_SHOT: budget.tested_on, TRAINED: budget.tested_on_trained},
    }
    found = {
        purpose: {model: {seed: get(seed, model) for seed in worlds} for model, worlds in of_model.items()}
        for purpose, of_model in seeds.items()
    }
    path = out / "times.json"
    if not path.exists():
        write_durably(path, json.dumps(measure_times(out, budget.rounds)) + "\n")
    return Measurement(**found, times=json.loads(path.read_text(encoding="utf-8")))


def measure_times(out: Path, rounds: int) -> dict[str, float]:
    """Return the time of a search with confidence relative to one without, and of a calibration relative to indexing.

    Args:
        out: The folder of the measurement.
        rounds: The number of timed searches.
    """
    say("timing")
    with tempfile.TemporaryDirectory(dir=out) as folder:
        places = Path(folder)
        queries = playhouse.write_dataset(places / "videos", seed=0, num_test=20)["test"].queries
        with Searcher.create(places / "library") as searcher:
            report = searcher.add(places / "videos")
            generation = searcher.generation
            shutil.copytree(searcher.folder, places / "plain")
            (places / "plain" / generation.folder.relative_to(searcher.folder) / calibrations.NAME).unlink()
            with Searcher.open(places / "plain", backbone=searcher.backbone) as plain:
                above, below = in_turns(
                    [lambda: searcher.search(queries[0].text), lambda: plain.search(queries[0].text)], rounds
                )
            (again,) = in_turns(
                [lambda: calibrations.measure(generation, searcher.index, searcher.encoder, searcher.backbone)], 3
            )
    return {"search": above / below, "calibration": again / report.seconds["total"], "seconds": again}


def report(found: Measurement, budget: Budget, folder: Path | None = None) -> str:
    """Return the report as Markdown, and write its plots into a folder.

    Args:
        found: The measurement.
        budget: The budget.
        folder: The folder of the report; None for no plots.
    """
    num = budget.num_test
    sizes = [size for size in SIZES if size <= num]
    constants = {
        scheme: fit([s for worlds in found.chosen.values() for w in worlds.values() for n in sizes
                     for s in libraries(w, scheme, n)])
        for scheme in SCHEMES
    }  # fmt: skip
    whole = {
        model: {scheme: [next(libraries(w, scheme, num)) for w in worlds.values()] for scheme in SCHEMES}
        for model, worlds in found.tested.items()
    }
    slope, midpoint = constants[CHOSEN]
    shipped = f"{calibration.SLOPE:g} and {calibration.MIDPOINT:g}"
    if folder is not None:
        plots.reliability_diagram(
            {f"{model}, {num} videos": _reliability(whole[model][CHOSEN]) for model in whole}
            | {
                f"{model}, {size} videos": _reliability(
                    [s for w in found.tested[model].values() for s in libraries(w, CHOSEN, size)]
                )
                for model in whole
                for size in (20,)
                if size in sizes
            },
            folder / "confidence-reliability.png",
        )
        plots.kept_and_false_alarms(
            {model: _trade_off(whole[model][CHOSEN]) for model in whole},
            folder / "confidence-threshold.png",
            kept=KEPT,
            false_alarms=FALSE_ALARMS,
        )
    parts = [
        _introduction(budget),
        "## Schemes\n",
        *(f"- *{name}*: {meaning}." for name, meaning in _MEANINGS.items()),
        "",
        "A logistic function turns each into a probability. Its two constants are fitted on the worlds "
        f"{_listed(budget.chosen_on)}, in libraries of {_listed(sizes)} videos.\n",
        tables.to_markdown(_scheme_rows(found, whole, constants), corner="test worlds", digits=_DIGITS),
        "*AUROC* is present sentences against each kind of absent queries, averaged over the kinds. *False alarms* are "
        "absent queries that are confidently answered, where the threshold keeps 95 % of the sentences of the same "
        "world. *At 0.5* is the default threshold. *Log loss* is that of the stated probabilities.\n",
        f"midreel uses *{CHOSEN}*. Fitted here: slope {slope:.3f}, midpoint {midpoint:.3f}; shipped: {shipped}.\n",
        "## By kind of query\n",
        tables.to_markdown(_kind_rows(whole), corner="kind", digits=_DIGITS),
        "*Answered* is the share of queries, in percent, from the threshold on: kept for present kinds, false alarms "
        "for others. *95 % kept* is the threshold that keeps 95 % of the sentences of the same world.\n",
        *_verdicts(whole),
        "## Size of the library\n",
        tables.to_markdown(_size_rows(found, sizes), corner="library", digits=_DIGITS),
        "*Error* is the expected calibration error: the mean distance between stated and observed probability.\n",
        "![Stated against observed probability](confidence-reliability.png)\n",
        "![Kept sentences against false alarms](confidence-threshold.png)\n",
        "## Cost\n",
        f"A search with confidence takes {found.times['search']:.2f} times as long as one without (median of "
        f"{budget.rounds} rounds in turns, 20 videos). A calibration takes {found.times['seconds']:.1f} s, "
        f"{found.times['calibration']:.2f} times the time of indexing these videos.\n",
        machine() + "\n",
        _LIMITS,
    ]
    return "\n".join(parts)


def _introduction(budget: Budget) -> str:
    return f"""# Confidence

Measured by `make bench-confidence`. Each world is a playhouse of {budget.num_test} test videos with its own things,
colours and backdrops. Queries with a match are the sentences of the videos. Queries without one are made from things,
colours, backdrops, pairs and actions that no video has, and from fixed lists (`benchmarks/absent_queries.py`).

The scheme was chosen on the worlds {_listed(budget.chosen_on)} (zero-shot) and {_listed(budget.chosen_on_trained)}
(MSC). All figures are from the worlds {_listed(budget.tested_on)} (zero-shot) and {_listed(budget.tested_on_trained)}
(MSC, {budget.num_train:,} training videos, {budget.epochs} epochs). Cells are means over worlds ± half of a 95 %
interval (Student's).
"""


_LIMITS = """## How far to trust it

- Confidence tells queries about something else from queries about the videos. It does not tell a sentence from one that
  differs in a single detail: the model gives both almost the same score. See the AUROC of the schemes.
- A change of the query by a word does not help. On the worlds 31 and 32, zero-shot, half of the smallest loss of score
  after dropping one word was added to the score. The AUROC rose for *other colour* (0.793 to 0.799) and *other
  backdrop* (0.864 to 0.874). It fell for *other thing* (0.700 to 0.692), *other pair* (0.667 to 0.663), *other action*
  (0.540 to 0.531), *phrase, other thing* (0.924 to 0.821) and *everyday sentence* (0.975 to 0.946). So it is not used.
  This was measured once and is not part of `make bench-confidence`.
- The target needs an AUROC of about 0.98, if both kinds of scores are normal with equal spread. The tiny CLIP, which
  names 67 of 100 things, has 0.55 to 0.86 for a single detail. A better backbone should help; this was not tested.
- *Shuffled words* have no target. The model hardly reads the order of words, and a reader may see the match, too.
- The probability assumes that half of the queries have a match. If you search for what you know is there, it is low.
- The constants come from one backbone and generated videos. Location and scale adapt to every library and model, the
  constants do not. With a real CLIP, check the threshold on a few queries of your own.
- A library of one or two videos has few frames to compare with. Its false alarms are rare, because few frames rarely
  fit by chance.
"""

_DIGITS = {
    "AUROC": 3, "false alarms, %": 0, "kept at 0.5, %": 0, "false alarms at 0.5, %": 0, "log loss": 3, "error": 3,
    "AUROC, zero-shot": 3, "AUROC, MSC": 3,
}  # fmt: skip


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _logits(sample: Sample, constants: tuple[float, float]) -> Array:
    return constants[0] * (sample.values - constants[1])


def _scheme_rows(
    found: Measurement,
    whole: Mapping[str, Mapping[str, Sequence[Sample]]],
    constants: Mapping[str, tuple[float, float]],
) -> dict[str, dict[str, Cell]]:
    rows: dict[str, dict[str, Cell]] = {
        f"{model}: {scheme}": {
            "AUROC": interval([sample.auroc() for sample in samples]),
            "false alarms, %": interval(
                [100 * s.false_alarms(calibration.keeping(s.of(SENTENCES), KEPT)) for s in samples]
            ),
            "kept at 0.5, %": interval([100 * (s.of(SENTENCES) >= constants[scheme][1]).mean() for s in samples]),
            "false alarms at 0.5, %": interval([100 * s.false_alarms(constants[scheme][1]) for s in samples]),
            "log loss": interval([log_loss(_logits(s, constants[scheme]), s.is_match, s.weights) for s in samples]),
        }
        for model, of_scheme in whole.items()
        for scheme, samples in of_scheme.items()
    }
    own = [fit([_held_out(scores)]) for scores in found.tested[TRAINED].values()]
    pairs = list(zip(whole[TRAINED][CHOSEN], own, strict=True))
    rows[f"{TRAINED}: {REFITTED}"] = rows[f"{TRAINED}: {CHOSEN}"] | {
        "kept at 0.5, %": interval([100 * (s.of(SENTENCES) >= midpoint).mean() for s, (_, midpoint) in pairs]),
        "false alarms at 0.5, %": interval([100 * s.false_alarms(midpoint) for s, (_, midpoint) in pairs]),
        "log loss": interval([log_loss(_logits(s, each), s.is_match, s.weights) for s, each in pairs]),
    }
    return rows


def _held_out(scores: Scores) -> Sample:
    """Return the values of held-out sentences, and of background sentences in place of absent queries."""
    found = calibration.background(scores.held_out_background)
    kinds = np.array([SENTENCES] * len(scores.held_out) + ["background"] * len(scores.held_out_background))
    values = np.concatenate((scores.held_out, scores.held_out_background))
    return Sample(values=(values - found.location) / found.scale, kinds=kinds, weights=_weights(kinds))


def _kind_rows(whole: Mapping[str, Mapping[str, Sequence[Sample]]]) -> dict[str, dict[str, Cell]]:
    rows: dict[str, dict[str, Cell]] = {}
    for model, of_scheme in whole.items():
        samples = of_scheme[CHOSEN]
        for kind in dict.fromkeys(samples[0].kinds.tolist()):
            row = rows.setdefault(kind, {})
            at_kept = interval(
                [100 * (s.of(kind) >= calibration.keeping(s.of(SENTENCES), KEPT)).mean() for s in samples]
            )
            at_default = interval([100 * (s.of(kind) >= calibration.MIDPOINT).mean() for s in samples])
            if kind != SENTENCES:
                row[f"AUROC, {model}"] = interval([calibration.auroc(s.of(SENTENCES), s.of(kind)) for s in samples])
            row[f"{model}: answered, 95 % kept"] = at_kept
            row[f"{model}: answered at 0.5"] = at_default
    return rows


def _verdicts(whole: Mapping[str, Mapping[str, Sequence[Sample]]]) -> list[str]:
    """Return a line for each model: the kinds for which the target is met."""
    lines = []
    for model, of_scheme in whole.items():
        alarms = {
            kind: np.mean(
                [(s.of(kind) >= calibration.keeping(s.of(SENTENCES), KEPT)).mean() for s in of_scheme[CHOSEN]]
            )
            for kind in of_scheme[CHOSEN][0].absent_kinds
        }
        met = [kind for kind, share in alarms.items() if share <= FALSE_ALARMS]
        others = [kind for kind in alarms if kind not in met]
        lines.append(
            f"Target for {model}, at most {FALSE_ALARMS:.0%} false alarms with {KEPT:.0%} kept. Met: "
            f"{'; '.join(met) or 'none'}. **Not met**: {'; '.join(others) or 'none'}.\n"
        )
    return lines


def _size_rows(found: Measurement, sizes: Sequence[int]) -> dict[str, dict[str, Cell]]:
    rows: dict[str, dict[str, Cell]] = {}
    for model, worlds in found.tested.items():
        for size in sizes:
            samples = [list(libraries(w, CHOSEN, size)) for w in worlds.values()]
            rows[f"{model}, {size} video{'s' * (size > 1)}"] = {
                "kept at 0.5, %": interval(
                    [
                        100 * float(np.mean([(s.of(SENTENCES) >= calibration.MIDPOINT).mean() for s in of]))
                        for of in samples
                    ]
                ),
                "false alarms at 0.5, %": interval(
                    [100 * float(np.mean([s.false_alarms(calibration.MIDPOINT) for s in of])) for of in samples]
                ),
                "error": interval([_reliability(of).error() for of in samples]),
            }
    return rows


def _reliability(samples: Sequence[Sample]) -> calibration.Reliability:
    values, kinds, weights = (
        np.concatenate([getattr(sample, name) for sample in samples]) for name in ("values", "kinds", "weights")
    )
    unit_background = calibration.Background(location=0.0, scale=1.0)  # the values are standard deviations already
    return calibration.reliability(
        calibration.confidence(values, unit_background), np.array([is_present(kind) for kind in kinds]), weights
    )


def _trade_off(samples: Sequence[Sample]) -> tuple[Array, Array]:
    """Return the kept sentences and the false alarms at many thresholds, as shares: means over the worlds."""
    shares = np.linspace(0.5, 1, 51)
    alarms = [[s.false_alarms(calibration.keeping(s.of(SENTENCES), share)) for share in shares] for s in samples]
    return shares, np.mean(alarms, 0)


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    default = Budget()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/confidence"), help="keep everything here")
    for name in ("num_train", "num_val", "num_test", "epochs", "batch_size", "rounds"):
        value = getattr(default, name)
        option = f"--{name.removeprefix('num_').replace('_', '-')}"
        parser.add_argument(option, dest=name, type=int, default=value, metavar="N", help=f"[{value:,}]")
    for name in ("chosen_on", "chosen_on_trained", "tested_on", "tested_on_trained"):
        text = ",".join(map(str, getattr(default, name)))
        parser.add_argument(f"--{name.replace('_', '-')}", default=text, metavar="SEEDS", help=f"worlds [{text}]")
    parser.add_argument("--write", type=Path, help="also write the report to this file, and its plots beside it")
    arguments = vars(parser.parse_args(command_line))
    out, path = arguments.pop("out"), arguments.pop("write")
    seeds = {name: tuple(map(int, text.split(","))) for name, text in arguments.items() if isinstance(text, str)}
    budget = Budget(**arguments | seeds)
    torch.set_num_threads(1)  # the models are tiny, and results then have the same bits on every machine
    publish(report(measure(out, budget), budget, None if path is None else path.parent), path)


if __name__ == "__main__":
    main()
