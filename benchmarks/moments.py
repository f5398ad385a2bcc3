"""Measure the ranges of starts and ends, and the moments of repeated events, on several worlds of the playhouse.

    make bench-moments

A world is a seed of the playhouse. Calibration and settings use val, the figures are from test. Finished datasets and
runs are kept in --out and not repeated.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import torch

from benchmarks.measuring import machine, publish
from benchmarks.methods import interval, say
from midreel import recipes
from midreel.datasets import open_annotations, playhouse
from midreel.datasets.dataset import Dataset, extract
from midreel.evaluation import metrics, plots, tables
from midreel.experiments import runs
from midreel.experiments.edges import FoundEdges, draw_curves, find_edges
from midreel.features import load_backbone
from midreel.methods.base import Method
from midreel.ops.edges import CONFIDENCE, PLAYHOUSE, EdgeCalibration, with_ranges
from midreel.ops.moments import FLOOR, Curve, find_moments
from midreel.training.data import FeatureSet

RATE, LIBRARY_RATE = 1.0, 2.0
STATED = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
FLOORS = (None, -0.2, 0.0, 0.1, 0.2, 0.3)
ZERO_SHOT, LIBRARY, MSC = "zero-shot", "zero-shot, 2 frames/s, 128 tokens", "MSC"
Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The number of videos and epochs of a world."""

    num_train: int = 1000
    num_val: int = 150
    num_test: int = 200
    epochs: int = 10
    batch_size: int = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """A model in a world.

    Attributes:
        name: The row of a table.
        method: The model.
        ordinary: Videos without repeated events.
        repeated: Videos with repeated events, or None.
    """

    name: str
    method: Method
    ordinary: Dataset
    repeated: Dataset | None

    def edges(self, split: str) -> FoundEdges:
        """Return the best moments of the ordinary videos of a split."""
        rate = self.ordinary.store.fingerprint.frame_rate
        return find_edges(self.method, FeatureSet.of(self.method, self.ordinary, split), rate)


# ---------------------------------------------------------------- worlds


def prepare(folder: Path, seed: int, budget: Budget, *, rate: float = RATE, **options: int | str) -> Dataset:
    """Generate a dataset and its features, or what is missing of them.

    Args:
        folder: The folder of the dataset.
        seed: The world.
        budget: The number of videos in val and test.
        rate: Frames per second.
        options: Further arguments of `playhouse.write_dataset`.
    """
    counts = {"num_val": budget.num_val, "num_test": budget.num_test}
    playhouse.write_dataset(folder, seed=seed, files=(), **counts | options)  # type: ignore[arg-type]
    extract(open_annotations(folder), load_backbone("tiny-clip"), rate=rate)
    return Dataset.open(folder)


def world(out: Path, seed: int, budget: Budget) -> dict[str, Setting]:
    """Generate a world, train MSC in it, and return its models by name."""
    say(f"world {seed}")
    folder = out / f"world-{seed}"
    ordinary = prepare(folder / "dataset", seed, budget, num_train=budget.num_train)
    repeated = prepare(folder / "repeated", seed, budget, kind="repeated")
    fast = prepare(folder / "fast", seed, budget, rate=LIBRARY_RATE)
    recipe = recipes.build("msc", "playhouse", {"epochs": budget.epochs, "batch_size": budget.batch_size, "seed": 0})
    runs.train_or_resume(ordinary, recipe, folder / "msc")
    zero_shot = runs.load("zero-shot", ordinary, recipe)
    return {
        ZERO_SHOT: Setting(name=ZERO_SHOT, method=zero_shot, ordinary=ordinary, repeated=repeated),
        LIBRARY: Setting(name=LIBRARY, method=runs.load("zero-shot", fast), ordinary=fast, repeated=None),
        MSC: Setting(name=MSC, method=runs.load(str(folder / "msc"), ordinary), ordinary=ordinary, repeated=repeated),
    }


# ---------------------------------------------------------------- ranges

Widths = Callable[[FoundEdges, Setting], Array]


def _spacing(edges: FoundEdges, setting: Setting) -> Array:
    """Return the seconds between two frames that a model sees."""
    rate = setting.ordinary.store.fingerprint.frame_rate or np.inf
    return np.maximum(edges.videos[:, 1] / setting.method.num_frames, 1 / rate)


