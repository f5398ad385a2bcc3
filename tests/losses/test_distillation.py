import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.losses.distillation import curve_divergence


def slow(student: Tensor, teacher: Tensor, lengths: list[int], temperature: float) -> Tensor:
    total = torch.zeros((), dtype=student.dtype)
    for query, length in enumerate(lengths):
        wanted = [math.exp(float(teacher[query, t]) / temperature) for t in range(length)]
        found = [(student[query, t] / temperature).exp() for t in range(length)]
        for t in range(length):
            p, q = wanted[t] / sum(wanted), found[t] / sum(found)
            total = total + p * (math.log(p) - q.log())
    return total


def masked(lengths: list[int], num: int) -> Tensor:
    return torch.arange(num) < torch.tensor(lengths)[:, None]


def test_by_hand() -> None:
    # Query 0: 1/4, 3/4 against 1/2, 1/2. Query 1 has one frame and costs nothing.
    teacher = torch.tensor([[0.0, 0.5 * math.log(3), 9.0], [0.3, -2.0, 5.0]])
    student = torch.tensor([[0.7, 0.7, -1.0], [0.1, 1.0, 2.0]])
    found = curve_divergence(student, teacher, masked([2, 1], 3), temperature=0.5)
    assert found.item() == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))


def test_equals_the_loop_in_value_and_gradient() -> None:
    student = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(5, 7, dtype=torch.float64)
    lengths = [7, 1, 3, 6, 2]
    fast = curve_divergence(student, teacher, masked(lengths, 7), temperature=0.2)
    expected = slow(student, teacher, lengths, 0.2)
    torch.testing.assert_close(fast, expected)
    torch.testing.assert_close(*(torch.autograd.grad(loss, student)[0] for loss in (fast, expected)))


def test_gradcheck() -> None:
    student = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: curve_divergence(s, teacher, masked([4, 1, 3], 4)), student)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**31))
def test_not_negative_zero_at_the_ideal_and_blind_to_padding(num: int, length: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, num, length, generator=generator, dtype=torch.float64)
    mask = masked(torch.randint(1, length + 1, (num,), generator=generator).tolist(), length)
    loss = curve_divergence(student, teacher, mask)
    assert loss >= -1e-9
    assert curve_divergence(teacher + 0.3, teacher, mask).item() == pytest.approx(0, abs=1e-9)
    with_nan = student.masked_fill(~mask, torch.nan), teacher.masked_fill(~mask, torch.nan)
    assert curve_divergence(*with_nan, mask).item() == loss.item()


def test_it_is_a_sum_over_queries() -> None:
    student, teacher = torch.randn(2, 4, 6)
    mask = torch.ones(4, 6, dtype=torch.bool)
    once = curve_divergence(student, teacher, mask)
    twice = curve_divergence(student.repeat(2, 1), teacher.repeat(2, 1), mask.repeat(2, 1))
    torch.testing.assert_close(twice, 2 * once)


def test_the_teacher_gets_no_gradient_and_padding_none_that_is_not_a_number() -> None:
    student, teacher = (torch.randn(2, 3, requires_grad=True) for _ in range(2))
    curve_divergence(student, teacher, masked([1, 2], 3)).backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert student.grad.isfinite().all()
    assert (student.grad[~masked([1, 2], 3)] == 0).all()


def test_bad_input(unchecked: None) -> None:
    curves, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(BadBatch, match=r"teacher has shape \(2, 4\)"):
        curve_divergence(curves, torch.zeros(2, 4), mask)
    with pytest.raises(BadBatch, match="without frames"):
        curve_divergence(curves, curves, masked([3, 0], 3))
    with pytest.raises(BadBatch, match="expected bool"):
        curve_divergence(curves, curves, mask.int())
    with pytest.raises(BadSetting, match=r"temperature is 0\.0"):
        curve_divergence(curves, curves, mask, temperature=0.0)
