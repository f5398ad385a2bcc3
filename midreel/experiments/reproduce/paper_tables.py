"""The tables of the paper that consist of trained rows: 1 to 5, 8, 9 and A1, with the printed numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from midreel.experiments import ablation
from midreel.experiments.reproduce import rows, sources
from midreel.experiments.reproduce.specs import Experiment, Row
from midreel.methods.model_files import ZERO_SHOT, ZERO_SHOT_CLIPS
from midreel.recipes import published
from midreel.recipes.published import COLUMNS

QV = "qvhighlights"
THRESHOLD = "similarity_threshold"
SUMR = ("SumR",)


def _recalls(*values: float) -> dict[str, float]:
    return dict(zip(COLUMNS, values, strict=True))


# ---------------------------------------------------------------- Tables 1 and 2

_TABLE_1 = {
    "base": _recalls(21.8, 48.1, 60.6, 95.0, 225.5),
    "tcpl": _recalls(22.8, 49.5, 63.3, 95.0, 230.6),
    "cbva": _recalls(22.8, 49.4, 63.7, 95.0, 231.0),
    "op_tome": _recalls(24.2, 50.4, 63.0, 94.9, 232.5),
    "msc": _recalls(23.9, 51.5, 63.7, 95.5, 234.6),
}
_TABLE_2 = {
    "tcpl": _TABLE_1["tcpl"],
    "vcpl_retrieved": _recalls(23.4, 50.4, 63.4, 94.6, 231.7),
    "vcpl_uniform": _recalls(22.5, 50.8, 64.1, 94.9, 232.3),
    "msc": _TABLE_1["msc"],
}
_BEYOND = tuple(Row(key=name, label=ablation.LABELS[name], method=name) for name in ablation.BEYOND)
_UNTRAINED = tuple(Row(key=name, label=ablation.LABELS[name], method=name) for name in (ZERO_SHOT, ZERO_SHOT_CLIPS))


def _of_ablation(printed: Mapping[str, Mapping[str, float]]) -> tuple[Row, ...]:
    return tuple(
        Row(key=key, label=ablation.LABELS[key], settings=ablation.ROWS[key], paper=figures)
        for key, figures in printed.items()
    )


# ---------------------------------------------------------------- Table 3


def _variants(default: str, *given: Row) -> dict[str, Any]:
    """Return rows, with the pairs that compare each with the default row."""
    return {"rows": {QV: given}, "pairs": tuple((row.key, default) for row in given if row.key != default)}


def _row(key: str, label: str, settings: Mapping[str, Any], sumr: float) -> Row:
    return Row(key=key, label=label, settings=settings, paper={"SumR": sumr})


def _shifted(offset: float, printed: Mapping[str, float]) -> Row:
    label = f"default {'-' if offset < 0 else '+'} {abs(offset):.2f}" if offset else "default"
    return Row(key=f"{offset:+.2f}", label=label, offsets={THRESHOLD: offset}, paper=printed)


def _weights(distance: int, angle: int) -> dict[str, float]:
    return {"tcpl_distance_weight": float(distance), "tcpl_angle_weight": float(angle)}


_RATIO = _variants(
    "15:30",
    _row("15:15", "1:1 (15, 15)", _weights(15, 15), 229.7),
    _row("30:15", "2:1 (30, 15)", _weights(30, 15), 231.8),
    _row("15:30", "1:2 (15, 30), default", _weights(15, 30), 234.6),
)
_COEFFICIENTS = _variants(
    "15:30",
    _row("5:10", "5, 10", _weights(5, 10), 231.5),
    _row("10:20", "10, 20", _weights(10, 20), 233.5),
    _row("15:30", "15, 30, default", _weights(15, 30), 234.6),
    _row("20:40", "20, 40", _weights(20, 40), 232.5),
)
_CBVA_WEIGHT = _variants(
    "0.1",
    _row("0.1", "0.1, default", {"cbva_weight": 0.1}, 234.6),
    _row("0.15", "0.15", {"cbva_weight": 0.15}, 234.9),
    _row("0.2", "0.2", {"cbva_weight": 0.2}, 232.9),
)
_MERGE_RATE = _variants(
    "75",
    _row("50", "50 %", {"merge_rate": 0.5}, 232.6),
    _row("75", "75 %, default", {"merge_rate": 0.75}, 234.6),
)
_THRESHOLD = _variants(
    "+0.00",
    *(
        _shifted(*each)
        for each in ((-0.2, {"SumR": 234.3}), (-0.1, {"SumR": 233.5}), (0.0, {"SumR": 234.6}), (0.1, {"SumR": 232.6}))
    ),
)

# ---------------------------------------------------------------- Tables 4, 5, 8 and 9

_KEYS = {"clip_zero_shot": ZERO_SHOT}  # methods that are not trained, by the names of their models


def _methods(benchmark: str) -> tuple[Row, ...]:
    """Return the rows of Table 4 or 5, with the printed results of a benchmark, and those beyond the paper."""
    return (
        tuple(
            Row(
                key=_KEYS.get(each.method, each.method),
                label=published.LABELS[each.method],
                method=_KEYS.get(each.method, each.method),
                paper=each.figures(),
            )
            for each in published.find(dataset=benchmark)
            if each.source in (published.MSC_QV, published.MSC_OTHERS)
        )
        + _BEYOND
    )


def _against(row: str, others: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Compare one row with all others."""
    return tuple((row, other.key) for other in others if other.key != row)


