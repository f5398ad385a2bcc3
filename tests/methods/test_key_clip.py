"""MS-SL and BGM-Net as a whole: the twin, sizes, inputs, score, terms, training, export, bad input."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.evaluation.evaluate import evaluate
from midreel.losses import contrastive, ranking
from midreel.methods import METHODS, MSC, load_method
from midreel.methods.base import Method
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.bgm_net import BGMNet
from midreel.methods.key_clip import KeyClip, attended_means, largest, pair_products
from midreel.methods.ms_sl import MSSL
from midreel.ops import scoring
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.training.fit import fit, read_lines
from midreel.training.optim import decays
from tests.methods import twin_key_clip as twin
from tests.methods.key_clip_names import renamed
from tests.training.worlds import WIDTH, World

KINDS: dict[str, type[KeyClip]] = {"ms_sl": MSSL, "bgm_net": BGMNet}
CLIPS: dict[str, Callable[[Tensor, int], Tensor]] = {"ms_sl": twin.average, "bgm_net": twin.interpolated}
SMALL: dict[str, Any] = {
    "video_width": 10,
    "text_width": 6,
    "width": 8,
    "num_heads": 2,
    "max_words": 9,
    "num_frames": 128,
    "num_clips": 8,
}
LENGTHS = (300, 129, 128, 40, 5, 4, 3, 2, 1)
WORDS = (2, 9, 14, 5, 1, 3, 4, 2, 3, 7, 6, 5, 1)
VIDEO_OF_QUERY = (0, 0, 1, 2, 0, 3, 4, 5, 6, 7, 8, 0, 1)


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def make(name: str, **settings: Any) -> Any:
    torch.manual_seed(1)
    return KINDS[name](KINDS[name].Config(**SMALL | settings))


def features(lengths: tuple[int, ...] = LENGTHS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(length, 10, generator=generator) for length in lengths]


def padded(videos: list[Tensor], fill: float = float("nan")) -> tuple[Tensor, Tensor]:
    together = torch.nn.utils.rnn.pad_sequence(videos, batch_first=True, padding_value=fill)
    return together, torch.tensor([len(each) for each in videos])


def texts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(length, 6, generator=generator) for length in WORDS]


def queries() -> QueryBatch:
    words, lengths = padded(texts())
    return QueryBatch(words=words, mask=torch.arange(words.shape[1]) < lengths[:, None])


def batch(method: KeyClip) -> Batch:
    return Batch(
        videos=method.prepare_videos(*padded(features(), 0.0)),
        queries=queries(),
        video_of_query=torch.tensor(VIDEO_OF_QUERY),
    )


def test_the_registry(name: str) -> None:
    assert METHODS[name] is KINDS[name]


@pytest.mark.parametrize(
    ("video_width", "text_width", "max_words", "expected"),
    [
        (3072, 768, 30, 4_852_992),
        (1024, 1024, 30, 3_370_752),
        (768, 768, 30, 3_074_304),
        (768, 768, 77, 3_092_352),
        (2816, 512, 77, 4_574_592),
    ],
)
def test_number_of_parameters(name: str, video_width: int, text_width: int, max_words: int, expected: int) -> None:
    config = KINDS[name].Config(video_width=video_width, text_width=text_width, max_words=max_words)
    with torch.device("meta"):
        method = KINDS[name](config)
        released = twin.KeyClipTwin(video_width, text_width, max_words=max_words)
    assert sum(p.numel() for p in method.parameters()) == expected
    assert len(method.state_dict()) == 54
    shapes = {key: weight.shape for key, weight in renamed(released.state_dict()).items()}
    assert shapes == {key: weight.shape for key, weight in method.state_dict().items()}


def test_norms_and_biases_do_not_decay(name: str) -> None:
    spared = {key for key, _ in make(name).named_parameters() if not decays(key)}
    assert len(spared) == 3 * (3 + 2 + 6)  # of each encoder: in the projection, the positions and the block
    assert {"query.block.norm.weight", "clip.project.norm.weight", "frame.position.norm.bias"} <= spared
    assert not {"query.pool.score.weight", "frame_key.weight", "clip.position.table.weight"} & spared


# ---------------------------------------------------------------- the released model


@dataclasses.dataclass
class Twins:
    """A method in double precision and its twin, with the same weights and inputs."""

    name: str
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        self.slow = twin.KeyClipTwin(10, 6, 8, 2, max_words=9, num_clips=self.settings["num_clips"]).double().eval()
        self.slow.randomize()
        self.method = make(self.name, **self.settings).double().eval()
        self.method.load_state_dict(renamed(self.slow.state_dict()))
        videos = [each.double() for each in features()]
        prepared, lengths = padded(videos, 0.0)
        self.batch = dataclasses.replace(batch(make(self.name)), videos=self.method.prepare_videos(prepared, lengths))
        clips = [CLIPS[self.name](each, self.settings["num_clips"]) for each in videos]
        self.queries = [self.slow.encode_query(each.double()) for each in texts()]
        self.proposals = [self.slow.encode_clips(each) for each in clips]
        self.frames = [self.slow.encode_frames(each) for each in videos]
        words = self.batch.queries.words.double()
        self.batch = dataclasses.replace(self.batch, queries=dataclasses.replace(self.batch.queries, words=words))


@pytest.fixture(params=[3, 8])
def twins(name: str, request: pytest.FixtureRequest) -> Twins:
    return Twins(name, {"num_clips": request.param, "hard_pool": 1, "hard_from_epoch": 0})


class TestTwin:
    def test_queries_and_tokens(self, twins: Twins) -> None:
        vectors = twins.method.encode_queries(twins.batch.queries)
        assert list(vectors) == ["clip", "frame_key", "frame"]
        for part in vectors.values():
            torch.testing.assert_close(part, torch.stack(twins.queries))
        tokens = twins.method.encode_videos(twins.batch.videos)
        torch.testing.assert_close(tokens["clip"].vectors, torch.stack(twins.proposals))
        for index, frames in enumerate(twins.frames):
            assert tokens["frame"].mask[index].sum() == len(frames)
            for number, branch in enumerate(("frame_key", "frame")):
                expected = twins.slow.mapping_linear[number](frames)
                torch.testing.assert_close(tokens[branch].vectors[index, : len(frames)], expected)

    def test_scores(self, twins: Twins) -> None:
        method = twins.method
        vectors, tokens = method.encode_queries(twins.batch.queries), method.encode_videos(twins.batch.videos)
        scores = method.branch_scores(vectors, tokens)
        assert list(scores) == ["clip", "frame"]
        for i, query in enumerate(twins.queries):
            for j, (proposals, frames) in enumerate(zip(twins.proposals, twins.frames, strict=True)):
                clip, frame = twins.slow.score(query, proposals, frames)
                torch.testing.assert_close(scores["clip"][i, j], clip)
                torch.testing.assert_close(scores["frame"][i, j], frame)
        expected = 0.7 * scores["clip"] + 0.3 * scores["frame"]
        torch.testing.assert_close(method.score(vectors, tokens), expected)

    def test_losses_and_their_gradients(self, twins: Twins) -> None:
        found = twins.method.losses(twins.batch, epoch=0)
        expected = twin.loss_terms(
            twins.slow,
            twins.queries,
            twins.proposals,
            twins.frames,
            list(VIDEO_OF_QUERY),
            margin=0.2,
            align=twins.name == "bgm_net",
        )
        assert_equal_terms(twins, found, expected)

    def test_in_single_precision(self, twins: Twins) -> None:
        single = twins.method.float()
        videos = single.prepare_videos(*padded(features(), 0.0))
        scores = single.score(single.encode_queries(queries()), single.encode_videos(videos))
        double = twins.method.double()
        expected = double.score(double.encode_queries(twins.batch.queries), double.encode_videos(twins.batch.videos))
        torch.testing.assert_close(scores, expected.float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_clips", [3, 6])
def test_matched_losses_and_their_gradients(num_clips: int) -> None:
    twins = Twins("bgm_net", {"num_clips": num_clips, "hard_pool": 1, "hard_from_epoch": 0, "matching_from_epoch": 5})
    given = (twins.slow, twins.queries, twins.proposals, twins.frames, list(VIDEO_OF_QUERY))
    matched = twin.loss_terms(*given, margin=0.2, align=True, matched=True)
    greedy = twin.loss_terms(*given, margin=0.2, align=True)
    assert not torch.isclose(matched["alignment"], greedy["alignment"])
    for epoch, expected in ((4, greedy), (5, matched)):
        found = twins.method.losses(twins.batch, epoch=epoch)
        for term, value in expected.items():
            torch.testing.assert_close(found[term], value, msg=f"{term} in epoch {epoch}")
    assert_equal_terms(twins, twins.method.losses(twins.batch, epoch=5), matched)


def assert_equal_terms(twins: Twins, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for term, value in expected.items():
        torch.testing.assert_close(found[term], value)
    slow = list(twins.slow.named_parameters())
    gradients = torch.autograd.grad(sum(expected.values()), [weight for _, weight in slow])  # type: ignore[arg-type]
    by_name = renamed(dict(zip([key for key, _ in slow], gradients, strict=True)))
    twins.method.zero_grad()
    torch.stack(list(found.values())).sum().backward()
    for key, weight in twins.method.named_parameters():
        torch.testing.assert_close(weight.grad, by_name[key], msg=key)


# ---------------------------------------------------------------- inputs and tokens


class TestInputs:
    def test_frames_are_capped_and_clips_come_from_all_frames(self, name: str) -> None:
        videos = make(name).prepare_videos(*padded(features()))
        assert videos.mask is not None
        assert videos.clips is not None
        assert videos.mask.sum(1).tolist() == [min(length, 128) for length in LENGTHS]
        for index, real in enumerate(features()):
            frames = twin.capped(real, 128)
            torch.testing.assert_close(videos.frames[index, : len(frames)], frames)
            assert (videos.frames[index, len(frames) :] == 0).all()
            torch.testing.assert_close(videos.clips[index], CLIPS[name](real, 8))

    def test_the_borders_of_a_short_interpolated_video_are_zeros(self) -> None:
        clips = make("bgm_net").prepare_videos(features()[-2][None]).clips
        assert clips is not None
        assert (clips[0] == 0).all(1).tolist() == [True, False, False, False, False, False, False, True]

    def test_spans_of_proposals(self, name: str) -> None:
        method = make(name)
        tokens = method.encode_videos(method.prepare_videos(*padded(features())))
        expected = [(k / 8, (k + w) / 8) for w in range(1, 9) for k in range(9 - w)]
        assert tokens["clip"].spans.shape == (9, 36, 2)
        torch.testing.assert_close(tokens["clip"].spans[4], torch.tensor(expected))
        assert tokens["clip"].mask.all()

    def test_spans_of_frames_follow_the_real_frames(self, name: str) -> None:
        method = make(name)
        tokens = method.encode_videos(method.prepare_videos(*padded(features())))
        torch.testing.assert_close(tokens["frame"].spans[3, 39], torch.tensor([39 / 40, 1.0]))
        assert tokens["frame"].spans[8, 0].tolist() == [0, 1]
        assert tokens["frame_key"].spans.equal(tokens["frame"].spans)
        assert tokens["frame_key"].mask.equal(tokens["frame"].mask)

    def test_a_video_does_not_see_its_batch_mates(self, name: str) -> None:
        method = make(name).eval()
        together = method.encode_videos(method.prepare_videos(*padded(features())))
        vectors = method.encode_queries(queries())
        scores = method.score(vectors, together)
        for index, real in enumerate(features()):
            alone = method.encode_videos(method.prepare_videos(real[None]))
            for branch, tokens in alone.items():
                real_tokens = tokens.mask[0]
                torch.testing.assert_close(tokens.vectors[0, real_tokens], together[branch].vectors[index, real_tokens])
            torch.testing.assert_close(method.score(vectors, alone)[:, 0], scores[:, index])

    def test_padding_of_frames_does_not_score(self, name: str) -> None:
        method = make(name).eval()
        videos = method.prepare_videos(*padded(features(LENGTHS[3:])))
        assert videos.mask is not None
        noisy = torch.where(videos.mask[..., None], videos.frames, 1e3)
        vectors = method.encode_queries(queries())
        found = method.score(vectors, method.encode_videos(dataclasses.replace(videos, frames=noisy)))
        assert found.equal(method.score(vectors, method.encode_videos(videos)))

    def test_a_long_query_is_cut(self, name: str) -> None:
        method = make(name).eval()
        whole = method.encode_queries(queries())["clip"]
        cut = method.encode_queries(queries().first(9))["clip"]
        assert whole.equal(cut)

    def test_a_query_does_not_see_its_batch_mates(self, name: str) -> None:
        method = make(name).eval()
        together = method.encode_queries(queries())["clip"]
        for index, words in enumerate(texts()):
            alone = QueryBatch(words=words[None], mask=torch.ones(1, len(words), dtype=torch.bool))
            torch.testing.assert_close(method.encode_queries(alone)["clip"][0], together[index])

    def test_branches(self, name: str) -> None:
        branches = make(name, frame_weight=0.4).branches
        assert {key: branch.role for key, branch in branches.items()} == {
            "clip": "segments",
            "frame_key": "keys",
            "frame": "frames",
        }
        assert [branch.rank_weight for branch in branches.values()] == [0.6, 0.0, 0.4]
        form = branches["frame"].similarity
        assert (form.kind, form.guide, form.keys) == ("attention", "clip", "frame_key")


# ---------------------------------------------------------------- scores in training


class TestScoresInTraining:
    def test_the_best_proposals_are_those_of_the_maxima(self) -> None:
        queries, clips = torch.randn(5, 3), torch.randn(4, 7, 3)
        best = largest(queries, clips)
        torch.testing.assert_close(pair_products(queries, clips, best.by_product), scoring.max_sim(queries, clips))
        cosines = pair_products(F.normalize(queries, dim=-1), F.normalize(clips, dim=-1), best.by_cosine)
        torch.testing.assert_close(cosines, scoring.cosine_max_sim(queries, clips))

    def test_the_gradient_is_that_of_the_maximum(self) -> None:
        queries = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        clips = torch.randn(4, 7, 3, dtype=torch.float64, requires_grad=True)
        found = pair_products(queries, clips, largest(queries, clips).by_product)
        weights = torch.randn_like(found)
        slow = scoring.max_sim(queries, clips)
        for one, other in zip(
            torch.autograd.grad((weights * found).sum(), (queries, clips)),
            torch.autograd.grad((weights * slow).sum(), (queries, clips)),
            strict=True,
        ):
            torch.testing.assert_close(one, other)

    def test_a_proposal_of_zeros(self) -> None:
        clips = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])
        best = largest(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), clips)
        assert best.by_cosine.tolist() == best.by_product.tolist() == [[1], [0]]

    def test_attention_by_hand(self) -> None:
        # Logits 0 and log 3: the weights are 1/4 and 3/4. The third frame is padding.
        keys = torch.tensor([[[0.0], [1.0], [9.0]]])
        values = torch.tensor([[[4.0], [8.0], [100.0]]])
        mask = torch.tensor([[True, True, False]])
        found = attended_means(torch.tensor([[3.0]]).log(), keys, values, mask, torch.tensor([0]))
        torch.testing.assert_close(found, torch.tensor([[7.0]]))

    def test_attention_equals_the_loop(self) -> None:
        guides, mask = torch.randn(6, 3), torch.arange(5) < torch.tensor([5, 1, 3])[:, None]
        keys, values, video_of_query = torch.randn(3, 5, 3), torch.randn(3, 5, 3), torch.tensor([2, 0, 2, 2, 1, 0])
        found = attended_means(guides, keys, values, mask, video_of_query)
        for i, video in enumerate(video_of_query.tolist()):
            num = int(mask[video].sum())
            weights = torch.softmax(keys[video, :num] @ guides[i], 0)
            torch.testing.assert_close(found[i], weights @ values[video, :num])

    def test_gradcheck_of_the_attention(self) -> None:
        mask = torch.arange(4) < torch.tensor([4, 2])[:, None]
        given = [
            torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 2), (2, 4, 2), (2, 4, 2))
        ]
        assert torch.autograd.gradcheck(lambda *g: attended_means(*g, mask, torch.tensor([1, 0, 1])), given)


class TestTerms:
    def test_terms_are_the_weighted_formulas(self, name: str) -> None:
        method = make(name, hard_pool=1, hard_from_epoch=0, margin=0.3).eval()
        data = batch(method)
        tokens, query = method.encode_videos(data.videos), method.encode_queries(data.queries)["clip"]
        losses = method.losses(data)
        own = ["alignment"] * (name == "bgm_net")
        assert list(losses) == ["clip_nce", "clip_triplet", "frame_nce", "frame_triplet", *own]
        products = scoring.max_sim(query, tokens["clip"].vectors)
        torch.testing.assert_close(losses["clip_nce"], 0.02 * contrastive.infonce(products, data.video_of_query))
        cosines = scoring.cosine_max_sim(query, tokens["clip"].vectors)
        expected = ranking.triplet(cosines, data.video_of_query, margin=0.3, hard=True, hard_pool=1)
        torch.testing.assert_close(losses["clip_triplet"], expected)

    def test_the_diagonal_of_the_frame_scores_is_the_retrieval_score(self, name: str) -> None:
        method = make(name).eval()
        data = batch(method)
        vectors, tokens = method.encode_queries(data.queries), method.encode_videos(data.videos)
        clips, query, y = tokens["clip"].vectors, vectors["clip"], data.video_of_query
        chosen = largest(query, clips).by_cosine[torch.arange(len(y)), y]
        means = attended_means(
            clips[y, chosen], tokens["frame_key"].vectors, tokens["frame"].vectors, tokens["frame"].mask, y
        )
        expected = method.branch_scores(vectors, tokens)["frame"][torch.arange(len(y)), y]
        torch.testing.assert_close(F.cosine_similarity(query, means), expected)

    def test_every_weight_is_trained(self, name: str) -> None:
        method = make(name)
        torch.stack(list(method.losses(batch(method)).values())).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())

    def test_the_key_clip_has_a_gradient(self, name: str) -> None:
        method = make(name)
        losses = method.losses(batch(method))
        (gradient,) = torch.autograd.grad(losses["frame_nce"], [method.clip.project.linear.weight])
        assert (gradient != 0).any()

    def test_hard_negatives_begin_at_their_epoch(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[bool] = []
        original = ranking.triplet

        def watched(*given: Any, **settings: Any) -> Tensor:
            seen.append(settings["hard"])
            return original(*given, **settings)

        monkeypatch.setattr(ranking, "triplet", watched)
        method = make(name, hard_from_epoch=3)
        for epoch in (0, 2, 3, 9):
            method.losses(batch(method), epoch=epoch)
        assert seen == [False, False, True, True]

    def test_one_video_with_one_query(self, name: str) -> None:
        method = make(name, **({"matching_from_epoch": 0} if name == "bgm_net" else {}))
        data = batch(method)
        single = Batch(
            videos=data.videos[torch.tensor([4])],
            queries=QueryBatch(words=data.queries.words[:1], mask=data.queries.mask[:1]),
            video_of_query=torch.tensor([0]),
        )
        losses = method.losses(single)
        assert all(loss.isfinite() for loss in losses.values())
        assert losses["clip_triplet"] == losses["frame_triplet"] == 0

    def test_more_queries_than_proposals(self) -> None:
        method = make("bgm_net", num_clips=1, matching_from_epoch=0)
        assert all(loss.isfinite() for loss in method.losses(batch(method)).values())

    def test_under_autocast(self, name: str) -> None:
        method = make(name)
        with torch.autocast("cpu", torch.bfloat16):
            losses = method.losses(batch(method))
        assert {loss.dtype for loss in losses.values()} == {torch.float32}


# ---------------------------------------------------------------- training, models, export


def world_config(name: str, **settings: Any) -> Any:
    sizes = {"video_width": WIDTH, "text_width": WIDTH, "width": 8, "num_heads": 2, "num_frames": 12, "num_clips": 4}
    own = {"matching_from_epoch": 1} if name == "bgm_net" else {}
    return KINDS[name].Config(**sizes | {"max_words": 6, "hard_from_epoch": 2} | own | settings)


def train(name: str, folder: Path, recipe: Recipe, **options: Any) -> Path:
    torch.manual_seed(recipe.seed)
    method: Method = KINDS[name](recipe.config)
    world = World(10)
    data = FeatureSet.prepare(method, world.split, world)

    def validate(method: Method) -> dict[str, float]:
        report = evaluate(
            method,
            data.video_batches(4),
            data.query_batches(7),
            data.video_of_query,
            moments=[query.moments for query in data.queries],
            durations=data.durations,
        )
        assert set(report.branches) == {"clip", "frame"}
        assert set(report.moments) == {"found", "best clip", "best frame"}
        return report.recalls

    return fit(method, data, validate, recipe, folder, **options)


@pytest.mark.slow
def test_training_learns(name: str, tmp_path: Path) -> None:
    recipe = Recipe(
        config=world_config(name, dropout=0.1, input_dropout=0.0),
        lr=1e-2,
        batch_size=5,
        epochs=6,
        schedule="warmup_cosine",
    )
    train(name, tmp_path, recipe)
    records = list(read_lines(tmp_path / "metrics.jsonl"))
    assert records[-1]["loss"]["clip_triplet"] < records[0]["loss"]["clip_triplet"]
    assert sum(records[-1]["loss"].values()) < sum(records[0]["loss"].values())
    assert load_method(tmp_path / "best").config == recipe.config
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_a_saved_model_is_equal(name: str, tmp_path: Path) -> None:
    method = make(name).eval()
    method.save_pretrained(tmp_path)
    found = load_method(tmp_path)
    assert type(found) is type(method)
    assert found.config == method.config
    assert len(load_file(tmp_path / "model.safetensors")) == 54
    data = batch(method)
    for each in (found, METHODS[name].from_pretrained(tmp_path)):
        scores = [m.score(m.encode_queries(data.queries), m.encode_videos(data.videos)) for m in (method, each)]
        assert scores[0].equal(scores[1])


# ---------------------------------------------------------------- bad input


class TestBadInput:
    def test_videos_of_a_method_that_resamples(self, name: str) -> None:
        resampled = VideoBatch(frames=torch.randn(1, 128, 10), clip_of_frame=torch.zeros(1, 128, dtype=torch.long))
        with pytest.raises(BadBatch, match="no mask"):
            make(name).encode_videos(resampled)

    def test_its_videos_in_a_method_that_resamples(self, name: str) -> None:
        sizes = {key: value for key, value in SMALL.items() if key != "num_clips"}
        with pytest.raises(BadBatch, match="have a mask"):
            MSC(MSC.Config(**sizes)).encode_videos(make(name).prepare_videos(features()[0][None]))

    def test_other_sizes(self, name: str) -> None:
        video = features()[0][None]
        with pytest.raises(BadBatch, match="16 clips, expected 8"):
            make(name).encode_videos(make(name, num_clips=16).prepare_videos(video))
        with pytest.raises(BadBatch, match="64 frames of width 10, expected 128"):
            make(name).encode_videos(make(name, num_frames=64).prepare_videos(video))
        with pytest.raises(BadBatch, match="width 11, expected 128 of width 10"):
            make(name).encode_videos(make(name, video_width=11).prepare_videos(torch.randn(1, 5, 11)))
        with pytest.raises(BadBatch, match="width 7, expected 6"):
            make(name).encode_queries(QueryBatch(words=torch.randn(1, 3, 7), mask=torch.ones(1, 3, dtype=torch.bool)))

    def test_a_score_with_the_queries_or_videos_of_another_method(self, name: str) -> None:
        method, other = make(name), MSC(MSC.Config(**{key: SMALL[key] for key in SMALL if key != "num_clips"}))
        video = features()[3][None]
        tokens, vectors = method.encode_videos(method.prepare_videos(video)), method.encode_queries(queries().first(9))
        foreign = other.encode_videos(other.prepare_videos(video))
        with pytest.raises(BadBatch, match=r"videos have the branches .* expected .*frame_key"):
            method.score(vectors, foreign)
        with pytest.raises(BadBatch, match=r"queries have the branches \[\], expected"):
            method.score({}, tokens)

    def test_features_that_are_not_numbers(self, name: str) -> None:
        broken = features()[0][None].clone()
        broken[0, 7, 3] = torch.nan
        with pytest.raises(BadBatch, match="NaN"):
            make(name).prepare_videos(broken)

    @pytest.mark.parametrize(
        ("setting", "value"),
        [("num_clips", 257), ("num_clips", 0), ("frame_weight", 1.5), ("hard_from_epoch", -1), ("margin", -0.1)],
    )
    def test_impossible_settings(self, name: str, setting: str, value: Any, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=f"{setting} is {value}, expected"):
            KINDS[name].Config(**{"num_frames": 300, setting: value})

    def test_impossible_settings_of_bgm_net(self, unchecked: None) -> None:
        for setting, value in (("matching_from_epoch", -1), ("alignment_weight", -1.0)):
            with pytest.raises(BadSetting, match=f"{setting} is {value}, expected"):
                BGMNet.Config(**{setting: value})
