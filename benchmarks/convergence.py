"""Measure how fast MSC and msc_residual learn on a harder dataset with thousands of videos, by epoch.

    make bench-convergence

The dataset is generated. These properties were fixed before the first measurement:

* One world of the playhouse with 2,000 training, 200 validation and 500 test videos. All videos have the things of
  three plays, so the same events happen in many videos, and a query has 500 candidates.
* Every frame vector has noise added, drawn for each frame, as long as the frame vector itself. So the cosine with the
  clean frame is about 0.71, and a single frame says little. Neighbouring frames help, as in real videos.
* Sentences are unchanged.

Both methods have their recipe for the playhouse, with half its width to save time. Finished runs are kept in --out and
not repeated.
"""

import argparse
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.learning_curves import prepare
from benchmarks.measuring import machine, publish
from benchmarks.methods import interval, say
from midreel import recipes
from midreel.datasets.dataset import Dataset
from midreel.evaluation import plots, tables
from midreel.evaluation.tables import Spread
from midreel.experiments import runs
from midreel.methods.base import Method
from midreel.methods.model_files import ZERO_SHOT, ZERO_SHOT_CLIPS
from midreel.training.data import FeatureSet
from midreel.training.fit import LOG, RECIPE, fit, read_lines
from midreel.training.streaming import FeatureSource
from midreel.types import TextFeatures, VideoFeatures

DATA = "dataset"
METHODS = ("msc", "msc_residual")
TEST = "test SumR"  # in the record of an epoch


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is compared."""

    num_train: int = 2000
    num_val: int = 200
    num_test: int = 500
    epochs: int = 10
    seeds: int = 3
    width: int = 64  # of the network
    world: int = 300  # the seed of the playhouse
    noise: float = 1.0  # its length, relative to that of a frame


@dataclass(frozen=True)
class NoisyFrames:
    """Features whose frames have noise added, the same on every reading."""

    source: FeatureSource
    noise: float

    def video(self, video_id: str) -> VideoFeatures:
        """Return the features of a video, with noise."""
        clean = self.source.video(video_id)
        frames = np.asarray(clean.frames, dtype=np.float32)
        rng = np.random.default_rng(zlib.crc32(video_id.encode()))
        lengths = np.linalg.norm(frames, axis=1, keepdims=True)
        noise = rng.standard_normal(frames.shape, dtype=np.float32) / math.sqrt(frames.shape[1])
        return replace(clean, frames=frames + self.noise * lengths * noise)

    def text(self, query_id: str) -> TextFeatures:
        """Return the features of a query."""
        return self.source.text(query_id)


# ---------------------------------------------------------------- runs


def sets_of(method: Method, dataset: Dataset, noise: float) -> dict[str, FeatureSet]:
    """Return the splits with noisy frames, prepared for a method.

    Args:
        method: The method.
        dataset: The dataset.
        noise: The length of the noise.
    """
    source = NoisyFrames(dataset.store, noise)
    return {name: FeatureSet.prepare(method, dataset.split(name), source) for name in ("train", "val", "test")}


def validation(sets: Mapping[str, FeatureSet]) -> Callable[[Method], dict[str, float]]:
    """Return a function that chooses on val, and also measures SumR on test."""
    choose = runs.at_best_share(runs.validation(sets["val"]))

    def validate(method: Method) -> dict[str, float]:
        recalls = dict(choose(method))
        return recalls | {TEST: runs.validation(sets["test"])(method)["SumR"]}

    return validate


def curve(dataset: Dataset, name: str, seed: int, folder: Path, budget: Budget) -> list[float]:
    """Train a method, unless that is done, and return its SumR on the test videos after each epoch.

    Args:
        dataset: The dataset.
        name: The method.
        seed: The seed of the run.
        folder: The folder of the run.
        budget: What is compared.
    """
    recipe = recipes.build(name, "playhouse", {"seed": seed, "epochs": budget.epochs, "width": budget.width})
    known = list(read_lines(folder / LOG)) if (folder / LOG).exists() else []
    if len(known) < budget.epochs:
        say(f"{name}, seed {seed}")
        method = runs.new_method(recipe)
        sets = sets_of(method, dataset, budget.noise)
        resume = (folder / RECIPE).exists()
        fit(method, sets["train"], validation(sets), recipe, folder, resume=resume, data_card=dataset.card())
        known = list(read_lines(folder / LOG))
    return [record["metrics"][TEST] for record in known]


def study(out: Path, budget: Budget) -> tuple[dict[str, float], dict[str, list[list[float]]]]:
    """Return SumR of zero-shot by name, and of each method by seed and epoch, on the test videos.

    Args:
        out: The folder of the study.
        budget: What is compared.
    """
    numbers = {"num_train": budget.num_train, "num_val": budget.num_val, "num_test": budget.num_test}
    dataset = prepare(out / DATA, budget.world, **numbers)
    curves: dict[str, list[list[float]]] = {name: [] for name in METHODS}
    for seed in range(1, 1 + budget.seeds):
        for name in METHODS:
            curves[name].append(curve(dataset, name, seed, out / f"{name}-{seed}", budget))
    untrained = {}
    for name in (ZERO_SHOT, ZERO_SHOT_CLIPS):
        method = runs.load(name, dataset, recipes.build("msc", "playhouse"))
        untrained[name] = runs.validation(sets_of(method, dataset, budget.noise)["test"])(method)["SumR"]
    return untrained, curves


# ---------------------------------------------------------------- report


def by_epoch(curves: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, dict[int, Spread]]:
    """Return the mean over the seeds, by method and epoch from 1."""
    return {
        name: {epoch: interval(values) for epoch, values in enumerate(zip(*of_seed, strict=True), 1)}
        for name, of_seed in curves.items()
    }


def first_epoch_at(means: Mapping[int, Spread], goal: float) -> int | None:
    """Return the first epoch whose mean is at least `goal`, or None."""
    return next((epoch for epoch, found in sorted(means.items()) if found.mean >= goal), None)


def report(untrained: Mapping[str, float], curves: Mapping[str, Sequence[Sequence[float]]], budget: Budget) -> str:
    """Return the report as Markdown.

    Args:
        untrained: SumR of zero-shot, by name.
        curves: SumR of each method by seed and epoch.
        budget: What was compared.
    """
    means = by_epoch(curves)
    rows: dict[str, dict[str, Spread]] = {
        f"epoch {epoch}": {name: means[name][epoch] for name in METHODS} for epoch in range(1, 1 + budget.epochs)
    }
    last = {name: [of_seed[-1] for of_seed in curves[name]] for name in METHODS}
    gain = interval([ours - msc for msc, ours in zip(last["msc"], last["msc_residual"], strict=True)])
    reached = first_epoch_at(means["msc_residual"], means["msc"][budget.epochs].mean)
    when = "in no epoch" if reached is None else f"from epoch {reached} on"
    shown = ", ".join(f"{name} {value:.1f}" for name, value in untrained.items())
    return f"""# How fast methods learn from thousands of videos

