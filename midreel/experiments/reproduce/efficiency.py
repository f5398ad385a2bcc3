"""Tables 6 and 7: time and memory of a search by the number of videos, and the cost of training."""

import copy
import math
from collections.abc import Sequence

import torch

from midreel.evaluation.tables import Cell, Spread
from midreel.experiments import costs, runs
from midreel.experiments.reproduce.result import Result
from midreel.experiments.reproduce.rows import about, expect_known, recipe_of
from midreel.experiments.reproduce.specs import Context, Experiment, Row
from midreel.experiments.trainings import num_threads
from midreel.methods.base import Method
from midreel.recipes import published
from midreel.training.data import FeatureSet

SIZES = (100, 200, 300, 400, 474)  # videos
ROUNDS, NUM_QUERIES = 5, 20  # the paper averages over 5 runs
ROUNDS_NAME = "rounds"
TIME, MEMORY = "ms a query", "MB"
COSTS = ("ms an epoch", "training MB", "M parameters", "GFLOPs, a video", "GFLOPs, a query")
BENCHMARK = "qvhighlights"
_SEARCH = {  # milliseconds a query, and megabytes
    "ms_sl": ((3.09, 3.85, 4.66, 5.14, 5.58), (717.47, 796.15, 874.83, 954.14, 1010.89)),
    "gmmformer": ((1.97, 1.98, 1.99, 2.02, 2.05), (243.11, 248.95, 254.78, 260.62, 264.10)),
    "gmmformer_v2": ((2.31, 2.38, 2.40, 2.61, 2.78), (419.75, 440.18, 459.62, 480.55, 493.46)),
    "msc": ((2.32, 2.37, 2.40, 2.60, 2.70), (419.75, 440.18, 459.62, 480.55, 493.46)),
}
# The paper prints one number of FLOPs. It stands beside that of a video, which is nearly all of it.
_TRAINING = {
    "ms_sl": (10934, 2375, 4.57, 0.37),
    "gmmformer": (12828, 3333, 12.72, 0.99),
    "gmmformer_v2": (17223, 7826, 32.14, 2.78),
    "msc": (62641, 9755, 32.14, 2.78),
}
ROWS = tuple(Row(key=name, label=published.LABELS[name], method=name) for name in _SEARCH)


def make_search_table(experiment: Experiment, context: Context) -> Result:
    """Measure Table 6: the time of a query and the memory, on stored tokens of 100 to 474 videos.

    A dataset with fewer videos repeats them: time and memory do not depend on what they show.
    """
    rows = _rows(experiment, context)
    table: dict[str, dict[str, Cell]] = {}
    printed: dict[str, dict[str, float]] = {}
    with num_threads(context.threads):
        for row in rows:
            method = runs.new_method(recipe_of(context, row)).eval()
            data = FeatureSet.of(method, context.dataset, context.split)
            candidates = [costs.searches(method, data, num_videos=size, num=NUM_QUERIES) for size in SIZES]
            num_queries = min(NUM_QUERIES, len(data.queries))
            for size, times in zip(SIZES, costs.in_turns(candidates, ROUNDS), strict=True):
                label = f"{size} videos"
                of_query = [1000 * seconds / num_queries for seconds in times]
                table.setdefault(f"{row.label}, {TIME}", {})[label] = Spread.of(of_query)
            for place, size in enumerate(SIZES):
                label = f"{size} videos"
                table.setdefault(f"{row.label}, {MEMORY}", {})[label] = _search_memory(method, data, size)
                for unit, values in zip((TIME, MEMORY), _SEARCH[row.key], strict=True):
                    printed.setdefault(f"{row.label}, {unit}", {})[label] = values[place]
    columns = [f"{size} videos" for size in SIZES]
    return Result(
        name=experiment.name,
        title=experiment.title,
        dataset=about(context),
        rows=table,
        paper=printed,
        benchmark=f"{BENCHMARK}, with an RTX A6000",
        columns=columns,
        repeats=ROUNDS_NAME,
        digits=dict.fromkeys(columns, 2),
        notes=[
            f"In a round, the numbers of videos take turns. A query is encoded and scored exactly against stored "
            f"tokens, on {context.threads} thread(s) of the CPU.",
            "Memory is that of the weights, the stored tokens, and the peak of one query.",
        ],
    )


