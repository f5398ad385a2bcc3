"""GMMFormer as a whole: sizes, a twin of the release, the length of its windows, terms, training, bad input."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from midreel.errors import BadBatch, BadSetting
from midreel.evaluation.evaluate import evaluate
from midreel.library.encoder import encode_windows
from midreel.library.windows import Windowing
from midreel.losses import contrastive, diversity, ranking
from midreel.methods import METHODS, MSC, GMMFormer, load_method
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.encoder import MethodEncoder
from midreel.methods.gmmformer import GMMFormerConfig
from midreel.methods.released_families import GMMFORMER_NAMES
from midreel.ops import scoring
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.fit import read_lines
from midreel.training.optim import decays
from tests.methods.small import STACKED_LENGTHS as LENGTHS
from tests.methods.small import stacked_batch as batch
from tests.methods.small import stacked_videos as features
from tests.methods.small import train
from tests.methods.twin_gmmformer import GMMFormerTwin
from tests.training.worlds import WIDTH, World

SMALL: dict[str, Any] = {"video_width": 10, "text_width": 6, "width": 8, "num_heads": 2, "max_words": 9}
RELEASED = {
    "hidden_size": 8,
    "n_heads": 2,
    "max_desc_l": 9,
    "max_ctx_l": 128,
    "map_size": 32,
    "clip_scale_w": 0.7,
    "frame_scale_w": 0.3,
    "loss_factor": [0.02, 0.04, 0.015],
    "neg_factor": [0.2, 32],
    "margin": 0.2,
}


def make(**settings: Any) -> GMMFormer:
    torch.manual_seed(1)
    return GMMFormer(GMMFormerConfig(**SMALL | settings))


def test_the_registry() -> None:
    assert METHODS["gmmformer"] is GMMFormer


@pytest.mark.parametrize(
    ("video_width", "text_width", "max_words", "expected"),
    [
        (3072, 768, 30, 12_848_256),
        (1024, 1024, 30, 11_366_016),
        (768, 768, 30, 11_069_568),
        (768, 768, 77, 11_087_616),
        (2816, 512, 77, 12_569_856),
    ],
)
def test_number_of_parameters(video_width: int, text_width: int, max_words: int, expected: int) -> None:
    config = GMMFormerConfig(video_width=video_width, text_width=text_width, max_words=max_words)
    with torch.device("meta"):
        method = GMMFormer(config)
    assert sum(p.numel() for p in method.parameters()) == expected
    assert len(method.state_dict()) == 193


def test_the_norms_are_spared_from_weight_decay() -> None:
    names = [name for name, _ in make().named_parameters()]
    assert not any(decays(name) for name in names if "norm" in name or name.endswith("bias"))
    assert all(decays(name) for name in names if name.endswith(("table.weight", "score.weight", "output.weight")))


# ---------------------------------------------------------------- the twin


@pytest.fixture(scope="module")
def twins() -> tuple[GMMFormerTwin, GMMFormer]:
    """The twin and the method with its weights, in double precision."""
    torch.manual_seed(5)
    twin = GMMFormerTwin(RELEASED, 10, 6)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    method = make(hard_pool=1, hard_from_epoch=0)
    method.load_state_dict({here: twin.state_dict()[there] for there, here in GMMFORMER_NAMES.items()})
    return twin.double().eval(), method.double().eval()


def videos_of(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randn(length, 10, dtype=torch.float64, generator=generator) for length in lengths]


def joined(method: GMMFormer, videos: list[torch.Tensor]) -> VideoBatch:
    return VideoBatch.join([method.prepare_videos(video[None]) for video in videos], len(videos))


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(5, 40, 17), (128, 5), (300, 60), (1,), (1, 2, 3, 4)])
def test_tokens_equal_the_twin(twins: tuple[GMMFormerTwin, GMMFormer], lengths: tuple[int, ...]) -> None:
    twin, method = twins
    videos = videos_of(*lengths)
    found = method.encode_videos(joined(method, videos))
    for number, (clips, vector) in enumerate(twin.encode_batch(videos)):
        torch.testing.assert_close(found["clip"].vectors[number], clips, atol=1e-6, rtol=0)
        torch.testing.assert_close(found["frame"].vectors[number, 0], vector, atol=1e-6, rtol=0)


@torch.no_grad()
def test_queries_scores_and_losses_equal_the_twin(twins: tuple[GMMFormerTwin, GMMFormer]) -> None:
    twin, method = twins
    videos, video_of_query = videos_of(20, 5, 8), [0, 0, 0, 1, 2, 2]
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randn(n, 6, dtype=torch.float64, generator=generator) for n in (3, 9, 1, 12, 5, 2)]
    words = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = torch.arange(12) < torch.tensor([len(text) for text in texts])[:, None]
    words[~mask] = math.nan
    data = Batch(
        videos=joined(method, videos),
        queries=QueryBatch(words=words, mask=mask),
        video_of_query=torch.tensor(video_of_query),
    )
    queries, tokens = method.encode_queries(data.queries), method.encode_videos(data.videos)
    expected = [twin.encode_query(text) for text in texts]
    torch.testing.assert_close(queries["clip"], torch.stack(expected), atol=1e-9, rtol=0)
    assert queries["frame"] is queries["clip"]
    scores = torch.stack(
        [torch.stack([twin.score(q, *video) for video in twin.encode_batch(videos)]) for q in expected]
    )
    torch.testing.assert_close(method.score(queries, tokens), scores, atol=1e-6, rtol=0)
    found, terms = method.losses(data), twin.losses(videos, texts, video_of_query)
    assert list(found) == list(terms)
    for name, value in terms.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-6)


# ---------------------------------------------------------------- the length of the windows


class TestWindows:
    def test_a_longer_video_of_the_batch_changes_the_frame_vector_only(
        self, twins: tuple[GMMFormerTwin, GMMFormer]
    ) -> None:
        method = twins[1]
        videos = videos_of(20, 11, 90)
        with torch.no_grad():
            alone = method.encode_videos(joined(method, videos[:1]))
            with_shorter = method.encode_videos(joined(method, videos[:2]))
            with_longer = method.encode_videos(joined(method, videos))
        for other in (with_shorter, with_longer):
            torch.testing.assert_close(other["clip"].vectors[0], alone["clip"].vectors[0])
        torch.testing.assert_close(with_shorter["frame"].vectors[0], alone["frame"].vectors[0])
        assert not with_longer["frame"].vectors[0].allclose(alone["frame"].vectors[0], atol=1e-3)

    @torch.no_grad()
    def test_a_library_uses_the_length_of_each_video(self, twins: tuple[GMMFormerTwin, GMMFormer]) -> None:
        twin = twins[0]
        method = make()
        method.load_state_dict({name: weight.float() for name, weight in twins[1].state_dict().items()})
        encoder = MethodEncoder(method)
        for length in (3, 40, 200):
            video = videos_of(length)[0]
            (clips, vector), found = twin.encode_batch([video])[0], encoder.encode_videos(video[None].numpy())
            np.testing.assert_allclose(found["clip"].vectors[0], clips, atol=1e-5)
            np.testing.assert_allclose(found["frame"].vectors[0, 0], vector, atol=1e-5)

    @torch.no_grad()
    def test_the_windows_of_a_film_are_encoded_as_alone(self) -> None:
        encoder = MethodEncoder(make(num_frames=16, num_clips=4))
        frames = np.random.default_rng(0).normal(size=(70, 10)).astype(np.float32)
        windowing = Windowing.of(16)
        found = encode_windows(encoder, frames, windowing)
        for number, window in enumerate(windowing.windows(70)):
            alone = encoder.encode_videos(frames[None, window.first : window.last])
            for branch, tokens in alone.items():
                np.testing.assert_allclose(found[branch].vectors[number], tokens.vectors[0], atol=1e-6)

    @torch.no_grad()
    @pytest.mark.parametrize("lengths", [(20, 11), (1,), (128, 3), (2, 1)])
    def test_an_exported_graph_takes_the_length_from_the_mask(
        self, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While it is traced, the frames are not trimmed. tests/methods/test_onnx.py compares the graph itself."""
        method = make().double().eval()
        videos = joined(method, videos_of(*lengths))
        trimmed = method.encode_videos(videos)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        whole = method.encode_videos(videos)
        for branch, tokens in trimmed.items():
            torch.testing.assert_close(whole[branch].vectors, tokens.vectors, atol=1e-6, rtol=0)

    @torch.no_grad()
    def test_padding_may_contain_anything(self) -> None:
        method = make().eval()
        videos = method.prepare_videos(features()[:, :60], torch.tensor([60, 7, 1, 30]))
        assert videos.mask is not None
        with_nan = dataclasses.replace(videos, frames=videos.frames.masked_fill(~videos.mask[..., None], math.nan))
        assert method.encode_videos(with_nan)["frame"].vectors.equal(method.encode_videos(videos)["frame"].vectors)


