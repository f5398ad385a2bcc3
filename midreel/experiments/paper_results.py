"""The results printed in the paper (Tables 4 and 5), for comparison with measured ones.

QVHighlights uses SlowFast and CLIP-B features, the other benchmarks CLIP-L/14. Rows marked † were run by the authors of
the paper, and so was all of Charades-STA.
"""

from collections.abc import Mapping

from midreel.evaluation import tables
from midreel.evaluation.tables import Cell
from midreel.recipes import published
from midreel.recipes.published import COLUMNS

OURS = "MSC"
PRINTED: dict[str, dict[str, dict[str, float]]] = {
    dataset: {
        published.LABELS[each.method] + (" †" if each.method == "gmmformer_v2" else ""): each.figures()
        for each in published.find(dataset=dataset)
        if each.source in (published.MSC_QV, published.MSC_OTHERS)
    }
    for dataset in ("qvhighlights", "tvr", "activitynet", "charades")
}


def beside(dataset: str, label: str, figures: Mapping[str, Cell], form: str) -> str:
    """Return the paper's table of a benchmark with one more row, or "" if the paper has no such table.

    Args:
        dataset: The name of the benchmark.
        label: The name of the row to add.
        figures: The results of the row to add.
        form: A format of `tables.FORMATS`.
    """
    if dataset not in PRINTED:
        return ""
    rows: dict[str, Mapping[str, Cell]] = {**PRINTED[dataset], f"here: {label}": figures}
    return tables.FORMATS[form](rows, COLUMNS, corner=f"the paper, {dataset}")
