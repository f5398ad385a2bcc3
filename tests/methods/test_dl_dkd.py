"""DL-DKD as a whole: sizes, inputs, teacher, terms, the release, bad input."""

import dataclasses
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from midreel import recipes
from midreel.datasets.dataset import Dataset
from midreel.errors import BadBatch, BadSetting, FingerprintMismatch, MissingFeatures, UnknownName
from midreel.evaluation.evaluate import evaluate
from midreel.experiments import runs
from midreel.features.stores.join import join_stores
from midreel.features.stores.store import FeatureStore
from midreel.losses import contrastive, distillation, ranking, soft_labels
from midreel.methods import METHODS, MSC
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.dl_dkd import DLDKD, DLDKDConfig
from midreel.methods.loading import load_model
from midreel.ops import scoring, segments
from midreel.training.data import FeatureSet
from midreel.types import VideoFeatures
from tests.experiments.small import SETTINGS
from tests.features.fakes import FINGERPRINT
from tests.methods import twin_dl_dkd as twin
from tests.training.worlds import WIDTH, World

SMALL: dict[str, Any] = {
    "video_width": 10,
    "teacher_width": 4,
    "text_width": 6,
    "width": 8,
    "num_heads": 2,
    "max_words": 9,
}
LENGTHS = torch.tensor([150, 128, 40, 1])
VIDEO_OF_QUERY = torch.tensor([3, 0, 2, 0, 1, 2, 2])
OBJECTIVES = ("iccv", "hard_labels", "plus_plus")


def make(**settings: Any) -> DLDKD:
    torch.manual_seed(1)
    return DLDKD(DLDKDConfig(**SMALL | settings))


def features(width: int = 10) -> Tensor:
    return torch.randn(4, 150, width, generator=torch.Generator().manual_seed(3))


def queries(num: int = 7) -> QueryBatch:
    generator = torch.Generator().manual_seed(2)
    lengths = torch.tensor([2, 3, 4, 5, 5, 2, 3])[:num]
    return QueryBatch(
        words=torch.randn(num, 5, 6, generator=generator),
        mask=torch.arange(5) < lengths[:, None],
        sentence=torch.randn(num, 4, generator=generator),
    )


def batch(method: DLDKD, width: int = 10) -> Batch:
    videos = method.prepare_videos(features(width), LENGTHS)
    return Batch(videos=videos, queries=queries(), video_of_query=VIDEO_OF_QUERY)


def test_the_registry() -> None:
    assert METHODS["dl_dkd"] is DLDKD


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("video_width", "text_width", "max_words", "expected"),
    [
        (3072, 768, 30, 5_755_392),
        (1024, 1024, 30, 4_371_968),
        (768, 768, 30, 3_976_704),
        (768, 768, 77, 4_012_800),
        (2816, 512, 30, 5_360_128),
        (2816, 512, 77, 5_396_224),
    ],
)
def test_number_of_parameters(objective: Any, video_width: int, text_width: int, max_words: int, expected: int) -> None:
    config = DLDKDConfig(objective=objective, video_width=video_width, text_width=text_width, max_words=max_words)
    with torch.device("meta"):
        method = DLDKD(config)
    assert sum(p.numel() for p in method.parameters()) == expected
    assert len(method.state_dict()) == 74


