"""The layers of ProtoPRVR against plain loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.nn.proposals import ProposalPooling
from midreel.nn.prototypes import (
    CrossAttention,
    FrameDecoder,
    PrototypeGenerator,
    WordDecoder,
    attended_spans,
    prototypes_over_time,
)


def linear(layer: torch.nn.Linear, vector: Tensor) -> Tensor:
    return layer.weight @ vector + layer.bias


def normed(layer: torch.nn.LayerNorm, vector: Tensor) -> Tensor:
    centred = vector - vector.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * layer.weight + layer.bias


def slow_cross_attention(
    layer: CrossAttention, asking: Tensor, tokens: Tensor, mask: list[bool]
) -> tuple[Tensor, Tensor]:
    """One video: the new vectors, and the mean attention of the heads."""
    size = asking.shape[1] // layer.num_heads
    new, maps = [], []
    for vector in asking:
        heads, weights = [], torch.zeros(len(tokens), dtype=asking.dtype)
        for head in range(layer.num_heads):
            part = slice(head * size, (head + 1) * size)
            query = linear(layer.query, vector)[part]
            powers = [
                (query @ linear(layer.key, token)[part] / math.sqrt(size)).exp() if real else torch.tensor(0.0)
                for token, real in zip(tokens, mask, strict=True)
            ]
            total = sum(powers)
            shares = [power / total for power in powers]
            heads.append(
                sum(share * linear(layer.value, token)[part] for share, token in zip(shares, tokens, strict=True))
            )
            weights = weights + torch.stack(shares) / layer.num_heads
        new.append(normed(layer.norm, vector + linear(layer.output, torch.cat(heads))))
        maps.append(weights)
    return torch.stack(new), torch.stack(maps)


def randomised(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn_like(weight) * 0.5)


@torch.no_grad()
def test_the_generator_equals_the_loop() -> None:
    generator = PrototypeGenerator(
        width=6, num_heads=2, num_prototypes=3, num_layers=2, deviation=1.0, gain=1.0, dropout=0.3
    ).eval()
    generator = generator.double()
    randomised(generator)
    tokens = torch.randn(2, 5, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True, True, False, True, False]])
    found, attention = generator(tokens, mask)
    for video in range(2):
        expected, weights = generator.prototypes, attention[video]
        for layer in generator.layers:
            expected, weights = slow_cross_attention(layer, expected, tokens[video], mask[video].tolist())
        torch.testing.assert_close(found[video], expected)
        torch.testing.assert_close(attention[video], weights)
    assert (attention[1][:, ~mask[1]] == 0).all()


@torch.no_grad()
def test_prototypes_are_independent_and_the_order_of_tokens_does_not_matter() -> None:
    generator = PrototypeGenerator(
        width=8, num_heads=2, num_prototypes=4, num_layers=3, deviation=1.0, gain=1.0, dropout=0.0
    )
    tokens, mask = torch.randn(2, 7, 8), torch.ones(2, 7).bool()
    found, attention = generator(tokens, mask)
    order = torch.randperm(7)
    torch.testing.assert_close(generator(tokens[:, order], mask)[0], found)
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4))
    generator.prototypes[0] += 5  # the others do not see it
    torch.testing.assert_close(generator(tokens, mask)[0][:, 1:], found[:, 1:])
    generator.prototypes[:] = generator.prototypes[0].clone()  # equal ones stay equal
    equal = generator(tokens, mask)[0]
    torch.testing.assert_close(equal, equal[:, :1].expand_as(equal))


def test_initial_attention_differs() -> None:
    torch.manual_seed(0)
    generator = PrototypeGenerator(
        width=32, num_heads=4, num_prototypes=5, num_layers=2, deviation=1.0, gain=1.0, dropout=0.0
    )
    generator.reset_weights()
    for layer in generator.layers:
        assert layer.query.weight.std().item() == pytest.approx(32**-0.5, rel=0.1)
    _, attention = generator(torch.randn(1, 9, 32), torch.ones(1, 9).bool())
    assert attention.std(1).max() > 0.02


@torch.no_grad()
def test_the_word_decoder_equals_the_formula_with_its_key() -> None:
    decoder = WordDecoder(width=6, num_heads=2, dropout=0.4).double().eval()
    randomised(decoder)
    words, prototype = torch.randn(1, 4, 6, dtype=torch.float64), torch.randn(1, 6, dtype=torch.float64)
    key = torch.nn.Linear(6, 6).double()  # fc_k, with any weights
    read = []
    for word in words[0]:
        query = linear(decoder.query, word)
        power = (query @ linear(key, prototype[0])).exp()
        read.append(normed(decoder.norm, query + power / power * linear(decoder.value, prototype[0])))
    for length in (4, 2):
        mask = torch.arange(4)[None] < length
        expected = decoder.block(torch.stack(read)[None, :length])
        torch.testing.assert_close(decoder(words, prototype, mask)[:, :length], expected)


@torch.no_grad()
def test_the_frame_decoder_equals_the_loop() -> None:
    decoder = FrameDecoder(num_prototypes=3, num_frames=5, width=4).double()
    prototypes = torch.randn(2, 3, 4, dtype=torch.float64)
    found = decoder(prototypes)
    for video in range(2):
        for frame in range(5):
            hidden = []
            for channel in range(4):
                mixed = sum(decoder.mix.weight[frame, p] * prototypes[video, p, channel] for p in range(3))
                hidden.append((mixed + decoder.mix.bias[frame]).clamp_min(0))
            torch.testing.assert_close(found[video, frame], linear(decoder.output, torch.stack(hidden)))


# ---------------------------------------------------------------- spans


def slow_span(attention: list[list[float]], prototype: int, spans: list[list[float]], steps: int = 4000) -> list[float]:
    """The density on a fine grid of times, and the even density with the same mean and deviation."""
    average = [sum(column) / len(attention) for column in zip(*attention, strict=True)]
    excess = [max(weight - mean, 0) for weight, mean in zip(attention[prototype], average, strict=True)]
    shares = excess if sum(excess) > 1e-6 else attention[prototype]
    times = [(step + 0.5) / steps for step in range(steps)]
    density = [
        sum(share / (end - start) for share, (start, end) in zip(shares, spans, strict=True) if start <= time < end)
        for time in times
    ]
    total = sum(density)
    mean = sum(d * time for d, time in zip(density, times, strict=True)) / total
    deviation = math.sqrt(sum(d * (time - mean) ** 2 for d, time in zip(density, times, strict=True)) / total)
    return [max(mean - math.sqrt(3) * deviation, 0), min(mean + math.sqrt(3) * deviation, 1)]


def test_spans_equal_the_loop() -> None:
    spans = ProposalPooling(length=4).spans
    attention = (3 * torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(1))).softmax(-1)
    found = attended_spans(attention, spans.expand(2, -1, -1))
    for video in range(2):
        for prototype in range(3):
            expected = slow_span(attention[video].tolist(), prototype, spans.tolist())
            assert found[video, prototype].tolist() == pytest.approx(expected, abs=2e-3)


def test_spans_by_hand() -> None:
    spans = torch.tensor([[[0.0, 0.25], [0.25, 0.5], [0.5, 0.75], [0.75, 1.0]]])
    # Prototype 0 prefers the second token, 1 the last two. Both attend a little to everything.
    attention = torch.tensor([[[0.2, 0.4, 0.2, 0.2], [0.2, 0.1, 0.35, 0.35]]])
    torch.testing.assert_close(attended_spans(attention, spans), torch.tensor([[[0.25, 0.5], [0.5, 1.0]]]))
    even = torch.full((1, 2, 4), 0.25)  # nobody prefers anything
    torch.testing.assert_close(attended_spans(even, spans), torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]))
    single = torch.tensor([[[0.0, 1.0, 0.0, 0.0]]])  # there is no other prototype
    torch.testing.assert_close(attended_spans(single, spans), torch.tensor([[[0.25, 0.5]]]))


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**31))
def test_spans_are_parts_of_the_video(num: int, clips: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    spans = ProposalPooling(length=clips).spans
    attention = (5 * torch.randn(1, num, len(spans), generator=generator)).softmax(-1)
    found = attended_spans(attention, spans[None])
    assert (found[..., 0] < found[..., 1]).all()
    assert (found >= 0).all()
    assert (found <= 1).all()


# ---------------------------------------------------------------- prototypes over time


def slow_over_time(prototypes: Tensor, attention: Tensor, spans: list[list[float]], cells: int) -> Tensor:
    """One video: the share of each token's excess that overlaps each part."""
    rows = []
    for cell in range(cells):
        low, high = cell / cells, (cell + 1) / cells
        weights = []
        for own in attention:
            mass = 0.0
            for token, (start, end) in enumerate(spans):
                inside = max(min(end, high) - max(start, low), 0) / (end - start)
                mass += max((own[token] - attention[:, token].mean()).item(), 0) * inside
            weights.append(mass)
        if sum(weights) < 1e-6:
            weights = [1.0] * len(weights)
        rows.append(sum(w * p for w, p in zip(weights, prototypes, strict=True)) / sum(weights))
    return torch.stack(rows)


