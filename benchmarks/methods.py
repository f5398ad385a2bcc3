"""Compare all methods on the playhouse with the same budget: retrieval, moments, collapse and cost.

    make bench-methods

Every method gets the same videos, epochs and batches. Its learning rate is the one of a small grid with the highest
SumR on val. Finished runs are kept in --out and not repeated, so an interrupted comparison continues where it stopped.
"""

import argparse
import copy
import fnmatch
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats  # type: ignore[import-untyped]

from benchmarks.measuring import machine, publish
from midreel import recipes
from midreel.datasets import open_annotations, playhouse
from midreel.datasets.dataset import Dataset, extract
from midreel.errors import BadRun
from midreel.evaluation import statistics as significance
from midreel.evaluation import tables
from midreel.evaluation.tables import Spread
from midreel.experiments import costs, runs
from midreel.features import load_backbone
from midreel.io.files import write_durably
from midreel.methods import METHODS
from midreel.methods.base import Method
from midreel.recipes.published import LABELS
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet

DATA, REFERENCE = "playhouse", "msc"
FRAME_RATE = 1.0
CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
SIZES = {"num_frames": 32, "num_clips": 8}  # of methods without a recipe, as in the recipes for the playhouse
BUDGET, RESULT, COST = "budget.json", "result.json", "cost.json"
RETRIEVAL = ("R@1", "R@5", "R@10", "R@100", "SumR", "SumR - MSC's")
INSIDE = ("found R1@0.5", "found R1@0.7", "found mIoU", "text Diff. Norm", "video Diff. Norm", "Spearman")
COSTS = ("M parameters", "MFLOPs, a video", "MFLOPs, a query", "training step / MSC's", "search / MSC's")
# Runs that test why the order differs from the paper's: the method, changed settings, and the factor of the epochs.
VARIANTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "bgm_net without alignment": ("bgm_net", {"alignment_weight": 0.0}, 1),
    "proto_prvr, 3 x epochs": ("proto_prvr", {}, 3),
    "gmmformer, 3 x epochs": ("gmmformer", {}, 3),
    "msc, 3 x epochs": ("msc", {}, 3),
}
DIGITS = {
    "text Diff. Norm": 3,
    "video Diff. Norm": 3,
    "M parameters": 2,
    "training step / MSC's": 2,
    "search / MSC's": 2,
}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What every method gets."""

    num_train: int = 1000
    num_val: int = 150
    num_test: int = 200
    epochs: int = 10
    batch_size: int = 32
    seeds: int = 3
    grid: tuple[float, ...] = (3e-4, 7e-4, 1.5e-3)  # learning rates
    rounds: int = 9  # of timing


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one run on the test videos.

    Attributes:
        figures: All metrics by name.
        ranks: The rank of the right video for each query.
        chosen_by: SumR on val, which chooses the learning rate. None for a method that is not trained.
    """

    figures: Mapping[str, float]
    ranks: Sequence[int]
    chosen_by: float | None


# ---------------------------------------------------------------- runs


def expect_same_budget(out: Path, budget: Budget) -> None:
    """Raise BadRun if the folder has runs of another budget. More seeds, rates, rounds and methods may be added."""
    mine = {name: value for name, value in asdict(budget).items() if name not in ("seeds", "grid", "rounds")}
    path = out / BUDGET
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps(mine) + "\n")
    theirs = json.loads(path.read_text(encoding="utf-8"))
    if theirs != mine:
        raise BadRun(f"{out} has the budget {theirs}, expected {mine}. Choose another folder with --out.")


def prepare_dataset(folder: Path, budget: Budget) -> Dataset:
    """Generate the dataset and its features, or what is missing of them."""
    playhouse.write_dataset(
        folder, seed=0, num_train=budget.num_train, num_val=budget.num_val, num_test=budget.num_test, files=()
    )
    extract(open_annotations(folder), load_backbone("tiny-clip"), rate=FRAME_RATE)
    return Dataset.open(folder)


