"""Search in stages, from cheap to expensive.

1. The coarse vectors of all windows, or a compressed copy of them, select candidates.
2. The tokens of one branch, the scanned one, select finalists from the candidates.
3. The tokens of all branches rank the finalists, in eight bits.
4. Windows that eight bits cannot separate from the best ones are scored again with nine bits.

A branch with the similarity "attention" is scored in stage 3 only, with nine bits: its score has no best token.

Arrays have one entry per position: a window's number in the coarse file (see `roster`).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from itertools import pairwise

import numpy as np

from midreel.index.attention import attended_cosine, best_guide
from midreel.index.base import scored_branches
from midreel.index.embedded import quantise
from midreel.index.embedded.ann import TrainedCopy
from midreel.index.embedded.kernels import Kernel, in_threads, num_threads
from midreel.index.embedded.quantise import Array
from midreel.index.embedded.roster import Roster
from midreel.index.embedded.rows import units_of
from midreel.index.embedded.vectors import VectorFile
from midreel.types import Similarities

CANDIDATES = 192  # windows that pass stage 1, in an index of up to _MANY windows
FINALISTS = 80  # windows that pass stage 2, likewise
_MANY = 5_000
_PER_RESULT = 6  # finalists per requested result, if that is more than FINALISTS
_VIDEOS_PER_RESULT = 2  # different videos per result that must pass each stage: a long video has many windows
_PER_ATTENTION = 2  # times as many candidates and finalists if a branch has no best token, only a score of stage 3
_MAX_ROWS = 2**14  # tokens scored at a time
_MIN_BYTES = 2**20  # of tokens that make a thread worthwhile
_MIN_WINDOWS = 2**10  # windows whose coarse vectors make a thread worthwhile

Found = tuple[int, dict[str, float]]  # a position, and the score of each branch at it


class Cascade:
    """A search over the windows of a roster.

    Args:
        roster: The windows.
        files: The vector files: the coarse file, then one token file per branch.
        weights: The weight of each branch.
        scanned: The branch from which the coarse vectors are made.
        kernel: Computes products of eight-bit vectors.
        similarities: How each branch scores that does not score by its best cosine.
        trained: A compressed copy of the coarse vectors, to search instead of all of them.
    """

    def __init__(
        self,
        roster: Roster,
        files: Sequence[VectorFile],
        *,
        weights: Mapping[str, float],
        scanned: str,
        kernel: Kernel,
        similarities: Similarities | None = None,
        trained: TrainedCopy | None = None,
    ) -> None:
        self.roster, self.files, self.weights, self.kernel = roster, files, weights, kernel
        self.scanned, self.trained = scanned, trained
        self._number_of_branch = {branch: number for number, branch in enumerate(weights)}
        forms = similarities or {}
        self._scored = scored_branches(weights, forms)
        self._attentions = {branch: forms[branch] for branch in self._scored if branch in forms and forms[branch].keys}
        self._more = _PER_ATTENTION if any(weights[branch] for branch in self._attentions) else 1
        self._by_length = {branch for branch, form in forms.items() if form.kind == "dot"}

    def positions_of(self, among: Collection[str] | None) -> Array:
        """Return the positions of all videos, or of those with the given ids."""
        if among is None:
            return np.flatnonzero(self.roster.slots >= 0)
        wanted = np.zeros(len(self.roster.ids) + 1, bool)  # the last entry, at index GONE, stays False
        slots = (self.roster.slot_of_id.get(video_id) for video_id in among)
        wanted[[slot for slot in slots if slot is not None]] = True
        return np.flatnonzero(wanted[self.roster.slots])

    def best(
        self, query: Mapping[str, Array], top: int, among: Collection[str] | None = None, exact: bool = False
    ) -> list[Found]:
        """Return the best window of each of the best videos, best first. Among equal scores, the first position wins.

        Args:
            query: A unit vector per branch, or a vector of any length for a dot product.
            top: The maximum number of results.
            among: The ids to search. Default: all.
            exact: Whether to skip stages 1 and 2.

        Raises:
            BadRow: A token row is damaged.
        """
        vectors = {branch: _QueryVector(*self._direction(branch, vector)) for branch, vector in query.items()}
        if not exact and among is None and self.trained is not None and _PER_RESULT * top <= FINALISTS:
            positions = self._shortlist(vectors[self.scanned], self.trained)
        else:
            positions = self.positions_of(among)
        if not exact:
            positions = self.candidates(vectors[self.scanned], top, positions)
        by_branch = {self.scanned: self.branch_scores(self.scanned, vectors, positions)}
        finalists = self._number(FINALISTS, top)
        if not exact and len(positions) > finalists:
            picked = np.sort(self._pick(by_branch[self.scanned], positions, finalists, top))
            positions, by_branch = positions[picked], {self.scanned: by_branch[self.scanned][picked]}
        others = [branch for branch in self._scored if branch not in (self.scanned, *self._attentions)]
        by_branch |= {branch: self.branch_scores(branch, vectors, positions) for branch in others}
        attended = {branch: self.attended_scores(branch, vectors[branch], positions) for branch in self._attentions}
        total = self._total(by_branch | attended)
        ranked = self._first_of_each_video(total, positions, top)
        if not ranked:
            return []
        # Stage 4: eight bits cannot separate scores that differ by less than their tolerances.
        doubt = np.zeros(len(positions)) + sum(
            self.weights[branch] * self.tolerance(branch, vectors[branch], positions) for branch in by_branch
        )
        is_close = total + doubt >= (total - doubt)[ranked].min()
        positions = positions[is_close]
        by_branch = {
            branch: attended[branch][is_close]
            if branch in attended
            else self.refined_scores(branch, vectors, positions)
            for branch in self._scored
        }
        return [
            (int(positions[line]), {branch: float(scores[line]) for branch, scores in by_branch.items()})
            for line in self._first_of_each_video(self._total(by_branch), positions, top)
        ]

    def _direction(self, branch: str, vector: Array) -> tuple[Array, float]:
        """Return the direction of a query, and its length if the length counts."""
        if branch not in self._by_length:
            return vector, 1.0
        (unit,), (length,) = quantise.directions(vector[None])
        return unit, float(length)

    def _shortlist(self, query: "_QueryVector", trained: TrainedCopy) -> Array:
        """Return the positions that the compressed copy finds, and all positions that are newer than it."""
        newer = np.arange(trained.positions, self.roster.num_positions)
        positions = np.concatenate((trained.shortlist(query.vector), newer))
        return positions[self.roster.slots[positions] >= 0]

    def candidates(self, query: "_QueryVector", top: int, positions: Array) -> Array:
        """Return the positions with the best coarse vectors.

        Args:
            query: The query in the scanned branch.
            top: The number of results. It sets the number of candidates.
            positions: The windows to compare.
        """
        number = self._number(CANDIDATES, top)
        if len(positions) <= number:
            return positions
        scores = self.coarse_scores(query, positions)
        return np.sort(positions[self._pick(scores, positions, number, top)])

    def coarse_scores(self, query: "_QueryVector", positions: Array) -> Array:
        """Return the best product of the query with the coarse vectors of each position."""
        rows, scales = self.files[0].rows["vector"], self.roster.scales
        coarse = scales.shape[1]
        is_small_part = 4 * len(positions) < len(scales)
        if is_small_part:  # copying these rows is cheaper than scoring all
            self.files[0].fetch(positions * coarse, (positions + 1) * coarse)
            rows, scales = rows[(positions[:, None] * coarse + np.arange(coarse)).ravel()], scales[positions]
        else:
            self.files[0].fetch(np.array([0]), np.array([len(scales) * coarse]))

        def score(part: slice) -> Array:
            products = self.kernel(rows[part.start * coarse : part.stop * coarse], query.row).reshape(-1, coarse)
            # Column by column: numpy's maximum along such short rows takes four times as long.
            return reduce(np.maximum, np.multiply(products, scales[part], out=products).T)

        scores = np.concatenate(in_threads(score, _shares(len(scales))))
        return scores if is_small_part else scores[positions]

    def branch_scores(self, branch: str, vectors: Mapping[str, "_QueryVector"], positions: Array) -> Array:
        """Return the best eight-bit cosine or dot product of each window in one branch.

        Args:
            branch: The branch.
            vectors: The query in each branch.
            positions: The windows to score.
        """

        def score(chunk: Array) -> tuple[Array, float]:
            tokens, values, counts = self._tokens(branch, query, chunk)
            if branch in self._by_length:
                values = values * query.lengths(tokens)
            return _best_of_each(values, counts), float(tokens["scale"].max())

        query = vectors[branch]
        parts = in_threads(score, self._chunks(branch, positions))
        query.max_scale = max([query.max_scale, *(scale for _, scale in parts)])
        return np.concatenate([np.zeros(0, np.float32), *(scores for scores, _ in parts)])

    def tolerance(self, branch: str, query: "_QueryVector", positions: Array) -> Array | float:
        """Return the expected maximum error of `branch_scores`: one for all windows, or one for each.

        Args:
            branch: The branch.
            query: The query in this branch, after `branch_scores`.
            positions: The windows.
        """
        if branch not in self._by_length:
            return query.tolerance()

        def error(chunk: Array) -> Array:
            tokens, counts = self._rows(branch, chunk)
            return _best_of_each(query.tolerances(tokens), counts)

        return np.concatenate(in_threads(error, self._chunks(branch, positions)))

    def refined_scores(self, branch: str, vectors: Mapping[str, "_QueryVector"], positions: Array) -> Array:
        """Return the best nine-bit cosine or dot product of each window in one branch. For few windows.

        Args:
            branch: The branch.
            vectors: The query in each branch, after `branch_scores`, which sets its tolerance.
            positions: The windows to score.
        """
        scores, query = [], vectors[branch]
        doubt = 2 * query.tolerance()
        for chunk in self._chunks(branch, positions):
            tokens, values, counts = self._tokens(branch, query, chunk)
            if branch in self._by_length:
                values, doubts = values * query.lengths(tokens), query.tolerances(tokens)
                is_close = values + doubts >= np.repeat(_best_of_each(values - doubts, counts), counts)
            else:
                is_close = values >= np.repeat(_best_of_each(values, counts) - doubt, counts)
            rows = tokens[is_close]
            # Not a matrix product: its rounding of a row depends on the other rows.
            exact = (units_of(rows) * query.vector).sum(1)
            if branch in self._by_length:
                exact = exact * query.lengths(rows)
            scores.append(_best_of_each(exact, _counts_of(is_close, counts)))
        return np.concatenate(scores, dtype=np.float64)

    def attended_scores(self, branch: str, query: "_QueryVector", positions: Array) -> Array:
        """Return the nine-bit score of each window in a branch with the similarity "attention".

        Args:
            branch: The branch.
            query: The query in this branch.
            positions: The windows to score.
        """
        form = self._attentions[branch]

        def score(chunk: Array) -> list[float]:
            guides = self._best_guides(form.guide, query, chunk)
            values, counts = self._rows(branch, chunk)
            keys, _ = self._rows(form.keys, chunk)
            ends, found = np.cumsum(counts), []
            for guide, start, end in zip(guides, ends - counts, ends, strict=True):
                parts = ((units_of(rows), rows["norm"]) for rows in (keys[start:end], values[start:end]))
                found.append(attended_cosine(query.vector, guide, *parts))
            return found

        chunks = self._chunks(branch, positions)
        return np.array([score for part in in_threads(score, chunks) for score in part], np.float64)

    def _best_guides(self, branch: str, query: "_QueryVector", positions: Array) -> list[tuple[Array, float]]:
        """Return the direction and the length of the token with the best nine-bit cosine in each window."""
        tokens, values, counts = self._tokens(branch, query, positions)
        doubt = 2 * quantise.tolerance(float(tokens["scale"].max()), query.scale)
        is_close = values >= np.repeat(_best_of_each(values, counts) - doubt, counts)
        close = tokens[is_close]
        units, ends = units_of(close), np.cumsum(_counts_of(is_close, counts))
        found = []
        for start, end in pairwise([0, *ends]):
            best = start + best_guide(query.vector, units[start:end])
            found.append((units[best], float(close["norm"][best])))
        return found

    def restored(self, position: int) -> dict[str, Array]:
        """Return the unit vectors of the tokens of one window, by branch."""
        parts = {}
        for branch, number in self._number_of_branch.items():
            start, count = (int(part[position]) for part in self.roster.token_rows(number))
            parts[branch] = units_of(self.files[1 + number].rows[start : start + count])
        return parts

    def _tokens(self, branch: str, query: "_QueryVector", positions: Array) -> tuple[Array, Array, Array]:
        """Return the token rows of some windows, their eight-bit cosines, and the number of tokens per window."""
        tokens, counts = self._rows(branch, positions)
        values = self.kernel(tokens["vector"], query.row)
        return tokens, np.multiply(values, tokens["scale"] * query.scale, out=values), counts

    def _rows(self, branch: str, positions: Array) -> tuple[Array, Array]:
        """Return the token rows of some windows, and the number of tokens per window."""
        number = self._number_of_branch[branch]
        starts, counts = (part[positions] for part in self.roster.token_rows(number))
        return _read_rows(self.files[1 + number], starts, counts), counts

    def _chunks(self, branch: str, positions: Array) -> list[Array]:
        """Split positions into chunks of at most about _MAX_ROWS rows, and enough chunks for all threads."""
        if not len(positions):
            return []
        counts = self._counts(branch)[positions]
        ends = np.cumsum(counts)
        least = _MIN_BYTES // self.files[1 + self._number_of_branch[branch]].dtype.itemsize
        if ends[-1] <= least:
            return [positions]
        size = min(_MAX_ROWS, max(least, -(-int(ends[-1]) // num_threads())))
        return np.split(positions, np.flatnonzero(np.diff((ends - counts) // size)) + 1)

    def _counts(self, branch: str) -> Array:
        return self.roster.token_rows(self._number_of_branch[branch])[1]

    def _total(self, by_branch: Mapping[str, Array]) -> Array:
        return np.sum([self.weights[branch] * by_branch[branch] for branch in self._scored], 0)

    def _number(self, usual: int, top: int) -> int:
        """Return the number of windows that pass a stage. It grows with `top` and with the size of the index."""
        factor = max(1, _PER_RESULT * top / FINALISTS)
        return int(usual * factor * self._more * max(1, self.roster.num_positions / _MANY) ** 0.25)

    def _pick(self, scores: Array, positions: Array, number: int, top: int) -> Array:
        """Return the positions of the best `number` windows, or of more until they include enough different videos."""
        while number < len(scores):
            picked = np.argpartition(scores, -number)[-number:]
            if len(set(self.roster.slots[positions[picked]].tolist())) >= min(number, _VIDEOS_PER_RESULT * top):
                return picked
            number *= 4
        return np.arange(len(scores))

    def _first_of_each_video(self, scores: Array, positions: Array, top: int) -> list[int]:
        """Return the positions of the best window of each of the best videos, best first."""
        order = np.lexsort((positions, -scores))
        found: dict[int, int] = {}  # by video
        for line, slot in zip(order.tolist(), self.roster.slots[positions[order]].tolist(), strict=True):
            found.setdefault(slot, line)
            if len(found) == top:
                break
        return list(found.values())


class _QueryVector:
    """The unit vector of a query in one branch, in float32 and in eight bits.

    Args:
        vector: The unit vector.
        length: The length of the query, if it counts.
    """

    def __init__(self, vector: Array, length: float = 1.0) -> None:
        self.vector, self.length = vector, length
        rows, scales = quantise.quantised(vector[None])
        self.row, self.scale = rows[0], float(scales[0])
        self.max_scale = 0.0  # the largest scale of the tokens it was compared with

    def tolerance(self) -> float:
        """Return the expected maximum error of the eight-bit cosines."""
        return quantise.tolerance(self.max_scale, self.scale)

    def lengths(self, tokens: Array) -> Array:
        """Return the factor from the cosine of each token to its dot product, in float64 as it may be large."""
        return self.length * tokens["norm"].astype(np.float64)

    def tolerances(self, tokens: Array) -> Array:
        """Return the expected maximum error of the eight-bit dot product of each token."""
        return self.lengths(tokens) * quantise.tolerance(tokens["scale"], self.scale)


def _best_of_each(values: Array, counts: Array) -> Array:
    """Return the maximum of each window, given the number of values per window."""
    return np.maximum.reduceat(values, np.cumsum(counts) - counts)


def _counts_of(is_chosen: Array, counts: Array) -> Array:
    """Return the number of chosen values of each window, given the number of values per window."""
    return np.add.reduceat(is_chosen, np.cumsum(counts) - counts, dtype=np.int64)


def _shares(number: int) -> list[slice]:
    """Split a number of windows into one slice per thread, or fewer if there are few windows."""
    shares = min(num_threads(), number // _MIN_WINDOWS) if number >= 2 * _MIN_WINDOWS else 1
    edges = [share * number // shares for share in range(shares + 1)]
    return [slice(start, end) for start, end in pairwise(edges)]


def _read_rows(file: VectorFile, starts: Array, counts: Array) -> Array:
    """Return the rows of some windows, one window after the other."""
    file.fetch(starts, starts + counts)
    before = np.cumsum(counts) - counts
    total = int(before[-1] + counts[-1])
    first, last = int(starts[0]), int(starts[-1] + counts[-1])
    if last - first == total:  # the windows are contiguous
        return file.between(first, last)
    return file.take(np.arange(total) + np.repeat(starts - before, counts))
