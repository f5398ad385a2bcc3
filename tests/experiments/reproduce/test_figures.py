"""The choices and projections of Figures 1 and 3."""

from pathlib import Path

import numpy as np
import pytest

from midreel.datasets import playhouse
from midreel.errors import BadSetting
from midreel.experiments.reproduce.collapse_figure import choose_pair, project
from midreel.experiments.reproduce.examples_figure import similar_queries, stills, verdict_of
from midreel.types import Moment, Query


def test_projection_keeps_the_distances_of_a_plane() -> None:
    angles = np.array([0.0, 0.3, 1.0, 2.0])
    flat = np.stack((np.cos(angles), np.sin(angles)), 1)
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    vectors = np.concatenate((flat, np.zeros((4, 3))), 1) @ turned
    found = project(7 * vectors)  # the length of a vector does not count
    expected = np.linalg.norm(flat[:, None] - flat, axis=-1)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found, axis=-1), expected, atol=1e-9)
    assert (found[np.abs(found).argmax(0), [0, 1]] > 0).all()


def test_projection_of_one_point() -> None:
    assert project(np.ones((1, 4))).tolist() == [[0, 0]]


def test_the_most_similar_queries_of_two_videos() -> None:
    sentences = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.7, 0.7], [0.99, 0.0]])
    assert choose_pair(sentences, np.array([0, 0, 1, 1, 1]), enough=1) == (0, 4)
    # The last video has a single query, so it is not chosen if others have two.
    assert set(choose_pair(sentences, np.array([0, 0, 1, 1, 2]), enough=2)) == {1, 3}
    assert choose_pair(sentences, np.array([0, 0, 0, 0, 1])) == (0, 4)
    with pytest.raises(BadSetting, match="1 video"):
        choose_pair(sentences, np.zeros(5, int))


def test_verdicts() -> None:
    query = Query(id="q", text="a dog", video_id="a", moments=(Moment(start=10.0, end=20.0),))
    twin = Query(id="r", text="the dog", video_id="b", moments=(Moment(start=0.0, end=5.0),))
    assert verdict_of("a", (15.0, 30.0), query, []) == "right"
    assert verdict_of("a", (20.0, 30.0), query, []) == "partial"  # elsewhere in the video
    assert verdict_of("b", (4.0, 9.0), query, [twin]) == "partial"  # almost the same words
    assert verdict_of("b", (5.0, 9.0), query, [twin]) == "wrong"
    assert verdict_of("b", (4.0, 9.0), query, []) == "wrong"


def test_similar_queries() -> None:
    sentences = np.array([[1.0, 0.0], [0.0, 1.0], [0.99, 0.01]])
    assert np.argwhere(similar_queries(sentences, 0.9)).tolist() == [[0, 2], [2, 0]]
    assert not similar_queries(sentences[:1]).any()


def test_stills_of_a_generated_video(dataset_folder: Path, tmp_path: Path) -> None:
    video_id = "playhouse-test-00000"
    found = stills(dataset_folder, video_id, [0.0, 5.0])
    drawn, _ = playhouse.draw_frames(dataset_folder, video_id, 4.0)
    expected = dict(drawn)
    np.testing.assert_array_equal(np.asarray(found[1]), expected[5.0])
    assert stills(tmp_path, video_id, [0.0]) == []
