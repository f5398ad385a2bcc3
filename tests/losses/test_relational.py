import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch
from midreel.losses import relational
from midreel.losses.relational import angle_preservation, distance_preservation, relation_alignment
from tests import twins

LOSSES = [distance_preservation, angle_preservation]
Loss = Callable[[Tensor, Tensor], Tensor]


def points(num: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(num, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_distances_by_hand() -> None:
    # Student distances 1, 2, 3 on a line (mean 2): .5, 1, 1.5. Teacher equilateral: 1, 1, 1.
    student = torch.tensor([[0.0], [1.0], [3.0]])
    teacher = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
    expected = 2 * (0.5**2 / 2 + 0 + 0.5**2 / 2)
    assert distance_preservation(student, teacher).item() == pytest.approx(expected / 6)
    assert distance_preservation(student, teacher, include_diagonal=True).item() == pytest.approx(expected / 9)


def test_angles_by_hand() -> None:
    # Student: a right angle at 1 with legs of 1, so cosines 0, 1/√2, 1/√2. Teacher: on a line, so 1 at both ends and
    # -1 in the middle. Each angle counts twice, as (i, j, k) and (k, j, i).
    student = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    teacher = torch.tensor([[0.0], [1.0], [2.0]])
    end = (1 - 1 / math.sqrt(2)) ** 2 / 2
    middle = 0.5
    assert angle_preservation(student, teacher).item() == pytest.approx(2 * (2 * end + middle) / 27)


@pytest.mark.parametrize("loss", LOSSES)
def test_equals_the_loop_in_value_and_gradient(loss: Loss) -> None:
    student, teacher = points(7, 5).requires_grad_(), points(7, 3, seed=1)
    fast, slow = loss(student, teacher), getattr(twins, loss.__name__)(student, teacher)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(*(torch.autograd.grad(value, student)[0] for value in (fast, slow)))


def test_equals_the_loop_in_single_precision_far_from_the_origin() -> None:
    student, teacher = points(9, 6).float() + 20, points(9, 4, seed=1).float() - 5
    expected = twins.angle_preservation(student.double(), teacher.double())
    torch.testing.assert_close(angle_preservation(student, teacher).double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spread", [1e-1, 1e-3, 1e-6, 1e-7])
def test_near_duplicates_keep_their_precision(spread: float) -> None:
    """The loss exists for queries of one video that have collapsed."""
    student = (points(3, 6).repeat(3, 1) + spread * points(9, 6, seed=1)).float().requires_grad_()
    teacher = points(9, 4, seed=2).float()
    exact = student.detach().double().requires_grad_()
    slow = twins.angle_preservation(exact, teacher.double())
    fast = angle_preservation(student, teacher)
    torch.testing.assert_close(fast.double(), slow, rtol=1e-5, atol=1e-7)
    expected = torch.autograd.grad(slow, exact)[0]
    error = torch.autograd.grad(fast, student)[0].double() - expected
    assert error.norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [1e-2, 1e-5, 1e-8, 1e-14])
def test_an_arm_of_any_length_has_its_direction(dtype: torch.dtype, gap: float) -> None:
    student, teacher = points(6, 4).to(dtype), points(6, 3, seed=1).to(dtype)
    student[0] = student[1] = 0
    student[1, 2] = gap
    teacher[3] = teacher[2]
    teacher[3, 0] = teacher[3, 0].nextafter(torch.tensor(9.0, dtype=dtype))  # the next floating-point number
    exact = student.double().requires_grad_()
    slow = twins.angle_preservation(exact, teacher.double())
    expected = torch.autograd.grad(slow, exact)[0]
    student.requires_grad_()
    fast = angle_preservation(student, teacher)
    torch.testing.assert_close(fast.double(), slow, rtol=1e-5, atol=1e-7)
    error = torch.autograd.grad(fast, student)[0].double() - expected
    assert error.norm() < 1e-5 * expected.norm()


@pytest.mark.slow
def test_one_number_apart() -> None:
    """Two queries that differ by one rounding error."""
    student, teacher = points(20, 16).float(), points(20, 8, seed=1).float()
    student[1] = student[0]
    student[1, 0] = student[1, 0].nextafter(torch.tensor(9.0))
    exact = student.double().requires_grad_()
    expected = torch.autograd.grad(twins.angle_preservation(exact, teacher.double()), exact)[0]
    student.requires_grad_()
    error = torch.autograd.grad(angle_preservation(student, teacher), student)[0].double() - expected
    assert error.norm() < 1e-5 * expected.norm()


def test_the_block_of_vertices_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = points(11, 5), points(11, 3, seed=1)
    student[4:8] = student[:4] + 1e-3  # some points are close, and others are not
    student.requires_grad_()
    whole = torch.autograd.grad(angle_preservation(student, teacher), student)[0]
    monkeypatch.setattr(relational, "ANGLE_BLOCK_BYTES", 1)
    torch.testing.assert_close(torch.autograd.grad(angle_preservation(student, teacher), student)[0], whole)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradcheck(loss: Loss) -> None:
    teacher = points(6, 4, seed=1)
    assert torch.autograd.gradcheck(lambda x: loss(x, teacher), points(6, 3).requires_grad_())


@pytest.mark.parametrize("loss", LOSSES)
@given(num=st.integers(2, 8), scale=st.floats(0.01, 100), seed=st.integers(0, 2**31))
def test_rotation_shift_and_scale_are_free(loss: Loss, num: int, scale: float, seed: int) -> None:
    student, teacher = points(num, 4, seed), points(num, 4, seed + 1)
    rotation = torch.linalg.qr(points(4, 4, seed + 2)).Q
    moved = scale * student @ rotation + points(1, 4, seed + 3)
    torch.testing.assert_close(loss(moved, teacher), loss(student, teacher), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(loss(teacher, moved), loss(teacher, student), rtol=1e-6, atol=1e-9)
    assert loss(moved, student).item() == pytest.approx(0, abs=1e-12)  # the ideal
    assert loss(student, teacher) >= 0


@pytest.mark.parametrize("loss", LOSSES)
def test_duplicate_queries_have_finite_gradients(loss: Loss) -> None:
    student = points(6, 4)
    student[3] = student[1]
    teacher = points(6, 4, seed=1)
    student.requires_grad_()
    for _ in range(2):
        fast, slow = loss(student, teacher), getattr(twins, loss.__name__)(student, teacher)
        torch.testing.assert_close(fast, slow)
        torch.testing.assert_close(*(torch.autograd.grad(value, student)[0] for value in (fast, slow)))
        teacher[5] = teacher[0]  # and now the teacher has duplicates too


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("num", [1, 2, 5])
def test_points_that_coincide(loss: Loss, num: int) -> None:
    student = torch.ones(num, 3, requires_grad=True)
    value = loss(student, points(num, 3).float())
    value.backward()
    assert value.isfinite()
    assert student.grad is not None
    assert (student.grad == 0).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_teacher_gets_no_gradient(loss: Loss) -> None:
    student, teacher = points(4, 3).requires_grad_(), points(4, 3, seed=1).requires_grad_()
    loss(student, teacher).backward()
    assert teacher.grad is None


@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_and_a_double_teacher(loss: Loss) -> None:
    student, teacher = points(6, 4), points(6, 3, seed=1)
    exact = loss(student.half().float(), teacher.float())
    torch.testing.assert_close(loss(student.half(), teacher), exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_points(loss: Loss) -> None:
    with pytest.raises(BadBatch, match="student is empty"):
        loss(points(0, 3), points(0, 3))


@pytest.mark.parametrize("loss", LOSSES)
def test_bad_shapes_are_named(loss: Loss, unchecked: None) -> None:
    with pytest.raises(BadBatch, match=r"teacher has shape \(5, 3\).*Q = 4"):
        loss(points(4, 3), points(5, 3))


class TestVideoTokens:
    def test_a_query_retrieves_from_its_own_video(self) -> None:
        tokens = torch.eye(4).reshape(2, 2, 4)
        queries = torch.tensor([[0.0, 0.1, 9.0, 0.0], [0.0, 0.0, 0.1, 0.2]])
        assert relational.retrieved_token_of_query(queries, tokens, torch.tensor([0, 1])).tolist() == [1, 1]

    def test_retrieval_is_by_cosine(self) -> None:
        queries, tokens = torch.randn(6, 5), torch.randn(3, 7, 5)
        video_of_query = torch.tensor([0, 1, 2, 2, 1, 0])
        expected = [
            max(range(7), key=lambda s, q=q, v=v: float(twins.cosine(queries[q], tokens[v, s])))
            for q, v in enumerate(video_of_query.tolist())
        ]
        assert relational.retrieved_token_of_query(queries, tokens, video_of_query).tolist() == expected

    def test_spans_by_hand(self) -> None:
        assert relational.spread_tokens(128).tolist() == [16, 48, 80, 112]
        assert relational.spread_tokens(32).tolist() == [4, 12, 20, 28]

    def test_a_random_token_near_the_end_stays_in_its_span(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "rand", lambda num, generator: torch.full((num,), 1 - 2**-24))
        assert relational.spread_tokens(128, jitter=True).tolist() == [31, 63, 95, 127]

    @given(st.integers(4, 200), st.integers(1, 4))
    def test_a_random_token_stays_in_its_span(self, num_tokens: int, num_spans: int) -> None:
        token = relational.spread_tokens(num_tokens, num_spans, jitter=True)
        span = num_tokens / num_spans
        assert all(int(k * span) <= t < (k + 1) * span for k, t in enumerate(token.tolist()))


class TestRelationAlignment:
    def test_by_hand(self) -> None:
        # Cosines 0 and 0.6 between the two points: 0.6 for two of four pairs.
        second = torch.tensor([[5.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
        assert relation_alignment(torch.eye(2), second).item() == pytest.approx(0.3)

    def test_equals_the_loop_in_value_and_gradient(self) -> None:
        first = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
        second = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
        gaps = [
            (twins.cosine(first[i], first[j]) - twins.cosine(second[i], second[j])).abs()
            for i in range(6)
            for j in range(6)
            if i != j
        ]
        slow, fast = torch.stack(gaps).sum() / 36, relation_alignment(first, second)
        torch.testing.assert_close(fast, slow)
        of_fast, of_slow = (torch.autograd.grad(loss, (first, second)) for loss in (fast, slow))
        torch.testing.assert_close(of_fast, of_slow)
        assert all((gradient != 0).any() for gradient in of_fast)

    def test_gradcheck(self) -> None:
        given = [torch.randn(5, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        assert torch.autograd.gradcheck(relation_alignment, given)

    @given(st.integers(1, 8), st.integers(0, 2**31))
    def test_rotation_and_scale_are_free(self, num: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(num, 3, dtype=torch.float64, generator=generator)
        turned = 3 * points @ torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator)).Q
        assert relation_alignment(points, turned).item() == pytest.approx(0, abs=1e-12)

    def test_bad_input(self, unchecked: None) -> None:
        with pytest.raises(BadBatch, match="Q = 3"):
            relation_alignment(torch.zeros(3, 2), torch.zeros(4, 2))
        with pytest.raises(BadBatch, match="at least 1 row"):
            relation_alignment(torch.zeros(0, 2), torch.zeros(0, 2))
