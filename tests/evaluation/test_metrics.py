import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.evaluation.metrics import (
    average_precision,
    best_iou,
    corpus_moments,
    iou,
    localisation,
    mean_average_precision,
    multi_ranks,
    ranks,
    recalls,
)


def slow_ranks(scores: Tensor, video_of_query: list[int]) -> list[int]:
    """The position in a sorted list, after all equal scores."""
    found = []
    for row, own in zip(scores.tolist(), video_of_query, strict=True):
        order = sorted(range(len(row)), key=lambda video, row=row, own=own: (-row[video], video == own))
        found.append(order.index(own) + 1)
    return found


def slow_iou(a: tuple[float, float], b: tuple[float, float]) -> float:
    if a == b:
        return 1.0
    shared = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    union = (a[1] - a[0]) + (b[1] - b[0]) - shared
    return shared / union if union else 0.0


def slow_average_precision(
    predicted: list[tuple[float, float]], annotated: list[tuple[float, float]], threshold: float
) -> float:
    """One query. The mean, over the annotated moments, of the best precision at their recall or beyond."""
    left, is_right = list(annotated), []
    for moment in predicted:
        best = max(left, key=lambda other, moment=moment: slow_iou(moment, other), default=None)
        is_right.append(best is not None and slow_iou(moment, best) >= threshold)
        if is_right[-1]:
            left.remove(best)
    total = 0.0
    for number in range(1, sum(is_right) + 1):
        ends = [end for end in range(1, len(is_right) + 1) if sum(is_right[:end]) >= number]
        total += max(sum(is_right[:end]) / end for end in ends)
    return total / len(annotated) if annotated else 0.0


