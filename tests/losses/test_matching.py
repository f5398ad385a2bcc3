from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch
from midreel.losses.matching import matched_clips, optimal_matching
from tests import twins


def test_by_hand() -> None:
    # Both queries of video 0 like clip 0 best (cosines 1 and 0.8). The first takes it; the second gets clip 1, at 0.6.
    # The other way round, clip 1 and clip 0, is worth 0 + 0.8. Video 1 has one query and does not count.
    clips = torch.tensor([[[2.0, 0], [0, 1]], [[1, 0], [0, 1]]])
    queries = torch.tensor([[1.0, 0], [8, 6], [1, 1]])
    assert optimal_matching(queries, clips, torch.tensor([0, 0, 1])).item() == pytest.approx(1 - (1 + 0.6) / 2)


def test_equals_the_loop_in_value_and_gradient() -> None:
    queries = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    clips = torch.randn(4, 5, 3, dtype=torch.float64, requires_grad=True)
    video_of_query = [0, 2, 0, 1, 2, 2, 0, 0]
    fast = optimal_matching(queries, clips, torch.tensor(video_of_query))
    slow = twins.optimal_matching(queries, clips, video_of_query)
    torch.testing.assert_close(fast, slow)
    of_fast, of_slow = (torch.autograd.grad(loss, (queries, clips)) for loss in (fast, slow))
    torch.testing.assert_close(of_fast, of_slow)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**31))
def test_between_zero_and_two_and_free_of_scale(num: int, num_clips: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(num, 3, dtype=torch.float64, generator=generator)
    clips = torch.randn(2, num_clips, 3, dtype=torch.float64, generator=generator)
    video_of_query = torch.randint(2, (num,), generator=generator)
    value = optimal_matching(queries, clips, video_of_query)
    assert -1e-12 <= value <= 2
    torch.testing.assert_close(optimal_matching(5 * queries, clips / 3, video_of_query), value)


def test_zero_at_the_ideal() -> None:
    clips = torch.randn(2, 6, 4)
    queries = torch.cat([clips[0, [4, 1, 3]], clips[1, [0, 5]]])
    assert optimal_matching(queries, clips, torch.tensor([0, 0, 0, 1, 1])).item() == pytest.approx(0, abs=1e-6)


def test_more_queries_than_clips() -> None:
    """The best pairs are matched, and the other queries are ignored."""
    queries = torch.tensor([[1.0, 0], [0, 1], [-1, -1]], requires_grad=True)
    loss = optimal_matching(queries, torch.eye(2)[None], torch.zeros(3, dtype=torch.long))
    loss.backward()
    assert loss.item() == pytest.approx(0)
    assert queries.grad is not None
    assert (queries.grad[2] == 0).all()


def test_videos_with_one_query_each_cost_nothing() -> None:
    assert optimal_matching(torch.randn(3, 2), torch.randn(4, 5, 2), torch.tensor([3, 0, 1])).item() == 0


def test_a_query_without_a_video_is_named() -> None:
    with pytest.raises(BadBatch, match=r"video_of_query .*expected 0 to 0"):
        optimal_matching(torch.randn(2, 2), torch.randn(1, 5, 2), torch.tensor([0, 1]))


class TestMatchedClips:
    def test_by_hand(self) -> None:
        clips = torch.tensor([[[2.0, 0], [0, 1]], [[1, 0], [0, 1]]])
        queries = torch.tensor([[8.0, 6], [0, 1], [1, 0]])
        assert matched_clips(queries, clips, torch.tensor([0, 1, 0])).tolist() == [1, 1, 0]

    @given(st.integers(0, 2**31))
    def test_different_clips_with_the_largest_sum(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        queries, clips = torch.randn(4, 3, generator=generator), torch.randn(1, 5, 3, generator=generator)
        found = matched_clips(queries, clips, torch.zeros(4, dtype=torch.long)).tolist()
        cosines = F.normalize(queries, dim=-1) @ F.normalize(clips[0], dim=-1).T
        best = max(permutations(range(5), 4), key=lambda way: cosines[range(4), list(way)].sum().item())
        assert found == list(best)

    def test_a_single_query_has_its_best_clip(self) -> None:
        queries, clips = torch.randn(3, 4), torch.randn(5, 6, 4)
        found = matched_clips(queries, clips, torch.tensor([4, 0, 2]))
        cosines = F.cosine_similarity(queries[:, None], clips[[4, 0, 2]], dim=-1)
        assert found.equal(cosines.argmax(1))

    def test_more_queries_than_clips(self) -> None:
        queries = torch.tensor([[-1.0, -1], [1, 0], [0, 1]])
        assert matched_clips(queries, torch.eye(2)[None], torch.zeros(3, dtype=torch.long)).tolist() == [-1, 0, 1]

    def test_a_query_without_a_video_is_named(self) -> None:
        with pytest.raises(BadBatch, match=r"video_of_query .*expected 0 to 0"):
            matched_clips(torch.randn(2, 2), torch.randn(1, 5, 2), torch.tensor([0, 1]))
