"""TF-PRVR: the score is the best of C(τ), as the paper's own formula K y gives it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.evaluation.evaluate import evaluate
from midreel.evaluation.moments import curves, found_moment
from midreel.methods import METHODS, ClipZeroShot, load_method
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.tf_prvr import TFPRVR, TFPRVRConfig
from midreel.ops.moment_graph import _peaks, diffusion, level_cuts, moment_vectors, segment_graph
from midreel.ops.wavelets import detail_bands
from midreel.training.data import FeatureSet
from tests.methods import twin_tf_prvr
from tests.training.worlds import WIDTH, World

LENGTHS = (1, 2, 3, 4, 5, 15, 16, 17, 40)


def make(**settings: Any) -> TFPRVR:
    return TFPRVR(TFPRVRConfig(**{"width": 6, "num_frames": 40} | settings))


def film(length: int, width: int = 6, seed: int = 0) -> torch.Tensor:
    """A video of a few scenes with noise."""
    generator = torch.Generator().manual_seed(seed + length)
    scenes = torch.randn(length // 6 + 1, width, generator=generator).repeat_interleave(6, 0)[:length]
    return scenes + 0.3 * torch.randn(length, width, generator=generator)


def queries(num: int = 4, width: int = 6, dtype: torch.dtype = torch.float32) -> QueryBatch:
    sentence = torch.randn(num, width, generator=torch.Generator().manual_seed(9), dtype=dtype)
    return QueryBatch(words=torch.zeros(num, 1, 3), mask=torch.ones(num, 1, dtype=torch.bool), sentence=sentence)


def bands(signal: list[float], num_levels: int) -> list[list[float]]:
    found: list[list[float]] = detail_bands(np.array(signal), num_levels).tolist()
    return found


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_score_is_the_best_of_the_papers_scores_over_time(variant: Any, length: int) -> None:
    method, frames = make(variant=variant), film(length).double()
    videos = method.encode_videos(method.prepare_videos(frames[None]))
    given = queries(dtype=torch.float64)
    assert given.sentence is not None
    scores = method.score(method.encode_queries(given), videos)
    tokens = videos["clip"]
    for row, query in enumerate(given.sentence):
        expected = twin_tf_prvr.scores_over_time(frames.tolist(), query.tolist(), bands, released=variant == "released")
        assert scores[row, 0].item() == pytest.approx(max(expected), abs=1e-6)
        # The token that contains a frame has the score of the frame.
        for frame, score in enumerate(expected):
            at = (frame + 0.5) / length
            inside = (tokens.spans[0, :, 0] <= at) & (at < tokens.spans[0, :, 1]) & tokens.mask[0]
            assert inside.sum() == 1
            unit = query / query.norm()
            assert (tokens.vectors[0, inside] @ unit).item() == pytest.approx(score, abs=1e-6)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_peaks(values: list[int]) -> None:
    response = np.array(values, np.float64)
    threshold = response.mean() + response.std()
    expected = []
    for left in range(1, len(values)):
        right = left
        while right + 1 < len(values) and values[right + 1] == values[left]:
            right += 1
        inside = values[left - 1] < values[left] and right + 1 < len(values) and values[right + 1] < values[left]
        if inside and values[left] > threshold:
            expected.append((left + right) // 2)
    assert _peaks(response).tolist() == expected


def test_the_graph_by_hand() -> None:
    # Level 0 has the segments [0, 2) and [2, 4), level 1 the whole video. All vectors are at right angles or equal.
    means = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    links = segment_graph(means, np.array([0, 2, 0]), np.array([2, 4, 4]), np.array([0, 0, 1]))
    expected = [[1, np.exp(-1), 0.5], [np.exp(-1), 1, 0], [0.5, 0, 1]]
    np.testing.assert_allclose(links, expected)
    halved = segment_graph(means, np.array([0, 2, 0]), np.array([2, 4, 4]), np.array([0, 0, 1]), across=0.5)
    assert halved[0, 2] == halved[2, 0] == 0.25


def test_the_diffusion_by_hand() -> None:
    # Two nodes, both linked with 1: D = 2, W = ½ everywhere, and I - ½ W has the inverse I + ½ W / (1 - ½).
    kernel = diffusion(np.ones((2, 2)), 0.5)
    np.testing.assert_allclose(kernel, 0.5 * np.array([[1.5, 0.5], [0.5, 1.5]]))
    np.testing.assert_allclose(diffusion(np.ones((3, 3)), 0.0), np.eye(3))


@given(st.integers(1, 12), st.floats(0, 0.95), st.integers(0, 2**31))
def test_the_diffusion_keeps_the_square_roots_of_the_degrees(num: int, spread: float, seed: int) -> None:
    links = np.random.default_rng(seed).random((num, num))
    links = links + links.T + np.eye(num)
    kernel = diffusion(links, spread)
    roots = np.sqrt(links.sum(1))
    np.testing.assert_allclose(kernel @ roots, roots)  # the eigenvector of the eigenvalue 1
    np.testing.assert_allclose(kernel, kernel.T, atol=1e-12)
    assert (kernel >= -1e-12).all()


@settings(max_examples=30)
@given(st.integers(1, 60), st.sampled_from(["paper", "released"]), st.integers(0, 999))
def test_tokens_divide_the_video_and_ignore_the_length_of_frames(length: int, variant: Any, seed: int) -> None:
    frames = film(length, seed=seed).double().numpy()
    tokens, token_of_frame = moment_vectors(frames, 0.7, variant)
    assert sorted(set(token_of_frame)) == list(range(len(tokens)))
    assert (np.diff(token_of_frame) >= 0).all()
    np.testing.assert_allclose(moment_vectors(7 * frames, 0.7, variant)[0], tokens, atol=1e-9)
    for cuts in level_cuts(frames / np.linalg.norm(frames, axis=1, keepdims=True), variant):
        assert (np.diff(cuts) > 0).all()
        assert all(0 < cut < length for cut in cuts)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_change_of_scene_is_a_cut(variant: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    scenes = torch.eye(4)[[0] * 30 + [1] * 30].double() + 0.01 * torch.randn(60, 4, generator=generator).double()
    unit = torch.nn.functional.normalize(scenes, dim=1).numpy()
    assert any(abs(cut - 30) <= 1 for cuts in level_cuts(unit, variant) for cut in cuts)


def test_a_still_video_has_equal_tokens() -> None:
    for variant in ("paper", "released"):
        still = torch.tensor([1.0, 2.0, 0, 0, 0, 0]).expand(1, 30, 6)
        tokens = make(variant=variant).encode_videos(make(variant=variant).prepare_videos(still))["clip"]
        own = tokens.vectors[tokens.mask]
        assert own.isfinite().all()
        direction = own / own.norm(dim=1, keepdim=True)
        torch.testing.assert_close(direction, direction[:1].expand_as(direction))
    assert make().prepare_videos(still).clip_of_frame.max() == 0


def test_frames_of_zeros_are_finite() -> None:
    for length in (2, 30):
        videos = make().prepare_videos(torch.zeros(1, length, 6))
        assert videos.clips is not None
        assert videos.clips.isfinite().all()


def test_short_videos() -> None:
    for length in (1, 2, 3):
        frames = film(length)
        videos = make(variant="paper").prepare_videos(frames[None])
        assert videos.clips is not None
        torch.testing.assert_close(videos.clips[0, :length], torch.nn.functional.normalize(frames, dim=1))
    assert make(variant="released").prepare_videos(film(15)[None]).clip_of_frame.max() == 0
    assert make(variant="paper").prepare_videos(film(15)[None]).clip_of_frame.max() > 0


def test_a_video_does_not_see_its_batch_mates() -> None:
    method = make()
    lengths = torch.tensor([70, 3, 25])
    features = torch.stack(
        [torch.nn.functional.pad(film(n), (0, 0, 0, 70 - n), value=torch.nan) for n in lengths.tolist()]
    )
    together = method.prepare_videos(features, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = method.prepare_videos(features[row : row + 1, :length])
        for name in ("frames", "clips", "clip_of_frame", "mask"):
            assert getattr(alone, name)[0].equal(getattr(together, name)[row])
    assert together.clip_of_frame[:, :1].eq(0).all()


def test_spans_follow_the_real_frames() -> None:
    method = make()
    videos = method.prepare_videos(film(20)[None])
    tokens = method.encode_videos(videos)["clip"]
    own = tokens.spans[0, tokens.mask[0]]
    assert own[0, 0] == 0
    torch.testing.assert_close(own[-1, 1], torch.tensor(1.0))
    torch.testing.assert_close(own[1:, 0], own[:-1, 1])
    sizes = torch.bincount(videos.clip_of_frame[0, :20])
    torch.testing.assert_close((own[:, 1] - own[:, 0]) * 20, sizes.float())
    assert method.segment(film(40)[None]).equal(method.prepare_videos(film(40)[None]).clip_of_frame)


def test_of_wider_features_the_last_channels_count() -> None:
    wide = torch.cat((torch.randn(20, 3), film(20)), 1)
    found, expected = (make().prepare_videos(each[None]).clips for each in (wide, film(20)))
    assert found is not None
    assert expected is not None
    torch.testing.assert_close(found, expected)


def test_without_spread_it_is_the_mean_of_the_levels() -> None:
    method = make(spread=0.0)
    tokens = method.encode_videos(method.prepare_videos(film(40)[None]))["clip"]
    assert (tokens.vectors[tokens.mask].norm(dim=1) <= 1 + 1e-6).all()


def test_it_is_saved_and_evaluated_like_any_method(tmp_path: Path) -> None:
    make(width=WIDTH, variant="paper").save_pretrained(tmp_path)
    method = load_method(tmp_path)
    assert method.config == make(width=WIDTH, variant="paper").config
    assert METHODS["tf_prvr"] is TFPRVR
    assert list(method.parameters()) == []
    world = World(10)
    data = FeatureSet.prepare(method, world.split, world)
    moments = [query.moments for query in data.queries]
    report = evaluate(
        method,
        data.video_batches(4),
        data.query_batches(7),
        data.video_of_query,
        moments=moments,
        durations=data.durations,
    )
    assert report.recalls["R@5"] > 80
    assert report.moments["found"]["mIoU"] > 20


def test_the_curve_has_the_score_at_its_peak() -> None:
    method = make()
    videos = VideoBatch.join([method.prepare_videos(film(n)[None]) for n in (30, 40)], 2)
    tokens, vectors = method.encode_videos(videos), method.encode_queries(queries(2))
    drawn = curves(vectors, tokens, torch.tensor([0, 1]), method.similarities)
    np.testing.assert_allclose(drawn["clip"].scores.max(1), method.score(vectors, tokens).diagonal().numpy(), rtol=1e-5)
    assert found_moment(drawn, method.curve_weights).shape == (2, 2)


def test_bad_input(unchecked: None) -> None:
    method = make()
    with pytest.raises(BadBatch, match="width 3, expected at least 6"):
        method.prepare_videos(torch.randn(1, 5, 3))
    with pytest.raises(BadBatch, match="no sentence vectors"):
        method.encode_queries(QueryBatch(words=torch.zeros(1, 1, 3), mask=torch.ones(1, 1, dtype=torch.bool)))
    with pytest.raises(BadBatch, match="width 5, expected 6"):
        method.encode_queries(queries(width=5))
    with pytest.raises(BadBatch, match="prepare_videos"):
        method.encode_videos(ClipZeroShot(ClipZeroShot.Config(width=6)).prepare_videos(torch.randn(1, 5, 6)))
    for name, value in (("spread", 1.0), ("spread", -0.1), ("width", 0), ("num_frames", 0)):
        with pytest.raises(BadSetting, match=f"{name} is {value}"):
            TFPRVRConfig(**{name: value})