class TestInputs:
    def test_frames_are_capped(self) -> None:
        videos = make().prepare_videos(features(), LENGTHS)
        assert videos.mask is not None
        assert videos.mask.sum(1).tolist() == [128, 128, 40, 1]
        assert videos.clips is videos.teacher is None
        torch.testing.assert_close(videos.frames[0], segments.resample(features()[:1])[0])
        assert videos.frames[2, :40].equal(features()[2, :40])
        assert (videos.frames[2, 40:] == 0).all()
        assert videos.clip_of_frame[2, :40].tolist() == [frame * 32 // 40 for frame in range(40)]

    def test_joined_features_are_separated(self) -> None:
        joined = features(14)
        videos = make().prepare_videos(joined, LENGTHS)
        alone, teacher = (
            make().prepare_videos(joined[..., :10], LENGTHS),
            segments.cap(joined[..., 10:], 128, LENGTHS)[0],
        )
        assert videos.teacher is not None
        torch.testing.assert_close(videos.frames, alone.frames)
        torch.testing.assert_close(videos.teacher, teacher)  # capped, not scaled to length one

    def test_the_teacher_changes_no_token(self) -> None:
        method = make().eval()
        joined = method.encode_videos(method.prepare_videos(features(14), LENGTHS))
        alone = method.encode_videos(method.prepare_videos(features(14)[..., :10], LENGTHS))
        for branch, tokens in alone.items():
            torch.testing.assert_close(tokens.vectors, joined[branch].vectors)

    def test_spans_follow_the_real_frames(self) -> None:
        tokens = make().encode_videos(make().prepare_videos(features(), LENGTHS))
        assert list(tokens) == ["inheritance", "exploration"]
        for each in tokens.values():
            assert each.vectors.shape == (4, 128, 8)
            assert each.mask.sum(1).tolist() == [128, 128, 40, 1]
            torch.testing.assert_close(each.spans[2, 39], torch.tensor([39 / 40, 1.0]))
            assert each.spans[3, 0].tolist() == [0, 1]

    def test_words_after_the_limit_are_ignored(self) -> None:
        method = make().eval()
        words, mask = torch.randn(2, 14, 6), torch.ones(2, 14, dtype=torch.bool)
        whole = method.encode_queries(QueryBatch(words=words, mask=mask))
        cut = method.encode_queries(QueryBatch(words=words[:, :9], mask=mask[:, :9]))
        for branch, vectors in whole.items():
            assert vectors.equal(cut[branch])

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_iccv_shares_one_projection_of_words(self, objective: str) -> None:
        method = make(objective=objective).eval()
        before = method.encode_queries(queries())
        with torch.no_grad():
            method.exploration_query.project.linear.weight.add_(1.0)
        after = method.encode_queries(queries())
        assert after["inheritance"].equal(before["inheritance"])
        assert after["exploration"].equal(before["exploration"]) == (objective == "iccv")


class TestScore:
    def test_branches_are_weighted_and_padding_is_excluded(self) -> None:
        method = make().eval()
        data = batch(method)
        vectors, tokens = method.encode_queries(data.queries), method.encode_videos(data.videos)
        expected = torch.zeros(7, 4)
        for branch, weight in (("inheritance", 0.7), ("exploration", 0.3)):
            for j, num in enumerate([128, 128, 40, 1]):
                real = tokens[branch].vectors[j, :num]
                expected[:, j] += weight * torch.cosine_similarity(vectors[branch][:, None], real, dim=2).amax(1)
        torch.testing.assert_close(method.score(vectors, tokens), expected)

    @pytest.mark.parametrize("num_frames", [1, 2, 3, 4, 5, 128, 150])
    def test_a_video_does_not_see_its_batch_mates(self, num_frames: int) -> None:
        method = make().eval()
        lengths = torch.tensor([150, num_frames, 40, 1])
        together = method.encode_videos(method.prepare_videos(features(), lengths))
        alone = method.encode_videos(method.prepare_videos(features()[1:2, :num_frames]))
        for branch, tokens in alone.items():
            torch.testing.assert_close(tokens.vectors[0], together[branch].vectors[1])

    def test_a_query_does_not_see_its_batch_mates(self) -> None:
        method = make().eval()
        together = method.encode_queries(queries())
        alone = method.encode_queries(QueryBatch(words=queries().words[:1, :2], mask=queries().mask[:1, :2]))
        for branch, vectors in alone.items():
            torch.testing.assert_close(vectors[0], together[branch][0])

    def test_frames_below_zero_stay_below_zero(self) -> None:
        method = make().eval()
        tokens = method.encode_videos(batch(method).videos)["inheritance"]
        away = -tokens.vectors[3:, 0]  # the opposite of the only frame of video 3
        assert scoring.cosine_max_sim(away, tokens.vectors, tokens.mask)[0, 3].item() == pytest.approx(-1)


class TestTerms:
    @pytest.mark.parametrize("width", [10, 14], ids=["own columns", "joined"])
    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_terms_are_the_weighted_formulas(self, objective: str, width: int) -> None:
        method = make(objective=objective, hard_pool=1).eval()
        data = batch(method, width)
        tokens, vectors = method.encode_videos(data.videos), method.encode_queries(data.queries)
        teacher = segments.cap(features(width)[..., -4:], 128, LENGTHS)[0]
        losses = method.losses(data, epoch=40)
        assert list(losses) == [
            *("inheritance_nce", "inheritance_triplet", "exploration_nce", "exploration_triplet"),
            "distillation",
        ]
        assert data.queries.sentence is not None
        for branch, video in tokens.items():
            products = scoring.max_sim(vectors[branch], video.vectors, video.mask)
            softening = products
            if branch == "inheritance":
                softening = scoring.max_sim(data.queries.sentence, teacher, video.mask)
            if objective != "plus_plus":
                nce = contrastive.infonce(products, VIDEO_OF_QUERY)
            else:
                share = 0.8 * 800 / (800 + math.exp(5))
                nce = soft_labels.soft_infonce(products, softening, VIDEO_OF_QUERY, hard_share=share, truth_share=share)
            torch.testing.assert_close(losses[f"{branch}_nce"], 0.04 * nce)
            cosines = scoring.cosine_max_sim(vectors[branch], video.vectors, video.mask)
            triplet = ranking.triplet(cosines, VIDEO_OF_QUERY, margin=0.2, hard=True, hard_pool=1)
            torch.testing.assert_close(losses[f"{branch}_triplet"], triplet)
        divergence = distillation.curve_divergence(
            torch.cosine_similarity(
                vectors["inheritance"][:, None], tokens["inheritance"].vectors[VIDEO_OF_QUERY], dim=2
            ),
            torch.cosine_similarity(data.queries.sentence[:, None], teacher[VIDEO_OF_QUERY], dim=2),
            tokens["inheritance"].mask[VIDEO_OF_QUERY],
            temperature=0.2,
        )
        torch.testing.assert_close(losses["distillation"], 0.1 * 0.95**40 * divergence)

    def test_schedules(self) -> None:
        method = make()
        assert method.distillation_weight(0) == 0.1
        assert method.distillation_weight(10) == pytest.approx(0.1 * 0.95**10)
        assert method.hard_share(0) == pytest.approx(0.8 * 800 / 801)
        assert method.hard_share(53) > 0.4 > method.hard_share(54)
        assert method.truth_share(0) == method.hard_share(0)
        assert method.truth_share(119) == 0.5
        assert method.hard_share(119) < 0.001
        assert method.hard_share(2**31 - 1) < 1e-300  # exp() does not overflow

    def test_a_truth_share_that_starts_below_the_minimum_has_none(self) -> None:
        assert make(truth_share=0.5).truth_share(0) == 0.5
        assert make(truth_share=0.4).truth_share(0) == pytest.approx(0.4 * 800 / 801)
        assert make(truth_share=0.4).truth_share(119) < 0.001

    @pytest.mark.parametrize("epoch", [0, 53, 119, 5000])
    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_every_weight_is_trained(self, objective: str, epoch: int) -> None:
        method = make(objective=objective)
        torch.stack(list(method.losses(batch(method), epoch=epoch).values())).sum().backward()
        idle = {name for name, p in method.named_parameters() if p.grad is None}
        # The release also keeps these weights and does not use them.
        assert all(name.startswith("exploration_query.project.") for name in idle)
        assert len(idle) == (4 if objective == "iccv" else 0)
        assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)

    def test_the_exploration_branch_does_not_see_the_teacher(self) -> None:
        method = make(hard_pool=1).eval()
        data = batch(method)
        other = dataclasses.replace(data, queries=dataclasses.replace(data.queries, sentence=torch.randn(7, 4)))
        before, after = method.losses(data, epoch=60), method.losses(other, epoch=60)
        assert {name for name in before if not before[name].equal(after[name])} == {"inheritance_nce", "distillation"}

    def test_negatives_are_random_before_hard_from_epoch(self) -> None:
        method = make(hard_from_epoch=3, hard_pool=1).eval()
        data = batch(method)
        hard = {method.losses(data, epoch=3)["exploration_triplet"].item() for _ in range(5)}
        random = {method.losses(data, epoch=2)["exploration_triplet"].item() for _ in range(5)}
        assert len(hard) == 1 < len(random)

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_half_precision(self, objective: str) -> None:
        method = make(objective=objective, hard_pool=1).eval()
        data = batch(method, 14)
        with torch.autocast("cpu", torch.bfloat16):
            losses = method.losses(data)
        for name, term in method.losses(data).items():
            assert losses[name].dtype == torch.float32
            torch.testing.assert_close(losses[name], term, rtol=0.1, atol=0.02)

    @pytest.mark.parametrize("num", [1, 2])
    def test_few_queries(self, num: int) -> None:
        method = make()
        videos = method.prepare_videos(features()[:num], LENGTHS[:num])
        single = Batch(videos=videos, queries=queries(num), video_of_query=torch.arange(num))
        terms = method.losses(single)
        torch.stack(list(terms.values())).sum().backward()
        assert all(term.isfinite() for term in terms.values())


