"""Search for queries with operators: score each part, and combine the scores.

The score of a part is that of a plain search. Its curve is moved so that its peak is this score, and both are
normalised by the part's scores for other videos of the library. So a query of one part ranks videos as a plain search
does. `midreel.ops.combine` combines the curves.

A video whose curves are not known yet has a bound: NOT and THEN only lower the score that follows from the peaks of the
wanted parts. Videos are loaded in order of their bounds, until no other video can be among the best.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from midreel.index.base import Array, Index
from midreel.library.hits import Hit, RelevanceCurve, SearchedVideo, curves_of
from midreel.library.query import And, Not, Or, Part, Seen, Then, leaves
from midreel.ops import combine
from midreel.ops.moments import MOST, Curve, ScoredMoment, find_moments

BACKGROUND = 256  # videos whose scores normalise those of a part
CANDIDATES = 200  # of each wanted part, or _PER_HIT for each hit if that is more; measured: docs/results/queries.md
_PER_HIT = 5
_TINY = float(np.finfo(np.float64).tiny)  # instead of 0, which has no logarithm

Load = Callable[[Sequence[str]], Mapping[str, SearchedVideo]]
Scores: TypeAlias = Mapping[Part, Mapping[str, float]]  # of each part, for each video


@dataclass(frozen=True, kw_only=True)
class PartMoment(ScoredMoment):
    """A moment of a query with operators, and the part of the query that it shows."""

    part: str


def find(
    index: Index,
    query: Seen,
    vectors: Mapping[Part, Mapping[str, Array]],
    load: Load,
    *,
    weights: Mapping[str, float],
    top: int,
    among: Collection[str] | None = None,
    exact: bool = False,
    but: Collection[str] = (),
) -> list[Hit]:
    """Return the best videos for a query, best first.

    Args:
        index: The index of the library.
        query: The query.
        vectors: The vectors of each part and branch, one row each.
        load: Returns videos with their tokens, by id, without those that must not be hits.
        weights: The weight of each branch in a curve.
        top: The number of hits, at most.
        among: The ids of the videos to search. Default: all.
        exact: Score all videos, not only the candidates of each part.
        but: The ids of videos that are no hits.
    """
    parts = list(dict.fromkeys(leaves(query)))
    backgrounds = _backgrounds(index, parts, vectors)
    if not backgrounds:
        return []
    scores = _scores(index, query, parts, vectors, top, among, exact)
    # As in a plain search, the first added comes first among equal scores.
    added = {video_id: number for number, video_id in enumerate(index.video_ids())}
    ids = [
        video_id
        for video_id in scores[parts[0]]
        if video_id in added and video_id not in but and all(video_id in scores[part] for part in parts)
    ]
    peaks = {part: combine.normalised(_column(scores[part], ids), backgrounds[part]).tolist() for part in parts}
    bounds = {
        video_id: _bound(query, {part: peaks[part][number] for part in parts}) for number, video_id in enumerate(ids)
    }
    order = sorted(ids, key=lambda video_id: (-bounds[video_id], added[video_id]))
    best: list[_Scored] = []
    start, number = 0, top
    while start < len(order) and (len(best) < top or best[-1].score < bounds[order[start]]):
        some = order[start : start + number]
        loaded = load(some)
        videos = [loaded[video_id] for video_id in some if video_id in loaded]
        best += _scored(query, parts, vectors, videos, scores, backgrounds, weights)
        best = sorted(best, key=lambda each: (-each.score, added[each.video.video.id]))[:top]
        start, number = start + number, 2 * number
    return [_hit(query, each) for each in best]


def candidates(top: int) -> int:
    """Return how many videos of each wanted part are candidates for this number of hits."""
    return max(CANDIDATES, _PER_HIT * top)


def _backgrounds(index: Index, parts: Sequence[Part], vectors: Mapping[Part, Mapping[str, Array]]) -> dict[Part, Array]:
    """Return the scores of each part for a sample of all videos: a filter must not change the score of a hit."""
    ids = index.video_ids()
    sample = ids if len(ids) <= BACKGROUND else [ids[len(ids) * k // BACKGROUND] for k in range(BACKGROUND)]
    if not sample:
        return {}
    found = index.search(_stacked(parts, vectors), top=len(sample), among=sample, exact=True)
    values = [np.array([match.score for match in matches]) for matches in found]
    return dict(zip(parts, values, strict=True)) if all(map(len, values)) else {}


def _scores(
    index: Index,
    query: Seen,
    parts: Sequence[Part],
    vectors: Mapping[Part, Mapping[str, Array]],
    top: int,
    among: Collection[str] | None,
    exact: bool,
) -> Scores:
    """Return the exact score of each part for each candidate."""
    number = len(index)
    if not exact and candidates(top) < number:
        wanted = list(dict.fromkeys(leaves(query, wanted=True)))
        found = index.search(_stacked(wanted, vectors), top=candidates(top), among=among)
        among = dict.fromkeys(match.video_id for matches in found for match in matches)
        number = len(among)
    found = index.search(_stacked(parts, vectors), top=max(1, number), among=among, exact=True)
    return {part: {match.video_id: match.score for match in of} for part, of in zip(parts, found, strict=True)}


def _stacked(parts: Sequence[Part], vectors: Mapping[Part, Mapping[str, Array]]) -> dict[str, Array]:
    return {branch: np.concatenate([vectors[part][branch] for part in parts]) for branch in vectors[parts[0]]}


def _column(scores: Mapping[str, float], ids: Sequence[str]) -> Array:
    return np.array([scores[video_id] for video_id in ids], np.float64)


def _bound(query: Seen, peaks: Mapping[Part, float]) -> float:
    """Return the highest score that a video can have whose parts have these peaks."""

    def slots(part: Seen) -> list[float]:
        match part:
            case Part():
                return [peaks[part]]
            case Or():
                return [max(peaks[each] for each in part.parts)]
            case Not():
                return slots(part.part)
            case _:
                return [value for each in part.parts for value in slots(each)]

    return combine.all_of(np.array(slots(query)))


# ---------------------------------------------------------------- one video


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """A video with its score, and the values of each part over time."""

    video: SearchedVideo
    score: float
    values: Mapping[Part, Array]
    spans: Array


def _scored(
    query: Seen,
    parts: Sequence[Part],
    vectors: Mapping[Part, Mapping[str, Array]],
    videos: Sequence[SearchedVideo],
    scores: Scores,
    backgrounds: Mapping[Part, Array],
    weights: Mapping[str, float],
) -> list[_Scored]:
    if not videos:
        return []
    rows = [row for row in range(len(parts)) for _ in videos]
    curves = curves_of(_stacked(parts, vectors), rows, list(videos) * len(parts), weights)
    found = []
    for number, video in enumerate(videos):
        own = dict(zip(parts, curves[number :: len(videos)], strict=True))
        values = {
            part: values_of(curve.scores[0], scores[part][video.video.id], backgrounds[part])
            for part, curve in own.items()
        }
        spans = own[parts[0]].spans[0]  # the same for all parts: it depends on the tokens alone
        found.append(_Scored(video=video, score=score_of(query, values), values=values, spans=spans))
    return found


def values_of(curve: Array, score: float, background: Array) -> Array:
    """Return the values of a part over time, from 0 to 1.

    Args:
        curve: The scores of the part over time.
        score: The score of the part for the video, which becomes the peak of the curve.
        background: The scores of the part for other videos.
    """
    return combine.normalised(curve - curve.max() + np.float64(score), background)


def score_of(query: Seen, values: Mapping[Part, Array]) -> float:
    """Return the score of a video from the values of each part over time."""
    slots: list[float] = []
    for each in query.parts if isinstance(query, And) else (query,):
        if isinstance(each, Then):
            product, _ = combine.in_order(np.stack([_curve(part, values) for part in each.parts]))
            slots += [max(product, _TINY) ** (1 / len(each.parts))] * len(each.parts)
        else:
            slots.append(float(_curve(each, values).max()))
    return combine.all_of(np.array(slots))


def _hit(query: Seen, scored: _Scored) -> Hit:
    """Return a video as a hit: its score, the moments of each part, and the best part over time."""
    first: list[PartMoment] = []  # one for each part of AND
    steps: list[PartMoment] = []  # the parts of THEN
    others: list[PartMoment] = []
    curves: list[Array] = []
    for each in query.parts if isinstance(query, And) else (query,):
        if isinstance(each, Then):
            own = [_curve(part, scored.values) for part in each.parts]
            whole, *rest = _sequence(each, own, scored.spans)
            first.append(whole)
            steps += rest
        else:
            own = [_curve(each, scored.values)]
            best, *more = _moments(str(each), own[0], scored.spans)
            first.append(best)
            others += more
        curves += own
    others.sort(key=lambda moment: -moment.score)
    video, times = scored.video, scored.spans.mean(-1)
    return Hit(
        video_id=video.video.id,
        score=scored.score,
        branch_scores={},
        path=video.path,
        paths=video.paths,
        duration=video.video.duration,
        moments=(*first, *steps, *others[: max(0, MOST - len(first) - len(steps))]),
        curve=RelevanceCurve(times=times, values=combine.any_of(np.stack(curves))),
    )


def _curve(part: Part | Or | Not, values: Mapping[Part, Array]) -> Array:
    match part:
        case Part():
            return values[part]
        case Or():
            return combine.any_of(np.stack([values[each] for each in part.parts]))
        case Not():
            return combine.without(_curve(part.part, values), _curve(part.without, values))


def _moments(label: str, curve: Array, spans: Array, most: int = MOST) -> list[PartMoment]:
    # Logits, because they are a linear function of the scores: a part has the moments that it has in a plain search.
    logits = np.log(curve) - np.log1p(-curve)
    found = find_moments(Curve(scores=logits[None], spans=spans[None]), most=most).listed()[0]
    return [
        PartMoment(
            part=label,
            start=each.start,
            end=each.end,
            peak=each.peak,
            score=float(curve[np.abs(spans.mean(-1) - each.peak).argmin()]),
        )
        for each in found
    ]


def _sequence(query: Then, curves: Sequence[Array], spans: Array) -> list[PartMoment]:
    """Return the moment from the first part to the last, and the moment of each part. Those do not overlap."""
    _, tokens = combine.in_order(np.stack(curves))
    found: list[PartMoment] = []
    for part, curve, token, later in zip(query.parts, curves, tokens, [*tokens[1:], len(spans)], strict=True):
        begin = int(np.searchsorted(spans[:, 0], found[-1].end)) if found else 0
        room = slice(begin, later) if begin <= token < later else slice(token, token + 1)
        found += _moments(str(part), curve[room], spans[room], most=1)
    whole = PartMoment(
        part=str(query),
        start=min(each.start for each in found),
        end=max(each.end for each in found),
        peak=found[0].peak,
        score=combine.all_of(np.array([each.score for each in found])),
    )
    return [whole, *found]
