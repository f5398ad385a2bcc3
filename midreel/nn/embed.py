"""From frozen features to the model's width."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from midreel.nn.dropout import Dropout


class InputProjection(nn.Module):
    """LayerNorm, dropout, a linear map to the model's width, ReLU."""

    def __init__(self, *, input_width: int, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(input_width)
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(input_width, width)

    def forward(self, features: Float[Tensor, "N L C"]) -> Float[Tensor, "N L D"]:
        return self.linear(self.dropout(self.norm(features))).relu()


class PositionEncoding(nn.Module):
    """Adds a learned vector per position, then LayerNorm and dropout. Shorter sequences use the first positions."""

    def __init__(self, *, length: int, width: int, dropout: float) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Float[Tensor, "N L D"]) -> Float[Tensor, "N L D"]:
        return self.dropout(self.norm(tokens + self.table.weight[: tokens.shape[1]]))


def unit_rows(features: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows C"]:
    """Rows of length one, x / (|x| + 1e-5): a row of zeros stays zero. Every input of the model passes through this."""
    return features / (torch.linalg.vector_norm(features, dim=-1, keepdim=True) + 1e-5)


def init_weights(module: nn.Module) -> None:
    """Linear and embedding weights from N(0, 0.02), biases 0; the LayerNorms keep 1 and 0. For `Module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
