"""Tables in the terminal, of at most 80 columns: methods, and published results."""

import io
from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table

from midreel.recipes.published import COLUMNS, Result

WIDTH = 80  # columns of a terminal
FOOTNOTE = "† run by the authors of the source with the code of the method"


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as columns of text. Long cells continue on the next line.

    Args:
        head: The names of the columns.
        rows: The cells of each row. The first cell is never split.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(head):
        table.add_column(name, no_wrap=number == 0, header_style="")
    for row in rows:
        table.add_row(*row)
    return _text([table])


def published_results(results: Sequence[Result]) -> str:
    """Return one table for each dataset and kind of features."""
    made = []
    for (dataset, features), group in groupby(results, key=lambda each: (each.dataset, each.features)):
        table = Table(title=f"{dataset}, {features}", title_justify="left", title_style="", box=box.SIMPLE_HEAD)
        table.add_column("method", no_wrap=True)
        for name in COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("source")
        for each in group:
            figures = each.figures()
            cells = (f"{figures[name]:.1f}" if name in figures else "-" for name in COLUMNS)
            table.add_row(each.method, *cells, f"{each.origin}{' †' * each.reproduced}")
        made.append(table)
    return _text(made) + (f"\n{FOOTNOTE}" if any(each.reproduced for each in results) else "")


def _text(tables: Sequence[Table]) -> str:
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, highlight=False, markup=False)
    for table in tables:
        console.print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
