"""The reconstruction of ARL as a whole: sizes, twin, uncertainty, terms, padding, training, bad input."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from midreel.errors import BadBatch, BadSetting, UnknownName
from midreel.losses import contrastive, ranking
from midreel.methods import METHODS, load_method
from midreel.methods.arl import ARL, ARLConfig
from midreel.methods.base import evaluating
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.ops import scoring
from midreel.recipes import RECIPES, build
from midreel.recipes.recipe import Recipe
from midreel.training.fit import read_lines
from midreel.training.optim import decays
from tests.methods import twin_arl
from tests.methods.small import RAGGED_LENGTHS as LENGTHS
from tests.methods.small import RAGGED_WORDS as WORDS
from tests.methods.small import VIDEO_OF_QUERY, doubled, perturbed, train
from tests.methods.small import ragged_batch as batch
from tests.methods.small import ragged_sentences as sentences
from tests.methods.small import ragged_videos as features
from tests.training.worlds import WIDTH, World

SMALL: dict[str, Any] = {
    "video_width": 10, "text_width": 6, "width": 8, "num_heads": 2, "max_words": 9, "num_frames": 8, "num_clips": 4,
}  # fmt: skip


def make(**settings: Any) -> ARL:
    torch.manual_seed(1)
    return perturbed(ARL(ARLConfig(**SMALL | settings)))


def test_registered_as_a_reconstruction() -> None:
    assert METHODS["arl"] is ARL
    assert ARL.reconstruction
    assert "Reconstruction" in str(make().generate_model_card())


@pytest.mark.parametrize(
    ("video_width", "text_width", "max_words", "expected"),
    [
        (768, 768, 30, 3_976_704),  # DL-DKD's size, for the same features
        (768, 768, 77, 4_012_800),
        (3072, 768, 30, 5_755_392),
        (1024, 1024, 30, 4_371_968),
        (2816, 512, 30, 5_360_128),
    ],
)
def test_number_of_parameters(video_width: int, text_width: int, max_words: int, expected: int) -> None:
    with torch.device("meta"):
        method = ARL(ARLConfig(video_width=video_width, text_width=text_width, max_words=max_words))
    assert sum(p.numel() for p in method.parameters()) == expected
    assert len(method.state_dict()) == 74
    assert not decays("a_frame.block.norm.weight")


# ---------------------------------------------------------------- the twin


def twins(method: ARL) -> dict[str, twin_arl.Model]:
    weights = dict(method.state_dict(keep_vars=True))
    models = {name: twin_arl.Model(weights, name, 2, 8, 9) for name in ("a", "b")}
    for model in models.values():
        model.see([each.double() for each in features()], [each.double() for each in sentences()])
    return models


def test_encoders_and_score_equal_the_twin() -> None:
    method = make().double()
    data = doubled(batch(method))
    tokens, vectors = method.encode_videos(data.videos), method.encode_queries(data.queries)
    models = twins(method)
    for name, model in models.items():
        torch.testing.assert_close(vectors[name], torch.stack(model.asked), rtol=0, atol=1e-6)
        for video, encoded in enumerate(model.encoded):
            torch.testing.assert_close(tokens[name].vectors[video, : len(encoded)], encoded, rtol=0, atol=1e-6)
    expected = [
        [sum(0.5 * model.similarity(i, j).item() for model in models.values()) for j in range(len(LENGTHS))]
        for i in range(len(WORDS))
    ]
    score = method.score(vectors, tokens)
    torch.testing.assert_close(score, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def test_uncertainty_is_the_mean_of_the_whole_map() -> None:
    method = make().double()
    data = doubled(batch(method))
    with torch.no_grad():
        method.start_epoch(5, iter([data]))
        vectors, tokens = method.encode_queries(data.queries), method.encode_videos(data.videos)
    for name, model in twins(method).items():
        seen = method.view(name, vectors, tokens, VIDEO_OF_QUERY)
        for i in range(len(WORDS)):
            for j in range(len(LENGTHS)):
                expected = model.uncertainty(i, j, model.best(i, j))
                assert seen.uncertainty[i, j].item() == pytest.approx(expected, abs=1e-6)
            own = int(VIDEO_OF_QUERY[i])
            for k in range(len(model.encoded[own])):
                assert seen.frame_uncertainty[i, k].item() == pytest.approx(model.uncertainty(i, own, k), abs=1e-6)


@pytest.mark.parametrize("cross_model", [True, False])
def test_terms_equal_the_twin_in_value_and_gradient(cross_model: bool) -> None:
    settings = {"uncertainty_quantile": 0.3, "similarity_quantile": 0.5, "frame_similarity_quantile": 0.4}
    method = make(**settings, cross_model=cross_model, most_ambiguous=1, hard_pool=1, hard_from_epoch=0).double()
    data = doubled(batch(method))
    with torch.no_grad():
        method.start_epoch(5, iter([data]))
    found = method.losses(data, epoch=5)
    models = twins(method)
    numbers = {"p_u": 0.3, "p_s": 0.5, "p_f": 0.4, "weight": 0.5, "m1": 0.2, "m2": 0.1, "m3": 0.0, "nce": 0.04}
    for name, other in (("a", "b"), ("b", "a")):
        detector = models[other] if cross_model else models[name]
        # A video may be ambiguous for several queries, and then the twin cannot know which one is drawn.
        expected = twin_arl.losses(models[name], detector, VIDEO_OF_QUERY.tolist(), numbers | {"frame": 0.1})
        for term in ("contrastive", "frame_contrastive", "frame_triplet"):
            torch.testing.assert_close(found[f"{name}_{term}"], expected[term], rtol=0, atol=1e-6)
            weight = method.get_parameter(f"{name}_query.project.linear.weight")
            gradients = [
                torch.autograd.grad(each, weight, retain_graph=True)[0]
                for each in (found[f"{name}_{term}"], expected[term])
            ]
            torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


# ---------------------------------------------------------------- terms


def test_before_the_ambiguous_pairs_the_losses_are_those_of_the_siblings() -> None:
    method = make(hard_pool=1, hard_from_epoch=0)
    data = batch(method)
    found = method.losses(data, epoch=4)
    tokens, vectors = method.encode_videos(data.videos), method.encode_queries(data.queries)
    for model in ("a", "b"):
        products = scoring.max_sim(vectors[model], tokens[model].vectors, tokens[model].mask)
        cosines = scoring.cosine_max_sim(vectors[model], tokens[model].vectors, tokens[model].mask)
        torch.testing.assert_close(found[f"{model}_contrastive"], 0.04 * contrastive.infonce(products, VIDEO_OF_QUERY))
        expected = ranking.triplet(cosines, VIDEO_OF_QUERY, margin=0.2, hard=True, hard_pool=1)
        torch.testing.assert_close(found[f"{model}_triplet"], expected)
        assert found[f"{model}_frame_contrastive"] == found[f"{model}_frame_triplet"] == 0
    assert list(found) == [
        f"{model}_{term}" for model in "ab" for term in ("contrastive", "triplet", "frame_contrastive", "frame_triplet")
    ]


def test_a_model_takes_the_ambiguous_pairs_of_the_other() -> None:
    settings = {"uncertainty_quantile": 0.0, "similarity_quantile": 0.0, "most_ambiguous": 1}
    data = batch(make())
    changed = {}
    for cross in (True, False):
        terms = []
        for shift in (0.0, 5.0):
            method = make(**settings, cross_model=cross)
            with torch.no_grad():
                method.start_epoch(5, iter([data]))
                method.b_query.pool.score.weight += shift * torch.randn(8, generator=torch.Generator().manual_seed(4))
            terms.append(method.losses(data, epoch=5)["a_contrastive"].item())
        changed[cross] = terms[0] != terms[1]
    assert changed == {True: True, False: False}


def test_the_means_do_not_depend_on_the_batches_and_are_not_saved(tmp_path: Path) -> None:
    method = make()
    whole = batch(method)
    parts = [
        Batch(
            videos=whole.videos[torch.tensor(videos)],
            queries=QueryBatch(words=whole.queries.words[queries], mask=whole.queries.mask[queries]),
            video_of_query=torch.tensor(own),
        )
        for videos, queries, own in (([0, 1], [0, 1, 2], [0, 0, 1]), ([2, 3], [3, 4, 5, 6], [0, 0, 1, 1]))
    ]
    with torch.no_grad():
        method.start_epoch(4, iter([whole]))
        assert (method.a_mean_frame == 0).all()  # not needed yet
        method.start_epoch(5, iter([whole]))
        means = {name: each.clone() for name, each in method.named_buffers()}
        method.start_epoch(5, iter(parts))
    for name, mean in means.items():
        torch.testing.assert_close(method.get_buffer(name), mean)
        assert name not in method.state_dict()
        assert 0 < mean.norm() <= 1
    method.save_pretrained(tmp_path)
    found = load_method(tmp_path)
    assert all(weight.equal(found.state_dict()[name]) for name, weight in method.state_dict().items())


def test_every_weight_is_trained() -> None:
    method = make().train()
    data = batch(method)
    with evaluating(method):
        method.start_epoch(5, iter([data]))
    torch.stack(list(method.losses(data, epoch=5).values())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_losses_have_single_precision_under_autocast() -> None:
    method = make().train()
    data = batch(method)
    with evaluating(method):
        method.start_epoch(9, iter([data]))
    with torch.autocast("cpu", torch.bfloat16):
        terms = method.losses(data, epoch=9)
    assert {term.dtype for term in terms.values()} == {torch.float32}
    torch.stack(list(terms.values())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_recipes() -> None:
    assert sorted(RECIPES["arl"]) == ["activitynet", "playhouse", "tvr"]
    for dataset, margin, lr in (("tvr", 0.1, 3e-4), ("activitynet", 0.2, 2.5e-4), ("playhouse", 0.2, 7e-4)):
        recipe = build("arl", dataset)
        assert (recipe.config.margin, recipe.lr) == (margin, lr)
        assert recipe.config.ambiguous_margin == margin / 2


@pytest.mark.parametrize("detection", ["quantile", "relative"])
def test_small_batches(detection: str) -> None:
    method = make(detection=detection, uncertainty_quantile=0.0, similarity_quantile=0.0)
    frames = [torch.randn(1, length, 10) for length in (1, 2, 3, 4, 5)]
    for video in frames:
        one = Batch(
            videos=method.prepare_videos(video),
            queries=QueryBatch(words=torch.randn(1, 1, 6), mask=torch.ones(1, 1).bool()),
            video_of_query=torch.tensor([0]),
        )
        with torch.no_grad():
            method.start_epoch(5, iter([one]))
        terms = method.losses(one, epoch=30)
        assert all(term.isfinite() for term in terms.values())
        torch.stack(list(terms.values())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


# ---------------------------------------------------------------- independence


@torch.no_grad()
def test_a_video_does_not_see_its_batch_mates() -> None:
    method = make()
    together = method.encode_videos(batch(method).videos)
    for index, video in enumerate(features()):
        alone = method.encode_videos(method.prepare_videos(video[None]))
        for branch, tokens in alone.items():
            torch.testing.assert_close(tokens.vectors[0], together[branch].vectors[index])
            assert tokens.mask[0].sum() == min(len(video), 8)
            assert (tokens.vectors[0][~tokens.mask[0]] == 0).all()
            assert tokens.spans[0, tokens.mask[0]][-1].tolist()[1] == 1


@torch.no_grad()
def test_a_query_does_not_see_its_batch_mates_and_is_cut() -> None:
    method = make()
    together = method.encode_queries(batch(method).queries)
    for index, words in enumerate(sentences()):
        for kept in (words, words[:9]):
            alone = method.encode_queries(QueryBatch(words=kept[None], mask=torch.ones(1, len(kept)).bool()))
            for branch, vectors in alone.items():
                torch.testing.assert_close(vectors[0], together[branch][index])


@torch.no_grad()
def test_the_score_is_the_mean_of_both_models_without_padding() -> None:
    method = make()
    data = batch(method)
    vectors, tokens = method.encode_queries(data.queries), method.encode_videos(data.videos)
    scores = [scoring.cosine_max_sim(vectors[m], tokens[m].vectors, tokens[m].mask) for m in ("a", "b")]
    torch.testing.assert_close(method.score(vectors, tokens), sum(scores) / 2)
    assert (method.score({m: -tokens[m].vectors[:, 0] for m in "ab"}, tokens)[3, 3]) == pytest.approx(-1)


# ---------------------------------------------------------------- training


@pytest.mark.slow
def test_it_trains(tmp_path: Path) -> None:
    config = ARLConfig(
        video_width=WIDTH, text_width=WIDTH, width=8, num_heads=2, num_frames=16, num_clips=6, max_words=6,
        ambiguity_from_epoch=1, uncertainty_quantile=0.2, similarity_quantile=0.5, input_dropout=0.1, dropout=0.1,
    )  # fmt: skip
    recipe = Recipe(config=config, lr=1e-2, batch_size=5, epochs=4, patience=9)
    train(tmp_path, recipe, World(10))
    records = list(read_lines(tmp_path / "metrics.jsonl"))
    first, last = (sum(records[epoch]["loss"][f"{m}_contrastive"] for m in "ab") for epoch in (0, -1))
    assert last < first
    assert records[1]["loss"]["a_frame_triplet"] > 0
    assert Recipe.from_json(recipe.to_json()) == recipe


# ---------------------------------------------------------------- bad input


class TestBadInput:
    def test_videos_of_another_method(self) -> None:
        resampled = VideoBatch(frames=torch.randn(1, 8, 10), clip_of_frame=torch.zeros(1, 8, dtype=torch.long))
        with pytest.raises(BadBatch, match="no mask"):
            make().encode_videos(resampled)

    def test_other_sizes(self) -> None:
        with pytest.raises(BadBatch, match="8 frames of width 7, expected 8 of width 10"):
            make().encode_videos(make(video_width=7).prepare_videos(torch.randn(1, 20, 7)))
        with pytest.raises(BadBatch, match="6 frames of width 10, expected 8"):
            make().encode_videos(make(num_frames=6).prepare_videos(torch.randn(1, 20, 10)))
        with pytest.raises(BadBatch, match="width 7, expected 6"):
            make().encode_queries(QueryBatch(words=torch.randn(1, 3, 7), mask=torch.ones(1, 3).bool()))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_clips", 200),
            ("frame_level_weight", -1.0),
            ("ambiguous_weight", 1.5),
            ("uncertainty_quantile", 1.2),
            ("similarity_quantile", -0.1),
            ("relative_similarity", math.nan),
            ("most_ambiguous", 0),
            ("ambiguity_from_epoch", -1),
            ("ambiguous_margin", -0.1),
            ("dropout", 1.0),
        ],
    )
    def test_impossible_settings(self, name: str, value: Any, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=f"{name} is {value}, expected"):
            ARLConfig(**{name: value})

    def test_unknown_detection(self, unchecked: None) -> None:
        with pytest.raises(UnknownName, match="quantile, relative"):
            ARLConfig(detection="both")  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_exported_graphs_equal_the_method(tmp_path: Path) -> None:
    from midreel.methods.onnx import write_encoders

    assert max(write_encoders(make(), tmp_path).values()) < 1e-5
