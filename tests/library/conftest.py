from pathlib import Path

import pytest

from tests.library.small import film


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    film(folder / "sunset.mp4", "grey", "red", "blue")
    film(folder / "trip/meadow.mp4", "grey", "green")
    film(folder / "trip/sea.mkv", "blue", "grey")
    return folder


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return tmp_path / "library"
