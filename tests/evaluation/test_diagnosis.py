import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadModel
from midreel.evaluation.diagnosis import FeatureStatistics, Hubness, drift, near_duplicates, sketch

# ---------------------------------------------------------------- drift


def statistics(seed: int, num_videos: int, shift: float = 0.0, width: int = 64) -> FeatureStatistics:
    rng = np.random.default_rng(seed)
    found = FeatureStatistics.of(rng.normal(shift, 1, (num_videos, 1, width)) * np.arange(1, width + 1))
    assert found is not None
    return found


def test_statistics_by_hand() -> None:
    videos = [np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[6.0, 0.0]])]  # means 2 and 6
    found = FeatureStatistics.of(videos)
    assert found is not None
    assert (found.num_videos, found.mean.tolist()) == (2, [4.0, 0.0])
    assert found.std.tolist() == pytest.approx([math.sqrt(8), 0])
    assert FeatureStatistics.of([]) is None
    single = FeatureStatistics.of(videos[:1])
    assert single is not None
    assert single.std.tolist() == [0.0, 0.0]
    assert drift(single, found) is None


def test_drift_equals_its_slow_twin() -> None:
    training, other = statistics(0, 20), statistics(1, 10, shift=0.3)
    found = drift(training, other)
    assert found is not None
    total = 0.0
    for ours, theirs, spread in zip(other.mean, training.mean, training.std, strict=True):
        total += ((ours - theirs) / spread) ** 2
    assert found.distance == pytest.approx(math.sqrt(total / 64))
    assert found.by_chance == pytest.approx(math.sqrt(1 / 20 + 1 / 10))


def test_videos_of_the_same_kind_have_the_distance_by_chance() -> None:
    ratios = [drift(statistics(2 * k, 200), statistics(2 * k + 1, 50)) for k in range(20)]
    assert np.mean([each.ratio**2 for each in ratios if each is not None]) == pytest.approx(1, abs=0.1)
    moved = drift(statistics(0, 200), statistics(1, 50, shift=1.0))
    assert moved is not None
    assert moved.distance == pytest.approx(1, abs=0.2)
    assert moved.ratio > 3
    assert moved.spread == pytest.approx(1, abs=0.1)


def test_statistics_read_back() -> None:
    found = statistics(0, 5)
    again = FeatureStatistics.from_json(found.to_json())
    assert again.num_videos == 5
    np.testing.assert_allclose(again.mean, found.mean, rtol=1e-5)
    np.testing.assert_allclose(again.std, found.std, rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [1.0]},
        {"std": [-1.0, 1.0]},
        {"num_videos": 0},
        {"num_videos": "2"},
        {"mean": ["a", "b"]},
        {"std": None},
    ],
)
def test_damaged_statistics(change: dict[str, object]) -> None:
    good = {"num_videos": 2, "mean": [0.0, 1.0], "std": [1.0, 1.0]}
    assert FeatureStatistics.from_json(json.dumps(good)).num_videos == 2
    with pytest.raises(BadModel):
        FeatureStatistics.from_json(json.dumps(good | change))
    with pytest.raises(BadModel):
        FeatureStatistics.from_json("[" * 100_000)


def test_statistics_of_other_widths() -> None:
    with pytest.raises(BadModel, match="64"):
        drift(statistics(0, 5), statistics(0, 5, width=3))


# ---------------------------------------------------------------- hubs


def test_hubness_by_hand() -> None:
    found = Hubness(counts=np.array([0, 0, 0, 12, 0, 0]), num_sentences=12, top=1)
    assert found.expected == 2
    assert found.hubs() == [3]
    assert found.never == pytest.approx(5 / 6)
    assert found.never_by_chance == pytest.approx((5 / 6) ** 12)
    # counts - 2 are -2 five times, and 10: the variance is 120 / 6, the third moment 960 / 6
    assert found.skewness == pytest.approx(160 / 20**1.5)
    assert found.rare() == []  # 12 sentences are too few to say


def test_rare_videos_need_enough_sentences() -> None:
    counts = np.array([0, 100, 100, 100, 100])
    assert Hubness(counts=counts, num_sentences=400, top=1).rare() == [0]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_the_order_of_videos_does_not_matter(counts: list[int]) -> None:
    one = Hubness(counts=np.array(counts), num_sentences=50, top=1)
    other = Hubness(counts=np.array(counts[::-1]), num_sentences=50, top=1)
    assert one.skewness == pytest.approx(other.skewness, abs=1e-9)
    assert sorted(one.counts[one.hubs()]) == sorted(other.counts[other.hubs()])
    assert Hubness(counts=np.full(4, 3), num_sentences=12, top=1).skewness == 0


# ---------------------------------------------------------------- near-duplicates


@given(st.integers(1, 30), st.integers(1, 9))
def test_sketches_equal_their_slow_twin(num_frames: int, positions: int) -> None:
    frames = np.random.default_rng(0).normal(size=(num_frames, 3)).astype(np.float32)
    rows = []
    for place in range(positions):
        start = place * num_frames // positions
        end = max((place + 1) * num_frames // positions, start + 1)
        rows.append(sum(frames[k] for k in range(start, end)) / (end - start))
    np.testing.assert_allclose(sketch(frames, positions), np.array(rows), atol=1e-5)


def test_near_duplicates_are_found() -> None:
    rng = np.random.default_rng(0)
    sketches = rng.normal(size=(600, 8, 16)).astype(np.float32) + 5  # 5: what all frozen features have in common
    sketches[599] = sketches[3] + rng.normal(size=(8, 16)) * 0.05
    sketches[7] = sketches[3]
    durations = [10.0] * 600
    found = near_duplicates(sketches, durations)
    assert [pair[:2] for pair in found] == [(3, 7), (3, 599), (7, 599)]
    assert found[0][2] == pytest.approx(1, abs=1e-6)
    durations[7] = 12.0  # another length
    assert [pair[:2] for pair in near_duplicates(sketches, durations)] == [(3, 599)]
    assert near_duplicates(sketches[:1], durations[:1]) == []


def test_the_similarity_equals_its_slow_twin() -> None:
    sketches = np.random.default_rng(1).normal(size=(5, 4, 3)).astype(np.float32)
    centre = sketches.mean((0, 1))
    for a, b, cosine in near_duplicates(sketches, [1.0] * 5, threshold=-1.0):
        parts = []
        for one, other in zip(sketches[a] - centre, sketches[b] - centre, strict=True):
            parts.append(float(one @ other) / math.sqrt(float(one @ one) * float(other @ other)))
        assert cosine == pytest.approx(sum(parts) / 4, abs=1e-5)