Measured by `make bench-convergence`: {budget.num_train:,} training, {budget.num_val} validation and {budget.num_test}
test videos of one world of the playhouse, {budget.epochs} epochs, {budget.seeds} seeds. Noise is added to every frame
vector (length of the noise / length of the vector: {budget.noise:g}), so that a single frame says little. Sentences are
unchanged. Both methods have their recipe for the playhouse, with a network of width {budget.width}. The properties of
the dataset were fixed before the first measurement.

{machine()}

![SumR by epoch](convergence.png)

SumR on the test videos after each epoch: means over the seeds ± half of a 95 % interval. Without
training: {shown}.

{tables.to_markdown(rows, corner="after")}
`msc_residual` is at or above the last SumR of MSC {when}. After the last epoch, its SumR differs from that of
MSC with the same seed by {gain.mean:+.1f} ± {gain.spread:.1f}.
"""


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    default = Budget()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/convergence"), help="keep the runs here")
    for name in ("num_train", "num_val", "num_test", "epochs", "seeds"):
        value = getattr(default, name)
        option = f"--{name.removeprefix('num_')}"
        parser.add_argument(option, dest=name, type=int, default=value, metavar="N", help=f"[{value}]")
    parser.add_argument("--write", type=Path, help="also write the report to this file, and the plot beside it")
    arguments = vars(parser.parse_args(command_line))
    out, path = (arguments.pop(name) for name in ("out", "write"))
    budget = Budget(**arguments)
    torch.set_num_threads(1)  # the models are tiny, and results then have the same bits on every machine
    untrained, curves = study(out, budget)
    picture = (path.parent if path is not None else out) / "convergence.png"
    plots.by_size({"test videos": by_epoch(curves)}, picture, x="epoch", y="SumR")
    publish(report(untrained, curves, budget), path)


if __name__ == "__main__":
    main()
