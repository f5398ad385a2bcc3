"""Transfer: train on one dataset, test on another, beside zero-shot."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np
from jaxtyping import Float

from midreel.errors import BadSetting
from midreel.evaluation import statistics, tables
from midreel.experiments import runs
from midreel.experiments.reproduce.result import Difference, Result
from midreel.experiments.reproduce.rows import about, difference_of, recipe_of, run_rows, without_seeds
from midreel.experiments.reproduce.specs import Context, Experiment, Row
from midreel.experiments.trainings import Outcome
from midreel.methods.model_files import ZERO_SHOT
from midreel.recipes.published import COLUMNS
from midreel.training.data import FeatureSet

# SumR of MSC with CLIP-L/14, from the TF-PRVR paper, and of zero-shot.
PRINTED = {
    ("tvr", "activitynet"): 123.8,
    ("activitynet", "tvr"): 77.4,
    ("charades", "tvr"): 25.6,
    ("activitynet", "charades"): 47.7,
}
ZERO = {"activitynet": 172.9, "tvr": 167.2, "charades": 73.1}
ROWS = (Row(key="msc", label="MSC"),)


def make(experiment: Experiment, context: Context) -> Result:
    """Train on each dataset, and test on each other one.

    Raises:
        BadSetting: There is one dataset only.
        FingerprintMismatch: The datasets have features of different backbones.
    """
    if not context.others:
        raise BadSetting("transfer has 1 dataset, expected two or more. Repeat the option: --dataset A --dataset B")
    (row,) = experiment.rows_for("", context.rows)
    contexts = {_name(each): each for each in _each(context)}
    if len(contexts) <= len(context.others):
        raise BadSetting(f"the datasets are {', '.join(contexts)}, expected different folders.")
    found = {name: run_rows(here, [row]) for name, here in contexts.items()}
    outcomes: dict[str, list[Outcome]] = {}
    paper: dict[str, dict[str, float]] = {}
    compared: list[Difference] = []
    for target, there in contexts.items():
        zero, own = f"zero-shot on {target}", f"{target} → {target}"
        if there.dataset.store.fingerprint.joint:
            outcomes[zero] = [_tested(ZERO_SHOT, there)]
        outcomes[own] = list(found[target].outcomes[row.key])
        paper[zero] = {"SumR": ZERO[target]} if target in ZERO else {}
        for source, other in permutations(contexts, 2):
            if other == target:
                label = f"{source} → {target}"
                folders = [each.folder for each in found[source].trainings[row.key] if each.is_finished]
                outcomes[label] = [_tested(str(folder), there) for folder in folders]
                paper[label] = {"SumR": PRINTED[source, target]} if (source, target) in PRINTED else {}
                if zero in outcomes:
                    ours, theirs = (_points(outcomes[name]) for name in (label, zero))
                    printed = (paper[label].get("SumR"), paper[zero].get("SumR"))
                    found_difference = difference_of((label, zero), ours, theirs, there.video_of_query, printed)
                    compared.append(found_difference if len(ours) > 1 else without_seeds(found_difference))
    adjusted = statistics.holm([each.p for each in compared])
    figures = tables.over_seeds({label: [each.figures for each in every] for label, every in outcomes.items()})
    return Result(
        name=experiment.name,
        title=experiment.title,
        dataset=" ".join(about(each) for each in contexts.values()),
        rows={label: {name: row[name] for name in COLUMNS} for label, row in figures.items()},
        paper=paper,
        benchmark="the benchmarks with CLIP-L/14 (TF-PRVR paper)",
        columns=COLUMNS,
        differences=[replace(each, p_holm=p) for each, p in zip(compared, adjusted, strict=True)],
        one_seed=context.seeds == 1,
        notes=["A → B: trained on A, tested on B. The epoch is chosen on A."],
        failures={name: reason for each in found.values() for name, reason in each.failures.items()},
        runs={
            name: [str(training.folder.relative_to(context.out)) for training in each.trainings[row.key]]
            for name, each in found.items()
        },
    )


def _each(context: Context) -> Sequence[Context]:
    return [replace(context, place=place, others=()) for place in (context.place, *context.others)]


def _name(context: Context) -> str:
    """Return the name of a benchmark, or of the folder of another dataset."""
    name = context.dataset.name
    return context.place.folder.resolve().name if name == "own" else name


def _tested(model: str, context: Context) -> Outcome:
    method = runs.load(model, context.dataset, recipe_of(context, ROWS[0]))
    data = FeatureSet.of(method, context.dataset, context.split)
    return Outcome.of(runs.examine(method, data, device=context.device))


def _points(outcomes: Sequence[Outcome]) -> Float[np.ndarray, "N Q"]:
    return statistics.points(np.array([each.ranks for each in outcomes]))
