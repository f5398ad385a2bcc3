"""Residuals in the joint space of a backbone: its own vectors plus a learned correction that is zero before training.

Axes: N items, such as frames or queries; C feature width, E width of the joint space, D model width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from midreel.nn.embed import unit_rows


def corrected(vectors: Float[Tensor, "*N E"], residual: Float[Tensor, "*N E"]) -> Float[Tensor, "*N E"]:
    """Return vectors of the joint space, scaled to length one, plus a residual, scaled to length one again."""
    return unit_rows(unit_rows(vectors) + residual)


def zero_linear(input_width: int, width: int) -> nn.Linear:
    """Return a linear layer whose weights and biases are zero."""
    layer = nn.Linear(input_width, width)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Share(nn.Module):
    """The share of a residual that is added: all of it in training, and a number from 0 to 1 afterwards.

    A residual that was learned from few videos fits them too closely. Adding a part of it keeps most of the gain and
    most of what the backbone knows. 0 is the backbone alone. `experiments.runs` chooses the share on the videos that
    the epoch is chosen on. It is saved with the weights.
    """

    value: Float[Tensor, ""]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(1.0))

    def forward(self, residual: Float[Tensor, "*N E"]) -> Float[Tensor, "*N E"]:
        """Return the part of the residual to add."""
        return residual if self.training else self.value * residual


class LowRank(nn.Module):
    """A linear map B A x of low rank with a bias. B and the bias are zero before training.

    Args:
        input_width: the width of x.
        width: the width of the result.
        rank: the rank of the map.
    """

    def __init__(self, *, input_width: int, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(input_width, rank, bias=False)
        self.up = zero_linear(rank, width)

    def forward(self, features: Float[Tensor, "*N C"]) -> Float[Tensor, "*N E"]:
        """Return the map of features that are scaled to length one."""
        return self.up(self.down(unit_rows(features)))
