"""A method on batches of videos and queries, one pair of batches at a time.

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
from midreel.evaluation.moments import Predictor, curves, in_seconds
from midreel.evaluation.moments import predictors as predictors_of
from midreel.methods.base import Encoded, Method, Vectors, evaluating
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.ops import scoring
from midreel.types import Moment

Figures = dict[str, float]
Parts = list[Mapping[str, Tensor]]  # the vectors of each batch of queries, by branch


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a method finds. All figures are in percent.

    `recalls` ranks by the method's score, `branches` by the best cosine of one branch alone. `moments` holds the
    localisation figures of each predictor over the `num_moments` queries that have an annotated moment, one or several.
    `ranks` keeps the position of each query's video, so that two methods can be compared query by query.
    """

    num_queries: int
    num_videos: int
    num_moments: int = 0
    recalls: Figures
    branches: dict[str, Figures] = field(default_factory=dict)
    moments: dict[str, Figures] = field(default_factory=dict)
    ranks: tuple[int, ...]
    # Only where it was asked for, and not in the JSON: its place is a run file (tables.write_trec_run).
    scores: Float[Tensor, "Q B"] | None = field(default=None, compare=False, repr=False)

    def figures(self) -> Figures:
        """All figures side by side, as a row of a table: 'R@1', …, 'SumR', 'clip R@1', …, 'best clip mIoU'."""
        parts = self.branches | self.moments
        return self.recalls | {f"{part} {name}": value for part, row in parts.items() for name, value in row.items()}

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in _saved()}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        try:
            values = json.loads(text)
        except ValueError as error:
            raise BadRun(f"the report is not JSON ({error}); evaluate again and save report.to_json()") from error
        found = list(values) if isinstance(values, dict) else []
        if set(found) != set(_saved()):
            raise BadRun(
                f"the report has the fields {found}, expected {_saved()}; was it made by another version of midreel? "
                f"Evaluate again"
            )
        return cls(**values | {"ranks": tuple(values["ranks"])})


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
    """How well `method` finds the video, and the moment, that each query describes.

    `video_of_query` counts videos in the order of the batches, all of them together. `moments` says what parts of its
    video each query describes, none where that is not annotated; localisation needs `durations` in seconds, looks only
    into the query's own video, and counts the overlap with the part that the prediction fits best. `predictors` are by
    name; the default is all that the method has.

    Both iterables are read once and may be generators; batches are expected on the method's device. The queries'
    vectors and the (Q, B) scores are kept, one matrix more for each branch unless `branches` is off; of the tokens,
    those of one batch of videos. The largest product is (queries of a batch) × (videos of a batch) × S, so the caller's
    batches bound the memory. The method is left as it was found: mode, gradients, random state.
    """
    video_of_query = video_of_query.cpu()
    predictors = predictors_of(method) if predictors is None else predictors
    annotated = _annotated(moments, durations, len(video_of_query))
    overall: list[Tensor] = []
    of_branch: dict[str, list[Tensor]] = {branch: [] for branch in (method.branches if branches else ())}
    predicted = {name: torch.zeros(len(video_of_query), 2, dtype=torch.float64) for name in predictors}
    num_videos = 0

    with evaluating(method):
        vectors = query_vectors(method, queries, len(video_of_query))
        for batch in videos:
            tokens = method.encode_videos(batch)
            overall.append(torch.cat([method.score(part, tokens).cpu() for part in vectors]))
            for branch, columns in of_branch.items():
                columns.append(torch.cat([_branch_scores(branch, part, tokens).cpu() for part in vectors]))
            if durations is not None and annotated.any():
                seconds = durations[num_videos : num_videos + len(batch)].cpu().double()
                for rows, found in _predict(
                    predictors, vectors, tokens, video_of_query - num_videos, annotated, seconds
                ):
                    for name, moment in found.items():
                        predicted[name][rows] = moment
            num_videos += len(batch)

    if num_videos == 0:
        raise BadBatch("there are no videos to search, expected at least one batch of them; a generator is read once")
    if durations is not None and len(durations) != num_videos:
        raise BadBatch(
            f"durations has {len(durations)} videos, but the batches hold {num_videos}; pass one for each video"
        )
    scores = torch.cat(overall, 1)
    ranks = metrics.ranks(scores, video_of_query)
    truth, query_of_moment = _in_rows(moments or ())
    return Report(
        num_queries=len(video_of_query),
        num_videos=num_videos,
        num_moments=int(annotated.sum()),
        recalls=metrics.recalls(ranks, at),
        branches={
            branch: metrics.recalls(metrics.ranks(torch.cat(columns, 1), video_of_query), at)
            for branch, columns in of_branch.items()
        },
        moments={
            name: metrics.localisation(metrics.best_iou(moment, truth, query_of_moment)[annotated])
            for name, moment in predicted.items()
            if len(truth)
        },
        ranks=tuple(ranks.tolist()),
        scores=scores if keep_scores else None,
    )


