import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadSetting
from midreel.methods.msc import MSC, MSCConfig
from midreel.training.optim import BertAdam, decays, parameter_groups, warmup_cosine, warmup_linear


def slow_steps(start: list[float], gradients: list[list[float]], lr: float, total: int, decay: float) -> list[float]:
    """The update of BertAdam, one number at a time."""
    theta, mean, square = list(start), [0.0] * len(start), [0.0] * len(start)
    for step, gradient in enumerate(gradients):
        norm = math.sqrt(sum(g * g for g in gradient))
        clipped = [g * min(1.0, 1.0 / (norm + 1e-6)) for g in gradient]
        progress = step / total
        rate = lr * (progress / 0.01 if progress < 0.01 else max((1 - progress) / 0.99, 0))
        for i, g in enumerate(clipped):
            mean[i] = 0.9 * mean[i] + 0.1 * g
            square[i] = 0.999 * square[i] + 0.001 * g * g
            theta[i] -= rate * (mean[i] / (math.sqrt(square[i]) + 1e-6) + decay * theta[i])
    return theta


def run(start: list[float], gradients: list[list[float]], **settings: float) -> Tensor:
    parameter = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimiser = BertAdam(
        [parameter], lr=settings["lr"], total_steps=int(settings["total"]), weight_decay=settings["decay"]
    )
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimiser.step()
    return parameter.detach()


def test_the_first_step_changes_nothing() -> None:
    assert run([1.0, 2.0], [[5.0, 5.0]], lr=0.1, total=1000, decay=0.01).tolist() == [1, 2]


def test_by_hand() -> None:
    # The second of two steps: progress 1/2, so rate 0.5 / 0.99. Gradients of norm below one are not clipped.
    rate = 0.1 * 0.5 / 0.99
    mean, square = 0.9 * 0.05 + 0.05, 0.999 * 0.00025 + 0.00025
    expected = 3 - rate * (mean / (math.sqrt(square) + 1e-6) + 0.01 * 3)
    assert run([3.0], [[0.5], [0.5]], lr=0.1, total=2, decay=0.01).item() == pytest.approx(expected)


@given(st.integers(1, 12), st.integers(0, 2**31))
def test_equals_the_loop(num_steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradients = (3 * torch.randn(num_steps, 4, generator=generator, dtype=torch.float64)).tolist()
    expected = slow_steps([1.0, -2.0, 0.5, 3.0], gradients, lr=0.05, total=20, decay=0.01)
    found = run([1.0, -2.0, 0.5, 3.0], gradients, lr=0.05, total=20, decay=0.01)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@given(st.floats(0, 1.5), st.floats(0.001, 0.5))
def test_the_schedule_stays_between_zero_and_one(progress: float, warmup: float) -> None:
    assert 0 <= warmup_linear(progress, warmup) <= 1


@given(st.floats(0, 1.5), st.floats(0.01, 0.9))
def test_the_cosine_schedule_falls_from_one_to_zero(progress: float, warmup: float) -> None:
    rate = warmup_cosine(progress, warmup)
    assert 0 <= rate <= 1
    if progress < warmup:
        assert rate == warmup_linear(progress, warmup)
    else:
        assert warmup_cosine(progress + 0.1, warmup) <= rate
    assert warmup_cosine((1 + warmup) / 2, warmup) == pytest.approx(0.5)


def test_the_optimiser_follows_its_schedule() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = BertAdam([parameter], lr=1.0, total_steps=10, warmup=0.2, schedule="warmup_cosine")
    optimiser.num_steps = 6
    assert optimiser.rate == pytest.approx(warmup_cosine(0.6, 0.2))


def test_each_tensor_is_clipped_on_its_own() -> None:
    large, small = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    optimiser = BertAdam([large, small], lr=1.0, total_steps=4)
    for _ in range(2):
        large.grad, small.grad = torch.tensor([30.0, 40.0]), torch.tensor([0.3, 0.4])
        optimiser.step()
    assert optimiser.state[large]["mean"].tolist() == pytest.approx([0.19 * 0.6, 0.19 * 0.8])
    assert optimiser.state[small]["mean"].tolist() == pytest.approx([0.19 * 0.3, 0.19 * 0.4])


def test_what_decays() -> None:
    with torch.device("meta"):
        method = MSC(MSCConfig())
    spared = {name for name, _ in method.named_parameters() if not decays(name)}
    norms = {f"{part}.{step}.norm.weight" for part in ("query", "clip", "frame") for step in ("project", "position")}
    assert spared == norms | {name for name, _ in method.named_parameters() if name.endswith("bias")}
    assert decays("clip.mixture.blocks.0.norm1.weight")
    assert decays("weight_token")
    decayed, kept = parameter_groups(method, 0.01)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.01, 0.0)
    assert len(decayed["params"]) + len(kept["params"]) == 297


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"total_steps": 0}, {"warmup": 1.0}])
def test_bad_settings(settings: dict[str, float]) -> None:
    with pytest.raises(BadSetting, match="expected above 0"):
        BertAdam([torch.nn.Parameter(torch.zeros(1))], **{"lr": 0.1, "total_steps": 10} | settings)
