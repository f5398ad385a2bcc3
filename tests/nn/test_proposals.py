import pytest
import torch

from midreel.nn.proposals import ProposalPooling, runs


def test_by_hand() -> None:
    found = ProposalPooling(length=3)(torch.tensor([[[1.0], [2.0], [6.0]]]))
    assert found[0, :, 0].tolist() == [1, 2, 6, 1.5, 4, 3]


@pytest.mark.parametrize("length", [1, 2, 5, 32])
def test_equals_the_loop(length: int) -> None:
    pooling, tokens = ProposalPooling(length=length), torch.randn(2, length, 3, dtype=torch.float64)
    runs = [(start, start + width) for width in range(1, length + 1) for start in range(length - width + 1)]
    assert len(runs) == length * (length + 1) // 2
    expected = torch.stack([tokens[:, start:end].mean(1) for start, end in runs], 1)
    torch.testing.assert_close(pooling(tokens), expected)
    torch.testing.assert_close(pooling.spans, torch.tensor(runs) / length)


def test_it_has_no_weights_and_keeps_its_spans_in_any_precision() -> None:
    pooling = ProposalPooling(length=7)
    assert not pooling.state_dict()
    assert pooling.half().spans.equal(ProposalPooling(length=7).spans)


def test_a_constant_video_has_constant_proposals() -> None:
    torch.testing.assert_close(ProposalPooling(length=9)(torch.full((1, 9, 2), 3.0)), torch.full((1, 45, 2), 3.0))


@pytest.mark.parametrize("num", [1, 2, 5, 32])
def test_runs_equal_the_loop(num: int) -> None:
    bounds, members = runs(num)
    row = 0
    for length in range(1, num + 1):
        for start in range(num - length + 1):
            assert members[row].nonzero().flatten().tolist() == list(range(start, start + length))
            assert bounds[row].tolist() == [start, start + length]
            row += 1
    assert row == len(bounds) == len(members) == num * (num + 1) // 2
