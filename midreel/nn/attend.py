"""Windowed attention, the inner part of every attention block.

Written plainly, eight attention branches write their weights to memory and read them back several times. Here the
weights live only in cache, a few sequences at a time, and the backward pass computes them again.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from midreel.nn.dropout import survival, survivor_scale

# Attention weights held at a time.
BLOCK_BYTES = 2 << 20


def attend(
    joint: Float[Tensor, "N L E"],
    num_heads: int,
    window: Float[Tensor, "L L"] | None = None,
    key_bias: Float[Tensor, "N L"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "N L D"]:
    """softmax(q k' / √K · window + key_bias) v per head, on queries, keys and values that lie side by side in `joint`.

    Dropout falls on the attention weights. The window and the bias are constants: they get no gradient.
    """
    scale = (joint.shape[-1] // (3 * num_heads)) ** -0.5
    factor = joint.new_full((1, 1), scale) if window is None else window * scale
    if dropout or (torch.is_grad_enabled() and joint.requires_grad):
        return _Attend.apply(joint, num_heads, factor, key_bias, dropout)
    query, key, value = _split_heads(joint, num_heads)
    return _join_heads(_weights(query, key, factor, key_bias) @ value)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, joint: Tensor, num_heads: int, factor: Tensor, key_bias: Tensor | None, dropout: float
    ) -> Tensor:
        num, length, width = joint.shape
        output = joint.new_empty(num, length, width // 3)
        survived = joint.new_empty((num, num_heads, length, length) if dropout else 0, dtype=torch.bool)
        for part in _parts(joint, num_heads):
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
        for part in _parts(joint, num_heads):
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


def _parts(joint: Float[Tensor, "N L E"], num_heads: int) -> list[slice]:
    num, length, _ = joint.shape
    size = max(1, BLOCK_BYTES // (num_heads * length * length * joint.element_size()))
    return [slice(start, start + size) for start in range(0, num, size)]


def _split_heads(joint: Float[Tensor, "N L E"], num_heads: int) -> Float[Tensor, "3 N H L K"]:
    return joint.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).contiguous()


def _join_heads(heads: Float[Tensor, "N H L K"]) -> Float[Tensor, "N L D"]:
    return heads.transpose(1, 2).flatten(2)
