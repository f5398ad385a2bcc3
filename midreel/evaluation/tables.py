"""Figures as tables for people (text, Markdown, LaTeX) and for programs (CSV, JSON), and rankings as TREC run files.

A table maps a row's name to its figures: each a number, a `Spread` over seeds, or None where there is none. People's
tables are rounded, programs' tables are not.

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
    """The mean of a figure over `num` runs, and its sample standard deviation (n - 1 in the denominator)."""

    mean: float
    spread: float
    num: int

    @classmethod
    def of(cls, values: Sequence[float | int]) -> "Spread":
        """One run has no spread: 0, and tables leave it out. A figure that one run lacks (NaN) has no mean.

        >>> Spread.of([1.0, 2.0, 3.0])
        Spread(mean=2.0, spread=1.0, num=3)
        """
        if not values:
            raise BadSetting("there is no value to take a mean of, expected at least one run; pass the runs' figures")
        if any(math.isnan(value) for value in values):
            return cls(mean=math.nan, spread=math.nan, num=len(values))
        return cls(
            mean=statistics.fmean(values),
            spread=statistics.stdev(values) if len(values) > 1 else 0.0,
            num=len(values),
        )


Number = float | int  # the same to mypy, but not where shapes and types are checked at run time
Cell = Number | Spread | None
Rows = Mapping[str, Mapping[str, Cell]]
Digits = int | Mapping[str, int]  # after the point; by column, 1 for a column that is not named


def over_seeds(runs: Mapping[str, Sequence[Mapping[str, Number]]]) -> dict[str, dict[str, Spread]]:
    """Rows of runs -> rows of their means and spreads. The runs of a row must have the same figures."""
    table = {}
    for row, figures in runs.items():
        names = list(figures[0]) if figures else []
        for number, run in enumerate(figures):
            if set(run) != set(names):
                raise BadSetting(
                    f"run {number} of {row!r} differs from run 0 in {sorted(set(run) ^ set(names))}, expected the same "
                    f"figures in all runs of a row; evaluate them alike"
                )
        table[row] = {name: Spread.of([run[name] for run in figures]) for name in names}
    return table


# ---------------------------------------------------------------- for people


def to_text(
    rows: Rows, columns: Sequence[str] | None = None, *, digits: Digits = 1, corner: str = "", width: int = 80
) -> str:
    """For a terminal of a `width`: upright or on its side, whichever fits better; columns that do not fit beside the
    others follow below. `columns` picks and orders the figures; None takes all as they come."""
    upright = [[_one_line(cell) for cell in line] for line in _grid(rows, columns, digits, corner)]
    on_its_side = [list(line) for line in zip(*upright, strict=True)]
    parts = min(_blocks(upright, width), _blocks(on_its_side, width), key=len)
    return "\n".join(parts)


def _blocks(lines: Sequence[Sequence[str]], width: int) -> list[str]:
    """Parts of a table that are as wide as may be, each with the first column."""
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
    """A GitHub-flavoured table."""
    escaped = [[_escape_markdown(cell) for cell in line] for line in _grid(rows, columns, digits, corner)]
    ruled = ["---", *("---:" for _ in escaped[0][1:])]
    return "".join(f"| {' | '.join(line)} |\n" for line in (escaped[0], ruled, *escaped[1:]))


def to_latex(rows: Rows, columns: Sequence[str] | None = None, *, digits: Digits = 1, corner: str = "") -> str:
    """A tabular in the style of the booktabs package, which the document must load."""
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
    """As it is shown, the names of columns first."""
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
    """Every character that could begin markup, HTML, mathematics or the next cell is taken as itself."""
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
    # One pass over the characters, so that the braces of an escape are not escaped again.
    return "".join(LATEX_ESCAPES.get(character, character) for character in _one_line(text))


def _as_math(number: str) -> str:
    """In text, LaTeX sets a minus as a hyphen."""
    return "--" if number == NONE_SHOWN else f"${number.replace('±', chr(92) + 'pm')}$"


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


# ---------------------------------------------------------------- for programs


def to_csv(rows: Rows, columns: Sequence[str] | None = None, *, corner: str = "") -> str:
    """All digits; a column with spreads is followed by 'NAME spread' and 'NAME runs'."""
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
    """{row: {column: number, null, or {"mean", "spread", "num"}}}, all digits. What JSON cannot say, NaN, is null."""

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
        raise BadSetting(f"no row has the columns {missing}; choose among: {', '.join(known)}")
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
    """The first `depth` videos of each query as lines `query Q0 video rank score tag`, which trec_eval and others read.

    Scores are written so that they read back as the same number. Videos of one score keep their order here, but the
    tools sort by the score alone and break ties by id: where scores repeat, their figures are not the pessimistic ones
    of `metrics.ranks`.
    """
    expect_axes(scores=(scores, "Q B"))
    _expect_ids("query_ids", query_ids, scores.shape[0])
    _expect_ids("video_ids", video_ids, scores.shape[1])
    _expect_ids("tag", [tag], 1)
    if depth < 1:
        raise BadSetting(f"depth is {depth}, expected at least 1 video for each query")
    expect_numbers(scores)
    with Path(path).open("w", encoding="utf-8", newline="\n") as file:
        for query, row in zip(query_ids, scores.detach().cpu(), strict=True):
            best = row.sort(descending=True, stable=True).indices[:depth]
            # numpy prints the shortest number that reads back as the same in this precision; it has no bfloat16.
            values = (row.float() if row.dtype.itemsize < 4 else row)[best].numpy()
            file.writelines(
                f"{query} Q0 {video_ids[video]} {rank} {value!s} {tag}\n"
                for rank, (video, value) in enumerate(zip(best.tolist(), values, strict=True), start=1)
            )


def write_trec_qrels(
    path: Path | str, video_of_query: Int[Tensor, " Q"], query_ids: Sequence[str], video_ids: Sequence[str]
) -> None:
    """What is relevant, as lines `query 0 video 1`: the one video that each query describes."""
    expect_axes(video_of_query=(video_of_query, "Q"))
    _expect_ids("query_ids", query_ids, len(video_of_query))
    _expect_ids("video_ids", video_ids, len(video_ids))
    strays = video_of_query[(video_of_query < 0) | (video_of_query >= len(video_ids))].tolist()
    if strays:
        raise BadAnnotation(
            f"video_of_query names videos {strays[:5]}, expected 0 to {len(video_ids) - 1}; pass the ids of all videos"
        )
    with Path(path).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(
            f"{query} 0 {video_ids[video]} 1\n" for query, video in zip(query_ids, video_of_query.tolist(), strict=True)
        )


def _expect_ids(name: str, ids: Sequence[str], expected: int) -> None:
    if len(ids) != expected:
        raise BadAnnotation(f"{name} has {len(ids)} names, expected {expected}; pass those of the scores")
    split = [word for word in ids if word.split() != [word]]
    if split:
        raise BadAnnotation(f"{name} holds {split[0]!r}, expected no white space, which ends a field; replace it")
    twice = [word for word, count in Counter(ids).items() if count > 1]
    if twice:
        raise BadAnnotation(f"{name} holds {twice[0]!r} more than once, expected a name each; make them differ")
