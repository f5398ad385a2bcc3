from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import UnknownName
from midreel.evaluation.moments import (
    best_token_moment,
    curves,
    found_moment,
    predict_moment,
    predictors,
    token_scores,
)
from midreel.methods.clip_zero_shot import ClipZeroShot, ClipZeroShotConfig
from midreel.ops import scoring
from midreel.ops.moments import find_moments, fused
from midreel.types import Tokens

# Two videos of two clips and four frames. The first video's clips are its halves, the second's one and three quarters.
CLIPS = Tokens(
    vectors=torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [-1.0, 0.0]]]),
    mask=torch.ones(2, 2, dtype=torch.bool),
    spans=torch.tensor([[[0.0, 0.5], [0.5, 1.0]], [[0.0, 0.25], [0.25, 1.0]]]),
)
FRAMES = Tokens(
    vectors=torch.tensor([[[1.0, 0.0], [0.9, 0.1], [0.0, 2.0], [0.1, 1.0]]] * 2),
    mask=torch.ones(2, 4, dtype=torch.bool),
    spans=torch.tensor([[[0.0, 0.25], [0.25, 0.5], [0.5, 0.75], [0.75, 1.0]]] * 2),
)
VIDEOS = {"clip": CLIPS, "frame": FRAMES}
VECTORS = torch.tensor([[0.0, 3.0], [1.0, 0.0], [-1.0, 0.1]])
QUERIES = {"clip": VECTORS, "frame": VECTORS}
VIDEO_OF_QUERY = torch.tensor([0, 0, 1])
SECONDS = torch.tensor([10.0, 40.0])
WEIGHTS = {"clip": 1.0, "frame": 3.0}

best_clip_moment = partial(best_token_moment, branch="clip")
best_frame_moment = partial(best_token_moment, branch="frame")


def test_by_hand() -> None:
    found = predict_moment(QUERIES, VIDEOS, VIDEO_OF_QUERY, SECONDS, best_clip_moment)
    assert found.tolist() == [[5, 10], [0, 5], [10, 40]]


def test_best_frame_by_hand() -> None:
    found = predict_moment(QUERIES, VIDEOS, VIDEO_OF_QUERY, SECONDS, best_frame_moment)
    assert found.tolist() == [[5, 7.5], [0, 2.5], [20, 30]]


def test_one_query_one_video() -> None:
    videos = {"clip": Tokens(vectors=CLIPS.vectors[:1], mask=CLIPS.mask[:1], spans=CLIPS.spans[:1])}
    found = predict_moment({"clip": VECTORS[:1]}, videos, torch.tensor([0]), torch.tensor([8.0]), best_clip_moment)
    assert found.tolist() == [[4, 8]]


def test_padding_is_never_chosen() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    scores = token_scores(VECTORS, CLIPS.vectors, mask, VIDEO_OF_QUERY)
    assert scores[:2, 1].tolist() == [-torch.inf, -torch.inf]
    videos = {"clip": Tokens(vectors=CLIPS.vectors, mask=mask, spans=CLIPS.spans)}
    for predictor in (best_clip_moment, partial(found_moment, weights=WEIGHTS)):
        assert predict_moment({"clip": VECTORS}, videos, VIDEO_OF_QUERY, SECONDS, predictor)[0].tolist() == [0, 5]


def test_every_predictor_returns_a_moment_within_the_video() -> None:
    drawn = curves(QUERIES, VIDEOS, VIDEO_OF_QUERY)
    of_method = predictors(ClipZeroShot(ClipZeroShotConfig(width=2)))
    assert list(of_method) == ["found", "best clip", "best frame"]
    for predictor in of_method.values():
        found = predictor(drawn)
        assert found.shape == (3, 2)
        assert (found[:, 0] < found[:, 1]).all()


def test_the_found_moment_fuses_all_branches() -> None:
    drawn = curves(QUERIES, VIDEOS, VIDEO_OF_QUERY)
    assert np.array_equal(found_moment(drawn, WEIGHTS), find_moments(fused(drawn, WEIGHTS)).spans[:, 0])
    # Half of the first video shows the first query in both branches, the other half in neither.
    assert found_moment(drawn, WEIGHTS)[0].tolist() == [0.5, 1]


def test_a_method_without_clips() -> None:
    with pytest.raises(UnknownName, match=r"'clip'.*frame"):
        predict_moment({"frame": VECTORS}, {"frame": FRAMES}, VIDEO_OF_QUERY, SECONDS, best_clip_moment)


# ---------------------------------------------------------------- scores of tokens


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**31))
def test_the_best_token_scores_as_the_video(num_queries: int, num_videos: int, num_tokens: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(num_queries, 3, generator=generator, dtype=torch.float64)
    tokens = torch.randn(num_videos, num_tokens, 3, generator=generator, dtype=torch.float64)
    mask = torch.rand(num_videos, num_tokens, generator=generator) < 0.7
    mask[:, 0] = True
    video_of_query = torch.randint(num_videos, (num_queries,), generator=generator)
    found = token_scores(queries, tokens, mask, video_of_query)
    for row, video in enumerate(video_of_query.tolist()):
        for token in range(num_tokens):
            if mask[video, token]:
                cosine = torch.cosine_similarity(queries[row], tokens[video, token], dim=0)
                torch.testing.assert_close(found[row, token], cosine)
            else:
                assert found[row, token] == -torch.inf
    own = scoring.cosine_max_sim(queries, tokens, mask)[torch.arange(num_queries), video_of_query]
    torch.testing.assert_close(found.max(1).values, own)


def test_curves_have_the_spans_of_the_own_video() -> None:
    spans = torch.rand(2, 3, 2)
    tokens = Tokens(vectors=torch.randn(2, 3, 4), mask=torch.ones(2, 3, dtype=torch.bool), spans=spans)
    own = torch.tensor([1, 0, 1])
    found = curves({"clip": torch.randn(3, 4)}, {"clip": tokens}, own)
    assert np.array_equal(found["clip"].spans, spans[own])
