import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadBatch, BadSetting
from midreel.losses import contrastive
from midreel.losses.soft_labels import by_number_of_queries, soft_infonce
from tests.methods import twin_dl_dkd as twin

# Video 2 has no query. The others have 2, 1, 3 and 2.
VIDEO_OF_QUERY = torch.tensor([3, 0, 4, 3, 1, 0, 3, 4])
IN_ORDER = [0, 3, 6, 1, 5, 2, 7, 4]


def test_order_by_hand() -> None:
    queries, videos = by_number_of_queries(VIDEO_OF_QUERY, 5)
    assert queries.tolist() == IN_ORDER
    assert videos.tolist() == [3, 0, 4, 1]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=20))
def test_order_is_the_stable_sort_of_the_release(video_of_query: list[int]) -> None:
    queries, videos = by_number_of_queries(torch.tensor(video_of_query), 8)
    counts = [video_of_query.count(video) for video in range(8)]
    expected = [video for video in sorted(range(8), key=lambda video: -counts[video]) if counts[video]]
    assert videos.tolist() == expected
    flat = [query for video in expected for query, own in enumerate(video_of_query) if own == video]
    assert queries.tolist() == flat


def test_by_hand() -> None:
    # Video 1 has two queries and is the hard one, with query 1, the first of its two. All scores are 0.
    video_of_query = torch.tensor([0, 1, 1])
    found = soft_infonce(torch.zeros(3, 2), torch.zeros(3, 2), video_of_query, hard_share=0.5, truth_share=0.6)
    hard = math.log(2) + math.log(3) - math.log(2)  # query 1: ⌊0.5 · 3⌋ = 1; video 1: two of three queries
    # Labels of the soft queries sum to 1. Those of the soft video 0 are 0.4/3 + 0.6, 0.4/3 and 0.4/3.
    soft = math.log(2) + math.log(3) - math.log(0.4 + 0.6)
    assert found.item() == pytest.approx(0.5 * hard + 0.5 * soft)


def test_the_labels_of_a_video_are_not_scaled_to_sum_1() -> None:
    # Both videos are soft. Video 0 has two queries, so its labels sum to 0.4 + 0.6 · 2.
    video_of_query = torch.tensor([0, 0, 1])
    found = soft_infonce(torch.zeros(3, 2), torch.zeros(3, 2), video_of_query, hard_share=0.0, truth_share=0.6)
    of_video = [math.log(3) - math.log(1.6), math.log(3) - math.log(1.0)]
    assert found.item() == pytest.approx(math.log(2) + sum(of_video) / 2)


@pytest.mark.parametrize("hard_share", [0.0, 0.1, 0.25, 0.5, 0.799, 1.0])
@pytest.mark.parametrize("own", [True, False], ids=["own scores", "teacher"])
def test_equals_the_loop_in_value_and_gradient(hard_share: float, own: bool) -> None:
    queried = torch.tensor([3, 0, 4, 1])
    scores = torch.randn(8, 5, dtype=torch.float64)[:, queried].requires_grad_()
    video_of_query = torch.tensor([{3: 0, 0: 1, 4: 2, 1: 3}[video] for video in VIDEO_OF_QUERY.tolist()])
    video_of_query = video_of_query.flip(0)  # videos with equal numbers of queries keep their order
    teacher = scores if own else 20 * torch.randn(8, 4, dtype=torch.float64)
    fast = soft_infonce(scores, teacher, video_of_query, hard_share=hard_share, truth_share=0.6)
    queries, videos = by_number_of_queries(video_of_query, 4)
    place = {video: number for number, video in enumerate(videos.tolist())}
    slow = twin.soft_nce(
        scores[queries][:, videos],
        teacher[queries][:, videos],
        [place[video] for video in video_of_query[queries].tolist()],
        hard_share,
        0.6,
    )
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (fast, slow)))


@pytest.mark.parametrize("own", [True, False], ids=["own scores", "teacher"])
def test_gradcheck(own: bool) -> None:
    scores, teacher = (torch.randn(6, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    video_of_query = torch.tensor([0, 1, 1, 2, 2, 2])

    def loss(scores: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        softening = scores if own else teacher
        return soft_infonce(scores, softening, video_of_query, hard_share=0.4, truth_share=0.7)

    assert torch.autograd.gradcheck(loss, (scores, teacher))


@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**31))
def test_hard_labels_only_are_infonce(num_videos: int, num_queries: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    video_of_query = torch.randint(num_videos, (num_queries,), generator=generator)
    scores, teacher = torch.randn(2, num_queries, num_videos, generator=generator, dtype=torch.float64)
    expected = contrastive.infonce(scores, video_of_query).item()
    hard = soft_infonce(scores, teacher, video_of_query, hard_share=1.0, truth_share=0.5)
    truthful = soft_infonce(scores, teacher, video_of_query, hard_share=0.0, truth_share=1.0)
    assert hard.item() == pytest.approx(expected, abs=1e-6)
    assert truthful.item() == pytest.approx(expected, abs=1e-6)


@given(st.permutations(range(8)), st.integers(0, 2**31))
def test_queries_of_different_videos_may_be_mixed(order: list[int], seed: int) -> None:
    """Only the order of the queries of one video counts."""
    generator = torch.Generator().manual_seed(seed)
    scores, teacher = torch.randn(2, 8, 5, generator=generator, dtype=torch.float64)
    by_video: dict[int, list[int]] = {}
    for query in range(8):
        by_video.setdefault(int(VIDEO_OF_QUERY[query]), []).append(query)
    mixed = [by_video[int(VIDEO_OF_QUERY[query])].pop(0) for query in order]
    a, b = (
        soft_infonce(scores[rows], teacher[rows], VIDEO_OF_QUERY[rows], hard_share=0.4, truth_share=0.6)
        for rows in (list(range(8)), mixed)
    )
    torch.testing.assert_close(a, b)


def test_one_query_and_one_video() -> None:
    scores = torch.zeros(1, 1, requires_grad=True)
    loss = soft_infonce(scores, scores, torch.tensor([0]), hard_share=0.8, truth_share=0.8)
    loss.backward()
    assert loss.item() == 0
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_bad_input(unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"teacher has shape \(2, 4\)"):
        soft_infonce(torch.zeros(2, 3), torch.zeros(2, 4), torch.tensor([0, 1]), hard_share=0.5, truth_share=0.5)
    with pytest.raises(BadBatch, match="expected 0 to 2"):
        soft_infonce(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([0, 3]), hard_share=0.5, truth_share=0.5)
    for name in ("hard_share", "truth_share"):
        shares = {"hard_share": 0.5, "truth_share": 0.5, name: 1.5}
        with pytest.raises(BadSetting, match=rf"{name} is 1\.5"):
            soft_infonce(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([0, 1]), **shares)
