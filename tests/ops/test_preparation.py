"""The preparation on numpy arrays equals that on torch tensors, also where frames repeat and pairs tie."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadModel
from midreel.ops import preparation, segments

LENGTHS = st.integers(1, 60)
NUM_FRAMES, NUM_CLIPS = 12, 4
SCHEDULE = segments.merge_schedule(NUM_FRAMES, NUM_CLIPS)


def frames_of(length: int, seed: int = 0, *, distinct: int | None = None) -> Any:
    """Random frames. With `distinct`, some of them are equal."""
    generator = np.random.default_rng(seed)
    frames = generator.standard_normal((distinct or length, 5)).astype(np.float32)
    return frames if distinct is None else frames[generator.integers(0, distinct, length)]


@given(LENGTHS, st.integers(1, 40))
def test_averages_and_caps(length: int, target: int) -> None:
    frames = frames_of(length)
    batch = torch.from_numpy(frames)[None]
    np.testing.assert_allclose(preparation.averaged(frames, target), segments.resample(batch, target)[0], atol=1e-6)
    kept, mask = preparation.capped(frames, target)
    expected, expected_mask = segments.cap(batch, target)
    np.testing.assert_allclose(kept, expected[0], atol=1e-6)
    np.testing.assert_array_equal(mask, expected_mask[0])
    np.testing.assert_allclose(
        preparation.interpolated(frames, target), segments.interpolate(batch, target)[0], atol=1e-6
    )


@given(st.integers(0, 1000), st.none() | st.integers(1, 6))
def test_clips_that_follow_the_content(seed: int, distinct: int | None) -> None:
    frames = frames_of(NUM_FRAMES, seed, distinct=distinct)
    expected = segments.order_preserving(torch.from_numpy(frames)[None], lengths=SCHEDULE)[0]
    assert preparation.order_preserving(frames, SCHEDULE).tolist() == expected.tolist()


@given(st.integers(0, 1000))
def test_clips_of_the_released_code(seed: int) -> None:
    frames = frames_of(NUM_FRAMES, seed)
    clips, clip_of_frame = preparation.order_preserving_by_dot(frames, SCHEDULE)
    expected, expected_map = segments.order_preserving_by_dot(torch.from_numpy(frames)[None], SCHEDULE)
    assert clip_of_frame.tolist() == expected_map[0].tolist()
    np.testing.assert_allclose(clips, expected[0], atol=1e-6)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_means_and_spans_of_clips(clips: list[int]) -> None:
    clip_of_frame = np.array(clips)
    frames = frames_of(len(clips))
    batch, maps = torch.from_numpy(frames)[None], torch.from_numpy(clip_of_frame)[None]
    means = preparation.clip_means(frames, clip_of_frame, 6)
    np.testing.assert_allclose(means, segments.segment_mean(batch, maps, 6)[0], atol=1e-6)
    np.testing.assert_array_equal(preparation.clip_spans(clip_of_frame, 6), segments.segment_spans(maps, 6)[0])


@given(st.integers(1, 50), st.integers(1, 50))
def test_clips_of_equal_length(num_frames: int, num_clips: int) -> None:
    expected = segments.uniform(torch.zeros(1, num_frames, 1), num_clips)[0]
    assert preparation.uniform(num_frames, num_clips).tolist() == expected.tolist()


def test_an_unknown_preparation_and_broken_frames() -> None:
    how = {"frames": "averaged", "num_frames": 4, "num_clips": 2, "clips": "uniform"}
    assert set(preparation.prepared(frames_of(9), how)) == {"frames", "clip_of_frame"}
    for unknown in ({"frames": "newer"}, {"clips": "newer"}, {"frames": "capped", "clips": "uniform"}):
        with pytest.raises(BadModel, match="Update"):
            preparation.prepared(frames_of(9), how | unknown)
    with pytest.raises(BadBatch, match="NaN"):
        preparation.prepared(np.full((9, 5), np.inf, np.float32), how)