class TestRanks:
    def test_by_hand(self) -> None:
        scores = torch.tensor([[0.1, 0.9, 0.5], [0.1, 0.9, 0.5], [0.1, 0.9, 0.5]])
        assert ranks(scores, torch.tensor([0, 1, 2])).tolist() == [3, 1, 2]

    def test_ties_are_pessimistic(self) -> None:
        scores = torch.tensor([[0.5, 0.5, 0.1], [0.5, 0.5, 0.1], [0.5, 0.5, 0.1], [0.0, 0.0, 0.0]])
        assert ranks(scores, torch.tensor([0, 1, 2, 0])).tolist() == [2, 2, 3, 3]

    def test_a_score_of_minus_infinity_comes_last(self) -> None:
        assert ranks(torch.tensor([[-math.inf, -1.0, -math.inf]]), torch.tensor([0])).tolist() == [3]

    @given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(0, 2**31))
    def test_equals_the_loop(self, num_queries: int, num_videos: int, num_values: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randint(num_values, (num_queries, num_videos), generator=generator).float()  # many ties
        video_of_query = torch.randint(num_videos, (num_queries,), generator=generator)
        assert ranks(scores, video_of_query).tolist() == slow_ranks(scores, video_of_query.tolist())

    @given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
    def test_the_order_of_the_videos_does_not_matter(self, num_queries: int, num_videos: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randint(3, (num_queries, num_videos), generator=generator).float()
        video_of_query = torch.randint(num_videos, (num_queries,), generator=generator)
        order = torch.randperm(num_videos, generator=generator)
        assert ranks(scores[:, order], order.argsort()[video_of_query]).equal(ranks(scores, video_of_query))

    def test_one_query_one_video(self) -> None:
        assert ranks(torch.tensor([[0.3]]), torch.tensor([0])).tolist() == [1]

    def test_half_precision(self) -> None:
        scores = torch.tensor([[0.1, 0.9, 0.5]], dtype=torch.bfloat16)
        assert ranks(scores, torch.tensor([2], dtype=torch.int32)).tolist() == [2]

    def test_nan_is_an_error(self) -> None:
        scores = torch.tensor([[0.1, 0.2], [0.3, math.nan]])
        with pytest.raises(BadBatch, match=r"1 of 4 .*query 1 and video 1"):
            ranks(scores, torch.tensor([0, 0]))

    def test_an_unknown_video(self) -> None:
        with pytest.raises(BadBatch, match=r"\[2, -1\], expected 0 to 1"):
            ranks(torch.zeros(3, 2), torch.tensor([2, 0, -1]))

    @pytest.mark.usefixtures("unchecked")
    def test_shapes_that_differ(self) -> None:
        with pytest.raises(BadBatch, match=r"video_of_query.*Q = 3"):
            ranks(torch.zeros(3, 2), torch.tensor([0, 1]))


class TestRecalls:
    def test_by_hand(self) -> None:
        # Of 8 queries, 2 at rank 1, 3 within 5, 5 within 10, 7 within 100.
        figures = recalls(torch.tensor([1, 1, 5, 6, 10, 11, 100, 101]))
        assert figures == {"R@1": 25, "R@5": 37.5, "R@10": 62.5, "R@100": 87.5, "SumR": 212.5}

    @given(st.lists(st.integers(1, 200), min_size=1, max_size=20))
    def test_grow_with_the_depth_and_stay_in_percent(self, positions: list[int]) -> None:
        figures = recalls(torch.tensor(positions))
        values = [figures[f"R@{k}"] for k in (1, 5, 10, 100)]
        assert values == sorted(values)
        assert all(0 <= value <= 100 for value in values)
        assert figures["SumR"] == pytest.approx(sum(values))
        assert values == pytest.approx([100 * sum(p <= k for p in positions) / len(positions) for k in (1, 5, 10, 100)])

    def test_the_ideal_is_400(self) -> None:
        assert recalls(torch.ones(3, dtype=torch.long))["SumR"] == 400

    def test_no_ranks(self) -> None:
        with pytest.raises(BadBatch, match="ranks is empty"):
            recalls(torch.zeros(0, dtype=torch.long))

    def test_bad_depth(self) -> None:
        with pytest.raises(BadSetting, match=r"at is \(0, 1\)"):
            recalls(torch.tensor([1]), at=(0, 1))


SPAN = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda ends: (float(min(ends)), float(max(ends))))


class TestMoments:
    def test_by_hand(self) -> None:
        predicted = torch.tensor([[0.0, 10.0], [0.0, 10.0], [0.0, 4.0], [2.0, 3.0], [5.0, 5.0], [5.0, 5.0]])
        annotated = torch.tensor([[0.0, 10.0], [5.0, 15.0], [6.0, 8.0], [0.0, 10.0], [5.0, 5.0], [6.0, 6.0]])
        torch.testing.assert_close(iou(predicted, annotated), torch.tensor([1, 1 / 3, 0, 0.1, 1, 0]))

    @given(st.lists(st.tuples(SPAN, SPAN), min_size=1, max_size=8))
    def test_equals_the_loop_and_is_symmetric(
        self, pairs: list[tuple[tuple[float, float], tuple[float, float]]]
    ) -> None:
        predicted, annotated = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
        found = iou(predicted, annotated)
        assert found.tolist() == pytest.approx([slow_iou(a, b) for a, b in pairs])
        assert found.equal(iou(annotated, predicted))
        assert bool(((found >= 0) & (found <= 1)).all())
        assert ((found == 1) == (predicted == annotated).all(1)).all()

    def test_the_best_of_several_by_hand(self) -> None:
        """The first query's second moment fits it best, the second has none, and the third's is missed."""
        predicted = torch.tensor([[4.0, 8.0], [0.0, 9.0], [0.0, 1.0]])
        annotated = torch.tensor([[0.0, 5.0], [5.0, 8.0], [7.0, 20.0], [2.0, 3.0]])
        found = best_iou(predicted, annotated, torch.tensor([0, 0, 0, 2]))
        torch.testing.assert_close(found, torch.tensor([0.75, 0.0, 0.0]))
        torch.testing.assert_close(best_iou(predicted, annotated[:0], torch.zeros(0, dtype=torch.long)), torch.zeros(3))

    @given(SPAN, st.lists(SPAN, min_size=1, max_size=4))
    def test_another_moment_never_lowers_the_overlap(
        self, span: tuple[float, float], moments: list[tuple[float, float]]
    ) -> None:
        query_of_moment = torch.zeros(len(moments), dtype=torch.long)
        found = best_iou(torch.tensor([span]), torch.tensor(moments), query_of_moment)
        assert found.item() == pytest.approx(max(slow_iou(span, moment) for moment in moments))

    def test_localisation_by_hand(self) -> None:
        # An overlap that equals the threshold counts: 7 of 10 seconds is R1@0.7.
        overlaps = iou(torch.tensor([[0.0, 7.0], [0.0, 5.0], [0.0, 4.0]]), torch.tensor([[0.0, 10.0]] * 3))
        figures = localisation(overlaps)
        assert figures == {
            "R1@0.5": pytest.approx(200 / 3),
            "R1@0.7": pytest.approx(100 / 3),
            "mIoU": pytest.approx(160 / 3),
        }

    def test_no_moment(self) -> None:
        with pytest.raises(BadBatch, match="ious is empty"):
            localisation(torch.zeros(0))


class TestAveragePrecision:
    def test_by_hand(self) -> None:
        """Ranks 1, 3 and 4 are right: precisions 1, 2/3 and 3/4, and 3/4 counts for the second too."""
        found = torch.tensor([[[0.0, 10.0], [50.0, 60.0], [20.0, 29.0], [32.0, 40.0], [80.0, 90.0]]])
        truth = torch.tensor([[0.0, 10.0], [20.0, 30.0], [30.0, 40.0], [70.0, 75.0]])
        (precisions,) = average_precision(found, truth, torch.zeros(4, dtype=torch.long), at=(0.5, 0.85, 1.0)).tolist()
        assert precisions == pytest.approx([(1 + 0.75 + 0.75) / 4, (1 + 2 / 3) / 4, 1 / 4])

    def test_a_moment_is_found_once(self) -> None:
        found = torch.tensor([[[0.0, 10.0], [0.0, 10.0], [20.0, 30.0]]])
        truth = torch.tensor([[0.0, 10.0], [20.0, 30.0]])
        assert average_precision(found, truth, torch.tensor([0, 0]), at=(0.5,)).item() == pytest.approx((1 + 2 / 3) / 2)

    def test_padding_and_queries_without_moments(self) -> None:
        found = torch.full((3, 2, 2), math.nan)
        found[0, 0], found[2, 0] = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])
        precisions = average_precision(found, torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.tensor([2, 1]), at=(0.5,))
        assert precisions.flatten().tolist() == [0, 0, 1]

    moment = st.tuples(st.integers(0, 9), st.integers(1, 5)).map(lambda pair: (float(pair[0]), float(sum(pair))))

    @given(st.lists(st.tuples(st.lists(moment, max_size=5), st.lists(moment, max_size=4)), min_size=1, max_size=4))
    def test_equals_the_loop(self, queries: list[tuple[list[tuple[float, float]], list[tuple[float, float]]]]) -> None:
        found = torch.full((len(queries), 5, 2), math.nan, dtype=torch.float64)
        for row, (predicted, _) in enumerate(queries):
            for rank, moment in enumerate(predicted):
                found[row, rank] = torch.tensor(moment)
        rows = [(query, moment) for query, (_, annotated) in enumerate(queries) for moment in annotated]
        truth = torch.tensor([moment for _, moment in rows], dtype=torch.float64).view(-1, 2)
        query_of_moment = torch.tensor([query for query, _ in rows], dtype=torch.long)
        precisions = average_precision(found, truth, query_of_moment, at=(0.3, 0.7))
        for column, threshold in enumerate((0.3, 0.7)):
            expected = [slow_average_precision(*query, threshold) for query in queries]
            assert precisions[:, column].tolist() == pytest.approx(expected)

    @given(st.lists(moment, min_size=1, max_size=5), st.lists(moment, min_size=1, max_size=4), moment)
    def test_a_worse_ranking_is_never_better(
        self,
        predicted: list[tuple[float, float]],
        annotated: list[tuple[float, float]],
        wrong: tuple[float, float],
    ) -> None:
        """A wrong moment in front does not raise the precision, and behind all others it changes nothing."""
        wrong = (wrong[0] + 100, wrong[1] + 100)
        truth, query_of_moment = torch.tensor(annotated), torch.zeros(len(annotated), dtype=torch.long)
        before, front, back = (
            average_precision(torch.tensor([found]), truth, query_of_moment)
            for found in (predicted, [wrong, *predicted], [*predicted, wrong])
        )
        assert back.equal(before)
        assert (front <= before).all()
        assert ((before >= 0) & (before <= 1)).all()

    def test_mean(self) -> None:
        assert mean_average_precision(torch.tensor([[1.0], [0.0], [0.5], [0.5]]), at=(0.3,)) == {"mAP@0.3": 50.0}
        with pytest.raises(BadBatch, match="empty"):
            mean_average_precision(torch.zeros(0, 3))


