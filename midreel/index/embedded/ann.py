"""A compressed copy of the coarse vectors for large indexes, searched by faiss. It has a quarter of their size.

The copy is optional: if it is missing or damaged, searches scan the coarse vectors. Windows added after it was made are
scanned as well. Its quality depends on the vectors, so it is tested with hard queries drawn from the index. It is used
only if it finds the same windows as the scan. This is the only module that imports faiss.
"""

import importlib.util
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from midreel.index.embedded.kernels import num_threads, pool
from midreel.index.embedded.quantise import Array, unit
from midreel.io.files import write_durably

SUFFIX = "trained"
FROM = 50_000  # windows; below this, the scan is as fast
GROWTH = 1.5  # the copy is rebuilt when the index has grown by this factor
RECALL = 0.99  # the share of the scan's results that the copy must find
LADDER = (512, 1024, 2048, 4096)  # numbers of windows to return; the first one that reaches RECALL is used
_FORMAT = 1
_SAMPLE = 2**15  # rows for training
_CHUNK = 2**15  # rows compressed at a time
_ROWS_PER_WINDOW = 3  # rows to find per window: several good rows may belong to one window
_PIECE = 2**22  # bytes read from a file at a time
_NUM_QUERIES = 48
_NOISE = 3.0  # length of the noise in a hard query; the token in it has length 1


def installed() -> bool:
    """Return whether faiss is installed."""
    return importlib.util.find_spec("faiss") is not None


def fits(width: int, rows: int) -> bool:
    """Return whether vectors can be compressed."""
    # Two values become one code of four bits, and faiss needs at least one row per code for training.
    return width % 2 == 0 and rows >= 2**4


class TrainedCopy:
    """Compressed coarse vectors of the first windows of an index, in one part per thread.

    Args:
        parts: The indexes of faiss, one per thread.
        positions: The number of windows.
        coarse: The number of coarse vectors of a window.
        let_through: The number of windows that `shortlist` returns.

    Attributes:
        positions: The number of windows.
        let_through: The number of windows that `shortlist` returns.
    """

    def __init__(self, parts: Sequence[Any], *, positions: int, coarse: int, let_through: int) -> None:
        self._parts, self.positions, self._coarse, self.let_through = list(parts), positions, coarse, let_through

    @classmethod
    def build(cls, rows: Array, scales: Array) -> "TrainedCopy":
        """Compress coarse rows. This takes minutes for a million rows.

        Args:
            rows: int8 [rows, width].
            scales: float32 [windows, rows per window].
        """
        import faiss

        positions, coarse = scales.shape
        flat, width = scales.reshape(-1), rows.shape[1]

        def vectors(numbers: Any) -> Array:
            return rows[numbers].astype(np.float32) * flat[numbers][:, None]

        sample = np.random.default_rng(0).permutation(len(flat))[:_SAMPLE]
        learnt = faiss.index_factory(width, f"PQ{width // 2}x4fs", faiss.METRIC_INNER_PRODUCT)
        learnt.train(vectors(np.sort(sample)))
        edges = np.arange(num_threads() + 1) * positions // num_threads() * coarse
        parts = []
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            parts.append(faiss.clone_index(learnt))
            for start in range(first, last, _CHUNK):
                parts[-1].add(vectors(slice(start, min(last, start + _CHUNK))))
        return cls(parts, positions=positions, coarse=coarse, let_through=LADDER[0])

    def shortlist(self, query: Array) -> Array:
        """Return the positions of the windows with the best compressed rows, sorted."""
        number = self.let_through // len(self._parts)

        def search(part: Any) -> Array:
            found = part.search(query[None], min(_ROWS_PER_WINDOW * number, part.ntotal))[1][0]
            positions, first = np.unique(found[found >= 0] // self._coarse, return_index=True)
            return positions[np.argsort(first)[:number]]

        others = [pool().submit(search, part) for part in self._parts[1:]]
        found = [search(self._parts[0]), *(other.result() for other in others)]
        before = np.cumsum([0, *(part.ntotal // self._coarse for part in self._parts[:-1])])
        return np.sort(np.concatenate([positions + start for positions, start in zip(found, before, strict=True)]))

    def save(self, path: Path) -> None:
        """Write the copy to a file, atomically."""
        import faiss

        bodies = [faiss.serialize_index(part).tobytes() for part in self._parts]
        head = {
            "format": _FORMAT,
            "places": self.positions,
            "coarse": self._coarse,
            "let_through": self.let_through,
            "lengths": [len(body) for body in bodies],
            "checksums": [zlib.crc32(body) for body in bodies],
        }
        write_durably(path, [json.dumps(head).encode() + b"\n", *bodies])

    @classmethod
    def load(cls, path: Path) -> "TrainedCopy | None":
        """Return the copy in a file, or None if it is missing, damaged or of another format, or faiss is missing."""
        if not installed():
            return None
        try:
            with path.open("rb") as file:
                head = json.loads(file.readline())
                if head["format"] != _FORMAT:
                    return None
                parts = [_read_index(file, *of) for of in zip(head["lengths"], head["checksums"], strict=True)]
            if None in parts:
                return None
            return cls(parts, positions=head["places"], coarse=head["coarse"], let_through=head["let_through"])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):
            return None


def _read_index(file: BinaryIO, length: int, checksum: int) -> Any:
    """Return the faiss index in the next bytes of a file, or None if they do not match their checksum.

    The bytes are read twice, in pieces: a second copy in memory would take longer. Faiss gets only intact bytes.
    """
    import faiss

    start, found = file.tell(), 0
    for first in range(0, length, _PIECE):
        found = zlib.crc32(file.read(min(_PIECE, length - first)), found)
    if found != checksum or file.tell() != start + length:
        return None
    file.seek(start)
    reader = cast(Any, faiss).PyCallbackIOReader(file.read, _PIECE)  # which the type hints of faiss lack
    index = faiss.read_index(reader)
    file.seek(start + length)
    return index


def hard_queries(draw: Callable[[int], dict[str, Array] | None], positions: Array) -> list[dict[str, Array]]:
    """Return queries for random windows: a token of the window in each branch, plus noise.

    Args:
        draw: Returns the token vectors of a window by branch, or None to skip it.
        positions: The positions of the windows to choose from.
    """
    generator = np.random.default_rng(1)
    queries = []
    for position in generator.choice(positions, _NUM_QUERIES):
        tokens = draw(int(position))
        if tokens is None:
            continue
        noise = unit(generator.standard_normal((1, next(iter(tokens.values())).shape[1])))[0]
        fraction = generator.random()
        queries.append(
            {
                branch: unit((vectors[int(fraction * len(vectors))] + _NOISE * noise)[None].astype(np.float32))[0]
                for branch, vectors in tokens.items()
            }
        )
    return queries


def proven_recall(
    copy: TrainedCopy,
    queries: Sequence[dict[str, Array]],
    find: Callable[[dict[str, Array], TrainedCopy | None], set[int]],
) -> float | None:
    """Set `let_through` to the smallest number of windows that reaches RECALL.

    Args:
        copy: The copy to test. Its `let_through` is changed.
        queries: The queries of `hard_queries`.
        find: Returns the positions that a search for a query finds, with a copy or without one.

    Returns:
        The recall, or None if no number of windows reaches RECALL.
    """
    expected = [find(query, None) for query in queries]
    for let_through in LADDER if queries else ():
        copy.let_through = let_through
        found = [find(query, copy) for query in queries]
        pairs = zip(found, expected, strict=True)
        recall = sum(len(ours & theirs) for ours, theirs in pairs) / sum(map(len, expected))
        if recall >= RECALL:
            return recall
    return None
