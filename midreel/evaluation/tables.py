"""Tables for people (text, Markdown, LaTeX) and for programs (CSV, JSON), and TREC run files.

A table maps the name of a row to its cells by column. A cell is a number, a `Spread` over seeds, or None. Tables for
people are rounded, tables for programs are not.

Axes: Q queries, B videos.
"""

import csv
import io
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadAnnotation, BadSetting
from midreel.evaluation.metrics import expect_numbers
from midreel.ops.checks import expect_axes


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The mean of a figure over `num` runs, and its sample standard deviation (with n - 1)."""

    mean: float
    spread: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float | int]) -> "Spread":
        """Return the mean and spread of values.

        The spread of one run is 0, and tables do not show it. If a value is NaN, the mean and the spread are NaN.

        Raises:
            BadSetting: There are no values.

        >>> Spread.of([1.0, 2.0, 3.0])
        Spread(mean=2.0, spread=1.0, num=3)
        """
        if not values:
            raise BadSetting("values is empty, expected at least one run. Pass the metrics of the runs.")
        if any(math.isnan(value) for value in values):
            return cls(mean=math.nan, spread=math.nan, num=len(values))
        return cls(
            mean=statistics.fmean(values),
            spread=statistics.stdev(values) if len(values) > 1 else 0.0,
            num=len(values),
        )


Number = float | int  # mypy accepts an int as a float, but the runtime type checks of the tests do not
Cell = Number | Spread | None
Rows = Mapping[str, Mapping[str, Cell]]
Digits = int | Mapping[str, int]  # after the decimal point: of all columns, or by column with the default 1


def over_seeds(runs: Mapping[str, Sequence[Mapping[str, Number]]]) -> dict[str, dict[str, Spread]]:
    """Return the mean and spread of each metric over the runs of a row.

    Raises:
        BadSetting: The runs of a row have different metrics.
    """
    table = {}
    for row, figures in runs.items():
        names = list(figures[0]) if figures else []
        for number, run in enumerate(figures):
            if set(run) != set(names):
                raise BadSetting(
                    f"run {number} of {row!r} differs from run 0 in {sorted(set(run) ^ set(names))}, "
                    f"expected the same metrics. Evaluate all runs in the same way."
                )
        table[row] = {name: Spread.of([run[name] for run in figures]) for name in names}
    return table


# ---------------------------------------------------------------- for people


def to_text(
    rows: Rows, columns: Sequence[str] | None = None, *, digits: Digits = 1, corner: str = "", width: int = 80
) -> str:
    """Return a table for a terminal.

    The table is transposed if that fits better. Columns beyond the width follow below the others.

    Args:
        rows: The rows.
        columns: The columns to show, in this order. Default: all.
        digits: The number of digits after the decimal point.
        corner: The text of the top left cell.
        width: The width of the terminal.

    Raises:
        BadSetting: No row has one of the columns.
    """
    upright = [[_one_line(cell) for cell in line] for line in _grid(rows, columns, digits, corner)]
    transposed = [list(line) for line in zip(*upright, strict=True)]
    parts = min(_blocks(upright, width), _blocks(transposed, width), key=len)
    return "\n".join(parts)


def _blocks(lines: Sequence[Sequence[str]], width: int) -> list[str]:
    """Split a table into blocks of at most `width`, each with the first column."""
    names, *others = zip(*lines, strict=True)
    margin = max(map(len, names))
    parts: list[list[list[str]]] = [[]]
    for column in others:
        size = 2 + max(map(len, column))
        if parts[-1] and margin + sum(len(cells[0]) for cells in parts[-1]) + size > width:
            parts.append([])
        parts[-1].append([f"{cell:>{size}}" for cell in column])
    first = [f"{name:<{margin}}" for name in names]
    return ["".join("".join(line).rstrip() + "\n" for line in zip(first, *part, strict=True)) for part in parts]


def to_markdown(rows: Rows, columns: Sequence[str] | None = None, *, digits: Digits = 1, corner: str = "") -> str:
    """Return a table in GitHub-flavoured Markdown.

    Args:
        rows: The rows.
        columns: The columns to show, in this order. Default: all.
        digits: The number of digits after the decimal point.
        corner: The text of the top left cell.
    """
    escaped = [[_escape_markdown(cell) for cell in line] for line in _grid(rows, columns, digits, corner)]
    ruled = ["---", *("---:" for _ in escaped[0][1:])]
    return "".join(f"| {' | '.join(line)} |\n" for line in (escaped[0], ruled, *escaped[1:]))


def to_latex(rows: Rows, columns: Sequence[str] | None = None, *, digits: Digits = 1, corner: str = "") -> str:
    r"""Return a LaTeX tabular, for a document with \usepackage{booktabs}.

    Args:
        rows: The rows.
        columns: The columns to show, in this order. Default: all.
        digits: The number of digits after the decimal point.
        corner: The text of the top left cell.
    """
    names = _columns(rows, columns)
    lines = [
        rf"\begin{{tabular}}{{l{'r' * len(names)}}}",
        r"\toprule",
        _latex_line([_escape_latex(cell) for cell in (corner, *names)]),
        r"\midrule",
        *(
            _latex_line([_escape_latex(row), *(_as_math(_shown(rows[row].get(n), _places(digits, n))) for n in names)])
            for row in rows
        ),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


NONE_SHOWN = "\N{EN DASH}"


def _grid(rows: Rows, columns: Sequence[str] | None, digits: Digits, corner: str) -> list[list[str]]:
    """Return the cells as text, with the names of the columns in the first line."""
    names = _columns(rows, columns)
    return [
        [corner, *names],
        *([row, *(_shown(rows[row].get(name), _places(digits, name)) for name in names)] for row in rows),
    ]


def _shown(cell: Cell, places: int) -> str:
    value = cell.mean if isinstance(cell, Spread) else cell
    if value is None or math.isnan(value):
        return NONE_SHOWN
    if isinstance(cell, Spread) and cell.num > 1:
        return f"{value:z.{places}f} ± {cell.spread:z.{places}f}"
    return f"{value:z.{places}f}"


def _places(digits: Digits, column: str) -> int:
    return digits if isinstance(digits, int) else digits.get(column, 1)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escape_markdown(text: str) -> str:
    """Escape every character that could start markup, HTML, mathematics or the next cell."""
    return re.sub(r"([\\`*_\[\]<>|~$&])", r"\\\1", _one_line(text))


LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{special: f"\\{special}" for special in "&%$#_{}"},
}


def _escape_latex(text: str) -> str:
    # One pass over the characters, because an escape contains braces that must not be escaped again.
    return "".join(LATEX_ESCAPES.get(character, character) for character in _one_line(text))


def _as_math(number: str) -> str:
    """Return a number in math mode, because LaTeX prints a minus in text as a hyphen."""
    return "--" if number == NONE_SHOWN else f"${number.replace('±', chr(92) + 'pm')}$"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


# ---------------------------------------------------------------- for programs


def to_csv(rows: Rows, columns: Sequence[str] | None = None, *, corner: str = "") -> str:
    """Return a table as CSV, with all digits. Columns 'NAME spread' and 'NAME runs' follow a column with spreads.

    Args:
        rows: The rows.
        columns: The columns to show, in this order. Default: all.
        corner: The text of the top left cell.
    """
    names = _columns(rows, columns)
    spread = {name for name in names for row in rows.values() if isinstance(row.get(name), Spread)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = [corner]
    for name in names:
        head += [name, f"{name} spread", f"{name} runs"] if name in spread else [name]
    writer.writerow(map(_one_line, head))
    for row, figures in rows.items():
        line: list[str | Number | None] = [_one_line(row)]
        for name in names:
            cell = figures.get(name)
            if isinstance(cell, Spread):
                line += [_number(cell.mean), _number(cell.spread), cell.num]
            else:
                line += [_number(cell), None, None] if name in spread else [_number(cell)]
        writer.writerow(line)
    return text.getvalue()


def to_json(rows: Rows, columns: Sequence[str] | None = None) -> str:
    """Return a table as JSON: {row: {column: number, null, or {"mean", "spread", "num"}}}.

    Numbers have all digits. NaN is null.
    """

    def value(cell: Cell) -> object:
        if isinstance(cell, Spread):
            return {name: _number(number) for name, number in asdict(cell).items()}
        return _number(cell)

    names = _columns(rows, columns)
    table = {row: {name: value(figures.get(name)) for name in names} for row, figures in rows.items()}
    return json.dumps(table, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _number(value: Number | None) -> Number | None:
    return None if value is None or not math.isfinite(value) else value


FORMATS: dict[str, Callable[..., str]] = {
    "csv": to_csv,
    "json": to_json,
    "latex": to_latex,
    "markdown": to_markdown,
    "text": to_text,
}


def _columns(rows: Rows, columns: Sequence[str] | None) -> list[str]:
    known = list(dict.fromkeys(name for figures in rows.values() for name in figures))
    if columns is None:
        return known
    missing = [name for name in columns if name not in known]
    if missing:
        raise BadSetting(f"columns are {missing}, expected some of: {', '.join(known)}.")
    return list(columns)


# ---------------------------------------------------------------- TREC files


def write_trec_run(
    path: Path | str,
    scores: Float[Tensor, "Q B"],
    query_ids: Sequence[str],
    video_ids: Sequence[str],
    *,
    depth: int = 1000,
    tag: str = "midreel",
) -> None:
    """Write a TREC run file, for tools such as trec_eval: lines of `query Q0 video rank score tag`.

    Scores are written with all digits. TREC tools ignore the ranks in the file: they sort by score and break ties by
    id. If scores repeat, their results differ from the pessimistic ones of `metrics.ranks`.

    Args:
        path: The file to write.
        scores: The score of each query and video.
        query_ids: The ids of the queries, unique and without white space.
        video_ids: The ids of the videos, unique and without white space.
        depth: The number of videos per query.
        tag: The name of the run.

    Raises:
        BadAnnotation: An id is not unique or has white space, or the number of ids is wrong.
        BadBatch: A score is NaN.
        BadSetting: `depth` is below 1.
    """
    expect_axes(scores=(scores, "Q B"))
    _expect_ids("query_ids", query_ids, scores.shape[0])
    _expect_ids("video_ids", video_ids, scores.shape[1])
    _expect_ids("tag", [tag], 1)
    if depth < 1:
        raise BadSetting(f"depth is {depth}, expected 1 or more. Try 1000.")
    expect_numbers(scores)
    with Path(path).open("w", encoding="utf-8", newline="\n") as file:
        for query, row in zip(query_ids, scores.detach().cpu(), strict=True):
            best = row.sort(descending=True, stable=True).indices[:depth]
            # numpy prints the shortest text that reads back as the same number. It has no bfloat16.
            values = (row.float() if row.dtype.itemsize < 4 else row)[best].numpy()
            file.writelines(
                f"{query} Q0 {video_ids[video]} {rank} {value!s} {tag}\n"
                for rank, (video, value) in enumerate(zip(best.tolist(), values, strict=True), start=1)
            )


def write_trec_qrels(
    path: Path | str, video_of_query: Int[Tensor, " Q"], query_ids: Sequence[str], video_ids: Sequence[str]
) -> None:
    """Write a TREC relevance file: a line `query 0 video 1` for each query and its video.

    Args:
        path: The file to write.
        video_of_query: The index in `video_ids` of the video of each query.
        query_ids: The ids of the queries, unique and without white space.
        video_ids: The ids of all videos, unique and without white space.

    Raises:
        BadAnnotation: An id is not unique or has white space, or a query has no video.
    """
    expect_axes(video_of_query=(video_of_query, "Q"))
    _expect_ids("query_ids", query_ids, len(video_of_query))
    _expect_ids("video_ids", video_ids, len(video_ids))
    strays = video_of_query[(video_of_query < 0) | (video_of_query >= len(video_ids))].tolist()
    if strays:
        raise BadAnnotation(
            f"video_of_query has {strays[:5]}, expected 0 to {len(video_ids) - 1}. Pass the ids of all videos."
        )
    with Path(path).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(
            f"{query} 0 {video_ids[video]} 1\n" for query, video in zip(query_ids, video_of_query.tolist(), strict=True)
        )


def _expect_ids(name: str, ids: Sequence[str], expected: int) -> None:
    if len(ids) != expected:
        raise BadAnnotation(f"{name} has {len(ids)} ids, expected {expected}. Pass the ids of the scores.")
    spaced = [word for word in ids if word.split() != [word]]
    if spaced:
        raise BadAnnotation(f"{name} has {spaced[0]!r}, expected one word without white space. Rename it.")
    repeated = [word for word, count in Counter(ids).items() if count > 1]
    if repeated:
        raise BadAnnotation(f"{name} has {repeated[0]!r} more than once, expected unique ids. Rename one.")
