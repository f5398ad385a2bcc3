import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadSetting
from midreel.nn.dropout import Dropout, ReluDropout, survival, survivor_scale


@given(st.floats(0.01, 0.95), st.integers(1, 7))
def test_factors_are_zero_or_the_scale(rate: float, odd: int) -> None:
    factor = survival(torch.empty(300, odd), rate)
    assert ((factor == 0) | (factor == torch.tensor(survivor_scale(rate)))).all()
    assert survivor_scale(rate) == pytest.approx(1 / (1 - rate), rel=2e-4)


def test_the_mean_is_kept_and_neighbours_are_independent() -> None:
    factor = survival(torch.empty(1000, 1000), 0.31)
    assert factor.mean().item() == pytest.approx(1, abs=0.005)
    kept = (factor > 0).float()
    assert kept.mean().item() == pytest.approx(0.69, abs=0.003)
    for lag in range(1, 9):  # four numbers share a draw
        both = (kept.flatten()[lag:] * kept.flatten()[:-lag]).mean().item()
        assert both == pytest.approx(0.69**2, abs=0.005)
    for lane in range(4):
        assert kept.flatten()[lane::4].mean().item() == pytest.approx(0.69, abs=0.005)


def test_the_seed_determines_the_draws() -> None:
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(survival(torch.empty(64), 0.5))
    assert drawn[0].equal(drawn[1])
    assert not drawn[0].equal(drawn[2])


@pytest.mark.parametrize("make", [Dropout, ReluDropout])
def test_the_gradient_follows_the_survivors(make: type[Dropout]) -> None:
    x = torch.randn(50, 40, requires_grad=True)
    output = make(0.4)(x + 0)
    output.sum().backward()
    assert x.grad is not None
    survived = output != 0
    torch.testing.assert_close(output[survived], x[survived] * survivor_scale(0.4))
    torch.testing.assert_close(x.grad, survived * survivor_scale(0.4))


def test_negative_inputs_become_zero() -> None:
    assert (ReluDropout(0.1)(torch.full((100,), -1.0)) == 0).all()


@pytest.mark.parametrize(("make", "expected"), [(Dropout, [-1.0, 2.0]), (ReluDropout, [0.0, 2.0])])
def test_nothing_is_dropped_in_evaluation_or_at_rate_zero(make: type[Dropout], expected: list[float]) -> None:
    x = torch.tensor([-1.0, 2.0])
    assert make(0.9).eval()(x).tolist() == expected
    assert make(0.0)(x).tolist() == expected
    assert x.tolist() == [-1, 2]


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_bad_rate(rate: float) -> None:
    with pytest.raises(BadSetting, match=f"dropout is {rate}"):
        Dropout(rate)
