"""Combine the scores of several queries: any of them, all, one without another, or in order.

Scores of different queries are not comparable. `normalised` maps the scores of each query to numbers from 0 to 1 by
their distribution over other videos. All other functions combine such numbers. They are pure functions of numpy arrays.

Axes: N videos of the background, P parts of a query, S tokens of a video in order of time.
"""

import numpy as np
from jaxtyping import Float

from midreel.errors import BadBatch

# Measured on playhouse worlds other than those of the report: docs/results/queries.md.
LEVEL, STEEPNESS = 1.0, 0.4  # the score that becomes 1/2, in standard deviations above the mean, and the slope there
_LARGEST = 30.0  # of the logit, so that no result is exactly 0 or 1


def normalised(scores: Float[np.ndarray, " S"], background: Float[np.ndarray, " N"]) -> Float[np.ndarray, " S"]:
    """Return how much scores stand out from the background, as numbers above 0 and below 1.

    A score that lies LEVEL standard deviations above the mean of the background becomes 1/2. The order of scores is
    kept. If all scores of the background are equal, the unit is 1 instead of their standard deviation.

    Args:
        scores: scores of a query.
        background: scores of the same query for videos of the library, most of which do not match it.

    Raises:
        BadBatch: the background is empty.

    >>> normalised(np.array([1.0, 3.0]), np.array([0.0, 2.0])).round(2).tolist()
    [0.4, 0.6]
    """
    if not background.size:
        raise BadBatch("the background is empty, expected the score of at least one video. Add a video first.")
    mean, spread = float(background.mean(dtype=np.float64)), float(background.std(dtype=np.float64))
    # Equal scores may differ in their last bits, whose spread says nothing.
    unit = spread if spread > 1e-6 * max(1.0, abs(mean)) else 1.0
    logits = STEEPNESS * ((scores.astype(np.float64) - mean) / unit - LEVEL)
    return 1 / (1 + np.exp(-logits.clip(-_LARGEST, _LARGEST)))


def any_of(curves: Float[np.ndarray, "P S"]) -> Float[np.ndarray, " S"]:
    """Return the highest value of the parts.

    >>> any_of(np.array([[0.2, 0.9], [0.5, 0.1]])).tolist()
    [0.5, 0.9]
    """
    return curves.max(0)


def without(wanted: Float[np.ndarray, " S"], unwanted: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """Return the wanted values, reduced where the unwanted part has high values.

    >>> without(np.array([0.8, 0.8]), np.array([0.0, 0.5])).tolist()
    [0.8, 0.4]
    """
    return wanted * (1 - unwanted)


def all_of(values: Float[np.ndarray, " P"]) -> float:
    """Return the geometric mean of the parts, which is low if any part is low.

    >>> round(all_of(np.array([0.9, 0.4])), 2)
    0.6
    """
    return float(np.exp(np.log(values).mean()))


def in_order(curves: Float[np.ndarray, "P S"]) -> tuple[float, list[int]]:
    """Return the highest product of the parts at increasing tokens, one token for each part, and these tokens.

    Of equal products the one with the earliest tokens counts, the last part first. A video that has fewer tokens than
    there are parts has the product 0, and each part its own best token.

    Args:
        curves: the values of each part over time. The tokens are in order of time and do not overlap.

    >>> in_order(np.array([[0.9, 0.5, 0.1], [0.9, 0.2, 0.5]]))[1]
    [0, 2]
    """
    parts, length = curves.shape
    if length < parts:
        return 0.0, curves.argmax(1).tolist()
    # best[k, j]: the highest product of the parts 0 to k, with part k at token j.
    best = np.zeros(curves.shape)
    best[0] = curves[0]
    before = np.zeros(curves.shape, int)  # the token of part k - 1 in that product
    for k in range(1, parts):
        so_far = np.maximum.accumulate(best[k - 1])
        is_new = np.concatenate(([True], best[k - 1][1:] > so_far[:-1]))
        where = np.maximum.accumulate(np.where(is_new, np.arange(length), 0))
        best[k, 1:], before[k, 1:] = so_far[:-1] * curves[k, 1:], where[:-1]
    tokens = [int(best[-1].argmax())]
    for k in range(parts - 1, 0, -1):
        tokens.append(int(before[k, tokens[-1]]))
    return float(best[-1].max()), tokens[::-1]
