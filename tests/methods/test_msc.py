"""MSC as a whole: sizes, switches, terms, variants, independence of batch mates, bad input."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch, BadSetting, UnknownName
from midreel.losses import alignment, contrastive, ranking, relational
from midreel.methods import METHODS
from midreel.methods.base import Method, clip_inputs
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.msc import MSC, MSCConfig, last_words
from midreel.nn.attention import AttentionBlock
from midreel.nn.dropout import Dropout
from midreel.nn.embed import unit_rows
from midreel.nn.gaussian import gaussian_window
from midreel.nn.windowed_attention import attend
from midreel.ops import scoring, segments

SMALL: dict[str, Any] = {"video_width": 10, "text_width": 6, "width": 8, "num_heads": 2, "max_words": 9}
VARIANTS = ["paper", "released"]


def make(**settings: Any) -> MSC:
    torch.manual_seed(1)
    return MSC(MSCConfig(**SMALL | settings))


def queries(num: int = 7, length: int = 5) -> QueryBatch:
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(2, length + 1, (num, 1), generator=generator)
    words = torch.randn(num, length, SMALL["text_width"], generator=generator)
    return QueryBatch(words=words, mask=torch.arange(length) < lengths)


def videos(method: MSC, num: int = 4) -> VideoBatch:
    """From diverse to nearly still, so that adaptive merging has something to do."""
    generator = torch.Generator().manual_seed(3)
    scene = torch.linspace(0, 4, num)[:, None, None] * torch.randn(num, 1, SMALL["video_width"], generator=generator)
    return method.prepare_videos(torch.randn(num, 150, SMALL["video_width"], generator=generator) + scene)


def batch(method: MSC) -> Batch:
    return Batch(videos=videos(method), queries=queries(), video_of_query=torch.tensor([0, 0, 1, 2, 2, 3, 3]))


class TestSizes:
    def test_parameters_on_qvhighlights(self) -> None:
        for variant, expected in (("paper", 31_995_040), ("released", 32_142_880)):
            with torch.device("meta"):
                method = MSC(MSCConfig(variant=variant))
            assert sum(p.numel() for p in method.parameters()) == expected

    def test_parameters_on_clip_features(self) -> None:
        for variant, words, expected in (
            ("paper", 77, 30_512_800),
            ("paper", 30, 30_494_752),
            ("released", 77, 30_660_640),
        ):
            with torch.device("meta"):
                method = MSC(MSCConfig(variant=variant, video_width=768, text_width=768, max_words=words))
            assert sum(p.numel() for p in method.parameters()) == expected

    def test_number_of_tensors(self) -> None:
        assert [len(make(variant=variant).state_dict()) for variant in VARIANTS] == [297, 299]

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_tokens(self, variant: str) -> None:
        method = make(variant=variant).eval()
        tokens = method.encode_videos(videos(method))
        assert tokens["clip"].vectors.shape == (4, 32, 8)
        assert tokens["frame"].vectors.shape == (4, 128, 8)
        for branch in tokens.values():
            assert branch.mask.all()
            assert (branch.spans[..., 0] < branch.spans[..., 1]).all()
            torch.testing.assert_close(branch.spans[:, 1:, 0], branch.spans[:, :-1, 1])  # no gap, in order
            assert (branch.spans[:, 0, 0] == 0).all()
            assert (branch.spans[:, -1, 1] == 1).all()


class TestNetwork:
    def test_the_windows_are_in_the_order_of_released_checkpoints(self) -> None:
        method = make()
        for branch, length in ((method.clip, 32), (method.frame, 128)):
            for window, width in zip(branch.mixture.windows, (None, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0), strict=True):
                assert window.equal(gaussian_window(length, width))

    def test_the_token_starts_at_unit_scale(self) -> None:
        method = MSC(MSCConfig(**SMALL | {"width": 400}))
        assert method.weight_token.std().item() == pytest.approx(1, abs=0.15)
        assert method.clip.mixture.blocks[0].expand.weight.std().item() == pytest.approx(0.02, rel=0.05)

    def test_every_dropout_is_used(self) -> None:
        method = make()
        called = set()
        for name, module in method.named_modules():
            if isinstance(module, Dropout):
                module.register_forward_hook(lambda *_, name=name: called.add(name))
        method.losses(batch(method))
        idle = {name for name, module in method.named_modules() if isinstance(module, Dropout)} - called
        # Inside a block, attention takes the rate and drops the weights itself (tests/nn/test_windowed_attention.py).
        blocks = {name for name, module in method.named_modules() if type(module) is AttentionBlock}
        assert idle == {f"{name}.attention_dropout" for name in blocks}

    def test_an_incomplete_method_is_abstract(self) -> None:
        class Unfinished(Method):
            pass

        with pytest.raises(TypeError, match="abstract"):
            Unfinished()

    def test_features_in_half_precision(self) -> None:
        method = make().eval()
        data = videos(method)
        half = VideoBatch(frames=data.frames.half(), clip_of_frame=data.clip_of_frame)
        for branch, found in method.encode_videos(half).items():
            torch.testing.assert_close(found.vectors, method.encode_videos(data)[branch].vectors, atol=0.02, rtol=0)
        words = dataclasses.replace(queries(), words=queries().words.half())
        expected = method.encode_queries(queries())["clip"]
        torch.testing.assert_close(method.encode_queries(words)["clip"], expected, atol=0.02, rtol=0)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_half_precision_gives_the_same_merges(self, variant: str, dtype: torch.dtype) -> None:
        method = make(variant=variant)
        data = method.prepare_videos(torch.randn(48, 128, 10) + torch.linspace(0, 2, 48)[:, None, None])
        half = dataclasses.replace(data, frames=data.frames.to(dtype), clips=None)
        single = dataclasses.replace(half, frames=half.frames.float())
        merged = [method.merge_clips(*clip_inputs(videos, 32)) for videos in (half, single)]
        assert merged[0].equal(merged[1])
        assert len({len(row.unique()) for row in merged[0]}) > 2


class TestSegmentation:
    def test_each_setting_cuts_as_it_says(self) -> None:
        frames = segments.resample(torch.randn(3, 200, 10))
        assert make(clips="uniform").segment(frames).equal(segments.uniform(frames))
        assert make().segment(frames).equal(segments.order_preserving(frames))
        released = segments.order_preserving(frames, similarity="dot", lengths=(128, 80, 52, 32))
        assert make(variant="released").segment(frames).equal(released)
        assert make(variant="released", clips="uniform").segment(frames).equal(segments.uniform(frames))

    def test_other_sizes(self) -> None:
        method = make(num_frames=24, num_clips=7)
        assert videos(method).clip_of_frame.unique().tolist() == list(range(7))
        assert method.losses(batch(method))["cbva"].isfinite()


class TestTerms:
    BASE = ("clip_nce", "clip_triplet", "frame_nce", "frame_triplet")
    TCPL = ("tcpl_distance", "tcpl_angle")
    VCPL = ("vcpl_distance", "vcpl_angle")

    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize(
        ("row", "switches", "terms"),
        [
            ("a", {"tcpl": False, "cbva": False, "adaptive": False, "clips": "uniform"}, BASE),
            ("b", {"cbva": False, "adaptive": False, "clips": "uniform"}, BASE + TCPL),
            ("c", {"adaptive": False, "clips": "uniform"}, (*BASE, *TCPL, "cbva")),
            ("d", {"adaptive": False}, (*BASE, *TCPL, "cbva")),
            ("e", {}, (*BASE, *TCPL, "cbva")),
            ("retrieved", {"cbva": False, "clips": "uniform", "vcpl": "retrieved"}, BASE + TCPL + VCPL),
            ("uniform", {"cbva": False, "clips": "uniform", "vcpl": "uniform"}, BASE + TCPL + VCPL),
        ],
    )
    def test_every_row_of_the_ablation_trains(
        self, variant: str, row: str, switches: dict[str, Any], terms: tuple[str, ...]
    ) -> None:
        method = make(variant=variant, **switches)
        losses = method.losses(batch(method))
        assert tuple(losses) == terms
        torch.stack(list(losses.values())).sum().backward()
        # The key bias of the summary has no effect, and only CBVA uses the released projection.
        idle = {name for name, p in method.named_parameters() if p.grad is None}
        expected = {f"{branch}.mixture.summary.key.bias" for branch in ("clip", "frame")}
        if variant == "released" and "cbva" not in terms:
            expected |= {"alignment_projection.weight", "alignment_projection.bias"}
        assert idle == expected
        assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)

    def test_terms_are_the_weighted_formulas(self) -> None:
        method = make(adaptive=False).eval()
        data = batch(method)
        tokens, pooled = method.encode_videos(data.videos), method.encode_queries(data.queries)
        losses = method.losses(data)
        products = scoring.max_sim(pooled["clip"], tokens["clip"].vectors)
        torch.testing.assert_close(losses["clip_nce"], 0.02 * contrastive.infonce(products, data.video_of_query))
        products = scoring.max_sim(pooled["frame"], tokens["frame"].vectors)
        torch.testing.assert_close(losses["frame_nce"], 0.04 * contrastive.infonce(products, data.video_of_query))
        eos = torch.stack(
            [w[m][-1] / (w[m][-1].norm() + 1e-5) for w, m in zip(data.queries.words, data.queries.mask, strict=True)]
        )
        torch.testing.assert_close(losses["tcpl_distance"], 15 * relational.distance_preservation(pooled["clip"], eos))
        torch.testing.assert_close(losses["tcpl_angle"], 30 * relational.angle_preservation(pooled["clip"], eos))
        cbva = alignment.cross_branch_alignment(
            tokens["frame"].vectors, tokens["clip"].vectors, data.videos.clip_of_frame
        )
        torch.testing.assert_close(losses["cbva"], 0.1 * cbva)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_adaptive_alignment_sees_the_merged_clips(self, variant: str) -> None:
        method = make(variant=variant).eval()
        data = batch(method)
        tokens = method.encode_videos(data.videos)
        frames, clips = tokens["frame"].vectors, tokens["clip"].vectors
        total = []
        for video in range(len(data.videos)):
            clip_of_frame = data.videos.clip_of_frame[video, None]
            sizes = segments.segment_sizes(clip_of_frame, 32)
            means = segments.segment_mean(data.videos.frames[video, None], clip_of_frame, 32)
            merged_of_clip = method.merge_clips(unit_rows(means), sizes)
            num_merged = int(merged_of_clip.max()) + 1
            merged = segments.segment_mean(clips[video, None], merged_of_clip, num_merged, sizes)
            context_of_frame = segments.compose(clip_of_frame, merged_of_clip)
            if variant == "paper":
                total.append(alignment.cross_branch_alignment(frames[video, None], merged, context_of_frame))
            else:
                project = method.alignment_projection
                assert project is not None
                total.append(
                    alignment.released_alignment(project(frames[video, None]), project(merged), context_of_frame)
                )
        torch.testing.assert_close(method.losses(data)["cbva"], 0.1 * torch.stack(total).mean())
        counts = {len(row.unique()) for row in method.merge_clips(*clip_inputs(data.videos, 32))}
        assert len(counts) > 1  # the example does merge, and not all videos alike

    def test_ranking_is_on_cosines(self) -> None:
        method = make(hard_pool=1, hard_from_epoch=0).eval()
        data = batch(method)
        tokens, pooled = method.encode_videos(data.videos), method.encode_queries(data.queries)
        for branch in ("clip", "frame"):
            cosines = scoring.cosine_max_sim(pooled[branch], tokens[branch].vectors)
            expected = ranking.triplet(cosines, data.video_of_query, margin=0.2, hard=True, hard_pool=1)
            torch.testing.assert_close(method.losses(data)[f"{branch}_triplet"], expected)

    def test_another_teacher_for_tcpl(self) -> None:
        method = make().eval()
        data = batch(method)
        teacher = torch.randn(7, 33)
        other = dataclasses.replace(data, queries=dataclasses.replace(data.queries, teacher=teacher))
        pooled = method.encode_queries(data.queries)["clip"]
        expected = 30 * relational.angle_preservation(pooled, teacher)
        torch.testing.assert_close(method.losses(other)["tcpl_angle"], expected)

    def test_vcpl_on_retrieved_tokens(self) -> None:
        method = make(cbva=False, vcpl="retrieved").eval()
        data = batch(method)
        tokens, pooled = method.encode_videos(data.videos), method.encode_queries(data.queries)["clip"]
        frozen = {"clip": clip_inputs(data.videos, 32)[0], "frame": data.videos.frames}
        expected = torch.zeros(())
        for branch in ("clip", "frame"):
            student, teacher = [], []
            for q, v in enumerate(data.video_of_query.tolist()):
                best = torch.cosine_similarity(pooled[q], tokens[branch].vectors[v], dim=-1).argmax()
                student.append(tokens[branch].vectors[v, best])
                clip_channels = frozen[branch][v, best, -6:]
                teacher.append(clip_channels / (clip_channels.norm() + 1e-5))
            expected = expected + 15 * relational.distance_preservation(torch.stack(student), torch.stack(teacher))
        torch.testing.assert_close(method.losses(data)["vcpl_distance"], expected)

    def test_vcpl_on_spread_tokens(self) -> None:
        method = make(cbva=False, vcpl="uniform").eval()
        data = batch(method)
        tokens, means = method.encode_videos(data.videos), clip_inputs(data.videos, 32)[0]
        expected = {"vcpl_distance": 0.0, "vcpl_angle": 0.0}
        for branch, frozen, places in (
            ("clip", means, (4, 12, 20, 28)),
            ("frame", data.videos.frames, (16, 48, 80, 112)),
        ):
            student = torch.stack([tokens[branch].vectors[v, p] for v in range(4) for p in places])
            teacher = torch.stack(
                [frozen[v, p, -6:] / (frozen[v, p, -6:].norm() + 1e-5) for v in range(4) for p in places]
            )
            expected["vcpl_distance"] += 15 * relational.distance_preservation(student, teacher)
            expected["vcpl_angle"] += 30 * relational.angle_preservation(student, teacher)
        found = method.losses(data)
        for name, term in expected.items():
            torch.testing.assert_close(found[name], term)

    def test_vcpl_options(self) -> None:
        values = {}
        for name, settings in {
            "centre": {},
            "all": {"vcpl_teacher": "all"},
            "jitter": {"vcpl_jitter": True},
            "half": {"vcpl_weight": 0.5},
        }.items():
            method = make(cbva=False, vcpl="uniform", **settings).eval()
            values[name] = method.losses(batch(method))["vcpl_angle"].item()
        assert values["half"] == pytest.approx(values["centre"] / 2)
        assert len(set(values.values())) == 4

    def test_hard_negatives_begin_at_their_epoch(self) -> None:
        method = make(hard_pool=1, hard_from_epoch=3).eval()
        data = batch(method)
        late = [method.losses(data, epoch=epoch)["clip_triplet"].item() for epoch in (3, 4, 9)]
        assert len(set(late)) == 1
        early = {method.losses(data, epoch=2)["clip_triplet"].item() for _ in range(8)}
        assert len(early) > 1
        assert max(early) <= late[0]


class TestVariants:
    def test_distance_is_averaged_over_more_entries_in_the_release(self) -> None:
        data = batch(make())
        values = []
        for variant in VARIANTS:
            method = make(variant=variant).eval()
            pooled = torch.randn(7, 8, generator=torch.Generator().manual_seed(5))
            values.append(method.tcpl_losses(pooled, data.queries)["tcpl_distance"].item())
        assert values[1] == pytest.approx(values[0] * 6 / 7)

    def test_each_variant_has_its_own_clip_levels(self) -> None:
        # 24 of 32 clips are one scene: ω = 24 · 23 / 992 = 0.56, so level 3 of 6 (8 clips) or level 2 of 5 (12 clips).
        clips = torch.eye(32)[None].clone()
        clips[0, :24] = clips[0, 0]
        sizes = torch.full((1, 32), 4)
        merged = {variant: make(variant=variant).merge_clips(clips, sizes) for variant in VARIANTS}
        assert {variant: int(m.max()) + 1 for variant, m in merged.items()} == {"paper": 8, "released": 12}
        assert merged["paper"].equal(segments.adaptive(clips, sizes, 0.7, [32, 20, 12, 8, 6, 5]))
        released = segments.adaptive(clips, sizes, 0.7, [32, 20, 12, 8, 5], transitive=True, exclusive=True)
        assert merged["released"].equal(released)

    def test_released_needs_its_own_sizes(self) -> None:
        with pytest.raises(BadSetting, match=r"\(64, 32, 0.75, 5\)"):
            MSCConfig(variant="released", num_frames=64)


class TestIndependence:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_query_alone_scores_as_in_a_batch(self, variant: str) -> None:
        method = make(variant=variant).eval()
        tokens = method.encode_videos(videos(method))
        together = queries()
        scores = method.score(method.encode_queries(together), tokens)
        for i in range(len(together)):
            length = int(together.mask[i].sum())
            alone = QueryBatch(words=together.words[i, None, :length], mask=together.mask[i, None, :length])
            torch.testing.assert_close(method.score(method.encode_queries(alone), tokens)[0], scores[i])

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_video_does_not_see_its_batch_mates(self, variant: str) -> None:
        method = make(variant=variant).eval()
        together = videos(method)
        tokens = method.encode_videos(together)
        for i in range(len(together)):
            alone = VideoBatch(frames=together.frames[i, None], clip_of_frame=together.clip_of_frame[i, None])
            for branch, found in method.encode_videos(alone).items():
                torch.testing.assert_close(found.vectors[0], tokens[branch].vectors[i])

    def test_what_lies_behind_the_last_word_does_not_matter(self) -> None:
        method = make().eval()
        clean = queries()
        dirty = dataclasses.replace(clean, words=clean.words.masked_fill(~clean.mask[..., None], math.nan))
        torch.testing.assert_close(method.encode_queries(dirty)["clip"], method.encode_queries(clean)["clip"])
        assert last_words(dirty.words, dirty.mask).equal(last_words(clean.words, clean.mask))

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_padding_behind_a_video_is_not_seen(self, variant: str) -> None:
        method, lengths = make(variant=variant), (30, 200, 128)
        features = [torch.randn(length, 10) for length in lengths]
        padded = torch.full((3, 200, 10), math.nan)
        for row, frames in zip(padded, features, strict=True):
            row[: len(frames)] = frames
        found = method.prepare_videos(padded, torch.tensor(lengths))
        for number, frames in enumerate(features):
            expected = method.prepare_videos(frames[None])
            torch.testing.assert_close(found.frames[number], expected.frames[0])
            assert found.clip_of_frame[number].equal(expected.clip_of_frame[0])

    @given(st.integers(1, 3), st.integers(1, 300))
    @pytest.mark.slow
    def test_videos_of_any_length(self, num: int, total: int) -> None:
        method = make().eval()
        tokens = method.encode_videos(method.prepare_videos(torch.randn(num, total, 10)))
        assert all(branch.vectors.isfinite().all() for branch in tokens.values())


class TestHardCases:
    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize(
        "case", ["one of each", "equal frames", "equal queries", "frames of zeros", "video without query"]
    )
    def test_training_stays_finite(self, variant: str, case: str) -> None:
        method = make(variant=variant)
        features, words = torch.randn(3, 40, 10), torch.randn(4, 5, 6)
        video_of_query = torch.tensor([0, 1, 2, 2])
        if case == "one of each":
            features, words, video_of_query = features[:1], words[:1], video_of_query[:1]
        if case == "equal frames":
            features[1] = features[1, :1]
        if case == "equal queries":
            words[:] = words[0]
        if case == "frames of zeros":
            features[0] = 0
        if case == "video without query":
            video_of_query = torch.tensor([0, 0, 2, 2])
        data = Batch(
            videos=method.prepare_videos(features),
            queries=QueryBatch(words=words, mask=torch.ones(words.shape[:2], dtype=torch.bool)),
            video_of_query=video_of_query,
        )
        for epoch in (0, 50):
            losses = method.losses(data, epoch=epoch)
            assert all(term.isfinite() for term in losses.values())
            torch.stack(list(losses.values())).sum().backward()
        assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)

    def test_equal_queries_have_finite_gradients_without_dropout(self) -> None:
        method = make(dropout=0.0, input_dropout=0.0)
        data = batch(method)
        words = data.queries.words.clone()
        mask = data.queries.mask.clone()
        words[1], mask[1] = words[0], mask[0]
        data = dataclasses.replace(data, queries=QueryBatch(words=words, mask=mask))
        torch.stack(list(method.losses(data).values())).sum().backward()
        assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)

    def test_gradcheck_of_the_whole_loss(self) -> None:
        method = make(dropout=0.0, input_dropout=0.0, num_frames=12, num_clips=4, min_clips=2).double()
        data = batch(method)
        data = dataclasses.replace(
            data,
            videos=VideoBatch(frames=data.videos.frames.double(), clip_of_frame=data.videos.clip_of_frame),
            queries=QueryBatch(words=data.queries.words.double(), mask=data.queries.mask),
        )

        def loss(token: Tensor) -> Tensor:
            torch.manual_seed(0)
            terms = torch.func.functional_call(_Loss(method), {"method.weight_token": token}, data)
            return terms.sum()

        assert torch.autograd.gradcheck(loss, method.weight_token)

    def test_the_gradient_of_all_weights_along_a_random_direction(self) -> None:
        """The derivative along a random direction of all weights equals the difference quotient of the loss."""
        method = make(dropout=0.0, input_dropout=0.0, num_frames=12, num_clips=4, min_clips=2).double()
        data = batch(method)
        data = dataclasses.replace(
            data,
            videos=dataclasses.replace(data.videos, frames=data.videos.frames.double()),
            queries=dataclasses.replace(data.queries, words=data.queries.words.double()),
        )
        weights = dict(method.named_parameters())
        direction = {name: torch.randn_like(weight) for name, weight in weights.items()}

        def loss(step: float) -> Tensor:
            torch.manual_seed(0)  # draws the negatives
            moved = {f"method.{name}": weight + step * direction[name] for name, weight in weights.items()}
            return torch.func.functional_call(_Loss(method), moved, data).sum()

        gradients = torch.autograd.grad(loss(0.0), list(weights.values()), allow_unused=True)
        learnt = {name: gradient for name, gradient in zip(weights, gradients, strict=True) if gradient is not None}
        # The softmax ignores a bias that is the same for all keys.
        assert weights.keys() - learnt.keys() == {f"{branch}.mixture.summary.key.bias" for branch in ("clip", "frame")}
        along = torch.stack([(gradient * direction[name]).sum() for name, gradient in learnt.items()]).sum()
        torch.testing.assert_close((loss(1e-6) - loss(-1e-6)) / 2e-6, along, rtol=1e-5, atol=1e-7)

    def test_a_few_steps_lower_the_loss(self) -> None:
        method = make(dropout=0.0, input_dropout=0.0)
        data = batch(method)
        optimiser = torch.optim.Adam(method.parameters(), lr=2e-3)
        history = []
        for _ in range(15):
            total = torch.stack(list(method.losses(data).values())).sum()
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
            history.append(total.item())
        assert history[-1] < 0.7 * history[0]


class TestProportionalAttention:
    def test_a_clip_weighs_as_much_as_its_frames(self) -> None:
        method = make().eval()
        data = videos(method)
        means = segments.segment_mean(data.frames, data.clip_of_frame, 32)
        sizes = segments.segment_sizes(data.clip_of_frame, 32)
        expected = method.clip(unit_rows(means), method.weight_token, sizes.log())
        plain = method.clip(unit_rows(means), method.weight_token)
        found = method.encode_videos(data)["clip"].vectors
        torch.testing.assert_close(found, expected)
        assert (found - plain).abs().max() > 1e-3

    def test_equal_sizes_change_nothing(self) -> None:
        method = make(clips="uniform").eval()
        data = videos(method)
        means = segments.segment_mean(data.frames, data.clip_of_frame, 32)
        plain = method.clip(unit_rows(means), method.weight_token)
        torch.testing.assert_close(method.encode_videos(data)["clip"].vectors, plain)

    def test_a_frame_twice_or_a_clip_of_two(self) -> None:
        """ToMe's identity: with log sizes, attending to a merged pair is attending to both of its equal halves."""
        query, value = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
        merged = torch.cat([query, query, value], -1)
        apart = merged[:, [0, 1, 1, 2]]
        sizes = torch.tensor([[1.0, 2.0, 1.0]])
        together = attend(merged, 2, None, sizes.log())
        torch.testing.assert_close(together, attend(apart, 2)[:, [0, 1, 3]])


