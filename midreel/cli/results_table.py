"""Published results as tables in the terminal."""

import io
from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table

from midreel.recipes.published import COLUMNS, Result

WIDTH = 80  # columns of a terminal


def text(results: Sequence[Result]) -> str:
    """Return one table for each dataset and kind of features, of at most `WIDTH` columns."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, highlight=False, markup=False)
    for (dataset, features), group in groupby(results, key=lambda each: (each.dataset, each.features)):
        table = Table(title=f"{dataset}, {features}", title_justify="left", title_style="", box=box.SIMPLE_HEAD)
        table.add_column("method")
        for name in COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("source", ratio=1)
        for each in group:
            figures = each.figures()
            cells = (f"{figures[name]:.1f}" if name in figures else "-" for name in COLUMNS)
            table.add_row(each.method, *cells, source(each))
        console.print(table)
    shown = console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
    lines = [line.rstrip() for line in shown.splitlines()]
    if any(each.reproduced for each in results):
        lines.append("† run by the authors of the source with the code of the method")
    return "\n".join(lines)


def source(result: Result) -> str:
    """Return where a result is from, with the variant of the method. † marks reproduced results."""
    variant = f", {result.variant}" if result.variant not in result.source else ""
    return f"{result.source}{variant}{' †' * result.reproduced}"