class TestTokens:
    def test_the_frame_branch_is_one_vector_for_the_whole_video(self) -> None:
        method = make()
        tokens = method.encode_videos(method.prepare_videos(features(), LENGTHS))
        assert tokens["clip"].vectors.shape == (4, 32, 8)
        assert tokens["frame"].vectors.shape == (4, 1, 8)
        assert tokens["frame"].spans.tolist() == [[[0.0, 1.0]]] * 4
        assert tokens["frame"].mask.all()
        assert (method.branches["frame"].role, method.curve_weights) == ("video", {"clip": 1.0, "frame": 0.0})
        assert method.branch_weights == {"clip": 0.7, "frame": 0.3}
        assert method.segment_branch == "clip"

    def test_a_long_query_is_cut(self) -> None:
        method = make().eval()
        words = torch.randn(2, 14, 6)
        whole = method.encode_queries(QueryBatch(words=words, mask=torch.ones(2, 14, dtype=torch.bool)))
        cut = method.encode_queries(QueryBatch(words=words[:, :9], mask=torch.ones(2, 9, dtype=torch.bool)))
        assert whole["clip"].equal(cut["clip"])

    def test_a_saved_model_has_the_same_weights(self, tmp_path: Path) -> None:
        method = make()
        method.save_pretrained(tmp_path)
        loaded = load_method(tmp_path)
        assert loaded.config == method.config
        assert all(loaded.state_dict()[name].equal(weight) for name, weight in method.state_dict().items())


