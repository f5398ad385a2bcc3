import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets import open_annotations, playhouse
from midreel.datasets.dataset import Dataset, extract
from midreel.errors import BadAnnotation, UnknownName
from midreel.evaluation import properties
from midreel.evaluation.properties import Distribution, clip_cosines, of_annotations, overlap, seconds
from midreel.features.backbones.base import load_backbone
from midreel.types import Moment, Query, Split

QUARTERS = st.integers(0, 40).map(lambda number: number / 4)
MOMENTS = st.lists(st.tuples(QUARTERS, QUARTERS).map(lambda pair: Moment(start=min(pair), end=max(pair))), max_size=5)


def quarters(moments: list[Moment]) -> set[int]:
    """Return the quarters of a second that moments cover: the slow twin of `seconds`."""
    return {at for moment in moments for at in range(round(4 * moment.start), round(4 * moment.end))}


@given(first=MOMENTS, second=MOMENTS)
def test_lengths_and_overlaps_equal_the_loop(first: list[Moment], second: list[Moment]) -> None:
    one, other = quarters(first), quarters(second)
    assert seconds(first) == len(one) / 4
    assert overlap(first, second) == pytest.approx(len(one & other) / len(one | other) if one | other else 0.0)
    assert overlap(first, second) == overlap(second, first)


def query(number: int, video_id: str, *spans: tuple[float, float], text: str = "a dog runs") -> Query:
    moments = tuple(Moment(start=start, end=end) for start, end in spans)
    return Query(id=str(number), text=text, video_id=video_id, moments=moments)


def test_annotations_by_hand() -> None:
    queries = (
        query(0, "a", (0.0, 2.0), (4.0, 6.0)),
        query(1, "a", (5.0, 9.0), text="it barks"),
        query(2, "a", (9.0, 10.0)),
        query(3, "b"),
    )
    found = of_annotations(Split(video_ids=("a", "b", "c"), queries=queries), {"a": 10.0, "b": 30.0})
    assert found["videos"] == 3
    assert found["queries"] == 4
    assert found["seconds of a video"] == Distribution(low=12.0, median=20.0, high=28.0, mean=20.0)
    assert found["queries of a video"] == Distribution.of([3, 1])
    assert found["words of a query"] == Distribution.of([3, 2, 3, 3])
    assert found["moments of a query"] == Distribution.of([2, 1, 1])
    assert found["seconds of a moment"] == Distribution.of([2, 2, 4, 1])
    assert found["share of the video that a query describes"] == Distribution.of([0.4, 0.4, 0.1])
    assert found["query pairs of a video whose moments overlap"] == pytest.approx(1 / 3)


def test_annotations_without_moments_have_fewer_properties() -> None:
    found = of_annotations(Split(video_ids=("b",), queries=(query(0, "b"),)), {})
    assert set(found) == {"videos", "queries", "queries of a video", "words of a query"}


def test_cosines_of_clips_by_hand() -> None:
    frames = np.array([[1, 0], [1, 0], [0, 2], [0, 4]], dtype=np.float32)
    assert clip_cosines(frames, 2).tolist() == [0.0]
    assert sorted(clip_cosines(frames, 9).tolist()) == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert clip_cosines(frames[:1]).size == 0


def test_cosines_of_clips_equal_the_loop() -> None:
    frames = np.random.default_rng(0).normal(size=(70, 8)).astype(np.float32)
    bounds = [round(70 * number / 7) for number in range(8)]
    clips = [frames[first:last].mean(0) for first, last in pairwise(bounds)]
    expected = [
        float(one @ other / math.sqrt((one @ one) * (other @ other)))
        for place, one in enumerate(clips)
        for other in clips[place + 1 :]
    ]
    np.testing.assert_allclose(clip_cosines(frames, 7), expected, atol=1e-6)


def test_a_dataset_with_and_without_features(tmp_path: Path) -> None:
    playhouse.write_dataset(tmp_path, seed=1, num_test=2, files=(), kind="large")
    without = properties.properties(open_annotations(tmp_path), "test")
    assert "seconds of a video" not in without
    extract(open_annotations(tmp_path), load_backbone("tiny-clip"), rate=0.5)
    found = properties.properties(Dataset.open(tmp_path), "test")
    cosines = found["cosine of two clips of a video"]
    assert isinstance(cosines, Distribution)
    assert -1 <= cosines.low <= cosines.median <= cosines.high <= 1
    shares = [found[f"clip pairs of a video above {each:g}"] for each in properties.THRESHOLDS]
    assert shares == sorted(shares, reverse=True)
    assert {"sentences: Intra Sim", "seconds of a video"} <= set(found)
    text = properties.to_text({"with": found, "without": without})
    assert len(text.splitlines()) == 1 + len(found)
    with pytest.raises(UnknownName):
        properties.properties(Dataset.open(tmp_path), "val")


def test_a_split_without_queries_is_refused(tmp_path: Path) -> None:
    (tmp_path / "annotations.jsonl").write_text('{"video_id": "a", "split": "test"}\n')
    (tmp_path / "a.mp4").touch()
    with pytest.raises(BadAnnotation):
        properties.properties(open_annotations(tmp_path), "test")