class TestScore:
    def test_branches_are_weighted(self) -> None:
        method = make().eval()
        vectors, tokens = method.encode_queries(queries()), method.encode_videos(videos(method))
        frame = scoring.cosine_max_sim(vectors["frame"], tokens["frame"].vectors)
        clip = scoring.cosine_max_sim(vectors["clip"], tokens["clip"].vectors)
        torch.testing.assert_close(method.score(vectors, tokens), 0.6 * frame + 0.4 * clip)


class TestBadInput:
    def test_unknown_names(self, unchecked: None) -> None:
        for name in ("variant", "clips", "vcpl", "vcpl_teacher", "method"):
            with pytest.raises(UnknownName, match=f"{name} 'nonsense'"):
                MSCConfig(**{name: "nonsense"})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("num_clips", 200),
            ("num_frames", 0),
            ("tcpl", "no"),
            ("dropout", None),
            ("temperature", math.nan),
            ("width", 8.5),
            ("margin", -0.1),
            ("similarity_threshold", 7.0),
            ("frame_weight", 1.5),
            ("temperature", 0.0),
            ("hard_from_epoch", -1),
            ("hard_pool", 0),
            ("dropout", 1.5),
            ("input_dropout", -0.1),
            ("cbva_weight", math.nan),
            ("vcpl_weight", math.inf),
            ("margin", True),
            ("width", -8),
            ("merge_rate", 75.0),
            ("min_clips", 0),
            ("min_clips", 40),
        ],
    )
    def test_impossible_settings(self, name: str, value: Any, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=f"^{name} is {value!r}, expected"):
            MSCConfig(**{name: value})

    def test_a_teacher_wider_than_the_features(self) -> None:
        with pytest.raises(BadSetting, match="text_width is 6"):
            MSCConfig(vcpl="uniform", video_width=4, text_width=6)

    def test_impossible_network(self) -> None:
        with pytest.raises(BadSetting, match="width is 10"):
            MSC(MSCConfig(width=10))
        with pytest.raises(BadSetting, match=r"dropout is 1\.0"):
            MSC(MSCConfig(**SMALL, dropout=1.0))

    def test_videos_of_another_backbone(self) -> None:
        method = make()
        other = VideoBatch(frames=torch.randn(2, 64, 10), clip_of_frame=torch.zeros(2, 64, dtype=torch.long))
        with pytest.raises(BadBatch, match="64 frames of width 10, expected 128"):
            method.encode_videos(other)

    def test_another_number_of_clips(self) -> None:
        method = make()
        other = dataclasses.replace(videos(method), clips=torch.randn(4, 20, 10))
        with pytest.raises(BadBatch, match="20 clips, expected 32"):
            method.encode_videos(other)

    @pytest.mark.parametrize("stray", [-1, 99])
    def test_a_frame_without_a_clip(self, stray: int) -> None:
        method = make()
        wrong = VideoBatch(frames=torch.randn(1, 128, 10), clip_of_frame=torch.full((1, 128), stray))
        with pytest.raises(BadBatch, match=r"clip_of_frame .*expected 0 to 31"):
            method.encode_videos(wrong)

    def test_queries_of_another_backbone(self) -> None:
        method = make()
        with pytest.raises(BadBatch, match="width 7, expected 6"):
            method.encode_queries(QueryBatch(words=torch.randn(1, 3, 7), mask=torch.ones(1, 3, dtype=torch.bool)))

    def test_a_query_that_is_too_long(self) -> None:
        method = make()
        with pytest.raises(BadBatch, match="12 words, expected at most 9"):
            method.encode_queries(QueryBatch(words=torch.randn(1, 12, 6), mask=torch.ones(1, 12, dtype=torch.bool)))


def test_the_registry() -> None:
    assert METHODS["msc"] is MSC
    with pytest.raises(UnknownName, match="'mcs'"):
        METHODS["mcs"]
    assert METHODS.get("mcs") is None


class _Loss(torch.nn.Module):
    """All terms as one vector, for functional_call."""

    def __init__(self, method: MSC) -> None:
        super().__init__()
        self.method = method

    def forward(self, data: Batch) -> Tensor:
        return torch.stack(list(self.method.losses(data).values()))
