"""The page of a diagnosis: one HTML file with inline plots. It loads nothing and has no scripts.

Every plot has a text alternative, and its numbers stand in a table next to it. Colours are those of Okabe and Ito.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from midreel.experiments.diagnose import LISTED, Diagnosis
from midreel.io.files import write_durably, write_errors

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #595959; --paper: #fff; --rule: #ccc;
  --intra: #0072b2; --total: #b34a00; --bar: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --soft: #b5b5b5; --paper: #191919; --rule: #555;
  --intra: #56b4e9; --total: #e69f00; --bar: #56b4e9; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; }
th, td { text-align: right; padding: .25rem .5rem; border-bottom: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
caption { text-align: left; color: var(--soft); }
p.note { color: var(--soft); } svg { width: 100%; height: auto; display: block; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); } svg .soft { fill: var(--soft); }
.intra { fill: var(--intra); } .total { fill: var(--total); } .bar { fill: var(--bar); }
.axis { stroke: var(--rule); } .scroll { overflow-x: auto; }
"""


def write(found: Diagnosis, path: Path) -> None:
    """Write the page of a diagnosis. Raise Unwritable if the disk is full, or the folder is missing."""
    with write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, page(found))


def page(found: Diagnosis) -> str:
    """Return the page of a diagnosis."""
    sections = [_collapse(found), _text(found), _hubs(found), _duplicates(found), _drift(found)]
    title = f"Diagnosis of {found.name}"
    sampled = "" if found.num_measured == found.num_videos else f" {found.num_measured:,} of them were measured."
    body = "\n".join(
        [
            f"<h1>{_safe(title)}</h1>",
            f"<p>{found.num_videos:,} videos, model {_safe(found.model)}.{sampled}</p>",
            *sections,
        ]
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_safe(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"</body>\n</html>\n"
    )


# ---------------------------------------------------------------- sections


def _collapse(found: Diagnosis) -> str:
    rows = [(name, of.intra, of.total, of.diff_norm) for name, of in found.video.items()]
    plot = _pairs([(name, intra, total) for name, intra, total, _ in rows])
    return _section(
        "Collapse of the videos",
        "Mean cosine of tokens of the same video (Intra) and of all tokens (Total). Diff. Norm is their difference "
        "over their sum: the higher, the more the parts of a video look alike to the model. The backbone shows how "
        "alike they are before the model.",
        plot,
        _table("Similarity of tokens", ("Branch", "Intra Sim", "Total Sim", "Diff. Norm"), rows),
    )


def _text(found: Diagnosis) -> str:
    rows = [
        (name, of.similarity.intra, of.similarity.total, of.similarity.diff_norm, of.spearman)
        for name, of in found.text.items()
    ]
    return _section(
        "Collapse of the sentences",
        f"Measured on {found.sentences}. Spearman is the rank correlation of the cosines with those of the backbone: 1 "
        "keeps its text space. A dash stands for sentences whose videos are not known.",
        _table("Similarity of sentences", ("Branch", "Intra Sim", "Total Sim", "Diff. Norm", "Spearman"), rows),
    )


def _hubs(found: Diagnosis) -> str:
    if found.hubness is None:
        return _section("Hubs", "There are no videos.")
    hubness = found.hubness
    hubs, rare = found.listed(hubness.hubs()[:LISTED]), found.listed(hubness.rare()[:LISTED])
    parts = [
        _histogram(hubness.counts),
        f"<p>Each of {hubness.num_sentences:,} sentences found {hubness.top:,} videos, so a video is found "
        f"{hubness.expected:.1f} times on average. Skewness {hubness.skewness:.2f}. {hubness.never:.1%} of the videos "
        f"were never found; hits at random would leave {hubness.never_by_chance:.1%}.</p>",
    ]
    if hubs:
        parts.append(_table("Found at least 5 times as often as the mean", ("Video", "Sentences"), hubs))
    if rare:
        parts.append(_table("Never found (the first of them)", ("Video", "Sentences"), rare))
    return _section(
        "Hubs", "Videos that are found for many sentences, whatever they say, and videos that are hardly found.", *parts
    )


def _duplicates(found: Diagnosis) -> str:
    number = len(found.duplicates)
    text = f"{number:,} pair{'s' * (number != 1)} of videos of nearly the same length look alike from start to end."
    rows = [(f"{a} and {b}", cosine) for a, b, cosine in found.duplicates[:LISTED]]
    return _section(
        "Near-duplicates", text, *([_table("Most similar pairs", ("Videos", "Similarity"), rows)] * bool(rows))
    )


def _drift(found: Diagnosis) -> str:
    explained = "Distance from the videos of the training, in standard deviations of the training videos."
    if found.drift is None:
        return _section("Drift", f"{explained} Not known: {found.no_drift}")
    rows = [("distance", found.drift.distance), ("by chance", found.drift.by_chance), ("spread", found.drift.spread)]
    sentence = found.drift_line.removeprefix("drift: ").split(":")[0]
    return _section("Drift", f"{explained} {sentence[0].upper()}{sentence[1:]}.", _table("Drift", ("", "Value"), rows))


# ---------------------------------------------------------------- parts


def _section(title: str, text: str, *parts: str) -> str:
    return "\n".join([f"<section>\n<h2>{_safe(title)}</h2>\n<p class='note'>{_safe(text)}</p>", *parts, "</section>"])


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    head = "".join(f'<th scope="col">{_safe(name)}</th>' for name in heads)
    lines = ["".join(f"<td>{_safe(_cell(cell))}</td>" for cell in row) for row in rows]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll"><table>\n<caption>{_safe(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _cell(value: str | float) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if np.isnan(value) else f"{value:.3f}"


def _pairs(rows: Sequence[tuple[str, float, float]]) -> str:
    """Return horizontal bars: two for each name, from 0 to 1."""
    height, left, wide = 46, 130, 420
    parts = []
    for number, (name, *values) in enumerate(rows):
        top = 30 + number * height
        parts.append(f'<text x="{left - 10}" y="{top + 19}" text-anchor="end">{_safe(name)}</text>')
        for place, (kind, value) in enumerate(zip(("intra", "total"), values, strict=True)):
            shown = 0.0 if np.isnan(value) else min(max(value, 0.0), 1.0)
            y = top + 16 * place
            parts.append(f'<rect class="{kind}" x="{left}" y="{y}" width="{shown * wide:.1f}" height="14"/>')
            parts.append(f'<text class="soft" x="{left + shown * wide + 6:.1f}" y="{y + 12}">{_cell(value)}</text>')
    legend = (
        f'<rect class="intra" x="{left}" y="4" width="12" height="12"/><text x="{left + 18}" y="15">Intra Sim</text>'
        f'<rect class="total" x="{left + 110}" y="4" width="12" height="12"/>'
        f'<text x="{left + 128}" y="15">Total Sim</text>'
    )
    bottom = 30 + len(rows) * height
    axis = f'<line class="axis" x1="{left}" y1="24" x2="{left}" y2="{bottom}"/>'
    return _svg("Intra Sim and Total Sim of each branch", 640, bottom + 4, legend + axis + "".join(parts))


def _histogram(counts: np.ndarray) -> str:
    """Return a histogram of how often videos are found."""
    most = int(counts.max())
    edges = np.unique(np.linspace(0, most + 1, min(most + 1, 24) + 1).round().astype(int)).tolist()
    numbers = np.histogram(counts, bins=edges)[0].tolist()
    left, wide, high = 50, 560, 170
    each, tallest = wide / len(numbers), max(1, *numbers)
    bars = "".join(
        f'<rect class="bar" x="{left + place * each + 1:.1f}" y="{20 + high * (1 - number / tallest):.1f}" '
        f'width="{max(1.0, each - 2):.1f}" height="{high * number / tallest:.1f}">'
        f"<title>{_bin(low, up)}: {number:,} videos</title></rect>"
        for place, (number, low, up) in enumerate(zip(numbers, edges[:-1], edges[1:], strict=True))
    )
    labels = "".join(
        f'<text class="soft" x="{left + place * each + each / 2:.1f}" y="{high + 38}" text-anchor="middle">{low}</text>'
        for place, low in enumerate(edges[:-1])
        if place % max(1, len(numbers) // 8) == 0
    )
    frame = (
        f'<line class="axis" x1="{left}" y1="{20 + high}" x2="{left + wide}" y2="{20 + high}"/>'
        f'<text class="soft" x="{left - 8}" y="28" text-anchor="end">{tallest:,}</text>'
        f'<text class="soft" x="{left - 8}" y="{20 + high}" text-anchor="end">0</text>'
        f'<text class="soft" x="{left + wide / 2}" y="{high + 58}" text-anchor="middle">'
        f"sentences that find a video</text>"
        f'<text class="soft" x="{left}" y="12">videos</text>'
    )
    label = f"How often videos are found: from {int(counts.min())} to {most} sentences, median {np.median(counts):g}"
    return _svg(label, 640, high + 66, bars + frame + labels)


def _bin(low: int, up: int) -> str:
    return f"{low} sentences" if up - low == 1 else f"{low} to {up - 1} sentences"


def _svg(label: str, width: int, height: int, content: str) -> str:
    return f'<svg role="img" aria-label="{_safe(label)}" viewBox="0 0 {width} {height}">{content}</svg>'


def _safe(text: str) -> str:
    """Escape text for HTML. Bytes of names that are not UTF-8 become replacement characters."""
    return escape(text.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
