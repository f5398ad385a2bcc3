"""Convert the tokens of videos to rows of the vector files and of the manifest, and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from midreel.index.base import checked_tokens
from midreel.index.embedded import quantise
from midreel.index.embedded.manifest import Row, State
from midreel.index.embedded.quantise import Array
from midreel.index.embedded.vectors import VectorFile, coarse_dtype, token_dtype
from midreel.types import Encoded, Tokens


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
    scanned = state.scanned
    for video_id, tokens in videos:
        found = checked_tokens(video_id, tokens, state.branch_weights, state.width)
        scanned = scanned or _branch_with_fewest_tokens(found, state.branch_weights)
        parts, counts = [], []
        for branch in state.branch_weights:
            mask = found[branch].mask
            vectors = quantise.unit(found[branch].vectors)[mask]
            rows = np.zeros(len(vectors), token_dtype(state.width))
            rows["vector"], rows["bits"], rows["scale"] = quantise.in_nine_bits(vectors)
            rows["span"] = found[branch].spans[mask]
            parts.append(rows)
            counts.append(mask.sum(1))
            if branch == scanned:
                coarse, scales = _coarse_rows(vectors, counts[-1], state)
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
    coarse, scales = _coarse_rows(vectors_of(token_parts[branch]), counts[:, branch], state)
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
    vectors = np.zeros((*mask.shape, rows["vector"].shape[1]), np.float32)
    spans = np.zeros((*mask.shape, 2), np.float32)
    vectors[mask] = vectors_of(rows)
    spans[mask] = rows["span"]
    return Tokens(vectors=vectors, mask=mask, spans=spans)


def vectors_of(rows: Array) -> Array:
    """Return the vectors in rows of a token file."""
    return quantise.restored(rows["vector"], rows["bits"], rows["scale"])


def _coarse_rows(vectors: Array, counts: Array, state: State) -> tuple[Array, Array]:
    """Return the coarse rows of windows, given their token vectors and the number of tokens, and the scales."""
    windows = np.split(vectors, np.cumsum(counts)[:-1])
    pooled = np.concatenate([quantise.pooled(window, state.coarse) for window in windows])
    rows = np.zeros(len(pooled), coarse_dtype(state.width))
    rows["vector"], scales = quantise.quantised(pooled)
    return rows, scales


def _branch_with_fewest_tokens(tokens: Encoded, weights: Mapping[str, float]) -> str:
    """Return the branch that is cheapest to scan, among those with weight."""
    return min((branch for branch in weights if weights[branch]), key=lambda branch: int(tokens[branch].mask.sum()))
