"""Where queries fit in videos: many pairs at once as each alone, and as a slow twin computes it."""

import numpy as np
import pytest

from midreel.index.base import Array
from midreel.library import hits
from midreel.library.catalogue import Video
from midreel.library.hits import SearchedVideo, locate
from midreel.types import Tokens

WIDTH = 5
WEIGHTS = {"clip": 1.0, "frame": 3.0}


def searched(seed: int, *, windows: int) -> SearchedVideo:
    """A video of `windows` windows that overlap by a quarter, with a masked token here and there."""
    random = np.random.default_rng(seed)
    starts = np.arange(windows) * 7.5
    return SearchedVideo(
        video=Video(id=f"v{seed}", duration=float(starts[-1] + 10), num_frames=20 * windows),
        paths=(),
        tokens={branch: tokens(random, windows, number) for branch, number in (("clip", 3), ("frame", 8 + seed % 3))},
        windows=tuple((float(start), float(start + 10)) for start in starts),
    )


def tokens(random: np.random.Generator, windows: int, number: int) -> Tokens:
    vectors = random.normal(size=(windows, number, WIDTH)).astype(np.float32)
    bounds = np.linspace(0, 1, number + 1, dtype=np.float32)
    mask = random.random((windows, number)) > 0.2
    mask[:, 0] = True
    return Tokens(
        vectors=vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) * mask[..., None],
        mask=mask,
        spans=np.broadcast_to(np.stack((bounds[:-1], bounds[1:]), -1), (windows, number, 2)) * mask[..., None],
    )


def some_queries(number: int) -> dict[str, Array]:
    random = np.random.default_rng(9)
    return {branch: random.normal(size=(number, WIDTH)).astype(np.float32) for branch in WEIGHTS}


@pytest.mark.parametrize("most_windows", [1, 7, 4096])
def test_many_pairs_are_as_each_alone(monkeypatch: pytest.MonkeyPatch, most_windows: int) -> None:
    monkeypatch.setattr(hits, "_MOST_WINDOWS", most_windows)
    queries = some_queries(3)
    videos = [searched(seed, windows=1 + seed % 4) for seed in range(8)]
    rows = [number % 3 for number in range(8)]
    together = locate(queries, rows, videos, WEIGHTS)
    for row, video, (curve, moments) in zip(rows, videos, together, strict=True):
        ((alone, parts),) = locate(queries, [row], [video], WEIGHTS)
        assert (curve, moments) == (alone, parts)


def test_a_curve_is_the_weighted_mean_of_the_branches() -> None:
    """A slow twin, for a video of one window: at the middle of each frame, of all clips around it the best."""
    queries, video = some_queries(1), searched(2, windows=1)
    ((curve, moments),) = locate(queries, [0], [video], WEIGHTS)
    frames, clips = video.tokens["frame"], video.tokens["clip"]
    cosine = {
        branch: part.vectors[0] @ (queries[branch][0] / np.linalg.norm(queries[branch][0]))
        for branch, part in video.tokens.items()
    }
    real_clips = [number for number in range(3) if clips.mask[0, number]]
    expected = {}
    for number in range(frames.mask.shape[1]):
        if not frames.mask[0, number]:
            continue
        middle = frames.spans[0, number].mean()
        around = [clip for clip in real_clips if clips.spans[0, clip, 0] <= middle < clips.spans[0, clip, 1]]
        best = max(cosine["clip"][clip] for clip in around) if around else min(cosine["clip"][c] for c in real_clips)
        expected[middle * 10] = (cosine["frame"][number] * 3 + best) / 4
    assert list(curve.times) == pytest.approx(list(expected), abs=1e-5)
    assert list(curve.values) == pytest.approx(list(expected.values()), abs=1e-6)
    assert moments[0].score == pytest.approx(max(expected.values()), abs=1e-6)


def test_no_pair() -> None:
    assert locate(some_queries(1), [], [], WEIGHTS) == []
