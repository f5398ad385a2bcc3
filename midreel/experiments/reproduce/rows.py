"""Run a table of rows: train each row with each seed, evaluate the runs, and test the differences."""

import fnmatch
import json
import math
import statistics as averages
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from midreel import recipes
from midreel.errors import BadRun, BadSetting, UnknownName
from midreel.evaluation import statistics, tables
from midreel.experiments import runs
from midreel.experiments.reproduce.result import Difference, Result
from midreel.experiments.reproduce.specs import RUNS, Context, Experiment, Row
from midreel.experiments.scheduler import run_tasks
from midreel.experiments.trainings import Outcome, Place, Training, work
from midreel.methods import METHODS
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet

MORE_SEEDS = 10  # the power is also stated for this number


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of some rows.

    Attributes:
        outcomes: The outcomes of each row, by its key, in the order of the seeds.
        trainings: The trainings of each row.
        failures: The reasons of runs that failed, by name.
    """

    outcomes: Mapping[str, Sequence[Outcome]]
    trainings: Mapping[str, Sequence[Training]]
    failures: Mapping[str, str]


def recipe_of(context: Context, row: Row, seed: int | None = None) -> Recipe:
    """Return the recipe of a row: that of its method for the dataset, with the settings of the row.

    Args:
        context: The dataset, and settings that apply to all rows.
        row: The row.
        seed: The number of the seed, from 0. Default: the seed of the recipe.

    Raises:
        BadSetting: A setting that applies to all rows distinguishes this one.
    """
    taken = sorted(set(context.changes) & {*row.settings, *row.offsets})
    if taken:
        raise BadSetting(f"--set has {', '.join(taken)}, expected settings that all rows share. Choose rows instead.")
    dataset, method = context.dataset, row.method
    name = context.place.name or recipes.name_for(method, dataset.name)
    name = name if name in recipes.of_method(method) else recipes.name_for(method, dataset.name)
    changes = recipes.known_settings(method, context.changes)
    base = runs.recipe_for(dataset, method, name, changes, context.place.features)
    shifted = {key: round(getattr(base.config, key) + offset, 6) for key, offset in row.offsets.items()}
    seeded = {} if seed is None else {"seed": base.seed + seed}
    return runs.recipe_for(
        dataset, method, name, changes | dict(row.settings) | shifted | seeded, context.place.features
    )


def expect_known(context: Context) -> None:
    """Raise UnknownName if no method has one of the settings that apply to all rows."""
    parts = (Recipe, *(METHODS[name].Config for name in recipes.RECIPES))
    known = sorted({field.name for part in parts for field in fields(part)} - set(recipes.NOT_SETTINGS))
    for name in context.changes:
        if name not in known:
            raise UnknownName.among("setting", name, known, listed=recipes.LISTED)


def run_rows(context: Context, rows: Sequence[Row], places: Mapping[str, Place] | None = None) -> Runs:
    """Train and evaluate all rows with all seeds. Finished runs are read, and equal runs are trained once.

    Args:
        context: The dataset, the seeds and the jobs.
        rows: The rows.
        places: The dataset of a row, by its key, if it is not that of the context.
    """
    trained = [row for row in rows if row.is_trained]
    expect_known(context)
    tasks: dict[str, Training] = {}
    trainings: dict[str, list[Training]] = {row.key: [] for row in trained}
    contexts = {row.key: _at(context, (places or {}).get(row.key)) for row in trained}
    for seed, row in product(range(context.seeds), trained):  # seeds outside: the first one is complete early
        here = contexts[row.key]
        training = Training.plan(
            here.place,
            here.dataset,
            recipe_of(here, row, seed),
            here.out / RUNS,
            device=here.device,
            threads=here.threads,
        )
        trainings[row.key].append(training)
        if all(training.folder != other.folder for other in tasks.values()):
            tasks[f"{row.label}, seed {training.recipe.seed}"] = training
    (context.out / RUNS).mkdir(parents=True, exist_ok=True)
    failures = run_tasks(tasks, work, jobs=context.jobs, notify=context.notify)
    if tasks and len(failures) == len(tasks):
        name, reason = next(iter(failures.items()))
        raise BadRun(f"all {len(tasks)} runs failed, such as {name}: {reason}")
    outcomes = {
        row.key: [Outcome.read(each.folder) for each in trainings[row.key] if each.is_finished]
        if row.is_trained
        else [_untrained(context, row)]
        for row in rows
    }
    return Runs(
        outcomes={key: found for key, found in outcomes.items() if found}, trainings=trainings, failures=failures
    )


def _at(context: Context, place: Place | None) -> Context:
    return context if place is None else replace(context, place=place)


def _untrained(context: Context, row: Row) -> Outcome:
    """Evaluate a model that needs no training, with the numbers of frames and clips of MSC."""
    like = recipe_of(context, Row(key="msc", label=""))
    method = runs.load(row.method, context.dataset, like)
    data = FeatureSet.of(method, context.dataset, context.split)
    return Outcome.of(runs.examine(method, data, device=context.device))


def comparable(context: Context, rows: Sequence[Row]) -> list[Row]:
    """Leave out rows that need a joint space of frames and sentences, if the features have none."""
    return [row for row in rows if context.dataset.store.fingerprint.joint or not _needs_joint_space(row)]


def _needs_joint_space(row: Row) -> bool:
    return not row.is_trained or "joint_width" in {field.name for field in fields(METHODS[row.method].Config)}


def make(experiment: Experiment, context: Context) -> Result:
    """Run a table of rows."""
    rows = comparable(context, experiment.rows_for(context.dataset.name, context.rows))
    return result_of(experiment, context, rows, run_rows(context, rows))


def result_of(experiment: Experiment, context: Context, rows: Sequence[Row], found: Runs) -> Result:
    """Return the result of a table of rows.

    Args:
        experiment: The table.
        context: What it ran on.
        rows: Its rows.
        found: Their runs.
    """
    finished = [row for row in rows if row.key in found.outcomes]
    figures = tables.over_seeds({row.label: [each.figures for each in found.outcomes[row.key]] for row in finished})
    known = list(dict.fromkeys(name for row in figures.values() for name in row))
    columns = [name for pattern in experiment.columns for name in fnmatch.filter(known, pattern)]
    compared = differences(experiment, rows, found, context.video_of_query)
    return Result(
        name=experiment.name,
        title=experiment.title,
        dataset=about(context),
        rows={label: {name: row.get(name) for name in columns} for label, row in figures.items()},
        paper={row.label: row.paper for row in finished},
        benchmark=experiment.benchmark(context.dataset.name),
        columns=columns,
        digits=experiment.digits,
        tested=experiment.tested,
        differences=compared,
        intervals={
            row.label: (each.value, *each.interval())
            for row in finished
            for each in [statistics.estimate(*values_of(experiment.tested, found, row.key, context.video_of_query))]
        },
        notes=[*power(experiment, found, context), *_notes(context)],
        one_seed=any(len(found.outcomes[row.key]) == 1 for row in finished if row.is_trained),
        failures=found.failures,
        runs={
            row.label: [str(each.folder.relative_to(context.out)) for each in found.trainings[row.key]]
            for row in rows
            if row.key in found.trainings
        },
        recipes={
            row.label: json.loads(found.trainings[row.key][0].recipe.to_json())
            for row in rows
            if row.key in found.trainings
        },
    )


def about(context: Context) -> str:
    """Return the dataset, the split and its counts, for people."""
    split = context.dataset.splits[context.split]
    fingerprint, folder = context.dataset.store.fingerprint, context.place.folder.resolve().name
    return (
        f"Measured on {folder} ({context.dataset.name}), split {context.split}: {len(split.video_ids):,} videos, "
        f"{len(split.queries):,} queries; features: {fingerprint.source or fingerprint.backbone}."
    )


def _notes(context: Context) -> list[str]:
    num_videos = len(context.dataset.splits[context.split].video_ids)
    certain = [f"R@{k}" for k in statistics.RECALLS_AT if k >= num_videos]
    return [f"With {num_videos} videos, {', '.join(certain)} cannot fail."] if certain else []


# ---------------------------------------------------------------- comparisons

Values = tuple[Float[np.ndarray, "N K"], Int[np.ndarray, " K"]]  # K: the queries, or 1


def values_of(metric: str, found: Runs, key: str, video_of_query: Int[np.ndarray, " Q"]) -> Values:
    """Return the values of a metric for each run and query, and the video of each query.

    Metrics of a whole run, such as Diff. Norm, have one value for each run.

    Args:
        metric: The name of the metric.
        found: The runs.
        key: The key of the row.
        video_of_query: The video of each query.
    """
    outcomes = found.outcomes[key]
    if metric == "SumR":
        return statistics.points(np.array([each.ranks for each in outcomes])), video_of_query
    return np.array([[each.figures[metric]] for each in outcomes]), np.zeros(1, int)


def differences(
    experiment: Experiment, rows: Sequence[Row], found: Runs, video_of_query: Int[np.ndarray, " Q"]
) -> list[Difference]:
    """Return the comparisons of an experiment, between rows with results.

    Args:
        experiment: The experiment, which names the pairs and the metric.
        rows: The rows.
        found: Their runs.
        video_of_query: The video of each query.
    """
    row_of_key = {row.key: row for row in rows if row.key in found.outcomes}
    pairs = [(a, b) for a, b in experiment.pairs if a in row_of_key and b in row_of_key]
    compared = [_difference(experiment.tested, row_of_key[a], row_of_key[b], found, video_of_query) for a, b in pairs]
    adjusted = statistics.holm([each.p for each in compared])
    return [replace(each, p_holm=p) for each, p in zip(compared, adjusted, strict=True)]


def _difference(metric: str, row: Row, other: Row, found: Runs, video_of_query: Int[np.ndarray, " Q"]) -> Difference:
    (ours, videos), (theirs, _) = (values_of(metric, found, each.key, video_of_query) for each in (row, other))
    printed = (row.paper.get(metric), other.paper.get(metric))
    compared = difference_of((row.label, other.label), ours, theirs, videos, printed)
    one_seed = any(each.is_trained and len(found.outcomes[each.key]) == 1 for each in (row, other))
    return without_seeds(compared) if one_seed else compared


def without_seeds(compared: Difference) -> Difference:
    """Return a difference of rows with one seed: its interval and p-value over seeds are unknown."""
    return replace(compared, low=math.nan, high=math.nan, p=math.nan)


def difference_of(
    labels: tuple[str, str],
    ours: Float[np.ndarray, "N Q"],
    theirs: Float[np.ndarray, "M Q"],
    video_of_query: Int[np.ndarray, " Q"],
    printed: tuple[float | None, float | None],
) -> Difference:
    """Return the difference of two rows with all its tests. Metrics of a whole run have no tests over videos.

    Args:
        labels: The names of the two rows.
        ours: The values of the first row, by run and query.
        theirs: The values of the second row.
        video_of_query: The video of each query.
        printed: What the paper printed for the two rows.
    """
    estimate = statistics.estimate(ours, video_of_query, theirs)
    low, high = estimate.interval()
    compared = Difference(
        row=labels[0],
        other=labels[1],
        value=estimate.value,
        low=low,
        high=high,
        p=estimate.p_value,
        paper=None if printed[0] is None or printed[1] is None else round(printed[0] - printed[1], 6),
    )
    if ours.shape[1] == 1:
        return compared
    of_query = ours.mean(0) - theirs.mean(0)
    low, high = statistics.bootstrap(of_query, video_of_query)
    p_videos = statistics.permutation_test(of_query, video_of_query)
    return replace(compared, low_videos=low, high_videos=high, p_videos=p_videos)


def power(experiment: Experiment, found: Runs, context: Context) -> list[str]:
    """Return a sentence on the smallest difference that the comparisons could see.

    Args:
        experiment: The experiment, which names the pairs and the metric.
        found: The runs.
        context: The number of seeds, and the videos.
    """
    pairs = [pair for pair in experiment.pairs if all(len(found.outcomes.get(key, ())) > 1 for key in pair)]
    if not pairs:
        return []

    def detectable(num_runs: int) -> float:
        every = []
        for a, b in pairs:
            (ours, videos), (theirs, _) = (
                values_of(experiment.tested, found, key, context.video_of_query) for key in (a, b)
            )
            every.append(statistics.detectable(ours, theirs, videos, num_runs))
        return averages.median(every)

    digits = experiment.digits.get(experiment.tested, 1)
    numbers = sorted({context.seeds, MORE_SEEDS})
    shown = [f"with {number} seeds below {detectable(number):.{digits}f}" for number in numbers]
    if any(math.isnan(detectable(number)) for number in numbers):
        return []
    return [
        f"A difference in {experiment.tested} cannot be seen here {' and '.join(shown)} "
        f"(found in 80 % of such comparisons, test at 5 %)."
    ]
