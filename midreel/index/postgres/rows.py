"""Convert tokens to rows of PostgreSQL in the format of binary COPY, and back.

A row of a token table holds up to `per_row` tokens of one window, in as many columns. The cost of a scan is the cost of
its rows rather than of its products, so a row fills a page. The last row of a window may have fewer tokens; its other
columns are NULL.

A token is a unit vector of half precision (`halfvec`). Where its length counts, it is stored beside.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from psycopg.adapt import Buffer, Loader
from psycopg.pq import Format

from midreel.index.base import Array
from midreel.index.embedded.quantise import directions, unit
from midreel.index.rerank import WindowTokens
from midreel.types import Tokens

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
FLOATS = 1021  # the object id of real[]
_FLOAT = 700  # the object id of real
_PAGE = 8064  # bytes of a page of 8192 that a row can fill, less its keys and the headers of page, row and arrays
_BESIDE = 20  # bytes of a token beside its values: the header of its vector, its span and its length
_MOST = 16  # tokens per row of narrow vectors: more would only be NULL
_ARRAY = [("dims", ">i4"), ("nulls", ">i4"), ("kind", ">i4"), ("size", ">i4"), ("first", ">i4")]
_ITEM = np.dtype([("bytes", ">i4"), ("value", ">f4")])


def per_row(width: int) -> int:
    """Return the number of tokens of a row.

    >>> per_row(384), per_row(8)
    (10, 16)
    """
    return max(1, min(_MOST, _PAGE // (2 * width + _BESIDE)))


def fits_page(width: int) -> bool:
    """Return whether a row of one token fits into a page, so that it need not be stored out of line."""
    return 2 * width + _BESIDE <= _PAGE


class TokenRows:
    """Makes the rows of one token table.

    Args:
        width: The width of the vectors.
        norms: Whether the table stores lengths.
    """

    def __init__(self, width: int, *, norms: bool) -> None:
        self._width, self._norms, self._per_row = width, norms, per_row(width)
        self._dtypes: dict[int, np.dtype[np.void]] = {}

    def encoded(self, video: int, tokens: Tokens) -> Iterator[bytes]:
        """Yield the rows of a video, for COPY.

        Args:
            video: The number of the video.
            tokens: Its tokens in this branch.
        """
        mask = tokens.mask
        units, norms = _directions(tokens.vectors[mask], norms=self._norms)
        spans, counts = tokens.spans[mask], mask.sum(1)
        ends = np.cumsum(counts)
        places = [
            (window, part, start + part * self._per_row, min(self._per_row, int(end - start) - part * self._per_row))
            for window, (start, end) in enumerate(zip((ends - counts).tolist(), ends.tolist(), strict=True))
            for part in range(-(-(end - start) // self._per_row))
        ]
        for number in sorted({place[3] for place in places}):  # all rows with the same number of tokens are alike
            windows, parts, starts = np.array([place[:3] for place in places if place[3] == number]).T
            chosen = starts[:, None] + np.arange(number)
            rows = np.zeros(len(starts), self._dtype(number))
            rows["video"]["value"], rows["window"]["value"], rows["part"]["value"] = video, windows, parts
            rows["spans"]["items"]["value"] = spans[chosen].reshape(len(starts), -1)
            rows["vectors"]["value"] = units[chosen]
            if norms is not None:
                rows["norms"]["items"]["value"] = norms[chosen]
            yield _with_sizes(rows).tobytes()

    def _dtype(self, number: int) -> "np.dtype[np.void]":
        """Return the layout of a row of `number` tokens."""
        if number not in self._dtypes:
            vector = [("bytes", ">i4"), ("dim", ">i2"), ("unused", ">i2"), ("value", ">f2", (self._width,))]
            fields = [
                ("fields", ">i2"),
                *((name, [("bytes", ">i4"), ("value", kind)]) for name, kind in _KEYS.items()),
                ("spans", _array_dtype(2 * number)),
                *([("norms", _array_dtype(number))] if self._norms else []),
                ("vectors", vector, (number,)),
                ("absent", ">i4", (self._per_row - number,)),
            ]
            self._dtypes[number] = np.dtype(fields)
        return self._dtypes[number]


_KEYS = {"video": ">i8", "window": ">i4", "part": ">i2"}


def _array_dtype(number: int) -> list[tuple[object, ...]]:
    return [("bytes", ">i4"), *_ARRAY, ("items", _ITEM, (number,))]


def _with_sizes(rows: Array) -> Array:
    """Fill in what COPY says about each value: the number of fields, and the bytes of each."""
    names = rows.dtype.names or ()
    number, absent = rows["vectors"].shape[1], rows["absent"].shape[1]
    rows["fields"] = len(names) - 3 + number + absent
    for name, kind in _KEYS.items():
        rows[name]["bytes"] = np.dtype(kind).itemsize
    for name in ("spans", "norms"):
        if name in names:
            array = rows[name]
            array["bytes"] = array.dtype.itemsize - 4
            array["dims"], array["kind"], array["first"] = 1, _FLOAT, 1
            array["size"], array["items"]["bytes"] = array["items"].shape[1], 4
    vectors = rows["vectors"]
    vectors["dim"] = vectors["value"].shape[2]
    vectors["bytes"] = vectors.dtype.itemsize - 4
    rows["absent"] = -1
    return rows


class FloatsLoader(Loader):
    """Loads a real[] as an array of numpy."""

    format = Format.BINARY

    def load(self, data: Buffer) -> Array:
        """Return the values."""
        return np.frombuffer(bytes(data), _ITEM, offset=20)["value"].astype(np.float32)


def decoded(parts: Sequence[tuple[Array, Array | None, Sequence[bytes | None]]]) -> WindowTokens:
    """Return the tokens of one window in one branch from its rows, in order.

    Args:
        parts: The spans, the lengths and the vectors of each row.
    """
    packed = b"".join(vector[4:] for part in parts for vector in part[2] if vector is not None)
    spans = np.concatenate([part[0] for part in parts]).reshape(-1, 2)
    units = unit(np.frombuffer(packed, ">f2").astype(np.float32).reshape(len(spans), -1))  # halves are rounded
    norms = [part[1] for part in parts if part[1] is not None]
    return WindowTokens(units, np.concatenate(norms) if norms else None, spans)


def literal(vector: Array) -> str:
    """Return a vector as text for a parameter of the type vector or halfvec."""
    return "[" + ",".join(map(str, vector.tolist())) + "]"


def _directions(vectors: Array, *, norms: bool) -> tuple[Array, Array | None]:
    return directions(vectors) if norms else (unit(vectors), None)
