"""Encoders of queries and of videos.

Axes: B videos, Q queries, L tokens or words, C feature width, D model width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from midreel.nn.attention import AttentionBlock, AttentionPooling, ProjectedAttention, padding_bias
from midreel.nn.embed import InputProjection, PositionEncoding, unit_rows
from midreel.nn.gaussian import GaussianMean, GaussianMixture, gaussian_window

# In the order of the released checkpoints. None is attention without a window.
GAUSSIAN_WIDTHS = (None, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0)


class VideoBranch(nn.Module):
    """The encoder of one branch: projection, positions, Gaussian mixture.

    Args:
        input_width: the width of the features.
        width: the model width.
        num_heads: the number of attention heads.
        length: the number of tokens of a video.
        num_positions: the number of learned positions, at least `length`.
        temperature: the softmax temperature of the mixture.
        input_dropout: the dropout rate of projection and positions.
        dropout: the dropout rate of the mixture.
        precise: an option of `GaussianMixture`.
    """

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
        """Return the encoded tokens.

        Args:
            features: the features of each video.
            token: the learned token of the mixture.
            key_bias: a summand for the attention logits of each key.
            mask: True for real tokens. Padding is hidden from all real tokens, and its vectors are zeros.
        """
        if mask is None:
            return self.mixture(self.position(self.project(features)), token, key_bias)
        features = features.masked_fill(~mask[..., None], 0)
        hidden = padding_bias(mask, features.dtype)
        key_bias = hidden if key_bias is None else key_bias + hidden
        encoded = self.mixture(self.position(self.project(features)), token, key_bias, summary_bias=hidden)
        return encoded.masked_fill(~mask[..., None], 0)


class GaussianEncoder(nn.Module):
    """The encoder of clips of GMMFormer: projection, positions and blocks of Gaussian attention, one after the other.

    Args:
        input_width: the width of the features.
        width: the model width.
        num_heads: the number of attention heads.
        num_positions: the number of learned positions, the maximum length of a sequence.
        gaussian_widths: the width of each window, None for no window. All blocks have the same windows.
        num_blocks: the number of blocks.
        input_dropout: the dropout rate of projection and positions.
        dropout: the dropout rate of the blocks.
    """

    def __init__(
        self,
        *,
        input_width: int,
        width: int,
        num_heads: int,
        num_positions: int,
        gaussian_widths: Sequence[float | None],
        num_blocks: int,
        input_dropout: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.gaussian_widths = tuple(gaussian_widths)
        self.project = InputProjection(input_width=input_width, width=width, dropout=input_dropout)
        self.position = PositionEncoding(length=num_positions, width=width, dropout=input_dropout)
        self.mixtures = nn.ModuleList(
            GaussianMean(width=width, num_heads=num_heads, num_windows=len(self.gaussian_widths), dropout=dropout)
            for _ in range(num_blocks)
        )

    def forward(
        self,
        features: Float[Tensor, "B L C"],
        key_bias: Float[Tensor, "B L"] | None = None,
        real: Int[Tensor, ""] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Return the encoded tokens.

        Args:
            features: the features of each video.
            key_bias: a summand for the attention logits of each key.
            real: the length of the Gaussian windows. Later tokens are padding. Default: L.
        """
        length = torch.tensor(features.shape[1], device=features.device) if real is None else real
        windows = [
            None if width is None else gaussian_window(features.shape[1], width, length).to(features.dtype)
            for width in self.gaussian_widths
        ]
        tokens = self.position(self.project(features))
        for mixture in self.mixtures:
            tokens = mixture(tokens, windows, key_bias)
        return tokens