# ---------------------------------------------------------------- training


class TestTerms:
    def test_terms_are_the_weighted_formulas(self) -> None:
        method = make(hard_pool=1, hard_from_epoch=0).eval()
        data = batch(method)
        tokens, query = method.encode_videos(data.videos), method.encode_queries(data.queries)["clip"]
        losses = method.losses(data)
        assert list(losses) == ["clip_nce", "clip_triplet", "frame_nce", "frame_triplet", "query_diversity"]
        for branch, weight in (("clip", 0.02), ("frame", 0.04)):
            products = scoring.max_sim(query, tokens[branch].vectors)
            torch.testing.assert_close(
                losses[f"{branch}_nce"], weight * contrastive.infonce(products, data.video_of_query)
            )
            cosines = scoring.cosine_max_sim(query, tokens[branch].vectors)
            expected = ranking.triplet(cosines, data.video_of_query, margin=0.2, hard=True, hard_pool=1)
            torch.testing.assert_close(losses[f"{branch}_triplet"], expected)
        apart = diversity.joint_query_diversity(query, data.video_of_query, shift=0.2, scale=32.0)
        torch.testing.assert_close(losses["query_diversity"], 0.015 * apart)

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
        assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())

    def test_hard_negatives_start_at_their_epoch(self) -> None:
        method = make(hard_from_epoch=3, hard_pool=1).eval()
        data = batch(method)
        hard = make(hard_from_epoch=0, hard_pool=1).eval().losses(data)
        assert method.losses(data, epoch=3)["clip_triplet"].equal(hard["clip_triplet"])
        random = [method.losses(data, epoch=2)["clip_triplet"].item() for _ in range(8)]
        assert len(set(random)) > 1


