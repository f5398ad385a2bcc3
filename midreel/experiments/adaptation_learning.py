"""Learn an adaptation from feedback: directions in which to move the queries that are like a sentence with feedback.

They minimise, over the sentences i,

    - log sum_{matches} p_ij  -  sum_{not this} log(1 - p_ij)  +  penalty * |move of the query|^2

p_ij is the softmax of the scaled scores of the sentence for its marked moments and for the videos that compete with
them: the best hits of all sentences. So "this is it" raises a moment, and "not this" lowers one. All directions are
zero at the start, where every score is that of the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from midreel.errors import MissingTokens
from midreel.index.base import Index
from midreel.library.adaptation import Adaptation
from midreel.library.feedback import Feedback
from midreel.library.windows import Window
from midreel.library.writer import Writer
from midreel.ops import scoring
from midreel.types import COSINE, Similarity, Tokens

COMPETITORS, MOST_COMPETITORS = 10, 256  # hits of each sentence; videos in all
# Measured on the playhouse: docs/results/feedback.md.
SCALE, PENALTY, STEPS, RATE = 20.0, 30.0, 100, 0.02
SELECT_EVERY = 34  # steps between choices of the tokens that a sentence is compared with
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
class Rows:
    """Tokens to compare sentences with. A row is a window of a video, or its part in a marked moment.

    Attributes:
        tokens: The tokens of each row, by branch.
        columns: The rows of each column: of each competing video, or of each piece of feedback.
    """

    tokens: Mapping[str, Tokens]
    columns: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Arena:
    """What each sentence is compared with. Its columns are the competing videos, then its own pieces of feedback.

    Attributes:
        competitors: The competing videos, the same for all sentences.
        marked: The pieces of feedback on each sentence.
        allowed: The columns that take part for each sentence: not the videos that it has marked, and not padding.
        match: The columns that each sentence calls a match.
        refused: The columns that each sentence says "not this" to.
    """

    competitors: Rows
    marked: tuple[Rows, ...]
    allowed: Bool[Tensor, "Q C"]
    match: Bool[Tensor, "Q C"]
    refused: Bool[Tensor, "Q C"]


def learn(lessons: Lessons, library: Writer) -> Adaptation:
    """Return the adaptation that fits the feedback best, near the model as it is.

    Args:
        lessons: The feedback.
        library: The library.
    """
    form = _Form.of(library.index)
    arena = prepare_arena(lessons, library)
    start = Adaptation(
        sentences=lessons.sentences,
        reach=lessons.reach,
        moves={branch: np.zeros_like(lessons.vectors[branch]) for branch in form.weights},
    )
    likeness = torch.from_numpy(start.likeness(lessons.sentences))
    queries = {branch: torch.from_numpy(lessons.vectors[branch]).float() for branch in form.weights}
    moves = {branch: torch.zeros_like(queries[branch], requires_grad=True) for branch in form.weights}
    optimiser = torch.optim.Adam(list(moves.values()), lr=RATE)
    compared: Mapping[str, Tensor] = {}
    for step in range(STEPS):
        moved = {branch: likeness @ each for branch, each in moves.items()}
        changed = {branch: each + each.norm(dim=1, keepdim=True) * moved[branch] for branch, each in queries.items()}
        if step % SELECT_EVERY == 0:
            compared = compared_with(changed, arena, form)
        loss = feedback_loss(scores_of(changed, compared, form), arena.allowed, arena.match, arena.refused)
        loss = loss + PENALTY * torch.stack([each.square().sum() for each in moved.values()]).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Adaptation(
        sentences=start.sentences,
        reach=start.reach,
        moves={branch: each.detach().numpy().copy() for branch, each in moves.items()},
    )


@dataclass(frozen=True, kw_only=True)
class _Form:
    """How an index scores: the weight and the similarity of each branch that has a weight."""

    weights: Mapping[str, float]
    similarities: Mapping[str, Similarity]

    @classmethod
    def of(cls, index: Index) -> "_Form":
        weights = {branch: weight for branch, weight in index.branch_weights.items() if weight}
        return cls(weights=weights, similarities={branch: index.similarities.get(branch, COSINE) for branch in weights})


def scores_of(
    queries: Mapping[str, Float[Tensor, "Q D"]], compared: Mapping[str, Float[Tensor, "Q C D"]], form: _Form
) -> Float[Tensor, "Q C"]:
    """Return the score of each sentence for each of its columns.

    Args:
        queries: The vectors of each branch.
        compared: The vector that each sentence is compared with in each column, by branch.
        form: How the index scores.
    """
    parts = []
    for branch, weight in form.weights.items():
        query, token = queries[branch], compared[branch]
        if form.similarities[branch].kind != "dot":
            query, token = F.normalize(query, dim=-1), F.normalize(token, dim=-1)
        parts.append(weight * torch.einsum("qd,qcd->qc", query, token))
    return torch.stack(parts).sum(0)


@torch.no_grad()
def compared_with(
    queries: Mapping[str, Float[Tensor, "Q D"]], arena: Arena, form: _Form
) -> dict[str, Float[Tensor, "Q C D"]]:
    """Return the vector that each sentence is compared with in each column: its best token, from the best row.

    The gradient of a maximum is that of the best token. So the learning steps only need these vectors, which are chosen
    again every few steps. Padding is a vector of zeros.

    Args:
        queries: The vectors of each branch.
        arena: The columns.
        form: How the index scores.
    """
    shared = _best_vectors(queries, arena.competitors, form)
    most = arena.allowed.shape[1] - len(arena.competitors.columns)
    found = {}
    own = [
        _best_vectors({branch: each[row : row + 1] for branch, each in queries.items()}, rows, form)
        for row, rows in enumerate(arena.marked)
    ]
    for branch in form.weights:
        padded = [F.pad(each[branch], (0, 0, 0, most - each[branch].shape[1])) for each in own]
        found[branch] = torch.cat((shared[branch], torch.cat(padded)), dim=1)
    return found


def _best_vectors(
    queries: Mapping[str, Float[Tensor, "Q D"]], rows: Rows, form: _Form
) -> dict[str, Float[Tensor, "Q C D"]]:
    """Return the vector that each query is compared with in each column."""
    vectors = {branch: _row_vectors(branch, queries[branch], rows.tokens, form) for branch in form.weights}
    scores = scores_of(queries, vectors, form)
    best = torch.stack([torch.tensor(own)[scores[:, own].argmax(1)] for own in map(list, rows.columns)], dim=1)
    return {branch: each.gather(1, best[..., None].expand(-1, -1, each.shape[2])) for branch, each in vectors.items()}


def _row_vectors(
    branch: str, queries: Float[Tensor, "Q D"], tokens: Mapping[str, Tokens], form: _Form
) -> Float[Tensor, "Q R D"]:
    """Return the vector that each query is compared with in each row: the best token, or the one that it attends to."""
    part, similarity = tokens[branch], form.similarities[branch]
    if similarity.kind == "attention":
        guides, keys = tokens[similarity.guide], tokens[similarity.keys]
        return scoring.attended(queries, guides.vectors, keys.vectors, part.vectors, guides.mask, part.mask)
    scaled = part.vectors if similarity.kind == "dot" else F.normalize(part.vectors, dim=-1)
    products = (queries @ scaled.flatten(0, 1).T).view(len(queries), *part.mask.shape)
    best = products.masked_fill(~part.mask, -torch.inf).argmax(2)
    return part.vectors[torch.arange(len(part.mask)), best]


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


def prepare_arena(lessons: Lessons, library: Writer) -> Arena:
    """Return what the sentences are compared with: the best hits of all of them, and their marked moments."""
    hits = library.index.search(lessons.vectors, top=COMPETITORS)
    ranked = (found[rank].video_id for rank in range(COMPETITORS) for found in hits if rank < len(found))
    videos = list(dict.fromkeys(ranked))[:MOST_COMPETITORS]
    column_of = {video_id: column for column, video_id in enumerate(videos)}
    most = max(map(len, lessons.pieces))
    allowed, match, refused = (torch.zeros(len(lessons), len(videos) + most, dtype=torch.bool) for _ in range(3))
    allowed[:, : len(videos)] = True
    for row, pieces in enumerate(lessons.pieces):
        for column, piece in enumerate(pieces, len(videos)):
            if piece.video_id in column_of:
                allowed[row, column_of[piece.video_id]] = False
            allowed[row, column] = True
            (match if piece.match else refused)[row, column] = True
    return Arena(
        competitors=_rows([_windows(library, video_id) for video_id in videos]),
        marked=tuple(
            _rows([_windows(library, piece.video_id, (piece.start, piece.end)) for piece in pieces])
            for pieces in lessons.pieces
        ),
        allowed=allowed,
        match=match,
        refused=refused,
    )


def _rows(columns: Sequence[Sequence[dict[str, Tokens]]]) -> Rows:
    """Return columns of windows as rows."""
    ends = np.cumsum([len(each) for each in columns]).tolist()
    return Rows(
        tokens=_stacked([window for each in columns for window in each]),
        columns=tuple(tuple(range(end - len(each), end)) for each, end in zip(columns, ends, strict=True)),
    )


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
