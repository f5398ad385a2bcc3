"""Shared parts of the benchmarks: timing, memory, and tables of results."""

import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from midreel.experiments import costs


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table of results.

    Attributes:
        what: What was measured.
        measured: The result, with its unit.
        target: The bound that it should meet, or "reported" if there is none.
        met: Whether it meets the bound, or None if there is none.
    """

    what: str
    measured: str
    target: str = "reported"
    met: bool | None = None


def in_turns(candidates: Sequence[Callable[[], object]], rounds: int, warm_up: int = 1) -> list[float]:
    """Time candidates that take turns, so that load on the machine affects all of them.

    Args:
        candidates: The functions to call.
        rounds: The number of timed calls of each candidate.
        warm_up: The number of calls before.

    Returns:
        The median of the seconds of each candidate.
    """
    return [statistics.median(seen) for seen in costs.in_turns(candidates, rounds, warm_up)]


def at_most(what: str, bound: float, above: float, below: float, unit: str = "s") -> Row:
    """Return a row for the ratio `above / below`, which should be at most `bound`."""
    return _ratio(what, f"≤ {bound:g}", above / below <= bound, above, below, unit)


def at_least(what: str, bound: float, above: float, below: float, unit: str = "s") -> Row:
    """Return a row for the ratio `above / below`, which should be at least `bound`."""
    return _ratio(what, f"≥ {bound:g}", above / below >= bound, above, below, unit)


def reported(what: str, above: float, below: float, unit: str = "s") -> Row:
    """Return a row for the ratio `above / below`, without a bound."""
    return _ratio(what, "reported", None, above, below, unit)


def _ratio(what: str, target: str, met: bool | None, above: float, below: float, unit: str) -> Row:
    measured = f"{above / below:.3g} ({three_digits(above)} {unit} / {three_digits(below)} {unit})"
    return Row(what=what, measured=measured, target=target, met=met)


def three_digits(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def resident_megabytes(field: str) -> float:
    """Return the resident memory of this process: VmRSS is the present, VmHWM the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def machine() -> str:
    """Return a line about the processor and the versions of Python and torch."""
    return (
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}."
    )


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table."""
    verdict = {True: "yes", False: "**no**", None: ""}
    lines = [f"| {row.what} | {row.measured} | {row.target} | {verdict[row.met]} |" for row in rows]
    return ["| what | measured | target | met |", "|---|---|---|---|", *lines]


def publish(text: str, path: Path | None) -> None:
    """Print a report, and also write it to a file if there is a path."""
    print(text)
    if path is not None:
        path.write_text(text, encoding="utf-8")
