"""Dropout that is cheap on a CPU.

torch draws one random number per element from a serial generator, about ten times as slow as what is done here, and a
training step at the paper's sizes has half a billion elements to draw for. Here one 64-bit draw gives four 16-bit
numbers, enough to place the threshold to within 1/131072; the survivors are scaled by the exact share that survives, so
the mean is kept.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from midreel.errors import BadSetting

STEPS = 1 << 16


class Dropout(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise BadSetting(f"dropout is {rate}, expected at least 0 and below 1, such as 0.2")
        self.rate = rate

    @property
    def active_rate(self) -> float:
        return self.rate if self.training else 0.0

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return x * survival(x, self.active_rate) if self.active_rate else x

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class ReluDropout(Dropout):
    """ReLU, then dropout. Overwrites its input in training, so that must be the fresh output of a linear layer."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return _ReluDrop.apply(x, self.active_rate) if self.active_rate else x.relu()


def survival(x: Float[Tensor, "*shape"], rate: float) -> Float[Tensor, "*shape"]:
    """A factor per element of x: 0 with probability `rate`, else `survivor_scale(rate)`."""
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    numbers = draws.view(torch.int16)[: x.numel()].view(x.shape)
    return (numbers >= _num_dropped(rate) - STEPS // 2).to(x.dtype).mul_(survivor_scale(rate))


def survivor_scale(rate: float) -> float:
    """The inverse of the share that survives."""
    return STEPS / (STEPS - _num_dropped(rate))


def _num_dropped(rate: float) -> int:
    return min(round(rate * STEPS), STEPS - 1)


class _ReluDrop(torch.autograd.Function):
    """Both steps zero what they stop, so the output alone tells the backward pass what went through."""

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