def recipe_of(name: str, budget: Budget, lr: float, seed: int, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe of a run: that of the playhouse, with the budget.

    Args:
        name: The name of the method.
        budget: The epochs and the size of a batch.
        lr: The learning rate.
        seed: The seed.
        changes: Other settings to change.
    """
    of_budget = {"epochs": budget.epochs, "batch_size": budget.batch_size, "lr": lr, "seed": seed}
    return recipes.build(name, DATA, of_budget | dict(changes or {}))


def is_trained(name: str) -> bool:
    """Return whether a method has a recipe for the playhouse."""
    return DATA in recipes.RECIPES.get(name, {})


def untrained(name: str, dataset: Dataset) -> Method:
    """Return a method that needs no training, for the features of a dataset."""
    make = METHODS[name]
    wanted = {"width": dataset.store.fingerprint.joint_width} | SIZES
    known = {field.name for field in fields(make.Config)}
    return make(make.Config(**{key: value for key, value in wanted.items() if key in known}))


def run_of(out: Path, name: str, lr: float, seed: int) -> Path:
    """Return the folder of a run."""
    return out / "runs" / name / f"lr-{lr:g}" / f"seed-{seed}"


def outcome_of_run(dataset: Dataset, recipe: Recipe, folder: Path, label: str) -> Outcome:
    """Train and evaluate a method, unless the run is finished.

    Args:
        dataset: The dataset.
        recipe: The recipe of the run.
        folder: The folder of the run.
        label: What is trained, for the progress.
    """
    if not (folder / RESULT).exists():
        say(f"{label}: learning rate {recipe.lr:g}, seed {recipe.seed}")
        best = runs.train_or_resume(dataset, recipe, folder)
        record = json.loads((best / "metrics.json").read_text(encoding="utf-8"))
        _write(folder / RESULT, _examine(runs.load(str(folder), dataset), dataset, record["metrics"]["SumR"]))
    return _read(folder / RESULT)


def outcomes_of_variant(dataset: Dataset, budget: Budget, out: Path, label: str, lr: float) -> list[Outcome]:
    """Train and evaluate a variant with all seeds.

    Args:
        dataset: The dataset.
        budget: What the method of the variant gets.
        out: The folder of the comparison.
        label: The name of the variant, a key of `VARIANTS`.
        lr: The learning rate of its method.
    """
    name, changes, factor = VARIANTS[label]
    first = recipes.build(name, DATA).seed
    longer = replace(budget, epochs=factor * budget.epochs)
    folder = out / "variants" / label.replace(" ", "-")
    return [
        outcome_of_run(dataset, recipe_of(name, longer, lr, seed, changes), folder / f"seed-{seed}", label)
        for seed in range(first, first + budget.seeds)
    ]


def outcome_untrained(dataset: Dataset, out: Path, name: str) -> Outcome:
    """Evaluate a method that needs no training, unless that is finished."""
    path = out / "runs" / name / RESULT
    if not path.exists():
        say(f"{name}: evaluating")
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, _examine(untrained(name, dataset), dataset, None))
    return _read(path)


def _examine(method: Method, dataset: Dataset, chosen_by: float | None) -> Outcome:
    examination = runs.examine(method, FeatureSet.of(method, dataset, "test"))
    return Outcome(figures=examination.figures(), ranks=examination.report.ranks, chosen_by=chosen_by)


def _write(path: Path, outcome: Outcome) -> None:
    write_durably(path, json.dumps(asdict(outcome)) + "\n")


def _read(path: Path) -> Outcome:
    return Outcome(**json.loads(path.read_text(encoding="utf-8")))


def say(text: str) -> None:
    """Print a line about the progress to stderr."""
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- costs


def cost_of(
    name: str, method: Method, reference: Method, dataset: Dataset, budget: Budget
) -> dict[str, float | list[float] | None]:
    """Measure the size and the speed of a method.

    Args:
        name: The name of the method.
        method: The method.
        reference: MSC, for ratios of times.
        dataset: The dataset.
        budget: The size of a batch, and the number of rounds.
    """
    data = FeatureSet.of(method, dataset, "test")
    one = torch.tensor([0])
    video, query = data.video_batch(one), data.query_batch(one)
    frozen = copy.deepcopy(method).eval().requires_grad_(False)  # the counter also counts gradients
    flops = [
        costs.num_flops(lambda: frozen.encode_videos(video)),
        costs.num_flops(lambda: frozen.encode_queries(query)),
    ]
    steps = None
    if is_trained(name):
        above, below = (
            costs.training_step(each, FeatureSet.of(each, dataset, "train"), recipe_of(of, budget, 1e-6, 0))
            for of, each in ((name, method), (REFERENCE, reference))
        )
        steps = costs.ratios(above, below, budget.rounds)
    ours, theirs = (costs.searches(each, FeatureSet.of(each, dataset, "test")) for each in (method, reference))
    return {
        "M parameters": sum(parameter.numel() for parameter in method.parameters()) / 1e6,
        "MFLOPs, a video": flops[0] / 1e6,
        "MFLOPs, a query": flops[1] / 1e6,
        "training step / MSC's": steps,
        "search / MSC's": costs.ratios(ours, theirs, budget.rounds),
    }


# ---------------------------------------------------------------- intervals


def interval(values: Sequence[float]) -> Spread:
    """Return the mean over seeds with half its 95 % interval, by Student's distribution."""
    found = Spread.of(values)
    if found.num < 2 or math.isnan(found.mean):
        return found
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, found.num - 1)) * found.spread / math.sqrt(found.num)
    return Spread(mean=found.mean, spread=half, num=found.num)


