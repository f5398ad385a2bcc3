"""The losses of ProtoPRVR: cases by hand, slow twins, properties."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.losses.prototypes import (
    attention_guidance,
    frame_reconstruction,
    orthogonality,
    word_reconstruction,
    words_to_mask,
)


def cosine(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum() / (first.square().sum().sqrt() * second.square().sum().sqrt())


# ---------------------------------------------------------------- slow twins


def slow_words(words: Tensor, targets: Tensor, temperature: float) -> Tensor:
    total = torch.zeros((), dtype=words.dtype)
    for m in range(len(words)):
        powers = [(cosine(words[m], targets[n]) / temperature).exp() for n in range(len(words))]
        total = total - (powers[m] / torch.stack(powers).sum()).log()
    return total / len(words)


def slow_frames(decoded: Tensor, frames: Tensor, mask: list[list[bool]]) -> Tensor:
    per_video = []
    for video, real in enumerate(mask):
        errors = [
            (decoded[video, t, d] - frames[video, t, d]) ** 2
            for t, is_real in enumerate(real)
            if is_real
            for d in range(decoded.shape[2])
        ]
        per_video.append(torch.stack(errors).mean())
    return torch.stack(per_video).mean()


def slow_guidance(attention: Tensor, own: list[list[bool]]) -> Tensor:
    masses = []
    for row, flags in zip(attention, own, strict=True):
        mass = torch.zeros((), dtype=attention.dtype)
        for weight, is_own in zip(row, flags, strict=True):
            if is_own:
                mass = mass + weight
        masses.append(-(mass + 1e-6).log())
    return torch.stack(masses).mean()


def slow_orthogonality(prototypes: Tensor) -> Tensor:
    videos, num, _ = prototypes.shape
    total = torch.zeros((), dtype=prototypes.dtype)
    for video in range(videos):
        for i in range(num):
            for j in range(num):
                if i != j:
                    total = total + cosine(prototypes[video, i], prototypes[video, j]) ** 2
    return total / (videos * num * (num - 1))


def assert_same(fast: Tensor, slow: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(fast, slow)
    for found, expected in zip(torch.autograd.grad(fast, inputs), torch.autograd.grad(slow, inputs), strict=True):
        torch.testing.assert_close(found, expected)


def test_words_equal_the_loop_in_value_and_gradient() -> None:
    words = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(6, 4, dtype=torch.float64)
    assert_same(word_reconstruction(words, targets, temperature=0.3), slow_words(words, targets, 0.3), words)


def test_frames_equal_the_loop_in_value_and_gradient() -> None:
    decoded = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    frames, lengths = torch.randn(3, 4, 2, dtype=torch.float64), torch.tensor([4, 1, 2])
    mask = torch.arange(4) < lengths[:, None]
    assert_same(frame_reconstruction(decoded, frames, mask), slow_frames(decoded, frames, mask.tolist()), decoded)


def test_guidance_equals_the_loop_in_value_and_gradient() -> None:
    attention = torch.rand(5, 6, dtype=torch.float64).softmax(1).requires_grad_()
    own = torch.rand(5, 6) < 0.5
    assert_same(attention_guidance(attention, own), slow_guidance(attention, own.tolist()), attention)


def test_orthogonality_equals_the_loop_in_value_and_gradient() -> None:
    prototypes = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    assert_same(orthogonality(prototypes), slow_orthogonality(prototypes), prototypes)


def test_gradcheck() -> None:
    words, targets = torch.randn(4, 3, dtype=torch.float64, requires_grad=True), torch.randn(4, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda w: word_reconstruction(w, targets, temperature=0.5), words)
    three = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert torch.autograd.gradcheck(lambda d: frame_reconstruction(d, torch.zeros_like(d), mask), three)
    assert torch.autograd.gradcheck(orthogonality, three)
    assert torch.autograd.gradcheck(lambda a: attention_guidance(a.softmax(1), mask), three[:, 0, :3])


# ---------------------------------------------------------------- by hand, and properties


def test_words_by_hand() -> None:
    # Word 0 points to both targets alike, word 1 to its own: log 2, and log(1 + e^-2) at temperature 1/2.
    words, targets = torch.tensor([[1.0, 1.0], [0.0, 9.0]]), torch.eye(2)
    expected = (math.log(2) + math.log(1 + math.exp(-2))) / 2
    assert word_reconstruction(words, targets, temperature=0.5).item() == pytest.approx(expected)


def test_frames_by_hand() -> None:
    decoded = torch.tensor([[[1.0, 3.0], [5.0, 5.0]], [[2.0, 0.0], [9.0, 9.0]]])
    frames = torch.tensor([[[0.0, 1.0], [5.0, 7.0]], [[0.0, 0.0], [0.0, 0.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    # (1 + 4) / 2 and 4 / 2 of video 0; 4 / 2 of video 1, whose second frame is padding.
    assert frame_reconstruction(decoded, frames, mask).item() == pytest.approx((2.25 + 2) / 2)


def test_guidance_by_hand() -> None:
    attention = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.0, 0.9]])
    own = torch.tensor([[True, True, False]] * 2)
    assert attention_guidance(attention, own).item() == pytest.approx(-math.log(0.1) / 2, abs=1e-5)
    assert attention_guidance(torch.tensor([[0.0, 1.0]]), torch.tensor([[True, False]])).isfinite()


def test_targets_get_no_gradient() -> None:
    words, targets = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    word_reconstruction(words, targets).backward()
    frames = torch.randn(2, 3, 4, requires_grad=True)
    frame_reconstruction(torch.randn(2, 3, 4, requires_grad=True), frames, torch.ones(2, 3).bool()).backward()
    assert targets.grad is None
    assert frames.grad is None


def test_an_empty_batch_costs_nothing() -> None:
    assert word_reconstruction(torch.empty(0, 4), torch.empty(0, 4)) == 0
    assert attention_guidance(torch.empty(0, 4), torch.empty(0, 4).bool()) == 0
    assert orthogonality(torch.randn(2, 1, 4)) == 0


@given(st.integers(2, 6), st.integers(0, 2**31))
def test_orthogonality_is_a_squared_cosine(num: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(2, num, 8, dtype=torch.float64, generator=generator)
    value = orthogonality(prototypes)
    assert 0 <= value <= 1
    scaled = prototypes * torch.randn(2, num, 1, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(orthogonality(scaled), value)  # neither length nor sign counts
    torch.testing.assert_close(orthogonality(prototypes[:, torch.randperm(num)]), value)
    torch.testing.assert_close(orthogonality(prototypes[:, :1].expand(-1, num, -1)), torch.ones_like(value))
    basis = torch.linalg.qr(torch.randn(8, num, dtype=torch.float64, generator=generator)).Q.T
    torch.testing.assert_close(orthogonality(basis[None]), torch.zeros_like(value))


class TestWordsToMask:
    LENGTHS = torch.tensor([1, 2, 3, 7, 12])
    MASK = torch.arange(12) < LENGTHS[:, None]

    @pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
    def test_only_inner_words_and_at_least_one(self, rate: float) -> None:
        for _ in range(20):
            chosen = words_to_mask(self.MASK, rate)
            for row, length in zip(chosen, self.LENGTHS.tolist(), strict=True):
                inner = max(length - 2, 0)
                assert not row[0]
                assert not row[max(length - 1, 0) :].any()
                assert min(inner, 1) <= row.sum() <= inner
                if rate == 1:
                    assert row.sum() == inner
                if rate == 0:
                    assert row.sum() == min(inner, 1)

    def test_the_rate(self) -> None:
        mask = torch.ones(400, 52).bool()
        assert words_to_mask(mask, 0.3).sum().item() / (400 * 50) == pytest.approx(0.3, abs=0.02)

    def test_padding_in_front(self) -> None:
        mask = torch.tensor([[False, True, True, False, True, True]])
        assert words_to_mask(mask, 1.0).tolist() == [[False, False, True, False, True, False]]

    def test_bad_rate(self, unchecked: None) -> None:
        with pytest.raises(BadSetting, match=r"rate is 1\.5"):
            words_to_mask(self.MASK, 1.5)


def test_bad_input(unchecked: None) -> None:
    with pytest.raises(BadSetting, match=r"temperature is 0\.0"):
        word_reconstruction(torch.randn(2, 3), torch.randn(2, 3), temperature=0.0)
    with pytest.raises(BadBatch, match="targets has shape"):
        word_reconstruction(torch.randn(2, 3), torch.randn(3, 3))
    with pytest.raises(BadBatch, match="mask has type"):
        frame_reconstruction(torch.randn(1, 2, 3), torch.randn(1, 2, 3), torch.ones(1, 2))
    with pytest.raises(BadBatch, match="own has shape"):
        attention_guidance(torch.rand(2, 3), torch.ones(2, 2).bool())
