"""Compare ways to find a moment from the curves of a video. Settings are chosen on val, figures are from test.

    python -m tools.compare_moments runs/demo/dataset runs/paper/table-1

Figures of rows with several seeds are means. Zero-shot rows have no seed.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

from midreel import recipes
from midreel.datasets.dataset import Dataset
from midreel.evaluation import tables
from midreel.evaluation.evaluate import Figures, evaluate
from midreel.evaluation.moments import Predictor, best_token_moment
from midreel.experiments import ablation, runs
from midreel.experiments.ablation import UNTRAINED
from midreel.methods.base import CLIP_CURVE_WEIGHT, FRAME_CURVE_WEIGHT
from midreel.ops.moments import Curves, find_moments, fused
from midreel.training.data import FeatureSet

WEIGHTS = {"clip": CLIP_CURVE_WEIGHT, "frame": FRAME_CURVE_WEIGHT}
ROWS = (*UNTRAINED, "base", "msc")
WINDOWS = (0.1, 0.125, 0.15, 0.175, 0.2, 0.225, 0.25, 0.3)  # shares of the video
LEVELS = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)


def around_best_frame(curves: Curves, share: float) -> Float[np.ndarray, "Q 2"]:
    """Return a window of fixed length around the best frame, shifted into the video.

    Args:
        curves: The scores of each branch over the time of a video.
        share: The length of the window, as a fraction of the video.
    """
    middle = best_token_moment(curves, "frame").mean(1)
    start = (middle - share / 2).clip(0, 1 - share)
    return np.stack((start, start + share), 1)


def around_peak(curves: Curves, level: float, branches: Sequence[str]) -> Float[np.ndarray, "Q 2"]:
    """Return the region around the highest peak of the fused curve.

    Args:
        curves: The scores of each branch over the time of a video.
        level: The fraction of the peak's height at which the moment starts and ends.
        branches: The branches to fuse.
    """
    curve = fused({branch: curves[branch] for branch in branches}, WEIGHTS)
    return find_moments(curve, most=1, level=level).spans[:, 0]


# The predictors of each way, by setting.
WAYS: dict[str, dict[str, Predictor]] = {
    "best clip": {"": partial(best_token_moment, branch="clip")},
    "best frame": {"": partial(best_token_moment, branch="frame")},
    "best frame, window": {f"{share:.1%} of the video": partial(around_best_frame, share=share) for share in WINDOWS},
    "peak of frames": {f"level {level}": partial(around_peak, level=level, branches=["frame"]) for level in LEVELS},
    "peak of clips": {f"level {level}": partial(around_peak, level=level, branches=["clip"]) for level in LEVELS},
    "peak of both": {
        f"level {level}": partial(around_peak, level=level, branches=["clip", "frame"]) for level in LEVELS
    },
}


def models(result: Path) -> dict[str, list[str]]:
    """Return the models of each row of Table 1, as `runs.load` takes them."""
    of_label = json.loads((result / "table.json").read_text(encoding="utf-8"))["runs"]
    found = {
        row: [row] if row in UNTRAINED else [str(result.parent / run) for run in of_label.get(ablation.LABELS[row], ())]
        for row in ROWS
    }
    return {row: models for row, models in found.items() if models}


def localisation(
    dataset: Dataset, model: str, split: str, predictors: Mapping[str, Predictor], data_name: str = "playhouse"
) -> dict[str, Figures]:
    """Return R1@0.5, R1@0.7 and mIoU of each predictor, within the right videos of a split."""
    method = runs.load(model, dataset, recipes.build("msc", data_name))
    data = FeatureSet.of(method, dataset, split)
    return evaluate(
        method,
        data.video_batches(runs.VIDEOS_AT_ONCE),
        data.query_batches(runs.QUERIES_AT_ONCE),
        data.video_of_query,
        moments=[query.moments for query in data.queries],
        durations=data.durations,
        branches=False,
        predictors=predictors,
    ).moments


def rate(dataset: Dataset, found: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """Return the mIoU on val by way and setting, averaged over rows of equal weight."""
    all_settings = {f"{way}|{setting}": each for way, settings in WAYS.items() for setting, each in settings.items()}
    means = dict.fromkeys(all_settings, 0.0)
    for of_row in found.values():
        for model in of_row:
            for name, figures in localisation(dataset, model, "val", all_settings).items():
                means[name] += figures["mIoU"] / len(of_row) / len(found)
    return {way: {setting: means[f"{way}|{setting}"] for setting in settings} for way, settings in WAYS.items()}


def compare(dataset: Dataset, found: Mapping[str, Sequence[str]], rated: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table for each row of the ablation: the best setting of each way, evaluated on test.

    Args:
        dataset: The dataset of the ablation.
        found: The models of each row.
        rated: The mIoU on val by way and setting.
    """
    chosen = {way: max(settings, key=settings.__getitem__) for way, settings in rated.items()}
    predictors = {f"{way}, {setting}" if setting else way: WAYS[way][setting] for way, setting in chosen.items()}
    texts = []
    for row, of_row in found.items():
        measured = [localisation(dataset, model, "test", predictors) for model in of_row]
        rows = tables.over_seeds({way: [each[way] for each in measured] for way in predictors})
        texts.append(f"{ablation.LABELS[row]}\n\n{tables.to_markdown(rows)}")
    return "\n".join(texts)


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="annotations and features")
    parser.add_argument("result", type=Path, help="the folder table-1 of midreel reproduce 1")
    arguments = parser.parse_args(command_line)
    dataset, found = Dataset.open(arguments.dataset), models(arguments.result)
    rated = rate(dataset, found)
    for way, settings in rated.items():
        print(
            f"{way}, mIoU on val:", ", ".join(f"{setting} {value:.1f}".strip() for setting, value in settings.items())
        )
    print(f"\n{compare(dataset, found, rated)}")


if __name__ == "__main__":
    main()
