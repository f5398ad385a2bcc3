"""Prototypes of a video, after ProtoPRVR: a generator by cross-attention, and the decoders that train it.

Axes: B videos, Q queries, P prototypes, S tokens of a video, T frames, L words, D model width, G parts of a video, N
sequences.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from midreel.nn.attention import ProjectedAttention, padding_bias
from midreel.nn.dropout import Dropout

LEAST_EXCESS = 1e-6  # below it, prototypes that attend alike differ only by rounding


class CrossAttention(ProjectedAttention):
    """Multi-head attention from one sequence to another, a projection, dropout, a residual and LayerNorm.

    It has the arguments and the weights of `ProjectedAttention`.
    """

    def forward(  # type: ignore[override]
        self, asking: Float[Tensor, "N P D"], tokens: Float[Tensor, "N S D"], key_bias: Float[Tensor, "N S"]
    ) -> tuple[Float[Tensor, "N P D"], Float[Tensor, "N P S"]]:
        """Return the new vectors, and the attention weights as the mean over the heads, before dropout.

        Args:
            asking: the sequence that attends.
            tokens: the sequence that it attends to.
            key_bias: a summand for the logits of each token.
        """
        query, key, value = (
            layer(each).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, each in ((self.query, asking), (self.key, tokens), (self.value, tokens))
        )
        logits = query @ key.mT / math.sqrt(query.shape[-1]) + key_bias[:, None, None]
        weights = logits.softmax(-1)
        attended = self.attention_dropout(weights) @ value
        return self.add(asking, attended.transpose(1, 2).flatten(2)), weights.mean(1)


class PrototypeGenerator(nn.Module):
    """Learned vectors that gather the contexts of a video by cross-attention.

    The prototypes do not attend to each other, so that they stay independent. All videos share the initial ones.

    Args:
        width: the model width.
        num_heads: the number of attention heads.
        num_prototypes: the number of prototypes.
        num_layers: the number of attention layers, each with its own weights.
        deviation: the standard deviation of the initial prototypes. Equal ones would stay equal.
        gain: the standard deviation of the initial weights of the layers, times the root of the width.
        dropout: the dropout rate of the attention layers.
    """

    def __init__(
        self,
        *,
        width: int,
        num_heads: int,
        num_prototypes: int,
        num_layers: int,
        deviation: float,
        gain: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(num_prototypes, width) * deviation)
        self.layers = nn.ModuleList(
            CrossAttention(width=width, num_heads=num_heads, dropout=dropout) for _ in range(num_layers)
        )
        self.gain = gain

    def reset_weights(self) -> None:
        """Draw the initial weights of the layers.

        The usual N(0, 0.02²) gives logits near zero, and then all prototypes attend evenly to everything and hardly
        leave that state.
        """
        for linear in self.layers.modules():
            if isinstance(linear, nn.Linear):
                nn.init.normal_(linear.weight, std=self.gain / math.sqrt(linear.in_features))

    def forward(
        self, tokens: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B P D"], Float[Tensor, "B P S"]]:
        """Return the prototypes of each video, and their attention to its tokens in the last layer.

        Args:
            tokens: the contexts of each video.
            mask: True for real tokens. Padding gets no attention.
        """
        key_bias = padding_bias(mask, tokens.dtype)
        found = self.prototypes.expand(tokens.shape[0], -1, -1)
        for layer in self.layers:
            found, attention = layer(found, tokens, key_bias)
        return found, attention


class WordDecoder(nn.Module):
    """A decoder of masked words that reads one prototype: T̃ = SA(CA(fc_q(T̄); fc_k(p); fc_v(p))).

    The softmax over the single key is one, so fc_k has no effect and is left out, and CA adds fc_v(p) to each word.

    Args:
        width: the model width.
        num_heads: the number of heads of SA.
        dropout: the dropout rate.
    """

    def __init__(self, *, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dropout = Dropout(dropout)
        self.norm = nn.LayerNorm(width)
        self.block = ProjectedAttention(width=width, num_heads=num_heads, dropout=dropout)

    def forward(
        self, words: Float[Tensor, "Q L D"], prototypes: Float[Tensor, "Q D"], mask: Bool[Tensor, "Q L"]
    ) -> Float[Tensor, "Q L D"]:
        """Return the reconstructed words.

        Args:
            words: T̄, the encoded words of each query, some of them masked.
            prototypes: p, the prototype of each query.
            mask: True for real words.
        """
        read = self.norm(self.query(words) + self.dropout(self.value(prototypes))[:, None])
        return self.block(read, key_bias=padding_bias(mask, read.dtype))


class FrameDecoder(nn.Module):
    """A decoder of frames from prototypes: a linear map from prototypes to frames, ReLU, and one of the channels.

    Args:
        num_prototypes: the number of prototypes.
        num_frames: the number of frames.
        width: the model width.
    """

    def __init__(self, *, num_prototypes: int, num_frames: int, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(num_prototypes, num_frames)
        self.output = nn.Linear(width, width)

    def forward(self, prototypes: Float[Tensor, "B P D"]) -> Float[Tensor, "B T D"]:
        """Return the decoded frames of each video."""
        return self.output(self.mix(prototypes.mT).relu().mT)


# ---------------------------------------------------------------- spans


def attended_spans(attention: Float[Tensor, "B P S"], spans: Float[Tensor, "B S 2"]) -> Float[Tensor, "B P 2"]:
    """Return the part of the video that each prototype attends to more than the others.

    The excess of a prototype is a density over time: each token spreads its share evenly over its span. The result is
    the interval whose even density has the same mean and deviation: mean ± √3 deviations, within the video. A prototype
    without excess has its attention itself as the density.

    Args:
        attention: the attention of each prototype to each token. A row sums to one, and padding has 0.
        spans: the start and end of each token, as fractions of the video.
    """
    more = excess(attention)
    density = torch.where(more.sum(-1, keepdim=True) > LEAST_EXCESS, more, attention)
    density = density / density.sum(-1, keepdim=True)
    middle, length = spans.mean(-1)[:, None], (spans[..., 1] - spans[..., 0])[:, None]
    mean = (density * middle).sum(-1, keepdim=True)
    # The variance inside a token is that of an even density, length² / 12.
    variance = (density * ((middle - mean).square() + length.square() / 12)).sum(-1, keepdim=True)
    reach = (3 * variance).sqrt()
    return torch.cat((mean - reach, mean + reach), -1).clamp(0, 1)


def prototypes_over_time(
    prototypes: Float[Tensor, "B P D"],
    attention: Float[Tensor, "B P S"],
    spans: Float[Tensor, "B S 2"],
    num_cells: int,
) -> Float[Tensor, "B G D"]:
    """Return the prototype of each part of the video, for equal parts: a mean, weighted by their excess in that part.

    A token spreads its share evenly over its span, so that a part receives the share that overlaps it. Where no
    prototype has an excess, all weigh the same.

    Args:
        prototypes: the prototypes of each video.
        attention: the attention of each prototype to each token. A row sums to one, and padding has 0.
        spans: the start and end of each token, as fractions of the video.
        num_cells: the number of parts, G.
    """
    edges = torch.arange(num_cells + 1, device=spans.device) / num_cells
    start, end = spans[..., :1], spans[..., 1:]
    overlap = (end.minimum(edges[1:]) - start.maximum(edges[:-1])).relu()
    weights = excess(attention) @ (overlap / (end - start).clamp_min(1e-6)).to(attention.dtype)
    weights = torch.where(weights.sum(1, keepdim=True) > LEAST_EXCESS, weights, 1)
    return (weights / weights.sum(1, keepdim=True)).to(prototypes.dtype).mT @ prototypes


def excess(attention: Float[Tensor, "B P S"]) -> Float[Tensor, "B P S"]:
    """Return how much more a prototype attends to a token than the mean prototype of the video does, at least 0."""
    return (attention - attention.mean(1, keepdim=True)).relu()
