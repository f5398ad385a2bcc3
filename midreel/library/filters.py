"""Filters of a search: by folder, date, length and tag; and the times that users read and write."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from midreel.errors import BadSetting, UnknownName, expect_text
from midreel.library.scan import absolute


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The videos to search. A video must meet all conditions; the defaults allow every video.

    If a video has several files, one of them must meet the conditions on folders and dates together.

    Attributes:
        folders: The video has a file in one of these folders.
        tags: The video has all these tags.
        after: The file was modified at this time or later, in seconds since 1970.
        before: The file was modified before this time.
        longer: The video lasts at least this many seconds.
        shorter: The video lasts at most this many seconds.
        videos: The video has one of these ids. None allows every id.

    Raises:
        BadSetting: A tag is not UTF-8.
    """

    folders: tuple[Path, ...] = ()
    tags: tuple[str, ...] = ()
    after: float | None = None
    before: float | None = None
    longer: float | None = None
    shorter: float | None = None
    videos: tuple[str, ...] | None = None

    @classmethod
    def parse(cls, conditions: Iterable[str]) -> "Filter":
        """Return the filter that some conditions describe.

        Args:
            conditions: Texts such as "folder=holidays", "after=2024-05", "shorter=10:00", "tag=beach".

        Raises:
            UnknownName: There is no filter of this name.
            BadSetting: A value is missing, or is not a date or a time.

        >>> Filter.parse(["tag=beach", "shorter=1:30"])
        Filter(folders=(), tags=('beach',), after=None, before=None, longer=None, shorter=90.0, videos=None)
        """
        found = cls()
        for condition in conditions:
            name, equals, value = condition.partition("=")
            if name not in _READERS:
                raise UnknownName.among("filter", name, (f"{known}=…" for known in _READERS))
            if not (equals and value):
                raise BadSetting(f"the filter is {condition!r}, expected {name}=VALUE. See midreel search --help.")
            found = _READERS[name](found, value)
        return found

    def __post_init__(self) -> None:
        for tag in self.tags:
            expect_text("the tag", tag)

    def __bool__(self) -> bool:
        return self != Filter()


def read_seconds(text: str) -> float:
    """Return the seconds of a time. Raise BadSetting unless it is seconds, m:ss or h:mm:ss.

    >>> [read_seconds(text) for text in ("90", "1:30", "1:00:02.5")]
    [90.0, 90.0, 3602.5]
    """
    if not re.fullmatch(r"([0-9]{1,6}:){0,2}[0-9]{1,9}(\.[0-9]*)?", text):
        raise BadSetting(f"the time is {text!r}, expected seconds, m:ss or h:mm:ss, such as 1:30")
    return sum(float(part) * 60**power for power, part in enumerate(reversed(text.split(":"))))


def span(start: float | int, end: float | int, *, digits: int = 0) -> str:
    """Return a span of time as text. It is rounded outward: the start down, the end up.

    Args:
        start: The start in seconds.
        end: The end in seconds.
        digits: The number of decimals, up to 3.

    >>> span(11.2, 17.4), span(3599.96, 3725), span(11.26, 11.31, digits=1)
    ('0:11–0:18', '59:59–1:02:05', '0:11.2–0:11.4')
    """
    first, last = outward(start, end, digits=digits)
    return f"{_clock(first, digits)}–{_clock(last, digits)}"  # noqa: RUF001


def outward(start: float | int, end: float | int, *, digits: int) -> tuple[float, float]:
    """Return a start rounded down and an end rounded up.

    Both are first rounded to the nearest thousandth: noise such as 12.000004 must not become 13.

    Args:
        start: The start in seconds.
        end: The end in seconds.
        digits: The number of decimals, up to 3.

    >>> outward(11.26, 12.000004, digits=1)
    (11.2, 12.0)
    """
    step = 10 ** (3 - digits)
    return round(start * 1000) // step * step / 1000, -(round(end * 1000) // -step) * step / 1000


def _clock(seconds: float, digits: int) -> str:
    minutes, rest = divmod(round(seconds, digits), 60)
    hours, minutes = divmod(int(minutes), 60)
    second = f"{rest:0{digits + 3 if digits else 2}.{digits}f}"
    return f"{hours}:{minutes:02}:{second}" if hours else f"{minutes}:{second}"


# The patterns of dates, and the text that completes each to an ISO date.
_DATE_PATTERNS = {
    r"[0-9]{4}": "-01-01",
    r"[0-9]{4}-[0-9][0-9]": "-01",
    r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]": "",
    r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]": "",
}


def _date(text: str) -> float:
    """Return the start of a year, month, day or minute in local time, or a number of days (d) or weeks (w) ago."""
    try:
        if match := re.fullmatch(r"([0-9]{1,5})([dw])", text):
            return (datetime.now() - timedelta(days=int(match[1]) * (7 if match[2] == "w" else 1))).timestamp()
        for pattern, rest in _DATE_PATTERNS.items():
            if re.fullmatch(pattern, text):
                return datetime.fromisoformat(text + rest).timestamp()
    except (ValueError, OverflowError):
        pass  # such as 2024-02-31
    raise BadSetting(f"the date is {text!r}, expected one such as 2024, 2024-05, 2024-05-31, or 7d for a week ago")


_READERS: dict[str, Callable[[Filter, str], Filter]] = {
    "folder": lambda found, text: replace(found, folders=(*found.folders, absolute(Path(text)))),
    "tag": lambda found, text: replace(found, tags=(*found.tags, text)),
    "after": lambda found, text: replace(found, after=_date(text)),
    "before": lambda found, text: replace(found, before=_date(text)),
    "longer": lambda found, text: replace(found, longer=read_seconds(text)),
    "shorter": lambda found, text: replace(found, shorter=read_seconds(text)),
}
