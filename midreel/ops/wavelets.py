"""The discrete wavelet transform of a short signal, with the Daubechies wavelet of eight taps (db4).

The signal is extended by reflection at both ends: … b a | a b c … z | z y …. The numbers are those of PyWavelets in its
mode "symmetric". This is a page of code and one wavelet, so the package is not a dependency.

Axes: N samples, K levels.
"""

import numpy as np
from jaxtyping import Float

from midreel.errors import BadSetting

# The low-pass filter of the decomposition. The other three filters follow from it.
_LOW = np.array(
    [
        *(-0.010597401785069032, 0.0328830116668852, 0.030841381835560764, -0.18703481171909309),
        *(-0.027983769416859854, 0.6308807679298589, 0.7148465705529157, 0.2303778133088965),
    ]
)
_TAPS = len(_LOW)
_HIGH = -((-1.0) ** np.arange(_TAPS)) * _LOW[::-1]


def max_levels(length: int) -> int:
    """Return the largest number of levels at which a coefficient does not depend on both ends of a signal.

    >>> [max_levels(length) for length in (2, 13, 14, 27, 28, 126)]
    [0, 0, 1, 1, 2, 4]
    """
    return max((length // (_TAPS - 1)).bit_length() - 1, 0)


def detail_bands(signal: Float[np.ndarray, " N"], num_levels: int) -> Float[np.ndarray, "K N"]:
    """Return the part of a signal at each level of detail, the finest first.

    Each row is the inverse transform of the coefficients of one level. The sum of all rows and of a smooth rest is the
    signal.

    Args:
        signal: the samples.
        num_levels: the number of levels K. More than `max_levels` are possible, but reflections dominate these.

    Raises:
        BadSetting: the signal is empty, or the number of levels is negative.

    >>> detail_bands(np.array([1.0, 1.0, 5.0, 1.0, 1.0]), 1).round(2)
    array([[ 0.46, -1.89,  1.96, -0.62, -0.14]])
    """
    if not len(signal) or num_levels < 0:
        raise BadSetting(
            f"signal has {len(signal)} samples and num_levels is {num_levels}, expected at least 1 sample and 0 levels."
        )
    smooth, lengths, bands = np.asarray(signal, np.float64), [], []
    for _ in range(num_levels):
        lengths.append(len(smooth))
        band = _synthesis(_analysis(smooth, _HIGH), _HIGH[::-1])
        smooth = _analysis(smooth, _LOW)
        for length in reversed(lengths[:-1]):
            # An odd signal has one coefficient too many, and so one sample too many after the inverse step.
            band = _synthesis(band[: _num_coefficients(length)], _LOW[::-1])
        bands.append(band[: len(signal)])
    return np.stack(bands) if bands else np.empty((0, len(signal)))


def _num_coefficients(length: int) -> int:
    return (length + _TAPS - 1) // 2


def _analysis(signal: Float[np.ndarray, " N"], taps: Float[np.ndarray, " F"]) -> Float[np.ndarray, " M"]:
    """Return every second sample of the filtered signal."""
    extended = np.pad(signal, _TAPS - 1, "symmetric")
    return np.convolve(extended, taps, "valid")[1::2]


def _synthesis(coefficients: Float[np.ndarray, " M"], taps: Float[np.ndarray, " F"]) -> Float[np.ndarray, " N"]:
    """Return the samples that belong to coefficients of one filter, the transpose of `_analysis` without the ends."""
    spread = np.zeros(2 * len(coefficients))
    spread[::2] = coefficients
    return np.convolve(spread, taps)[_TAPS - 2 : 2 * len(coefficients)]
