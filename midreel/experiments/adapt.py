"""Adapt a library to the feedback of its users: learn a correction of queries, and switch to it if it is not worse.

The correction is `midreel.library.adaptation`. It starts as exactly the model of the library, whatever its method is,
and changes only queries that are like a sentence with feedback. It is learned by minimising, for the sentences i,

    - log sum_{matches} p_ij  -  sum_{not this} log(1 - p_ij)  +  penalty * |move of the query|^2

p_ij is the softmax of the scaled scores of the sentence for its marked moments and for the videos that compete with
them: the best hits of all sentences. So "this is it" raises a moment, and "not this" lowers one.

Each call learns from all feedback again, beginning with the model as it was before any adaptation. So deleted feedback
is forgotten, and repeated calls do not drift.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadSetting, MissingTokens
from midreel.features.backbones.base import Backbone
from midreel.index.base import scored_branches
from midreel.index.embedded import EmbeddedIndex
from midreel.library import encoder as encoders
from midreel.library import reindex
from midreel.library.adaptation import Adaptation, sentence_vectors
from midreel.library.confidence import background_sentences
from midreel.library.feedback import Feedback, FeedbackLog
from midreel.library.report import Progress, ReindexReport
from midreel.library.windows import Window
from midreel.library.writer import Writer
from midreel.ops import scoring
from midreel.types import COSINE, Similarities, Tokens

FEWEST, FEWEST_MATCHES = 10, 5  # pieces of feedback; sentences that have a match
FOLDS = 5
DEPTH = 100  # hits that are searched for the right video
COMPETITORS, MOST_COMPETITORS = 10, 256  # hits of each sentence; videos in all
# Measured on the playhouse: docs/results/feedback.md.
SCALE, PENALTY, STEPS, RATE = 20.0, 30.0, 100, 0.02
REACH = 0.25  # the radius of a sentence, as a share of its distance from the nearest background sentence
_LEAST = 1e-6  # of the probability that a hit is not the first


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """The feedback on a library as arrays.

    Attributes:
        queries: The sentences.
        sentences: Their sentence vectors, of length one.
        vectors: Their vectors in each branch, from the model without an adaptation.
        pieces: The feedback on each sentence.
        reach: The cosine from which on another sentence is like each of them.
    """

    queries: tuple[str, ...]
    sentences: Float[np.ndarray, "Q E"]
    vectors: Mapping[str, Float[np.ndarray, "Q D"]]
    pieces: tuple[tuple[Feedback, ...], ...]
    reach: Float[np.ndarray, " Q"]

    def only(self, rows: Sequence[int]) -> "Lessons":
        """Return some of the sentences."""
        return Lessons(
            queries=tuple(self.queries[row] for row in rows),
            sentences=self.sentences[rows],
            vectors={branch: each[rows] for branch, each in self.vectors.items()},
            pieces=tuple(self.pieces[row] for row in rows),
            reach=self.reach[rows],
        )

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.queries)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """How well a model agrees with feedback.

    Attributes:
        first: The percentage of sentences with a match whose best hit is a match.
        reciprocal_rank: The mean of 1 / rank of the best match, 0 beyond the first 100 hits.
        wrong_first: The percentage of sentences with "not this" whose best hit is such a video.
    """

    first: float
    reciprocal_rank: float
    wrong_first: float


@dataclass(frozen=True, kw_only=True)
class AdaptReport:
    """The result of `adapt`.

    Attributes:
        library: The folder of the library.
        num_feedback: The pieces of feedback that were used.
        num_skipped: The pieces on videos that the library does not contain any more.
        num_sentences: The sentences that they are about.
        before: The model without an adaptation, on all sentences.
        held_out: The adaptations that were learned without each sentence, on this sentence.
        after: The adaptation that was learned from all sentences, on these sentences.
        switched: Whether the library is now searched with the adaptation.
        seconds: The duration.
    """

    library: Path
    num_feedback: int
    num_skipped: int
    num_sentences: int
    before: Figures
    held_out: Figures
    after: Figures
    switched: bool
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self) | {"library": str(self.library)}

    @property
    def text(self) -> str:
        """The report as text."""
        skipped = f", {self.num_skipped:,} more on removed videos skipped" if self.num_skipped else ""
        lines = [
            f"{self.num_feedback:,} pieces of feedback on {self.num_sentences:,} sentences{skipped}",
            f"  {'':<34}{'right first':>11}  {'1 / rank':>8}  {'wrong first':>11}",
        ]
        for label, each in (
            ("before", self.before),
            ("after, on sentences held out", self.held_out),
            ("after, on sentences learned from", self.after),
        ):
            lines.append(f"  {label:<34}{each.first:>9.1f} %  {each.reciprocal_rank:>8.3f}  {each.wrong_first:>9.1f} %")
        if self.switched:
            return "\n".join([*lines, f"adapted in {self.seconds:.1f} s. Undo: midreel adapt {self.library} --undo"])
        return "\n".join([*lines, "not adapted: it would be worse on sentences held out. More feedback may help."])


def adapt(library: Writer, progress: Progress | None = None) -> AdaptReport:
    """Learn from the feedback of a library, and switch to a new generation unless it is worse on held-out feedback.

    Args:
        library: The library, open for writing.
        progress: Is called after each video of the new generation.

    Raises:
        BadSetting: There is too little feedback to learn from.
        BadLibrary: The library is damaged.
        Unwritable: The disk is full. The library is unchanged.
    """
    start = time.perf_counter()
    given = FeedbackLog(library.folder).all()
    known = library.catalogue.video_ids() & set(library.index.video_ids())
    used = [each for each in given if each.video_id in known]
    expect_enough(used, library.folder)
    lessons = prepare(library, used)
    before = agreement(lessons, library.index)
    held_out = cross_validated(lessons, library)
    learned = learn(lessons, library)
    switched = held_out.reciprocal_rank >= before.reciprocal_rank
    after = agreement(lessons, library.index, learned)
    if switched:
        reindex.adopt(library, learned, progress)
    return AdaptReport(
        library=library.folder,
        num_feedback=len(used),
        num_skipped=len(given) - len(used),
        num_sentences=len(lessons),
        before=before,
        held_out=held_out,
        after=after,
        switched=switched,
        seconds=time.perf_counter() - start,
    )


def undo(library: Writer, progress: Progress | None = None) -> ReindexReport:
    """Switch a library back to its model without an adaptation. The feedback is kept.

    Args:
        library: The library, open for writing.
        progress: Is called after each video of the new generation.

    Raises:
        BadSetting: The library is not adapted.
    """
    if not library.generation.card.adaptation:
        raise BadSetting(f"{library.folder} is not adapted, expected an adaptation to undo. There is nothing to do.")
    return reindex.adopt(library, None, progress)


def expect_enough(feedback: Sequence[Feedback], folder: Path) -> None:
    """Raise BadSetting if there is too little feedback to learn from, and to measure whether it helps."""
    remedy = f"Give more: midreel serve {folder}"
    if len(feedback) < FEWEST:
        raise BadSetting(
            f"{folder} has {len(feedback)} piece{'s' * (len(feedback) != 1)} of feedback on its videos, expected at "
            f"least {FEWEST}. {remedy}"
        )
    matched = {each.query for each in feedback if each.match}
    if len(matched) < FEWEST_MATCHES:
        raise BadSetting(
            f"{len(matched)} sentence{'s' * (len(matched) != 1)} of {folder} have feedback that says 'this is it', "
            f"expected at least {FEWEST_MATCHES}. {remedy}"
        )


# ---------------------------------------------------------------- from feedback to arrays


def prepare(library: Writer, feedback: Sequence[Feedback]) -> Lessons:
    """Group feedback by sentence, and encode the sentences."""
    of_query: dict[str, list[Feedback]] = {}
    for each in feedback:
        of_query.setdefault(each.query, []).append(each)
    texts = library.backbone.encode_texts(list(of_query))
    base = encoders.open_generation(library.generation, library.device, adapted=False)
    sentences = _unit(sentence_vectors(texts))
    return Lessons(
        queries=tuple(of_query),
        sentences=sentences,
        vectors=base.encode_queries(texts),
        pieces=tuple(map(tuple, of_query.values())),
        reach=reaches(sentences, library.backbone),
    )


def reaches(sentences: Float[np.ndarray, "Q E"], backbone: Backbone) -> Float[np.ndarray, " Q"]:
    """Return the cosine from which on another sentence is like each of these.

    Cosines of unrelated sentences differ from backbone to backbone. So the nearest background sentence, which is about
    something else, sets the scale.
    """
    others = _unit(sentence_vectors(backbone.encode_texts(list(background_sentences()))))
    nearest = np.minimum((sentences @ others.T).max(1), 1 - 1e-3)  # the user may search for a background sentence
    return (1 - REACH * (1 - nearest)).astype(np.float32)


def _unit(vectors: Float[np.ndarray, "N E"]) -> Float[np.ndarray, "N E"]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(length > 0, length, 1)).astype(np.float32)


# ---------------------------------------------------------------- measure


def agreement(lessons: Lessons, index: EmbeddedIndex, adaptation: Adaptation | None = None) -> Figures:
    """Return how well searches agree with feedback.

    Args:
        lessons: The feedback.
        index: The index to search.
        adaptation: The correction of the queries. Default: none.
    """
    return summarised(outcomes(lessons, index, adaptation))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A sentence after a search: the rank of its best match, 0 if it has none; whether a wrong video is first."""

    rank: int | None
    wrong_first: bool | None


