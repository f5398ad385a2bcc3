"""The evaluation of a method on batches of videos and queries.

Axes: Q queries, B videos, both of all batches together; S tokens.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadBatch, BadRun, BadSetting
from midreel.evaluation import metrics
from midreel.evaluation.moments import Predictor, curves, in_seconds, ranked_moments
from midreel.evaluation.moments import predictors as predictors_of
from midreel.methods.base import Encoded, Method, Vectors, evaluating
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.ops.moments import MOST, Curves
from midreel.types import Moment, Similarities

Figures = dict[str, float]
Parts = list[Mapping[str, Tensor]]  # the vectors of each batch of queries, by branch


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of an evaluation, in percent.

    Attributes:
        num_queries: The number of queries.
        num_videos: The number of videos.
        num_moments: The number of queries with an annotated moment.
        recalls: The recalls of the method's score.
        branches: The recalls of each branch by itself.
        moments: The localisation metrics of each predictor, over the queries with an annotated moment.
        ranks: The rank of each query's video, to compare two methods query by query.
        overlaps: The overlap, from 0 to 1, of the moment that a search shows in each query's video with the annotated
            one. None for a query without an annotated moment.
        scores: The score of each query and video, on request. It is not part of the JSON.
    """

    num_queries: int
    num_videos: int
    num_moments: int = 0
    recalls: Figures
    branches: dict[str, Figures] = field(default_factory=dict)
    moments: dict[str, Figures] = field(default_factory=dict)
    ranks: tuple[int, ...]
    overlaps: tuple[float | None, ...] = ()
    scores: Float[Tensor, "Q B"] | None = field(default=None, compare=False, repr=False)

    def figures(self) -> Figures:
        """Return all results as the row of a table.

        Its columns are 'R@1', …, 'SumR', 'clip R@1', …, 'best clip mIoU', 'corpus R10@0.5', ….
        """
        parts = self.branches | self.moments | {"corpus": self.corpus_moments()}
        return self.recalls | {f"{part} {name}": value for part, row in parts.items() for name, value in row.items()}

    def corpus_moments(self) -> Figures:
        """Return the recalls of moments in the whole corpus (`metrics.corpus_moments`), without moments none."""
        known = [(rank, each) for rank, each in zip(self.ranks, self.overlaps, strict=False) if each is not None]
        if not known:
            return {}
        ranks, overlaps = zip(*known, strict=True)
        return metrics.corpus_moments(torch.tensor(ranks), torch.tensor(overlaps, dtype=torch.float64))

    def to_json(self) -> str:
        """Return the report without its scores as JSON."""
        return json.dumps({name: getattr(self, name) for name in _saved()}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Return the report of a JSON text.

        Raises:
            BadRun: The text is not a report.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise BadRun(f"the report is not JSON ({error}). Evaluate again, and save report.to_json().") from error
        found = list(values) if isinstance(values, dict) else []
        if set(found) != set(_saved()):
            raise BadRun(f"the report has the fields {found}, expected {_saved()}. Evaluate again.")
        return cls(**values | {name: tuple(values[name]) for name in ("ranks", "overlaps")})


def _saved() -> list[str]:
    return [part.name for part in fields(Report) if part.name != "scores"]


def evaluate(
    method: Method,
    videos: Iterable[VideoBatch],
    queries: Iterable[QueryBatch],
    video_of_query: Int[Tensor, " Q"],
    *,
    moments: Sequence[Sequence[Moment]] | None = None,
    durations: Float[Tensor, " B"] | None = None,
    at: Sequence[int] = metrics.RECALLS_AT,
    branches: bool = True,
    predictors: Mapping[str, Predictor] | None = None,
    keep_scores: bool = False,
) -> Report:
    """Measure how well a method finds the video, and the moment, that each query describes.

    Batches must be on the device of the method. The mode of the method and the random state stay unchanged.

    Memory: the vectors of all queries, the (Q, B) scores, one such matrix per branch, and the tokens of one batch of
    videos. The largest product is (queries of a batch) × (videos of a batch) × S.

    Args:
        method: The method to evaluate.
        videos: Batches of videos. Read once, so it may be a generator.
        queries: Batches of queries. Read once, so it may be a generator.
        video_of_query: The video of each query, counted over all batches.
        moments: The annotated moments of each query, empty if there are none. Localisation is measured within the
            query's own video, against the annotated moment that overlaps most. If a query has several, mAP of all
            found moments is measured too.
        durations: The length of each video in seconds. Required with `moments`.
        at: The ranks of the recalls.
        branches: Also measure the recalls of each branch by itself.
        predictors: The predictors of moments, by name. Default: all of the method.
        keep_scores: Keep the scores in the report.

    Raises:
        BadBatch: There are no videos or queries, their numbers differ from the other arguments, or a score is NaN.
        BadSetting: Durations are missing or not positive.
    """
    video_of_query = video_of_query.cpu()
    predictors = predictors_of(method) if predictors is None else predictors
    several = "found" in predictors and any(len(each) > 1 for each in moments or ())
    annotated = _annotated(moments, durations, len(video_of_query))
    overall: list[Tensor] = []
    of_branch: dict[str, list[Tensor]] = {}
    predicted = {name: torch.zeros(len(video_of_query), 2, dtype=torch.float64) for name in predictors}
    ranked = torch.full((len(video_of_query), MOST, 2), torch.nan, dtype=torch.float64)
    num_videos = 0

    with evaluating(method):
        vectors = query_vectors(method, queries, len(video_of_query))
        for batch in videos:
            tokens = method.encode_videos(batch)
            scores = [method.branch_scores(part, tokens) for part in vectors]
            overall.append(torch.cat([method.weighted(each).cpu() for each in scores]))
            for branch in scores[0] if branches else ():
                of_branch.setdefault(branch, []).append(torch.cat([each[branch].cpu() for each in scores]))
            if durations is not None and annotated.any():
                seconds = durations[num_videos : num_videos + len(batch)].cpu().double()
                for rows, drawn, lengths in _drawn(
                    vectors, tokens, video_of_query - num_videos, annotated, seconds, method.similarities
                ):
                    for name, predictor in predictors.items():
                        predicted[name][rows] = in_seconds(predictor(drawn), lengths)
                    if several:
                        ranked[rows] = in_seconds(ranked_moments(drawn, method.curve_weights), lengths)
            num_videos += len(batch)

    if num_videos == 0:
        raise BadBatch("videos is empty, expected at least one batch. A generator can be read only once.")
    if durations is not None and len(durations) != num_videos:
        raise BadBatch(f"durations has {len(durations)} values, expected {num_videos}. Pass one for each video.")
    total = torch.cat(overall, 1)
    ranks = metrics.ranks(total, video_of_query)
    truth, query_of_moment = _in_rows(moments or ())
    overlaps = {name: metrics.best_iou(moment, truth, query_of_moment) for name, moment in predicted.items()}
    localisation = {
        name: metrics.localisation(of_query[annotated]) for name, of_query in overlaps.items() if len(truth)
    }
    if several:
        precisions = metrics.average_precision(ranked, truth, query_of_moment)[annotated]
        localisation["found"] |= metrics.mean_average_precision(precisions)
    return Report(
        num_queries=len(video_of_query),
        num_videos=num_videos,
        num_moments=int(annotated.sum()),
        recalls=metrics.recalls(ranks, at),
        branches={
            branch: metrics.recalls(metrics.ranks(torch.cat(columns, 1), video_of_query), at)
            for branch, columns in of_branch.items()
        },
        moments=localisation,
        ranks=tuple(ranks.tolist()),
        overlaps=_known(overlaps.get("found"), annotated),
        scores=total if keep_scores else None,
    )


def _known(overlaps: Float[Tensor, " Q"] | None, annotated: Bool[Tensor, " Q"]) -> tuple[float | None, ...]:
    if overlaps is None or not annotated.any():
        return ()
    return tuple(value if known else None for value, known in zip(overlaps.tolist(), annotated.tolist(), strict=True))


def query_vectors(method: Method, queries: Iterable[QueryBatch], expected: int) -> Parts:
    """Return the vectors of each batch of queries.

    Args:
        method: The model.
        queries: Batches of queries.
        expected: The number of queries in all batches.

    Raises:
        BadBatch: There are no queries, or not `expected` ones.
    """
    vectors: Parts = [method.encode_queries(batch) for batch in queries]
    found = sum(map(_num_queries, vectors))
    if found == 0:
        raise BadBatch("queries is empty, expected at least one batch. A generator can be read only once.")
    if found != expected:
        raise BadBatch(f"queries has {found} queries, expected {expected} as in video_of_query. Pass one split.")
    return vectors


def _num_queries(vectors: Vectors) -> int:
    return len(next(iter(vectors.values())))


def _drawn(
    vectors: Parts,
    tokens: Encoded,
    video_of_query: Int[Tensor, " Q"],
    annotated: Bool[Tensor, " Q"],
    seconds: Float[Tensor, " B"],
    similarities: Similarities,
) -> Iterator[tuple[Int[Tensor, " N"], Curves, Float[Tensor, " N"]]]:
    """Draw the curves of the annotated queries whose video is in this batch of videos.

    Yield, for each batch of queries, the positions of these queries, their curves, and the lengths of their videos.
    `video_of_query` counts from the first video of this batch, so queries of other batches are below 0 or beyond its
    end.
    """
    wanted = annotated & (video_of_query >= 0) & (video_of_query < len(seconds))
    rows_of_part = torch.arange(len(wanted)).split([_num_queries(part) for part in vectors])
    for part, rows in zip(vectors, rows_of_part, strict=True):
        here = wanted[rows]
        if here.any():
            rows = rows[here]
            own = {branch: vector[here.to(vector.device)] for branch, vector in part.items()}
            device = next(iter(own.values())).device
            drawn = curves(own, tokens, video_of_query[rows].to(device), similarities)
            yield rows, drawn, seconds[video_of_query[rows]]


def _annotated(
    moments: Sequence[Sequence[Moment]] | None, durations: Tensor | None, num_queries: int
) -> Bool[Tensor, " Q"]:
    """Return which queries have an annotated moment. Raise an error unless moments and durations fit."""
    if moments is None:
        return torch.zeros(num_queries, dtype=torch.bool)
    if len(moments) != num_queries:
        raise BadBatch(f"moments has {len(moments)} entries, expected {num_queries}. Pass one for each query.")
    annotated = torch.tensor([len(each) > 0 for each in moments], dtype=torch.bool)
    if annotated.any() and durations is None:
        raise BadSetting(
            f"durations is None, expected seconds for the moments of {int(annotated.sum())} queries. "
            f"Pass the length of each video."
        )
    if durations is not None and not bool((durations.isfinite() & (durations > 0)).all()):
        raise BadSetting(
            f"durations are {durations.min()} to {durations.max()}, expected numbers above 0. Fix the dataset."
        )
    return annotated


def _in_rows(moments: Iterable[Sequence[Moment]]) -> tuple[Float[Tensor, "M 2"], Int[Tensor, " M"]]:
    """Return the moments of all queries as rows, and the query of each row."""
    rows = [(query, moment.start, moment.end) for query, each in enumerate(moments) for moment in each]
    table = torch.tensor(rows, dtype=torch.float64).view(len(rows), 3)
    return table[:, 1:], table[:, 0].long()
