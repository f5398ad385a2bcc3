import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from midreel.errors import BadSetting
from midreel.nn.attention import AttentionBlock, AttentionPooling, ProjectedAttention, TokenAttention, padding_bias
from tests import twins

SIZES = {"width": 4, "num_heads": 2, "dropout": 0.0}


def slow_block(
    block: AttentionBlock, asking: Tensor, answering: Tensor, window: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """One sequence through a block, by the formulas: attention, residual, norm, feed-forward, residual, norm."""
    attended = twins.attend(
        block.query(asking), block.key(answering), block.value(answering), block.num_heads, window, bias
    )
    middle = block.norm1(asking + attended)
    return block.norm2(middle + block.contract(F.relu(block.expand(middle))))


@pytest.mark.parametrize("training", [False, True])
def test_a_block_equals_the_loop(training: bool) -> None:
    block = AttentionBlock(**SIZES, hidden_width=16).double().train(training)
    tokens, window = torch.randn(3, 5, 4, dtype=torch.float64), torch.rand(5, 5, dtype=torch.float64)
    bias = torch.randn(3, 5, dtype=torch.float64)
    expected = torch.stack([slow_block(block, x, x, window, b) for x, b in zip(tokens, bias, strict=True)])
    torch.testing.assert_close(block(tokens, window, bias), expected)


def test_gradcheck_of_a_block() -> None:
    block = AttentionBlock(**SIZES, hidden_width=8).double()
    tokens = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(block, tokens)
    assert torch.autograd.gradcheck(
        lambda w: torch.func.functional_call(block, {"key.weight": w}, tokens), block.key.weight
    )


def test_projected_attention_equals_the_loop() -> None:
    block = ProjectedAttention(**SIZES).double()
    tokens, window = torch.randn(3, 5, 4, dtype=torch.float64), torch.rand(5, 5, dtype=torch.float64)
    bias = torch.randn(3, 5, dtype=torch.float64)
    expected = []
    for x, b in zip(tokens, bias, strict=True):
        attended = twins.attend(block.query(x), block.key(x), block.value(x), block.num_heads, window, b)
        expected.append(block.norm(x + block.output(attended)))
    torch.testing.assert_close(block(tokens, window, bias), torch.stack(expected))
    assert torch.autograd.gradcheck(block, tokens[:1, :2].clone().requires_grad_())


def test_projected_attention_has_592_128_weights_at_width_384() -> None:
    block = ProjectedAttention(width=384, num_heads=4, dropout=0.1)
    assert sum(weight.numel() for weight in block.parameters()) == 592_128


def test_one_token_asking_equals_the_loop_with_projected_keys_and_values() -> None:
    block = TokenAttention(**SIZES, hidden_width=4).double()
    for bias in (block.query.bias, block.key.bias, block.value.bias):
        torch.nn.init.normal_(bias)
    token, sequences = torch.randn(4, dtype=torch.float64), torch.randn(3, 5, 4, dtype=torch.float64)
    expected = torch.stack([slow_block(block, token[None], sequence)[0] for sequence in sequences])
    torch.testing.assert_close(block(token, sequences), expected)
    bias = torch.randn(3, 5, dtype=torch.float64)
    expected = torch.stack([slow_block(block, token[None], s, bias=b)[0] for s, b in zip(sequences, bias, strict=True)])
    torch.testing.assert_close(block(token, sequences, bias), expected)


def test_one_token_asking_has_the_gradients_of_the_loop() -> None:
    block = TokenAttention(**SIZES, hidden_width=4).double()
    token = torch.randn(4, dtype=torch.float64, requires_grad=True)
    sequences = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    fast = block(token, sequences).square().sum()
    slow = torch.stack([slow_block(block, token[None], s)[0] for s in sequences]).square().sum()
    # The key bias shifts all logits of a head alike, so its gradient is zero: TokenAttention leaves it out.
    inputs = [token, sequences, *(p for name, p in block.named_parameters() if name != "key.bias")]
    torch.testing.assert_close(torch.autograd.grad(fast, inputs), torch.autograd.grad(slow, inputs))


def test_dropout_on_one_token_keeps_the_mean_of_the_attended_values() -> None:
    block = TokenAttention(width=4, num_heads=2, hidden_width=4, dropout=0.3)
    torch.nn.init.normal_(block.value.bias)
    seen: list[Tensor] = []
    block.feed_forward = lambda residual, attended: seen.append(attended) or attended  # type: ignore[method-assign]
    token, sequences = torch.randn(4), torch.randn(2, 5, 4)
    block.eval()(token, sequences)
    block.train()
    for _ in range(3000):
        block(token, sequences)
    torch.testing.assert_close(torch.stack(seen[1:]).mean(0), seen[0], atol=0.06, rtol=0)


def test_padding_changes_nothing() -> None:
    block, pool = AttentionBlock(**SIZES, hidden_width=8), AttentionPooling(width=4)
    words = torch.randn(1, 3, 4)
    padded = torch.cat([words, 1e3 * torch.randn(1, 6, 4)], 1)
    mask = torch.arange(9)[None] < 3
    alone = pool(block(words), torch.ones(1, 3, dtype=torch.bool))
    together = pool(block(padded, key_bias=padding_bias(mask, padded.dtype)), mask)
    torch.testing.assert_close(together, alone)


def test_pooling_by_hand() -> None:
    pool = AttentionPooling(width=1)
    pool.score.weight.data.fill_(1)
    tokens = torch.tensor([[[0.0], [3.0], [99.0]]])
    tokens[0, 1, 0] = torch.tensor(3.0).log()
    mask = torch.tensor([[True, True, False]])
    assert pool(tokens, mask).item() == pytest.approx(0.75 * torch.tensor(3.0).log().item())


def test_pooling_has_finite_gradients_on_padding() -> None:
    tokens = torch.randn(2, 3, 4, requires_grad=True)
    AttentionPooling(width=4)(tokens, torch.tensor([[True, False, False], [True, True, True]])).sum().backward()
    assert tokens.grad is not None
    assert tokens.grad.isfinite().all()
    assert (tokens.grad[0, 1:] == 0).all()


def test_bad_width() -> None:
    with pytest.raises(BadSetting, match=r"width is 6.*num_heads = 4"):
        AttentionBlock(width=6, num_heads=4, hidden_width=8, dropout=0.0)
