"""AMDNet as a whole: the released model, sizes, inputs, terms, training, bad input."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from midreel.errors import BadBatch, BadSetting, UnknownName
from midreel.losses import ranking
from midreel.methods import METHODS, MSC, load_method
from midreel.methods.amdnet import AMDNet, AMDNetConfig
from midreel.methods.base import Method
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.ops import scoring, segments
from midreel.recipes import build
from midreel.recipes.recipe import Recipe
from midreel.training.fit import read_lines
from midreel.training.optim import decays
from tests.methods import twin_amdnet
from tests.methods.small import small_config, train
from tests.methods.twin_amdnet import ReleasedAMDNet
from tests.training.worlds import World

SMALL: dict[str, Any] = {"video_width": 10, "text_width": 6, "width": 8}
LENGTHS = (5, 31, 32, 33, 40, 100, 300)
OWNERS = [0, 0, 1, 2, 3, 4, 5, 6, 6]


def make(**settings: Any) -> AMDNet:
    torch.manual_seed(1)
    return AMDNet(AMDNetConfig(**SMALL | settings))


def queries(num: int = 9, *, sentence: torch.Tensor | None = None) -> QueryBatch:
    generator = torch.Generator().manual_seed(2)
    vectors = torch.randn(num, 6, generator=generator) if sentence is None else sentence
    return QueryBatch(
        words=torch.randn(len(vectors), 5, 6, generator=generator),
        mask=torch.arange(5) < torch.arange(len(vectors))[:, None] % 5 + 1,
        sentence=vectors,
    )


def videos(
    method: Method, lengths: tuple[int, ...] = LENGTHS, width: int = 10
) -> tuple[list[torch.Tensor], VideoBatch]:
    generator = torch.Generator().manual_seed(3)
    features = [torch.randn(length, width, generator=generator) for length in lengths]
    return features, VideoBatch.join([method.prepare_videos(each[None]) for each in features], len(features))


def batch(method: AMDNet) -> Batch:
    return Batch(videos=videos(method)[1], queries=queries(), video_of_query=torch.tensor(OWNERS))


class TestTwin:
    """The released model, with random weights under its own names."""

    @torch.no_grad()
    def test_vectors_tokens_scores_and_losses(self) -> None:
        torch.manual_seed(0)
        twin = ReleasedAMDNet(10, 6, 8).double().eval()
        for weight in twin.parameters():
            weight.add_(0.5 * torch.randn_like(weight))
        method = make().double().eval()
        method.load_state_dict(twin_amdnet.renamed(twin.state_dict()))
        features, prepared = videos(method)
        prepared = VideoBatch.join([method.prepare_videos(each[None].double()) for each in features], len(features))
        sentences = torch.randn(9, 6, dtype=torch.float64)
        data = Batch(videos=prepared, queries=queries(sentence=sentences), video_of_query=torch.tensor(OWNERS))
        expected = [twin.encode_video(each.double()) for each in features]
        vectors = [twin.encode_query(each) for each in sentences]

        tokens, found = method.encode_videos(prepared), method.encode_queries(data.queries)
        torch.testing.assert_close(found["clip"], torch.stack(vectors))
        torch.testing.assert_close(tokens["clip"].vectors, torch.stack([each.tokens for each in expected]))
        for part, name in ((2, "masks"), (1, "whole"), (3, "moments")):
            torch.testing.assert_close(
                method.clip(prepared.frames)[part], torch.stack([getattr(e, name) for e in expected])
            )
        scores = torch.stack([torch.stack([twin_amdnet.score(q, v) for v in expected]) for q in vectors])
        torch.testing.assert_close(method.score(found, tokens), scores)

        losses = method.losses(data)
        assert list(losses) == ["nce", "span_diversity", "span_relevance"]
        torch.testing.assert_close(losses["nce"], 0.02 * twin_amdnet.infonce(vectors, expected, OWNERS))
        torch.testing.assert_close(losses["span_diversity"], twin_amdnet.diversity(expected))
        torch.testing.assert_close(losses["span_relevance"], 25 * twin_amdnet.relevance(vectors, expected, OWNERS))
        assert all(loss > 0 for loss in losses.values())

    def test_every_weight_has_a_released_name(self) -> None:
        released = ReleasedAMDNet(10, 6, 8).state_dict()
        assert len(released) == 37
        found = twin_amdnet.renamed(released)
        assert {name: weight.shape for name, weight in found.items()} == {
            name: weight.shape for name, weight in make().state_dict().items()
        }

    def test_the_same_weights_decay(self) -> None:
        for old, new in zip(
            ReleasedAMDNet(10, 6, 8).state_dict(),
            twin_amdnet.renamed(ReleasedAMDNet(10, 6, 8).state_dict()),
            strict=True,
        ):
            spared = "bias" in old or "LayerNorm.weight" in old
            assert decays(new) != spared, (old, new)


@pytest.mark.parametrize(
    ("video_width", "text_width", "width", "expected"),
    [
        (512, 512, 384, 1_781_896),
        (512, 512, 256, 893_704),
        (768, 768, 384, 1_979_528),
        (768, 768, 256, 1_025_800),
        (2816, 512, 384, 2_671_240),
        (2816, 512, 256, 1_488_136),
    ],
)
def test_number_of_parameters(video_width: int, text_width: int, width: int, expected: int) -> None:
    with torch.device("meta"):
        method = AMDNet(AMDNetConfig(video_width=video_width, text_width=text_width, width=width))
    assert sum(parameter.numel() for parameter in method.parameters()) == expected
    assert len(method.state_dict()) == 37


STATED = {
    #               width  lr     f0   dropout epochs patience seed video text
    "qvhighlights": (256, 2.5e-4, 0.02, 0.2, 100, 15, 3407, 2816, 512),
    "tvr": (384, 3e-4, 0.04, 0.2, 200, 15, 9527, 768, 768),
    "activitynet": (256, 2.5e-4, 0.02, 0.2, 100, 15, 3407, 768, 768),
    "charades": (256, 2.5e-4, 0.02, 0.15, 100, 10, 3407, 768, 768),
}


@pytest.mark.parametrize("name", STATED)
def test_a_recipe_is_what_the_release_sets(name: str) -> None:
    recipe = build("amdnet", name)
    c = recipe.config
    found = (
        c.width, recipe.lr, c.nce_weight, c.dropout, recipe.epochs, recipe.patience, recipe.seed, c.video_width,
        c.text_width,
    )  # fmt: skip
    assert found == STATED[name]
    assert c.input_dropout == c.dropout
    assert (c.num_clips, c.num_heads, c.relevance_weight, c.relevance_margin, c.diversity_target) == (
        32,
        4,
        25,
        0.02,
        0.15,
    )
    assert (c.triplet_weight, c.diversity_weight, recipe.batch_size, recipe.warmup) == (0, 1, 128, 0.01)


class TestInputs:
    def test_clips_are_averaged_and_not_scaled(self) -> None:
        features, prepared = videos(make())
        for row, each in enumerate(features):
            torch.testing.assert_close(prepared.frames[row], segments.resample(each[None], 32)[0])
        assert prepared.clip_of_frame.equal(torch.arange(32).expand(len(features), 32))

    @pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 300])
    def test_a_video_does_not_see_its_batch_mates(self, length: int) -> None:
        method = make().eval()
        features = torch.randn(3, 300, 10)
        lengths = torch.tensor([300, length, 7])
        features[1, length:] = math.nan
        together = method.encode_videos(method.prepare_videos(features, lengths))["clip"]
        alone = method.encode_videos(method.prepare_videos(features[1:2, :length]))["clip"]
        torch.testing.assert_close(alone.vectors[0], together.vectors[1])
        assert alone.vectors.isfinite().all()
        assert alone.spans[0, 5].tolist() == [5 / 32, 6 / 32]

    def test_words_do_not_count_unless_asked_for(self) -> None:
        given = queries()
        method = make().eval()
        long = QueryBatch(
            words=torch.randn(9, 200, 3), mask=torch.ones(9, 200, dtype=torch.bool), sentence=given.sentence
        )
        assert method.encode_queries(long)["clip"].equal(method.encode_queries(given)["clip"])

    def test_the_mean_of_the_words(self) -> None:
        given = queries()
        words = given.words.clone()
        words[~given.mask] = math.nan
        means = torch.stack([row[mask].mean(0) for row, mask in zip(words, given.mask, strict=True)])
        method = make(query="words").eval()
        found = method.encode_queries(QueryBatch(words=words, mask=given.mask))["clip"]
        torch.testing.assert_close(found, make().eval().encode_queries(queries(sentence=means))["clip"])

    def test_half_precision(self) -> None:
        method = make().eval()
        features, prepared = videos(method)
        half = VideoBatch.join([method.prepare_videos(each[None].half()) for each in features], len(features))
        found, expected = (method.encode_videos(each)["clip"].vectors for each in (half, prepared))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


class TestTerms:
    def test_the_triplet_loss_can_be_added(self) -> None:
        method = make(triplet_weight=0.5, hard_from_epoch=3, hard_pool=1, margin=0.3).eval()
        data = batch(method)
        tokens, vectors = method.encode_videos(data.videos)["clip"], method.encode_queries(data.queries)["clip"]
        cosines = scoring.cosine_max_sim(vectors, tokens.vectors)
        expected = ranking.triplet(cosines, data.video_of_query, margin=0.3, hard=True, hard_pool=1)
        torch.testing.assert_close(method.losses(data, epoch=3)["triplet"], 0.5 * expected)

    def test_queries_are_encoded_a_second_time(self) -> None:
        method = make(input_dropout=0.5)
        calls = []
        method.query.register_forward_hook(lambda *arguments: calls.append(arguments[2]))
        method.losses(batch(method))
        assert len(calls) == 2
        assert not calls[0].equal(calls[1])

    def test_every_weight_is_trained(self) -> None:
        method = make()
        torch.stack(list(method.losses(batch(method)).values())).sum().backward()
        for name, weight in method.named_parameters():
            assert weight.grad is not None, name
            assert weight.grad.isfinite().all(), name
        assert method.clip.spans.weight.grad is not None
        assert method.clip.spans.weight.grad.abs().sum() > 0

    def test_autocast(self) -> None:
        method = make()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = method.losses(batch(method))
        assert all(loss.dtype == torch.float32 for loss in losses.values())


@pytest.mark.slow
def test_training_lowers_the_loss(tmp_path: Path) -> None:
    # A large weight of InfoNCE, because the diversity of spans on six clips hardly changes.
    config = small_config("amdnet", nce_weight=1.0, dropout=0.0, input_dropout=0.0)
    train(tmp_path, Recipe(config=config, lr=3e-2, batch_size=5, epochs=15, patience=15), World(10))
    history = list(read_lines(tmp_path / "metrics.jsonl"))
    assert sum(history[-1]["loss"].values()) < 0.8 * sum(history[0]["loss"].values())
    assert isinstance(load_method(tmp_path / "best"), AMDNet)


def test_a_saved_model_has_the_same_weights(tmp_path: Path) -> None:
    method = make()
    method.save_pretrained(tmp_path)
    found = load_method(tmp_path)
    assert found.config == method.config
    assert all(weight.equal(method.state_dict()[name]) for name, weight in found.state_dict().items())
    assert METHODS["amdnet"] is AMDNet


class TestBadInput:
    def test_queries(self) -> None:
        given = queries()
        with pytest.raises(BadBatch, match="no sentence vectors"):
            make().encode_queries(QueryBatch(words=given.words, mask=given.mask))
        with pytest.raises(BadBatch, match="sentence vectors have width 7, expected 6"):
            make().encode_queries(queries(sentence=torch.randn(2, 7)))
        with pytest.raises(BadBatch, match="words have width 6, expected 9"):
            make(query="words", text_width=9).encode_queries(given)

    def test_videos(self) -> None:
        other = MSC(MSC.Config(video_width=10, text_width=6, width=8)).prepare_videos(torch.randn(1, 40, 10))
        with pytest.raises(BadBatch, match="128 frames of width 10, expected 32"):
            make().encode_videos(other)
        with pytest.raises(BadBatch, match="width 11, expected 32 of width 10"):
            make().encode_videos(videos(make(), width=11)[1])
        with pytest.raises(BadBatch, match="mask"):
            METHODS["amdnet"](AMDNetConfig(**SMALL)).encode_videos(
                METHODS["gmmformer_v2"](METHODS["gmmformer_v2"].Config(**SMALL, num_heads=2)).prepare_videos(
                    torch.randn(1, 9, 10)
                )
            )

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_clips", 200),
            ("width", 0),
            ("relevance_weight", -1.0),
            ("relevance_margin", -0.1),
            ("dropout", 1.0),
            ("hard_from_epoch", -1),
            ("diversity_target", math.nan),
        ],
    )
    def test_impossible_settings(self, name: str, value: Any, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=f"{name} is {value}, expected"):
            AMDNetConfig(**{name: value})

    def test_an_unknown_kind_of_query(self, unchecked: None) -> None:
        with pytest.raises(UnknownName, match="'letters'"):
            AMDNetConfig(query="letters")  # type: ignore[arg-type]

    def test_heads_that_do_not_fit(self) -> None:
        with pytest.raises(BadSetting, match="width is 10, expected a multiple of num_heads = 4"):
            make(width=10)
