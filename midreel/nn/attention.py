"""Attention blocks: windowed self-attention, one learned token, pooling.

Axes: N sequences, L tokens, D model width, H heads.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from midreel.errors import BadSetting
from midreel.nn.dropout import Dropout, ReluDropout
from midreel.nn.windowed_attention import attend

# The logit of a padded key. Its weight underflows to exactly zero in the softmax.
PADDED_LOGIT = -1e4


class MultiHeadAttention(nn.Module):
    """Multi-head self-attention. The heads are concatenated without an output projection.

    Args:
        width: the model width, a multiple of `num_heads`.
        num_heads: the number of heads.
        dropout: the dropout rate of the attention weights.

    Raises:
        BadSetting: `width` is not a multiple of `num_heads`, or the dropout rate is out of range.
    """

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if width % num_heads:
            raise BadSetting(f"width is {width}, expected a multiple of num_heads = {num_heads}. Change one of them.")
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.attention_dropout = Dropout(dropout)

    def attend(
        self,
        tokens: Float[Tensor, "N L D"],
        window: Float[Tensor, "L L"] | None = None,
        key_bias: Float[Tensor, "N L"] | None = None,
        key_factor: Float[Tensor, "N H L"] | None = None,
    ) -> Float[Tensor, "N L D"]:
        """Return the weighted means of the values.

        Args:
            tokens: the sequences.
            window: a factor for the logit of each query and key.
            key_bias: a summand for the logits of each key, after the window.
            key_factor: a factor for the logits of each key, for each head. Unlike the window it gets a gradient.
        """
        weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        bias = torch.cat([self.query.bias, self.key.bias, self.value.bias])
        joint = F.linear(tokens, weight, bias)
        if key_factor is not None:
            # A factor of a logit <query, key> is a factor of the key.
            query, key, value = joint.chunk(3, -1)
            key = key.unflatten(-1, (self.num_heads, -1)) * key_factor.mT[..., None]
            joint = torch.cat((query, key.flatten(-2), value), -1)
        return attend(joint, self.num_heads, window, key_bias, self.attention_dropout.active_rate)


class ProjectedAttention(MultiHeadAttention):
    """Multi-head self-attention, a linear output projection, dropout, a residual and LayerNorm.

    This is the block of MS-SL, GMMFormer, DL-DKD and AMDNet. It has no feed-forward network.

    Args:
        width: the model width, a multiple of `num_heads`.
        num_heads: the number of heads.
        dropout: the rate of both dropouts, on attention weights and after the projection.

    Raises:
        BadSetting: `width` is not a multiple of `num_heads`, or the dropout rate is out of range.
    """

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__(width=width, num_heads=num_heads, dropout=dropout)
        self.output = nn.Linear(width, width)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        tokens: Float[Tensor, "N L D"],
        window: Float[Tensor, "L L"] | None = None,
        key_bias: Float[Tensor, "N L"] | None = None,
        key_factor: Float[Tensor, "N H L"] | None = None,
    ) -> Float[Tensor, "N L D"]:
        """Return the encoded tokens.

        Args:
            tokens: the sequences.
            window: a factor for the logit of each query and key.
            key_bias: a summand for the logits of each key, after the window.
            key_factor: a factor for the logits of each key, for each head.
        """
        return self.add(tokens, self.attend(tokens, window, key_bias, key_factor))

    def add(self, residual: Float[Tensor, "N L D"], attended: Float[Tensor, "N L D"]) -> Float[Tensor, "N L D"]:
        """Return the output of the block for its input (`residual`) and its attention output."""
        return self.norm(residual + self.dropout(self.output(attended)))


class AttentionBlock(MultiHeadAttention):
    """Multi-head self-attention and a feed-forward network, each followed by dropout, a residual and LayerNorm.

    The heads are concatenated without an output projection.

    Args:
        width: the model width, a multiple of `num_heads`.
        num_heads: the number of heads.
        hidden_width: the width inside the feed-forward network.
        dropout: the rate of all dropouts, on attention weights too.

    Raises:
        BadSetting: `width` is not a multiple of `num_heads`, or the dropout rate is out of range.
    """

    def __init__(self, *, width: int, num_heads: int, hidden_width: int, dropout: float) -> None:
        super().__init__(width=width, num_heads=num_heads, dropout=dropout)
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
        """Return the encoded tokens.

        Args:
            tokens: the sequences.
            window: a factor for the logit of each query and key.
            key_bias: a summand for the logits of each key, after the window.
        """
        return self.feed_forward(tokens, self.attend(tokens, window, key_bias))

    def feed_forward(
        self, residual: Float[Tensor, "*shape D"], attended: Float[Tensor, "*shape D"]
    ) -> Float[Tensor, "*shape D"]:
        """Return the output of the block for its input (`residual`) and its attention output: both residual steps."""
        middle = self.norm1(residual + self.dropout(attended))
        # ReluDropout overwrites its input. With more than two axes the output of a linear layer is a view, and
        # overwriting it would cost a copy.
        rows = middle.flatten(0, -2)
        rows = self.dropout(self.contract(self.hidden_dropout(self.expand(rows))))
        return self.norm2(middle + rows.view_as(middle))


class TokenAttention(AttentionBlock):
    """An attention block with one learned token as the only query, applied to each sequence separately.

    With a single query the key and value projections of whole sequences are not needed: <W_k x, q> = <x, W_k' q>, and
    the weighted sum of W_v x is W_v times the weighted sum. Two thin matrix products replace two wide ones.
    """

    def forward(  # type: ignore[override]
        self,
        token: Float[Tensor, " D"],
        sequences: Float[Tensor, "N L D"],
        key_bias: Float[Tensor, "N L"] | None = None,
    ) -> Float[Tensor, "N D"]:
        """Return one vector for each sequence.

        Args:
            token: the learned token.
            sequences: the keys and values.
            key_bias: a summand for the logits of each key. Default: none.
        """
        per_head = (self.num_heads, -1, token.shape[0])
        query = self.query(token).view(self.num_heads, -1)
        asked = torch.einsum("hk,hkd->hd", query, self.key.weight.view(per_head))
        # self.key.bias adds the same number to all logits of a head. The softmax ignores it, so it is left out.
        logits = sequences @ asked.T / math.sqrt(query.shape[1])
        if key_bias is not None:
            logits = logits + key_bias[..., None]
        weights = self.attention_dropout(logits.softmax(1))
        attended = torch.einsum("nhd,hkd->nhk", weights.mT @ sequences, self.value.weight.view(per_head))
        # With dropout the weights of a head do not sum to one, so the bias of the values needs their sum as a factor.
        attended = attended + weights.sum(1)[..., None] * self.value.bias.view(self.num_heads, -1)
        # shape[0], not len(): an exported graph would contain the result of len() as a constant.
        return self.feed_forward(token.expand(sequences.shape[0], -1), attended.flatten(1))


class AttentionPooling(nn.Module):
    """A weighted mean of each sequence, T̂ to T̄ in the MSC paper. The weights are the softmax of a learned score."""

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, tokens: Float[Tensor, "N L D"], mask: Bool[Tensor, "N L"]) -> Float[Tensor, "N D"]:
        """Return one vector for each sequence. `mask` is True for real tokens."""
        weights = self.score(tokens).squeeze(2).masked_fill(~mask, -math.inf).softmax(1)
        return (weights[:, None] @ tokens).squeeze(1)


def padding_bias(mask: Bool[Tensor, "N L"], dtype: torch.dtype) -> Float[Tensor, "N L"]:
    """Return the `key_bias` that hides padded keys. `mask` is True for real keys."""
    return torch.where(mask, 0.0, PADDED_LOGIT).to(dtype)
