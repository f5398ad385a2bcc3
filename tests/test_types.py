from dataclasses import fields, replace

import pytest
import torch

from midreel.errors import BadAnnotation, BadBatch
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.types import Moment, Query, Split

WORDS = torch.randn(3, 4, 5)
MASK = torch.ones(3, 4, dtype=torch.bool)
VIDEOS = VideoBatch(frames=torch.randn(2, 6, 5), clip_of_frame=torch.zeros(2, 6, dtype=torch.long))


def test_a_batch() -> None:
    batch = Batch(
        videos=VIDEOS,
        queries=QueryBatch(words=WORDS, mask=MASK, sentence=torch.randn(3, 7), teacher=torch.randn(3, 9)),
        video_of_query=torch.tensor([0, 1, 1]),
    )
    assert len(batch.videos) == 2
    assert len(batch.queries) == 3


def test_clips_of_other_videos(unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"clip_of_frame has shape \(2, 7\).*T = 6"):
        VideoBatch(frames=VIDEOS.frames, clip_of_frame=torch.zeros(2, 7, dtype=torch.long))


def test_masks_and_clips_of_other_videos(unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"mask has shape \(2, 5\).*T = 6"):
        replace(VIDEOS, mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(BadBatch, match=r"clips has shape \(3, 2, 5\).*B = 2"):
        replace(VIDEOS, clips=torch.randn(3, 2, 5))


def test_some_videos_of_a_batch_and_batches_as_one() -> None:
    whole = replace(VIDEOS, mask=torch.rand(2, 6) > 0.5, clips=torch.randn(2, 3, 5))
    for batch in (VIDEOS, whole):
        back = VideoBatch.join([batch[torch.tensor([1])], batch[torch.tensor([0])]], 2)[torch.tensor([1, 0])]
        for field in fields(batch):
            expected, found = getattr(batch, field.name), getattr(back, field.name)
            assert (found is None) if expected is None else found.equal(expected)
    assert len(whole[torch.tensor([1, 1, 0])]) == 3


def test_batches_that_do_not_fit_together() -> None:
    short = VideoBatch(frames=VIDEOS.frames[:, :1], clip_of_frame=VIDEOS.clip_of_frame[:, :1])
    masked = replace(VIDEOS, mask=torch.ones(2, 6, dtype=torch.bool))
    half = replace(VIDEOS, frames=VIDEOS.frames.half())
    for batches in ([VIDEOS, short], [VIDEOS, masked], [masked, VIDEOS], [VIDEOS, half]):
        with pytest.raises(BadBatch, match="videos 2 to 3"):
            VideoBatch.join(batches, 4)


@pytest.mark.parametrize(("num_batches", "came"), [(0, "0"), (1, "2"), (2, "4 or more")])
def test_batches_of_more_or_fewer_videos_than_were_said(num_batches: int, came: str) -> None:
    with pytest.raises(BadBatch, match=rf"{came} videos.*expected 3"):
        VideoBatch.join([VIDEOS] * num_batches, 3)


def test_a_query_without_words() -> None:
    mask = MASK.clone()
    mask[1] = False
    with pytest.raises(BadBatch, match=r"queries \[1\]"):
        QueryBatch(words=WORDS, mask=mask)


@pytest.mark.parametrize("name", ["sentence", "teacher"])
def test_vectors_of_other_queries(name: str, unchecked: None) -> None:
    with pytest.raises(BadBatch, match=rf"{name} has shape \(2, 7\).*Q = 3"):
        QueryBatch(words=WORDS, mask=MASK, **{name: torch.randn(2, 7)})


@pytest.mark.parametrize("stray", [-1, 2])
def test_a_query_of_a_video_that_is_not_there(stray: int) -> None:
    with pytest.raises(BadBatch, match=r"video_of_query .*expected 0 to 1"):
        Batch(
            videos=VIDEOS,
            queries=QueryBatch(words=WORDS, mask=MASK),
            video_of_query=torch.tensor([0, 1, stray]),
        )


@pytest.mark.parametrize(("start", "end"), [(5.0, 4.0), (-1.0, 4.0), (float("nan"), 4.0)])
def test_a_moment_that_cannot_be(start: float, end: float) -> None:
    with pytest.raises(BadAnnotation, match=rf"a moment goes from {start} to {end} s, expected 0 <= start <= end"):
        Moment(start=start, end=end)


def test_a_query_without_its_video() -> None:
    query = Query(id="q", text="a ball falls", video_id="b", moments=(Moment(start=0.0, end=2.5),))
    assert Split(video_ids=("a", "b"), queries=(query,)).queries[0].moments == (Moment(start=0.0, end=2.5),)
    with pytest.raises(BadAnnotation, match="queries describe 1 videos that the split does not hold, such as 'b'; add"):
        Split(video_ids=("a",), queries=(query,))


def test_features_and_masks_of_another_kind(unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"frames .*torch.int64"):
        VideoBatch(frames=torch.ones(1, 2, 3, dtype=torch.long), clip_of_frame=torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(BadBatch, match=r"mask .*torch.int64"):
        QueryBatch(words=WORDS, mask=MASK.long())
    with pytest.raises(BadBatch, match=r"mask .*torch.float32"):
        replace(VIDEOS, mask=torch.ones(2, 6))
    with pytest.raises(BadBatch, match=r"clips .*torch.int64"):
        replace(VIDEOS, clips=torch.ones(2, 3, 5, dtype=torch.long))
    with pytest.raises(BadBatch, match="words is a ndarray"):
        QueryBatch(words=WORDS.numpy(), mask=MASK)  # type: ignore[arg-type]


def test_a_batch_moves_as_a_whole() -> None:
    batch = Batch(videos=VIDEOS, queries=QueryBatch(words=WORDS, mask=MASK), video_of_query=torch.tensor([0, 1, 1]))
    moved = batch.to("cpu")
    assert moved.queries.sentence is None
    assert moved.videos.frames.equal(VIDEOS.frames)
