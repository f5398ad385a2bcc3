"""Proposals: the means of all runs of consecutive tokens.

Axes: B videos, L tokens, P proposals, D model width.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class ProposalPooling(nn.Module):
    """The mean of every run of consecutive tokens: L (L + 1) / 2 proposals, the multi-scale clips of MS-SL.

    Shorter runs come first, and runs of equal length are in the order of time. It has no weights.

    Args:
        length: L, the number of tokens of a video.

    >>> pooling = ProposalPooling(length=3)
    >>> pooling(torch.tensor([[[1.0], [2.0], [6.0]]]))[0, :, 0]
    tensor([1.0000, 2.0000, 6.0000, 1.5000, 4.0000, 3.0000])
    >>> (pooling.spans * 3)[3]
    tensor([0., 2.])
    """

    bounds: Int[Tensor, "P 2"]  # the first token of each proposal, and the one after its last
    members: Bool[Tensor, "P L"]  # the tokens of each proposal

    def __init__(self, *, length: int) -> None:
        super().__init__()
        self.length = length
        bounds, members = runs(length)
        # A model does not store them: they follow from the length. Integers keep their values in every precision.
        self.register_buffer("bounds", bounds, persistent=False)
        self.register_buffer("members", members, persistent=False)

    @property
    def spans(self) -> Float[Tensor, "P 2"]:
        """The start and end of each proposal, as fractions of the video."""
        return self.bounds / self.length

    def forward(self, tokens: Float[Tensor, "B L D"]) -> Float[Tensor, "B P D"]:
        """Return the proposals of each video."""
        return self.members.to(tokens.dtype) @ tokens / self.members.sum(1, keepdim=True)


def runs(length: int) -> tuple[Int[Tensor, "P 2"], Bool[Tensor, "P L"]]:
    """Return all runs of consecutive tokens: the first token and the one after the last, and the tokens of each run.

    >>> bounds, members = runs(2)
    >>> bounds.tolist(), members.tolist()
    ([[0, 1], [1, 2], [0, 2]], [[True, False], [False, True], [True, True]])
    """
    bounds = torch.tensor(
        [(start, start + width) for width in range(1, length + 1) for start in range(length + 1 - width)]
    )
    position = torch.arange(length)
    return bounds, (bounds[:, :1] <= position) & (position < bounds[:, 1:])
