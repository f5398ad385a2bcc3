"""The score of a branch with the similarity "attention", on numpy arrays.

It is the same score as `midreel.ops.scoring.attended_cosine`. Directions and lengths are separate here, because an
index stores them so, and because the products of unit vectors cannot overflow.

Axes: S tokens of one window, G guides of one window, D width.
"""

import numpy as np
from jaxtyping import Float

from midreel.index.base import Array


def best_guide(query: Float[Array, " D"], guides: Float[Array, "G D"]) -> int:
    """Return the number of the guide with the largest cosine, the first one among equals.

    Args:
        query: A unit vector.
        guides: Unit vectors.
    """
    # Not a matrix product: its rounding of a row depends on the other rows.
    return int((guides * query).sum(1).argmax())


def attended_cosine(
    query: Float[Array, " D"],
    guide: tuple[Float[Array, " D"], float],
    keys: tuple[Float[Array, "S D"], Float[Array, " S"]],
    values: tuple[Float[Array, "S D"], Float[Array, " S"]],
) -> float:
    """Return the cosine of a query with the values of one window, weighted by the softmax of <key, guide>.

    Args:
        query: A unit vector.
        guide: The unit vector and the length of the guide.
        keys: The unit vector and the length of the key of each value.
        values: The unit vector and the length of each value.
    """
    logits = np.einsum("sd,d->s", keys[0], guide[0]) * np.asarray(keys[1], np.float64) * guide[1]
    shares = np.exp(logits - logits.max()) * values[1]
    largest = shares.max()
    if not largest:
        return 0.0
    # The length of the mean does not matter, so the shares need not add up to 1.
    mean = np.einsum("s,sd->d", (shares / largest).astype(np.float32), values[0]).astype(np.float64)
    length = np.linalg.norm(mean)
    return float((mean * query).sum() / length) if length else 0.0
