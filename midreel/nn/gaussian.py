"""The Gaussian blocks of GMMFormer and GMMFormer v2: attention at several time scales.

Axes: B videos, L time steps, D model width.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from midreel.nn.attention import AttentionBlock, ProjectedAttention, TokenAttention
from midreel.nn.dropout import ReluDropout


def gaussian_window(
    length: int, width: float | None, real: Int[Tensor, ""] | None = None
) -> Float[Tensor, "{length} {length}"]:
    """Return a factor for the attention logit of query i and key j, which falls with |i - j|.

    The factor is exp(-(j/(L-1) - i/L)² / 2σ²), divided by the maximum of row i, where σ = width / 9. The factor 9 and
    the centres i/L, which leave the diagonal by up to one step, are those of the released code.

    Args:
        length: the number of time steps.
        width: the width of the Gaussian on the paper's scale. None: all factors are 1.
        real: L, the number of time steps that are not padding, as a tensor, so that an exported graph computes it. The
            factor of a padded key is 0. Default: `length`.
    """
    steps = torch.arange(length, device=None if real is None else real.device)
    if width is None:
        return torch.ones(length, length, device=steps.device)
    sigma = max(width, 0.01) / 9
    position = steps / (max(length - 1, 1) if real is None else (real - 1).clamp_min(1))
    centre = steps[:, None] / (length if real is None else real)
    exponent = -((position - centre) ** 2) / (2 * sigma**2)
    if real is not None:
        exponent = exponent.masked_fill(steps >= real, -math.inf)
    # Subtracting the largest exponent of a row divides the row by its maximum, without underflow.
    return (exponent - exponent.amax(1, keepdim=True)).exp()


class GaussianMean(nn.Module):
    """Parallel attention blocks, one for each Gaussian width, and the mean of their outputs: the block of GMMFormer.

    Args:
        width: the model width.
        num_heads: the number of attention heads.
        num_windows: the number of blocks.
        dropout: the rate of all dropouts.
    """

    def __init__(self, *, width: int, num_heads: int, num_windows: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            ProjectedAttention(width=width, num_heads=num_heads, dropout=dropout) for _ in range(num_windows)
        )

    def forward(
        self,
        tokens: Float[Tensor, "B L D"],
        windows: Sequence[Float[Tensor, "L L"] | None],
        key_bias: Float[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Return the mean of the outputs of all blocks.

        Args:
            tokens: the sequence of each video.
            windows: the window of each block, None for no window.
            key_bias: a summand for the logits of each key, after the window.
        """
        views = [block(tokens, window, key_bias) for block, window in zip(self.blocks, windows, strict=True)]
        return torch.stack(views).mean(0)


class GaussianMixture(nn.Module):
    """Parallel attention blocks, one for each Gaussian width, mixed by weights that depend on video and time step.

    A learned token summarises the output of each block by attention. The summaries give a logit for each time step and
    block, and the softmax over the blocks gives the weights. Both branches of a model share the token, so it is an
    argument of `forward`.

    Args:
        width: the model width.
        num_heads: the number of attention heads.
        length: the number of time steps.
        gaussian_widths: the width of each block's window, None for no window.
        temperature: the softmax temperature of the weights.
        dropout: the rate of all dropouts.
        precise: compute in double precision in evaluation. A low temperature amplifies the rounding errors of the
            logits, so a model that must agree with another program needs this.
    """

    windows: Tensor

    def __init__(
        self,
        *,
        width: int,
        num_heads: int,
        length: int,
        gaussian_widths: Sequence[float | None],
        temperature: float,
        dropout: float,
        precise: bool = False,
    ) -> None:
        super().__init__()
        self.temperature = temperature
        self.precise = precise
        self.register_buffer(
            "windows", torch.stack([gaussian_window(length, w) for w in gaussian_widths]), persistent=False
        )
        self.blocks = nn.ModuleList(
            AttentionBlock(width=width, num_heads=num_heads, hidden_width=4 * width, dropout=dropout)
            for _ in gaussian_widths
        )
        self.summary = TokenAttention(width=width, num_heads=num_heads, hidden_width=width, dropout=dropout)
        self.mix_hidden = nn.Linear(width, width)
        self.mix_dropout = ReluDropout(dropout)
        self.mix_output = nn.Linear(width, length)

    def forward(
        self,
        tokens: Float[Tensor, "B L D"],
        token: Float[Tensor, " D"],
        key_bias: Float[Tensor, "B L"] | None = None,
        summary_bias: Float[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Return the weighted sum of the outputs of all blocks.

        Args:
            tokens: the sequence of each video.
            token: the learned token.
            key_bias: a summand for the logits of each key in the blocks.
            summary_bias: a summand for the logits of each key in the summaries.
        """
        if self.precise and tokens.dtype == torch.float32 and not (self.training or torch.compiler.is_compiling()):
            state = {name: value.double() for name, value in (*self.named_parameters(), *self.named_buffers())}
            inputs = [None if each is None else each.double() for each in (tokens, token, key_bias, summary_bias)]
            return functional_call(self, state, tuple(inputs)).float()
        views = [block(tokens, window, key_bias) for block, window in zip(self.blocks, self.windows, strict=True)]
        summaries = torch.stack([self.summary(token, view, summary_bias) for view in views], 1)
        logits = self.mix_output(self.mix_dropout(self.mix_hidden(summaries)))
        weights = (logits / self.temperature).softmax(1)
        mixed = torch.zeros_like(tokens)
        for view, weight in zip(views, weights.unbind(1), strict=True):
            mixed = torch.addcmul(mixed, view, weight[..., None])
        return mixed
