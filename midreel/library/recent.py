"""The vectors of recent queries, so that a query that is asked again is not encoded again."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from midreel.index.base import Array

MOST = 1024  # queries; a few kilobytes each


class RecentQueries:
    """A cache of the vectors of the last queries of one model. Another model needs a new one.

    Only queries that were encoded alone are kept: in a batch, padding changes the last digits. So an answer from the
    cache is the answer to the query alone, to the last bit.

    Args:
        encode: Returns the vectors of each branch, a row for each sentence.
        most: The number of queries to keep.
    """

    def __init__(self, encode: Callable[[list[str]], Mapping[str, Array]], most: int = MOST) -> None:
        self._encode, self._most = encode, most
        self._kept: OrderedDict[str, Mapping[str, Array]] = OrderedDict()

    def encode(self, queries: Sequence[str]) -> dict[str, Array]:
        """Return the vectors of each branch, a row for each query. New queries are encoded in one batch."""
        rows = {query: self._kept[query] for query in queries if query in self._kept}
        for query in rows:
            self._kept.move_to_end(query)
        new = [query for query in dict.fromkeys(queries) if query not in rows]
        if new or not queries:
            encoded = self._encode(new)
            rows |= {query: {branch: of[row] for branch, of in encoded.items()} for row, query in enumerate(new)}
            if len(new) == 1:
                self._kept[new[0]] = rows[new[0]]
                if len(self._kept) > self._most:
                    self._kept.popitem(last=False)
        if len(new) == len(queries):
            return dict(encoded)
        return {branch: np.stack([rows[query][branch] for query in queries]) for branch in rows[queries[0]]}
