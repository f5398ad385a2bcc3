from collections.abc import Iterator
from pathlib import Path

import pytest

from midreel.index import EmbeddedIndex
from tests.index.library import WEIGHTS, WIDTH, video


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index of twelve videos, closed."""
    with EmbeddedIndex.create(tmp_path / "index", branch_weights=WEIGHTS, width=WIDTH) as index:
        for number in range(12):
            index.add(f"v{number}", video(number, windows=1 + number % 2))
    return tmp_path / "index"


@pytest.fixture
def index(folder: Path) -> Iterator[EmbeddedIndex]:
    with EmbeddedIndex.open(folder) as index:
        yield index