def released(objective: str, num_frames: int = 128) -> tuple[twin.Released, DLDKD]:
    """A release with random weights in double precision, and the method with the same weights."""
    torch.manual_seed(5)
    model = twin.Released(
        objective, video_width=10, text_width=6, width=8, num_heads=2, words=9, frames=num_frames
    ).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    method = make(objective=objective, hard_pool=1, num_frames=num_frames, num_clips=8).double().eval()
    state = model.state_dict()
    names = {name: twin.released_name(name, objective) for name in method.state_dict()}
    assert sorted(names.values()) == sorted(state)
    method.load_state_dict({name: state[of_release] for name, of_release in names.items()})
    return model, method


class TestRelease:
    """The twin of the released code, with the same weights."""

    @torch.no_grad()
    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_queries_videos_and_scores(self, objective: str) -> None:
        model, method = released(objective)
        videos = [torch.randn(num, 10, dtype=torch.float64) for num in (5, 1, 128, 129, 203, 300, 37)]
        texts = [torch.randn(num, 6, dtype=torch.float64) for num in (1, 4, 9, 12)]
        tokens = method.encode_videos(prepared(method, videos))
        vectors = method.encode_queries(joined_words(texts))
        for branch in ("inheritance", "exploration"):
            for found, words in zip(vectors[branch], texts, strict=True):
                torch.testing.assert_close(found, model.query(branch, words), rtol=1e-9, atol=1e-9)
            for found, mask, frames in zip(tokens[branch].vectors, tokens[branch].mask, videos, strict=True):
                torch.testing.assert_close(found[mask], model.video(branch, frames), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(method.score(vectors, tokens), model.scores(texts, videos), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize(
        ("objective", "epoch"),
        [("iccv", 0), ("iccv", 60), ("hard_labels", 0), ("plus_plus", 0), ("plus_plus", 60), ("plus_plus", 119)],
    )
    def test_terms_and_gradients(self, objective: str, epoch: int) -> None:
        model, method = released(objective, num_frames=12)
        sizes = (7, 5, 19, 12, 2)
        videos = [torch.randn(num, 10, dtype=torch.float64) for num in sizes]
        teachers = [3 * torch.randn(num, 4, dtype=torch.float64) for num in sizes]
        captions = [
            [(torch.randn(1 + k, 6, dtype=torch.float64), 3 * torch.randn(4, dtype=torch.float64)) for k in range(num)]
            for num in (1, 3, 2, 3, 1)
        ]
        flat = [(words, sentence, j) for j, own in enumerate(captions) for words, sentence in own]
        mixed = [flat[i] for i in (4, 0, 1, 9, 2, 6, 5, 7, 3, 8)]  # the queries of a video stay in order
        data = Batch(
            videos=prepared(method, [torch.cat(pair, 1) for pair in zip(videos, teachers, strict=True)]),
            queries=dataclasses.replace(
                joined_words([words for words, _, _ in mixed]),
                sentence=torch.stack([sentence for _, sentence, _ in mixed]),
            ),
            video_of_query=torch.tensor([j for _, _, j in mixed]),
        )
        found = method.losses(data, epoch=epoch)
        expected = model.losses(videos, teachers, captions, epoch, margin=0.2)
        assert set(found) == set(expected)
        for name, term in expected.items():
            torch.testing.assert_close(found[name], term, rtol=1e-9, atol=1e-9)
        torch.stack(list(found.values())).sum().backward()
        torch.stack(list(expected.values())).sum().backward()
        theirs = dict(model.named_parameters())
        for name, weight in method.named_parameters():
            gradient = theirs[twin.released_name(name, objective)].grad
            assert (gradient is None) == (weight.grad is None)
            if gradient is not None:
                torch.testing.assert_close(weight.grad, gradient, rtol=1e-7, atol=1e-9)


def prepared(method: DLDKD, videos: list[Tensor]) -> VideoBatch:
    return VideoBatch.join([method.prepare_videos(frames[None]) for frames in videos], len(videos))


def joined_words(texts: list[Tensor]) -> QueryBatch:
    words = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    return QueryBatch(words=words, mask=torch.arange(words.shape[1]) < torch.tensor([len(t) for t in texts])[:, None])


class TestTraining:
    CONFIG: ClassVar[dict[str, Any]] = {
        "video_width": WIDTH,
        "teacher_width": WIDTH,
        "text_width": WIDTH,
        "width": 8,
        "num_heads": 2,
        "num_frames": 16,
        "num_clips": 6,
        "max_words": 6,
        "dropout": 0.0,
        "input_dropout": 0.0,
    }

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_it_learns(self, objective: str) -> None:
        method, world = DLDKD(DLDKDConfig(**self.CONFIG | {"objective": objective})), World(10)
        data = FeatureSet.prepare(method, world.split, world)
        optimiser = torch.optim.Adam(method.parameters(), lr=1e-2)
        history = []
        for _ in range(40):
            loss = torch.stack(list(method.losses(data.batch(torch.arange(10))).values())).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            history.append(loss.item())
        assert history[-1] < 0.5 * history[0]
        report = evaluate(method, data.video_batches(4), data.query_batches(7), data.video_of_query)
        assert report.recalls["R@1"] > 60


class TestDatasets:
    """Training on a dataset, with the features of one CLIP or joined ones."""

    CHANGES: ClassVar[dict[str, Any]] = {name: value for name, value in SETTINGS.items() if name != "min_clips"} | {
        "epochs": 1
    }

    @pytest.fixture
    def dataset(self, dataset_folder: Path) -> Dataset:
        return Dataset.open(dataset_folder)

    @pytest.fixture
    def joined(self, dataset: Dataset, tmp_path: Path) -> Dataset:
        """The dataset with features of width 5 for the student, and those of CLIP behind them."""
        plain = dataclasses.replace(
            FINGERPRINT, width=5, word_width=None, sentence_width=None, frame_rate=0.5, dtype="float32"
        )
        with FeatureStore.create(tmp_path / "student.h5", plain) as store:
            for video_id in dataset.store.video_ids():
                known = dataset.store.video(video_id)
                frames = torch.randn(len(known.frames), 5).numpy()
                store.add_video(video_id, VideoFeatures(frames=frames, times=known.times, duration=known.duration))
        report = join_stores([tmp_path / "student.h5", dataset.store.path], tmp_path / "joined.h5")
        assert not report.failed
        return dataclasses.replace(dataset, store=FeatureStore.open(tmp_path / "joined.h5"))

    @pytest.mark.slow
    def test_features_of_clip_are_their_own_teacher(self, dataset: Dataset, tmp_path: Path) -> None:
        recipe = recipes.build("dl_dkd", "playhouse", self.CHANGES | {"teacher_width": 24})
        runs.train(dataset, recipe, tmp_path / "run")
        method = runs.load(str(tmp_path / "run"), dataset)
        report = runs.examine(method, FeatureSet.of(method, dataset, "val")).report
        assert set(report.branches) == {"inheritance", "exploration"}
        assert report.num_moments > 0

    def test_joined_features(self, joined: Dataset, tmp_path: Path) -> None:
        changes = self.CHANGES | {"video_width": 5, "teacher_width": 24}
        runs.train(joined, recipes.build("dl_dkd", "playhouse", changes), tmp_path / "run")
        method = runs.load(str(tmp_path / "run"), joined)
        data = FeatureSet.of(method, joined, "val")
        assert data.videos.frames.shape[2] == 5
        assert data.videos.teacher is not None
        assert data.videos.teacher.shape[2] == 24
        runs.examine(method, data)

    def test_a_student_may_read_the_columns_of_the_teacher(self, joined: Dataset, tmp_path: Path) -> None:
        changes = self.CHANGES | {"video_width": 29, "teacher_width": 24}
        runs.train(joined, recipes.build("dl_dkd", "playhouse", changes), tmp_path / "run")

    def test_wrong_widths_name_the_right_ones(self, dataset: Dataset, joined: Dataset, tmp_path: Path) -> None:
        recipe = recipes.build("dl_dkd", "playhouse", self.CHANGES)
        with pytest.raises(BadSetting, match=r"teacher_width 24 .*--set teacher_width=24$"):
            runs.train(dataset, recipe, tmp_path / "run")
        with pytest.raises(BadSetting, match=r"=29 --set text_width=32 --set teacher_width=24, .*video_width=5 "):
            runs.train(joined, recipes.build("dl_dkd", "tvr"), tmp_path / "run")

    def test_without_a_joint_space(self, dataset: Dataset, tmp_path: Path) -> None:
        apart = dataclasses.replace(dataset.store.fingerprint, joint=False)
        store = FeatureStore.create(tmp_path / "apart.h5", apart)
        recipe = recipes.build("dl_dkd", "playhouse", self.CHANGES | {"teacher_width": 24})
        with pytest.raises(MissingFeatures, match=r"no joint space.*midreel join"):
            runs.train(dataclasses.replace(dataset, store=store), recipe, tmp_path / "run")

    def test_a_model_without_a_record_of_its_features(self, tmp_path: Path) -> None:
        make().save_pretrained(tmp_path / "model")
        options = {"where": Path("features.h5"), "again": "extract"}
        for width in (10, 14):
            load_model(str(tmp_path / "model"), dataclasses.replace(FINGERPRINT, width=width), **options)
        with pytest.raises(FingerprintMismatch, match=r"width 10 or 14, but features.h5 has width 12"):
            load_model(str(tmp_path / "model"), dataclasses.replace(FINGERPRINT, width=12), **options)


class TestRecipes:
    @pytest.mark.parametrize(
        ("name", "lr", "dropout", "margin", "widths"),
        [
            ("tvr", 3e-4, 0.2, 0.1, (768, 768, 768)),
            ("activitynet", 2.5e-4, 0.25, 0.2, (768, 768, 768)),
            ("charades", 2.4e-4, 0.15, 0.2, (768, 768, 768)),
            ("qvhighlights", 2.5e-4, 0.25, 0.2, (2816, 512, 512)),
        ],
    )
    def test_values_of_the_releases(
        self, name: str, lr: float, dropout: float, margin: float, widths: tuple[int, int, int]
    ) -> None:
        recipe, iccv = recipes.build("dl_dkd", name), recipes.build("dl_dkd", name, {"objective": "iccv"})
        c = recipe.config
        assert (recipe.lr, c.dropout, c.input_dropout, recipe.epochs, recipe.seed) == (lr, dropout, dropout, 120, 9527)
        i = iccv.config
        assert (iccv.lr, i.dropout, i.input_dropout, iccv.epochs, iccv.seed) == (2.5e-4, 0.1, 0.1, 100, 2018)
        for each in (c, i):
            assert each.margin == margin
            assert (each.video_width, each.text_width, each.teacher_width) == widths
            assert (each.hard_from_epoch, each.hard_pool, each.max_words) == (0, 20, 77)
            assert (each.inheritance_nce_weight, each.exploration_nce_weight) == (0.04, 0.04)
            assert (each.distillation_weight, each.distillation_decay, each.distillation_temperature) == (
                0.1,
                0.95,
                0.2,
            )
        assert (recipe.batch_size, recipe.patience, recipe.warmup, recipe.weight_decay) == (128, 10, 0.01, 0.01)

    def test_changes_win(self) -> None:
        recipe = recipes.build("dl_dkd", "tvr", {"objective": "iccv", "dropout": 0.3, "epochs": 7, "seed": 3})
        assert (recipe.config.dropout, recipe.config.input_dropout) == (0.3, 0.1)
        assert (recipe.epochs, recipe.seed) == (7, 3)


class TestBadInput:
    def test_features_of_another_width(self) -> None:
        with pytest.raises(BadBatch, match="width 12, expected 10, or 14"):
            make().prepare_videos(features(12))

    def test_videos_of_another_method(self) -> None:
        resampled = VideoBatch(frames=torch.randn(1, 128, 10), clip_of_frame=torch.zeros(1, 128, dtype=torch.long))
        with pytest.raises(BadBatch, match="no mask"):
            make().encode_videos(resampled)
        with pytest.raises(BadBatch, match=r"64 frames of width 10.* expected 128"):
            make().encode_videos(make(num_frames=64).prepare_videos(features()))
        sizes = {name: value for name, value in SMALL.items() if name != "teacher_width"}
        with pytest.raises(BadBatch, match="have a mask"):
            MSC(MSC.Config(**sizes)).encode_videos(make().prepare_videos(features()))

    def test_words_of_another_width(self) -> None:
        with pytest.raises(BadBatch, match="width 7, expected 6"):
            make().encode_queries(QueryBatch(words=torch.randn(1, 3, 7), mask=torch.ones(1, 3, dtype=torch.bool)))

    def test_no_sentences(self) -> None:
        data = batch(make())
        with pytest.raises(MissingFeatures, match=r"no sentence vectors.* width 4"):
            make().losses(dataclasses.replace(data, queries=dataclasses.replace(data.queries, sentence=None)))

    def test_sentences_outside_the_joint_space(self) -> None:
        data = batch(make())
        other = dataclasses.replace(data.queries, sentence=torch.randn(7, 6))
        with pytest.raises(BadBatch, match=r"width 6 .* 4, expected teacher_width = 4.*no joint space"):
            make().losses(dataclasses.replace(data, queries=other))

    def test_a_teacher_of_another_width(self) -> None:
        data = batch(make())
        videos = dataclasses.replace(data.videos, teacher=torch.randn(4, 128, 3))
        with pytest.raises(BadBatch, match="teacher frames 3, expected teacher_width = 4"):
            make().losses(dataclasses.replace(data, videos=videos))

    def test_no_teacher(self) -> None:
        method = make(teacher_width=16)
        with pytest.raises(MissingFeatures, match=r"no teacher frames.*midreel join"):
            method.losses(batch(method))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_clips", 200),
            ("teacher_width", 0),
            ("exploration_nce_weight", -1.0),
            ("distillation_weight", -1.0),
            ("distillation_temperature", 0.0),
            ("distillation_decay", 1.5),
            ("inheritance_weight", 1.5),
            ("hard_share", -0.1),
            ("truth_share", math.nan),
            ("min_truth_share", 2.0),
            ("dropout", 1.0),
            ("hard_from_epoch", -1),
        ],
    )
    def test_impossible_settings(self, name: str, value: Any, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=f"{name} is {value}, expected"):
            DLDKDConfig(**{name: value})

    def test_an_unknown_objective(self, unchecked: None) -> None:
        with pytest.raises(UnknownName, match=r"'ICCV'.* iccv, hard_labels, plus_plus"):
            DLDKDConfig(objective="ICCV")  # type: ignore[arg-type]
