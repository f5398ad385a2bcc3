import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.methods.base import Method, join_texts
from midreel.methods.batches import VideoBatch
from midreel.methods.bgm_net import BGMNet, BGMNetConfig
from midreel.methods.clip_zero_shot import ClipZeroShot, ClipZeroShotConfig
from midreel.methods.dl_dkd import DLDKD, DLDKDConfig
from midreel.methods.gmmformer import GMMFormer, GMMFormerConfig
from midreel.methods.gmmformer_v2 import GMMFormerV2, GMMFormerV2Config
from midreel.methods.ms_sl import MSSL, MSSLConfig
from midreel.methods.msc import MSC, MSCConfig
from midreel.training import streaming
from midreel.training.data import FeatureSet, hold_out
from midreel.types import Query, Split, TextFeatures, VideoFeatures
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


# BLAS splits long sums: from about 200 frames on, a product of a padded video would have other bits.
LENGTHS = (1, 371, 128, 12, 900, 332, 32, 75, 129, 295, 1, 1400)
BIT_WIDTH = 24
NETWORK = {"video_width": BIT_WIDTH, "text_width": BIT_WIDTH, "width": 8, "num_heads": 2}
METHODS: dict[str, Method] = {
    "msc": MSC(MSCConfig(**NETWORK)),
    "msc, uniform clips": MSC(MSCConfig(**NETWORK, clips="uniform")),
    "msc, released": MSC(MSCConfig(**NETWORK, variant="released")),
    "gmmformer": GMMFormer(GMMFormerConfig(**NETWORK)),
    "gmmformer_v2": GMMFormerV2(GMMFormerV2Config(**NETWORK)),
    "gmmformer_v2, 100 frames": GMMFormerV2(GMMFormerV2Config(**NETWORK, num_frames=100, num_clips=30)),
    "dl_dkd": DLDKD(DLDKDConfig(**NETWORK, teacher_width=8)),
    "dl_dkd, joined": DLDKD(DLDKDConfig(**NETWORK | {"video_width": BIT_WIDTH - 8}, teacher_width=8)),
    "ms_sl": MSSL(MSSLConfig(**NETWORK)),
    "bgm_net": BGMNet(BGMNetConfig(**NETWORK)),
    "clip_zero_shot": ClipZeroShot(ClipZeroShotConfig(width=BIT_WIDTH, clips="order_preserving")),
}


@dataclass
class Source:
    videos: dict[str, VideoFeatures]

    def video(self, video_id: str) -> VideoFeatures:
        return self.videos[video_id]

    def text(self, query_id: str) -> TextFeatures:
        return TextFeatures(words=torch.ones(2, BIT_WIDTH), sentence=torch.ones(BIT_WIDTH))


def videos_of(lengths: Sequence[int], dtype: torch.dtype = torch.float32) -> tuple[Split, Source]:
    """A split of one query per video, and its features."""
    ids = [f"video {number}" for number in range(len(lengths))]
    videos = {
        video_id: VideoFeatures(
            frames=torch.randn(length, BIT_WIDTH).to(dtype), times=torch.arange(float(length)), duration=float(length)
        )
        for video_id, length in zip(ids, lengths, strict=True)
    }
    queries = tuple(Query(id=video_id, text="…", video_id=video_id) for video_id in ids)
    return Split(video_ids=tuple(ids), queries=queries), Source(videos)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", METHODS)
def test_batches_have_the_bits_of_one_video_at_a_time(name: str, dtype: torch.dtype) -> None:
    method = METHODS[name]
    split, source = videos_of(LENGTHS, dtype)
    found = FeatureSet.prepare(method, split, source).videos
    alone = [method.prepare_videos(source.video(video_id).frames[None].float()) for video_id in split.video_ids]
    expected = VideoBatch.join(alone, len(alone))
    for field in fields(VideoBatch):
        part = getattr(expected, field.name)
        assert (getattr(found, field.name) is None) == (part is None)
        assert part is None or part.equal(getattr(found, field.name))


def test_numpy_features() -> None:
    split, source = videos_of((5, 9))
    as_numpy = Source({key: replace(video, frames=video.frames.numpy()) for key, video in source.videos.items()})
    found = FeatureSet.prepare(METHODS["msc"], split, as_numpy).videos
    assert found.frames.equal(FeatureSet.prepare(METHODS["msc"], split, source).videos.frames)


@pytest.fixture
def group_shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Videos and padded frames of each call of `prepare_videos`. The first call measures the size of one video."""
    shapes = []
    prepare = METHODS["msc"].prepare_videos

    def recorded(features: torch.Tensor, num_frames: torch.Tensor | None = None) -> VideoBatch:
        shapes.append((features.shape[0], features.shape[1]))
        return prepare(features, num_frames)

    monkeypatch.setattr(METHODS["msc"], "prepare_videos", recorded)
    return shapes


def test_groups_are_limited_in_videos(group_shapes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MAX_VIDEOS_AT_ONCE", 2)
    FeatureSet.prepare(METHODS["msc"], *videos_of((3, 7, 5, 2, 4)))
    assert group_shapes == [(1, 3), (2, 7), (2, 5), (1, 4)]


def test_groups_are_limited_in_padded_values(
    group_shapes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "MAX_PADDED_VALUES", 20 * BIT_WIDTH)
    FeatureSet.prepare(METHODS["msc"], *videos_of((3, 7, 7, 2, 50, 4, 5)))
    assert group_shapes == [(1, 3), (2, 7), (2, 7), (1, 50), (2, 5)]


def test_videos_of_different_widths() -> None:
    split, source = videos_of((5, 9))
    source.videos["video 1"] = replace(source.videos["video 1"], frames=torch.ones(9, BIT_WIDTH + 1))
    with pytest.raises(BadBatch):
        FeatureSet.prepare(METHODS["msc"], split, source)


def test_no_group_outlives_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0
    prepare = METHOD.prepare_videos

    def watched(features: torch.Tensor, num_frames: torch.Tensor) -> VideoBatch:
        nonlocal most
        batch = prepare(features, num_frames)
        alive.add(batch.frames)
        most = max(most, len(alive))
        return batch

    monkeypatch.setattr(streaming, "MAX_VIDEOS_AT_ONCE", 1)
    monkeypatch.setattr(METHOD, "prepare_videos", watched)
    assert FeatureSet.prepare(METHOD, WORLD.split, WORLD).videos.frames.equal(SET.videos.frames)
    assert most <= 2  # one is copied while the next is made


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


def test_videos_without_a_query_are_left_out() -> None:
    split = Split(video_ids=WORLD.split.video_ids, queries=WORLD.split.queries[:4])
    assert FeatureSet.prepare(METHOD, split, WORLD).video_ids == ("video 0", "video 1")
    with pytest.raises(BadBatch, match="0 queries"):
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


def test_holding_out_needs_two_videos() -> None:
    (video_id, *_), queries = WORLD.split.video_ids, WORLD.split.queries
    alone = Split(video_ids=(video_id,), queries=tuple(query for query in queries if query.video_id == video_id))
    with pytest.raises(BadSetting, match="has 1 video,"):
        hold_out(alone, 0.1, 0)
