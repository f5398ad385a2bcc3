from dataclasses import fields, replace

import pytest
import torch

from midreel.errors import BadAnnotation, BadBatch, BadSetting, UnknownName
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.types import COSINE, Moment, Query, Similarity, Split, Tokens, with_norms

WORDS = torch.randn(3, 4, 5)
MASK = torch.ones(3, 4, dtype=torch.bool)
VIDEOS = VideoBatch(frames=torch.randn(2, 6, 5), clip_of_frame=torch.zeros(2, 6, dtype=torch.long))


def test_batch() -> None:
    batch = Batch(
        videos=VIDEOS,
        queries=QueryBatch(words=WORDS, mask=MASK, sentence=torch.randn(3, 7), teacher=torch.randn(3, 9)),
        video_of_query=torch.tensor([0, 1, 1]),
    )
    assert len(batch.videos) == 2
    assert len(batch.queries) == 3


def test_clips_of_other_length(unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"clip_of_frame .*\(2, 7\).*T = 6"):
        VideoBatch(frames=VIDEOS.frames, clip_of_frame=torch.zeros(2, 7, dtype=torch.long))


def test_mask_and_clips_of_other_shape(unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"mask .*\(2, 5\).*T = 6"):
        replace(VIDEOS, mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(BadBatch, match=r"clips .*\(3, 2, 5\).*B = 2"):
        replace(VIDEOS, clips=torch.randn(3, 2, 5))


def test_index_and_join_batches() -> None:
    whole = replace(VIDEOS, mask=torch.rand(2, 6) > 0.5, clips=torch.randn(2, 3, 5))
    for batch in (VIDEOS, whole):
        back = VideoBatch.join([batch[torch.tensor([1])], batch[torch.tensor([0])]], 2)[torch.tensor([1, 0])]
        for field in fields(batch):
            expected, found = getattr(batch, field.name), getattr(back, field.name)
            assert (found is None) if expected is None else found.equal(expected)
    assert len(whole[torch.tensor([1, 1, 0])]) == 3


def test_join_different_batches() -> None:
    short = VideoBatch(frames=VIDEOS.frames[:, :1], clip_of_frame=VIDEOS.clip_of_frame[:, :1])
    masked = replace(VIDEOS, mask=torch.ones(2, 6, dtype=torch.bool))
    half = replace(VIDEOS, frames=VIDEOS.frames.half())
    for batches in ([VIDEOS, short], [VIDEOS, masked], [masked, VIDEOS], [VIDEOS, half]):
        with pytest.raises(BadBatch, match=r"videos 2 to 3 "):
            VideoBatch.join(batches, 4)


@pytest.mark.parametrize(("num_batches", "came"), [(0, "0"), (1, "2"), (2, "4 or more")])
def test_join_wrong_number_of_videos(num_batches: int, came: str) -> None:
    with pytest.raises(BadBatch, match=rf"\b{came} videos\b.*expected 3"):
        VideoBatch.join([VIDEOS] * num_batches, 3)


def test_query_without_words() -> None:
    mask = MASK.clone()
    mask[1] = False
    with pytest.raises(BadBatch, match=r"queries \[1\]"):
        QueryBatch(words=WORDS, mask=mask)


@pytest.mark.parametrize("name", ["sentence", "teacher"])
def test_vectors_of_other_length(name: str, unchecked: None) -> None:
    with pytest.raises(BadBatch, match=rf"{name} .*\(2, 7\).*Q = 3"):
        QueryBatch(words=WORDS, mask=MASK, **{name: torch.randn(2, 7)})


@pytest.mark.parametrize("stray", [-1, 2])
def test_query_of_missing_video(stray: int) -> None:
    with pytest.raises(BadBatch, match=r"video_of_query .* expected 0 to 1"):
        Batch(
            videos=VIDEOS,
            queries=QueryBatch(words=WORDS, mask=MASK),
            video_of_query=torch.tensor([0, 1, stray]),
        )


@pytest.mark.parametrize(("start", "end"), [(5.0, 4.0), (-1.0, 4.0), (float("nan"), 4.0)])
def test_impossible_moment(start: float, end: float) -> None:
    with pytest.raises(BadAnnotation, match=rf"{start} to {end} s"):
        Moment(start=start, end=end)


def test_query_whose_video_is_not_in_the_split() -> None:
    query = Query(id="q", text="a ball falls", video_id="b", moments=(Moment(start=0.0, end=2.5),))
    assert Split(video_ids=("a", "b"), queries=(query,)).queries[0].moments == (Moment(start=0.0, end=2.5),)
    with pytest.raises(BadAnnotation, match="'b'"):
        Split(video_ids=("a",), queries=(query,))


def test_wrong_dtypes(unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"frames .*torch.int64"):
        VideoBatch(frames=torch.ones(1, 2, 3, dtype=torch.long), clip_of_frame=torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(BadBatch, match=r"mask .*torch.int64"):
        QueryBatch(words=WORDS, mask=MASK.long())
    with pytest.raises(BadBatch, match=r"mask .*torch.float32"):
        replace(VIDEOS, mask=torch.ones(2, 6))
    with pytest.raises(BadBatch, match=r"clips .*torch.int64"):
        replace(VIDEOS, clips=torch.ones(2, 3, 5, dtype=torch.long))
    with pytest.raises(BadBatch, match=r"words .*ndarray"):
        QueryBatch(words=WORDS.numpy(), mask=MASK)  # type: ignore[arg-type]


def test_tokens_that_do_not_fit_together(unchecked: None) -> None:
    vectors, mask, spans = torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3, 2)
    assert len(Tokens(vectors=vectors, mask=mask, spans=spans)) == 2
    with pytest.raises(BadBatch, match=r"mask .*\(2, 2\)"):
        Tokens(vectors=vectors, mask=mask[:, :2], spans=spans)
    with pytest.raises(BadBatch, match=r"spans .*\(2, 3, 1\)"):
        Tokens(vectors=vectors, mask=mask, spans=spans[:, :, :1])
    with pytest.raises(BadBatch, match=r"mask .*torch.int64"):
        Tokens(vectors=vectors, mask=mask.long(), spans=spans)


def test_move_batch() -> None:
    batch = Batch(videos=VIDEOS, queries=QueryBatch(words=WORDS, mask=MASK), video_of_query=torch.tensor([0, 1, 1]))
    moved = batch.to("cpu")
    assert moved.queries.sentence is None
    assert moved.videos.frames.equal(VIDEOS.frames)


ATTENTION = Similarity(kind="attention", guide="clip", keys="key")


def test_the_kinds_of_similarity(unchecked: None) -> None:
    assert Similarity() == COSINE
    with pytest.raises(UnknownName, match=r"'cosin'.*'cosine'"):
        Similarity(kind="cosin")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "guide", "keys"),
    [("attention", "", ""), ("attention", "a", ""), ("attention", "", "a"), ("dot", "a", "b"), ("cosine", "", "b")],
)
def test_only_an_attention_names_branches(kind: str, guide: str, keys: str) -> None:
    with pytest.raises(BadSetting, match=f"guide is '{guide}' and keys is '{keys}'"):
        Similarity(kind=kind, guide=guide, keys=keys)  # type: ignore[arg-type]


def test_branches_whose_lengths_count() -> None:
    assert with_norms({}) == set()
    assert with_norms({"clip": COSINE}) == set()
    assert with_norms({"scene": Similarity(kind="dot"), "clip": COSINE}) == {"scene"}
    assert with_norms({"frame": ATTENTION}) == {"frame", "clip", "key"}
