"""Dropout that is fast on a CPU.

torch draws one random number for each element, which takes about ten times as long as this module. A training step at
the paper's sizes draws half a billion of them. Here one 64-bit draw gives four 16-bit numbers, which meet the rate to
within 1/131072. The remaining elements are scaled by the exact share that remains, so the mean does not change.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from midreel.errors import BadSetting

STEPS = 1 << 16  # the number of values of a 16-bit draw


class Dropout(nn.Module):
    """A layer that zeroes random elements in training, and scales the others so that the mean does not change.

    Args:
        rate: the probability of zero, at least 0 and below 1.

    Raises:
        BadSetting: the rate is out of range.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise BadSetting(f"dropout is {rate}, expected at least 0 and below 1. Try 0.2.")
        self.rate = rate

    @property
    def active_rate(self) -> float:
        """The rate in training, 0 in evaluation."""
        return self.rate if self.training else 0.0

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the input with dropout in training, and the input itself in evaluation."""
        return x * survival(x, self.active_rate) if self.active_rate else x

    def extra_repr(self) -> str:
        """Return the rate, for the representation of the module."""
        return f"rate={self.rate}"


class ReluDropout(Dropout):
    """ReLU and dropout in one pass.

    In training it overwrites its input, which must therefore be the fresh output of a linear layer.
    """

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Return the ReLU of the input, with dropout in training."""
        return _ReluDrop.apply(x, self.active_rate) if self.active_rate else x.relu()


def survival(x: Float[Tensor, "*shape"], rate: float) -> Float[Tensor, "*shape"]:
    """Return a random factor for each element of x: 0 with probability `rate`, else `survivor_scale(rate)`."""
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    numbers = draws.view(torch.int16)[: x.numel()].view(x.shape)
    return (numbers >= _num_dropped(rate) - STEPS // 2).to(x.dtype).mul_(survivor_scale(rate))


def survivor_scale(rate: float) -> float:
    """Return the factor of the remaining elements: one over the share that remains."""
    return STEPS / (STEPS - _num_dropped(rate))


def _num_dropped(rate: float) -> int:
    """Return how many of the 65536 values of a draw mean zero. At least one means survival."""
    return min(round(rate * STEPS), STEPS - 1)


class _ReluDrop(torch.autograd.Function):
    """ReLU and dropout in place. The output is zero where either step stopped an element, so it serves as the mask."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, rate: float) -> Tensor:
        x.relu_().mul_(survival(x, rate))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.scale = survivor_scale(rate)  # type: ignore[attr-defined]
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return output.sign().mul_(upstream).mul_(ctx.scale), None  # type: ignore[attr-defined]