def slow_multi_rank(row: list[float], is_right: list[bool]) -> int:
    """The position of the first right video in a sorted list, wrong ones first among equals."""
    order = sorted(range(len(row)), key=lambda video: (-row[video], is_right[video]))
    return next(place for place, video in enumerate(order, 1) if is_right[video])


class TestSeveralRightVideos:
    def test_by_hand(self) -> None:
        scores = torch.tensor([[0.9, 0.5, 0.7, 0.5], [0.1, 0.1, 0.1, 0.1]])
        is_right = torch.tensor([[False, True, True, False], [True, True, False, False]])
        assert multi_ranks(scores, is_right).tolist() == [2, 3]

    @given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6))
    def test_equals_the_loop_and_never_falls_with_more_right_videos(self, seed: int, queries: int, videos: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        scores = torch.randint(0, 4, (queries, videos), generator=rng).float()
        own = torch.randint(0, videos, (queries,), generator=rng)
        is_right = torch.rand(queries, videos, generator=rng) < 0.3
        only = torch.zeros_like(is_right)
        is_right[torch.arange(queries), own] = only[torch.arange(queries), own] = True
        found = multi_ranks(scores, is_right)
        expected = [slow_multi_rank(*each) for each in zip(scores.tolist(), is_right.tolist(), strict=True)]
        assert found.tolist() == expected
        assert multi_ranks(scores, only).tolist() == ranks(scores, own).tolist()
        assert (found <= ranks(scores, own)).all()

    def test_bad_labels(self) -> None:
        with pytest.raises(BadBatch, match="right"):
            multi_ranks(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool))
        with pytest.raises(BadBatch, match="NaN"):
            multi_ranks(torch.full((1, 2), torch.nan), torch.ones(1, 2, dtype=torch.bool))


