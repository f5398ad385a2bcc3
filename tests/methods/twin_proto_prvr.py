"""The reconstruction of ProtoPRVR in plain loops, from a dictionary of weights. No midreel.

There is no released code to compare with, so this twin follows the same specification by other means: one video and
one query at a time, without padding.
"""

import math

import torch
from torch import Tensor

from tests.methods import twin_layers as layers
from tests.methods.twin_layers import Weights


def windows(num: int) -> list[tuple[int, int]]:
    return [(start, start + length) for length in range(1, num + 1) for start in range(num - length + 1)]


def contexts(video: Tensor, weights: Weights, heads: int, num_frames: int, num_clips: int) -> Tensor:
    """The means of all windows of clips, then the frames."""
    clips = layers.sequence(layers.unit(layers.averaged(video, num_clips)), layers.part(weights, "clip"), heads)
    means = [clips[start:end].mean(0) for start, end in windows(num_clips)]
    frames = layers.sequence(layers.unit(layers.capped(video, num_frames)), layers.part(weights, "frame"), heads)
    return torch.cat((torch.stack(means), frames))


def prototypes(tokens: Tensor, weights: Weights, heads: int) -> tuple[Tensor, Tensor]:
    """The prototypes of one video, and their attention in the last layer."""
    found = weights["generator.prototypes"]
    number, attended = 0, tokens
    while f"generator.layers.{number}.query.weight" in weights:
        found, attended = layers.attention(found, tokens, layers.part(weights, f"generator.layers.{number}"), heads)
        number += 1
    return found, attended


def retrieved(query: Tensor, found: Tensor) -> int:
    values = [layers.cosine(query, each).item() for each in found]
    return values.index(max(values))


def word_loss(
    queries: list[Tensor],
    masked: list[list[int]],
    chosen: list[Tensor],
    weights: Weights,
    heads: int,
    temperature: float,
) -> Tensor:
    """The cross-modal loss, for the words that `masked` lists and the retrieved prototype of each query."""
    rebuilt, targets = [], []
    for words, positions, prototype in zip(queries, masked, chosen, strict=True):
        hidden = torch.stack(
            [weights["masked_word"] if position in positions else word for position, word in enumerate(words)]
        )
        encoded = layers.sequence(layers.unit(hidden), layers.part(weights, "query"), heads)
        own = layers.part(weights, "word_decoder")
        read = layers.linear(encoded, layers.part(own, "query")) + layers.linear(prototype, layers.part(own, "value"))
        read = layers.layer_norm(read, layers.part(own, "norm"))
        decoded, _ = layers.attention(read, read, layers.part(own, "block"), heads)
        known = layers.project(layers.unit(words), layers.part(weights, "query.project")).detach()
        rebuilt += [decoded[position] for position in positions]
        targets += [known[position] for position in positions]
    losses = []
    for number, word in enumerate(rebuilt):
        powers = [(layers.cosine(word, target) / temperature).exp() for target in targets]
        losses.append(-(powers[number] / torch.stack(powers).sum()).log())
    return torch.stack(losses).mean()


def frame_loss(videos: list[Tensor], found: list[Tensor], weights: Weights, num_frames: int) -> Tensor:
    """The uni-modal loss."""
    own, losses = layers.part(weights, "frame_decoder"), []
    for video, of_video in zip(videos, found, strict=True):
        frames = layers.unit(layers.capped(video, num_frames))
        known = layers.project(frames, layers.part(weights, "frame.project")).detach()
        errors = []
        for number, frame in enumerate(known):
            mixed = (own["mix.weight"][number] @ of_video + own["mix.bias"][number]).clamp_min(0)
            errors.append((frame - layers.linear(mixed, layers.part(own, "output"))).square().mean())
        losses.append(torch.stack(errors).mean())
    return torch.stack(losses).mean()


def mixing_loss(
    queries: list[Tensor],
    tokens: list[Tensor],
    partner: list[int],
    video_of_query: list[int],
    weights: Weights,
    heads: int,
) -> Tensor:
    """The guidance by mixed videos."""
    losses = []
    for query, video in zip(queries, video_of_query, strict=True):
        found, attended = prototypes(torch.cat((tokens[video], tokens[partner[video]])), weights, heads)
        mass = attended[retrieved(query, found), : len(tokens[video])].sum()
        losses.append(-(mass + 1e-6).log())
    return torch.stack(losses).mean()


def span(attended: Tensor, number: int, spans: list[tuple[float, float]]) -> tuple[float, float]:
    """Where a prototype attends more than the mean of all: mean ± √3 deviations of its excess."""
    average = attended.mean(0)
    excess = [max((own - mean).item(), 0.0) for own, mean in zip(attended[number], average, strict=True)]
    total = sum(excess)
    first = sum(e * (start + end) / 2 for e, (start, end) in zip(excess, spans, strict=True)) / total
    # ∫ t² of an even density from start to end is (start² + start end + end²) / 3.
    second = sum(e * (a * a + a * b + b * b) / 3 for e, (a, b) in zip(excess, spans, strict=True)) / total
    reach = math.sqrt(3 * (second - first * first))
    return max(first - reach, 0.0), min(first + reach, 1.0)


def over_time(found: Tensor, attended: Tensor, spans: list[tuple[float, float]], cells: int) -> Tensor:
    """The mean prototype of each part of a video, weighted by the excess of attention that overlaps it."""
    rows = []
    for cell in range(cells):
        low, high = cell / cells, (cell + 1) / cells
        shares = torch.tensor(
            [max(min(end, high) - max(start, low), 0) / (end - start) for start, end in spans], dtype=found.dtype
        )
        weights = ((attended - attended.mean(0)).clamp_min(0) * shares).sum(1).detach()
        rows.append((weights[:, None] * found).sum(0) / weights.sum())
    return torch.stack(rows)
