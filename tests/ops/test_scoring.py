import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch
from midreel.ops.scoring import cosine_max_sim, max_sim, own_cosines
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
