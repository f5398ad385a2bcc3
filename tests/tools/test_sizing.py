"""The formulas of docs/scale.md, by hand, and the page itself."""

import pytest

from tools import sizing
from tools.sizing import Archive, Hardware, Measured

ROUND = Measured(
    embedded_disk=1e5,
    embedded_memory=2e4,
    embedded_search=2e-7,
    postgres_disk=2e5,
    postgres_scan=4e-5,
    postgres_load=100.0,
    qdrant_disk=6e5,
    decoding=100.0,
    encoding=10.0,
)


def test_the_formulas_by_hand() -> None:
    """A million videos of one minute: 120 frames and one window each."""
    archive = Archive(videos=10**6, minutes=1, rate=2.0, width=512)
    assert (archive.frames, archive.windows) == (120_000_000, 1_000_000)
    found = list(sizing.rows(archive, ROUND, Hardware(memory=15e9, cores=40, gpu_encoding=1000)).values())
    assert found == [
        "16,667",  # 1e6 / 60 hours
        "1 M",
        "123 GB",  # 1.2e8 frames of 1,024 bytes
        "100 GB",
        "20 GB",
        "2",  # machines of 15 GB
        "0.2 s",
        "200 GB",
        "80",  # 1e6 windows, 40 us each, two cores
        "2",  # shards of 40 cores
        "1.39 h",  # 5e5 windows, 100 a second
        "600 GB",
        "333",  # 1.2e8 frames, 100 a second
        "6,667",  # 1.2e8 frames, 5 a second and core
        "33",  # 1.2e8 frames, 1,000 a second
        "10",
    ]


@pytest.mark.parametrize(("minutes", "windows"), [(1, 1), (2, 1), (3, 4), (10, 13)])
def test_a_long_video_has_several_windows(minutes: float, windows: int) -> None:
    """Up to 256 frames are one window. Then a window of 128 frames starts every 96 frames at most."""
    assert Archive(videos=1, minutes=minutes).windows == windows


def test_everything_grows_with_the_number_of_videos() -> None:
    small, large = (Archive(videos=videos, minutes=5) for videos in (10**6, 10**8))
    assert large.windows == 100 * small.windows
    assert large.frames == 100 * small.frames


def test_the_figures_are_those_of_the_results() -> None:
    measured = Measured.read()
    assert all(value > 0 for value in vars(measured).values())
    assert measured.embedded_disk < measured.postgres_disk < measured.qdrant_disk
    assert measured.embedded_search < measured.postgres_scan


def test_the_page_is_up_to_date() -> None:
    text = sizing.PAGE.read_text(encoding="utf-8")
    assert sizing.page(text) == text, "run: python -m tools.sizing --write"


def test_a_figure_that_is_gone() -> None:
    with pytest.raises(ValueError, match="sizing"):
        sizing._number("no such figure", "text")
