import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.methods import MSC
from midreel.methods.base import join_texts
from midreel.methods.batches import VideoBatch
from midreel.training.data import FeatureSet, hold_out
from midreel.types import Split
from tests.training.worlds import World, recipe

METHOD = MSC(recipe().config)
WORLD = World(6)
SET = FeatureSet.prepare(METHOD, WORLD.split, WORLD)


def test_videos_are_prepared_as_the_method_says() -> None:
    assert len(SET) == 6
    for index, video_id in enumerate(SET.video_ids):
        expected = METHOD.prepare_videos(WORLD.videos[video_id].frames[None])
        assert SET.videos.frames[index].equal(expected.frames[0])
        assert SET.videos.clip_of_frame[index].equal(expected.clip_of_frame[0])


def test_what_is_prepared_is_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0
    prepare = METHOD.prepare_videos

    def watched(features: torch.Tensor) -> VideoBatch:
        nonlocal most
        batch = prepare(features)
        alive.add(batch.frames)
        most = max(most, len(alive))
        return batch

    monkeypatch.setattr(METHOD, "prepare_videos", watched)
    assert FeatureSet.prepare(METHOD, WORLD.split, WORLD).videos.frames.equal(SET.videos.frames)
    assert most <= 2  # one that is copied, while the next is made


@given(st.permutations(range(6)), st.integers(1, 6))
def test_a_batch_holds_the_videos_and_all_their_queries(order: list[int], size: int) -> None:
    videos = torch.tensor(order[:size])
    batch = SET.batch(videos)
    assert len(batch.queries) == 2 * size
    assert batch.videos.frames.equal(SET.videos.frames[videos])
    for words, mask, video in zip(batch.queries.words, batch.queries.mask, batch.video_of_query.tolist(), strict=True):
        own = [
            t.words for t, q in zip(SET.texts, SET.queries, strict=True) if q.video_id == SET.video_ids[videos[video]]
        ]
        assert any(words[mask].equal(candidate) for candidate in own)


def test_batches_of_all() -> None:
    assert torch.cat([videos.frames for videos in SET.video_batches(4)]).equal(SET.videos.frames)
    assert sum(len(queries) for queries in SET.query_batches(5)) == 12


def test_padding() -> None:
    batch = join_texts(SET.texts[:2])
    assert batch.words.shape == (2, 4, 8)
    assert batch.mask.sum(1).tolist() == [3, 4]
    assert batch.sentence is not None
    assert batch.sentence.equal(torch.stack([text.sentence for text in SET.texts[:2]]))


def test_videos_that_no_query_describes_are_left_out() -> None:
    split = Split(video_ids=WORLD.split.video_ids, queries=WORLD.split.queries[:4])
    assert FeatureSet.prepare(METHOD, split, WORLD).video_ids == ("video 0", "video 1")
    with pytest.raises(BadBatch, match="the split has no query, expected at least one; check its annotations"):
        FeatureSet.prepare(METHOD, Split(video_ids=("video 0",), queries=()), WORLD)


@given(st.floats(0.01, 0.99), st.integers(0, 99))
def test_holding_out_is_by_video(share: float, seed: int) -> None:
    kept, held = hold_out(WORLD.split, share, seed)
    assert set(kept.video_ids) | set(held.video_ids) == set(WORLD.split.video_ids)
    assert not set(kept.video_ids) & set(held.video_ids)
    assert kept.video_ids
    assert held.video_ids
    assert len(kept.queries) + len(held.queries) == len(WORLD.split.queries)
    assert hold_out(WORLD.split, share, seed) == (kept, held)


def test_of_a_single_video_nothing_can_be_held_out() -> None:
    (video_id, *_), queries = WORLD.split.video_ids, WORLD.split.queries
    alone = Split(video_ids=(video_id,), queries=tuple(query for query in queries if query.video_id == video_id))
    with pytest.raises(BadSetting, match="a split of 1 video, expected two or more to hold some out; add videos"):
        hold_out(alone, 0.1, 0)
