"""Adapt a library to the feedback of its users: learn a correction of queries, and switch to it if it is not worse.

The correction is `midreel.library.adaptation`. It starts as exactly the model of the library, whatever its method is,
and changes only queries that are like a sentence with feedback. `adaptation_learning` learns it.

Each call learns from all feedback again, beginning with the model as it was before any adaptation. So deleted feedback
is forgotten, and repeated calls do not drift.
"""

import hashlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from midreel.errors import BadSetting
from midreel.experiments.adaptation_learning import Lessons, learn
from midreel.features.backbones.base import Backbone
from midreel.index.base import Index
from midreel.library import confidence, reindex
from midreel.library import encoder as encoders
from midreel.library.adaptation import Adaptation, sentence_vectors
from midreel.library.feedback import Feedback
from midreel.library.report import Progress, ReindexReport
from midreel.library.writer import Writer

FEWEST, FEWEST_MATCHES = 10, 5  # pieces of feedback; sentences that have a match
FOLDS = 5
DEPTH = 100  # hits that are searched for the right video
REACH = 0.25  # the radius of a sentence, as a share of its distance from the nearest background sentence


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
        library: The folder or the database of the library.
        num_feedback: The pieces of feedback that were used.
        num_skipped: The pieces on videos that the library does not contain any more.
        num_sentences: The sentences that they are about.
        before: The model without an adaptation, on all sentences.
        held_out: The adaptations that were learned without each sentence, on this sentence.
        after: The adaptation that was learned from all sentences, on these sentences.
        switched: Whether the library is now searched with the adaptation.
        seconds: The duration.
    """

    library: str
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
    given = library.storage.feedback().all()
    known = library.catalogue.video_ids() & set(library.index.video_ids())
    used = [each for each in given if each.video_id in known]
    expect_enough(used, str(library.storage))
    lessons = prepare(library, used)
    before = agreement(lessons, library.index)
    held_out = cross_validated(lessons, library)
    learned = learn(lessons, library)
    switched = held_out.reciprocal_rank >= before.reciprocal_rank
    after = agreement(lessons, library.index, learned)
    if switched:
        reindex.adopt(library, learned, progress)
    return AdaptReport(
        library=str(library.storage),
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
        raise BadSetting(f"{library.storage} is not adapted, expected an adaptation to undo. There is nothing to do.")
    return reindex.adopt(library, None, progress)


def expect_enough(feedback: Sequence[Feedback], library: str) -> None:
    """Raise BadSetting if there is too little feedback to learn from, and to measure whether it helps."""
    remedy = f"Give more: midreel serve {library}"
    if len(feedback) < FEWEST:
        raise BadSetting(
            f"{library} has {len(feedback)} piece{'s' * (len(feedback) != 1)} of feedback on its videos, expected at "
            f"least {FEWEST}. {remedy}"
        )
    matched = {each.query for each in feedback if each.match}
    if len(matched) < FEWEST_MATCHES:
        raise BadSetting(
            f"{len(matched)} sentence{'s' * (len(matched) != 1)} of {library} have feedback that says 'this is it', "
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
    others = _unit(sentence_vectors(backbone.encode_texts(list(confidence.background_sentences()))))
    nearest = np.minimum((sentences @ others.T).max(1), 1 - 1e-3)  # the user may search for a background sentence
    return (1 - REACH * (1 - nearest)).astype(np.float32)


def _unit(vectors: Float[np.ndarray, "N E"]) -> Float[np.ndarray, "N E"]:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(length > 0, length, 1)).astype(np.float32)


# ---------------------------------------------------------------- measure


def agreement(lessons: Lessons, index: Index, adaptation: Adaptation | None = None) -> Figures:
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


def outcomes(lessons: Lessons, index: Index, adaptation: Adaptation | None = None) -> list[Outcome]:
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
        first=100 * _mean([float(rank == 1) for rank in ranks]),
        reciprocal_rank=_mean([1 / rank if rank else 0.0 for rank in ranks]),
        wrong_first=100 * _mean(list(map(float, wrong))),
    )


def _mean(values: Sequence[float]) -> float:
    """Return the mean, or 0 if there are no values. It does not depend on their order, so equal models are equal."""
    return math.fsum(values) / len(values) if values else 0.0


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