CONFIG = GMMFormerConfig(
    video_width=WIDTH,
    text_width=WIDTH,
    width=8,
    num_heads=2,
    num_frames=12,
    num_clips=6,
    max_words=6,
    hard_from_epoch=1,
)


@pytest.mark.slow
def test_training_learns(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, dropout=0.0, input_dropout=0.0)
    train(tmp_path, Recipe(config=config, lr=1e-2, batch_size=6, epochs=6, patience=20))
    records = list(read_lines(tmp_path / "metrics.jsonl"))
    assert sum(records[-1]["loss"].values()) < 0.8 * sum(records[0]["loss"].values())
    assert set(records[0]["loss"]) >= {"clip_nce", "frame_triplet", "query_diversity"}
    assert load_method(tmp_path / "best").config == config


def test_moments_come_from_the_clips() -> None:
    method, world = GMMFormer(CONFIG), World()
    data = FeatureSet.prepare(method, world.split, world)
    found = evaluate(
        method,
        data.video_batches(4),
        data.query_batches(7),
        data.video_of_query,
        moments=[query.moments for query in data.queries],
        durations=data.durations,
    )
    assert set(found.branches) == {"clip", "frame"}
    assert set(found.moments) == {"found", "best clip"}


# ---------------------------------------------------------------- bad input


class TestBadInput:
    def test_videos_of_a_method_that_resamples(self) -> None:
        resampled = VideoBatch(frames=torch.randn(1, 128, 10), clip_of_frame=torch.zeros(1, 128, dtype=torch.long))
        with pytest.raises(BadBatch, match="no mask"):
            make().encode_videos(resampled)
        with pytest.raises(BadBatch, match="have a mask"):
            MSC(MSC.Config(**SMALL)).encode_videos(make().prepare_videos(features()))

    def test_no_videos(self) -> None:
        with pytest.raises(BadBatch, match="videos is empty"):
            make().encode_videos(make().prepare_videos(features()[:0]))

    def test_a_video_without_frames(self) -> None:
        videos = make().prepare_videos(features(), LENGTHS)
        assert videos.mask is not None
        mask = videos.mask.clone()
        mask[2] = False
        with pytest.raises(BadBatch, match=r"\[2\]"):
            make().encode_videos(dataclasses.replace(videos, mask=mask))

    def test_other_sizes(self) -> None:
        with pytest.raises(BadBatch, match="16 clips, expected 32"):
            make().encode_videos(make(num_clips=16).prepare_videos(features()))
        with pytest.raises(BadBatch, match="64 frames of width 10, expected 128"):
            make().encode_videos(make(num_frames=64).prepare_videos(features()))
        with pytest.raises(BadBatch, match="width 9, expected 128 of width 10"):
            make().encode_videos(make().prepare_videos(features()[..., :9]))
        with pytest.raises(BadBatch, match="width 7, expected 6"):
            make().encode_queries(QueryBatch(words=torch.randn(1, 3, 7), mask=torch.ones(1, 3, dtype=torch.bool)))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_clips", 200),
            ("frame_weight", 1.5),
            ("diversity_scale", math.nan),
            ("diversity_scale", -32.0),
            ("diversity_weight", -1.0),
            ("hard_from_epoch", -1),
        ],
    )
    def test_impossible_settings(self, name: str, value: Any, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=f"{name} is {value}, expected"):
            GMMFormerConfig(**{name: value})
