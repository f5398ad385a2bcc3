"""The reconstruction of ProtoPRVR as a whole: sizes, twin, spans, terms, padding, training, export, bad input."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.losses import contrastive, prototypes, ranking
from midreel.methods import METHODS, load_method
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.proto_prvr import ProtoPRVR, ProtoPRVRConfig
from midreel.ops import scoring
from midreel.recipes import RECIPES, build
from midreel.recipes.recipe import Recipe
from midreel.training.fit import read_lines
from tests.methods import twin_layers, twin_proto_prvr
from tests.methods.small import RAGGED_LENGTHS as LENGTHS
from tests.methods.small import RAGGED_WORDS as WORDS
from tests.methods.small import VIDEO_OF_QUERY, doubled, perturbed, train
from tests.methods.small import ragged_batch as batch
from tests.methods.small import ragged_sentences as sentences
from tests.methods.small import ragged_videos as features
from tests.training.worlds import WIDTH, World

SMALL: dict[str, Any] = {
    "video_width": 10, "text_width": 6, "width": 8, "num_heads": 2, "max_words": 9, "num_frames": 8, "num_clips": 4,
    "num_prototypes": 5, "num_steps": 6,
}  # fmt: skip
TRAINING_ONLY = ("word_decoder", "frame_decoder", "masked_word")


def make(**settings: Any) -> ProtoPRVR:
    torch.manual_seed(1)
    return perturbed(ProtoPRVR(ProtoPRVRConfig(**SMALL | settings)))


def test_registered_as_a_reconstruction() -> None:
    assert METHODS["proto_prvr"] is ProtoPRVR
    assert ProtoPRVR.reconstruction
    assert "Reconstruction" in str(make().generate_model_card())


@pytest.mark.parametrize(("max_words", "ms_sl"), [(30, 3_074_304), (77, 3_092_352)])
def test_number_of_parameters(max_words: int, ms_sl: int) -> None:
    with torch.device("meta"):
        method = ProtoPRVR(ProtoPRVRConfig(max_words=max_words))
    used = {name: p.numel() for name, p in method.named_parameters() if not name.startswith(TRAINING_ONLY)}
    key_and_value, layer = 2 * 384 * 384, 4 * (384 * 384 + 384) + 2 * 384
    assert sum(used.values()) == ms_sl - key_and_value + 2 * layer + 30 * 384
    heads = sum(p.numel() for p in method.parameters()) - sum(used.values())
    assert heads == 2 * (384 * 384 + 384) + 2 * 384 + layer + (30 + 1) * 128 + 384 * 384 + 384 + 768


# ---------------------------------------------------------------- the twin


class Twin:
    def __init__(self, method: ProtoPRVR) -> None:
        self.weights = dict(method.state_dict(keep_vars=True))
        self.videos, self.queries = [each.double() for each in features()], [each.double()[:9] for each in sentences()]
        self.tokens = [twin_proto_prvr.contexts(video, self.weights, 2, 8, 4) for video in self.videos]
        self.found, self.attended = zip(
            *(twin_proto_prvr.prototypes(tokens, self.weights, 2) for tokens in self.tokens), strict=True
        )
        of_query = twin_layers.part(self.weights, "query")
        self.vectors = [twin_layers.query(words, of_query, 2) for words in self.queries]

    def chosen(self) -> list[Tensor]:
        return [
            self.found[video][twin_proto_prvr.retrieved(query, self.found[video])]
            for query, video in zip(self.vectors, VIDEO_OF_QUERY.tolist(), strict=True)
        ]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_encoders_spans_and_score_equal_the_twin() -> None:
    method = make().double()
    data = doubled(batch(method))
    videos, vectors = method.encode_videos(data.videos), method.encode_queries(data.queries)
    tokens = videos["prototype"]
    twin = Twin(method)
    close(vectors["prototype"], torch.stack(twin.vectors))
    close(tokens.vectors, torch.stack(twin.found))
    for video, attended in enumerate(twin.attended):
        num = min(LENGTHS[video], 8)
        spans = [(start / 4, end / 4) for start, end in twin_proto_prvr.windows(4)]
        spans += [(frame / num, (frame + 1) / num) for frame in range(num)]
        for number in range(5):
            expected = twin_proto_prvr.span(attended, number, spans)
            assert tokens.spans[video, number].tolist() == pytest.approx(expected, abs=1e-4)
        over_time = twin_proto_prvr.over_time(twin.found[video], attended, spans, 6)
        torch.testing.assert_close(videos["time"].vectors[video], over_time, atol=1e-4, rtol=0)
    score = method.score(vectors, videos)
    for i, query in enumerate(twin.vectors):
        for j, found in enumerate(twin.found):
            expected_score = max(twin_layers.cosine(query, each).item() for each in found)
            assert score[i, j].item() == pytest.approx(expected_score, abs=1e-6)


def same_gradient(method: ProtoPRVR, found: Tensor, expected: Tensor) -> None:
    for name in ("generator.layers.0.key.weight", "clip.project.linear.weight", "frame.block.value.weight"):
        weight = method.get_parameter(name)
        close(*(torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in (found, expected)))


def test_word_loss_equals_the_twin_in_value_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    method = make().double()
    data = doubled(batch(method))
    drawn: list[Tensor] = []
    draw = prototypes.words_to_mask
    monkeypatch.setattr(prototypes, "words_to_mask", lambda *given: drawn.append(draw(*given)) or drawn[0])
    tokens, _ = method.generator(*method.contexts(data.videos))
    found = method.word_loss(method.encode_queries(data.queries)["prototype"], tokens, data)
    twin = Twin(method)
    positions = [row.nonzero().flatten().tolist() for row in drawn[0]]
    assert [len(each) > 0 for each in positions] == [length > 2 for length in WORDS]
    expected = twin_proto_prvr.word_loss(twin.queries, positions, twin.chosen(), twin.weights, 2, 0.07)
    close(found, expected)
    same_gradient(method, found, expected)
    assert torch.autograd.grad(found, method.masked_word)[0].abs().max() > 0


def test_frame_loss_equals_the_twin_in_value_and_gradient() -> None:
    method = make().double()
    data = doubled(batch(method))
    found = method.frame_loss(method.generator(*method.contexts(data.videos))[0], data.videos)
    twin = Twin(method)
    expected = twin_proto_prvr.frame_loss(twin.videos, list(twin.found), twin.weights, 8)
    close(found, expected)
    same_gradient(method, found, expected)


def test_mixing_loss_equals_the_twin_in_value_and_gradient() -> None:
    method = make().double()
    data = doubled(batch(method))
    contexts, mask = method.contexts(data.videos)
    torch.manual_seed(7)
    found = method.mixing_loss(method.encode_queries(data.queries)["prototype"], contexts, mask, VIDEO_OF_QUERY)
    torch.manual_seed(7)
    cycle = torch.randperm(4).tolist()
    partner = {video: cycle[place - 1] for place, video in enumerate(cycle)}
    assert all(video != other for video, other in partner.items())
    twin = Twin(method)
    expected = twin_proto_prvr.mixing_loss(
        twin.vectors, twin.tokens, [partner[video] for video in range(4)], VIDEO_OF_QUERY.tolist(), twin.weights, 2
    )
    close(found, expected)
    same_gradient(method, found, expected)


def test_moments_by_spans_need_no_second_branch() -> None:
    both, alone = make(), make(num_steps=0)
    assert both.branch_weights == {"prototype": 1, "time": 0}
    assert both.curve_weights == {"prototype": 0, "time": 1}
    assert alone.branch_weights == alone.curve_weights == {"prototype": 1}
    data = batch(both)
    found, tokens = both.encode_videos(data.videos), alone.encode_videos(data.videos)
    assert list(tokens) == list(alone.encode_queries(data.queries)) == ["prototype"]
    assert tokens["prototype"].vectors.equal(found["prototype"].vectors)
    assert found["time"].vectors.shape == (4, 6, 8)
    torch.testing.assert_close(
        both.score(both.encode_queries(data.queries), found), alone.score(alone.encode_queries(data.queries), tokens)
    )


# ---------------------------------------------------------------- terms


def test_terms_are_the_weighted_formulas() -> None:
    weights = {"nce": 0.02, "triplet": 1.0, "words": 0.1, "frames": 1.0, "mixing": 0.1, "orthogonality": 0.1}
    method = make(hard_pool=1, hard_from_epoch=0)
    data = batch(method)
    torch.manual_seed(5)
    losses = method.losses(data)
    assert list(losses) == list(weights)
    tokens, query = method.encode_videos(data.videos)["prototype"], method.encode_queries(data.queries)["prototype"]
    contexts, mask = method.contexts(data.videos)
    torch.manual_seed(5)
    expected = {
        "nce": contrastive.infonce(scoring.max_sim(query, tokens.vectors), VIDEO_OF_QUERY),
        "triplet": ranking.triplet(
            scoring.cosine_max_sim(query, tokens.vectors), VIDEO_OF_QUERY, margin=0.2, hard=True, hard_pool=1
        ),
        "words": method.word_loss(query, tokens.vectors, data),
        "frames": method.frame_loss(tokens.vectors, data.videos),
        "mixing": method.mixing_loss(query, contexts, mask, VIDEO_OF_QUERY),
        "orthogonality": prototypes.orthogonality(tokens.vectors),
    }
    for name, term in expected.items():
        torch.testing.assert_close(losses[name], weights[name] * term)


def test_a_weight_of_zero_switches_a_term_off() -> None:
    off = {f"{name}_weight": 0.0 for name in ("word", "frame", "mixing", "orthogonality")}
    method = make(**off).train()
    losses = method.losses(batch(method))
    assert list(losses) == ["nce", "triplet"]
    torch.stack(list(losses.values())).sum().backward()
    idle = {name for name, p in method.named_parameters() if p.grad is None}
    assert idle == {name for name, _ in method.named_parameters() if name.startswith(TRAINING_ONLY)}


def test_every_weight_is_trained() -> None:
    method = make().train()
    torch.stack(list(method.losses(batch(method)).values())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_losses_have_single_precision_under_autocast() -> None:
    method = make().train()
    data = batch(method)
    with torch.autocast("cpu", torch.bfloat16):
        terms = method.losses(data, epoch=0)
    assert {term.dtype for term in terms.values()} == {torch.float32}
    torch.stack(list(terms.values())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_recipes() -> None:
    assert sorted(RECIPES["proto_prvr"]) == ["activitynet", "playhouse", "qvhighlights", "tvr"]
    for dataset, margin, lr in (("tvr", 0.1, 3e-4), ("activitynet", 0.2, 2.5e-4), ("playhouse", 0.2, 7e-4)):
        recipe = build("proto_prvr", dataset)
        assert (recipe.config.margin, recipe.lr) == (margin, lr)


@pytest.mark.parametrize("num_prototypes", [1, 3])
def test_small_batches(num_prototypes: int) -> None:
    method = make(num_prototypes=num_prototypes).train()
    for length in (1, 2, 3, 4, 5):
        for num_words in (1, 3):
            one = Batch(
                videos=method.prepare_videos(torch.randn(1, length, 10)),
                queries=QueryBatch(words=torch.randn(1, num_words, 6), mask=torch.ones(1, num_words).bool()),
                video_of_query=torch.tensor([0]),
            )
            terms = method.losses(one, epoch=30)
            assert all(term.isfinite() for term in terms.values())
            assert terms["mixing"] == 0
            torch.stack(list(terms.values())).sum().backward()
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


# ---------------------------------------------------------------- independence


@torch.no_grad()
def test_a_video_does_not_see_its_batch_mates() -> None:
    method = make()
    together = method.encode_videos(batch(method).videos)
    for index, video in enumerate(features()):
        for branch, alone in method.encode_videos(method.prepare_videos(video[None])).items():
            torch.testing.assert_close(alone.vectors[0], together[branch].vectors[index])
            torch.testing.assert_close(alone.spans[0], together[branch].spans[index])
            assert (alone.spans[0, :, 0] < alone.spans[0, :, 1]).all()
            assert alone.mask.all()


@torch.no_grad()
def test_a_query_does_not_see_its_batch_mates_and_is_cut() -> None:
    method = make()
    together = method.encode_queries(batch(method).queries)["prototype"]
    for index, words in enumerate(sentences()):
        for kept in (words, words[:9]):
            alone = method.encode_queries(QueryBatch(words=kept[None], mask=torch.ones(1, len(kept)).bool()))
            torch.testing.assert_close(alone["prototype"][0], together[index])


# ---------------------------------------------------------------- training and files


@pytest.mark.slow
def test_it_trains(tmp_path: Path) -> None:
    config = ProtoPRVRConfig(
        video_width=WIDTH, text_width=WIDTH, width=8, num_heads=2, num_frames=16, num_clips=6, max_words=6,
        num_prototypes=6, input_dropout=0.1, dropout=0.1,
    )  # fmt: skip
    recipe = Recipe(config=config, lr=1e-2, batch_size=5, epochs=4, patience=9)
    train(tmp_path, recipe, World(10))
    records = list(read_lines(tmp_path / "metrics.jsonl"))
    assert sum(records[-1]["loss"].values()) < sum(records[0]["loss"].values())
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_saved_and_loaded_weights_are_equal(tmp_path: Path) -> None:
    method = make()
    method.save_pretrained(tmp_path)
    found = load_method(tmp_path)
    assert found.config == method.config
    assert all(weight.equal(found.state_dict()[name]) for name, weight in method.state_dict().items())
    videos = batch(method).videos
    assert found.encode_videos(videos)["prototype"].vectors.equal(method.encode_videos(videos)["prototype"].vectors)


@pytest.mark.slow
def test_layers_that_only_training_needs_are_not_exported(tmp_path: Path) -> None:
    import onnx

    from midreel.methods.onnx import write_encoders

    method = make()
    assert max(write_encoders(method, tmp_path).values()) < 1e-5
    stored = {
        file: sum(math.prod(weight.dims) for weight in onnx.load(tmp_path / file).graph.initializer)
        for file in ("video_encoder.onnx", "query_encoder.onnx")
    }
    sizes = {name: p.numel() for name, p in method.named_parameters()}
    of_queries = sum(size for name, size in sizes.items() if name.startswith("query."))
    of_videos = sum(size for name, size in sizes.items() if name.startswith(("clip.", "frame.", "generator.")))
    few = 200  # constants of the graph
    assert of_queries <= stored["query_encoder.onnx"] + few <= of_queries + 2 * few
    assert abs(stored["video_encoder.onnx"] - of_videos - method.window_shares.numel()) <= few


# ---------------------------------------------------------------- bad input


class TestBadInput:
    def test_videos_of_other_methods(self) -> None:
        clip_of_frame = torch.zeros(1, 8, dtype=torch.long)
        resampled = VideoBatch(frames=torch.randn(1, 8, 10), clip_of_frame=clip_of_frame)
        with pytest.raises(BadBatch, match="no mask"):
            make().encode_videos(resampled)
        capped = dataclasses.replace(resampled, mask=torch.ones(1, 8).bool())
        with pytest.raises(BadBatch, match="no clips"):
            make().encode_videos(capped)

    def test_other_sizes(self) -> None:
        with pytest.raises(BadBatch, match="3 clips, expected 4"):
            make().encode_videos(make(num_clips=3).prepare_videos(torch.randn(1, 20, 10)))
        with pytest.raises(BadBatch, match="6 frames of width 10, expected 8"):
            make().encode_videos(make(num_frames=6).prepare_videos(torch.randn(1, 20, 10)))
        with pytest.raises(BadBatch, match="width 7, expected 6"):
            make().encode_queries(QueryBatch(words=torch.randn(1, 3, 7), mask=torch.ones(1, 3).bool()))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_clips", 200),
            ("num_prototypes", 0),
            ("num_layers", 0),
            ("num_steps", -1),
            ("prototype_deviation", 0.0),
            ("attention_gain", -1.0),
            ("mask_rate", 1.5),
            ("word_temperature", 0.0),
            ("word_temperature", math.nan),
            ("mixing_weight", -0.1),
            ("margin", -0.1),
            ("hard_from_epoch", -1),
            ("input_dropout", 1.0),
        ],
    )
    def test_impossible_settings(self, name: str, value: Any, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=f"{name} is {value}, expected"):
            ProtoPRVRConfig(**{name: value})