class TestCorpusMoments:
    def test_by_hand(self) -> None:
        found = corpus_moments(torch.tensor([1, 10, 11, 101]), torch.tensor([0.4, 0.7, 0.5, 1.0], dtype=torch.float64))
        assert found == {
            "R10@0.3": 50.0,
            "R100@0.3": 75.0,
            "R10@0.5": 25.0,
            "R100@0.5": 50.0,
            "R10@0.7": 25.0,
            "R100@0.7": 25.0,
        }

    @given(st.lists(st.tuples(st.integers(1, 200), st.floats(0, 1)), min_size=1, max_size=8))
    def test_equals_the_loop_and_the_recalls_bound_it(self, pairs: list[tuple[int, float]]) -> None:
        places = torch.tensor([rank for rank, _ in pairs])
        found = corpus_moments(places, torch.tensor([overlap for _, overlap in pairs], dtype=torch.float64))
        for threshold in (0.3, 0.5, 0.7):
            for depth in (10, 100):
                inside = sum(rank <= depth and overlap >= threshold for rank, overlap in pairs)
                assert found[f"R{depth}@{threshold}"] == pytest.approx(100 * inside / len(pairs))
                assert found[f"R{depth}@{threshold}"] <= recalls(places, (depth,))[f"R@{depth}"] + 1e-9

    def test_no_moments(self) -> None:
        with pytest.raises(BadBatch, match="empty"):
            corpus_moments(torch.zeros(0, dtype=torch.long), torch.zeros(0))
