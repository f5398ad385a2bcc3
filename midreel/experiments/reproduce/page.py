"""The result of an experiment as one HTML file, without scripts, fonts or links to other files."""

import base64
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from midreel.evaluation.statistics import mark
from midreel.evaluation.tables import NONE_SHOWN, Cell, Spread
from midreel.experiments.reproduce.result import PAPER, Result

STYLE = """
:root { color-scheme: light dark; --ink: #222; --pale: #ddd; --grey: #666; --paper: #fff; --blue: #0072b2;
  --red: #b34700; --band: #f3f6f9; }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --pale: #444; --grey: #aaa; --paper: #16181b;
  --blue: #56b4e9; --red: #e69f00; --band: #1f2428; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 66rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
caption { text-align: left; color: var(--grey); padding-bottom: .4rem; }
th, td { padding: .3rem .4rem; border-bottom: 1px solid var(--pale); white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; text-align: right; border-bottom: 2px solid var(--grey); }
thead th:first-child, tbody th { text-align: left; } tbody th { font-weight: 600; } td { text-align: right; }
td.paper, th.paper { color: var(--red); } tbody tr:nth-child(even) { background: var(--band); }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
img { max-width: 100%; background: #fff; } pre { overflow-x: auto; background: var(--band); padding: .8rem; }
figure { margin: 1.5rem 0; } figcaption { color: var(--grey); }
"""


def page(result: Result, card: Mapping[str, Any], folder: Path) -> str:
    """Return the page of a result.

    Args:
        result: The result.
        card: Its reproduction card.
        folder: The folder with its pictures.
    """
    rows, columns = result.beside()
    digits = result.digits
    parts = [f"<h1>{_text(result.title)}</h1>", f"<p>{_text(result.dataset)}</p>" if result.dataset else ""]
    if rows:
        parts.append(_table("Results", rows, columns, digits))
    if result.intervals:
        parts += [f"<h2>{_text(result.tested)} by row</h2>", _forest(result)]
    if result.differences:
        compared = result.compared()
        shown = dict.fromkeys(next(iter(compared.values())), digits.get(result.tested, 1))
        parts += ["<h2>Differences</h2>", _table(f"Differences in {result.tested}", compared, list(shown), shown)]
    parts += [_picture(folder / name, text) for name, text in result.pictures.items()]
    parts.append("<ul>" + "".join(f"<li>{_text(each)}</li>" for each in result.remarks()) + "</ul>")
    parts += ["<h2>To run it again</h2>", f"<pre>{_text(card['command'])}</pre>"]
    parts.append(
        f"<details><summary>Reproduction card</summary><pre>{_text(json.dumps(card, indent=2))}</pre></details>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(result.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(filter(None, parts))
        + "\n</main>\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return html.escape(text)


# ---------------------------------------------------------------- tables


def _table(
    caption: str, rows: Mapping[str, Mapping[str, Cell]], columns: Sequence[str], digits: Mapping[str, int]
) -> str:
    head = "".join(f'<th scope="col"{_class(name)}>{_text(name)}</th>' for name in columns)
    body = "\n".join(
        f'<tr><th scope="row">{_text(label)}</th>'
        + "".join(f"<td{_class(name)}>{_cell(row.get(name), _places(name, digits))}</td>" for name in columns)
        + "</tr>"
        for label, row in rows.items()
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(caption)}"><table><caption>{_text(caption)}'
        f'</caption><thead><tr><th scope="col">row</th>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
    )


def _class(column: str) -> str:
    return ' class="paper"' if column == PAPER or column.endswith(f", {PAPER}") else ""


def _places(column: str, digits: Mapping[str, int]) -> int:
    if column in ("seeds", "rounds"):
        return 0
    if column == "p" or column.startswith("p, "):
        return 3
    return digits.get(column.removesuffix(f", {PAPER}"), 1)


def _cell(cell: Cell, places: int) -> str:
    value = cell.mean if isinstance(cell, Spread) else cell
    if value is None or math.isnan(value):
        return NONE_SHOWN
    spread = f" ± {cell.spread:.{places}f}" if isinstance(cell, Spread) and cell.num > 1 else ""
    return f"{value:z.{places}f}{spread}"


# ---------------------------------------------------------------- pictures

LINE, LEFT, RIGHT, TOP, WIDTH = 30, 270, 60, 34, 860


def _forest(result: Result) -> str:
    """Draw the mean of each row with its interval, and what the paper printed on its own scale below."""
    ours = result.intervals
    printed = {label: row[result.tested] for label, row in result.paper.items() if result.tested in row}
    known = [value for each in ours.values() for value in each if math.isfinite(value)]
    panels = [("measured here", known, ours)]
    if len(printed) > 1 and result.benchmark:
        flat = {label: (value, math.nan, math.nan) for label, value in printed.items()}
        panels.append((f"printed in the paper, {result.benchmark}", list(printed.values()), flat))
    drawn, top = [], 0
    for number, (title, values, rows) in enumerate(panels):
        drawn.append(_panel(title, values, rows, top, "var(--red)" if number else "var(--blue)"))
        top += TOP + LINE * len(rows) + 46
    described = "; ".join(
        f"{label}: {value:.1f}" + (f" ({low:.1f} to {high:.1f})" if math.isfinite(low) else "")
        for label, (value, low, high) in ours.items()
    )
    stars = [
        f"{each.row} against {each.other}: {mark(each.p_holm)}" for each in result.differences if mark(each.p_holm)
    ]
    over = "test videos" if result.one_seed else "seeds and test videos"
    caption = f"Dots are means, lines 95 % intervals over {over}." + (
        f" Significant: {'; '.join(stars)}." if stars else ""
    )
    return (
        f'<figure><svg role="img" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">'
        f"<title>{_text(result.tested)} of each row</title><desc>{_text(described)}</desc>{''.join(drawn)}</svg>"
        f"<figcaption>{_text(caption)}</figcaption></figure>"
    )


def _panel(
    title: str, values: Sequence[float], rows: Mapping[str, tuple[float, float, float]], top: int, colour: str
) -> str:
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1.0
    low, high = low - margin, high + margin

    def x(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    bottom = top + TOP + LINE * len(rows)
    parts = [f'<text x="{LEFT}" y="{top + 20}" font-weight="600">{_text(title)}</text>']
    for value in _ticks(low, high):
        parts.append(
            f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{top + TOP - 6}" y2="{bottom}" stroke="var(--pale)"/>'
            f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>'
        )
    for number, (label, (value, start, end)) in enumerate(rows.items()):
        y = top + TOP + LINE * number + LINE / 2
        parts.append(f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{_text(_short(label))}</text>')
        if math.isfinite(start) and math.isfinite(end):
            parts.append(
                f'<line x1="{x(start):.1f}" x2="{x(end):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
            )
        if math.isfinite(value):
            parts.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="5" fill="{colour}"/>')
    return "".join(parts)


def _short(label: str, most: int = 38) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers between two values."""
    step = 10.0 ** math.floor(math.log10((high - low) / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) <= 6)
    return [round(number * step, 10) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _picture(path: Path, text: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{_text(text)}"><figcaption>{_text(text)}</figcaption>'
        f"</figure>"
    )
