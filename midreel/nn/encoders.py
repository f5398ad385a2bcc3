"""The encoders of GMMFormer-v2, which MSC builds on: one for queries, one for each temporal resolution of a video."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from midreel.nn.attention import AttentionBlock, AttentionPooling, padding_bias
from midreel.nn.embed import InputProjection, PositionEncoding, unit_rows
from midreel.nn.gaussian import GaussianMixture

# In the order in which released checkpoints store them; None is plain attention.
GAUSSIAN_WIDTHS = (None, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0)


class VideoBranch(nn.Module):
    """One temporal resolution: projection, positions, Gaussian mixture."""

    def __init__(
        self,
        *,
        input_width: int,
        width: int,
        num_heads: int,
        length: int,
        num_positions: int,
        temperature: float,
        input_dropout: float,
        dropout: float,
        precise: bool = False,
    ) -> None:
        super().__init__()
        self.project = InputProjection(input_width=input_width, width=width, dropout=input_dropout)
        self.position = PositionEncoding(length=num_positions, width=width, dropout=input_dropout)
        self.mixture = GaussianMixture(
            width=width,
            num_heads=num_heads,
            length=length,
            gaussian_widths=GAUSSIAN_WIDTHS,
            temperature=temperature,
            dropout=dropout,
            precise=precise,
        )

    def forward(
        self,
        features: Float[Tensor, "B L C"],
        token: Float[Tensor, " D"],
        key_bias: Float[Tensor, "B L"] | None = None,
        mask: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Of padding, where `mask` is False, nothing is seen, and its vectors are zeros."""
        if mask is None:
            return self.mixture(self.position(self.project(features)), token, key_bias)
        features = features.masked_fill(~mask[..., None], 0)
        hidden = padding_bias(mask, features.dtype)
        key_bias = hidden if key_bias is None else key_bias + hidden
        encoded = self.mixture(self.position(self.project(features)), token, key_bias, summary_bias=hidden)
        return encoded.masked_fill(~mask[..., None], 0)


class QueryEncoder(nn.Module):
    """Projection, positions, one attention block, attention pooling."""

    def __init__(
        self,
        *,
        input_width: int,
        width: int,
        num_heads: int,
        max_words: int,
        input_dropout: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.project = InputProjection(input_width=input_width, width=width, dropout=input_dropout)
        self.position = PositionEncoding(length=max_words, width=width, dropout=input_dropout)
        self.block = AttentionBlock(width=width, num_heads=num_heads, hidden_width=4 * width, dropout=dropout)
        self.pool = AttentionPooling(width=width)

    def forward(self, words: Float[Tensor, "Q L C"], mask: Bool[Tensor, "Q L"]) -> Float[Tensor, "Q D"]:
        # Whatever lies behind the last word, even nan, must not reach a product.
        known = words.to(self.project.linear.weight.dtype).masked_fill(~mask[..., None], 0)
        encoded = self.position(self.project(unit_rows(known)))
        return self.pool(self.block(encoded, key_bias=padding_bias(mask, encoded.dtype)), mask)
