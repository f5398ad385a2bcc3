from pathlib import Path

import pytest

from midreel.index import EmbeddedIndex
from midreel.index.embedded import kernels
from tests.index.library import queries


def test_kernels_agree_to_the_last_bit(folder: Path) -> None:
    pytest.importorskip("numkong", reason="numkong is not installed: pip install midreel[fast]")
    results = []
    for kernel in kernels.KERNELS:
        with EmbeddedIndex.open(folder, read_only=True, kernel=kernel) as index:
            results.append([index.search(queries(0)), index.search(queries(0), exact=True)])
    assert results[0] == results[1]
