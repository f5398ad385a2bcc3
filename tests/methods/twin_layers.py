"""The layers of the PRVR papers in plain torch, one sequence at a time, from a dictionary of weights. No midreel."""

import math
from itertools import pairwise

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def part(weights: Weights, prefix: str) -> Weights:
    """Return the weights of a module, by their names in it."""
    return {name.removeprefix(f"{prefix}."): each for name, each in weights.items() if name.startswith(f"{prefix}.")}


def unit(rows: Tensor) -> Tensor:
    return rows / (rows.square().sum(-1, keepdim=True).sqrt() + 1e-5)


def cosine(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum() / (first.square().sum().sqrt() * second.square().sum().sqrt())


def linear(rows: Tensor, weights: Weights) -> Tensor:
    out = rows @ weights["weight"].T
    return out + weights["bias"] if "bias" in weights else out


def layer_norm(rows: Tensor, weights: Weights) -> Tensor:
    centred = rows - rows.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * weights["weight"] + weights["bias"]


def project(rows: Tensor, weights: Weights) -> Tensor:
    return linear(layer_norm(rows, part(weights, "norm")), part(weights, "linear")).clamp_min(0)


def attention(asking: Tensor, tokens: Tensor, weights: Weights, heads: int) -> tuple[Tensor, Tensor]:
    """Attention with an output projection, a residual and LayerNorm: the new rows, and the mean weights."""
    query, key, value = (
        linear(rows, part(weights, name)) for rows, name in ((asking, "query"), (tokens, "key"), (tokens, "value"))
    )
    size = query.shape[1] // heads
    parts, maps = [], []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        shares = (query[:, own] @ key[:, own].T / math.sqrt(size)).softmax(-1)
        parts.append(shares @ value[:, own])
        maps.append(shares)
    output = linear(torch.cat(parts, 1), part(weights, "output"))
    return layer_norm(asking + output, part(weights, "norm")), torch.stack(maps).mean(0)


def sequence(rows: Tensor, weights: Weights, heads: int) -> Tensor:
    """Projection, positions and one attention block, for rows of length one without padding."""
    placed = project(rows, part(weights, "project")) + weights["position.table.weight"][: len(rows)]
    encoded = layer_norm(placed, part(weights, "position.norm"))
    return attention(encoded, encoded, part(weights, "block"), heads)[0]


def query(words: Tensor, weights: Weights, heads: int) -> Tensor:
    """The pooled vector of one query without padding."""
    encoded = sequence(unit(words), weights, heads)
    shares = (encoded @ weights["pool.score.weight"][0]).softmax(0)
    return shares @ encoded


def averaged(frames: Tensor, length: int) -> Tensor:
    """AVG of the released loaders."""
    total, rows = len(frames), []
    bounds = [min(round(k / length * total), total - 1) for k in range(length + 1)]
    for low, high in pairwise(bounds):
        rows.append(frames[low:high].mean(0) if low < high else frames[low])
    return torch.stack(rows)


def capped(frames: Tensor, length: int) -> Tensor:
    """CAP of the released loaders, without padding."""
    return frames if len(frames) <= length else averaged(frames, length)
