"""BertAdam, the optimiser of the released PRVR code, and its schedule.

It differs from torch's AdamW: it does not correct the bias of its running means, and it clips the gradient of each
tensor separately. The learning rate rises linearly during a warm-up, then falls to zero, linearly or as a cosine.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from midreel.errors import BadSetting


def warmup_linear(progress: float, warmup: float) -> float:
    """Return the learning rate as a share of its peak: linear up to 1 at `warmup`, then linear down to 0 at 1.

    Args:
        progress: The share of all steps that are done.
        warmup: The share of all steps after which the rate is at its peak.

    >>> [round(warmup_linear(p, 0.1), 3) for p in (0.0, 0.05, 0.1, 0.55, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return max((1 - progress) / (1 - warmup), 0.0)


def warmup_cosine(progress: float, warmup: float) -> float:
    """Return the learning rate as a share of its peak: linear up to 1 at `warmup`, then half a cosine down to 0 at 1.

    Args:
        progress: The share of all steps that are done.
        warmup: The share of all steps after which the rate is at its peak.

    >>> [round(warmup_cosine(p, 0.1), 3) for p in (0.0, 0.05, 0.1, 0.325, 0.55, 1.0)]
    [0.0, 0.5, 1.0, 0.854, 0.5, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1 + math.cos(math.pi * min((progress - warmup) / (1 - warmup), 1.0)))


SCHEDULES = {"warmup_linear": warmup_linear, "warmup_cosine": warmup_cosine}


class BertAdam(Optimizer):
    """Adam without bias correction: θ ← θ - lr (m / (√v + ε) + wd θ).

    m and v are the running means of the clipped gradient and of its square.

    Args:
        params: Parameters, or groups of them as in `parameter_groups`.
        lr: The peak learning rate.
        total_steps: The number of steps of the whole training.
        warmup: The share of the steps in which the rate rises.
        schedule: The name of a schedule in `SCHEDULES`.
        weight_decay: wd, for groups without their own.
        max_norm: The largest norm of the gradient of one tensor.
        betas: The decay rates of m and v.
        eps: ε.

    Raises:
        BadSetting: `lr`, `total_steps` or `warmup` is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        total_steps: int,
        warmup: float = 0.01,
        schedule: str = "warmup_linear",
        weight_decay: float = 0.01,
        max_norm: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        if lr <= 0 or total_steps < 1 or not 0 < warmup < 1:
            raise BadSetting(
                f"lr, total_steps and warmup are {lr}, {total_steps} and {warmup}, "
                f"expected above 0, at least 1, and between 0 and 1. Try 2.5e-4, 1000 and 0.01."
            )
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.total_steps, self.warmup, self.schedule = total_steps, warmup, SCHEDULES[schedule]
        self.max_norm, self.betas, self.eps = max_norm, betas, eps
        self.num_steps = 0

    @property
    def rate(self) -> float:
        """The factor of the next step's learning rate: 0 for the first step."""
        return self.schedule(self.num_steps / self.total_steps, self.warmup)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        if closure is not None:
            raise BadSetting("closure is set, expected None. Call backward() before step().")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"] * self.rate, group["weight_decay"])
        self.num_steps += 1

    def _update(self, parameter: Tensor, lr: float, weight_decay: float) -> None:
        state = self.state[parameter]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        norm = torch.linalg.vector_norm(parameter.grad)
        gradient = parameter.grad * (self.max_norm / (norm + 1e-6)).clamp_max(1)
        mean = state["mean"].mul_(self.betas[0]).add_(gradient, alpha=1 - self.betas[0])
        square = state["square"].mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        update = mean / (square.sqrt() + self.eps)
        if weight_decay:
            update.add_(parameter, alpha=weight_decay)
        parameter.sub_(update, alpha=lr)


def decays(name: str) -> bool:
    """Return whether weight decay applies to a parameter, by its name.

    It applies to all weights except biases and norms that are called `norm`. A norm with another name, such as `norm1`,
    does decay: the released code selects norms by name and misses these.
    """
    return not name.endswith(("bias", ".norm.weight"))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters of a model in two groups: with weight decay, and without."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if decays(name)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if not decays(name)], "weight_decay": 0.0},
    ]
