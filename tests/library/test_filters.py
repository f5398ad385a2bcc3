import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadSetting, MidreelError, UnknownName
from midreel.library.filters import Filter, read_seconds, span


def test_all_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "folder=trips",
        "folder=/films",
        "tag=beach",
        "after=2024-05",
        "before=2025",
        "longer=1:30",
        "shorter=1:00:00",
    ]
    assert Filter.parse(words) == Filter(
        folders=(tmp_path / "trips", Path("/films")),
        tags=("beach",),
        after=datetime(2024, 5, 1).timestamp(),
        before=datetime(2025, 1, 1).timestamp(),
        longer=90.0,
        shorter=3600.0,
    )


def test_an_empty_filter_is_false() -> None:
    assert not Filter.parse([])
    assert Filter.parse(["tag=a"])
    assert Filter(videos=())  # allows no video


def test_a_date_relative_to_now() -> None:
    after = Filter.parse(["after=2w"]).after
    assert after == pytest.approx(datetime.now().timestamp() - 14 * 86400, abs=4000)  # summer time may begin


@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        ("folders=x", UnknownName, "folder=…"),
        ("tag=", BadSetting, "tag=VALUE"),
        ("tag", BadSetting, "tag=VALUE"),
        ("after=yesterday", BadSetting, "'yesterday'"),
        ("tag=\udce9t\udce9", BadSetting, "UTF-8"),
        ("longer=1:2:3:4", BadSetting, "'1:2:3:4'"),
    ],
)
def test_invalid_conditions(word: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Filter.parse([word])


@given(st.text(max_size=20))
def test_any_text_is_a_filter_or_raises_an_error_of_midreel(word: str) -> None:
    for prefix in ("", "after=", "longer=", "folder=", "tag="):
        with suppress(MidreelError):
            Filter.parse([prefix + word])


@given(st.floats(0, 10**6), st.floats(0.01, 10**5), st.integers(0, 3))
def test_a_span_is_rounded_outward(start: float, length: float, digits: int) -> None:
    text = span(start, start + length, digits=digits)
    assert not re.search(r":60", text)
    first, last = (read_seconds(time) for time in text.split("–"))  # noqa: RUF001
    step, noise = 10**-digits, 0.0006  # both times are first rounded to the nearest thousandth
    assert start - step - noise < first <= start + noise
    assert start + length - noise <= last < start + length + step + noise
