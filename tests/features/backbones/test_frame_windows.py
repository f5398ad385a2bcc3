from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float, UInt8

from midreel.features.backbones.base import Backbone
from midreel.features.backbones.frame_windows import prepared, windows
from midreel.media import decode
from tests.features.fakes import FakeBackbone, image_of


class FakeClips(FakeBackbone):
    """A clip is the mean colours of its frames."""

    window = 4

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N F 3 H W"]) -> Float[np.ndarray, "N E"]:
        return super().encode_pixels(pixels.reshape(-1, *pixels.shape[2:])).reshape(-1, self.window, 4).mean(1)


@given(st.lists(st.integers(), max_size=40), st.integers(1, 8))
def test_windows_are_consecutive_and_the_last_repeats_its_last_frame(frames: list[int], size: int) -> None:
    found = list(windows(((number / 2, frame) for number, frame in enumerate(frames)), size))
    assert len(found) == -(-len(frames) // size)
    for number, (time, run) in enumerate(found):
        part = frames[number * size : (number + 1) * size]
        assert time == number * size / 2
        assert run == part + part[-1:] * (size - len(part))


def test_a_window_is_yielded_before_the_next_frame_is_taken() -> None:
    frames = ((float(number), number) for number in count())
    runs = windows(frames, 3)
    assert next(runs) == (0.0, [0, 1, 2])
    assert next(frames) == (3.0, 3)


@pytest.mark.parametrize("num_frames", [1, 11, 12, 13, 30])
def test_windows_start_at_the_times_of_single_frames(tmp_path: Path, num_frames: int) -> None:
    path = tmp_path / "video.mp4"
    decode.write_video(path, (np.full((16, 16, 3), 8 * number, np.uint8) for number in range(num_frames)), 12)
    single = [time for time, _ in decode.read_frames(path, 2)]
    runs = list(windows(decode.read_frames(path, 2 * 8), 8))
    assert [time for time, _ in runs] == single
    assert all(len(run) == 8 for _, run in runs)


def test_prepared_pixels_fit_the_backbone() -> None:
    frames = [(number / 4, image_of(number)) for number in range(6)]
    single: Backbone = FakeBackbone()
    assert [time for time, _ in prepared(frames, single)] == [0, 0.25, 0.5, 0.75, 1, 1.25]
    batch = np.stack([pixels for _, pixels in prepared(frames, single)])
    assert batch.shape == (6, 3, 8, 8)
    assert np.array_equal(single.encode_pixels(batch)[:, 0], np.arange(6.0, dtype=np.float32))
    clips: Backbone = FakeClips()
    assert [time for time, _ in prepared(frames, clips)] == [0, 1]
    batch = np.stack([pixels for _, pixels in prepared(frames, clips)])
    assert batch.shape == (2, 4, 3, 8, 8)
    assert clips.encode_pixels(batch)[:, 0].tolist() == [1.5, 4.75]
