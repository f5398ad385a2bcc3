"""Print the recalls of an ablation on the playhouse, separately for still and for moving scenes.

    python -m tools.recalls_by_action runs/demo/dataset runs/ablation

The dataset must be a playhouse of the present version, because the tool reads the actions from the generator.
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

# Actions that a single frame shows. In all others, something moves.
STILL = ("above", "below", "beside", "in_front_of")
DEPTHS = (1, 5, 10)


def action_of_query(root: Path, video_ids: Sequence[str]) -> dict[str, str]:
    """Return the action that each query describes, by the id of the query."""
    seed = json.loads((root / playhouse.DESCRIPTION).read_text(encoding="utf-8"))["seed"]
    videos = [playhouse.find_video(seed, video_id) for video_id in video_ids]
    return {
        query.id: video.events[number].action
        for video in videos
        for query, number in zip(video.queries, video.event_of_query, strict=True)
    }


def recalls(ranks: Mapping[str, Sequence[int]], kind: str) -> dict[str, float]:
    """Return the recalls of the queries about "still" or "moving" scenes.

    Args:
        ranks: The ranks of the right videos, by the action of the query.
        kind: "still" or "moving".
    """
    chosen = [
        rank for action, of_action in ranks.items() if (action in STILL) == (kind == "still") for rank in of_action
    ]
    return {f"{kind} R@{depth}": 100 * sum(rank <= depth for rank in chosen) / len(chosen) for depth in DEPTHS}


def ranks_by_action(dataset: Dataset, model: str, actions: Mapping[str, str]) -> dict[str, list[int]]:
    """Evaluate a model on the split test, and return the ranks of the right videos by action."""
    method = runs.load(model, dataset)
    data = FeatureSet.of(method, dataset, "test")
    found: dict[str, list[int]] = {}
    for query, rank in zip(data.queries, runs.examine(method, data).report.ranks, strict=True):
        found.setdefault(actions[query.id], []).append(rank)
    return found


def main(command_line: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a playhouse with features")
    parser.add_argument("ablation", type=Path, help="the --out of midreel experiment ablation")
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
