import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch
from midreel.losses.contrastive import infonce, paired_infonce
from tests import twins


def test_by_hand() -> None:
    # Videos 0 and 1; queries 0 and 1 belong to video 0, query 2 to video 1.
    scores = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    of_query = [math.log(math.e + 1) - 1, math.log(2), math.log(1 + math.e**2) - 2]
    of_video = [math.log(math.e + 2) - math.log(math.e + 1), math.log(2 + math.e**2) - 2]
    expected = sum(of_query) / 3 + sum(of_video) / 2
    assert infonce(scores, torch.tensor([0, 0, 1])).item() == pytest.approx(expected)


def test_equals_the_loop_in_value_and_gradient() -> None:
    scores = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    video_of_query = [0, 0, 3, 1, 4, 4, 4, 0, 1]  # video 2 has no query
    fast = infonce(scores, torch.tensor(video_of_query))
    slow = twins.infonce(scores, video_of_query)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (fast, slow)))


def test_gradcheck() -> None:
    scores = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: infonce(s, torch.tensor([0, 1, 1, 2, 2, 2])), scores)


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**31))
def test_not_negative_and_zero_at_the_ideal(num_videos: int, num_queries: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    video_of_query = torch.randint(num_videos, (num_queries,), generator=generator)
    scores = torch.randn(num_queries, num_videos, generator=generator)
    assert infonce(scores, video_of_query) >= -1e-6
    ideal = 100.0 * (video_of_query[:, None] == torch.arange(num_videos))
    assert infonce(ideal, video_of_query).item() == pytest.approx(0, abs=1e-6)
    assert infonce(scores + 7, video_of_query).item() == pytest.approx(infonce(scores, video_of_query).item(), abs=1e-4)


def test_one_query_and_one_video() -> None:
    scores = torch.zeros(1, 1, requires_grad=True)
    loss = infonce(scores, torch.tensor([0]))
    loss.backward()
    assert loss.item() == 0
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_bad_shapes_are_named(unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"video_of_query has shape \(3,\).*Q = 4"):
        infonce(torch.zeros(4, 2), torch.tensor([0, 1, 1]))


def test_a_query_without_a_video_is_named() -> None:
    with pytest.raises(BadBatch, match=r"video_of_query .*expected 0 to 2"):
        infonce(torch.zeros(2, 3), torch.tensor([0, 3]))


class TestPairs:
    def test_by_hand(self) -> None:
        # Pair 0: row and column contain e^2 twice, 1 and 3. Pair 1: e^0 twice, 1 and 3 again.
        scores = torch.tensor([[2.0, 0.0], [math.log(3), 0.0]])
        expected = (math.log(2 * math.e**2 + 1 + 3) - 2 + math.log(2 + 1 + 3)) / 2
        assert paired_infonce(scores).item() == pytest.approx(expected)

    def test_equals_the_loop_in_value_and_gradient(self) -> None:
        scores = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
        terms = []
        for i in range(6):
            both = [scores[i, j] for j in range(6)] + [scores[j, i] for j in range(6)]
            terms.append(twins.log_sum_exp(both) - scores[i, i])
        slow, fast = twins.mean(terms), paired_infonce(scores)
        torch.testing.assert_close(fast, slow)
        torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (fast, slow)))

    def test_gradcheck(self) -> None:
        assert torch.autograd.gradcheck(paired_infonce, torch.randn(5, 5, dtype=torch.float64, requires_grad=True))

    @given(st.integers(1, 9), st.integers(0, 2**31))
    def test_at_least_log_two_at_the_ideal(self, num: int, seed: int) -> None:
        scores = torch.randn(num, num, generator=torch.Generator().manual_seed(seed))
        assert paired_infonce(scores) >= math.log(2) - 1e-6
        assert paired_infonce(100 * torch.eye(num)).item() == pytest.approx(math.log(2), abs=1e-5)
        assert paired_infonce(scores.T).item() == pytest.approx(paired_infonce(scores).item(), abs=1e-5)
        assert paired_infonce(scores + 7).item() == pytest.approx(paired_infonce(scores).item(), abs=1e-4)

    def test_scores_that_are_no_square(self, unchecked: None) -> None:
        with pytest.raises(BadBatch, match=r"\(2, 3\)"):
            paired_infonce(torch.zeros(2, 3))
