import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.nn.gaussian import GaussianMean, GaussianMixture, gaussian_window
from tests import twins

WIDTHS = (None, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0)


def test_window_by_hand() -> None:
    # Two steps at width 9, so σ = 1: positions 0 and 1, centres 0 and 1/2. The second row's distances are equal.
    assert gaussian_window(2, 9.0).flatten().tolist() == pytest.approx([1, math.exp(-0.5), 1, 1])
    assert (gaussian_window(3, None) == 1).all()


@pytest.mark.parametrize("width", [w for w in WIDTHS if w is not None])
def test_window_equals_the_loop(width: float) -> None:
    torch.testing.assert_close(gaussian_window(32, width), twins.gaussian_window(32, width), atol=1e-5, rtol=1e-4)


@given(st.integers(1, 130), st.floats(0.0, 20))
def test_every_row_peaks_at_one(length: int, width: float) -> None:
    window = gaussian_window(length, width)
    assert (window.amax(1) == 1).all()
    assert (window >= 0).all()


@given(st.integers(1, 20), st.integers(0, 9), st.floats(0.0, 20))
def test_a_padded_window_contains_the_window_of_the_real_length(real: int, padding: int, width: float) -> None:
    window = gaussian_window(real + padding, width, torch.tensor(real))
    assert window[:real, :real].equal(gaussian_window(real, width))
    assert (window[:, real:] == 0).all()
    assert window.isfinite().all()


def test_the_mean_of_the_blocks() -> None:
    mean = GaussianMean(width=4, num_heads=2, num_windows=3, dropout=0.0).double()
    tokens, bias = torch.randn(2, 6, 4, dtype=torch.float64), torch.randn(2, 6, dtype=torch.float64)
    windows = [None, gaussian_window(6, 0.5).double(), gaussian_window(6, 5.0).double()]
    views = [block(tokens, window, bias) for block, window in zip(mean.blocks, windows, strict=True)]
    torch.testing.assert_close(mean(tokens, windows, bias), (views[0] + views[1] + views[2]) / 3)


def make(dropout: float = 0.0, length: int = 6) -> GaussianMixture:
    return GaussianMixture(
        width=4, num_heads=2, length=length, gaussian_widths=WIDTHS, temperature=0.6, dropout=dropout
    ).double()


def test_the_mixture_follows_its_formula() -> None:
    mixture = make()
    tokens, token = torch.randn(3, 6, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    bias = torch.randn(3, 6, dtype=torch.float64)
    views = [
        block(tokens, None if width is None else gaussian_window(6, width).double(), bias)
        for block, width in zip(mixture.blocks, WIDTHS, strict=True)
    ]
    expected = torch.zeros_like(tokens)
    for video in range(3):
        logits = []
        for view in views:
            summary = mixture.summary(token, view[video, None])[0]
            logits.append(mixture.mix_output(mixture.mix_hidden(summary).relu()) / 0.6)
        for step in range(6):
            weights = torch.stack([logit[step] for logit in logits]).softmax(0)
            expected[video, step] = sum(w * view[video, step] for w, view in zip(weights, views, strict=True))
    torch.testing.assert_close(mixture(tokens, token, bias), expected)


def test_a_precise_mixture_computes_in_double_precision_in_evaluation() -> None:
    mixture = GaussianMixture(
        width=4, num_heads=2, length=6, gaussian_widths=WIDTHS, temperature=0.01, dropout=0.0, precise=True
    )
    torch.nn.init.normal_(mixture.mix_output.weight, std=3)
    inputs = torch.randn(3, 6, 4), torch.randn(4), torch.randn(3, 6), torch.randn(3, 6)
    exact = copy.deepcopy(mixture).double()(*(each.double() for each in inputs))
    assert mixture.eval()(*inputs).equal(exact.float())
    assert mixture(*inputs[:2]).dtype == torch.float32  # the biases may be left out
    learning = mixture.train()(*inputs)
    assert not learning.equal(exact.float())
    mixture.precise = False
    assert mixture.eval()(*inputs).equal(learning)


def test_gradcheck() -> None:
    mixture = make(length=3)
    tokens = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    token = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mixture, (tokens, token))


def test_number_of_parameters() -> None:
    for length, expected in ((32, 13_913_888), (128, 13_950_848)):
        mixture = GaussianMixture(
            width=384, num_heads=4, length=length, gaussian_widths=WIDTHS, temperature=0.6, dropout=0.0
        )
        assert sum(p.numel() for p in mixture.parameters()) == expected


def test_windows_are_not_saved() -> None:
    assert "windows" not in make().state_dict()
