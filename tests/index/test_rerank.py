"""Which windows are scored again, and the order of the results."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.index.rerank import (
    QueryVector,
    Scored,
    Scoring,
    WindowTokens,
    best_matches,
    contenders,
    padded,
    too_few_videos,
)
from midreel.types import Similarity


def test_windows_that_may_be_the_best_by_hand() -> None:
    total, doubt = np.array([0.875, 0.75, 0.5, 0.25]), np.array([0.125, 0.0, 0.25, 0.125])
    # Video 1 scores at least 0.75 and video 2 exactly that. So may the third window, but not the last one.
    assert contenders(total, doubt, np.array([1, 2, 3, 4]), 2).tolist() == [0, 1, 2]
    assert contenders(total, doubt, np.array([1, 1, 1, 4]), 2).tolist() == [0, 1, 2, 3]  # video 4 is the second
    assert contenders(total, doubt, np.array([1, 2, 3, 4]), 9).tolist() == [0, 1, 2, 3]
    assert contenders(total[:0], doubt[:0], np.zeros(0, np.int64), 9).tolist() == []


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 6))
def test_no_winner_is_lost(seed: int, number: int, top: int) -> None:
    """Whatever the scores are within their doubt, the windows of the best videos are contenders."""
    random = np.random.default_rng(seed)
    total, doubt = random.random(number), 0.2 * random.random(number)
    videos = random.integers(0, 8, number)
    kept = set(contenders(total, doubt, videos, top).tolist())
    for _ in range(10):
        scores = total + random.uniform(-1, 1, number) * doubt
        best: list[int] = []  # the best window of each video, in plain loops
        for window in sorted(range(number), key=lambda window: -scores[window]):
            if videos[window] not in [videos[other] for other in best]:
                best.append(window)
        assert set(best[:top]) <= kept


def test_more_candidates_if_one_video_has_all() -> None:
    assert too_few_videos([1] * 10, top=3, limit=10)
    assert not too_few_videos([1] * 9, top=3, limit=10)  # there are no more
    assert not too_few_videos(range(6), top=3, limit=6)


def test_the_best_window_of_each_video_and_ties() -> None:
    scoring = Scoring({"clip": 2.0}, {})
    windows = [
        Scored(3, "c", {"clip": 0.5}),
        Scored(1, "a", {"clip": 0.2}),
        Scored(2, "b", {"clip": 0.5}),
        Scored(1, "a", {"clip": 0.4}),
    ]
    found = best_matches(windows, scoring, top=3)
    assert [(match.video_id, match.score) for match in found] == [("b", 1.0), ("c", 1.0), ("a", 0.8)]
    assert len(best_matches(windows, scoring, top=2)) == 2


def test_scores_by_hand() -> None:
    forms = {"scene": Similarity(kind="dot"), "frame": Similarity(kind="attention", guide="clip", keys="key")}
    scoring = Scoring({"clip": 1.0, "scene": 1.0, "frame": 1.0, "key": 0.0}, forms)
    east, north = np.array([1.0, 0.0], np.float32), np.array([0.0, 1.0], np.float32)
    spans = np.zeros((2, 2), np.float32)
    plain = WindowTokens(np.stack((north, east)), None, spans)
    long = WindowTokens(np.stack((north, east)), np.array([7.0, 3.0], np.float32), spans)
    still = WindowTokens(np.stack((north, east)), np.zeros(2, np.float32), spans)  # keys of length 0: equal weights
    query = dict.fromkeys(("clip", "frame"), QueryVector(east, 1.0)) | {"scene": QueryVector(east, 2.0)}
    found = scoring.scores(query, {"clip": plain, "scene": long, "frame": plain, "key": still})
    assert found == pytest.approx({"clip": 1.0, "scene": 6.0, "frame": 0.5**0.5})
    assert scoring.total(found) == pytest.approx(7 + 0.5**0.5)
    assert scoring.by_token == ["clip", "scene"]
    assert scoring.attends
    assert scoring.num_candidates(1) == 2 * Scoring({"clip": 1.0}, {}).num_candidates(1)


def test_windows_are_padded_to_the_longest() -> None:
    short = WindowTokens(np.ones((1, 2), np.float32), np.array([3.0], np.float32), np.ones((1, 2), np.float32))
    long = WindowTokens(np.ones((3, 2), np.float32), np.ones(3, np.float32), np.ones((3, 2), np.float32))
    made = padded([short, long])
    assert made.mask.tolist() == [[True, False, False], [True, True, True]]
    assert made.vectors[0].tolist() == [[3, 3], [0, 0], [0, 0]]
