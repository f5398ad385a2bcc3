"""The result of an experiment: our figures beside the paper's, with tests, in all formats."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midreel.evaluation import tables
from midreel.evaluation.statistics import mark
from midreel.evaluation.tables import Cell, Spread

PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A comparison of two rows.

    Attributes:
        row: The label of the row.
        other: The label of the row to subtract.
        value: The difference of the means.
        low: The lower end of its 95 % interval, over seeds and videos.
        high: The upper end.
        p: The p-value over seeds and videos.
        p_holm: The same, adjusted for the number of comparisons.
        low_videos: The lower end of the bootstrap over videos, for these very runs. None if it does not apply.
        high_videos: The upper end.
        p_videos: The p-value of the permutation test over videos, for these very runs. None if it does not apply.
        paper: The difference that the paper printed.
    """

    row: str
    other: str
    value: float
    low: float
    high: float
    p: float
    p_holm: float = math.nan
    low_videos: float | None = None
    high_videos: float | None = None
    p_videos: float | None = None
    paper: float | None = None

    @property
    def label(self) -> str:
        """The name of the comparison, with its stars of significance."""
        return f"{self.row} - {self.other} {mark(self.p_holm)}".strip()


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an experiment found.

    Attributes:
        name: The name of the experiment.
        title: Its caption.
        dataset: The dataset, split and counts, for people.
        rows: Our figures by row and column.
        paper: The printed figures by row and column.
        benchmark: The dataset of the printed figures.
        columns: The columns to show, in order.
        digits: The digits after the decimal point, by column. Default: 1.
        repeats: What a cell is the mean over.
        tested: The metric of the differences.
        differences: The comparisons.
        intervals: The mean of `tested` with its 95 % interval over seeds and videos, by row.
        notes: Sentences below the table.
        one_seed: Whether a trained row has a single run, so that the spread over seeds is unknown.
        failures: The reasons of runs that failed, by name.
        pictures: The description of each picture, by its file name.
        files: Further files to write, by name.
        runs: The run folders of each row.
        recipes: The settings of each row with the first seed.
    """

    name: str
    title: str
    dataset: str = ""
    rows: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    benchmark: str = ""
    columns: Sequence[str] = ()
    digits: Mapping[str, int] = field(default_factory=dict)
    repeats: str = "seeds"
    tested: str = "SumR"
    differences: Sequence[Difference] = ()
    intervals: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    one_seed: bool = False
    failures: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    runs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    recipes: Mapping[str, Any] = field(default_factory=dict)

    def beside(self) -> tuple[dict[str, dict[str, Cell]], list[str]]:
        """Return the rows with the printed figures in columns beside ours, and the columns."""
        rows: dict[str, dict[str, Cell]] = {}
        columns: list[str] = []
        for column in self.columns:
            columns.append(column)
            if any(column in printed for printed in self.paper.values()):
                columns.append(f"{column}, {PAPER}")
        first = {each.row: each for each in reversed(self.differences)}
        for label, figures in self.rows.items():
            row = dict(figures) | {f"{name}, {PAPER}": value for name, value in self.paper.get(label, {}).items()}
            seeds = max((cell.num for cell in figures.values() if isinstance(cell, Spread)), default=None)
            row[self.repeats] = seeds
            if label in first:
                row["p"] = first[label].p_holm
            rows[label] = row
        if any(row[self.repeats] is not None for row in rows.values()):
            columns.append(self.repeats)
        if first:
            columns.append("p")
        return rows, [name for name in columns if any(name in row for row in rows.values())]

    def compared(self) -> dict[str, dict[str, Cell]]:
        """Return the comparisons as the rows of a table."""
        return {
            each.label: {
                self.tested: each.value,
                "from": each.low,
                "to": each.high,
                PAPER: each.paper,
                "p": each.p,
                "p, Holm": each.p_holm,
                "from, videos": each.low_videos,
                "to, videos": each.high_videos,
                "p, videos": each.p_videos,
            }
            for each in self.differences
        }

    def table(self, form: str) -> str:
        """Return the table, and the comparisons below it, in a format of `tables.FORMATS`."""
        rows, columns = self.beside()
        if not rows:
            return ""
        make = tables.FORMATS[form]
        rounding = {} if form == "csv" else {"digits": self._digits(columns)}
        parts = [make(rows, columns, **rounding)]
        if self.differences:
            rounding = {} if form == "csv" else {"digits": self._digits(list(next(iter(self.compared().values()))))}
            parts.append(make(self.compared(), None, corner="difference", **rounding))
        return "\n".join(parts)

    def _digits(self, columns: Sequence[str]) -> dict[str, int]:
        """Return the digits of each column. Printed columns and ends of intervals have those of their metric."""
        of_tested = dict.fromkeys(("from", "to", PAPER, "from, videos", "to, videos"), self.digits.get(self.tested, 1))
        fixed = {self.repeats: 0, "p": 3, "p, Holm": 3, "p, videos": 3}
        return {name: self.digits.get(name.removesuffix(f", {PAPER}"), 1) for name in columns} | of_tested | fixed

    def markdown(self) -> str:
        """Return the whole result as a page in Markdown."""
        parts = [
            f"# {self.title}",
            self.dataset,
            self.table("markdown").rstrip(),
            "\n".join(map(_item, self.remarks())),
        ]
        parts += [f"![{text}]({name})" for name, text in self.pictures.items()]
        return "\n\n".join(filter(None, parts)) + "\n"

    def text(self) -> str:
        """Return the result for a terminal."""
        parts = [self.title, self.dataset, self.table("text").rstrip(), "\n".join(map(_item, self.remarks()))]
        return "\n\n".join(filter(None, parts))

    def remarks(self) -> list[str]:
        """Return the notes, how to read the table, and the failures."""
        found = []
        if any(self.paper.values()):
            found.append(f"Columns “{PAPER}” are the printed results, on {self.benchmark}.")
        if any(isinstance(cell, Spread) and cell.num > 1 for row in self.rows.values() for cell in row.values()):
            found.append(f"Cells are the mean ± the sample standard deviation over the {self.repeats}.")
        if any(each.p_videos is not None for each in self.differences):
            found.append(
                "Differences have a 95 % interval over seeds and test videos, and a p-value, adjusted by Holm's method "
                "for the number of comparisons: * below 0.05, ** below 0.01, *** below 0.001. “Videos”: the bootstrap "
                "and the permutation test over test videos, for these very runs."
            )
        elif self.differences:
            found.append(
                "Differences have a 95 % interval over seeds and a p-value (Welch's test), adjusted by Holm's method: "
                "* below 0.05, ** below 0.01, *** below 0.001."
            )
        if self.one_seed and self.differences:
            found.append(
                "A row has one seed, so nobody knows how far seeds differ: intervals are over test videos alone, and a "
                "difference has no p-value over seeds. Use --seeds 3 or more."
            )
        failed = [f"Failed: {name}: {reason}" for name, reason in self.failures.items()]
        return [*found, *self.notes, *failed]

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values. It has the same bits for the same runs."""
        return {
            "name": self.name,
            "title": self.title,
            "dataset": self.dataset,
            "benchmark": self.benchmark,
            "tested": self.tested,
            "rows": json.loads(tables.to_json(self.rows)) if self.rows else {},
            "paper": {label: dict(row) for label, row in self.paper.items()},
            "intervals": {label: list(each) for label, each in self.intervals.items()},
            "differences": [vars(each) for each in self.differences],
            "notes": list(self.notes),
            "failures": dict(self.failures),
            "pictures": dict(self.pictures),
            "files": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.files.items()},
            "runs": {label: list(each) for label, each in self.runs.items()},
            "recipes": dict(self.recipes),
        }


def _item(sentence: str) -> str:
    return f"- {sentence}"
