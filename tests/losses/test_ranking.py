import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.losses.ranking import paired_triplet, triplet

SCORES = torch.tensor([[0.9, 0.8], [0.5, 0.1], [0.3, 0.4]])
VIDEO_OF_QUERY = torch.tensor([0, 0, 1])


def slow_triplet(
    scores: Tensor, video_of_query: list[int], margin: float, negative: list[int], wrong_query: list[int | None]
) -> Tensor:
    """The formula with the drawn negatives given."""
    zero = torch.zeros((), dtype=scores.dtype)
    of_query = [
        torch.maximum(zero, margin + scores[i, negative[i]] - scores[i, video])
        for i, video in enumerate(video_of_query)
    ]
    of_video = []
    for j, drawn in enumerate(wrong_query):
        own = [scores[i, j] for i, video in enumerate(video_of_query) if video == j]
        if own:
            hinge = zero if drawn is None else torch.maximum(zero, margin + scores[drawn, j] - torch.stack(own).mean())
            of_video.append(hinge)
    return torch.stack(of_query).mean() + torch.stack(of_video).mean()


def test_by_hand() -> None:
    # Two videos: each query has one wrong video. Query 0: .2+.8-.9=.1; query 1: .2+.1-.5<0; query 2: .2+.3-.4=.1.
    # Video 0: wrong query 2, .2+.3-.7<0. Video 1: the best wrong query is 0, .2+.8-.4=.6.
    expected = (0.1 + 0 + 0.1) / 3 + (0 + 0.6) / 2
    assert triplet(SCORES, VIDEO_OF_QUERY, margin=0.2, hard=True).item() == pytest.approx(expected)


def test_random_negatives_are_drawn_from_all_wrong_ones() -> None:
    # Video 1's wrong queries are 0 (.6) and 1 (hinge .2+.1-.4 < 0): the loss takes both values.
    drawn = {round(triplet(SCORES, VIDEO_OF_QUERY, margin=0.2).item(), 4) for _ in range(50)}
    assert drawn == {round(0.2 / 3 + 0.3, 4), round(0.2 / 3, 4)}


def test_equals_the_loop_in_value_and_gradient() -> None:
    scores = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    video_of_query = [0, 0, 3, 1, 3, 3, 3, 0, 1]  # video 2 has no query
    # With a pool of one, every hard negative is the best wrong one.
    wrong = torch.tensor(video_of_query)[:, None] != torch.arange(4)
    masked = scores.detach().masked_fill(~wrong, -torch.inf)
    slow = slow_triplet(scores, video_of_query, 0.5, masked.argmax(1).tolist(), masked.argmax(0).tolist())
    fast = triplet(scores, torch.tensor(video_of_query), margin=0.5, hard=True, hard_pool=1)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (fast, slow)))


def test_hard_negatives_come_from_the_pool() -> None:
    # One query per video: its wrong videos score 1, 2, …, 29, and the pool holds the best three.
    num = 30
    scores = torch.zeros(num, num)
    scores[0] = torch.arange(num)
    scores[0, 0] = 0
    drawn = {triplet(scores[:1], torch.tensor([0]), margin=0.0, hard=True, hard_pool=3).item() for _ in range(60)}
    assert drawn == {27, 28, 29}


def test_the_hard_negative_of_a_video_is_always_its_best_wrong_query() -> None:
    # Two videos, so each query has one wrong video; video 0 has five wrong queries, of which 0.9 is the best.
    scores = torch.tensor([[0.5, 0.0], [0.1, 0.6], [0.9, 0.6], [0.3, 0.6], [0.7, 0.6], [0.2, 0.6]])
    video_of_query = torch.tensor([0, 1, 1, 1, 1, 1])
    drawn = {triplet(scores, video_of_query, margin=0.0, hard=True).item() for _ in range(30)}
    assert len(drawn) == 1
    assert drawn.pop() == pytest.approx((0.3 + 0.1) / 6 + 0.4 / 2)


