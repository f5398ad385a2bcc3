"""A video as it is stored: from its tokens to rows of the planes and of the book, and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from midreel.index.base import checked_tokens
from midreel.index.embedded import quantise
from midreel.index.embedded import vectors as planes
from midreel.index.embedded.manifest import Row, State
from midreel.index.embedded.quantise import Array
from midreel.index.embedded.vectors import Plane
from midreel.types import Encoded, Tokens


class Stored(NamedTuple):
    """The rows of a video, before anybody knows where they will lie."""

    video_id: str
    scanned: str  # the branch that its coarse rows are made of
    parts: list[Array]  # rows of each plane
    counts: Array  # [windows, branches]: how many rows each window has
    scales: Array  # of its coarse rows

    def row(self, number: int, starts: Sequence[int], checksums: Sequence[int]) -> Row:
        """What the book says of it, once its rows lie there."""
        return Row(
            number=number,
            name=self.video_id.encode("utf-8", "surrogatepass"),
            starts=np.array(starts, "<i8").tobytes(),
            counts=self.counts.astype("<u4").tobytes(),
            checksums=np.array(checksums, "<u4").tobytes(),
            scales=self.scales.astype("<f4").tobytes(),
            checksum=0,
        ).signed()


def stored(videos: Iterable[tuple[str, Encoded]], state: State) -> Iterator[Stored]:
    """Of each video, if its tokens fit."""
    scanned = state.scanned
    for video_id, tokens in videos:
        found = checked_tokens(video_id, tokens, state.branch_weights, state.width)
        scanned = scanned or _fewest_tokens(found, state.branch_weights)
        parts, counts = [], []
        for branch in state.branch_weights:
            mask = found[branch].mask
            vectors = quantise.unit(found[branch].vectors)[mask]
            rows = np.zeros(len(vectors), planes.token_rows(state.width))
            rows["vector"], rows["bits"], rows["scale"] = quantise.in_nine_bits(vectors)
            rows["span"] = found[branch].spans[mask]
            parts.append(rows)
            counts.append(mask.sum(1))
            if branch == scanned:
                coarse, scales = _coarse_rows(vectors, counts[-1], state)
        yield Stored(video_id, scanned, [coarse, *parts], np.stack(counts, 1), scales)


def stored_again(video_id: str, parts: Sequence[Array], counts: Array, state: State) -> Stored:
    """Of the rows of its tokens alone: these, and coarse rows that are made of them."""
    assert state.scanned is not None
    branch = list(state.branch_weights).index(state.scanned)
    coarse, scales = _coarse_rows(vectors_of(parts[branch]), counts[:, branch], state)
    return Stored(video_id, state.scanned, [coarse, *parts], counts, scales)


def parts_of(mapped: Sequence[Plane], extents: Sequence[tuple[int, int, int]]) -> list[Array]:
    """A video's rows in each plane, where they lie."""
    return [plane.rows[start:end] for plane, (start, end, _) in zip(mapped, extents, strict=True)]


def tokens_of(rows: Array, counts: Array) -> Tokens:
    """Rows of a branch's plane as tokens of windows, padded."""
    mask = np.arange(counts.max()) < counts[:, None]
    vectors = np.zeros((*mask.shape, rows["vector"].shape[1]), np.float32)
    spans = np.zeros((*mask.shape, 2), np.float32)
    vectors[mask] = vectors_of(rows)
    spans[mask] = rows["span"]
    return Tokens(vectors=vectors, mask=mask, spans=spans)


def vectors_of(rows: Array) -> Array:
    """Rows of tokens as vectors."""
    return quantise.restored(rows["vector"], rows["bits"], rows["scale"])


def _coarse_rows(vectors: Array, counts: Array, state: State) -> tuple[Array, Array]:
    """What stands for windows of so many tokens each in plane 0, and its scales."""
    windows = np.split(vectors, np.cumsum(counts)[:-1])
    pooled = np.concatenate([quantise.pooled(window, state.coarse) for window in windows])
    rows = np.zeros(len(pooled), planes.coarse_rows(state.width))
    rows["vector"], scales = quantise.quantised(pooled)
    return rows, scales


def _fewest_tokens(tokens: Encoded, weights: Mapping[str, float]) -> str:
    """The branch that is cheapest to scan, of those that count."""
    return min((branch for branch in weights if weights[branch]), key=lambda branch: int(tokens[branch].mask.sum()))
