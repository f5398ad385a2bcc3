"""Compute the size of a large library from measured figures, and write the tables of docs/scale.md.

Run as: python -m tools.sizing [--write]

The figures are read from docs/results, so the tables follow the measurements. Everything is extrapolated linearly: no
library of these sizes was built.
"""

import argparse
import re
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from midreel.library.windows import Windowing

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "scale.md"
START, END = "<!-- sizing -->", "<!-- end of sizing -->"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Figures of docs/results. Times are seconds, sizes bytes. All were measured on two cores.

    Attributes:
        embedded_disk: The embedded index on disk, for each window.
        embedded_memory: Its memory while it is searched, for each window.
        embedded_search: The time of a search, for each window.
        postgres_disk: PostgreSQL on disk, for each window.
        postgres_scan: The time of an exact scan, for each window, on both cores.
        postgres_load: Windows that one writer adds in a second.
        qdrant_disk: The core of Qdrant on disk, for each window.
        decoding: Frames that one core decodes in a second, 640x360.
        encoding: Frames that a CLIP ViT-B/32 encodes in a second, on both cores.
    """

    embedded_disk: float
    embedded_memory: float
    embedded_search: float
    postgres_disk: float
    postgres_scan: float
    postgres_load: float
    qdrant_disk: float
    decoding: float
    encoding: float

    @classmethod
    def read(cls, results: Path = DOCS / "results") -> "Measured":
        """Read the figures from the published results."""
        search, engines, extraction = (
            (results / f"{name}.md").read_text(encoding="utf-8")
            for name in ("search-speed", "engines", "extraction-speed")
        )
        large = engines[engines.index("## 20,000 windows") :]
        return cls(
            embedded_disk=_number(r"100,000 videos, disk per video \| ([\d.,]+) KB", search) * 1e3,
            embedded_memory=_number(r"100,000 videos, resident memory[^|]*\| ([\d.,]+) MB", search) * 1e6 / 100_000,
            embedded_search=_number(r"100,000 videos / 5,000 videos \|[^(]*\(([\d.,]+) ms", search) / 1e3 / 100_000,
            postgres_disk=_last_cell("PostgreSQL, exact scan", large) * 1e3,
            postgres_scan=_number(r"20,000 windows, PostgreSQL, exact scan / embedded \|[^(]*\(([\d.,]+) ms", engines)
            / 1e3
            / 20_000,
            postgres_load=_number(
                r"20,000 windows, PostgreSQL, exact scan, videos added per second \| ([\d.,]+)", engines
            ),
            qdrant_disk=_last_cell("Qdrant core", engines) * 1e3,
            decoding=_number(r"640x360: decoding alone, 2 workers \| ([\d.,]+) frames/s", extraction) / 2,
            encoding=_number(r"640x360: encoding alone \| ([\d.,]+) frames/s", extraction),
        )


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An archive to size.

    Attributes:
        videos: The number of videos.
        minutes: The length of each.
        rate: The frames per second that are encoded.
        width: The width of the features of a frame.
    """

    videos: int
    minutes: float
    rate: float = 2.0
    width: int = 512

    @property
    def frames(self) -> int:
        """The number of frames to encode."""
        return self.videos * self.frames_per_video

    @property
    def frames_per_video(self) -> int:
        """The number of frames to encode of each video."""
        return round(self.minutes * 60 * self.rate)

    @property
    def windows(self) -> int:
        """The number of windows of a model with 128 frames."""
        return self.videos * Windowing.of(128).number(self.frames_per_video)


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Machines to size for. None of these figures is measured.

    Attributes:
        memory: The memory of a node, in bytes.
        cores: The cores of a node.
        gpu_encoding: Frames that a GPU encodes in a second. An assumption: measure yours with `midreel extract`.
        scan_seconds: How long a scan may take.
    """

    memory: float = 256e9
    cores: int = 32
    gpu_encoding: float = 1000.0
    scan_seconds: float = 1.0


def rows(archive: Archive, measured: Measured, hardware: Hardware) -> dict[str, str]:
    """Return the sizes of an archive, as text by name.

    Args:
        archive: The archive.
        measured: The measured figures.
        hardware: The machines.
    """
    windows, hour = archive.windows, 3600
    scan_core_seconds = windows * measured.postgres_scan * 2  # measured on two cores
    shards = max(1, ceil(scan_core_seconds / hardware.scan_seconds / hardware.cores))
    return {
        "hours of video": _count(archive.videos * archive.minutes / 60),
        "windows": _count(windows),
        "features on disk, float16": _bytes(archive.frames * archive.width * 2),
        "embedded index: disk": _bytes(windows * measured.embedded_disk),
        "embedded index: memory": _bytes(windows * measured.embedded_memory),
        f"embedded index: machines of {_bytes(hardware.memory)}": _count(
            max(1, ceil(windows * measured.embedded_memory / hardware.memory))
        ),
        "embedded index: search on two cores": _seconds(windows * measured.embedded_search),
        "PostgreSQL: disk": _bytes(windows * measured.postgres_disk),
        "PostgreSQL: exact scan, core seconds a query": _count(scan_core_seconds),
        f"PostgreSQL: shards of {hardware.cores} cores, {hardware.scan_seconds:g} s a scan": _count(shards),
        "PostgreSQL: load, one writer for each shard": _seconds(windows / shards / measured.postgres_load),
        "Qdrant: disk, its core before optimisation": _bytes(windows * measured.qdrant_disk),
        "decoding, core hours": _count(archive.frames / measured.decoding / hour),
        "encoding on CPUs, core hours": _count(archive.frames / measured.encoding * 2 / hour),
        f"encoding on GPUs of {hardware.gpu_encoding:,.0f} frames/s, hours": _count(
            archive.frames / hardware.gpu_encoding / hour
        ),
        "cores that decode for one such GPU": _count(ceil(hardware.gpu_encoding / measured.decoding)),
    }


def table(archives: dict[str, Archive], measured: Measured, hardware: Hardware) -> str:
    """Return the sizes of several archives as a Markdown table.

    Args:
        archives: The archives by title.
        measured: The measured figures.
        hardware: The machines.
    """
    columns = [rows(archive, measured, hardware) for archive in archives.values()]
    lines = [f"| | {' | '.join(archives)} |", f"|---|{'---|' * len(archives)}"]
    lines += [f"| {name} | {' | '.join(column[name] for column in columns)} |" for name in columns[0]]
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the text of docs/scale.md with new tables."""
    archives = {
        f"{count} videos of {minutes} min": Archive(videos=videos, minutes=minutes)
        for count, videos in (("1 M", 10**6), ("100 M", 10**8))
        for minutes in (1, 10)
    }
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{table(archives, Measured.read(), Hardware())}\n\n{END}{after}"


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"docs/results has no figure that matches {pattern!r}. Adapt tools/sizing.py.")
    return float(found[1].replace(",", ""))