def _search_memory(method: Method, data: FeatureSet, num_videos: int) -> float:
    some = torch.arange(num_videos) % len(data)
    with torch.inference_mode():
        videos = method.encode_videos(data.video_batch(some))
        query = data.query_batch(torch.tensor([0]))
        peak = costs.peak_bytes(lambda: method.score(method.encode_queries(query), videos))
    tokens = [part for each in videos.values() for part in (each.vectors, each.mask, each.spans)]
    return (costs.num_bytes(costs.weights_of(method)) + costs.num_bytes(tokens) + peak) / costs.MEGABYTE


def make_training_table(experiment: Experiment, context: Context) -> Result:
    """Measure Table 7: time of an epoch, memory of a step, parameters, and floating point operations."""
    rows = _rows(experiment, context)
    recipes = [recipe_of(context, row) for row in rows]
    methods = [runs.new_method(recipe) for recipe in recipes]
    with num_threads(context.threads):
        sets = [FeatureSet.of(method, context.dataset, "train") for method in methods]
        steps = [
            costs.training_step(method, data, recipe)
            for method, data, recipe in zip(methods, sets, recipes, strict=True)
        ]
        times = costs.in_turns(steps, ROUNDS)
        table: dict[str, dict[str, Cell]] = {}
        for row, recipe, method, data, step, seconds in zip(rows, recipes, methods, sets, steps, times, strict=True):
            num_steps = math.ceil(len(data) / recipe.batch_size)
            # The gradients are part of the peak: they are made in each step.
            memory = 3 * costs.num_bytes(list(method.parameters())) + costs.peak_bytes(step)
            video, query = _flops(method, data)
            table[row.label] = {
                COSTS[0]: Spread.of([1000 * each * num_steps for each in seconds]),
                COSTS[1]: memory / costs.MEGABYTE,
                COSTS[2]: sum(parameter.numel() for parameter in method.parameters()) / 1e6,
                COSTS[3]: video / 1e9,
                COSTS[4]: query / 1e9,
            }
    return Result(
        name=experiment.name,
        title=experiment.title,
        dataset=about(context),
        rows=table,
        paper={row.label: dict(zip(COSTS, map(float, _TRAINING[row.key]), strict=False)) for row in rows},
        benchmark=f"{BENCHMARK}, with an RTX A6000",
        columns=COSTS,
        repeats=ROUNDS_NAME,
        digits={COSTS[0]: 0, COSTS[1]: 0, COSTS[2]: 2, COSTS[3]: 4, COSTS[4]: 4},
        notes=[
            f"The time of an epoch is that of a step times the number of steps, without validation. In a round, the "
            f"methods take turns, on {context.threads} thread(s) of the CPU.",
            "Memory is that of weights, gradients and the two moments of the optimiser, and the peak of a step.",
            "GFLOPs are those of matrix products, as torch counts them, to encode a video and a query.",
        ],
    )


def _flops(method: Method, data: FeatureSet) -> tuple[int, int]:
    """Return the floating point operations to encode a video, and a query."""
    one = torch.tensor([0])
    video, query = data.video_batch(one), data.query_batch(one)
    frozen = copy.deepcopy(method).eval().requires_grad_(False)  # the counter also counts gradients
    return (
        costs.num_flops(lambda: frozen.encode_videos(video)),
        costs.num_flops(lambda: frozen.encode_queries(query)),
    )


def _rows(experiment: Experiment, context: Context) -> Sequence[Row]:
    rows = experiment.rows_for(context.dataset.name, context.rows)
    expect_known(context)
    return rows
