"""Confidence: from the score of a hit to the probability that the hit matches the query.

A score alone says little: its scale depends on the model, and the best score of a query grows with the library. So the
library is searched once for sentences about other things, the background. The best score of each background sentence
shows what a library answers to a query that it cannot answer. A score is measured against these: how many standard
deviations it is above their median. A logistic function turns that into a probability.

All functions are pure functions of numpy arrays. For one background, `confidence` rises with the score, so it never
changes the order of the hits of a query.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np
from jaxtyping import Bool, Float

from midreel.errors import BadBatch, BadSetting

THRESHOLD = 0.5  # from this probability on, a hit is confident

# `make bench-confidence` fits them on worlds 31 to 34, with equal weight for queries with and without a match.
SLOPE, MIDPOINT = 2.356, 1.537

_PER_DEVIATION = 1.4826  # standard deviations of a normal distribution in its median absolute deviation
_LEAST_SCALE = 1e-6  # of scores, which are sums of cosines. Equal background scores must not divide by 0.


@dataclass(frozen=True, kw_only=True)
class Background:
    """The best scores of sentences that a library does not match.

    Attributes:
        location: Their median.
        scale: Their standard deviation, from the median absolute deviation. Sentences that do match hardly change it.

    Raises:
        BadSetting: A value is not finite, or the scale is not above 0.
    """

    location: float
    scale: float

    def __post_init__(self) -> None:
        if not (isfinite(self.location) and isfinite(self.scale) and self.scale > 0):
            raise BadSetting(
                f"location is {self.location} and scale is {self.scale}, expected finite numbers and a scale above 0. "
                f"Calibrate the library again: midreel index"
            )


def background(best_scores: Float[np.ndarray, " N"]) -> Background:
    """Return the background of a library, from the best score of each background sentence.

    Raises:
        BadBatch: There are no scores, or some are not finite.

    >>> background(np.array([0.1, 0.2, 0.3, 0.4, 0.9])).location
    0.3
    """
    scores = np.asarray(best_scores, np.float64)
    if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
        raise BadBatch(f"best_scores has shape {scores.shape}, expected one finite score for each sentence.")
    location = float(np.median(scores))
    deviation = float(np.median(np.abs(scores - location)))
    return Background(location=location, scale=max(_PER_DEVIATION * deviation, _LEAST_SCALE))


def confidence(scores: Float[np.ndarray, " N"], against: Background) -> Float[np.ndarray, " N"]:
    """Return the probability that each score belongs to a match, from 0 to 1.

    The probability assumes that half of all queries have a match.

    Args:
        scores: Scores of hits.
        against: The background of the library.

    >>> confidence(np.array([0.3 + MIDPOINT * 0.1]), Background(location=0.3, scale=0.1)).round(3)
    array([0.5])
    """
    deviations = (np.asarray(scores, np.float64) - against.location) / against.scale
    # The logistic function as a tanh, which does not overflow.
    return (1 + np.tanh(SLOPE * (deviations - MIDPOINT) / 2)) / 2


# ---------------------------------------------------------------- how good a confidence is


def auroc(present: Float[np.ndarray, " P"], absent: Float[np.ndarray, " A"]) -> float:
    """Return the probability that a query with a match has a higher value than one without. Ties count half.

    Raises:
        BadBatch: One of them is empty.

    >>> auroc(np.array([0.9, 0.4]), np.array([0.5, 0.4]))
    0.625
    """
    present, absent = np.sort(present), np.sort(absent)
    if not len(present) or not len(absent):
        raise BadBatch(f"{len(present)} and {len(absent)} values, expected at least 1 of each.")
    below = np.searchsorted(absent, present, "left").sum()
    not_above = np.searchsorted(absent, present, "right").sum()
    return float((below + not_above) / 2 / len(present) / len(absent))


def keeping(present: Float[np.ndarray, " P"], share: float) -> float:
    """Return the highest threshold that keeps at least this share of the values. A value at the threshold is kept.

    Raises:
        BadSetting: The share is not above 0 and at most 1.

    >>> keeping(np.array([0.9, 0.7, 0.6, 0.1]), 0.75)
    0.6
    """
    if not 0 < share <= 1 or not len(present):
        raise BadSetting(f"share is {share} of {len(present)} values, expected above 0 and at most 1, of some values.")
    kept = int(np.ceil(share * len(present) - 1e-9))
    return float(np.sort(present)[len(present) - kept])


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Stated against observed probability, in bins of equal width.

    Attributes:
        stated: The mean confidence in each bin; NaN in an empty bin.
        observed: The weighted share of matches in each bin; NaN in an empty bin.
        weights: The sum of the weights in each bin.
    """

    stated: Float[np.ndarray, " K"]
    observed: Float[np.ndarray, " K"]
    weights: Float[np.ndarray, " K"]

    def error(self) -> float:
        """Return the expected calibration error: the mean distance of stated and observed, weighted by the bins."""
        filled = self.weights > 0
        gaps = np.abs(self.stated - self.observed)[filled]
        return float((gaps * self.weights[filled]).sum() / self.weights.sum())


def reliability(
    confidences: Float[np.ndarray, " N"],
    is_match: Bool[np.ndarray, " N"],
    weights: Float[np.ndarray, " N"] | None = None,
    num_bins: int = 10,
) -> Reliability:
    """Return stated against observed probabilities.

    Args:
        confidences: The stated probabilities, from 0 to 1.
        is_match: Whether each is a match.
        weights: The weight of each. Default: 1.
        num_bins: The number of bins.

    Raises:
        BadBatch: A confidence is not from 0 to 1.
    """
    weights = np.ones(len(confidences)) if weights is None else weights
    if not ((confidences >= 0) & (confidences <= 1)).all():
        raise BadBatch(f"confidences are {confidences.min()} to {confidences.max()}, expected probabilities, 0 to 1.")
    bins = np.minimum((confidences * num_bins).astype(int), num_bins - 1)
    total = np.bincount(bins, weights, num_bins)
    with np.errstate(invalid="ignore"):
        return Reliability(
            stated=np.bincount(bins, weights * confidences, num_bins) / total,
            observed=np.bincount(bins, weights * is_match, num_bins) / total,
            weights=total,
        )