@pytest.mark.parametrize("cells", [1, 3, 4, 10])
def test_prototypes_over_time_equal_the_loop(cells: int) -> None:
    generator = torch.Generator().manual_seed(2)
    spans = ProposalPooling(length=4).spans
    attention = (3 * torch.randn(2, 3, 10, generator=generator)).softmax(-1)
    prototypes = torch.randn(2, 3, 5, generator=generator)
    found = prototypes_over_time(prototypes, attention, spans.expand(2, -1, -1), cells)
    for video in range(2):
        expected = slow_over_time(prototypes[video], attention[video], spans.tolist(), cells)
        torch.testing.assert_close(found[video], expected, atol=1e-5, rtol=1e-5)


def test_prototypes_over_time_by_hand() -> None:
    spans = torch.tensor([[[0.0, 0.5], [0.5, 1.0], [1.0, 1.0]]])  # the last token is padding
    prototypes = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    attention = torch.tensor([[[0.9, 0.1, 0.0], [0.3, 0.7, 0.0]]])
    found = prototypes_over_time(prototypes, attention, spans, 2)
    torch.testing.assert_close(found, torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    even = prototypes_over_time(prototypes, torch.full((1, 2, 3), 1 / 3), spans, 4)
    torch.testing.assert_close(even, torch.full((1, 4, 2), 0.5))
