import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.losses.diversity import query_diversity
from tests import twins


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
