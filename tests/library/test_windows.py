from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadSetting
from midreel.library.windows import Window, Windowing


@given(st.integers(1, 300), st.integers(1, 5000))
def test_windows_cover_the_video_in_order(num_frames: int, total: int) -> None:
    windows = Windowing.of(num_frames).windows(total)
    assert len(windows) == Windowing.of(num_frames).number(total)
    assert windows[0].first == 0
    assert windows[-1].last == total
    if total <= 2 * num_frames:
        assert len(windows) == 1
    else:
        assert all(window.last - window.first == num_frames for window in windows)
    for before, after in pairwise(windows):
        assert before.first < after.first <= before.last
        if num_frames >= 8:  # a quarter, up to rounding
            assert before.last - after.first >= num_frames / 4 - 1


def test_windows_of_three_hours() -> None:
    windows = Windowing.of(128).windows(3 * 3600 * 2)
    assert len(windows) == 225
    assert windows[1].seconds(3 * 3600.0) == (48.0, 112.0)


def test_seconds() -> None:
    assert Window(first=2, last=6, total=8).seconds(16.0) == (4.0, 12.0)


@pytest.mark.parametrize(
    "values", [{"size": 0, "longest": 1}, {"size": 4, "longest": 3}, {"size": 4, "longest": 4, "overlap": 1.0}]
)
def test_invalid_windows(values: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match="overlap"):
        Windowing(**values)  # type: ignore[arg-type]


def test_windows_are_read_back() -> None:
    assert Windowing.from_dict(vars(Windowing.of(128))) == Windowing.of(128)
