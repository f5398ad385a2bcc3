"""Plots for reports. Only this module imports matplotlib. It does not use pyplot, which has global state.

Figures are 9 inches wide at 200 dots per inch, so that they are sharp and readable at 900 pixels. The colours are those
of Okabe and Ito, which colour-blind readers can distinguish. Lines also differ in their dashes.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.evaluation.tables import Spread
from midreel.ops.calibration import Reliability
from midreel.ops.checks import expect_axes
from midreel.types import Moment

WIDTH = 9.0
DOTS_PER_INCH = 200
SMALL, NORMAL, LARGE = 10.5, 11.5, 13.0  # points

BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"
INK, GREY, PALE = "#222222", "#666666", "#DDDDDD"
LINES = (
    (BLUE, "-"),
    (VERMILION, "--"),
    (GREEN, "-."),
    (PURPLE, "-"),
    (ORANGE, "--"),
    (SKY, "-."),
    (INK, ":"),
    (GREY, "-"),
)


def learning_curves(
    histories: Mapping[str, Sequence[Mapping[str, float | int]]],
    path: Path | str,
    *,
    metrics: Sequence[str] = ("loss", "SumR"),
    select: str = "SumR",
) -> None:
    """Draw learning curves: a panel for each figure, a line for each history.

    Args:
        histories: The epochs of each run, by label. An epoch maps names to values and may lack some. Its number is its
            value "epoch", or else its position, counted from 1.
        path: The file to write.
        metrics: The names of the metrics to draw.
        select: The value whose maximum is marked with a dot.

    Raises:
        BadSetting: No epoch has any of the metrics.
    """
    shown = [name for name in metrics if any(name in epoch for history in histories.values() for epoch in history)]
    if not shown:
        raise BadSetting(f"metrics are {list(metrics)}, expected metrics of {list(histories)}. Check their names.")
    figure, panels = _panels(1, len(shown), height=3.8)
    for axes, name in zip(panels, shown, strict=True):
        _style(axes, x="epoch (dot: the best)" if name == select else "epoch", y=name)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        for (row, history), (colour, dashes) in zip(histories.items(), cycle(LINES), strict=False):
            points = {epoch.get("epoch", place): epoch[name] for place, epoch in enumerate(history, 1) if name in epoch}
            marker = "." if len(points) == 1 else ""  # a line of one point is invisible
            x, y = list(points), list(points.values())
            axes.plot(x, y, color=colour, linestyle=dashes, linewidth=1.8, marker=marker, label=row)
            if name == select and points:
                best = max(points, key=points.__getitem__)
                axes.plot(best, points[best], "o", color=colour, markersize=7, markeredgecolor="white", zorder=3)
    _legend(figure, panels, "outside upper left")
    _save(figure, path)


def similarity_histograms(
    within: Mapping[str, Float[Tensor, " _"]],
    across: Mapping[str, Float[Tensor, " _"]],
    path: Path | str,
    *,
    things: str = "queries",
) -> None:
    """Draw two histograms for each method: the cosines of pairs within a video, and across videos.

    A gap between the two shows collapse. Each histogram has an area of 1, because there are far more pairs across
    videos.

    Args:
        within: The cosines within a video, by method.
        across: The cosines across videos, by method.
        path: The file to write.
        things: The name of the compared vectors, in the plural.

    Raises:
        BadBatch: `within` and `across` have different methods, or a sample is empty.
    """
    empty = [method for samples in (within, across) for method in samples if not len(samples[method])]
    if set(within) != set(across) or not within:
        raise BadBatch(
            f"within has the methods {sorted(within)} and across {sorted(across)}, expected the same methods. "
            f"Pass both samples of each."
        )
    if empty:
        raise BadBatch(
            f"the sample of {empty[0]!r} is empty, expected cosines of both kinds. Pass more queries or videos."
        )
    figure, panels = _panels(len(within), 1, height=0.9 + 1.75 * len(within))
    kinds = (("pairs of different videos", across, BLUE), ("pairs of one video", within, VERMILION))
    everything = np.concatenate([_numbers(sample) for _, samples, _ in kinds for sample in samples.values()])
    edges = np.histogram_bin_edges(everything, bins=60).tolist()
    for axes, method in zip(panels, within, strict=True):
        _style(axes, y="density")
        axes.set_yticks([])
        axes.set_title(method, loc="left", fontsize=NORMAL, color=INK, parse_math=False)
        lowest = min(float(_numbers(samples[method]).mean()) for _, samples, _ in kinds)
        for kind, samples, colour in kinds:
            values = _numbers(samples[method])
            axes.hist(
                values,
                edges,
                density=True,
                histtype="stepfilled",
                facecolor=f"{colour}55",
                edgecolor=colour,
                linewidth=1.4,
                label=kind,
            )
            mean = float(values.mean())
            _mark_mean(axes, mean, colour, label_on_the_left=mean == lowest)
        axes.margins(y=0.2)
    panels[-1].set_xlabel(f"cosine of two {things}; dashed: the mean", fontsize=NORMAL, color=INK)
    _legend(figure, panels, "outside upper left")
    _save(figure, path)


def stated_and_observed(lines: Mapping[str, Mapping[float, float]], path: Path | str, *, of: str) -> None:
    """Draw observed against stated shares, with the diagonal on which both are equal.

    Args:
        lines: The observed share for each stated share, from 0 to 1, by label.
        path: The file to write.
        of: What the shares are of, for the labels of the axes.

    Raises:
        BadSetting: There are no lines.
    """
    if not lines:
        raise BadSetting("lines is empty, expected at least one. Pass the observed shares.")
    figure, (axes,) = _panels(1, 1, height=5.6)
    _style(axes, x=f"stated share of {of}", y=f"observed share of {of}")
    shown = [share for line in lines.values() for pair in line.items() for share in pair]
    low, high = min(shown) - 0.03, max(shown) + 0.03
    axes.plot([low, high], [low, high], color=GREY, linewidth=1, label="equal")
    for (label, line), (colour, dashes) in zip(lines.items(), cycle(LINES), strict=False):
        stated = sorted(line)
        axes.plot(stated, [line[share] for share in stated], color=colour, linestyle=dashes, marker="o", label=label)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    _legend(figure, [axes], "outside upper left")
    _save(figure, path)


def relevance_curve(
    times: Float[Tensor, " T"],
    frame_scores: Float[Tensor, " T"],
    clip_spans: Float[Tensor, "S 2"],
    clip_scores: Float[Tensor, " S"],
    moments: Sequence[Moment],
    title: str,
    path: Path | str,
    *,
    predicted: Moment | None = None,
) -> None:
    """Draw the similarity of a query with each frame (a line) and each clip (a bar) of a video.

    Args:
        times: The time of each frame, in seconds.
        frame_scores: The similarity with each frame.
        clip_spans: The start and end of each clip, in seconds.
        clip_scores: The similarity with each clip.
        moments: The annotated moments, shown as shaded areas.
        title: The title, usually the query.
        path: The file to write.
        predicted: The predicted moment, shown as a bar at the bottom.
    """
    expect_axes(times=(times, "T"), frame_scores=(frame_scores, "T"))
    expect_axes(clip_spans=(clip_spans, "S 2"), clip_scores=(clip_scores, "S"))
    figure, (axes,) = _panels(1, 1, height=4.0)
    _style(axes, x="seconds", y="cosine with the query")
    for moment in moments:
        axes.axvspan(moment.start, moment.end, color=ORANGE, alpha=0.25, linewidth=0, label="annotated moment")
    spans, instants = _numbers(clip_spans), _numbers(times)
    axes.hlines(_numbers(clip_scores), spans[:, 0], spans[:, 1], colors=VERMILION, linewidth=3.2, label="clips")
    axes.plot(instants, _numbers(frame_scores), color=BLUE, linewidth=1.6, label="frames")
    if predicted is not None:
        # At the bottom of the axes, because its height has no meaning.
        bottom = axes.get_xaxis_transform()
        ends = (predicted.start, predicted.end)
        axes.hlines(0.03, *ends, colors=INK, linewidth=5, transform=bottom, label="predicted moment")
        axes.margins(y=0.12)
    axes.set_xlim(0, float(np.concatenate((spans.flatten(), instants)).max()))
    figure.suptitle("\n".join(textwrap.wrap(title, 90)), x=0.01, ha="left", fontsize=LARGE, color=INK, parse_math=False)
    _legend(figure, [axes], "outside lower left")
    _save(figure, path)


def by_size(panels: Mapping[str, Mapping[str, Mapping[int, Spread]]], path: Path | str, *, x: str, y: str) -> None:
    """Draw means with their spreads over a size, on a logarithmic axis: a panel for each title, a line for each label.

    Args:
        panels: The mean and spread of each size, by label, by the title of the panel.
        path: The file to write.
        x: The label of the sizes.
        y: The label of the means.
    """
    figure, axes_of_panels = _panels(1, len(panels), height=4.6)
    for axes, (title, rows) in zip(axes_of_panels, panels.items(), strict=True):
        _style(axes, x=x, y=y)
        axes.set_title(title, loc="left", fontsize=NORMAL, color=INK, parse_math=False)
        axes.set_xscale("log")
        sizes = sorted({size for row in rows.values() for size in row})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        for (label, row), (colour, dashes) in zip(rows.items(), cycle(LINES)):
            means, spreads = ([getattr(row[size], part) for size in row] for part in ("mean", "spread"))
            axes.errorbar(
                list(row), means, spreads, color=colour, linestyle=dashes, linewidth=1.8, capsize=3, label=label
            )
    _legend(figure, axes_of_panels, "outside lower left")
    _save(figure, path)


def reliability_diagram(curves: Mapping[str, Reliability], path: Path | str) -> None:
    """Draw the observed share of matches against the stated probability. On the diagonal, both are equal.

    The area of a dot is the share of the queries in its bin.

    Args:
        curves: The bins of each curve, by label.
        path: The file to write.

    Raises:
        BadSetting: There are no curves.
    """
    if not curves:
        raise BadSetting("curves is empty, expected at least 1. Pass the result of `reliability`.")
    figure, (axes,) = _panels(1, 1, height=5.5)
    _style(axes, x="stated probability of a match", y="observed share of matches")
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.2, linestyle=":", label="stated = observed")
    for (label, bins), (colour, dashes) in zip(curves.items(), cycle(LINES), strict=False):
        filled = bins.weights > 0
        x, y, sizes = bins.stated[filled], bins.observed[filled], bins.weights[filled] / bins.weights.sum()
        axes.plot(x, y, color=colour, linestyle=dashes, linewidth=1.8, label=label)
        axes.scatter(x, y, s=400 * sizes, color=colour, edgecolor="white", zorder=3)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    _legend(figure, [axes], "outside upper left")
    _save(figure, path)


def kept_and_false_alarms(
    curves: Mapping[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]],
    path: Path | str,
    *,
    kept: float,
    false_alarms: float,
) -> None:
    """Draw the share of absent queries that are answered against the share of present queries that are kept.

    Args:
        curves: The kept shares and the false alarms at the same thresholds, by label.
        path: The file to write.
        kept: The share to keep, shown with `false_alarms` as the target.
        false_alarms: The most false alarms.

    Raises:
        BadSetting: There are no curves.
    """
    if not curves:
        raise BadSetting("curves is empty, expected at least 1. Pass kept shares and false alarms.")
    figure, (axes,) = _panels(1, 1, height=4.5)
    _style(axes, x="queries with a match that are kept, %", y="others that are answered, %")
    for (label, (x, y)), (colour, dashes) in zip(curves.items(), cycle(LINES), strict=False):
        axes.plot(100 * x, 100 * y, color=colour, linestyle=dashes, linewidth=1.8, label=label)
    axes.plot([100 * kept, 100], [100 * false_alarms] * 2, color=INK, linewidth=2.4, label="target: below this line")
    axes.set_ylim(bottom=0)
    _legend(figure, [axes], "outside upper left")
    _save(figure, path)


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Points of a scatter plot, in groups.

    Attributes:
        points: The place of each point.
        group_of_point: The group of each point.
        names: A short name beside each point. Empty for none.
        links: Pairs of points to connect by a line.
    """

    points: Float[np.ndarray, "N 2"]
    group_of_point: Sequence[str]
    names: Sequence[str] = ()
    links: Sequence[tuple[int, int]] = ()


