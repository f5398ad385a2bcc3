"""Which of the videos are searched: by folder, date, length and tag."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from midreel.errors import BadSetting, UnknownName, expect_text
from midreel.library.scan import absolute


@dataclass(frozen=True, kw_only=True)
class Filter:
    """What a video must be: in one of the folders, of all the tags, within the bounds, one of `videos`; what is left
    open is free."""

    folders: tuple[Path, ...] = ()
    tags: tuple[str, ...] = ()
    after: float | None = None  # seconds since 1970, of the file's last modification
    before: float | None = None
    longer: float | None = None  # seconds
    shorter: float | None = None
    videos: tuple[str, ...] | None = None  # ids

    @classmethod
    def parse(cls, conditions: Iterable[str]) -> "Filter":
        """From words such as `folder=holidays`, `after=2024-05`, `shorter=10:00`, `tag=beach`.

        >>> Filter.parse(["tag=beach", "shorter=1:30"])
        Filter(folders=(), tags=('beach',), after=None, before=None, longer=None, shorter=90.0, videos=None)
        """
        found = cls()
        for condition in conditions:
            name, equals, value = condition.partition("=")
            if name not in _READERS:
                raise UnknownName.among("filter", name, (f"{known}=…" for known in _READERS))
            if not (equals and value):
                raise BadSetting(
                    f"the filter {condition!r} says nothing, expected {name}=VALUE; see midreel search --help"
                )
            found = _READERS[name](found, value)
        return found

    def __post_init__(self) -> None:
        for tag in self.tags:
            expect_text("the tag", tag)

    def __bool__(self) -> bool:
        return self != Filter()


def read_seconds(text: str) -> float:
    """
    >>> [read_seconds(text) for text in ("90", "1:30", "1:00:02.5")]
    [90.0, 90.0, 3602.5]
    """
    if not re.fullmatch(r"([0-9]{1,6}:){0,2}[0-9]{1,9}(\.[0-9]*)?", text):
        raise BadSetting(f"{text!r} is no time, expected seconds, m:ss or h:mm:ss, such as 1:30")
    return sum(float(part) * 60**power for power, part in enumerate(reversed(text.split(":"))))


def span(start: float | int, end: float | int, *, digits: int = 0) -> str:
    """From when to when: the start rounded down, the end up, so that all of it lies in between.

    >>> span(11.2, 17.4), span(3599.96, 3725), span(11.26, 11.31, digits=1)
    ('0:11–0:18', '59:59–1:02:05', '0:11.2–0:11.4')
    """
    first, last = outward(start, end, digits=digits)
    return f"{_clock(first, digits)}–{_clock(last, digits)}"  # noqa: RUF001


def outward(start: float | int, end: float | int, *, digits: int) -> tuple[float, float]:
    """Down and up to so many digits; but a few millionths beyond 11 are 11, not 12, so thousandths are the nearest.

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


# What a date may look like, and what completes it.
_FORMS = {
    r"[0-9]{4}": "-01-01",
    r"[0-9]{4}-[0-9][0-9]": "-01",
    r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]": "",
    r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]": "",
}


def _date(text: str) -> float:
    """The beginning of a year, a month, a day or a minute, here; or so long ago."""
    try:
        if match := re.fullmatch(r"([0-9]{1,5})([dw])", text):
            return (datetime.now() - timedelta(days=int(match[1]) * (7 if match[2] == "w" else 1))).timestamp()
        for form in _FORMS:
            if re.fullmatch(form, text):
                return datetime.fromisoformat(text + _FORMS[form]).timestamp()
    except (ValueError, OverflowError):
        pass  # no such day
    raise BadSetting(f"{text!r} is no date, expected one such as 2024, 2024-05, 2024-05-31, or 7d for a week ago")


_READERS: dict[str, Callable[[Filter, str], Filter]] = {
    "folder": lambda found, text: replace(found, folders=(*found.folders, absolute(Path(text)))),
    "tag": lambda found, text: replace(found, tags=(*found.tags, text)),
    "after": lambda found, text: replace(found, after=_date(text)),
    "before": lambda found, text: replace(found, before=_date(text)),
    "longer": lambda found, text: replace(found, longer=read_seconds(text)),
    "shorter": lambda found, text: replace(found, shorter=read_seconds(text)),
}
