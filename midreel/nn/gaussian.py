"""The Gaussian mixture block of GMMFormer-v2: attention at several temporal scales, mixed per time step."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from midreel.nn.attention import AttentionBlock, TokenAttention
from midreel.nn.dropout import ReluDropout


def gaussian_window(length: int, width: float | None) -> Float[Tensor, "{length} {length}"]:
    """A factor for the logits of query i and key j that falls off with |i - j|; each row's maximum is 1.

    exp(-(j/(L-1) - i/L)² / 2σ²) with σ = width / 9: the papers state widths on a nine-fold scale, kept so that their
    numbers can be typed in unchanged, and their centres i/L drift off the diagonal by up to a step, kept for parity.
    None is no window at all.
    """
    if width is None:
        return torch.ones(length, length)
    sigma = max(width, 0.01) / 9
    position = torch.arange(length) / max(length - 1, 1)
    centre = torch.arange(length)[:, None] / length
    # Subtracting the row's largest exponent is dividing by its maximum, and cannot underflow.
    exponent = -((position - centre) ** 2) / (2 * sigma**2)
    return (exponent - exponent.amax(1, keepdim=True)).exp()


class GaussianMixture(nn.Module):
    """Parallel attention blocks, one per width, mixed by weights that depend on the video and the time step.

    A learned token, passed in because both branches of a model share it, summarises each block's output; the summaries
    give a logit per time step and block, softened by `temperature`.

    `precise` computes in double precision where nothing is learnt: a low temperature sharpens the rounding of the
    logits along with them. For models that must agree with another program's.
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
        """`key_bias` is added to the logits of the blocks, `summary_bias` to those of the summaries."""
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