def outcomes(lessons: Lessons, index: EmbeddedIndex, adaptation: Adaptation | None = None) -> list[Outcome]:
    """Search each sentence. A figure is None if the sentence has no feedback of its kind.

    Args:
        lessons: The feedback.
        index: The index to search.
        adaptation: The correction of the queries. Default: none.
    """
    vectors = adaptation.applied(lessons.vectors, lessons.sentences) if adaptation else lessons.vectors
    found = []
    for pieces, matches in zip(lessons.pieces, index.search(vectors, top=DEPTH), strict=True):
        ids = [match.video_id for match in matches]
        right = {each.video_id for each in pieces if each.match}
        wrong = {each.video_id for each in pieces if not each.match} - right
        rank = next((place for place, video_id in enumerate(ids, 1) if video_id in right), 0)
        found.append(
            Outcome(rank=rank if right else None, wrong_first=ids[:1] != [] and ids[0] in wrong if wrong else None)
        )
    return found


def summarised(found: Sequence[Outcome]) -> Figures:
    """Return the figures of several sentences."""
    ranks = [each.rank for each in found if each.rank is not None]
    wrong = [each.wrong_first for each in found if each.wrong_first is not None]
    return Figures(
        first=100 * float(np.mean([rank == 1 for rank in ranks])) if ranks else 0.0,
        reciprocal_rank=float(np.mean([1 / rank if rank else 0.0 for rank in ranks])) if ranks else 0.0,
        wrong_first=100 * float(np.mean(wrong)) if wrong else 0.0,
    )