def _everywhere(values: Array) -> Array:
    return np.broadcast_to(values[:, None, None], (len(values), 2, 2))


# What the width of a range may be proportional to.
WIDTHS: dict[str, Widths] = {
    "constant": lambda edges, _: _everywhere(np.ones(len(edges))),
    "length of the moment": lambda edges, _: _everywhere(np.maximum(edges.found[:, 1] - edges.found[:, 0], 1e-3)),
    "time between frames": lambda edges, setting: _everywhere(_spacing(edges, setting)),
    "slope of the curve": lambda edges, _: edges.slopes,
}


def share(edges: FoundEdges, calibration: EdgeCalibration) -> float:
    """Return the percentage of starts and ends that the ranges contain."""
    return 100 * float(edges.contained(calibration).mean())


def width(edges: FoundEdges, calibration: EdgeCalibration) -> float:
    """Return the mean width of the ranges in seconds."""
    ranges = edges.ranges(calibration)
    return float((ranges[..., 1] - ranges[..., 0]).mean())


def thirds(edges: FoundEdges, calibration: EdgeCalibration) -> tuple[float, float]:
    """Return the percentage for the third of edges with the steepest, and with the flattest, slopes."""
    inside, slopes = edges.contained(calibration), edges.slopes.sum(-1)
    low, high = np.quantile(slopes, [1 / 3, 2 / 3])
    return 100 * float(inside[slopes <= low].mean()), 100 * float(inside[slopes >= high].mean())


