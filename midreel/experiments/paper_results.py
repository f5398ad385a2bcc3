"""The results printed in the paper (Tables 4 and 5), for comparison with measured ones.

QVHighlights uses SlowFast and CLIP-B features, the other benchmarks CLIP-L/14. Rows marked † were run by the authors of
the paper, and so was all of Charades-STA.
"""

from collections.abc import Mapping

from midreel.evaluation import tables
from midreel.evaluation.tables import Cell

COLUMNS = ("R@1", "R@5", "R@10", "R@100", "SumR")
OURS = "MSC"

_PRINTED = {
    "qvhighlights": {
        "MS-SL": (20.4, 46.7, 60.7, 94.6, 222.5),
        "GMMFormer": (18.2, 43.7, 56.7, 92.5, 211.1),
        "AMDNet": (17.4, 40.8, 55.0, 93.4, 206.6),
        "BGM-Net": (20.6, 46.3, 58.8, 94.0, 219.7),
        "GMMFormer-v2 †": (21.7, 48.0, 60.5, 95.0, 225.2),
        "ProtoPRVR": (22.6, 48.8, 61.3, 93.9, 226.6),
        OURS: (23.9, 51.5, 63.7, 95.5, 234.6),
    },
    "tvr": {
        "CLIP zero-shot": (16.2, 33.5, 41.8, 75.7, 167.2),
        "MS-SL": (31.9, 57.6, 67.7, 93.8, 251.0),
        "GMMFormer": (29.8, 54.2, 64.6, 92.5, 241.1),
        "AMDNet": (27.7, 52.3, 63.3, 92.3, 235.6),
        "BGM-Net": (31.1, 56.3, 66.5, 93.8, 247.7),
        "GMMFormer-v2 †": (34.0, 59.7, 69.8, 94.5, 258.1),
        "ProtoPRVR": (34.7, 60.0, 70.1, 94.4, 259.2),
        "ARL": (34.6, 60.4, 70.7, 94.4, 260.1),
        OURS: (35.1, 61.6, 71.5, 94.9, 263.1),
    },
    "activitynet": {
        "CLIP zero-shot": (15.1, 33.9, 45.1, 78.9, 172.9),
        "MS-SL": (14.7, 37.1, 50.4, 84.6, 186.7),
        "GMMFormer": (15.2, 37.7, 50.5, 83.7, 187.1),
        "AMDNet": (14.0, 36.3, 49.9, 84.2, 184.5),
        "BGM-Net": (15.6, 37.9, 51.3, 85.4, 190.3),
        "GMMFormer-v2 †": (17.1, 40.6, 53.7, 85.5, 196.9),
        "ProtoPRVR": (16.0, 38.8, 52.4, 85.1, 192.3),
        "ARL": (15.3, 38.4, 51.5, 85.2, 190.4),
        OURS: (17.7, 42.0, 55.6, 86.8, 202.1),
    },
    "charades": {
        "CLIP zero-shot": (2.0, 8.1, 13.6, 49.4, 73.1),
        "MS-SL": (3.4, 11.5, 18.7, 62.5, 96.0),
        "GMMFormer": (2.7, 10.5, 16.7, 59.4, 89.3),
        "AMDNet": (2.1, 7.8, 13.9, 57.2, 81.1),
        "BGM-Net": (3.0, 11.8, 18.2, 63.7, 96.7),
        "GMMFormer-v2 †": (3.1, 11.6, 18.2, 61.4, 94.2),
        OURS: (3.2, 12.6, 20.1, 63.8, 99.7),
    },
}
PRINTED: dict[str, dict[str, dict[str, float]]] = {
    dataset: {method: dict(zip(COLUMNS, row, strict=True)) for method, row in rows.items()}
    for dataset, rows in _PRINTED.items()
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