def cross_validated(lessons: Lessons, library: Writer) -> Figures:
    """Return the figures of adaptations that were learned without the sentence that they are measured on.

    Args:
        lessons: The feedback.
        library: The library.
    """
    found: list[Outcome] = []
    for held in folds(lessons.queries):
        rest = [row for row in range(len(lessons)) if row not in set(held)]
        learned = learn(lessons.only(rest), library)
        found += outcomes(lessons.only(held), library.index, learned)
    return summarised(found)


def folds(queries: Sequence[str], number: int = FOLDS) -> list[list[int]]:
    """Divide sentences into parts of equal size, by a hash, so that the result does not depend on their order.

    >>> sorted(row for part in folds(["a", "b", "c"], 2) for row in part)
    [0, 1, 2]
    """
    order = sorted(range(len(queries)), key=lambda row: hashlib.sha256(queries[row].encode()).digest())
    return [part for first in range(number) if (part := order[first::number])]


# ---------------------------------------------------------------- learn


@dataclass(frozen=True, kw_only=True)
class _Arena:
    """What the sentences are scored against: rows of tokens, which belong to videos and to marked moments.

    Attributes:
        tokens: The tokens of each row, by branch. A row is a window of a video, or its part in a marked moment.
        owner: The column of each row: first the videos, then the pieces of feedback.
        allowed: The columns that take part for each sentence: its own pieces, and the videos that it has not marked.
        match: The columns that each sentence calls a match.
        refused: The columns that each sentence says "not this" to.
    """

    tokens: Mapping[str, Tokens]
    owner: Int[Tensor, " R"]
    allowed: Bool[Tensor, "Q C"]
    match: Bool[Tensor, "Q C"]
    refused: Bool[Tensor, "Q C"]


