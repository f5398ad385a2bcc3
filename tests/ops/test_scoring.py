import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch
from midreel.ops.scoring import attended_cosine, branch_score, cosine_max_sim, max_sim, own_cosines
from midreel.types import COSINE, Similarity, Tokens
from tests import twins


def test_by_hand() -> None:
    queries = torch.tensor([[1.0, 0.0]])
    tokens = torch.tensor([[[3.0, 4.0], [1.0, 0.0]], [[0.0, 5.0], [-1.0, 0.0]]])
    assert max_sim(queries, tokens).tolist() == [[3, 0]]
    assert cosine_max_sim(queries, tokens).tolist() == [[1, 0]]


def test_equals_the_loop() -> None:
    queries, tokens = torch.randn(4, 5, dtype=torch.float64), torch.randn(3, 6, 5, dtype=torch.float64)
    mask = torch.rand(3, 6) > 0.4
    mask[:, 0] = True
    expected = [
        [
            max(float(twins.cosine(q, v)) for v, real in zip(video, keep, strict=True) if real)
            for video, keep in zip(tokens, mask, strict=True)
        ]
        for q in queries
    ]
    torch.testing.assert_close(cosine_max_sim(queries, tokens, mask), torch.tensor(expected, dtype=torch.float64))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**31))
def test_a_cosine_that_grows_with_the_tokens(num_queries: int, num_videos: int, total: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(num_queries, 3, generator=generator)
    tokens = torch.randn(num_videos, total, 3, generator=generator)
    scores = cosine_max_sim(queries, tokens)
    assert (scores.abs() <= 1 + 1e-6).all()
    assert (cosine_max_sim(queries, tokens[:, :1]) <= scores + 1e-6).all()
    torch.testing.assert_close(cosine_max_sim(9 * queries, tokens / 7), scores)


def test_of_equal_frames_one_gets_the_gradient() -> None:
    tokens = torch.ones(1, 4, 2, requires_grad=True)
    max_sim(torch.ones(1, 2), tokens).sum().backward()
    assert tokens.grad is not None
    assert (tokens.grad != 0).any(-1).sum() == 1


def test_gradcheck() -> None:
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (2, 5, 4))]
    assert torch.autograd.gradcheck(cosine_max_sim, inputs)


def test_bad_shapes_are_named(unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"queries has shape \(3,\).*'Q D'"):
        max_sim(torch.randn(3), torch.randn(1, 2, 3))


class TestOwnCosines:
    def test_equals_the_loop_in_value_and_gradient(self) -> None:
        queries, tokens = torch.randn(6, 5, dtype=torch.float64), torch.randn(4, 3, 5, dtype=torch.float64)
        inputs = (queries.requires_grad_(), tokens.requires_grad_())
        video_of_query = [2, 0, 2, 3, 0, 2]  # video 1 has no query
        found = own_cosines(queries, tokens, torch.tensor(video_of_query))
        expected = torch.stack(
            [
                torch.stack([twins.cosine(query, token) for token in tokens[video]])
                for query, video in zip(queries, video_of_query, strict=True)
            ]
        )
        torch.testing.assert_close(found, expected)
        for one, other in zip(
            *(torch.autograd.grad(each.square().sum(), inputs) for each in (found, expected)), strict=True
        ):
            torch.testing.assert_close(one, other)

    def test_the_best_one_is_the_score(self) -> None:
        queries, tokens = torch.randn(5, 4), torch.randn(3, 6, 4)
        video_of_query = torch.tensor([1, 1, 0, 2, 1])
        best = own_cosines(queries, tokens, video_of_query).amax(1)
        torch.testing.assert_close(best, cosine_max_sim(queries, tokens)[torch.arange(5), video_of_query])

    def test_bad_input(self, unchecked: None) -> None:
        with pytest.raises(BadBatch, match="expected 0 to 2"):
            own_cosines(torch.randn(2, 4), torch.randn(3, 6, 4), torch.tensor([0, 3]))
        with pytest.raises(BadBatch, match="D = 4"):
            own_cosines(torch.randn(2, 4), torch.randn(3, 6, 5), torch.tensor([0, 1]))