def _last_cell(engine: str, text: str) -> float:
    """Return the last cell of the first row of a table that begins with an engine and has one."""
    return _number(rf"\| {re.escape(engine)} \|[^\n]*\| ([\d.,]+) \|", text)


def _count(number: float) -> str:
    """Return a number in three digits.

    >>> _count(1234567), _count(0.5), _count(2.6e9)
    ('1.23 M', '0.5', '2,600 M')
    """
    if number >= 1e6:
        return f"{number / 1e6:,.3g} M" if number < 1e9 else f"{number / 1e6:,.0f} M"
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _bytes(number: float) -> str:
    """Return a number of bytes in three digits.

    >>> _bytes(256e9), _bytes(1.84e9), _bytes(6.1e15)
    ('256 GB', '1.84 GB', '6.1 PB')
    """
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{_digits(number / size)} {unit}"
    return f"{number:.0f} B"


def _seconds(number: float) -> str:
    """Return a time in two digits.

    >>> _seconds(0.2), _seconds(264), _seconds(7200)
    ('0.2 s', '264 s', '2 h')
    """
    return f"{_digits(number)} s" if number < 3600 else f"{_digits(number / 3600)} h"


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/scale.md")
    wanted = parser.parse_args()
    text = page(PAGE.read_text(encoding="utf-8"))
    if wanted.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