def clouds(panels: Mapping[str, Cloud], path: Path | str, *, columns: int = 2) -> None:
    """Draw scatter plots side by side. Groups differ in colour and in the form of their points.

    Args:
        panels: The points of each panel, by its title.
        path: The file to write.
        columns: The number of panels in a row.

    Raises:
        BadSetting: There are no panels.
    """
    if not panels:
        raise BadSetting("panels is empty, expected at least 1. Pass projected vectors.")
    num_rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTH, 0.6 + 3.6 * num_rows), dpi=DOTS_PER_INCH, layout="constrained", facecolor="white")
    drawn = list(figure.subplots(num_rows, columns, squeeze=False).flat)
    for axes in drawn[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, cloud) in zip(drawn, panels.items(), strict=False):
        _style(axes)
        axes.set_title(title, loc="left", fontsize=NORMAL, color=INK, parse_math=False)
        axes.set_xticklabels([])
        axes.set_yticklabels([])
        axes.margins(0.15)
        for a, b in cloud.links:
            axes.plot(*cloud.points[[a, b]].T, color=GREY, linewidth=1.2, linestyle=":", label="the most similar pair")
        groups = list(dict.fromkeys(cloud.group_of_point))
        for group, (colour, _), form in zip(groups, cycle(LINES), cycle("os^D"), strict=False):
            own = cloud.points[[each == group for each in cloud.group_of_point]]
            axes.scatter(*own.T, s=46, color=colour, marker=form, edgecolor="white", label=group, zorder=3)
        for name, (x, y) in zip(cloud.names, cloud.points, strict=False):
            axes.annotate(name, (x, y), xytext=(6, 3), textcoords="offset points", fontsize=SMALL, color=INK)
    _legend(figure, drawn[: len(panels)], "outside upper left")
    _save(figure, path)


