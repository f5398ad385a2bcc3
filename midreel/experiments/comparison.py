"""Compare two models, or the runs of two models, on the same queries: overall, and by group of queries."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from midreel.datasets import playhouse
from midreel.datasets.dataset import Dataset
from midreel.evaluation import groups, statistics, tables
from midreel.evaluation.groups import Groups
from midreel.evaluation.tables import Cell
from midreel.experiments import runs
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet

ALL = "all queries"
STILL = ("above", "below", "beside", "in_front_of")  # actions of the playhouse that a single frame shows
COLUMNS = ("queries", "A", "B", "A - B", "from", "to", "p", "p, videos")
DIGITS = {"queries": 0, "p": 3, "p, videos": 3}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The SumR of two models by group of queries, and their differences.

    Attributes:
        names: The two models.
        rows: The figures of each group: the number of queries, the SumR of A and B, their difference with its 95 %
            interval, the p-value over seeds and videos, and that of the permutation test over videos.
        split: The split that they were evaluated on.
        num_runs: The number of runs of each model.
    """

    names: tuple[str, str]
    rows: Mapping[str, Mapping[str, Cell]]
    split: str
    num_runs: tuple[int, int]

    def text(self) -> str:
        """Return the comparison for a terminal."""
        lines = [f"A: {self.names[0]}", f"B: {self.names[1]}", f"SumR on {self.split}", ""]
        lines.append(tables.to_text(self.rows, COLUMNS, digits=DIGITS))
        if max(self.num_runs) == 1:
            lines.append(
                "note: one run each, so the intervals are over test videos alone. Other seeds may differ more: "
                "give several runs, separated by commas."
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "a": self.names[0],
            "b": self.names[1],
            "split": self.split,
            "runs": list(self.num_runs),
            "groups": {group: dict(row) for group, row in self.rows.items()},
        }


def compare(
    ours: Sequence[str], theirs: Sequence[str], dataset: Dataset, split: str, *, like: Recipe, device: str = "cpu"
) -> Comparison:
    """Evaluate two models on a split and compare them, overall and by group of queries.

    Args:
        ours: Runs, models or untrained models such as zero-shot: one for each seed.
        theirs: The runs of the other model.
        dataset: The dataset.
        split: The split to evaluate on.
        like: The recipe whose numbers of frames and clips untrained models get.
        device: The torch device.
    """
    found: list[Float[np.ndarray, "N Q"]] = []
    for models in (ours, theirs):
        ranks = []
        for model in models:
            method = runs.load(model, dataset, like)
            data = FeatureSet.of(method, dataset, split)
            ranks.append(runs.examine(method, data, device=device).report.ranks)
        found.append(statistics.points(np.array(ranks)))
    video_of_query = data.video_of_query.numpy()
    named = {ALL: np.ones(len(video_of_query), bool)} | groups_of(dataset, data)
    return Comparison(
        names=(", ".join(ours), ", ".join(theirs)),
        rows={
            group: _row(found[0][:, chosen], found[1][:, chosen], video_of_query[chosen])
            for group, chosen in named.items()
        },
        split=split,
        num_runs=(len(ours), len(theirs)),
    )


def _row(
    ours: Float[np.ndarray, "N Q"], theirs: Float[np.ndarray, "M Q"], video_of_query: Int[np.ndarray, " Q"]
) -> dict[str, Cell]:
    estimate = statistics.estimate(ours, video_of_query, theirs)
    low, high = estimate.interval()
    p_videos = statistics.permutation_test(ours.mean(0) - theirs.mean(0), video_of_query)
    values = (float(ours.shape[1]), float(ours.mean()), float(theirs.mean()), estimate.value, low, high)
    return dict(zip(COLUMNS, (*values, estimate.p_value, p_videos), strict=True))


def groups_of(dataset: Dataset, data: FeatureSet) -> Groups:
    """Return the groups of queries: by moment-to-video ratio, by length of the video, and still or moving if known."""
    durations = data.durations[data.video_of_query].double().numpy()
    return (
        groups.by_ratio(data.queries, durations)
        | groups.by_length(durations)
        | groups.by_kind(still_or_moving(dataset.folder, data.video_ids), data.queries)
    )


def still_or_moving(folder: Path, video_ids: Sequence[str]) -> dict[str, str]:
    """Return for each query of a playhouse whether its scene is still or moving. Other datasets do not tell.

    Args:
        folder: The folder of the dataset.
        video_ids: The videos whose queries are wanted.
    """
    if not all(playhouse.can_draw(folder, video_id) for video_id in video_ids):
        return {}
    seed = json.loads((folder / playhouse.DESCRIPTION).read_text(encoding="utf-8"))["seed"]
    kinds = {}
    for video_id in video_ids:
        video = playhouse.find_video(seed, video_id)
        for query, number in zip(video.queries, video.event_of_query, strict=True):
            kinds[query.id] = "still scenes" if video.events[number].action in STILL else "moving scenes"
    return kinds


def recalls_by_group(examination: runs.Examination, dataset: Dataset, data: FeatureSet) -> dict[str, dict[str, Cell]]:
    """Return the recalls of each group of queries, as the rows of a table.

    Args:
        examination: The result of `runs.examine`.
        dataset: The dataset.
        data: The queries that were examined.
    """
    ranks = np.array(examination.report.ranks)
    rows: dict[str, dict[str, Cell]] = {}
    for group, chosen in groups_of(dataset, data).items():
        recalls = {f"R@{k}": float(100 * (ranks[chosen] <= k).mean()) for k in statistics.RECALLS_AT}
        rows[group] = {"queries": int(chosen.sum()), **recalls, "SumR": sum(recalls.values())}
    return rows