def learn(lessons: Lessons, library: Writer) -> Adaptation:
    """Return the adaptation that fits the feedback best, near the model as it is.

    Args:
        lessons: The feedback.
        library: The library.
    """
    arena, index = _arena(lessons, library), library.index
    branches = scored_branches(index.branch_weights, index.similarities)
    start = Adaptation(
        sentences=lessons.sentences,
        reach=lessons.reach,
        moves={branch: np.zeros_like(lessons.vectors[branch]) for branch in branches},
    )
    likeness = torch.from_numpy(start.likeness(lessons.sentences))
    queries = {branch: torch.from_numpy(lessons.vectors[branch]).float() for branch in branches}
    moves = {branch: torch.zeros_like(queries[branch], requires_grad=True) for branch in branches}
    optimiser = torch.optim.Adam(list(moves.values()), lr=RATE)
    for _ in range(STEPS):
        moved = {branch: likeness @ each for branch, each in moves.items()}
        changed = {branch: each + each.norm(dim=1, keepdim=True) * moved[branch] for branch, each in queries.items()}
        scores = score(changed, arena.tokens, arena.owner, index.branch_weights, index.similarities)
        loss = feedback_loss(scores, arena.allowed, arena.match, arena.refused)
        loss = loss + PENALTY * torch.stack([each.square().sum() for each in moved.values()]).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Adaptation(
        sentences=start.sentences,
        reach=start.reach,
        moves={branch: each.detach().numpy().copy() for branch, each in moves.items()},
    )


def score(
    queries: Mapping[str, Float[Tensor, "Q D"]],
    tokens: Mapping[str, Tokens],
    owner: Int[Tensor, " R"],
    weights: Mapping[str, float],
    similarities: Similarities,
) -> Float[Tensor, "Q C"]:
    """Return the score of each query for each column: that of its best row, as in a search.

    Args:
        queries: The vectors of each branch.
        tokens: The tokens of each row, by branch.
        owner: The column of each row.
        weights: The weight of each branch.
        similarities: How each branch scores that does not score by its best cosine.
    """
    rows = torch.stack(
        [
            weights[branch] * scoring.branch_score(branch, similarities.get(branch, COSINE), queries, tokens)
            for branch in queries
        ]
    ).sum(0)
    columns = int(owner.max()) + 1
    empty = rows.new_full((len(rows), columns), -torch.inf)
    return empty.scatter_reduce(1, owner.expand(len(rows), -1), rows, "amax")


def feedback_loss(
    scores: Float[Tensor, "Q C"],
    allowed: Bool[Tensor, "Q C"],
    match: Bool[Tensor, "Q C"],
    refused: Bool[Tensor, "Q C"],
) -> Float[Tensor, ""]:
    """Return - log of the probability of the matches, and - log of 1 - the probability of each refused column.

    Args:
        scores: The score of each sentence for each column.
        allowed: The columns that take part in the softmax of each sentence.
        match: The columns that are right.
        refused: The columns that are wrong.
    """
    logs = (SCALE * scores).masked_fill(~allowed, -torch.inf).log_softmax(1)
    has_match = match.any(1)
    likelihood = logs.masked_fill(~match, -torch.inf)[has_match].logsumexp(1).sum()
    unlikelihood = torch.log1p(-logs[refused].exp().clamp(max=1 - _LEAST)).sum()
    return -likelihood - unlikelihood


