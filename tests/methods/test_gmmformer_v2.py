"""GMMFormer v2 as a whole: sizes, inputs, terms, padding, bad input."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from midreel.errors import BadBatch, BadSetting
from midreel.losses import contrastive, diversity, matching, ranking
from midreel.methods import METHODS, MSC, ClipZeroShot
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.gmmformer_v2 import GMMFormerV2, GMMFormerV2Config
from midreel.nn.embed import unit_rows
from midreel.ops import scoring, segments
from midreel.recipes.recipe import Recipe
from tests.methods.small import STACKED_LENGTHS as LENGTHS
from tests.methods.small import stacked_batch as batch
from tests.methods.small import stacked_videos as features
from tests.methods.small import train
from tests.training.worlds import WIDTH, World

SMALL: dict[str, Any] = {"video_width": 10, "text_width": 6, "width": 8, "num_heads": 2, "max_words": 9}


def make(**settings: Any) -> GMMFormerV2:
    torch.manual_seed(1)
    return GMMFormerV2(GMMFormerV2Config(**SMALL | settings))


def test_the_registry() -> None:
    assert METHODS["gmmformer_v2"] is GMMFormerV2


@pytest.mark.parametrize(
    ("video_width", "text_width", "max_words", "expected"),
    [
        (3072, 768, 30, 32_273_440),
        (1024, 1024, 30, 30_791_200),
        (768, 768, 30, 30_494_752),
        (768, 768, 77, 30_512_800),
        (2816, 512, 77, 31_995_040),
    ],
)
def test_number_of_parameters(video_width: int, text_width: int, max_words: int, expected: int) -> None:
    config = GMMFormerV2Config(video_width=video_width, text_width=text_width, max_words=max_words)
    with torch.device("meta"):
        method = GMMFormerV2(config)
    assert sum(p.numel() for p in method.parameters()) == expected
    assert len(method.state_dict()) == 297


class TestInputs:
    def test_frames_are_capped_and_clips_averaged_from_all_frames(self) -> None:
        videos = make().prepare_videos(features(), LENGTHS)
        assert videos.mask is not None
        assert videos.clips is not None
        assert videos.mask.sum(1).tolist() == [128, 128, 40, 1]
        for index, num in enumerate(LENGTHS.tolist()):
            real = features()[index, :num]
            frames = segments.resample(real[None])[0] if num > 128 else real
            torch.testing.assert_close(videos.frames[index, : len(frames)], frames)
            assert (videos.frames[index, len(frames) :] == 0).all()
            torch.testing.assert_close(videos.clips[index], segments.resample(real[None], 32)[0])
        assert videos.clip_of_frame[0].equal(segments.uniform(videos.frames[:1])[0])
        assert videos.clip_of_frame[2, :40].tolist() == [frame * 32 // 40 for frame in range(40)]
        assert (videos.clip_of_frame[2, 40:] == 31).all()

    def test_a_batch_of_whole_videos(self) -> None:
        method = make()
        alone = method.prepare_videos(features()[1:2, :128])
        assert alone.frames.equal(method.prepare_videos(features(), LENGTHS).frames[1:2])
        assert method.segment(alone.frames).equal(alone.clip_of_frame)

    def test_both_branches_are_scaled_to_length_one(self) -> None:
        method = make().eval()
        videos = method.prepare_videos(features(), LENGTHS)
        assert videos.mask is not None
        assert videos.clips is not None
        tokens = method.encode_videos(videos)
        clips = method.clip(unit_rows(videos.clips), method.weight_token)
        torch.testing.assert_close(tokens["clip"].vectors, clips)
        frames = method.frame(unit_rows(videos.frames), method.weight_token, mask=videos.mask)
        torch.testing.assert_close(tokens["frame"].vectors, frames)

    def test_spans_follow_the_real_frames(self) -> None:
        method = make()
        tokens = method.encode_videos(method.prepare_videos(features(), LENGTHS))
        assert tokens["frame"].vectors.shape == (4, 128, 8)
        assert tokens["clip"].vectors.shape == (4, 32, 8)
        torch.testing.assert_close(tokens["clip"].spans[2, 5], torch.tensor([5 / 32, 6 / 32]))
        torch.testing.assert_close(tokens["frame"].spans[2, 39], torch.tensor([39 / 40, 1.0]))
        assert tokens["frame"].spans[2, 40:].eq(1).all()
        assert tokens["frame"].spans[3, 0].tolist() == [0, 1]

    def test_a_long_query_is_cut(self) -> None:
        method = make().eval()
        words = torch.randn(2, 14, 6)
        whole = method.encode_queries(QueryBatch(words=words, mask=torch.ones(2, 14, dtype=torch.bool)))
        cut = method.encode_queries(QueryBatch(words=words[:, :9], mask=torch.ones(2, 9, dtype=torch.bool)))
        assert whole["clip"].equal(cut["clip"])


class TestScore:
    def test_branches_are_weighted(self) -> None:
        method = make().eval()
        data = batch(method)
        vectors, tokens = method.encode_queries(data.queries), method.encode_videos(data.videos)
        clip, frame = (scoring.cosine_max_sim(vectors[b], tokens[b].vectors) for b in ("clip", "frame"))
        torch.testing.assert_close(method.score(vectors, tokens), 0.7 * clip + 0.3 * frame)

    def test_the_frames_of_a_padded_video_never_score_below_zero(self) -> None:
        method = make().eval()
        data = batch(method)
        tokens = method.encode_videos(data.videos)["frame"]
        away = -tokens.vectors[:, 0]  # a query that dislikes the first frame of each video
        scores = scoring.cosine_max_sim(away, tokens.vectors, tokens.mask).diagonal()
        assert scores[3] == 0  # the only real frame is the disliked one
        assert (scores[2:] >= 0).all()

    @pytest.mark.parametrize("index", range(4))
    def test_a_video_does_not_see_its_batch_mates(self, index: int) -> None:
        method = make().eval()
        together = method.encode_videos(method.prepare_videos(features(), LENGTHS))
        alone = method.encode_videos(method.prepare_videos(features()[index : index + 1, : LENGTHS[index]]))
        for branch, tokens in alone.items():
            torch.testing.assert_close(tokens.vectors[0], together[branch].vectors[index])


class TestTerms:
    def test_terms_are_the_weighted_formulas(self) -> None:
        method = make(hard_pool=1, hard_from_epoch=0).eval()
        data = batch(method)
        tokens, query = method.encode_videos(data.videos), method.encode_queries(data.queries)["clip"]
        losses = method.losses(data)
        assert list(losses) == [
            *("clip_nce", "clip_triplet", "frame_nce", "frame_triplet"),
            *("query_diversity", "matching"),
        ]
        for branch, weight in (("clip", 0.02), ("frame", 0.04)):
            products = scoring.max_sim(query, tokens[branch].vectors)
            torch.testing.assert_close(
                losses[f"{branch}_nce"], weight * contrastive.infonce(products, data.video_of_query)
            )
            cosines = scoring.cosine_max_sim(query, tokens[branch].vectors)
            expected = ranking.triplet(cosines, data.video_of_query, margin=0.2, hard=True, hard_pool=1)
            torch.testing.assert_close(losses[f"{branch}_triplet"], expected)
        apart = diversity.query_diversity(query, data.video_of_query, shift=0.2, scale=32.0, focus=1.0)
        torch.testing.assert_close(losses["query_diversity"], 0.003 * apart)
        matched = matching.optimal_matching(query, tokens["clip"].vectors, data.video_of_query)
        torch.testing.assert_close(losses["matching"], 0.11 * matched)

    def test_queries_are_encoded_a_second_time(self) -> None:
        method = make(dropout=0.5, input_dropout=0.5)
        calls = []
        method.query.register_forward_hook(lambda *arguments: calls.append(arguments[2]))
        method.losses(batch(method))
        assert len(calls) == 2
        assert not calls[0].equal(calls[1])

    def test_every_weight_is_trained(self) -> None:
        method = make()
        torch.stack(list(method.losses(batch(method)).values())).sum().backward()
        idle = {name for name, p in method.named_parameters() if p.grad is None}
        assert idle == {f"{branch}.mixture.summary.key.bias" for branch in ("clip", "frame")}  # moves no logit
        assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)

    def test_one_query_for_each_video(self) -> None:
        method = make()
        data = batch(method)
        single = dataclasses.replace(
            data,
            queries=QueryBatch(words=data.queries.words[:2], mask=data.queries.mask[:2]),
            video_of_query=torch.tensor([0, 2]),
        )
        losses = method.losses(single)
        assert losses["query_diversity"] == losses["matching"] == 0
        torch.stack(list(losses.values())).sum().backward()


def test_it_trains_and_is_evaluated_like_any_method(tmp_path: Any) -> None:
    config = GMMFormerV2Config(
        video_width=WIDTH, text_width=WIDTH, width=8, num_heads=2, num_frames=16, num_clips=6, max_words=6
    )
    recipe = Recipe(config=config, lr=3e-3, batch_size=5, epochs=2)
    train(tmp_path / "run", recipe, World(10))
    found = METHODS["gmmformer_v2"].from_pretrained(tmp_path / "run/best")
    assert found.config == config
    assert Recipe.from_json(recipe.to_json()) == recipe


class TestBadInput:
    def test_videos_of_a_method_that_resamples(self) -> None:
        resampled = VideoBatch(frames=torch.randn(1, 128, 10), clip_of_frame=torch.zeros(1, 128, dtype=torch.long))
        with pytest.raises(BadBatch, match="no mask"):
            make().encode_videos(resampled)

    def test_its_videos_in_a_method_that_resamples(self) -> None:
        padded = make().prepare_videos(features())
        for other in (
            MSC(MSC.Config(**SMALL)),
            ClipZeroShot(ClipZeroShot.Config(width=10)),
        ):
            with pytest.raises(BadBatch, match="have a mask"):
                other.encode_videos(padded)

    def test_other_sizes(self) -> None:
        videos = make(num_clips=16).prepare_videos(features())
        with pytest.raises(BadBatch, match="16 clips, expected 32"):
            make().encode_videos(videos)
        with pytest.raises(BadBatch, match="64 frames of width 10, expected 128"):
            make().encode_videos(make(num_frames=64).prepare_videos(features()))
        with pytest.raises(BadBatch, match="width 7, expected 6"):
            make().encode_queries(QueryBatch(words=torch.randn(1, 3, 7), mask=torch.ones(1, 3, dtype=torch.bool)))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_clips", 200),
            ("matching_weight", -1.0),
            ("temperature", 0.0),
            ("diversity_scale", math.nan),
            ("diversity_scale", -32.0),
            ("diversity_focus", -1.0),
            ("hard_from_epoch", -1),
        ],
    )
    def test_impossible_settings(self, name: str, value: Any, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=f"{name} is {value}, expected"):
            GMMFormerV2Config(**{name: value})
