import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.nn import windowed_attention as module
from midreel.nn.windowed_attention import attend
from tests import twins


def example(num: int = 3, length: int = 5, width: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    joint = torch.randn(num, length, 3 * width, dtype=torch.float64)
    return joint, torch.rand(length, length, dtype=torch.float64), torch.randn(num, length, dtype=torch.float64)


def test_by_hand() -> None:
    # One head of width 1. Query 1 sees keys 0 and ln 3 through a window of ones: weights 1/4 and 3/4 of values 0 and 4.
    key = torch.tensor([1.0, 3.0]).log()
    joint = torch.stack((torch.ones(2), key, torch.tensor([0.0, 4.0])), -1)[None]
    torch.testing.assert_close(attend(joint, 1), torch.full((1, 2, 1), 3.0))
    # A window of zeros blinds the query, and a bias of ln 3 on the first key restores 3/4 and 1/4.
    bias = torch.tensor([[3.0, 1.0]]).log()
    torch.testing.assert_close(attend(joint, 1, torch.zeros(2, 2), bias), torch.full((1, 2, 1), 1.0))


@pytest.mark.parametrize("with_grad", [False, True])
@pytest.mark.parametrize("with_window", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_the_loop_in_value_and_gradient(with_grad: bool, with_window: bool, with_bias: bool) -> None:
    joint, window, bias = example()
    joint.requires_grad_(with_grad)
    window, bias = window if with_window else None, bias if with_bias else None
    fast = attend(joint, 2, window, bias)
    slow = torch.stack(
        [twins.attend(*joint[n].chunk(3, -1), 2, window, None if bias is None else bias[n]) for n in range(len(joint))]
    )
    torch.testing.assert_close(fast, slow)
    if with_grad:
        upstream = torch.randn_like(fast)
        torch.testing.assert_close(*(torch.autograd.grad(value, joint, upstream)[0] for value in (fast, slow)))


def test_gradcheck() -> None:
    joint, window, bias = example()
    assert torch.autograd.gradcheck(lambda x: attend(x, 2, window, bias), joint.requires_grad_())


def test_gradcheck_with_dropout() -> None:
    joint, window, bias = example()

    def dropped(x: Tensor) -> Tensor:
        torch.manual_seed(4)
        return attend(x, 2, window, bias, dropout=0.3)

    assert torch.autograd.gradcheck(dropped, joint.requires_grad_())


@pytest.mark.slow
def test_dropout_keeps_the_mean() -> None:
    joint, window, bias = example()
    joint.requires_grad_()
    average = torch.stack([attend(joint, 2, window, bias, dropout=0.3) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(average, attend(joint, 2, window, bias), atol=0.08, rtol=0)


def test_the_block_of_sequences_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    joint, window, bias = example(num=7)
    joint.requires_grad_()
    whole = attend(joint, 2, window, bias)
    gradient = torch.autograd.grad(whole.square().sum(), joint)[0]
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    single = attend(joint, 2, window, bias)
    torch.testing.assert_close(single, whole)
    torch.testing.assert_close(torch.autograd.grad(single.square().sum(), joint)[0], gradient)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**31))
def test_the_output_is_a_mean_of_the_values(num: int, length: int, seed: int) -> None:
    joint = torch.randn(num, length, 6, generator=torch.Generator().manual_seed(seed))
    value = joint[..., 4:]
    output = attend(joint, 1)
    assert (output <= value.amax(1, keepdim=True) + 1e-5).all()
    assert (output >= value.amin(1, keepdim=True) - 1e-5).all()


def test_dropout_is_the_same_with_and_without_gradients() -> None:
    joint, window, bias = example()
    drawn = []
    for with_grad in (True, False):
        torch.manual_seed(5)
        with torch.set_grad_enabled(with_grad):
            drawn.append(attend(joint.requires_grad_(), 2, window, bias, dropout=0.5).detach())
    torch.testing.assert_close(*drawn)
    assert not torch.allclose(drawn[0], attend(joint, 2, window, bias).detach())
