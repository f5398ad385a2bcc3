"""BertAdam and its schedule, as the released PRVR code bases train.

torch's AdamW is not the same: here no bias is corrected, every tensor's gradient is clipped on its own, and the step
size follows a warm-up and a straight line to zero.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from midreel.errors import BadSetting


def warmup_linear(progress: float, warmup: float) -> float:
    """The share of the peak learning rate after a share `progress` of all steps: up until `warmup`, then down to 0.

    >>> [round(warmup_linear(p, 0.1), 3) for p in (0.0, 0.05, 0.1, 0.55, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return max((1 - progress) / (1 - warmup), 0.0)


class BertAdam(Optimizer):
    """θ ← θ - lr (m / (√v + ε) + wd θ), with m and v the running means of the clipped gradient and of its square."""

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        total_steps: int,
        warmup: float = 0.01,
        weight_decay: float = 0.01,
        max_norm: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        if lr <= 0 or total_steps < 1 or not 0 < warmup < 1:
            raise BadSetting(
                f"lr is {lr}, total_steps {total_steps} and warmup {warmup}; "
                f"expected lr above 0, at least one step and a warm-up share between 0 and 1"
            )
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.total_steps, self.warmup = total_steps, warmup
        self.max_norm, self.betas, self.eps = max_norm, betas, eps
        self.num_steps = 0

    @property
    def rate(self) -> float:
        """What the next step's learning rate is multiplied by. The first step has 0."""
        return warmup_linear(self.num_steps / self.total_steps, self.warmup)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        if closure is not None:
            raise BadSetting("BertAdam takes no closure; call backward() before step()")
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
    """Whether weight decay applies to a parameter.

    Biases are spared, and so are the norms of the input projections and position encodings. Those of the attention
    blocks are not: the released code spares norms by a name that these do not have, and the results came from it.
    """
    return not name.endswith(("bias", "project.norm.weight", "position.norm.weight"))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if decays(name)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if not decays(name)], "weight_decay": 0.0},
    ]