def _of_methods(printed: Mapping[str, Mapping[str, float]]) -> tuple[Row, ...]:
    return (
        tuple(
            Row(key="base", label="Baseline", settings=ablation.ROWS["base"], paper=figures)
            if method == "base"
            else Row(key=method, label=published.LABELS[method], method=method, paper=figures)
            for method, figures in printed.items()
        )
        + _BEYOND
    )


_STRUCTURE = tuple(
    f"{space} {name}" for space in ("text", "video") for name in ("Intra Sim", "Total Sim", "Diff. Norm")
)
_TABLE_8 = _of_methods(
    {
        "gmmformer": dict(zip(_STRUCTURE, (0.1175, 0.0113, 0.8245, 0.6419, 0.0623, 0.8230), strict=True)),
        "gmmformer_v2": dict(zip(_STRUCTURE, (0.1646, 0.0196, 0.7872, 0.6041, 0.0387, 0.8796), strict=True)),
        "msc": dict(zip(_STRUCTURE, (0.2198, 0.0813, 0.4600, 0.5531, 0.0812, 0.7440), strict=True)),
    }
)
_TABLE_9 = _of_methods(
    {
        "base": {"Spearman": 35.40},
        "ms_sl": {"Spearman": 37.17},
        "gmmformer": {"Spearman": 36.06},
        "gmmformer_v2": {"Spearman": 35.74},
        "msc": {"Spearman": 68.18},
    }
)

# ---------------------------------------------------------------- Table A1

_A1 = {
    "tvr": (
        0.80,
        _recalls(35.6, 61.0, 70.8, 95.0, 262.4),
        _recalls(35.5, 61.2, 71.1, 94.9, 262.6),
        _recalls(35.1, 61.6, 71.5, 94.9, 263.1),
        _recalls(35.1, 61.2, 71.2, 95.0, 262.5),
        _recalls(35.1, 61.1, 71.1, 94.9, 262.2),
    ),
    "activitynet": (
        0.80,
        _recalls(17.6, 41.9, 55.4, 86.8, 201.7),
        _recalls(17.8, 41.9, 55.4, 86.7, 201.8),
        _recalls(17.7, 42.0, 55.6, 86.8, 202.1),
        _recalls(17.7, 42.1, 55.3, 86.8, 201.9),
        _recalls(17.2, 41.9, 55.5, 86.8, 201.4),
    ),
    "charades": (
        0.85,
        _recalls(3.3, 11.6, 19.8, 63.9, 98.6),
        _recalls(3.4, 12.7, 19.4, 64.8, 100.3),
        _recalls(3.4, 12.0, 18.7, 64.5, 98.6),
        _recalls(3.2, 12.6, 20.1, 63.8, 99.7),
        _recalls(3.3, 12.4, 19.1, 64.0, 98.9),
    ),
}


