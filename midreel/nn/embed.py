"""Input layers: from frozen features to the model width.

Axes: N sequences, L tokens, C feature width, D model width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from midreel.nn.dropout import Dropout


class InputProjection(nn.Module):
    """LayerNorm, dropout, a linear map to the model width, and ReLU.

    Args:
        input_width: the width of the features.
        width: the model width.
        dropout: the dropout rate.
    """

    def __init__(self, *, input_width: int, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(input_width)
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(input_width, width)

    def forward(self, features: Float[Tensor, "N L C"]) -> Float[Tensor, "N L D"]:
        """Return the features at the model width."""
        return self.linear(self.dropout(self.norm(features))).relu()


class PositionEncoding(nn.Module):
    """A learned vector for each position, added to the tokens, then LayerNorm and dropout.

    Shorter sequences use the first positions.

    Args:
        length: the number of learned positions, the maximum length of a sequence.
        width: the model width.
        dropout: the dropout rate.
    """

    def __init__(self, *, length: int, width: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Float[Tensor, "N L D"]) -> Float[Tensor, "N L D"]:
        """Return the tokens with their positions."""
        return self.dropout(self.norm(tokens + self.table.weight[: tokens.shape[1]]))


def unit_rows(features: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows C"]:
    """Scale each row to length one: x / (|x| + 1e-5). A row of zeros stays zero.

    The released code scales every input of the network with this formula.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return features / (torch.linalg.vector_norm(features, dim=-1, keepdim=True) + 1e-5)


def init_weights(module: nn.Module) -> None:
    """Draw linear and embedding weights from N(0, 0.02²) and set biases to 0. Pass it to `Module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
