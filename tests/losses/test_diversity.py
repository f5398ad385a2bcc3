import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.losses.diversity import joint_query_diversity, query_diversity
from tests import twins
from tests.methods import twin_gmmformer


def test_by_hand() -> None:
    # Video 0 has the queries at 0° and 60° (cosine 1/2), video 1 those at 0° and 90° (cosine 0), video 2 one query.
    degrees = torch.tensor([0.0, 60, 0, 90, 45]) * math.pi / 180
    queries = torch.stack((degrees.cos(), degrees.sin()), -1) * torch.tensor([[1.0], [3], [2], [1], [9]])
    half = 1.5 * math.log(1 + math.exp(2 * (0.5 + 0.1)))
    none = 1.0 * math.log(1 + math.exp(2 * 0.1))
    found = query_diversity(queries, torch.tensor([0, 0, 1, 1, 2]), shift=0.1, scale=2.0, focus=1.0)
    assert found.item() == pytest.approx((2 * half + 2 * none) / 5)


@pytest.mark.parametrize("focus", [0.0, 0.5, 1.0, 2.0])
def test_equals_the_loop_in_value_and_gradient(focus: float) -> None:
    queries = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    video_of_query = [0, 2, 0, 1, 2, 2, 4]
    fast = query_diversity(queries, torch.tensor(video_of_query), shift=0.2, scale=3.0, focus=focus)
    slow = twins.query_diversity(queries, video_of_query, 0.2, 3.0, focus)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(*(torch.autograd.grad(loss, queries)[0] for loss in (fast, slow)))


def test_gradcheck() -> None:
    queries = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q: query_diversity(q, torch.tensor([0, 0, 1, 1, 1])), queries)


@given(st.integers(1, 9), st.integers(0, 2**31))
def test_not_negative_and_free_of_scale_and_order(num: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(num, 3, dtype=torch.float64, generator=generator)
    video_of_query = torch.randint(3, (num,), generator=generator)
    value = query_diversity(queries, video_of_query)
    assert value >= 0
    order = torch.randperm(num, generator=generator)
    torch.testing.assert_close(query_diversity(7 * queries[order], video_of_query[order]), value)
    if num > 1:
        together = query_diversity(queries[:1].expand(num, 3), torch.zeros(num, dtype=torch.long))
        assert together >= query_diversity(queries, torch.zeros(num, dtype=torch.long)) - 1e-9


def test_opposite_and_equal_queries_are_finite() -> None:
    queries = torch.tensor([[1.0, 0.3], [-1.0, -0.3], [1.0, 0.3]], requires_grad=True)
    loss = query_diversity(queries, torch.zeros(3, dtype=torch.long))
    loss.backward()
    assert loss.isfinite()
    assert queries.grad is not None
    assert queries.grad.isfinite().all()


def test_bad_input(unchecked: None) -> None:
    with pytest.raises(BadSetting, match=r"focus is -1\.0"):
        query_diversity(torch.randn(2, 3), torch.tensor([0, 0]), focus=-1.0)
    with pytest.raises(BadBatch, match=r"video_of_query has shape \(3,\).*Q = 2"):
        query_diversity(torch.randn(2, 3), torch.tensor([0, 0, 0]))


class TestJoint:
    """The loss of the first GMMFormer: one logarithm for each query."""

    def test_by_hand(self) -> None:
        # Video 0 has the queries at 0°, 60° and 120°: the cosines are 1/2, 1/2 and -1/2. Video 1 has one query.
        degrees = torch.tensor([0.0, 60, 120, 45]) * math.pi / 180
        queries = torch.stack((degrees.cos(), degrees.sin()), -1) * torch.tensor([[1.0], [3], [2], [9]])
        near, far = math.exp(2 * (0.5 + 0.1)), math.exp(2 * (-0.5 + 0.1))
        expected = (2 * math.log(1 + near + far) + math.log(1 + 2 * near)) / 4
        found = joint_query_diversity(queries, torch.tensor([0, 0, 0, 1]), shift=0.1, scale=2.0)
        assert found.item() == pytest.approx(expected)

    def test_equals_the_loop_in_value_and_gradient(self) -> None:
        queries = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
        video_of_query = [0, 2, 0, 1, 2, 2, 4]
        fast = joint_query_diversity(queries, torch.tensor(video_of_query), shift=0.2, scale=3.0)
        slow = twin_gmmformer.diversity(list(queries), video_of_query, 0.2, 3.0)
        torch.testing.assert_close(fast, slow)
        torch.testing.assert_close(*(torch.autograd.grad(loss, queries)[0] for loss in (fast, slow)))

    def test_gradcheck(self) -> None:
        queries = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda q: joint_query_diversity(q, torch.tensor([0, 0, 1, 1, 1])), queries)

    @given(st.integers(1, 9), st.integers(0, 2**31))
    def test_at_most_the_sum_over_pairs(self, num: int, seed: int) -> None:
        """log(1 + Σ x) <= Σ log(1 + x), equal for videos of up to two queries. Order and lengths do not count."""
        generator = torch.Generator().manual_seed(seed)
        queries = torch.randn(num, 3, dtype=torch.float64, generator=generator)
        video_of_query = torch.randint(3, (num,), generator=generator)
        value = joint_query_diversity(queries, video_of_query)
        by_pairs = query_diversity(queries, video_of_query, focus=0.0)
        assert 0 <= value <= by_pairs + 1e-9
        if video_of_query.bincount().max() <= 2:
            torch.testing.assert_close(value, by_pairs)
        order = torch.randperm(num, generator=generator)
        torch.testing.assert_close(joint_query_diversity(7 * queries[order], video_of_query[order]), value)

    def test_equal_queries_are_exact_and_finite(self) -> None:
        queries = torch.ones(3, 2, requires_grad=True)
        loss = joint_query_diversity(queries, torch.zeros(3, dtype=torch.long))
        loss.backward()
        assert loss.item() == pytest.approx(32 * 1.2 + math.log(2))
        assert queries.grad is not None
        assert queries.grad.isfinite().all()

    def test_bad_input(self, unchecked: None) -> None:
        with pytest.raises(BadBatch, match=r"video_of_query has shape \(3,\).*Q = 2"):
            joint_query_diversity(torch.randn(2, 3), torch.tensor([0, 0, 0]))
        with pytest.raises(BadBatch, match="empty"):
            joint_query_diversity(torch.randn(0, 3), torch.zeros(0, dtype=torch.long))