def _arena(lessons: Lessons, library: Writer) -> _Arena:
    hits = library.index.search(lessons.vectors, top=COMPETITORS)
    ranked = (found[rank].video_id for rank in range(COMPETITORS) for found in hits if rank < len(found))
    videos = list(dict.fromkeys(ranked))[:MOST_COMPETITORS]
    rows: list[dict[str, Tokens]] = []
    owner: list[int] = []

    def add(parts: Sequence[dict[str, Tokens]], column: int) -> None:
        rows.extend(parts)
        owner.extend([column] * len(parts))

    column_of = {video_id: column for column, video_id in enumerate(videos)}
    for video_id, column in column_of.items():
        add(_windows(library, video_id), column)
    total = len(videos) + sum(map(len, lessons.pieces))
    allowed, match, refused = (torch.zeros(len(lessons), total, dtype=torch.bool) for _ in range(3))
    allowed[:, : len(videos)] = True
    column = len(videos)
    for row, pieces in enumerate(lessons.pieces):
        for piece in pieces:
            if piece.video_id in column_of:
                allowed[row, column_of[piece.video_id]] = False
            allowed[row, column] = True
            (match if piece.match else refused)[row, column] = True
            add(_windows(library, piece.video_id, (piece.start, piece.end)), column)
            column += 1
    return _Arena(tokens=_stacked(rows), owner=torch.tensor(owner), allowed=allowed, match=match, refused=refused)


def _windows(library: Writer, video_id: str, moment: tuple[float, float] | None = None) -> list[dict[str, Tokens]]:
    """Return the tokens of each window of a video, or of its windows and tokens that a moment overlaps."""
    video = library.catalogue.video(video_id)
    if video is None:
        raise MissingTokens(f"video {video_id!r} was removed meanwhile. Run midreel adapt again.")
    kept = library.index.tokens(video_id)
    found = []
    for number, window in enumerate(library.generation.card.windows.windows(video.num_frames)):
        parts = {branch: _row(each, number) for branch, each in kept.items()}
        if moment is None:
            found.append(parts)
        elif _overlaps(window, video.duration, moment):
            found.append({branch: _within(each, window, video.duration, moment) for branch, each in parts.items()})
    return found


def _overlaps(window: Window, duration: float, moment: tuple[float, float]) -> bool:
    first, last = window.seconds(duration)
    return first < moment[1] and last > moment[0]


def _within(tokens: Tokens, window: Window, duration: float, moment: tuple[float, float]) -> Tokens:
    """Return a row whose mask keeps only the tokens that a moment overlaps; all tokens if it overlaps none."""
    first, last = window.seconds(duration)
    times = first + tokens.spans * (last - first)
    inside = tokens.mask & (times[..., 0] < moment[1]) & (times[..., 1] > moment[0])
    mask = inside if inside.any() else tokens.mask
    return Tokens(vectors=tokens.vectors, mask=mask, spans=tokens.spans)


def _row(tokens: Tokens, number: int) -> Tokens:
    rows = slice(number, number + 1)
    return Tokens(vectors=tokens.vectors[rows], mask=tokens.mask[rows], spans=tokens.spans[rows])


def _stacked(rows: Sequence[Mapping[str, Tokens]]) -> dict[str, Tokens]:
    """Return rows as one batch of tensors, padded to the most tokens."""
    found = {}
    for branch in rows[0]:
        most = max(row[branch].vectors.shape[1] for row in rows)
        parts = {}
        for name in ("vectors", "mask", "spans"):
            tensors = [torch.as_tensor(np.array(getattr(row[branch], name))) for row in rows]
            padding = [(0, 0) * (each.ndim - 2) + (0, most - each.shape[1]) for each in tensors]
            parts[name] = torch.cat([F.pad(each, pad) for each, pad in zip(tensors, padding, strict=True)])
        found[branch] = Tokens(vectors=parts["vectors"].float(), mask=parts["mask"], spans=parts["spans"])
    return found
