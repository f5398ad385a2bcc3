import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from midreel.nn.embed import InputProjection, PositionEncoding, init_weights, unit_rows


def test_unit_rows_by_hand() -> None:
    rows = unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert rows[0].tolist() == pytest.approx([3 / 5.00001, 4 / 5.00001])
    assert rows[1].tolist() == [0, 0]


@given(st.floats(0.1, 1e4))
def test_unit_rows_have_length_one(scale: float) -> None:
    lengths = unit_rows(scale * torch.ones(3, 8)).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(3), atol=1e-4, rtol=0)


def test_projection_follows_its_formula() -> None:
    project = InputProjection(input_width=6, width=3, dropout=0.5).eval()
    x = torch.randn(2, 4, 6)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    normal = (x - mean) / (variance + 1e-5).sqrt()
    expected = (normal @ project.linear.weight.T + project.linear.bias).clamp_min(0)
    torch.testing.assert_close(project(x), expected)


def test_a_shorter_sequence_uses_the_first_positions() -> None:
    encode = PositionEncoding(length=9, width=4, dropout=0.0)
    x = torch.randn(2, 5, 4)
    torch.testing.assert_close(encode(x), encode.norm(x + encode.table.weight[:5]))


def test_initial_weights() -> None:
    network = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300), nn.Embedding(300, 300)).apply(init_weights)
    linear, norm, table = network
    assert isinstance(linear, nn.Linear)
    assert linear.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert table.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert (linear.bias == 0).all()
    assert (norm.weight == 1).all()
