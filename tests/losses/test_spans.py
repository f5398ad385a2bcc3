import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.losses.spans import span_diversity, span_relevance


def slow_diversity(masks: torch.Tensor, target: float) -> torch.Tensor:
    total = masks.new_zeros(())
    for video in masks:
        for i, first in enumerate(video):
            for j, second in enumerate(video):
                product = sum((first[t] / first.sum()) * (second[t] / second.sum()) for t in range(len(first)))
                total = total + ((target if i == j else 0) - product) ** 2
    return total / len(masks)


def slow_relevance(
    queries: torch.Tensor, moments: torch.Tensor, videos: torch.Tensor, video_of_query: list[int], margin: float
) -> torch.Tensor:
    def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b) / (a.norm() * b.norm())

    total = queries.new_zeros(())
    for query, y in zip(queries, video_of_query, strict=True):
        best = cosine(query, moments[y, 0])
        for moment in moments[y, 1:]:
            best = torch.maximum(best, cosine(query, moment))
        total = total + torch.relu(margin + cosine(query, videos[y]) - best)
    return total / len(queries)


def test_diversity_by_hand() -> None:
    # Shares (1/2, 1/2, 0) and (0, 0, 1): products 1/2, 0 and 1.
    masks = torch.tensor([[[1.0, 1.0, 0.0], [0.0, 0.0, 0.4]]])
    assert span_diversity(masks, target=0.2).item() == pytest.approx(0.3**2 + 0.8**2)


def test_relevance_by_hand() -> None:
    queries = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    moments = torch.tensor([[[0.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [-1.0, 0.0]]])
    videos = torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    # Query 0: whole 1, best span √½. Query 1 of video 1: whole -1, best span 0: no cost.
    found = span_relevance(queries, moments, videos, torch.tensor([0, 1]), margin=0.1)
    assert found.item() == pytest.approx((0.1 + 1 - math.sqrt(0.5)) / 2)


def test_equal_to_the_loops_in_value_and_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(3, 4, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    fast, slow = span_diversity(masks), slow_diversity(masks, 0.15)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(*(torch.autograd.grad(loss, masks)[0] for loss in (fast, slow)))
    tensors = [
        torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for shape in ((5, 3), (3, 4, 3), (3, 3))
    ]
    owners = [0, 0, 2, 1, 2]
    fast = span_relevance(*tensors, torch.tensor(owners), margin=0.5)
    slow = slow_relevance(*tensors, owners, 0.5)
    torch.testing.assert_close(fast, slow)
    for tensor in tensors:
        torch.testing.assert_close(*(torch.autograd.grad(loss, tensor, retain_graph=True)[0] for loss in (fast, slow)))


def test_gradcheck() -> None:
    torch.manual_seed(0)
    masks = torch.rand(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(span_diversity, masks)
    parts = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (2, 3, 4), (2, 4))]
    owners = torch.tensor([0, 1, 1])
    assert torch.autograd.gradcheck(lambda *given: span_relevance(*given, owners, margin=0.9), parts)


@given(st.integers(0, 2**31))
def test_properties(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.rand(2, 3, 5, dtype=torch.float64, generator=generator) + 0.01
    factors = torch.rand(2, 3, 1, dtype=torch.float64, generator=generator) + 0.1
    torch.testing.assert_close(span_diversity(masks), span_diversity(masks * factors))
    torch.testing.assert_close(span_diversity(masks), span_diversity(masks[:, [2, 0, 1]][:, :, [4, 1, 0, 3, 2]]))
    # Spans that do not overlap and have the ideal product cost nothing.
    assert span_diversity(torch.eye(3).repeat_interleave(4, 1)[None], target=0.25) == 0
    queries, moments = torch.randn(4, 3, generator=generator), torch.randn(2, 3, 3, generator=generator)
    owners = torch.tensor([0, 1, 1, 0])
    # If one span is the whole video, the best span is at least as relevant, and at most the margin is left.
    assert span_relevance(queries, moments, moments[:, 0], owners) <= 0.02 + 1e-6


def test_bad_input(unchecked: None) -> None:
    with pytest.raises(BadBatch, match="masks has shape"):
        span_diversity(torch.rand(3, 4))
    with pytest.raises(BadBatch, match=r"video_of_query"):
        span_relevance(torch.randn(2, 3), torch.randn(1, 4, 3), torch.randn(1, 3), torch.tensor([0, 1]))
    with pytest.raises(BadSetting, match=r"margin is -1"):
        span_relevance(torch.randn(1, 3), torch.randn(1, 4, 3), torch.randn(1, 3), torch.tensor([0]), margin=-1.0)
