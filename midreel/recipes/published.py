"""The published results of each method, with their sources: what a reproduction should reach.

A result is a method on a dataset with a kind of features. Papers print recalls in percent with one digit. Some sources
print only SumR. The test split of a benchmark is the one that the MSC paper reports.

>>> [(each.features, each.sumr) for each in find(method="gmmformer", dataset="tvr")]
[('i3d-roberta', 176.6), ('clip-l14', 241.1)]
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from midreel.errors import UnknownName
from midreel.features.kinds import KINDS

COLUMNS = ("R@1", "R@5", "R@10", "R@100", "SumR")
LABELS = {
    "clip_zero_shot": "CLIP zero-shot",
    "ms_sl": "MS-SL",
    "gmmformer": "GMMFormer",
    "dl_dkd": "DL-DKD",
    "amdnet": "AMDNet",
    "bgm_net": "BGM-Net",
    "gmmformer_v2": "GMMFormer-v2",
    "proto_prvr": "ProtoPRVR",
    "arl": "ARL",
    "tf_prvr": "TF-PRVR",
    "msc": "MSC",
}
"""The methods in the order of the paper's tables, with the names that papers use."""
FEATURES = {name: kind.about for name, kind in KINDS.items()} | {
    "eva-clip-l14": "EVA-CLIP ViT-L/14",
    "siglip-l": "SigLIP ViT-L",
}
"""The kinds of features that results are reported on. midreel has no recipes for the last ones."""
MSC_QV, MSC_OTHERS = "MSC paper, table 4", "MSC paper, table 5"