def difference(ours: Sequence[Outcome], theirs: Sequence[Outcome], video_of_query: Sequence[int]) -> Spread:
    """Return the difference in SumR on the same queries, with half its 95 % interval over the choice of test videos.

    Args:
        ours: The runs of a method.
        theirs: The runs of the method to compare with.
        video_of_query: The video of each query. Whole videos are drawn, because their queries are alike.
    """
    shares = [significance.points(np.array([each.ranks for each in runs])).mean(0) for runs in (ours, theirs)]
    of_query = shares[0] - shares[1]
    low, high = significance.bootstrap(of_query, np.asarray(video_of_query), resamples=NUM_RESAMPLES)
    return Spread(mean=float(of_query.mean()), spread=(high - low) / 2, num=NUM_RESAMPLES)


# ---------------------------------------------------------------- comparison


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of all methods.

    Attributes:
        outcomes: The runs of each method with its chosen learning rate.
        rates: SumR on val of each learning rate, by method.
        costs: The cost of each method.
        variants: The runs of each variant.
        video_of_query: The video of each test query.
    """

    outcomes: Mapping[str, Sequence[Outcome]]
    rates: Mapping[str, Mapping[float, float]]
    costs: Mapping[str, Mapping[str, float | list[float] | None]]
    variants: Mapping[str, Sequence[Outcome]]
    video_of_query: Sequence[int]


def compare(out: Path, budget: Budget, names: Sequence[str]) -> Comparison:
    """Run everything that is not finished, and return all results.

    Args:
        out: The folder of the comparison.
        budget: What every method gets.
        names: The methods. MSC is always one of them.
    """
    expect_same_budget(out, budget)
    dataset = prepare_dataset(out / "dataset", budget)
    outcomes: dict[str, list[Outcome]] = {}
    rates: dict[str, dict[float, float]] = {}
    models: dict[str, Method] = {}
    for name in dict.fromkeys([REFERENCE, *names]):
        if not is_trained(name):
            outcomes[name], models[name] = [outcome_untrained(dataset, out, name)], untrained(name, dataset)
            continue
        first = recipes.build(name, DATA).seed

        def outcome(lr: float, seed: int, name: str = name) -> Outcome:
            return outcome_of_run(dataset, recipe_of(name, budget, lr, seed), run_of(out, name, lr, seed), name)

        rates[name] = {lr: outcome(lr, first).chosen_by or 0.0 for lr in sorted(budget.grid)}
        outcomes[name] = [outcome(best_rate(rates[name]), seed) for seed in range(first, first + budget.seeds)]
        models[name] = runs.load(str(run_of(out, name, best_rate(rates[name]), first)), dataset)
    variants = {
        label: outcomes_of_variant(dataset, budget, out, label, best_rate(rates[name]))
        for label, (name, _, _) in VARIANTS.items()
        if name in names
    }
    costs = {}
    for name, method in models.items():
        path = out / "runs" / name / COST
        if not path.exists():
            say(f"{name}: measuring its cost")
            write_durably(path, json.dumps(cost_of(name, method, models[REFERENCE], dataset, budget)) + "\n")
        costs[name] = json.loads(path.read_text(encoding="utf-8"))
    order = [*(name for name in LABELS if name in outcomes), *(name for name in outcomes if name not in LABELS)]
    return Comparison(
        outcomes={name: outcomes[name] for name in order},
        rates={name: rates[name] for name in order if name in rates},
        costs={name: costs[name] for name in order},
        variants=variants,
        video_of_query=FeatureSet.of(models[REFERENCE], dataset, "test").video_of_query.tolist(),
    )


def best_rate(rates: Mapping[float, float]) -> float:
    """Return the learning rate with the highest SumR on val, the lowest of equal ones."""
    return max(sorted(rates), key=rates.__getitem__)


# ---------------------------------------------------------------- report


def _rows(found: Comparison) -> dict[str, dict[str, tables.Cell]]:
    rows: dict[str, dict[str, tables.Cell]] = {}
    for name, outcomes in {**found.outcomes, **found.variants}.items():
        metrics = [metric for metric in outcomes[0].figures if any(fnmatch.fnmatch(metric, x) for x in _SHOWN)]
        row: dict[str, tables.Cell] = {
            metric: interval([outcome.figures[metric] for outcome in outcomes]) for metric in metrics
        }
        if name != REFERENCE:
            row["SumR - MSC's"] = difference(outcomes, found.outcomes[REFERENCE], found.video_of_query)
        for metric, value in found.costs.get(name, {}).items():
            row[metric] = value if not isinstance(value, list) else _median(value)
        rows[name] = row
    return rows


_SHOWN = (*RETRIEVAL[:5], *INSIDE)


def _median(values: Sequence[float]) -> Spread:
    """Return the median of the ratios of all rounds, with half the range of the middle half."""
    median, half = costs.middle(values)
    return Spread(mean=median, spread=half, num=len(values))


def _label(name: str) -> str:
    """Return the name of a method or a variant, and whether it is a reconstruction."""
    method, _, _ = VARIANTS.get(name, (name, {}, 1))
    return f"{name} (reconstruction)" if METHODS[method].reconstruction else name


def report(found: Comparison, budget: Budget) -> str:
    """Return the report as Markdown."""
    rows = _rows(found)
    known = {metric for row in rows.values() for metric in row}

    def table(columns: Sequence[str], of: Mapping[str, Any]) -> str:
        shown = [name for name in columns if name in known]
        return tables.to_markdown({_label(name): rows[name] for name in of}, shown, digits=DIGITS, corner="method")

    rates = {_label(name): {f"{lr:g}": value for lr, value in of.items()} for name, of in found.rates.items()}
    queries, grid = len(found.video_of_query), ", ".join(f"{lr:g}" for lr in sorted(budget.grid))
    return f"""# All methods on the playhouse

