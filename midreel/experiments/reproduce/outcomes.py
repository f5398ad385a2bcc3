"""Table A2: which queries MSC and zero-shot CLIP answer, at R@1 and R@10."""

import json
from collections.abc import Sequence

import numpy as np
import torch

from midreel.errors import MissingFeatures
from midreel.evaluation import collapse
from midreel.evaluation.tables import Cell, Spread
from midreel.experiments.reproduce.result import Result
from midreel.experiments.reproduce.rows import about, run_rows
from midreel.experiments.reproduce.specs import Context, Experiment, Row
from midreel.experiments.trainings import Outcome
from midreel.methods.model_files import ZERO_SHOT

DEPTHS = (1, 10)
COLUMNS = ("CLIP right", "CLIP wrong", "CLIP right, %", "CLIP wrong, %")
CELLS = {"both": (0, 0), "only_a": (0, 1), "only_b": (1, 0), "neither": (1, 1)}  # row and column of each outcome
NAMES = {"both": "both right", "only_a": "only MSC right", "only_b": "only CLIP right", "neither": "both wrong"}
# TVR, 10,895 queries.
PRINTED = {
    1: {"both": 1277, "only_a": 2551, "only_b": 500, "neither": 6567},
    10: {"both": 4162, "only_a": 3627, "only_b": 386, "neither": 2720},
}
QUERIES = "queries.jsonl"
ROWS = (Row(key="msc", label="MSC"), Row(key=ZERO_SHOT, label="CLIP", method=ZERO_SHOT))


def make(experiment: Experiment, context: Context) -> Result:
    """Run the table, and list the queries of each cell for the first seed.

    Raises:
        MissingFeatures: The features have no joint space of frames and sentences, so there is no zero-shot CLIP.
    """
    if not context.dataset.store.fingerprint.joint:
        raise MissingFeatures(
            f"{context.dataset.store.path} has no joint space of frames and sentences, expected the features of a CLIP."
        )
    rows = experiment.rows_for(context.dataset.name)
    found = run_rows(context, rows)
    ours, (theirs,) = found.outcomes["msc"], found.outcomes[ZERO_SHOT]
    table: dict[str, dict[str, Cell]] = {}
    printed: dict[str, dict[str, float]] = {}
    for depth in DEPTHS:
        labels = [f"R@{depth}: MSC {verdict}" for verdict in ("right", "wrong")]
        counted = [collapse.outcomes(_ranks(each), _ranks(theirs), depth) for each in ours]
        of_paper = collapse.Outcomes(**PRINTED[depth])
        for cell, (row, column) in CELLS.items():
            mine = table.setdefault(labels[row], {})
            mine[COLUMNS[column]] = Spread.of([getattr(each, cell) for each in counted])
            mine[COLUMNS[column + 2]] = Spread.of([each.shares()[cell] for each in counted])
            printed.setdefault(labels[row], {})[COLUMNS[column + 2]] = of_paper.shares()[cell]
    return Result(
        name=experiment.name,
        title=experiment.title,
        dataset=about(context),
        rows={label: {name: row[name] for name in COLUMNS} for label, row in table.items()},
        paper=printed,
        benchmark="tvr",
        columns=COLUMNS,
        digits=dict.fromkeys(COLUMNS[:2], 0),
        notes=[*_mean_ranks(ours, theirs), f"{QUERIES} lists the queries of each cell, for the first seed."],
        failures=found.failures,
        files={QUERIES: _listed(context, ours[0], theirs)},
        runs={"MSC": [str(each.folder.relative_to(context.out)) for each in found.trainings["msc"]]},
        recipes={"MSC": json.loads(found.trainings["msc"][0].recipe.to_json())},
    )


def _ranks(outcome: Outcome) -> torch.Tensor:
    return torch.tensor(outcome.ranks)


def _mean_ranks(ours: Sequence[Outcome], theirs: Outcome) -> list[str]:
    """Return where the right video is when only one of the two finds it, over all seeds (Appendix B)."""
    clip = np.array(theirs.ranks)
    failing: dict[str, list[int]] = {"CLIP": [], "MSC": []}
    for each in ours:
        msc = np.array(each.ranks)
        failing["CLIP"] += clip[(msc == 1) & (clip > 1)].tolist()
        failing["MSC"] += msc[(msc > 1) & (clip == 1)].tolist()
    other = {"CLIP": "MSC", "MSC": "CLIP"}
    in_paper = {"CLIP": "56", "MSC": "6.7"}
    return [
        f"Where only {other[name]} is right at R@1, {name} ranks the video at {np.mean(ranks):.1f} on average "
        f"(paper: {in_paper[name]})."
        for name, ranks in failing.items()
        if ranks
    ]


def _listed(context: Context, ours: Outcome, theirs: Outcome) -> str:
    """Return a line of JSON for each query."""
    lines = []
    for number, query in enumerate(context.dataset.splits[context.split].queries):
        ranks = (ours.ranks[number], theirs.ranks[number])
        cells = {}
        for depth in DEPTHS:
            place = (int(ranks[0] > depth), int(ranks[1] > depth))
            cells[f"R@{depth}"] = next(NAMES[cell] for cell, where in CELLS.items() if where == place)
        values = {"query_id": query.id, "text": query.text, "video_id": query.video_id}
        lines.append(json.dumps(values | cells | {"MSC rank": ranks[0], "CLIP rank": ranks[1]}, ensure_ascii=False))
    return "\n".join(lines) + "\n"