def _mark_mean(axes: Axes, mean: float, colour: str, *, label_on_the_left: bool) -> None:
    """Draw a mean as a labelled line. The labels of two means are outside the lines, so that they never overlap."""
    axes.axvline(mean, color=colour, linewidth=1.6, linestyle="--")
    side, shift = ("right", -5) if label_on_the_left else ("left", 5)
    axes.annotate(
        f"{mean:.2f}",
        (mean, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(shift, -1),
        textcoords="offset points",
        ha=side,
        va="top",
        fontsize=SMALL,
        color=colour,
    )


# ---------------------------------------------------------------- shared parts


def _panels(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height), dpi=DOTS_PER_INCH, layout="constrained", facecolor="white")
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=True).flat)


def _style(axes: Axes, x: str = "", y: str = "") -> None:
    """Style these axes only. The global settings of matplotlib belong to the caller's process."""
    axes.set_facecolor("white")
    axes.set_xlabel(x, fontsize=NORMAL, color=INK, parse_math=False)
    axes.set_ylabel(y, fontsize=NORMAL, color=INK, parse_math=False)
    axes.tick_params(labelsize=SMALL, colors=GREY, labelcolor=INK)
    axes.grid(visible=True, color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)


def _legend(figure: Figure, panels: Sequence[Axes], place: Literal["outside upper left", "outside lower left"]) -> None:
    """Draw one legend for all panels, outside them so that it covers no line."""
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = 4 if max(map(len, handles)) <= 20 else 2
    legend = figure.legend(
        list(handles.values()), list(handles), loc=place, ncols=columns, frameon=False, fontsize=NORMAL
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a label may contain a dollar sign


def _numbers(values: Tensor) -> npt.NDArray[np.float64]:
    return values.detach().cpu().double().numpy()


def _save(figure: Figure, path: Path | str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