# ---------------------------------------------------------------- attention


def test_an_attention_by_hand() -> None:
    """The second guide has the larger cosine, and asks for the first value with weight 3/4."""
    query = torch.tensor([[2.0, 0.0]])
    guides = torch.tensor([[[1.0, 1.0], [math.log(3), 0.0]]])
    keys = torch.tensor([[[1.0, 5.0], [0.0, -7.0]]])
    values = torch.tensor([[[4.0, 0.0], [0.0, 12.0]]])
    # 3/4 (4, 0) + 1/4 (0, 12) = (3, 3)
    assert attended_cosine(query, guides, keys, values).item() == pytest.approx(math.sqrt(0.5))


def slow_attention(query: Tensor, guides: Tensor, keys: Tensor, values: Tensor) -> float:
    """The attention of one query and one video without padding, in loops."""
    cosines = [float(twins.cosine(query, guide)) for guide in guides]
    guide = guides[cosines.index(max(cosines))]
    logits = [sum(float(k * g) for k, g in zip(key, guide, strict=True)) for key in keys]
    total = sum(math.exp(logit - max(logits)) for logit in logits)
    mean = torch.zeros_like(query)
    for logit, value in zip(logits, values, strict=True):
        mean = mean + math.exp(logit - max(logits)) / total * value
    return float(twins.cosine(query, mean))


def attention_inputs(seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in ((3, 4), (2, 5, 4), (2, 6, 4), (2, 6, 4))]


def test_an_attention_equals_the_loop_and_ignores_padding() -> None:
    queries, guides, keys, values = attention_inputs()
    guide_mask, mask = torch.rand(2, 5) > 0.3, torch.rand(2, 6) > 0.3
    guide_mask[:, 1], mask[:, 2] = True, True
    expected = [
        [
            slow_attention(
                query, guides[video][guide_mask[video]], keys[video][mask[video]], values[video][mask[video]]
            )
            for video in range(2)
        ]
        for query in queries
    ]
    found = attended_cosine(queries, guides, keys, values, guide_mask=guide_mask, mask=mask)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    guides[~guide_mask], keys[~mask], values[~mask] = 1e3, -1e3, 1e3
    changed = attended_cosine(queries, guides, keys, values, guide_mask=guide_mask, mask=mask)
    torch.testing.assert_close(changed, found)


@given(st.integers(0, 2**31))
def test_an_attention_depends_on_the_lengths_of_guides_and_keys_only_together(seed: int) -> None:
    queries, guides, keys, values = attention_inputs(seed)
    scores = attended_cosine(queries, guides, keys, values)
    assert (scores.abs() <= 1 + 1e-6).all()
    torch.testing.assert_close(attended_cosine(7 * queries, 4 * guides, keys / 4, values / 3), scores)
    one = values[:, :1].expand_as(values)
    torch.testing.assert_close(attended_cosine(queries, guides, keys, one), cosine_max_sim(queries, one[:, :1]))


def test_gradcheck_of_an_attention() -> None:
    inputs = [part.requires_grad_() for part in attention_inputs()]
    assert torch.autograd.gradcheck(attended_cosine, inputs)


def test_the_score_of_a_branch() -> None:
    query, guides, keys, values = attention_inputs(dtype=torch.float32)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 3:] = False
    spans = torch.zeros(2, 6, 2)
    videos = {
        "clip": Tokens(vectors=guides, mask=mask[:, :5], spans=spans[:, :5]),
        "frame": Tokens(vectors=values, mask=mask, spans=spans),
        "key": Tokens(vectors=keys, mask=mask, spans=spans),
    }
    queries = {"clip": query, "frame": 2 * query}
    dot, attention = Similarity(kind="dot"), Similarity(kind="attention", guide="clip", keys="key")
    assert branch_score("clip", COSINE, queries, videos).equal(cosine_max_sim(query, guides, mask[:, :5]))
    assert branch_score("frame", dot, queries, videos).equal(max_sim(2 * query, values, mask))
    expected = attended_cosine(query, guides, keys, values, guide_mask=mask[:, :5], mask=mask)
    torch.testing.assert_close(branch_score("frame", attention, queries, videos), expected)
