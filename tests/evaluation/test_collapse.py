import math
from itertools import combinations, permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from midreel.errors import BadBatch, BadSetting, UnknownName
from midreel.evaluation.collapse import (
    Outcomes,
    Similarity,
    SimilaritySums,
    cosines,
    draw_pairs,
    measure,
    outcomes,
    sample_cosines,
    similarity,
    spearman,
)
from midreel.methods.base import evaluating
from midreel.methods.batches import QueryBatch
from midreel.methods.msc import MSC, MSCConfig, last_words
from tests import twins


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def slow_similarity(vectors: Tensor, videos: list[int]) -> Similarity:
    intra: list[float] = []
    inter: list[float] = []
    total: list[float] = []
    for i, j in permutations(range(len(vectors)), 2):
        cosine = float(twins.cosine(vectors[i], vectors[j]))
        total.append(cosine)
        (intra if videos[i] == videos[j] else inter).append(cosine)
    return Similarity(intra=mean(intra), inter=mean(inter), total=mean(total))


def same(a: Similarity, b: Similarity) -> bool:
    return vars(a) == pytest.approx(vars(b), abs=1e-9, nan_ok=True)


class TestSimilarity:
    def test_by_hand(self) -> None:
        # Two queries of one video at 60 degrees, the one query of another video orthogonal to both.
        vectors = torch.tensor([[2.0, 0.0, 0.0], [0.5, math.sqrt(0.75), 0.0], [0.0, 0.0, 3.0]])
        found = similarity(vectors, torch.tensor([4, 4, 9]))
        assert (found.intra, found.inter, found.total) == pytest.approx((1 / 2, 0, 1 / 6), abs=1e-7)
        assert found.diff_norm == pytest.approx((1 / 2 - 1 / 6) / (1 / 2 + 1 / 6))

    def test_all_pairs_have_the_same_weight(self) -> None:
        # Three equal queries (three pairs of cosine 1) and two opposite ones (one pair of cosine -1): 2/4, not 0.
        vectors = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0], [0.0, -1.0]])
        assert similarity(vectors, torch.tensor([0, 0, 0, 1, 1])).intra == pytest.approx(0.5)

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 2**31))
    def test_equals_the_loop(self, videos: list[int], seed: int) -> None:
        vectors = torch.randn(len(videos), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert same(similarity(vectors, torch.tensor(videos)), slow_similarity(vectors, videos))

    @given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**31))
    def test_batches_equal_the_loop(self, num_videos: int, num_tokens: int, batch: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        vectors = torch.randn(num_videos, num_tokens, 3, generator=generator, dtype=torch.float64)
        mask = torch.rand(num_videos, num_tokens, generator=generator) < 0.7
        sums = SimilaritySums()
        for part, real in zip(vectors.split(batch), mask.split(batch), strict=True):
            sums.add(part, real)
        videos = torch.arange(num_videos)[:, None].expand(num_videos, num_tokens)[mask]
        assert same(sums.similarity(), slow_similarity(vectors[mask], videos.tolist()))

    def test_full_collapse(self) -> None:
        """Identical within, orthogonal across: 1 over pairs of different videos, and close to it over all pairs."""
        num_videos, size = 50, 3
        vectors = torch.eye(num_videos).repeat_interleave(size, 0)
        found = similarity(vectors, torch.arange(num_videos).repeat_interleave(size))
        assert (found.intra, found.inter) == pytest.approx((1, 0), abs=1e-12)
        assert Similarity(intra=found.intra, inter=found.inter, total=found.inter).diff_norm == pytest.approx(1)
        within = (size - 1) / (num_videos * size - 1)  # the share of all pairs that are of one video
        assert found.diff_norm == pytest.approx((1 - within) / (1 + within))
        assert found.diff_norm > 0.97

    def test_no_structure(self) -> None:
        assert similarity(torch.ones(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])).diff_norm == pytest.approx(0, abs=1e-12)
        # Any vectors whose videos were drawn at random: 0 up to chance.
        vectors = torch.randn(2000, 4) + 1
        assert similarity(vectors, torch.randint(100, (2000,))).diff_norm == pytest.approx(0, abs=0.01)

    def test_the_figures_of_the_paper(self) -> None:
        found = Similarity(intra=0.1175, inter=0.0, total=0.0113)
        assert found.diff_norm == pytest.approx(0.8245, abs=1e-4)
        assert list(found.figures("text ")) == ["text Intra Sim", "text Total Sim", "text Diff. Norm"]

    def test_one_vector_has_no_pair(self) -> None:
        found = similarity(torch.ones(1, 3), torch.tensor([0]))
        assert math.isnan(found.intra)
        assert math.isnan(found.total)
        assert math.isnan(found.diff_norm)

    def test_one_video(self) -> None:
        found = similarity(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))
        assert found.intra == found.total
        assert math.isnan(found.inter)

    def test_no_vectors(self) -> None:
        assert math.isnan(SimilaritySums().similarity().total)

    def test_opposite_vectors_have_no_diff_norm(self) -> None:
        assert math.isnan(Similarity(intra=0.5, inter=-0.5, total=-0.5).diff_norm)

    def test_single_precision_is_enough_for_many_vectors(self) -> None:
        """|Σ u|² - N loses half of single precision's digits at 20,000 vectors; the sums are doubles."""
        vectors = torch.randn(20_000, 8)
        unit = torch.nn.functional.normalize(vectors.double(), dim=1)
        expected = float((unit.sum(0) ** 2).sum() - 20_000) / (20_000 * 19_999)
        assert similarity(vectors, torch.arange(20_000) % 50).total == pytest.approx(expected, rel=1e-9)

    @pytest.mark.usefixtures("unchecked")
    def test_shapes_that_differ(self) -> None:
        with pytest.raises(BadBatch, match="video_of_vector"):
            similarity(torch.ones(3, 2), torch.tensor([0, 1]))