def _thresholds(default: float, *printed: Mapping[str, float]) -> tuple[Row, ...]:
    offsets = [round(threshold - default, 6) + 0.0 for threshold in (0.70, 0.75, 0.80, 0.85, 0.90)]
    return tuple(_shifted(*each) for each in zip(offsets, printed, strict=True))


_A1_ROWS = {name: _thresholds(*given) for name, given in _A1.items()}
_A1_KEYS = dict.fromkeys(row.key for of_dataset in _A1_ROWS.values() for row in of_dataset)
_BENCHMARKS = ("tvr", "activitynet", "charades")
FOUR_DIGITS = dict.fromkeys(_STRUCTURE, 4)

TABLES = (
    Experiment(
        name="1",
        title="Table 1: component ablation",
        make=rows.make,
        rows={QV: (*_UNTRAINED, *_of_ablation(_TABLE_1), *_BEYOND)},
        pairs=(
            ("tcpl", "base"),
            ("cbva", "tcpl"),
            ("op_tome", "cbva"),
            ("msc", "op_tome"),
            ("msc", "base"),
            *((row.key, "msc") for row in _BEYOND),
        ),
    ),
    Experiment(
        name="2",
        title="Table 2: video correlation preservation instead of CBVA",
        make=rows.make,
        rows={QV: _of_ablation(_TABLE_2)},
        pairs=(("vcpl_retrieved", "tcpl"), ("vcpl_uniform", "tcpl"), ("msc", "tcpl"), ("msc", "vcpl_uniform")),
    ),
    Experiment(name="3a", title="Table 3a: ratio of the TCPL weights", make=rows.make, columns=SUMR, **_RATIO),
    Experiment(name="3b", title="Table 3b: TCPL weights", make=rows.make, columns=SUMR, **_COEFFICIENTS),
    Experiment(
        name="3c",
        title="Table 3c: source model of TCPL",
        make=sources.make,
        columns=SUMR,
        rows={QV: (Row(key="own", label="own text encoder, default", paper={"SumR": 234.6}),)},
        needs="text features of other backbones: --source STORE",
    ),
    Experiment(name="3d", title="Table 3d: CBVA weight", make=rows.make, columns=SUMR, **_CBVA_WEIGHT),
    Experiment(
        name="3e",
        title="Table 3e: merge rate",
        make=rows.make,
        columns=SUMR,
        **_MERGE_RATE,
    ),
    Experiment(
        name="3f",
        title="Table 3f: similarity threshold",
        make=rows.make,
        columns=SUMR,
        **_THRESHOLD,
    ),
    Experiment(
        name="4",
        title="Table 4: methods on QVHighlights",
        make=rows.make,
        rows={QV: _methods(QV)},
        pairs=_against("msc", _methods(QV)),
    ),
    Experiment(
        name="5",
        title="Table 5: methods on TVR, ActivityNet Captions and Charades-STA",
        make=rows.make,
        rows={benchmark: _methods(benchmark) for benchmark in _BENCHMARKS},
        pairs=_against("msc", _methods("tvr")),
    ),
    Experiment(
        name="8",
        title="Table 8: similarity within and across videos",
        make=rows.make,
        rows={QV: _TABLE_8},
        columns=_STRUCTURE,
        tested="text Diff. Norm",
        pairs=_against("msc", _TABLE_8),
        digits=FOUR_DIGITS,
    ),
    Experiment(
        name="9",
        title="Table 9: Spearman's rank correlation with CLIP",
        make=rows.make,
        rows={QV: _TABLE_9},
        columns=("Spearman",),
        tested="Spearman",
        pairs=_against("msc", _TABLE_9),
        digits={"Spearman": 2},
    ),
    Experiment(
        name="A1",
        title="Table A1: similarity threshold by dataset",
        make=rows.make,
        rows=_A1_ROWS,
        pairs=tuple((key, "+0.00") for key in _A1_KEYS if key != "+0.00"),
    ),
)
