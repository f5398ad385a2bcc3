"""The masks of spans: by hand, against the twin's formula, and where the released formula is NaN."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.nn.attention import ProjectedAttention
from midreel.nn.spans import SpanEncoder, span_masks


def test_by_hand() -> None:
    # A width of 4.5 gives σ = 1/2. The points are 0, 1/2 and 1, and the largest value is at 1/2.
    masks = span_masks(torch.tensor([[[0.25, 4.5], [0.5, 4.5]]], dtype=torch.float64), 3)
    outer, inner = math.exp(-(0.75**2) * 2), math.exp(-(0.25**2) * 2)
    torch.testing.assert_close(masks[0, 0], torch.tensor([1.0, 1.0, outer / inner], dtype=torch.float64))
    torch.testing.assert_close(masks[0, 1], torch.tensor([math.exp(-0.5), 1.0, math.exp(-0.5)], dtype=torch.float64))


@given(st.floats(0, 1), st.floats(0.2, 1), st.integers(1, 40))
def test_equals_the_released_formula(centre: float, width: float, length: int) -> None:
    points = [j / (length - 1) if length > 1 else 0.0 for j in range(length)]
    raw = [math.exp(-((point - centre) ** 2) / (2 * (max(width, 0.01) / 9) ** 2)) for point in points]
    if max(raw) < 1e-300:
        return
    expected = torch.tensor([value / max(raw) for value in raw], dtype=torch.float64)
    found = span_masks(torch.tensor([[[centre, width]]], dtype=torch.float64), length)[0, 0]
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@given(st.integers(0, 2**31), st.integers(1, 40))
def test_masks_peak_at_one_and_fall_with_the_distance(seed: int, length: int) -> None:
    spans = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    masks = span_masks(spans, length)
    assert (masks.amax(-1) == 1).all()
    assert (masks >= 0).all()
    distance = (torch.linspace(0, 1, length, dtype=torch.float64) - spans[..., :1]).abs()
    order = distance.argsort(-1)
    assert (masks.gather(-1, order).diff(dim=-1) <= 0).all()


def test_a_narrow_span_between_two_points_is_finite() -> None:
    # The released formula is 0 / 0 here in single precision: 15.5 steps of 1/31 away from both ends, σ = 0.01/9.
    spans = torch.tensor([[[15.5 / 31, 0.0], [0.5001, 0.004]]], requires_grad=True)
    masks = span_masks(spans, 32)
    assert masks.isfinite().all()
    assert (masks.amax(-1) == 1).all()
    masks.sum().backward()
    assert spans.grad is not None
    assert spans.grad.isfinite().all()


def test_gradcheck() -> None:
    spans = torch.tensor([[[0.31, 0.8], [0.72, 0.5]]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda each: span_masks(each, 7), spans)


@pytest.mark.parametrize("length", [1, 5])
def test_a_factor_of_the_keys_multiplies_the_logits_of_each_head(length: int) -> None:
    torch.manual_seed(0)
    block = ProjectedAttention(width=6, num_heads=2, dropout=0.0).double()
    tokens = torch.randn(3, length, 6, dtype=torch.float64)
    factor = torch.rand(3, 2, length, dtype=torch.float64, requires_grad=True)
    rows = []
    for number in range(3):
        heads = []
        for head in range(2):
            part = slice(3 * head, 3 * head + 3)
            query, key, value = (layer(tokens[number])[:, part] for layer in (block.query, block.key, block.value))
            logits = query @ key.T / math.sqrt(3) * factor[number, head]
            heads.append(logits.softmax(-1) @ value)
        rows.append(torch.cat(heads, -1))
    expected = block.norm(tokens + block.output(torch.stack(rows)))
    found = block(tokens, key_factor=factor)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each.square().sum(), factor)[0] for each in (found, expected)))


def test_each_span_has_its_own_numbers() -> None:
    encoder = SpanEncoder(input_width=3, width=4, num_heads=2, num_positions=8, input_dropout=0.0, dropout=0.0).eval()
    with torch.no_grad():
        encoder.spans.weight.zero_()
        encoder.spans.bias.copy_(torch.tensor([-9.0, 3.0, 9.0, -3.0]))  # centre, width, centre, width
    encoded = encoder(torch.randn(2, 8, 3))
    assert encoded.masks.argmax(-1).tolist() == [[0, 7]] * 2
    assert (encoded.masks[:, 0, 1] > encoded.masks[:, 1, 6]).all()
