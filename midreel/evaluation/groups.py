"""Groups of queries: by the length of the moment as a share of the video, by the length of the video, by what moves.

A group is a name and the queries in it. A query may be in a group of each kind.

Axes: Q queries.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from midreel.types import Query

Groups = dict[str, Bool[np.ndarray, " Q"]]
# The limits of MS-SL and the papers after it.
RATIO_LIMITS = (0.2, 0.4)
FEWEST = 1  # queries of a group


def by_ratio(queries: Sequence[Query], durations: Float[np.ndarray, " Q"]) -> Groups:
    """Group queries by the moment-to-video ratio: at most 0.2, at most 0.4, and more.

    The moments of a query count together. A query without a moment is in no group.

    Args:
        queries: The queries.
        durations: The length of the video of each query, in seconds.
    """
    ratios = moment_ratios(queries, durations)
    low, high = RATIO_LIMITS
    named = {
        f"moment up to {low:.0%} of the video": ratios <= low,
        f"moment {low:.0%} to {high:.0%}": (ratios > low) & (ratios <= high),
        f"moment over {high:.0%}": ratios > high,
    }
    return _with_queries(named)


def moment_ratios(queries: Sequence[Query], durations: Float[np.ndarray, " Q"]) -> Float[np.ndarray, " Q"]:
    """Return the length of each query's moments as a share of its video, NaN without a moment.

    Args:
        queries: The queries.
        durations: The length of the video of each query, in seconds.
    """
    seconds = [sum(m.end - m.start for m in each.moments) if each.moments else np.nan for each in queries]
    return np.asarray(seconds, float) / durations


def by_length(durations: Float[np.ndarray, " Q"]) -> Groups:
    """Group queries by the length of their video: the shortest third, the middle third and the longest."""
    if not len(durations):
        return {}
    low, high = np.quantile(durations, [1 / 3, 2 / 3])
    named = {
        f"video up to {low:.0f} s": durations <= low,
        f"video {low:.0f} to {high:.0f} s": (durations > low) & (durations <= high),
        f"video over {high:.0f} s": durations > high,
    }
    return _with_queries(named)


def by_kind(kind_of_query: Mapping[str, str], queries: Sequence[Query]) -> Groups:
    """Group queries by a kind, such as still or moving scenes. Queries of unknown kind are in no group."""
    kinds = dict.fromkeys(kind_of_query.values())
    return _with_queries({kind: np.array([kind_of_query.get(each.id) == kind for each in queries]) for kind in kinds})


def _with_queries(named: Mapping[str, Bool[np.ndarray, " Q"]]) -> Groups:
    return {name: chosen for name, chosen in named.items() if chosen.sum() >= FEWEST}
