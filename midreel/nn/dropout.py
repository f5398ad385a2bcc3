"""Dropout that draws sixteen-bit random numbers on a CPU.

torch draws one random number per element from a serial generator, which at this model's sizes takes a third of a
training step. One 64-bit draw holds four 16-bit numbers, enough to place the threshold to within 1/131072; the survivors
are scaled by the exact share that survives, so the mean is kept.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
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

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training or self.rate == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        return _Drop.apply(x, self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class ReluDropout(Dropout):
    """ReLU, then dropout. Both zero what they stop, so the output alone tells the backward pass what went through."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training or self.rate == 0 or x.device.type != "cpu":
            return super().forward(x.relu())
        return _ReluDrop.apply(x, self.rate)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, rate: float) -> Tensor:
        keep, scale = _draw(x, rate)
        ctx.save_for_backward(keep)
        ctx.scale = scale  # type: ignore[attr-defined]
        return (x * keep).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return (upstream * keep).mul_(ctx.scale), None  # type: ignore[attr-defined]


class _ReluDrop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, rate: float) -> Tensor:
        keep, scale = _draw(x, rate)
        output = x.relu().mul_(keep).mul_(scale)
        ctx.save_for_backward(output)
        ctx.scale = scale  # type: ignore[attr-defined]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return (upstream * ctx.scale).mul_(output > 0), None  # type: ignore[attr-defined]


def _draw(x: Float[Tensor, "*shape"], rate: float) -> tuple[Bool[Tensor, "*shape"], float]:
    """Which elements survive, and what to scale them by."""
    dropped = min(round(rate * STEPS), STEPS - 1)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)
    return numbers >= dropped - STEPS // 2, STEPS / (STEPS - dropped)
