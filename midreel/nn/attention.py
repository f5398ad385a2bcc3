"""Self-attention with a window on its logits, and the block around it."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from midreel.errors import BadSetting
from midreel.nn.attend import attend
from midreel.nn.dropout import Dropout, ReluDropout

# What a padded key is told: after the softmax its weight underflows to exactly zero.
PADDED_LOGIT = -1e4


class AttentionBlock(nn.Module):
    """Multi-head self-attention, then a feed-forward network, each with dropout, a residual and LayerNorm after it.

    The heads are concatenated without an output projection.
    """

    def __init__(self, *, width: int, num_heads: int, hidden_width: int, dropout: float) -> None:
        super().__init__()
        if width % num_heads:
            raise BadSetting(f"width is {width}, expected a multiple of num_heads = {num_heads}; change either")
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.attention_dropout = Dropout(dropout)
        self.norm1 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden_width)
        self.hidden_dropout = ReluDropout(dropout)
        self.contract = nn.Linear(hidden_width, width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        tokens: Float[Tensor, "N L D"],
        window: Float[Tensor, "L L"] | None = None,
        key_bias: Float[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N L D"]:
        """`window` multiplies the logits, `key_bias` is added to those of each key afterwards."""
        joint = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        bias = torch.cat([self.query.bias, self.key.bias, self.value.bias])
        attended = attend(
            F.linear(tokens, joint, bias), self.num_heads, window, key_bias, self.attention_dropout.active_rate
        )
        return self.feed_forward(tokens, attended)

    def feed_forward(
        self, residual: Float[Tensor, "*shape D"], attended: Float[Tensor, "*shape D"]
    ) -> Float[Tensor, "*shape D"]:
        """What follows the attention: both residual steps."""
        middle = self.norm1(residual + self.dropout(attended))
        # Rows, because a linear layer's output on more axes is a view, which ReluDropout could not overwrite cheaply.
        rows = middle.flatten(0, -2)
        rows = self.dropout(self.contract(self.hidden_dropout(self.expand(rows))))
        return self.norm2(middle + rows.view_as(middle))


class TokenAttention(AttentionBlock):
    """The same block where one learned token asks and several sequences answer, each on its own.

    With a single query the key and value projections need not touch the sequences: <W_k x, q> = <x, W_k' q>, and the
    weighted sum of W_v x is W_v of the weighted sum. That leaves two thin products in place of two wide ones.
    """

    def forward(  # type: ignore[override]
        self,
        token: Float[Tensor, " D"],
        sequences: Float[Tensor, "N L D"],
        key_bias: Float[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N D"]:
        per_head = (self.num_heads, -1, token.shape[0])
        query = self.query(token).view(self.num_heads, -1)
        asked = torch.einsum("hk,hkd->hd", query, self.key.weight.view(per_head))
        # The key bias shifts all logits of a head alike, which the softmax does not see.
        logits = sequences @ asked.T / math.sqrt(query.shape[1])
        if key_bias is not None:
            logits = logits + key_bias[..., None]
        weights = self.attention_dropout(logits.softmax(1))
        attended = torch.einsum("nhd,hkd->nhk", weights.mT @ sequences, self.value.weight.view(per_head))
        # With dropout the weights of a head no longer sum to one, and the bias is weighted as the values are.
        attended = attended + weights.sum(1)[..., None] * self.value.bias.view(self.num_heads, -1)
        # Not len(), which is a Python number: an exported graph would have it for a constant.
        return self.feed_forward(token.expand(sequences.shape[0], -1), attended.flatten(1))


class AttentionPooling(nn.Module):
    """One vector per sequence: the mean of its tokens, weighted by the softmax of a learned score."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, tokens: Float[Tensor, "N L D"], mask: Bool[Tensor, "N L"]) -> Float[Tensor, "N D"]:
        weights = self.score(tokens).squeeze(2).masked_fill(~mask, -math.inf).softmax(1)
        return (weights[:, None] @ tokens).squeeze(1)


def padding_bias(mask: Bool[Tensor, "N L"], dtype: torch.dtype) -> Float[Tensor, "N L"]:
    """The `key_bias` that hides padded keys."""
    return torch.where(mask, 0.0, PADDED_LOGIT).to(dtype)