class TestPairs:
    def test_by_hand(self) -> None:
        assert draw_pairs(torch.tensor([7, 3, 7, 7])).T.tolist() == [[0, 2], [0, 3], [2, 3]]

    @given(st.lists(st.integers(0, 3), max_size=9))
    def test_all_pairs_within_a_group(self, groups: list[int]) -> None:
        expected = {(i, j) for i, j in combinations(range(len(groups)), 2) if groups[i] == groups[j]}
        found = [tuple(pair) for pair in draw_pairs(torch.tensor(groups, dtype=torch.long)).T.tolist()]
        assert len(found) == len(expected)
        assert set(found) == expected

    @given(st.lists(st.integers(0, 2), min_size=7, max_size=12), st.integers(0, 2**31))
    def test_sampled_pairs_are_within_a_group(self, groups: list[int], seed: int) -> None:
        first, second = draw_pairs(torch.tensor(groups), 5, seed).tolist()
        assert len(first) <= 5
        assert all(i < j and groups[i] == groups[j] for i, j in zip(first, second, strict=True))

    def test_all_pairs_are_equally_likely(self) -> None:
        groups = torch.tensor([0] * 12 + [1] * 30 + [2])
        num_pairs = draw_pairs(groups).shape[1]
        drawn = torch.cat([draw_pairs(groups, num_pairs - 1, seed) for seed in range(60)], 1)
        counts = (len(groups) * drawn[0] + drawn[1]).unique(return_counts=True)[1]
        assert len(counts) == num_pairs == 12 * 11 / 2 + 30 * 29 / 2
        assert stats.chisquare(counts.numpy()).pvalue > 0.01

    def test_cosines_by_hand(self) -> None:
        vectors = torch.tensor([[1.0, 0.0], [2.0, 2.0], [0.0, 0.0]])
        found = cosines(vectors, torch.tensor([[0, 0], [1, 2]]))
        assert found.tolist() == pytest.approx([math.sqrt(0.5), 0])

    def test_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        vectors, pairs = torch.randn(9, 4), draw_pairs(torch.zeros(9, dtype=torch.long))
        whole = cosines(vectors, pairs)
        monkeypatch.setattr("midreel.evaluation.collapse.PAIRS_AT_ONCE", 5)
        assert cosines(vectors, pairs).equal(whole)

    def test_bad_limit(self) -> None:
        with pytest.raises(BadSetting, match="max_pairs is 0"):
            draw_pairs(torch.tensor([0, 0]), 0)

    def test_samples(self) -> None:
        vectors, videos = torch.randn(8, 3), [0, 0, 0, 1, 1, 2, 2, 2]
        found = sample_cosines(vectors, torch.tensor(videos))
        within: list[float] = []
        across: list[float] = []
        for i, j in combinations(range(8), 2):
            (within if videos[i] == videos[j] else across).append(float(twins.cosine(vectors[i], vectors[j])))
        assert sorted(found.within.tolist()) == pytest.approx(sorted(within), abs=1e-6)
        assert sorted(found.across.tolist()) == pytest.approx(sorted(across), abs=1e-6)
        few = sample_cosines(vectors, torch.tensor(videos), max_pairs=4)
        assert len(few.within) == 4
        assert len(few.across) <= 4


