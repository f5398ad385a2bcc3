"""Convert the tokens of videos to rows of the vector files and of the manifest, and back."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from midreel.index.base import checked_tokens, scannable
from midreel.index.embedded import quantise
from midreel.index.embedded.manifest import Row, State
from midreel.index.embedded.quantise import Array
from midreel.index.embedded.vectors import VectorFile, coarse_dtype, fields_of, token_dtype
from midreel.types import Encoded, Tokens, with_norms


class VideoRows(NamedTuple):
    """The rows of a video, before their position in the files is known.

    Attributes:
        video_id: The id of the video.
        scanned: The branch from which the coarse rows are made.
        parts: The rows for each vector file.
        counts: [windows, branches]: the number of tokens.
        scales: The scales of the coarse rows.
    """

    video_id: str
    scanned: str
    parts: list[Array]
    counts: Array
    scales: Array

    def manifest_row(self, number: int, starts: Sequence[int], checksums: Sequence[int]) -> Row:
        """Return the row for the manifest, once the rows are written.

        Args:
            number: The number of the row.
            starts: The first row of the video in each vector file.
            checksums: The checksum of its rows in each vector file.
        """
        return Row(
            number=number,
            name=self.video_id.encode("utf-8", "surrogatepass"),
            starts=np.array(starts, "<i8").tobytes(),
            counts=self.counts.astype("<u4").tobytes(),
            checksums=np.array(checksums, "<u4").tobytes(),
            scales=self.scales.astype("<f4").tobytes(),
            checksum=0,
        ).signed()


def to_rows(videos: Iterable[tuple[str, Encoded]], state: State) -> Iterator[VideoRows]:
    """Yield the rows of each video.

    Raises:
        BadSetting: An id is empty.
        BadBatch: Tokens do not fit the index.
    """
    scanned, long_branches = state.scanned, with_norms(state.similarities)
    for video_id, tokens in videos:
        found = checked_tokens(video_id, tokens, state.branch_weights, state.width, state.similarities)
        scanned = scanned or _branch_with_fewest_tokens(found, state)
        parts, counts = [], []
        for branch in state.branch_weights:
            mask = found[branch].mask
            rows = np.zeros(int(mask.sum()), token_dtype(state.width, norm=branch in long_branches))
            if branch in long_branches:
                units, rows["norm"] = quantise.directions(found[branch].vectors[mask])
            else:
                units = quantise.unit(found[branch].vectors)[mask]
            rows["vector"], rows["bits"], rows["scale"] = quantise.in_nine_bits(units)
            rows["span"] = found[branch].spans[mask]
            parts.append(rows)
            counts.append(mask.sum(1))
            if branch == scanned:
                coarse, scales = _coarse_rows(units, rows, counts[-1], scanned, state)
        yield VideoRows(video_id, scanned, [coarse, *parts], np.stack(counts, 1), scales)


def with_new_coarse_rows(video_id: str, token_parts: Sequence[Array], counts: Array, state: State) -> VideoRows:
    """Return the rows of a video whose coarse rows are lost: its token rows, and coarse rows made from them.

    Args:
        video_id: The id of the video.
        token_parts: Its intact token rows in each branch.
        counts: The number of tokens of each window and branch.
        state: The state of the index, which names the scanned branch.
    """
    assert state.scanned is not None
    branch = list(state.branch_weights).index(state.scanned)
    rows = token_parts[branch]
    coarse, scales = _coarse_rows(units_of(rows), rows, counts[:, branch], state.scanned, state)
    return VideoRows(video_id, state.scanned, [coarse, *token_parts], counts, scales)


def read_parts(files: Sequence[VectorFile], extents: Sequence[tuple[int, int, int]]) -> list[Array]:
    """Return a video's rows in each file, without copying them."""
    return [file.rows[start:end] for file, (start, end, _) in zip(files, extents, strict=True)]


def tokens_of(rows: Array, counts: Array) -> Tokens:
    """Return the rows of a branch as tokens, padded to the longest window.

    Args:
        rows: Rows of a token file.
        counts: The number of rows of each window.
    """
    mask = np.arange(counts.max()) < counts[:, None]
    if mask.size == len(rows):  # no padding, as in every video of one window
        vectors, spans = vectors_of(rows), rows["span"].copy()
        return Tokens(vectors=vectors.reshape(*mask.shape, -1), mask=mask, spans=spans.reshape(*mask.shape, 2))
    vectors = np.zeros((*mask.shape, rows["vector"].shape[1]), np.float32)
    spans = np.zeros((*mask.shape, 2), np.float32)
    vectors[mask] = vectors_of(rows)
    spans[mask] = rows["span"]
    return Tokens(vectors=vectors, mask=mask, spans=spans)


def vectors_of(rows: Array) -> Array:
    """Return the vectors in rows of a token file: of full length if the rows have it, otherwise unit vectors."""
    units = units_of(rows)
    return units * rows["norm"][:, None] if "norm" in fields_of(rows) else units


def units_of(rows: Array) -> Array:
    """Return the unit vectors in rows of a token file."""
    return quantise.restored(rows["vector"], rows["bits"], rows["scale"])


def _coarse_rows(units: Array, rows: Array, counts: Array, branch: str, state: State) -> tuple[Array, Array]:
    """Return the coarse rows of windows, and their scales.

    Args:
        units: The unit vectors of the tokens, one window after the other.
        rows: The rows of the same tokens.
        counts: The number of tokens of each window.
        branch: The branch of the tokens.
        state: The state of the index.
    """
    # Neighbours are near in time. The tokens of most methods come in this order, but clips of many lengths do not.
    order = np.lexsort((rows["span"].sum(1), np.repeat(np.arange(len(counts)), counts)))
    by_length = branch in state.similarities  # a dot branch: an attention is never scanned
    norms = rows["norm"][order] if by_length else None
    vectors = units[order] * norms[:, None] if norms is not None else units[order]
    ends = np.cumsum(counts)
    pooled = np.concatenate(
        [
            quantise.pooled(vectors[start:end], state.coarse, None if norms is None else norms[start:end])
            for start, end in zip(ends - counts, ends, strict=True)
        ]
    )
    coarse = np.zeros(len(pooled), coarse_dtype(state.width))
    coarse["vector"], scales = quantise.quantised(pooled)
    return coarse, scales


def _branch_with_fewest_tokens(tokens: Encoded, state: State) -> str:
    """Return the branch that is cheapest to scan."""
    branches = scannable(state.branch_weights, state.similarities)
    return min(branches, key=lambda branch: int(tokens[branch].mask.sum()))
