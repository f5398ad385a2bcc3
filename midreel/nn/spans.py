"""The video encoder of AMDNet: it predicts a few soft spans of a video, and each attention head looks at one of them.

Axes: B videos, L clips, K spans (one for each head), C feature width, D model width.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from midreel.nn.attention import ProjectedAttention
from midreel.nn.embed import InputProjection, PositionEncoding

MIN_WIDTH = 0.01  # of a span, as a share of the video
# The released code states widths on a scale on which a window of width 1 covers the whole video.
WIDTH_SCALE = 9


class SpanEncoding(NamedTuple):
    """A batch of videos after `SpanEncoder`.

    Attributes:
        tokens: the encoded clips, which a search compares with a query.
        video: a vector for the whole video.
        masks: how much each clip belongs to each span, at most 1.
        moments: the sum of the clips of each span, weighted by the mask.
    """

    tokens: Float[Tensor, "B L D"]
    video: Float[Tensor, "B D"]
    masks: Float[Tensor, "B K L"]
    moments: Float[Tensor, "B K D"]


class SpanEncoder(nn.Module):
    """Projection, positions, a plain attention block, and one in which each head attends within its own span.

    Args:
        input_width: the width of the features.
        width: the model width.
        num_heads: the number of attention heads, and of spans.
        num_positions: the number of learned positions, at least the number of clips.
        input_dropout: the dropout rate of projection and positions.
        dropout: the dropout rate of the attention blocks.
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
        self.video_norm = nn.LayerNorm(width)
        self.video_output = nn.Linear(width, width)
        self.spans = nn.Linear(width, 2 * num_heads)
        self.attention0 = ProjectedAttention(width=width, num_heads=num_heads, dropout=dropout)
        self.attention1 = ProjectedAttention(width=width, num_heads=num_heads, dropout=dropout)

    def forward(self, features: Float[Tensor, "B L C"]) -> SpanEncoding:
        """Return the encoded videos."""
        clips = self.position(self.project(features))
        video = self.video_output(self.video_norm(clips.mean(1)))
        masks = span_masks(self.spans(video).sigmoid().unflatten(1, (-1, 2)), clips.shape[1])
        first = self.attention0(clips)
        second = self.attention1(first, key_factor=masks)
        return SpanEncoding(tokens=(first + second) / 2, video=video, masks=masks, moments=masks @ clips)


def span_masks(spans: Float[Tensor, "B K 2"], length: int) -> Float[Tensor, "B K {length}"]:
    """Return a Gaussian for each span, on `length` points from 0 to 1. Its largest value is 1.

    M_k(j) = exp(-(x_j - μ_k)² / 2 σ_k²) / max_j (…), with σ_k = max(w_k, 0.01) / 9.

    Args:
        spans: the centre μ and the width w of each span, from 0 to 1.
        length: the number of points x.

    >>> span_masks(torch.tensor([[[0.5, 9.0]]]), 3)  # σ = 1
    tensor([[[0.8825, 1.0000, 0.8825]]])
    """
    centre, width = spans.unbind(-1)
    points = torch.linspace(0, 1, length, device=spans.device, dtype=spans.dtype)
    deviation = width[..., None].clamp_min(MIN_WIDTH) / WIDTH_SCALE
    exponent = -(points - centre[..., None]).square() / (2 * deviation.square())
    # The largest exponent is subtracted before exp, not divided after it: between two points a narrow Gaussian
    # underflows to 0 everywhere, and 0 / 0 is NaN.
    return (exponent - exponent.max(-1, keepdim=True).values).exp()