@given(st.integers(1, 5), st.integers(1, 10), st.booleans(), st.integers(0, 2**31))
def test_not_negative_and_zero_at_the_ideal(num_videos: int, num_queries: int, hard: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    video_of_query = torch.randint(num_videos, (num_queries,), generator=generator)
    scores = torch.randn(num_queries, num_videos, generator=generator)
    assert triplet(scores, video_of_query, margin=0.2, hard=hard) >= 0
    ideal = 1.0 * (video_of_query[:, None] == torch.arange(num_videos))
    assert triplet(ideal, video_of_query, margin=0.2, hard=hard) == 0


def test_a_generator_makes_the_draw_repeatable() -> None:
    scores, video_of_query = torch.randn(20, 10), torch.randint(10, (20,))
    draws = [
        triplet(scores, video_of_query, margin=0.2, generator=torch.Generator().manual_seed(seed)).item()
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("hard", [False, True])
def test_one_video_costs_nothing_and_has_finite_gradients(hard: bool) -> None:
    scores = torch.randn(3, 1, requires_grad=True)
    loss = triplet(scores, torch.zeros(3, dtype=torch.long), margin=0.2, hard=hard)
    loss.backward()
    assert loss.item() == 0
    assert scores.grad is not None
    assert (scores.grad == 0).all()


def test_gradcheck() -> None:
    scores = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    video_of_query = torch.tensor([0, 1, 1, 2, 2, 2])
    assert torch.autograd.gradcheck(
        lambda s: triplet(s, video_of_query, margin=0.7, generator=torch.Generator().manual_seed(3)), scores
    )


def test_bad_pool() -> None:
    with pytest.raises(BadSetting, match="hard_pool is 0"):
        triplet(SCORES, VIDEO_OF_QUERY, margin=0.2, hard=True, hard_pool=0)


def test_a_query_without_a_video_is_named() -> None:
    with pytest.raises(BadBatch, match=r"video_of_query .*expected 0 to 2"):
        triplet(torch.zeros(2, 3), torch.tensor([0, 3]), margin=0.2)


class TestPairs:
    def test_by_hand(self) -> None:
        # Rows: .2+.8-.9=.1; .2+.1-.5<0. Columns: .2+.1-.9<0; .2+.8-.5=.5.
        scores = torch.tensor([[0.9, 0.8], [0.1, 0.5]])
        assert paired_triplet(scores, margin=0.2).item() == pytest.approx(0.1 / 2 + 0.5 / 2)

    def test_equals_the_loop_in_value_and_gradient(self) -> None:
        scores = torch.randn(7, 7, dtype=torch.float64, requires_grad=True)
        terms = []
        for i in range(7):
            others = [j for j in range(7) if j != i]
            worst_column = max(others, key=lambda j: scores[i, j].item())
            worst_row = max(others, key=lambda j: scores[j, i].item())
            terms.append((0.5 + scores[i, worst_column] - scores[i, i]).relu())
            terms.append((0.5 + scores[worst_row, i] - scores[i, i]).relu())
        slow = torch.stack(terms).sum() / 7
        fast = paired_triplet(scores, margin=0.5, hard=True, hard_pool=1)
        torch.testing.assert_close(fast, slow)
        torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (fast, slow)))

    def test_hard_negatives_of_both_directions_come_from_the_pool(self) -> None:
        num = 30
        scores = torch.full((num, num), -1e3)
        scores[0] = torch.arange(num)
        scores[0, 0] = 0
        for each in (scores, scores.T.contiguous()):
            own = each.clone().fill_diagonal_(1e3)  # only pair 0 costs something
            own[0, 0] = 0
            drawn = {round(paired_triplet(own, margin=0.0, hard=True, hard_pool=3).item() * num) for _ in range(60)}
            assert drawn == {27, 28, 29}
        own = scores.clone().fill_diagonal_(1e3)
        own[0, 0] = 0
        assert len({round(paired_triplet(own, margin=0.0).item() * num) for _ in range(300)}) > 20

    @given(st.integers(1, 8), st.booleans(), st.integers(0, 2**31))
    def test_not_negative_and_zero_at_the_ideal(self, num: int, hard: bool, seed: int) -> None:
        scores = torch.randn(num, num, generator=torch.Generator().manual_seed(seed))
        assert paired_triplet(scores, hard=hard) >= 0
        assert paired_triplet(5 * torch.eye(num), hard=hard) == 0

    def test_gradcheck(self) -> None:
        scores = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(
            lambda s: paired_triplet(s, margin=0.7, generator=torch.Generator().manual_seed(3)), scores
        )

    def test_bad_input(self, unchecked: None) -> None:
        with pytest.raises(BadSetting, match="hard_pool is 0"):
            paired_triplet(torch.zeros(2, 2), hard_pool=0)
        with pytest.raises(BadSetting, match="margin is -1"):
            paired_triplet(torch.zeros(2, 2), margin=-1)
        with pytest.raises(BadBatch, match=r"\(2, 3\)"):
            paired_triplet(torch.zeros(2, 3))