def pooled(parts: Sequence[FoundEdges]) -> FoundEdges:
    """Return the edges of several models and worlds together."""
    names = ("found", "true", "slopes", "videos")
    return FoundEdges(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


# ---------------------------------------------------------------- several moments


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """The figures of ranked moments on one split.

    Attributes:
        figures: R1 and mIoU of the best moment; mAP of all, for queries with several moments and with one.
        later: The percentage of starts and ends that the ranges contain, for moments behind the best that overlap an
            annotated one.
    """

    figures: dict[str, float]
    later: float


@cache
def drawn(setting: Setting, folder: Path, split: str) -> tuple[FeatureSet, list[tuple[list[int], Curve]]]:
    """Return a split, and the curves of its queries. They do not depend on the settings of `find_moments`."""
    dataset = next(of for of in (setting.ordinary, setting.repeated) if of is not None and of.folder == folder)
    data = FeatureSet.of(setting.method, dataset, split)
    return data, list(draw_curves(setting.method, data))


def rank_moments(setting: Setting, dataset: Dataset, split: str, floor: float | None) -> Ranked:
    """Find all moments of a split, and compare them with the annotated ones.

    Args:
        setting: The model.
        dataset: The videos.
        split: The split.
        floor: The floor of `find_moments`.
    """
    data, curves = drawn(setting, dataset.folder, split)
    gap = 1 / (dataset.store.fingerprint.frame_rate or np.inf)
    spans, order, inside = [], list[int](), list[bool]()
    for rows, curve in curves:
        found = with_ranges(curve, find_moments(curve, floor=floor), PLAYHOUSE, gap)
        spans.append(np.where(np.isfinite(found.scores)[..., None], found.spans, np.nan))
        order += rows
        for row, moments in zip(rows, found.listed(), strict=True):
            for moment in moments[1:]:
                near = [
                    true for true in data.queries[row].moments if true.start < moment.end and moment.start < true.end
                ]
                if near and moment.start_range and moment.end_range:
                    true = min(near, key=lambda true: abs(true.start - moment.start) + abs(true.end - moment.end))
                    inside.append(moment.start_range[0] <= true.start <= moment.start_range[1])
                    inside.append(moment.end_range[0] <= true.end <= moment.end_range[1])
    annotated = [(place, true) for place, row in enumerate(order) for true in data.queries[row].moments]
    truth = torch.tensor([(true.start, true.end) for _, true in annotated], dtype=torch.float64)
    place = torch.tensor([place for place, _ in annotated])
    predicted = torch.from_numpy(np.concatenate(spans)).double()
    precisions = metrics.average_precision(predicted, truth, place)
    several = place.bincount() > 1
    figures = metrics.localisation(metrics.best_iou(predicted[:, 0], truth, place))
    for name, some in (("several", several), ("one", ~several)):
        if some.any():
            means = metrics.mean_average_precision(precisions[some])
            figures |= {f"{name}: {metric}": value for metric, value in means.items()}
            figures[f"{name}: found"] = float(predicted[some].isfinite().all(-1).sum(1).double().mean())
    return Ranked(figures=figures, later=100 * float(np.mean(inside)) if inside else np.nan)


# ---------------------------------------------------------------- report

Rows = dict[str, dict[str, tables.Cell]]
Edges = Sequence[Mapping[str, FoundEdges]]  # of each world, by model


def _cells(columns: Mapping[str, Sequence[float]]) -> dict[str, tables.Cell]:
    return {name: interval([float(value) for value in values]) for name, values in columns.items()}


def width_rows(worlds: Sequence[Mapping[str, Setting]], val: Edges, test: Edges) -> Rows:
    """Return share and mean width for each kind of width, over all worlds and models."""
    rows: Rows = {}
    for kind, widths in WIDTHS.items():
        found: dict[str, list[float]] = {name: [] for name in ("contained", "seconds", "steep third", "flat third")}
        found["from 1 to 2 frames/s"] = []
        for number, settings in enumerate(worlds):
            own = {
                name: replace(val[number][name], slopes=widths(val[number][name], of)) for name, of in settings.items()
            }
            measured = {
                name: replace(test[number][name], slopes=widths(test[number][name], of))
                for name, of in settings.items()
            }
            shares, lengths, steep, flat = [], [], [], []
            for name in settings:
                calibration = own[name].calibrated()
                inside, slopes = measured[name].contained(calibration), test[number][name].slopes.sum(-1)
                low, high = np.quantile(slopes, [1 / 3, 2 / 3])
                shares.append(share(measured[name], calibration))
                lengths.append(width(measured[name], calibration))
                steep.append(100 * inside[slopes <= low].mean())
                flat.append(100 * inside[slopes >= high].mean())
            for column, values in zip(found, (shares, lengths, steep, flat), strict=False):
                found[column].append(float(np.mean(values)))
            found["from 1 to 2 frames/s"].append(share(measured[LIBRARY], own[ZERO_SHOT].calibrated()))
        rows[kind] = _cells(found)
    return rows


def range_rows(val: Edges, test: Edges) -> Rows:
    """Return the share of true edges that ranges contain, by model and by the videos of the calibration."""
    rows: Rows = {}
    shipped = [PLAYHOUSE] * len(val)
    for name in val[0]:
        own = [of[name].calibrated() for of in val]
        measured = [of[name] for of in test]
        kinds: dict[str, list[tuple[FoundEdges, EdgeCalibration]]] = {
            "val of the same world": list(zip(measured, own, strict=True)),
            "val of another world": [(measured[here], own[there]) for here, there in permutations(range(len(val)), 2)],
            "shipped": list(zip(measured, shipped, strict=True)),
        }
        for kind, pairs in kinds.items():
            inside = [100 * edges.contained(calibration).mean(0) for edges, calibration in pairs]
            if not inside:
                continue
            rows[f"{name}; {kind}"] = _cells(
                {
                    "start": [each[0] for each in inside],
                    "end": [each[1] for each in inside],
                    "steep third": [thirds(*pair)[0] for pair in pairs],
                    "flat third": [thirds(*pair)[1] for pair in pairs],
                    "seconds": [width(*pair) for pair in pairs],
                }
            )
            shares = [share(*pair) for pair in pairs]
            rows[f"{name}; {kind}"] |= {"lowest": min(shares), "highest": max(shares)}
    return rows


def observed(val: Edges, test: Edges) -> dict[str, dict[float, float]]:
    """Return the observed share for each stated one: calibrated in the same world by model, and in another world."""
    lines = {
        name: {
            stated: float(
                np.mean([test[k][name].contained(val[k][name].calibrated(stated)).mean() for k in range(len(val))])
            )
            for stated in STATED
        }
        for name in val[0]
    }
    pairs = list(permutations(range(len(val)), 2))
    if pairs:
        lines["another world, all models"] = {
            stated: float(
                np.mean(
                    [
                        test[k][name].contained(val[j][name].calibrated(stated)).mean()
                        for k, j in pairs
                        for name in val[0]
                    ]
                )
            )
            for stated in STATED
        }
    return lines


def floor_rows(worlds: Sequence[Mapping[str, Setting]]) -> Rows:
    """Return the figures of each floor on val, over all worlds and models with both kinds of videos."""
    rows: Rows = {}
    for floor in FLOORS:
        found: dict[str, list[float]] = {}
        for settings in worlds:
            both = [setting for setting in settings.values() if setting.repeated is not None]
            repeated = [rank_moments(of, of.repeated, "val", floor).figures for of in both if of.repeated is not None]
            ordinary = [rank_moments(of, of.ordinary, "val", floor).figures for of in both]
            fast = rank_moments(settings[LIBRARY], settings[LIBRARY].ordinary, "val", floor).figures
            for metric in ("several: mAP@0.5", "several: mAP@0.7"):
                found.setdefault(metric, []).append(float(np.mean([of[metric] for of in repeated])))
            for metric in ("R1@0.5", "R1@0.7", "mIoU"):
                found.setdefault(metric, []).append(float(np.mean([of[metric] for of in ordinary])))
            found.setdefault("2 frames/s: R1@0.7", []).append(fast["R1@0.7"])
        rows["none" if floor is None else f"{floor:g}"] = _cells(found)
    return rows


def moment_rows(worlds: Sequence[Mapping[str, Setting]]) -> tuple[Rows, Rows, list[float]]:
    """Return the figures on test with and without a floor: of repeated events, of ordinary videos, and of ranges."""
    several: Rows = {}
    single: Rows = {}
    later: list[float] = []
    for name in worlds[0]:
        settings = [settings[name] for settings in worlds]
        plain = [[rank_moments(of, of.ordinary, "test", floor) for of in settings] for floor in (None, FLOOR)]
        single |= _compared(name, *plain)
        ranked = [
            [rank_moments(of, of.repeated, "test", floor) for of in settings if of.repeated is not None]
            for floor in (None, FLOOR)
        ]
        if ranked[0]:
            several |= _compared(name, *ranked)
            later += [each.later for each in ranked[1]]
    return several, single, later


def _compared(name: str, without: Sequence[Ranked], having: Sequence[Ranked]) -> Rows:
    """Return the rows of a model without and with a floor, and of the difference in each world."""
    before, after = [of.figures for of in without], [of.figures for of in having]
    differences = [
        {metric: new[metric] - old[metric] for metric in old} for old, new in zip(before, after, strict=True)
    ]
    parts = {"without a floor": before, "with the floor": after, "difference": differences}
    return {
        f"{name}; {label}": _cells({metric: [of[metric] for of in figures] for metric in figures[0]})
        for label, figures in parts.items()
    }


BEST = ("R1@0.5", "R1@0.7", "mIoU")
PRECISIONS = tuple(
    f"{kind}: {name}" for kind in ("several", "one") for name in ("mAP@0.3", "mAP@0.5", "mAP@0.7", "found")
)


def report(out: Path, seeds: Sequence[int], budget: Budget, picture: Path | None) -> str:
    """Measure everything, and return the report as Markdown.

    Args:
        out: The folder of datasets and runs.
        seeds: The worlds.
        budget: The number of videos and epochs.
        picture: The file of the plot, or None.
    """
    worlds = [world(out, seed, budget) for seed in seeds]
    val, test = (
        [{name: setting.edges(split) for name, setting in settings.items()} for settings in worlds]
        for split in ("val", "test")
    )
    say("ranges")
    everything = pooled([edges for of in val for edges in of.values()]).calibrated()
    overlapping = [
        100 * float(((edges.found[:, 0] < edges.true[:, 1]) & (edges.true[:, 0] < edges.found[:, 1])).mean())
        for of in test
        for edges in of.values()
    ]
    lines = observed(val, test)
    if picture is not None:
        plots.stated_and_observed(lines, picture, of="edges in their range")
    stated = {name: {f"{share:.0%}": 100 * value for share, value in line.items()} for name, line in lines.items()}
    say("moments")
    several, single, later = moment_rows(worlds)
    queries = sum(len(edges) for of in test for edges in of.values()) // len(worlds[0])
    start, end = (tuple(round(factor, 2) for factor in pair) for pair in (everything.start, everything.end))
    wrong, behind = f"{100 - np.mean(overlapping):.1f}", f"{np.mean(later):.1f}"
    digits = {"seconds": 2, "several: found": 2, "one: found": 2}
    shown = f"![Stated and observed shares](../pictures/{picture.name})\n\n" if picture is not None else ""
    return f"""# Ranges of starts and ends, and repeated events

Measured by `make bench-moments` on {len(worlds)} worlds of the playhouse (seeds {", ".join(map(str, seeds))}), which
have different things, colours and backdrops. Each has {budget.num_train:,} training, {budget.num_val} val and
{budget.num_test} test videos with features of the tiny CLIP, one frame per second and 32 tokens; test has {queries:,}
queries in all worlds together. MSC is trained for {budget.epochs} epochs with seed 0. A new library uses
*{LIBRARY}*. Moments are found within the right video.

{machine()}

Cells are means over the worlds ± half of a 95 % interval (Student's, so it is wide for few worlds).

## Ranges: stated {CONFIDENCE:.0%}

The percentage of true starts and ends that are in their range, on test videos, and the mean width of a range in
seconds. All queries count, also those whose moment was found at the wrong place ({wrong} % do not overlap the
annotated moment). The row says on which videos the ranges were calibrated. *Steep* and *flat third* are the edges with
the shortest and the longest slopes. *Lowest* and *highest* are single worlds (or pairs of worlds), starts and ends
together.

{tables.to_markdown(range_rows(val, test), digits=digits, corner="model; calibration")}
*Shipped* is `ops.edges.PLAYHOUSE`, which libraries use whose model has no calibration. The val videos of these worlds
and models together give `start={start}, end={end}`.

{shown}{tables.to_markdown(stated, corner="stated")}
In videos with repeated events, {behind} % of the edges of moments behind the best one are in their shipped range, if
the moment overlaps an annotated one.

## What the width of a range follows

Each kind of width is calibrated on val of the same world and model. *From 1 to 2 frames/s*: calibrated for zero-shot
with one frame per second and 32 tokens, measured with two frames per second and 128 tokens.

{tables.to_markdown(width_rows(worlds, val, test), digits=digits, corner="width")}
## Videos with repeated events

In each of these test videos, one event happens two or three times. Queries about it have several annotated moments
(*several*), the other queries have *one*. mAP@t is the mean average precision of all moments that a search shows, at an
overlap of t; *found* is their number. *Floor*: no moment crosses a token below the median of the curve.

{tables.to_markdown(several, PRECISIONS, digits=digits, corner="model")}
The best moment in these videos:

{tables.to_markdown(several, BEST, corner="model")}
The best moment in ordinary videos:

{tables.to_markdown(single, BEST, corner="model")}
The floor was chosen on val, between the median (0) and the highest peak (1) of the curve. *Several* is from videos with
repeated events, the rest from ordinary ones:

{tables.to_markdown(floor_rows(worlds), corner="floor")}
"""


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    default = Budget()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/moments"), help="keep datasets and runs here [runs/moments]"
    )
    parser.add_argument("--worlds", default="0,1,2", metavar="SEEDS", help="seeds of the playhouse [0,1,2]")
    for name, text in (
        ("num_train", "training videos"),
        ("num_val", "validation videos"),
        ("num_test", "test videos"),
        ("epochs", "epochs of a run"),
        ("batch_size", "videos in a batch"),
    ):
        value = getattr(default, name)
        option = f"--{name.removeprefix('num_').replace('_', '-')}"
        parser.add_argument(option, dest=name, type=int, default=value, metavar="N", help=f"{text} [{value:,}]")
    parser.add_argument("--write", type=Path, help="also write the report to this file")
    parser.add_argument("--picture", type=Path, help="draw stated and observed shares into this file")
    arguments = vars(parser.parse_args(command_line))
    out, path, picture, seeds = (arguments.pop(name) for name in ("out", "write", "picture", "worlds"))
    torch.set_num_threads(1)  # the models are tiny, and results then have the same bits on every machine
    publish(report(out, [int(seed) for seed in seeds.split(",")], Budget(**arguments), picture), path)


if __name__ == "__main__":
    main()