Measured by `make bench-methods`. Every method has the same budget: {budget.num_train:,} training videos of the
generated dataset with features of the tiny CLIP, {budget.epochs} epochs, {budget.batch_size} videos in a batch, and
{budget.seeds} seeds. Each learning rate of {grid} was tried with the first seed. The one with the
highest SumR on {budget.num_val} validation videos was kept. The figures are from {budget.num_test} test videos with
{queries:,} queries.

{machine()}

## Finding the video

{table(RETRIEVAL, found.outcomes)}
Cells are means over the seeds ± half of a 95 % interval (Student's, so it is wide for few seeds). Methods that are not
trained have no seeds. *SumR - MSC's* compares on the same queries. Its interval is over the choice of test videos
(bootstrap, {NUM_RESAMPLES:,} draws) and does not include the choice of seeds.

## Finding the moment, and collapse

{table(INSIDE, found.outcomes)}
*Found* is the moment that a search shows, within the right video. Diff. Norm and Spearman are those of
[the ablation](playhouse.md).

## Cost

{table(COSTS, found.outcomes)}
Parameters, in millions, are those of the recipe for the playhouse. MFLOPs are millions of floating point operations in
matrix products, as `torch.utils.flop_counter` counts them, to encode one video and one query. Times are ratios to MSC:
the median over {budget.rounds} rounds in which the two take turns ± half the range of the middle half. A search encodes
one query and scores all test videos exactly, without an index. A step has {budget.batch_size} videos with all their
queries.

{_order(table(RETRIEVAL, found.variants)) if found.variants else ""}## Learning rates

{tables.to_markdown(rates, corner="SumR on val")}
## How far to trust it

The playhouse is generated, and small. The figures say how methods behave under equal conditions, not how they rank on
real videos. A grid of {len(budget.grid)} learning rates is coarse, and the other settings were chosen for MSC.
"""


def _order(table: str) -> str:
    """Return the section about the order of the methods. If you change a method or the budget, check its sentences."""
    return f"""## Where the order differs from the paper's

On TVR, the MSC paper ranks MSC, ARL, ProtoPRVR, GMMFormer v2, MS-SL, BGM-Net, GMMFormer and AMDNet, in this order. Here
ProtoPRVR, BGM-Net and GMMFormer are lower. These runs test why. They have the learning rates of their methods.

{table}
- **ProtoPRVR** learns slowly, because its prototypes start as random vectors. Three times the epochs raise it far more
  than MSC, so its recipe for the playhouse has them. It is a reconstruction, and its seeds differ more than those of
  other methods.
- **BGM-Net** is lower because of its alignment loss, which gives the clips of a video the relations of its queries.
  Without this loss it has about the result of AMDNet.
- **GMMFormer** also needs more epochs, but stays below MS-SL. Its frame branch is one vector for the whole video, so
  its moments are coarse too. The paper has the same order of these two, except on ActivityNet Captions.
- **ARL** and **DL-DKD** have intervals that include MS-SL. Three seeds do not separate them. ARL is a reconstruction.
- **MSC** and **GMMFormer v2** differ by less than the interval. In the paper MSC is 5 to 9 SumR higher. The text
  Diff. Norm of MSC is lower, as in the paper.

"""


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    default = Budget()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/methods"), help="keep the runs here [runs/methods]")
    parser.add_argument("--methods", default="", help="compare only these, such as ms_sl,arl [all]")
    for name, text in (
        ("num_train", "training videos"),
        ("num_val", "validation videos"),
        ("num_test", "test videos"),
        ("epochs", "epochs of a run"),
        ("batch_size", "videos in a batch"),
        ("seeds", "seeds of a method"),
        ("rounds", "timed rounds"),
    ):
        value = getattr(default, name)
        option = f"--{name.removeprefix('num_').replace('_', '-')}"
        parser.add_argument(option, dest=name, type=int, default=value, metavar="N", help=f"{text} [{value:,}]")
    grid = ",".join(f"{lr:g}" for lr in default.grid)
    parser.add_argument("--grid", default=grid, metavar="RATES", help=f"learning rates to try [{grid}]")
    parser.add_argument("--write", type=Path, help="also write the report to this file")
    arguments = vars(parser.parse_args(command_line))
    out, path, names, rates = (arguments.pop(name) for name in ("out", "write", "methods", "grid"))
    budget = Budget(**arguments, grid=tuple(float(lr) for lr in rates.split(",")))
    torch.set_num_threads(1)  # the models are tiny, and results then have the same bits on every machine
    wanted = names.split(",") if names else list(METHODS)
    publish(report(compare(out, budget, wanted), budget), path)


if __name__ == "__main__":
    main()
