import math

import pytest
import torch

from midreel.nn.attention import padding_bias
from midreel.nn.encoders import PooledQueryEncoder, QueryEncoder, SequenceEncoder, VideoBranch

COMMON = {"input_width": 5, "width": 8, "num_heads": 2, "input_dropout": 0.0, "dropout": 0.0}


def branch() -> VideoBranch:
    return VideoBranch(length=6, num_positions=9, temperature=0.6, **COMMON)


def test_a_branch_is_projection_positions_and_mixture() -> None:
    encoder = branch()
    features, token, bias = torch.randn(3, 6, 5), torch.randn(8), torch.randn(3, 6)
    expected = encoder.mixture(encoder.position(encoder.project(features)), token, bias)
    torch.testing.assert_close(encoder(features, token, bias), expected)


def test_padding_is_hidden_from_the_blocks_and_from_the_summaries() -> None:
    encoder = branch()
    features, token = torch.randn(2, 6, 5), torch.randn(8)
    mask = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    hidden = padding_bias(mask, torch.float32)
    clean = features.masked_fill(~mask[..., None], 0)
    expected = encoder.mixture(encoder.position(encoder.project(clean)), token, hidden, hidden)
    found = encoder(features.masked_fill(~mask[..., None], math.nan), token, mask=mask)
    torch.testing.assert_close(found[mask], expected[mask])
    assert (found[~mask] == 0).all()
    seen_by_summaries = encoder.mixture(encoder.position(encoder.project(clean)), token, hidden)
    assert (seen_by_summaries[0] - expected[0]).abs().max() > 1e-4
    torch.testing.assert_close(encoder(features, token, mask=torch.ones_like(mask)), encoder(features, token))


def test_padding_and_other_biases_add_up() -> None:
    encoder = branch()
    features, token, bias = torch.randn(2, 6, 5), torch.randn(8), torch.randn(2, 6)
    mask = torch.arange(6).expand(2, 6) < 4
    moved = bias.masked_fill(~mask, 100.0)  # the bias of padding does not matter
    torch.testing.assert_close(encoder(features, token, bias, mask), encoder(features, token, moved, mask))


def test_gradients_of_padded_videos_are_finite() -> None:
    encoder = branch()
    features = torch.randn(1, 6, 5, requires_grad=True)
    mask = torch.arange(6)[None] < 2
    tokens = encoder(features, torch.randn(8), mask=mask)
    torch.nn.functional.normalize(tokens, dim=-1).sum().backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()
    assert (features.grad[0, 2:] == 0).all()


@pytest.mark.parametrize("encoder", [SequenceEncoder, PooledQueryEncoder])
def test_sequences_do_not_see_their_padding(encoder: type[SequenceEncoder]) -> None:
    encode = encoder(num_positions=9, **COMMON).eval()
    features = torch.randn(2, 5, COMMON["input_width"])
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    alone = encode(features[1:, :3], mask[1:, :3])
    features[1, 3:] = torch.nan
    together = encode(features, mask)[1:]
    torch.testing.assert_close(together if together.dim() == 2 else together[:, :3], alone)
    if encoder is SequenceEncoder:
        torch.testing.assert_close(encode(features[:1]), encode(features[:1], mask[:1]))


def test_queries_do_not_see_their_padding() -> None:
    encoder = QueryEncoder(max_words=7, **COMMON)
    words = torch.randn(1, 3, 5)
    alone = encoder(words, torch.ones(1, 3, dtype=torch.bool))
    padded = torch.cat([words, torch.full((1, 4, 5), math.nan)], 1)
    torch.testing.assert_close(encoder(padded, torch.arange(7)[None] < 3), alone)
