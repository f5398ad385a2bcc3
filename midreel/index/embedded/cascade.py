"""A search from cheap to dear: coarse vectors of all windows, tokens of the scanned branch of some, all tokens of few.

Axes: P places (windows in the order of plane 0), N rows, K coarse vectors of a window, D width.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from itertools import pairwise

import numpy as np

from midreel.index.embedded import quantise
from midreel.index.embedded.ann import Trained
from midreel.index.embedded.kernels import Kernel, in_threads, num_threads
from midreel.index.embedded.quantise import Array
from midreel.index.embedded.roster import Roster
from midreel.index.embedded.rows import vectors_of
from midreel.index.embedded.vectors import Plane

CANDIDATES = 192  # windows whose tokens of the scanned branch are read, in a library of up to _MANY windows
FINALISTS = 80  # windows of which every token is read, likewise
_MANY = 5_000
_PER_RESULT = 6  # finalists for each result that is asked for, if that is more
_VIDEOS_PER_RESULT = 2  # different videos that each stage must let through, for long ones have many windows
_MOST_ROWS = 2**14  # tokens that are scored at a time
_FEWEST_ROWS = 2**11  # that are worth a thread
_FEWEST_WINDOWS = 2**10  # whose coarse vectors are worth one

Found = tuple[int, dict[str, float]]  # a place, and the best cosine of each branch there


class Cascade:
    """Searches the windows of a roster; a compressed copy of plane 0, if there is one, spares reading all of it."""

    def __init__(
        self,
        roster: Roster,
        planes: Sequence[Plane],
        *,
        weights: Mapping[str, float],
        scanned: str,
        kernel: Kernel,
        trained: Trained | None = None,
    ) -> None:
        self.roster, self.planes, self.weights, self.kernel = roster, planes, weights, kernel
        self.scanned, self.trained = scanned, trained
        self._number_of_branch = {branch: number for number, branch in enumerate(weights)}

    def places_of(self, among: Collection[str] | None) -> Array:
        """The places of all videos, or of some."""
        if among is None:
            return np.flatnonzero(self.roster.slots >= 0)
        wanted = np.zeros(len(self.roster.ids) + 1, bool)  # the last one stands for what is gone
        slots = (self.roster.slot_of_id.get(video_id) for video_id in among)
        wanted[[slot for slot in slots if slot is not None]] = True
        return np.flatnonzero(wanted[self.roster.slots])

    def best(
        self, query: Mapping[str, Array], top: int, among: Collection[str] | None = None, exact: bool = False
    ) -> list[Found]:
        """The best window of each of the best videos, best first; of equal ones the first."""
        asked = {branch: _Asked(vector) for branch, vector in query.items()}
        if not exact and among is None and self.trained is not None and _PER_RESULT * top <= FINALISTS:
            places = self._shortlist(asked[self.scanned], self.trained)
        else:
            places = self.places_of(among)
        if not exact:
            places = self.candidates(asked[self.scanned], top, places)
        by_branch = {self.scanned: self.branch_scores(self.scanned, asked, places)}
        finalists = self._number(FINALISTS, top)
        if not exact and len(places) > finalists:
            picked = np.sort(self._pick(by_branch[self.scanned], places, finalists, top))
            places, by_branch = places[picked], {self.scanned: by_branch[self.scanned][picked]}
        by_branch |= {b: self.branch_scores(b, asked, places) for b in self.weights if b != self.scanned}
        total = self._total(by_branch)
        ranked = self._first_of_each_video(total, places, top)
        if not ranked:
            return []
        # Whatever eight bits cannot tell from the best is scored again with all that is kept.
        doubt = 2 * sum(weight * asked[branch].tolerance() for branch, weight in self.weights.items())
        places = places[total >= total[ranked[-1]] - doubt]
        by_branch = {branch: self.refined_scores(branch, asked, places) for branch in self.weights}
        return [
            (int(places[line]), {branch: float(scores[line]) for branch, scores in by_branch.items()})
            for line in self._first_of_each_video(self._total(by_branch), places, top)
        ]

    def _shortlist(self, asked: "_Asked", trained: Trained) -> Array:
        """What the compressed copy names, and all that is newer than it."""
        newer = np.arange(trained.places, self.roster.num_places)
        places = np.concatenate((trained.shortlist(asked.vector), newer))
        return places[self.roster.slots[places] >= 0]

    def candidates(self, asked: "_Asked", top: int, places: Array) -> Array:
        """The windows, of those at `places`, that the coarse vectors speak for."""
        number = self._number(CANDIDATES, top)
        if len(places) <= number:
            return places
        scores = self.coarse_scores(asked, places)
        return np.sort(places[self._pick(scores, places, number, top)])

    def coarse_scores(self, asked: "_Asked", places: Array) -> Array:
        rows, scales = self.planes[0].rows["vector"], self.roster.scales
        coarse = scales.shape[1]
        few = 4 * len(places) < len(scales)
        if few:  # a filter: others need not be read
            rows, scales = rows[(places[:, None] * coarse + np.arange(coarse)).ravel()], scales[places]

        def score(part: slice) -> Array:
            products = self.kernel(rows[part.start * coarse : part.stop * coarse], asked.row).reshape(-1, coarse)
            # Column by column: numpy's maximum along rows as short as these takes four times as long.
            return reduce(np.maximum, np.multiply(products, scales[part], out=products).T)

        scores = np.concatenate(in_threads(score, _shares(len(scales))))
        return scores if few else scores[places]

    def branch_scores(self, branch: str, asked: Mapping[str, "_Asked"], places: Array) -> Array:
        """The best cosine of each window's tokens of one branch, by eight bits."""

        def score(chunk: Array) -> tuple[Array, float]:
            tokens, values, counts = self._tokens(branch, asked[branch], chunk)
            return _best_of_each(values, counts), float(tokens["scale"].max())

        parts = in_threads(score, _chunks(places, self._counts(branch)[places]))
        asked[branch].largest = max([asked[branch].largest, *(largest for _, largest in parts)])
        return np.concatenate([np.zeros(0, np.float32), *(scores for scores, _ in parts)])

    def refined_scores(self, branch: str, asked: Mapping[str, "_Asked"], places: Array) -> Array:
        """The same with all that is kept, for few windows."""
        scores = []
        doubt = 2 * asked[branch].tolerance()
        for chunk in _chunks(places, self._counts(branch)[places]):
            tokens, values, counts = self._tokens(branch, asked[branch], chunk)
            hopeful = values >= np.repeat(_best_of_each(values, counts) - doubt, counts)
            rows = tokens[hopeful]
            # Row by row: a product of matrices would round a row by what stands beside it.
            exact = (vectors_of(rows) * asked[branch].vector).sum(1)
            before = np.cumsum(counts) - counts
            scores.append(_best_of_each(exact, np.add.reduceat(hopeful, before, dtype=np.int64)))
        return np.concatenate(scores, dtype=np.float64)

    def restored(self, place: int) -> dict[str, Array]:
        """The tokens of one window, by branch."""
        parts = {}
        for branch, number in self._number_of_branch.items():
            start, count = (int(part[place]) for part in self.roster.token_rows(number))
            parts[branch] = vectors_of(self.planes[1 + number].rows[start : start + count])
        return parts

    def _tokens(self, branch: str, asked: "_Asked", places: Array) -> tuple[Array, Array, Array]:
        """The tokens of some windows, their eight-bit cosines, and how many each window has."""
        number = self._number_of_branch[branch]
        starts, counts = (part[places] for part in self.roster.token_rows(number))
        tokens = _rows_of(self.planes[1 + number], starts, counts)
        values = self.kernel(tokens["vector"], asked.row)
        return tokens, np.multiply(values, tokens["scale"] * asked.scale, out=values), counts

    def _counts(self, branch: str) -> Array:
        return self.roster.token_rows(self._number_of_branch[branch])[1]

    def _total(self, by_branch: Mapping[str, Array]) -> Array:
        return np.sum([weight * by_branch[branch] for branch, weight in self.weights.items()], 0)

    def _number(self, usual: int, top: int) -> int:
        """How many windows a stage lets through: more, if more are asked for or the best are closer to each other."""
        asked = max(1, _PER_RESULT * top / FINALISTS)
        return int(usual * asked * max(1, self.roster.num_places / _MANY) ** 0.25)

    def _pick(self, scores: Array, places: Array, number: int, top: int) -> Array:
        """The best `number` windows, or more, until there are enough different videos among them."""
        while number < len(scores):
            picked = np.argpartition(scores, -number)[-number:]
            if len(np.unique(self.roster.slots[places[picked]])) >= min(number, _VIDEOS_PER_RESULT * top):
                return picked
            number *= 4
        return np.arange(len(scores))

    def _first_of_each_video(self, scores: Array, places: Array, top: int) -> list[int]:
        order = np.lexsort((places, -scores))
        slots = self.roster.slots[places[order]]
        _, first = np.unique(slots, return_index=True)
        return order[np.sort(first)[:top]].tolist()