class TestSpearman:
    def test_by_hand(self) -> None:
        # Angles 0, 10, 40 degrees: the pairs (0,1), (1,2), (0,2) from near to far. The other space has 0, 30, 40: the
        # pairs (1,2), (0,1), (0,2). Two of three ranks change by one: 1 - 6 (1 + 1) / (3 (9 - 1)) = 0.5.
        def at(*degrees: float) -> Tensor:
            angles = torch.tensor(degrees).deg2rad()
            return torch.stack((angles.cos(), angles.sin()), 1)

        assert spearman(at(0.0, 10.0, 40.0), at(0.0, 30.0, 40.0)) == pytest.approx(0.5)

    @given(st.integers(3, 9), st.integers(0, 2**31))
    def test_equals_scipy_on_loops(self, num: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        student = torch.randn(num, 4, generator=generator, dtype=torch.float64)
        teacher = torch.randn(num, 6, generator=generator, dtype=torch.float64)
        pairs = list(combinations(range(num), 2))
        ours, theirs = ([float(twins.cosine(x[i], x[j])) for i, j in pairs] for x in (student, teacher))
        assert spearman(student, teacher) == pytest.approx(stats.spearmanr(ours, theirs).statistic)

    @given(st.integers(3, 9), st.integers(0, 2**31))
    def test_is_one_for_a_rotated_and_scaled_space(self, num: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        vectors = torch.randn(num, 4, generator=generator, dtype=torch.float64)
        turn = torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64)).Q
        assert spearman(vectors, 3 * vectors @ turn) == pytest.approx(1)

    def test_a_sample_is_close_and_reproducible(self) -> None:
        teacher = torch.randn(300, 8)
        student = teacher + 0.7 * torch.randn(300, 8)
        exact = spearman(student, teacher)
        sampled = [spearman(student, teacher, max_pairs=10_000, seed=seed) for seed in (1, 1, 2)]
        assert sampled[0] == sampled[1] != sampled[2]
        assert sampled == pytest.approx([exact] * 3, abs=0.03)

    def test_undefined_ranks_are_nan(self) -> None:
        assert math.isnan(spearman(torch.randn(2, 3), torch.randn(2, 3)))
        assert math.isnan(spearman(torch.ones(5, 3), torch.randn(5, 3)))
        assert math.isnan(spearman(torch.randn(1, 3), torch.randn(1, 3)))


class TestOutcomes:
    def test_by_hand(self) -> None:
        a, b = torch.tensor([1, 1, 1, 9, 12, 3]), torch.tensor([1, 2, 40, 1, 11, 8])
        assert outcomes(a, b) == Outcomes(both=1, only_a=2, only_b=1, neither=2)
        assert outcomes(a, b, at=10) == Outcomes(both=4, only_a=1, only_b=0, neither=1)

    def test_shares_of_the_paper(self) -> None:
        shares = Outcomes(both=1277, only_a=2551, only_b=500, neither=6567).shares()
        assert shares == pytest.approx({"both": 11.7, "only_a": 23.4, "only_b": 4.6, "neither": 60.3}, abs=0.05)

    @given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1), st.integers(1, 9))
    def test_equals_the_loop(self, ranks: list[tuple[int, int]], at: int) -> None:
        counts = {"both": 0, "only_a": 0, "only_b": 0, "neither": 0}
        for a, b in ranks:
            name = ("both" if b <= at else "only_a") if a <= at else ("only_b" if b <= at else "neither")
            counts[name] += 1
        found = outcomes(torch.tensor([a for a, _ in ranks]), torch.tensor([b for _, b in ranks]), at)
        assert vars(found) == counts
        assert sum(found.shares().values()) == pytest.approx(100)

    def test_no_query(self) -> None:
        with pytest.raises(BadBatch, match="ranks_a"):
            outcomes(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long))


class TestMeasure:
    def test_equals_the_parts(self) -> None:
        sizes = {"video_width": 6, "text_width": 5, "width": 8, "num_heads": 2, "num_frames": 12, "num_clips": 6}
        method = MSC(MSCConfig(**sizes))  # type: ignore[arg-type]
        videos = [method.prepare_videos(torch.randn(num, 20, 6)) for num in (2, 1)]
        queries = [
            QueryBatch(words=torch.randn(num, 4, 5), mask=torch.arange(4) < torch.tensor([[2], [4], [3]])[:num])
            for num in (3, 2)
        ]
        video_of_query = torch.tensor([0, 0, 2, 2, 1])
        found = measure(method, iter(videos), iter(queries), video_of_query)
        assert method.training

        with evaluating(method):
            pooled = torch.cat([method.encode_queries(batch)["clip"] for batch in queries])
            tokens = [method.encode_videos(batch) for batch in videos]
        backbone = torch.cat([last_words(batch.words, batch.mask) for batch in queries])
        assert same(found.text["clip"], slow_similarity(pooled.double(), video_of_query.tolist()))
        for branch in ("clip", "frame"):
            vectors = torch.cat([part[branch].vectors for part in tokens]).double()
            owner = torch.arange(3).repeat_interleave(vectors.shape[1])
            assert same(found.video[branch], slow_similarity(vectors.flatten(0, 1), owner.tolist()))
        assert found.spearman["frame"] == pytest.approx(spearman(pooled, backbone))
        figures = found.figures()
        assert figures["video Diff. Norm"] == found.video["clip"].diff_norm
        assert figures["Spearman"] == 100 * found.spearman["clip"]
        with pytest.raises(UnknownName, match=r"'scene'.*clip, frame"):
            found.figures("scene")
