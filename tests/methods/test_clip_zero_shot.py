import math
from dataclasses import asdict

import pytest
import torch

from midreel.errors import BadBatch, BadSetting
from midreel.methods.batches import QueryBatch
from midreel.methods.clip_zero_shot import ClipZeroShot, ClipZeroShotConfig
from midreel.ops import scoring


def queries(sentence: torch.Tensor | None) -> QueryBatch:
    num = 1 if sentence is None else len(sentence)
    return QueryBatch(words=torch.randn(num, 2, 3), mask=torch.ones(num, 2, dtype=torch.bool), sentence=sentence)


def test_the_best_frame_by_cosine() -> None:
    method = ClipZeroShot(ClipZeroShotConfig(width=2))
    features = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [-1.0, 0.0]]])
    scores = method.score(
        method.encode_queries(queries(torch.tensor([[0.0, 5.0]]))),
        method.encode_videos(method.prepare_videos(features)),
    )
    torch.testing.assert_close(scores, torch.tensor([[1.0, 2**-0.5]]))


def test_all_frames_of_a_short_video_are_seen() -> None:
    features, sentence = torch.randn(3, 90, 4), torch.randn(5, 4)
    method = ClipZeroShot(ClipZeroShotConfig(width=4))
    scores = method.score(
        method.encode_queries(queries(sentence)), method.encode_videos(method.prepare_videos(features))
    )
    torch.testing.assert_close(scores, scoring.cosine_max_sim(sentence, features))


def slow_score(sentence: list[float], frames: list[list[float]], num_clips: int, clip_weight: float) -> float:
    """The twin: the best cosine of a frame, mixed with the best one of the means of equal parts."""

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))

    size = len(frames) // num_clips
    parts = [frames[start : start + size] for start in range(0, len(frames), size)]
    means = [[sum(channel) / size for channel in zip(*part, strict=True)] for part in parts]
    best_frame, best_clip = (max(cosine(sentence, vector) for vector in each) for each in (frames, means))
    return (1 - clip_weight) * best_frame + clip_weight * best_clip


@pytest.mark.parametrize("clip_weight", [0.0, 0.4, 1.0])
def test_the_score_equals_the_twin(clip_weight: float) -> None:
    features, sentence = torch.randn(3, 12, 4), torch.randn(5, 4)
    method = ClipZeroShot(ClipZeroShotConfig(width=4, num_frames=12, num_clips=3, clip_weight=clip_weight))
    found = method.score(
        method.encode_queries(queries(sentence)), method.encode_videos(method.prepare_videos(features))
    )
    expected = [[slow_score(text, video, 3, clip_weight) for video in features.tolist()] for text in sentence.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_padding_is_not_seen() -> None:
    features, method = torch.randn(1, 20, 4), ClipZeroShot(ClipZeroShotConfig(width=4, clip_weight=0.4))
    padded = torch.cat([features, torch.full((1, 9, 4), torch.nan)], 1)
    found, expected = method.prepare_videos(padded, torch.tensor([20])), method.prepare_videos(features)
    assert found.frames.equal(expected.frames)
    assert found.clip_of_frame.equal(expected.clip_of_frame)


def test_features_in_half_precision() -> None:
    features, sentence = torch.randn(3, 40, 4).half(), torch.randn(5, 4).half()
    method = ClipZeroShot(ClipZeroShotConfig(width=4, clip_weight=0.4))
    scores = [
        method.score(method.encode_queries(queries(text)), method.encode_videos(method.prepare_videos(frames)))
        for frames, text in ((features, sentence), (features.float(), sentence.float()))
    ]
    torch.testing.assert_close(*scores, atol=1e-6, rtol=0)


def test_clips_can_be_mixed_in() -> None:
    features, sentence = torch.randn(3, 128, 4), torch.randn(5, 4)
    method = ClipZeroShot(ClipZeroShotConfig(width=4, clip_weight=0.4))
    tokens, vectors = method.encode_videos(method.prepare_videos(features)), method.encode_queries(queries(sentence))
    expected = 0.6 * scoring.cosine_max_sim(sentence, tokens["frame"].vectors)
    expected = expected + 0.4 * scoring.cosine_max_sim(sentence, tokens["clip"].vectors)
    torch.testing.assert_close(method.score(vectors, tokens), expected)


def test_the_mean_of_all_frames() -> None:
    method = ClipZeroShot(ClipZeroShotConfig(width=4, clips="whole", num_clips=1, clip_weight=1.0))
    lengths = torch.tensor([90, 300, 1])  # shorter and longer than num_frames
    features, sentence = torch.randn(3, 300, 4), torch.randn(5, 4)
    for row, length in enumerate(lengths):
        features[row, length:] = torch.nan
    videos = method.prepare_videos(features, lengths)
    tokens = method.encode_videos(videos)
    scores = method.score(method.encode_queries(queries(sentence)), tokens)
    for row, length in enumerate(lengths):
        mean = features[row, :length].mean(0)
        torch.testing.assert_close(scores[:, row], torch.nn.functional.cosine_similarity(sentence, mean[None]))
        alone = method.prepare_videos(features[row : row + 1, :length])
        assert alone.clips is not None
        assert videos.clips is not None
        assert alone.clips[0].equal(videos.clips[row])
    assert tokens["clip"].spans.tolist() == [[[0.0, 1.0]]] * 3
    assert method.preparation()["clips"] == "whole"
    with pytest.raises(BadSetting, match="num_clips is 32, expected 1"):
        ClipZeroShotConfig(clips="whole")


def test_the_settings_of_old_libraries_are_unchanged() -> None:
    # A library compares a digest of these with its own. A new setting would make every old library look outdated.
    assert asdict(ClipZeroShotConfig()) == {
        "method": "clip_zero_shot",
        "width": 512,
        "num_frames": 128,
        "num_clips": 32,
        "clips": "uniform",
        "clip_weight": 0.0,
    }


def test_of_wider_features_the_last_channels_count() -> None:
    features = torch.randn(2, 128, 7)
    method = ClipZeroShot(ClipZeroShotConfig(width=3))
    assert method.encode_videos(method.prepare_videos(features))["frame"].vectors.shape == (2, 128, 3)


def test_it_learns_nothing() -> None:
    assert list(ClipZeroShot(ClipZeroShotConfig()).parameters()) == []


def test_bad_input() -> None:
    method = ClipZeroShot(ClipZeroShotConfig(width=4))
    with pytest.raises(BadBatch, match="no sentence vectors"):
        method.encode_queries(queries(None))
    with pytest.raises(BadBatch, match="width 3, expected 4"):
        method.encode_queries(queries(torch.randn(1, 3)))
    with pytest.raises(BadBatch, match="width 3, expected at least 4"):
        method.encode_videos(method.prepare_videos(torch.randn(1, 5, 3)))
    with pytest.raises(BadSetting, match=r"clip_weight is 2\.0"):
        ClipZeroShotConfig(clip_weight=2.0)