class _Asked:
    """A query's vector of one branch, and the same in eight bits."""

    def __init__(self, vector: Array) -> None:
        self.vector = vector
        rows, scales = quantise.quantised(vector[None])
        self.row, self.scale = rows[0], float(scales[0])
        self.largest = 0.0  # scale of a token that it was compared with

    def tolerance(self) -> float:
        """How far an eight-bit cosine may be from the one that it stands for."""
        return quantise.tolerance(self.largest, self.scale)


def _best_of_each(values: Array, counts: Array) -> Array:
    return np.maximum.reduceat(values, np.cumsum(counts) - counts)


def _chunks(places: Array, counts: Array) -> list[Array]:
    """Neighbouring places, as many as have a bearable number of rows together, and some for each thread."""
    if not len(places):
        return []
    ends = np.cumsum(counts)
    size = min(_MOST_ROWS, max(_FEWEST_ROWS, -(-int(ends[-1]) // num_threads())))
    if ends[-1] <= size:
        return [places]
    return np.split(places, np.flatnonzero(np.diff((ends - counts) // size)) + 1)


def _shares(number: int) -> list[slice]:
    """A share of so many windows for each thread, if there is enough for several."""
    shares = max(1, min(num_threads(), number // _FEWEST_WINDOWS))
    edges = [share * number // shares for share in range(shares + 1)]
    return [slice(start, end) for start, end in pairwise(edges)]


def _rows_of(plane: Plane, starts: Array, counts: Array) -> Array:
    """The rows of some windows, one after the other."""
    before = np.cumsum(counts) - counts
    total = int(before[-1] + counts[-1])
    first, last = int(starts[0]), int(starts[-1] + counts[-1])
    if last - first == total:  # they lie side by side
        return plane.between(first, last)
    return plane.take(np.arange(total) + np.repeat(starts - before, counts))
