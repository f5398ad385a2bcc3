"""A compressed copy of plane 0 for large libraries: a quarter of its bytes, of which faiss finds the best rows.

The only file that imports faiss. The copy is derived: it can be lost, be behind, or be absent, and the scan serves. It
has to be learnt from the vectors, and vectors differ; so it serves only after it has shown, on hard queries drawn from
the library itself, that it names the candidates that the scan names.
"""

import importlib.util
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from midreel.index.embedded.kernels import num_threads, pool
from midreel.index.embedded.quantise import Array, unit
from midreel.io.files import write_durably

SUFFIX = "trained"
FROM = 50_000  # windows, below which the scan is as fast
GROWTH = 1.5  # of the library, after which the copy is made anew
RECALL = 0.99  # of what the scan finds, that the copy must find
LADDER = (512, 1024, 2048, 4096)  # windows to let through; the first that reaches the recall
_FORMAT = 1
_SAMPLE = 2**15  # rows to learn from
_CHUNK = 2**15  # rows that are compressed at a time
_ROWS_PER_WINDOW = 3  # to be found by faiss, for some windows have several good ones
_NUM_QUERIES = 48
_NOISE = 3.0  # times the length of what a hard query is about


def installed() -> bool:
    return importlib.util.find_spec("faiss") is not None


def fits(width: int, rows: int) -> bool:
    """Two numbers are compressed together, to four bits, whose meanings must be learnt from as many rows."""
    return width % 2 == 0 and rows >= 2**4


class Trained:
    """Compressed rows of the first windows of plane 0, in as many parts as there are threads."""

    def __init__(self, parts: Sequence[Any], *, places: int, coarse: int, let_through: int) -> None:
        self._parts, self.places, self._coarse, self.let_through = list(parts), places, coarse, let_through

    @classmethod
    def build(cls, rows: Array, scales: Array) -> "Trained":
        """Of eight-bit rows and their scales, a line per window. Takes minutes for a million rows."""
        import faiss

        places, coarse = scales.shape
        flat, width = scales.reshape(-1), rows.shape[1]

        def vectors(numbers: Any) -> Array:
            return rows[numbers].astype(np.float32) * flat[numbers][:, None]

        sample = np.random.default_rng(0).permutation(len(flat))[:_SAMPLE]
        learnt = faiss.index_factory(width, f"PQ{width // 2}x4fs", faiss.METRIC_INNER_PRODUCT)
        learnt.train(vectors(np.sort(sample)))
        edges = np.arange(num_threads() + 1) * places // num_threads() * coarse
        parts = []
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            parts.append(faiss.clone_index(learnt))
            for start in range(first, last, _CHUNK):
                parts[-1].add(vectors(slice(start, min(last, start + _CHUNK))))
        return cls(parts, places=places, coarse=coarse, let_through=LADDER[0])

    def shortlist(self, query: Array) -> Array:
        """The windows whose compressed rows speak for the query, in order of their places."""
        number = self.let_through // len(self._parts)

        def search(part: Any) -> Array:
            found = part.search(query[None], min(_ROWS_PER_WINDOW * number, part.ntotal))[1][0]
            places, first = np.unique(found[found >= 0] // self._coarse, return_index=True)
            return places[np.argsort(first)[:number]]

        others = [pool().submit(search, part) for part in self._parts[1:]]
        found = [search(self._parts[0]), *(other.result() for other in others)]
        before = np.cumsum([0, *(part.ntotal // self._coarse for part in self._parts[:-1])])
        return np.sort(np.concatenate([places + start for places, start in zip(found, before, strict=True)]))

    def save(self, path: Path) -> None:
        """The file is whole or absent."""
        import faiss

        bodies = [faiss.serialize_index(part).tobytes() for part in self._parts]
        head = {
            "format": _FORMAT,
            "places": self.places,
            "coarse": self._coarse,
            "let_through": self.let_through,
            "lengths": [len(body) for body in bodies],
            "checksums": [zlib.crc32(body) for body in bodies],
        }
        write_durably(path, [json.dumps(head).encode() + b"\n", *bodies])

    @classmethod
    def load(cls, path: Path) -> "Trained | None":
        """None if there is none that can be used: it is missing, damaged or of another version."""
        if not installed():
            return None
        import faiss

        try:
            with path.open("rb") as file:
                head = json.loads(file.readline())
                if head["format"] != _FORMAT:
                    return None
                bodies = [file.read(length) for length in head["lengths"]]
                if [zlib.crc32(body) for body in bodies] != head["checksums"]:
                    return None
            parts = [faiss.deserialize_index(np.frombuffer(body, np.uint8)) for body in bodies]
            return cls(parts, places=head["places"], coarse=head["coarse"], let_through=head["let_through"])
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):
            return None


def hard_queries(draw: Callable[[int], dict[str, Array] | None], places: Array) -> list[dict[str, Array]]:
    """Queries about windows drawn at random: one of the window's tokens in each branch, drowned in noise.

    `draw` gives the tokens of a window, or None for one that there are none of.
    """
    generator = np.random.default_rng(1)
    queries = []
    for place in generator.choice(places, _NUM_QUERIES):
        tokens = draw(int(place))
        if tokens is None:
            continue
        noise = unit(generator.standard_normal((1, next(iter(tokens.values())).shape[1])))[0]
        at = generator.random()
        queries.append(
            {
                branch: unit((vectors[int(at * len(vectors))] + _NOISE * noise)[None].astype(np.float32))[0]
                for branch, vectors in tokens.items()
            }
        )
    return queries


def proven_recall(
    copy: Trained,
    queries: Sequence[dict[str, Array]],
    find: Callable[[dict[str, Array], Trained | None], set[int]],
) -> float | None:
    """The recall that a copy reaches, letting through as few windows as will do; None if it does not serve.

    `find` names the windows that are found with the help of a copy, or without.
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
