"""Windowed attention, the core of every attention block.

A plain implementation of eight attention blocks writes their weights to memory and reads them back several times. This
one processes a few sequences at a time, so that the weights stay in cache, and computes them again in the backward
pass.

Axes: N sequences, L tokens, D model width, E = 3 D, H heads, K = D / H width of a head.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from midreel.nn.dropout import survival, survivor_scale

# The size of the attention weights of one block of sequences, which should fit into the cache.
BLOCK_BYTES = 2 << 20


def attend(
    joint: Float[Tensor, "N L E"],
    num_heads: int,
    window: Float[Tensor, "L L"] | None = None,
    key_bias: Float[Tensor, "N L"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "N L D"]:
    """Return softmax(q k' / √K · window + key_bias) v of each head, with the heads concatenated.

    Args:
        joint: queries q, keys k and values v, side by side on the last axis.
        num_heads: the number of heads.
        window: a factor for the logit of each query and key. It gets no gradient.
        key_bias: a summand for the logits of each key. It gets no gradient.
        dropout: the dropout rate of the attention weights.
    """
    scale = (joint.shape[-1] // (3 * num_heads)) ** -0.5
    factor = joint.new_full((1, 1), scale) if window is None else window * scale
    if dropout or (torch.is_grad_enabled() and joint.requires_grad):
        return _Attend.apply(joint, num_heads, factor, key_bias, dropout)
    query, key, value = _split_heads(joint, num_heads)
    return _join_heads(_weights(query, key, factor, key_bias) @ value)


class _Attend(torch.autograd.Function):
    """Attention block by block. The backward pass computes the weights again and needs only one bit of dropout each."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, joint: Tensor, num_heads: int, factor: Tensor, key_bias: Tensor | None, dropout: float
    ) -> Tensor:
        num, length, width = joint.shape
        output = joint.new_empty(num, length, width // 3)
        survived = joint.new_empty((num, num_heads, length, length) if dropout else 0, dtype=torch.bool)
        for part in _blocks(joint, num_heads):
            query, key, value = _split_heads(joint[part], num_heads)
            weights = _weights(query, key, factor, None if key_bias is None else key_bias[part])
            if dropout:
                factors = survival(weights, dropout)
                torch.gt(factors, 0, out=survived[part])
                weights *= factors
            output[part] = _join_heads(weights @ value)
        ctx.save_for_backward(joint, factor, key_bias, survived)  # type: ignore[arg-type]
        ctx.num_heads, ctx.dropout = num_heads, dropout  # type: ignore[attr-defined]
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        joint, factor, key_bias, survived = ctx.saved_tensors  # type: ignore[attr-defined]
        num_heads, dropout = ctx.num_heads, ctx.dropout  # type: ignore[attr-defined]
        gradient = torch.empty_like(joint)
        for part in _blocks(joint, num_heads):
            query, key, value = _split_heads(joint[part], num_heads)
            weights = _weights(query, key, factor, None if key_bias is None else key_bias[part])
            by_output = upstream[part].unflatten(-1, (num_heads, -1)).transpose(1, 2).contiguous()
            by_weight = by_output @ value.mT
            used = weights
            if dropout:
                factors = survived[part].to(joint.dtype).mul_(survivor_scale(dropout))
                used = weights * factors
                by_weight *= factors
            by_value = used.mT @ by_output
            # The derivative of the softmax: dL/dlogit = w (dL/dw - Σ w dL/dw).
            by_weight *= weights
            by_logit = torch.addcmul(by_weight, weights, by_weight.sum(-1, keepdim=True), value=-1).mul_(factor)
            by_part = torch.stack((by_logit @ key, by_logit.mT @ query, by_value))
            gradient[part] = by_part.permute(1, 3, 0, 2, 4).flatten(2)
        return gradient, None, None, None, None


def _weights(
    query: Float[Tensor, "N H L K"],
    key: Float[Tensor, "N H L K"],
    factor: Float[Tensor, "..."],
    key_bias: Float[Tensor, "N L"] | None,
) -> Float[Tensor, "N H L L"]:
    logits = (query @ key.mT).mul_(factor)
    if key_bias is not None:
        logits += key_bias[:, None, None, :]
    return logits.softmax(-1)


def _blocks(joint: Float[Tensor, "N L E"], num_heads: int) -> list[slice]:
    """Return slices of sequences whose attention weights fit into BLOCK_BYTES, at least one sequence each."""
    num, length, _ = joint.shape
    size = max(1, BLOCK_BYTES // (num_heads * length * length * joint.element_size()))
    return [slice(start, start + size) for start in range(0, num, size)]


def _split_heads(joint: Float[Tensor, "N L E"], num_heads: int) -> Float[Tensor, "3 N H L K"]:
    return joint.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).contiguous()


def _join_heads(heads: Float[Tensor, "N H L K"]) -> Float[Tensor, "N L D"]:
    return heads.transpose(1, 2).flatten(2)