class PooledGaussianEncoder(GaussianEncoder):
    """The encoder of frames of GMMFormer: a `GaussianEncoder` and attention pooling to one vector for each video.

    The Gaussian windows have the length of the longest video of the batch, as in the released code. So the vector of a
    shorter video depends on that length.

    It has the arguments of `GaussianEncoder`.
    """

    def __init__(self, *, width: int, **settings: Any) -> None:
        super().__init__(width=width, **settings)
        self.pool = AttentionPooling(width=width)

    def forward(  # type: ignore[override]
        self,
        features: Float[Tensor, "B L C"],
        mask: Bool[Tensor, "B L"],
        longest: Int[Tensor, ""] | None = None,
    ) -> Float[Tensor, "B D"]:
        """Return one vector for each video. Padding is hidden from all real frames.

        Args:
            features: the features of each video.
            mask: True for real frames.
            longest: the length of the longest video, for a part of a batch. Default: of these videos.
        """
        longest = num_steps(mask) if longest is None else longest
        if not torch.compiler.is_compiling():  # an exported graph has one length, and takes the windows' from the mask
            features, mask = features[:, : int(longest)], mask[:, : int(longest)]
        features = features.masked_fill(~mask[..., None], 0)
        return self.pool(super().forward(features, padding_bias(mask, features.dtype), longest), mask)


def num_steps(mask: Bool[Tensor, "B L"]) -> Int[Tensor, ""]:
    """Return the number of frames of the longest video."""
    steps = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask.any(0) * steps).amax(0)


class SequenceEncoder(nn.Module):
    """An encoder of sequences: projection, positions and one attention block without a feed-forward network.

    Args:
        input_width: the width of the features.
        width: the model width.
        num_heads: the number of attention heads.
        num_positions: the number of learned positions, the maximum length of a sequence.
        input_dropout: the dropout rate of projection and positions.
        dropout: the dropout rate of the attention block.
    """

    def __init__(
        self,
        *,
        input_width: int,
        width: int,
        num_heads: int,
        num_positions: int,
        input_dropout: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.project = InputProjection(input_width=input_width, width=width, dropout=input_dropout)
        self.position = PositionEncoding(length=num_positions, width=width, dropout=input_dropout)
        self.block = ProjectedAttention(width=width, num_heads=num_heads, dropout=dropout)

    def forward(
        self,
        features: Float[Tensor, "N L C"],
        mask: Bool[Tensor, "N L"] | None = None,
        project: InputProjection | None = None,
    ) -> Float[Tensor, "N L D"]:
        """Return the encoded tokens.

        Args:
            features: the sequences.
            mask: True for real tokens. Padding is hidden from all real tokens. Default: all are real.
            project: the projection of another encoder, for encoders that share one. Default: its own.
        """
        project = project or self.project
        features = features.to(project.linear.weight.dtype)
        if mask is None:
            return self.block(self.position(project(features)))
        # Padding may contain NaN, which survives a product with 0.
        encoded = self.position(project(features.masked_fill(~mask[..., None], 0)))
        return self.block(encoded, key_bias=padding_bias(mask, encoded.dtype))


class PooledQueryEncoder(SequenceEncoder):
    """The encoder of queries of MS-SL, GMMFormer and DL-DKD: a `SequenceEncoder` and attention pooling.

    It has the arguments of `SequenceEncoder`.
    """

    def __init__(self, *, width: int, **settings: Any) -> None:
        super().__init__(width=width, **settings)
        self.pool = AttentionPooling(width=width)

    def forward(  # type: ignore[override]
        self, words: Float[Tensor, "Q L C"], mask: Bool[Tensor, "Q L"], project: InputProjection | None = None
    ) -> Float[Tensor, "Q D"]:
        """Return one vector for each query. Each word is scaled to length one.

        Args:
            words: the words of each query.
            mask: True for real words.
            project: the projection of another encoder, for encoders that share one. Default: its own.
        """
        return self.pool(super().forward(unit_rows(words.masked_fill(~mask[..., None], 0)), mask, project), mask)


class QueryEncoder(nn.Module):
    """The encoder of queries of GMMFormer v2 and MSC: projection, positions, an attention block, attention pooling.

    Args:
        input_width: the width of the words.
        width: the model width.
        num_heads: the number of attention heads.
        max_words: the largest number of words of a query.
        input_dropout: the dropout rate of projection and positions.
        dropout: the dropout rate of the attention block.
    """

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
        """Return the pooled query T̄ of the MSC paper. `mask` is True for real words."""
        # Padding may contain NaN, which survives a product with 0.
        known = words.to(self.project.linear.weight.dtype).masked_fill(~mask[..., None], 0)
        encoded = self.position(self.project(unit_rows(known)))
        return self.pool(self.block(encoded, key_bias=padding_bias(mask, encoded.dtype)), mask)
