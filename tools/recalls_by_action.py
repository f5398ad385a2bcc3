"""Whom an ablation on the playhouse helps: its recalls, apart for scenes that stand still and for all others.

    python -m tools.recalls_by_action runs/demo/dataset runs/ablation

The dataset must be a playhouse of the present version: from its videos comes what happens in the moment of a query.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from midreel.datasets import playhouse
from midreel.datasets.dataset import Dataset
from midreel.evaluation import tables
from midreel.experiments import ablation, runs
from midreel.training.data import FeatureSet

# Relations that a single frame shows; in all other events something moves.
STILL = ("above", "below", "beside", "in_front_of")
DEPTHS = (1, 5, 10)


def action_of_query(root: Path, video_ids: Sequence[str]) -> dict[str, str]:
    seed = json.loads((root / playhouse.DESCRIPTION).read_text(encoding="utf-8"))["seed"]
    videos = [playhouse.find_video(seed, video_id) for video_id in video_ids]
    return {
        query.id: video.events[number].action
        for video in videos
        for query, number in zip(video.queries, video.event_of_query, strict=True)
    }


def recalls(ranks: Mapping[str, Sequence[int]], kind: str) -> dict[str, float]:
    """Of ranks by action: of still scenes, or of the others."""
    chosen = [
        rank for action, of_action in ranks.items() if (action in STILL) == (kind == "still") for rank in of_action
    ]
    return {f"{kind} R@{depth}": 100 * sum(rank <= depth for rank in chosen) / len(chosen) for depth in DEPTHS}


def ranks_by_action(dataset: Dataset, model: str, actions: Mapping[str, str]) -> dict[str, list[int]]:
    method = runs.load(model, dataset)
    data = FeatureSet.of(method, dataset, "test")
    found: dict[str, list[int]] = {}
    for query, rank in zip(data.queries, runs.examine(method, data).report.ranks, strict=True):
        found.setdefault(actions[query.id], []).append(rank)
    return found


def main(command_line: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("ablation", type=Path)
    arguments = parser.parse_args(command_line)
    dataset = Dataset.open(arguments.dataset)
    actions = action_of_query(arguments.dataset, dataset.splits["test"].video_ids)
    rows: dict[str, list[dict[str, float]]] = {}
    for row in ablation.ROWS:
        for folder in sorted((arguments.ablation / row).glob("seed-*")):
            ranks = ranks_by_action(dataset, str(folder), actions)
            rows.setdefault(ablation.LABELS[row], []).append(recalls(ranks, "still") | recalls(ranks, "moving"))
    print(tables.to_markdown(tables.over_seeds(rows)))


if __name__ == "__main__":
    main()
