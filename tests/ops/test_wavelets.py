"""The wavelet transform: numbers of PyWavelets, a slow twin, and properties of every transform."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadSetting
from midreel.ops.wavelets import _HIGH, _LOW, detail_bands, max_levels

SIGNAL = np.array([0.0, 1, 4, 9, 16, 25, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 1])
# From PyWavelets 1.8: wavedec(SIGNAL, "db4", level=3), then waverec of one level with zeros for the others.
BANDS = """
0.131452564015 0.494142413954 -0.505180282458 -2.75441177227 0.579811613066 9.540688462713 -9.942446478171
0.071294837363 3.485351580503 -0.95922336036 0.094041260554 0.079010084 -0.231466989205 -3.456864558687
0.954549320915 13.440495431491 -11.440177490392
-2.446624557319 -5.138530885168 -3.100136990404 4.242111578018 6.838701262312 5.509538198359 1.478021296522
-7.457174729352 -8.077652041955 0.102857481272 2.565705858699 1.7034133964 2.448754114094 2.620468333894
0.618090456416 -3.472301487748 -3.229701290204
-3.512876397921 -0.638622526753 0.890794750751 0.401667935597 0.874342431432 1.502764878317 1.3820958987
0.765178190324 -0.551519365835 -2.735841016552 -2.835091973827 -0.686581694512 2.156900611241 6.44951704637
7.46650719198 4.723228771589 1.100275916065
"""


def reflected(signal: list[float], place: int) -> float:
    period = place % (2 * len(signal))
    return signal[period] if period < len(signal) else signal[2 * len(signal) - 1 - period]


def slow_step(signal: list[float], taps: list[float]) -> list[float]:
    num = (len(signal) + 7) // 2
    return [sum(taps[j] * reflected(signal, 2 * i + 1 - j) for j in range(8)) for i in range(num)]


def slow_inverse_step(coefficients: list[float], taps: list[float], length: int) -> list[float]:
    # Sample t has the tap of coefficient i at t - 2 i + 6, of the filter in reverse order.
    return [
        sum(value * taps[7 - (t - 2 * i + 6)] for i, value in enumerate(coefficients) if 0 <= t - 2 * i + 6 < 8)
        for t in range(length)
    ]


def slow_bands(signal: list[float], num_levels: int) -> list[list[float]]:
    low, high = _LOW.tolist(), _HIGH.tolist()
    bands = []
    for level in range(num_levels):
        smooth, lengths = signal, []
        for _ in range(level):
            lengths.append(len(smooth))
            smooth = slow_step(smooth, low)
        band = slow_inverse_step(slow_step(smooth, high), high, len(smooth))
        for length in reversed(lengths):
            band = slow_inverse_step(band, low, length)
        bands.append(band)
    return bands


def test_the_numbers_of_pywavelets() -> None:
    expected = np.array([float(number) for number in BANDS.split()]).reshape(3, len(SIGNAL))
    np.testing.assert_allclose(detail_bands(SIGNAL, 3), expected, atol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 30, 126, 127])
def test_equal_to_the_loops(length: int) -> None:
    signal = np.random.default_rng(length).random(length)
    num_levels = max(length.bit_length() - 1, 1)
    np.testing.assert_allclose(detail_bands(signal, num_levels), slow_bands(signal.tolist(), num_levels), atol=1e-12)


def test_the_filters_are_orthonormal() -> None:
    for shift in range(-3, 4):
        for first in (_LOW, _HIGH):
            for second in (_LOW, _HIGH):
                shifted = np.concatenate((np.zeros(6), second, np.zeros(6)))[6 + 2 * shift : 14 + 2 * shift]
                expected = float(first is second and shift == 0)
                assert first @ shifted == pytest.approx(expected, abs=1e-10)


@given(st.integers(1, 70), st.integers(0, 2**31))
def test_one_level_and_the_rest_are_the_signal(length: int, seed: int) -> None:
    signal = np.random.default_rng(seed).random(length)
    [detail] = detail_bands(signal, 1)
    smooth = slow_inverse_step(slow_step(signal.tolist(), _LOW.tolist()), _LOW.tolist(), length)
    np.testing.assert_allclose(detail + smooth, signal, atol=1e-10)


@given(st.integers(1, 70), st.floats(-5, 5), st.integers(0, 2**31))
def test_linear_and_blind_to_constants(length: int, factor: float, seed: int) -> None:
    first, second = np.random.default_rng(seed).random((2, length))
    found = detail_bands(first + factor * second + 3, 4)
    np.testing.assert_allclose(found, detail_bands(first, 4) + factor * detail_bands(second, 4), atol=1e-9)


def test_the_number_of_levels() -> None:
    assert detail_bands(SIGNAL, 0).shape == (0, len(SIGNAL))
    assert [max_levels(length) for length in (1, 6, 7, 13, 14, 55, 56, 700)] == [0, 0, 0, 0, 1, 2, 3, 6]
    with pytest.raises(BadSetting, match="0 samples"):
        detail_bands(np.empty(0), 1)
    with pytest.raises(BadSetting, match="num_levels is -1"):
        detail_bands(SIGNAL, -1)
