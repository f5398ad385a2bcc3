"""The rows of token tables, compared with a slow encoder of COPY that writes value by value."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from midreel.index.postgres import rows
from midreel.index.rerank import padded
from midreel.types import Tokens


def tokens(seed: int, counts: list[int], width: int) -> Tokens:
    """Return windows with some numbers of tokens, padded in between."""
    random = np.random.default_rng(seed)
    mask = np.zeros((len(counts), max(counts) + 1), bool)
    for window, count in enumerate(counts):
        mask[window, random.permutation(mask.shape[1])[:count]] = True
    vectors = random.standard_normal((*mask.shape, width)).astype(np.float32)
    return Tokens(vectors=vectors, mask=mask, spans=random.random((*mask.shape, 2)).astype(np.float32))


def slow_rows(video: int, part: Tokens, *, norms: bool) -> list[bytes]:
    """Encode each row value by value, as the manual of PostgreSQL describes it."""
    width = part.vectors.shape[2]
    size, found = rows.per_row(width), []
    for window in range(len(part)):
        real = [(part.vectors[window, s], part.spans[window, s]) for s in np.flatnonzero(part.mask[window])]
        for number, start in enumerate(range(0, len(real), size)):
            some = real[start : start + size]
            lengths = [float(np.linalg.norm(vector)) for vector, _ in some]
            values = [struct.pack(">q", video), struct.pack(">i", window), struct.pack(">h", number)]
            values.append(slow_array([float(edge) for _, span in some for edge in span]))
            if norms:
                values.append(slow_array(lengths))
            for (vector, _), length in zip(some, lengths, strict=True):
                halves = np.array([value / length for value in vector], np.float32).astype(">f2")
                values.append(struct.pack(">hh", width, 0) + halves.tobytes())
            row = struct.pack(">h", len(values) + size - len(some))
            row += b"".join(struct.pack(">i", len(value)) + value for value in values)
            found.append(row + struct.pack(">i", -1) * (size - len(some)))
    return found


def slow_array(values: list[float]) -> bytes:
    head = struct.pack(">iiiii", 1, 0, 700, len(values), 1)
    return head + b"".join(struct.pack(">if", 4, value) for value in values)


@given(st.integers(0, 99), st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 9), st.booleans())
def test_equals_the_slow_encoder(seed: int, counts: list[int], width: int, norms: bool) -> None:
    part = tokens(seed, counts, width)
    found = b"".join(rows.TokenRows(width, norms=norms).encoded(7, part))
    expected = slow_rows(7, part, norms=norms)
    assert len(found) == sum(map(len, expected))
    if norms:  # a length in the last place of a float32 may differ
        return
    for row in expected:
        assert row in found


def test_a_row_of_two_tokens_by_hand() -> None:
    part = Tokens(
        vectors=np.array([[[3.0, 4.0], [0.0, -2.0]]], np.float32),
        mask=np.ones((1, 2), bool),
        spans=np.array([[[0.0, 0.5], [0.5, 1.0]]], np.float32),
    )
    (row,) = rows.TokenRows(2, norms=True).encoded(258, part)
    assert row.startswith(b"\x00\x15\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x01\x02")  # 21 fields, then the video
    assert struct.pack(">hhee", 2, 0, 0.6, 0.8) in row
    assert slow_array([5.0, 2.0]) in row
    assert row.endswith(b"\xff" * 4 * 14)


@pytest.mark.parametrize("width", [1, 8, 24, 384, 512, 1024, 3000, 4000, 5000])
def test_rows_fit_into_a_page(width: int) -> None:
    size = rows.per_row(width)
    # Headers of a page, an item and a row; the keys; two arrays; and the vectors with their headers.
    num_bytes = 24 + 4 + 24 + 16 + 2 * 24 + size * (8 + 4 + 8 + 2 * width)
    assert num_bytes <= 8192 or size == 1
    assert rows.fits_page(width) == (num_bytes <= 8192)
    assert size == 16 or num_bytes + 20 + 2 * width > 8192


def test_rows_come_back_as_tokens() -> None:
    part = tokens(3, [25, 4], 6)
    rows_of_first = [(part.mask[0].nonzero()[0][start : start + 16]) for start in (0, 16)]
    units = part.vectors / np.linalg.norm(part.vectors, axis=-1, keepdims=True)
    packed = [
        (
            part.spans[0, chosen].ravel(),
            np.linalg.norm(part.vectors[0, chosen], axis=-1),
            [struct.pack(">hh", 6, 0) + vector.astype(">f2").tobytes() for vector in units[0, chosen]] + [None] * 3,
        )
        for chosen in rows_of_first
    ]
    kept = padded([rows.decoded(packed)])
    assert kept.vectors[0] == pytest.approx(part.vectors[0, part.mask[0]], abs=5e-3)
    assert np.array_equal(kept.spans[0], part.spans[0, part.mask[0]])


def test_a_vector_as_text() -> None:
    assert rows.literal(torch.tensor([1.0, -0.5]).numpy()) == "[1.0,-0.5]"