Recalls = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A published result, in percent.

    Attributes:
        method: The name of the method in midreel.
        dataset: The name of the dataset.
        features: The kind of features, a name of `FEATURES`.
        recalls: R@1, R@5, R@10 and R@100. None if the source prints only SumR.
        sumr: SumR as printed, which may differ from the sum of the rounded recalls.
        source: The paper and table.
        variant: The variant of the method, if it is not the usual one.
        reproduced: Whether the source ran the code of others. Otherwise it reports or copies the authors' own result.
    """

    method: str
    dataset: str
    features: str
    recalls: Recalls | None
    sumr: float
    source: str
    variant: str = ""
    reproduced: bool = False

    @property
    def origin(self) -> str:
        """The source, and the variant of the method."""
        return self.source if self.variant in self.source else f"{self.source}, {self.variant}"

    def figures(self) -> dict[str, float]:
        """Return the result as the row of a table: SumR, and the recalls if they are known."""
        return dict(zip(COLUMNS, self.recalls or (), strict=False)) | {"SumR": self.sumr}

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)


def find(method: str | None = None, dataset: str | None = None) -> list[Result]:
    """Return the published results of a method, on a dataset, or all.

    Args:
        method: The name of a method. Default: every method.
        dataset: The name of a dataset. Default: every dataset.

    Raises:
        UnknownName: Nothing is published for this name.
    """
    for kind, name, known in (
        ("method with published results", method, LABELS),
        ("dataset with published results", dataset, dict.fromkeys(each.dataset for each in RESULTS)),
    ):
        if name is not None and name not in known:
            raise UnknownName.among(kind, name, known)
    return [each for each in RESULTS if method in (None, each.method) and dataset in (None, each.dataset)]


# Rows of tables: R@1, R@5, R@10, R@100, SumR. A single number is SumR.
_Row = tuple[float, float, float, float, float] | float
_Rows = Mapping[str, Mapping[str, _Row]]  # by method and dataset

_MSC_TABLE_4: _Rows = {
    "ms_sl": {"qvhighlights": (20.4, 46.7, 60.7, 94.6, 222.5)},
    "gmmformer": {"qvhighlights": (18.2, 43.7, 56.7, 92.5, 211.1)},
    "amdnet": {"qvhighlights": (17.4, 40.8, 55.0, 93.4, 206.6)},
    "bgm_net": {"qvhighlights": (20.6, 46.3, 58.8, 94.0, 219.7)},
    "gmmformer_v2": {"qvhighlights": (21.7, 48.0, 60.5, 95.0, 225.2)},
    "proto_prvr": {"qvhighlights": (22.6, 48.8, 61.3, 93.9, 226.6)},
    "msc": {"qvhighlights": (23.9, 51.5, 63.7, 95.5, 234.6)},
}
_MSC_TABLE_5: _Rows = {
    "clip_zero_shot": {
        "tvr": (16.2, 33.5, 41.8, 75.7, 167.2),
        "activitynet": (15.1, 33.9, 45.1, 78.9, 172.9),
        "charades": (2.0, 8.1, 13.6, 49.4, 73.1),
    },
    "ms_sl": {
        "tvr": (31.9, 57.6, 67.7, 93.8, 251.0),
        "activitynet": (14.7, 37.1, 50.4, 84.6, 186.7),
        "charades": (3.4, 11.5, 18.7, 62.5, 96.0),
    },
    "gmmformer": {
        "tvr": (29.8, 54.2, 64.6, 92.5, 241.1),
        "activitynet": (15.2, 37.7, 50.5, 83.7, 187.1),
        "charades": (2.7, 10.5, 16.7, 59.4, 89.3),
    },
    "amdnet": {
        "tvr": (27.7, 52.3, 63.3, 92.3, 235.6),
        "activitynet": (14.0, 36.3, 49.9, 84.2, 184.5),
        "charades": (2.1, 7.8, 13.9, 57.2, 81.1),
    },
    "bgm_net": {
        "tvr": (31.1, 56.3, 66.5, 93.8, 247.7),
        "activitynet": (15.6, 37.9, 51.3, 85.4, 190.3),
        "charades": (3.0, 11.8, 18.2, 63.7, 96.7),
    },
    "gmmformer_v2": {
        "tvr": (34.0, 59.7, 69.8, 94.5, 258.1),
        "activitynet": (17.1, 40.6, 53.7, 85.5, 196.9),
        "charades": (3.1, 11.6, 18.2, 61.4, 94.2),
    },
    "proto_prvr": {
        "tvr": (34.7, 60.0, 70.1, 94.4, 259.2),
        "activitynet": (16.0, 38.8, 52.4, 85.1, 192.3),
    },
    "arl": {
        "tvr": (34.6, 60.4, 70.7, 94.4, 260.1),
        "activitynet": (15.3, 38.4, 51.5, 85.2, 190.4),
    },
    "msc": {
        "tvr": (35.1, 61.6, 71.5, 94.9, 263.1),
        "activitynet": (17.7, 42.0, 55.6, 86.8, 202.1),
        "charades": (3.2, 12.6, 20.1, 63.8, 99.7),
    },
}
# With I3D and RoBERTa features, from the papers of the methods unless another source is named.
_ORIGINAL: list[tuple[str, str, str, Mapping[str, _Row]]] = [  # method, variant, source, rows
    (
        "ms_sl",
        "",
        "MS-SL paper",
        {
            "tvr": (13.5, 32.1, 43.4, 83.4, 172.3),
            "activitynet": (7.1, 22.5, 34.7, 75.8, 140.1),
            "charades": (1.8, 7.1, 11.8, 47.7, 68.4),
        },
    ),
    (
        "gmmformer",
        "",
        "GMMFormer paper",
        {
            "tvr": (13.9, 33.3, 44.5, 84.9, 176.6),
            "activitynet": (8.3, 24.9, 36.7, 76.1, 146.0),
            "charades": (2.1, 7.8, 12.5, 50.6, 72.9),
        },
    ),
    (
        "dl_dkd",
        "",
        "DL-DKD paper",
        {"tvr": (14.4, 34.9, 45.8, 84.9, 179.9), "activitynet": (8.0, 25.0, 37.5, 77.1, 147.6)},
    ),
    (
        "dl_dkd",
        "++",
        "DL-DKD++ paper",
        {
            "tvr": (15.3, 36.0, 47.5, 86.0, 184.8),
            "activitynet": (8.3, 25.5, 38.3, 77.8, 149.9),
            "charades": (1.9, 7.1, 12.3, 49.8, 71.1),
        },
    ),
    (
        "bgm_net",
        "first submission",
        "BGM-Net README of April 2023",
        {
            "tvr": (14.1, 34.7, 45.9, 85.2, 179.9),
            "activitynet": (7.3, 23.7, 35.8, 76.7, 143.6),
            "charades": (2.1, 7.2, 11.8, 48.1, 69.2),
        },
    ),
    (
        "bgm_net",
        "",
        "BGM-Net paper (TOMM)",
        {
            "tvr": (14.1, 34.7, 45.9, 85.2, 179.9),
            "activitynet": (7.2, 23.8, 36.0, 76.9, 143.9),
            "charades": (1.9, 7.4, 12.2, 50.1, 71.6),
        },
    ),
    (
        "gmmformer_v2",
        "",
        "GMMFormer v2 paper",
        {
            "tvr": (16.2, 37.6, 48.8, 86.4, 189.1),
            "activitynet": (8.9, 27.1, 40.2, 78.7, 154.9),
            "charades": (2.5, 8.6, 13.9, 53.2, 78.2),
        },
    ),
    (
        "proto_prvr",
        "",
        "TF-PRVR paper, table 6",
        {"tvr": (15.4, 35.9, 47.5, 86.4, 185.2), "activitynet": (7.9, 24.9, 37.2, 77.3, 147.4)},
    ),
    (
        "arl",
        "",
        "CurvSpec paper, table 1",
        {"tvr": (15.6, 36.3, 47.7, 86.3, 185.9), "activitynet": (8.3, 24.6, 37.4, 78.0, 148.3)},
    ),
]
# The TF-PRVR paper prints only SumR for its own rows.
_TF_PRVR: list[tuple[str, str, str, Mapping[str, _Row]]] = [  # method, variant, features, rows
    ("tf_prvr", "", "clip-l14", {"tvr": 178.3, "activitynet": 193.9, "charades": 80.8}),
    ("tf_prvr", "", "eva-clip-l14", {"tvr": 183.6, "activitynet": 200.8, "charades": 85.4, "qvhighlights": 218.5}),
    (
        "clip_zero_shot",
        "",
        "eva-clip-l14",
        {"tvr": 172.2, "activitynet": 180.4, "charades": 77.5, "qvhighlights": 197.6},
    ),
    (
        "clip_zero_shot",
        "32 clips",
        "eva-clip-l14",
        {"tvr": 173.2, "activitynet": 183.5, "charades": 78.1, "qvhighlights": 199.8},
    ),
    (
        "clip_zero_shot",
        "clips and frames",
        "eva-clip-l14",
        {"tvr": 174.4, "activitynet": 186.6, "charades": 78.8, "qvhighlights": 202.1},
    ),
    ("clip_zero_shot", "", "siglip-l", {"activitynet": 178.7}),
]


def _results() -> Iterator[Result]:
    for method, variant, source, rows in _ORIGINAL:
        yield from _of_rows(method, rows, features="i3d-roberta", source=source, variant=variant)
    for table, features, source in (
        (_MSC_TABLE_4, "slowfast-clip-b", MSC_QV),
        (_MSC_TABLE_5, "clip-l14", MSC_OTHERS),
    ):
        for method, rows in table.items():
            for dataset, row in rows.items():
                # Marked † in the tables. "All results on Charades are reproduced with official codes."
                foreign = method not in ("msc", "clip_zero_shot")
                reproduced = foreign and (method == "gmmformer_v2" or dataset == "charades")
                yield from _of_rows(method, {dataset: row}, features=features, source=source, reproduced=reproduced)
    for method, variant, features, rows in _TF_PRVR:
        yield from _of_rows(method, rows, features=features, source="TF-PRVR paper", variant=variant)


def _of_rows(method: str, rows: Mapping[str, _Row], **known: Any) -> Iterator[Result]:
    for dataset, row in rows.items():
        recalls, sumr = (row[:4], row[4]) if isinstance(row, tuple) else (None, row)
        yield Result(method=method, dataset=dataset, recalls=recalls, sumr=sumr, **known)


_DATASETS, _METHODS, _KINDS = ("qvhighlights", "tvr", "activitynet", "charades"), list(LABELS), list(FEATURES)
RESULTS: tuple[Result, ...] = tuple(
    sorted(
        _results(),
        key=lambda each: (
            _DATASETS.index(each.dataset),
            _KINDS.index(each.features),
            _METHODS.index(each.method),
        ),
    )
)
"""All published results, by dataset, features and method."""
