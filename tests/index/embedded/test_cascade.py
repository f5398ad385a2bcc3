"""The stages of a search, compared with plain loops."""

from pathlib import Path

import numpy as np
import pytest

from midreel.index import EmbeddedIndex
from midreel.index.embedded import cascade
from tests.index.library import WEIGHTS, WIDTH, queries, video


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("step", [1, 7])  # every window, and few of them
def test_the_coarse_score_of_a_window_is_that_of_its_best_vector(
    threads: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "_MIN_WINDOWS", 4)
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    with EmbeddedIndex.create(tmp_path / "index", branch_weights=WEIGHTS, width=WIDTH, coarse=5) as index:
        index.add_all((f"v{number}", video(number, windows=1 + number % 3)) for number in range(20))
        assert len(index) == 20  # also maps the new rows
        view, places = index._cascade, np.arange(0, 39, step)
        query = cascade._QueryVector(queries(1)[view.scanned][0].numpy())
        rows, scales = view.files[0].rows["vector"], view.roster.scales
        best = [
            max(int(rows[place * 5 + k].astype(int) @ query.row.astype(int)) * scales[place, k] for k in range(5))
            for place in places
        ]
        assert view.coarse_scores(query, places) == pytest.approx(best)