def query_vectors(method: Method, queries: Iterable[QueryBatch], expected: int) -> Parts:
    """The vectors of each batch of queries, `expected` queries in all."""
    vectors: Parts = [method.encode_queries(batch) for batch in queries]
    found = sum(map(_num_queries, vectors))
    if found == 0:
        raise BadBatch(
            "there are no queries to evaluate, expected at least one batch of them; a generator is read once"
        )
    if found != expected:
        raise BadBatch(f"video_of_query has {expected} queries, but the batches hold {found}; pass those of one split")
    return vectors


def _num_queries(vectors: Vectors) -> int:
    return len(next(iter(vectors.values())))


def _branch_scores(branch: str, queries: Vectors, videos: Encoded) -> Float[Tensor, "Q B"]:
    return scoring.cosine_max_sim(queries[branch], videos[branch].vectors, videos[branch].mask)


def _predict(
    predictors: Mapping[str, Predictor],
    vectors: Parts,
    tokens: Encoded,
    video_of_query: Int[Tensor, " Q"],
    annotated: Bool[Tensor, " Q"],
    seconds: Float[Tensor, " B"],
) -> Iterator[tuple[Int[Tensor, " N"], dict[str, Float[Tensor, "N 2"]]]]:
    """For each batch of queries, the annotated ones whose video is among these, and each predictor's moments of them.

    Videos are counted from the first of this batch; other numbers are those of other batches.
    """
    wanted = annotated & (video_of_query >= 0) & (video_of_query < len(seconds))
    rows_of_part = torch.arange(len(wanted)).split([_num_queries(part) for part in vectors])
    for part, rows in zip(vectors, rows_of_part, strict=True):
        here = wanted[rows]
        if here.any():
            rows = rows[here]
            own = {branch: vector[here.to(vector.device)] for branch, vector in part.items()}
            device = next(iter(own.values())).device
            drawn = curves(own, tokens, video_of_query[rows].to(device))
            durations = seconds[video_of_query[rows]]
            yield rows, {name: in_seconds(predictor(drawn), durations) for name, predictor in predictors.items()}


def _annotated(
    moments: Sequence[Sequence[Moment]] | None, durations: Tensor | None, num_queries: int
) -> Bool[Tensor, " Q"]:
    """Which queries have an annotated moment."""
    if moments is None:
        return torch.zeros(num_queries, dtype=torch.bool)
    if len(moments) != num_queries:
        raise BadBatch(f"moments has {len(moments)} entries, expected one for each of {num_queries} queries, or None")
    annotated = torch.tensor([len(each) > 0 for each in moments], dtype=torch.bool)
    if annotated.any() and durations is None:
        raise BadSetting(
            f"the moments of {int(annotated.sum())} queries are annotated, but durations is None; pass the seconds "
            f"that each video lasts, or leave out moments"
        )
    if durations is not None and not bool((durations.isfinite() & (durations > 0)).all()):
        raise BadSetting(
            f"durations goes from {durations.min()} to {durations.max()}, expected seconds above 0; fix it"
        )
    return annotated


def _in_rows(moments: Iterable[Sequence[Moment]]) -> tuple[Float[Tensor, "M 2"], Int[Tensor, " M"]]:
    """All moments one below the other, and the query that each belongs to."""
    rows = [(query, moment.start, moment.end) for query, each in enumerate(moments) for moment in each]
    table = torch.tensor(rows, dtype=torch.float64).view(len(rows), 3)
    return table[:, 1:], table[:, 0].long()
