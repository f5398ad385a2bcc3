"""What the benchmarks share: how candidates are timed, and how figures stand in a table."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Row:
    what: str
    measured: str
    target: str = "reported"
    met: bool | None = None


def in_turns(candidates: Sequence[Callable[[], object]], rounds: int, warm_up: int = 1) -> list[float]:
    """Seconds of each candidate, the median over rounds in which they take turns."""
    times: list[list[float]] = [[] for _ in candidates]
    for turn in range(warm_up + rounds):
        for run, seen in zip(candidates, times, strict=True):
            start = time.perf_counter()
            run()
            if turn >= warm_up:
                seen.append(time.perf_counter() - start)
    return [statistics.median(seen) for seen in times]


def at_most(what: str, bound: float, above: float, below: float, unit: str = "s") -> Row:
    return _ratio(what, f"≤ {bound:g}", above / below <= bound, above, below, unit)


def at_least(what: str, bound: float, above: float, below: float, unit: str = "s") -> Row:
    return _ratio(what, f"≥ {bound:g}", above / below >= bound, above, below, unit)


def reported(what: str, above: float, below: float, unit: str = "s") -> Row:
    return _ratio(what, "reported", None, above, below, unit)


def _ratio(what: str, target: str, met: bool | None, above: float, below: float, unit: str) -> Row:
    measured = f"{above / below:.3g} ({three_digits(above)} {unit} / {three_digits(below)} {unit})"
    return Row(what=what, measured=measured, target=target, met=met)


def three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def machine() -> str:
    return (
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}."
    )


def table(rows: Sequence[Row]) -> list[str]:
    verdict = {True: "yes", False: "**no**", None: ""}
    lines = [f"| {row.what} | {row.measured} | {row.target} | {verdict[row.met]} |" for row in rows]
    return ["| what | measured | target | met |", "|---|---|---|---|", *lines]
