"""Statistics of results: intervals over runs and queries, tests between rows, and what can be seen at all.

A row of a table has several runs, one for each seed. Each run answers the same queries. Two things vary: the seeds, and
the choice of test videos. The queries of one video are alike, so whole videos are drawn, never single queries.

`estimate` treats runs and videos as two crossed random samples: the points of run s in video v are

    x_sv = mean + run_s + video_v + rest_sv,

and the variance of the mean is var(run)/N + var(video)/V + var(rest)/(N V). Its degrees of freedom are those of
Satterthwaite. Two rows share the videos, so their difference is taken video by video. They do not share the seeds: the
same seed starts different models. With one video this is Welch's test, with one run a row the paired t-test.

`bootstrap` and `permutation_test` ask less: whether these very runs differ on other videos.

Axes: N and M runs, Q queries, V videos, P tests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import special  # type: ignore[import-untyped]

from midreel.errors import BadBatch, BadSetting

RECALLS_AT = (1, 5, 10, 100)
CONFIDENCE = 0.95
POWER = 0.8
MARKS = {0.001: "***", 0.01: "**", 0.05: "*"}  # by the largest p-value
NUM_RESAMPLES = 10_000


def points(ranks: Int[np.ndarray, "N Q"], at: Sequence[int] = RECALLS_AT) -> Float[np.ndarray, "N Q"]:
    """Return the contribution of each query to SumR, in percent. Their mean over the queries is SumR.

    For R@K alone, pass `at=(K,)`.

    >>> points(np.array([[1, 7, 200]]), at=(1, 10)).tolist()
    [[200.0, 100.0, 0.0]]
    """
    return 100.0 * sum(((ranks <= k).astype(float) for k in at), np.zeros(ranks.shape))


# ---------------------------------------------------------------- runs and videos


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean or a difference, with its standard error.

    Attributes:
        value: The estimate.
        error: The standard error. NaN if there is one run and one video.
        freedom: The degrees of freedom of the error.
    """

    value: float
    error: float
    freedom: float

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the interval that contains the true value with this confidence."""
        half = self.error * _quantile((1 + confidence) / 2, self.freedom)
        return self.value - half, self.value + half

    @property
    def p_value(self) -> float:
        """The probability of such a value, or one further from 0, if the true value is 0."""
        if not self.error > 0:
            return math.nan if math.isnan(self.error) else float(self.value == 0)
        return float(2 * special.stdtr(self.freedom, -abs(self.value) / self.error))


def estimate(
    ours: Float[np.ndarray, "N Q"],
    video_of_query: Int[np.ndarray, " Q"],
    theirs: Float[np.ndarray, "M Q"] | None = None,
) -> Estimate:
    """Return the mean of a row, or the difference of two rows, with the error over runs and videos.

    With one run the error is over videos alone: it says nothing about other seeds.

    Args:
        ours: The points of each run and query.
        video_of_query: The video of each query.
        theirs: The points of the row to subtract.

    Raises:
        BadBatch: There are no runs or no queries.
    """
    rows = [_Row.of(each, video_of_query) for each in ((ours,) if theirs is None else (ours, theirs))]
    value = rows[0].mean - (rows[1].mean if theirs is not None else 0.0)
    across_videos = rows[0].of_video - (rows[1].of_video if theirs is not None else 0.0)
    num_videos = len(across_videos)
    parts = [(_variance(across_videos) / num_videos, num_videos - 1)]
    parts += [(_variance(row.of_run) / row.num_runs, row.num_runs - 1) for row in rows]
    known = [(part, freedom) for part, freedom in parts if freedom > 0]
    if not known:
        return Estimate(value=value, error=math.nan, freedom=math.nan)
    # The variance between videos and that between runs both contain the rest, which counts once.
    variances = [part for part, _ in known]
    runs = sum(part for part, freedom in parts[1:] if freedom > 0)
    variance = max(sum(variances) - sum(row.rest / row.num_runs / num_videos for row in rows), parts[0][0], runs)
    return Estimate(value=value, error=math.sqrt(variance), freedom=_freedom(known))


@dataclass(frozen=True, kw_only=True)
class _Row:
    """The points of a row by run and by video, and the variance of what neither explains."""

    of_run: Float[np.ndarray, " N"]
    of_video: Float[np.ndarray, " V"]
    rest: float

    @property
    def num_runs(self) -> int:
        return len(self.of_run)

    @property
    def mean(self) -> float:
        return float(self.of_run.mean())

    @classmethod
    def of(cls, values: Float[np.ndarray, "N Q"], video_of_query: Int[np.ndarray, " Q"]) -> "_Row":
        if not values.size:
            raise BadBatch(f"points have the shape {values.shape}, expected at least one run and one query.")
        # Videos have different numbers of queries, so the mean over queries is a ratio. These values are its
        # linearisation: each row has the mean of its run.
        sums, counts = _by_video(values, video_of_query)
        of_run = values.mean(1)
        of_both = of_run[:, None] + (sums - counts * of_run[:, None]) / counts.mean()
        of_video = of_both.mean(0)
        freedom = (len(of_run) - 1) * (len(of_video) - 1)
        rest = of_both - of_run[:, None] - of_video + of_run.mean()
        return cls(of_run=of_run, of_video=of_video, rest=float((rest**2).sum() / freedom) if freedom else 0.0)


def _by_video(
    values: Float[np.ndarray, "N Q"], video_of_query: Int[np.ndarray, " Q"]
) -> tuple[Float[np.ndarray, "N V"], Float[np.ndarray, " V"]]:
    """Return the sum over the queries of each video, and their number."""
    if values.shape[1] != len(video_of_query):
        raise BadBatch(f"there are points of {values.shape[1]} queries and videos of {len(video_of_query)}.")
    _, place = np.unique(video_of_query, return_inverse=True)
    return np.stack([np.bincount(place, run) for run in values]), np.bincount(place).astype(float)


def _variance(values: Float[np.ndarray, " _"]) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _freedom(parts: Sequence[tuple[float, int]]) -> float:
    """Return Satterthwaite's degrees of freedom of a sum of variances."""
    total = sum(part for part, _ in parts)
    weights = sum(part**2 / freedom for part, freedom in parts)
    return total**2 / weights if weights else float(min(freedom for _, freedom in parts))


def _quantile(share: float, freedom: float) -> float:
    return float(special.stdtrit(freedom, share))


# ---------------------------------------------------------------- these runs, other videos


def bootstrap(
    values: Float[np.ndarray, " Q"],
    video_of_query: Int[np.ndarray, " Q"],
    *,
    resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95 % interval of the mean over the choice of videos, by the percentiles of resampled videos.

    For a paired interval, pass the differences of two rows, query by query.

    Args:
        values: A value for each query, averaged over the runs.
        video_of_query: The video of each query. Whole videos are drawn.
        resamples: The number of draws.
        seed: The seed of the draws.
    """
    sums, counts = _by_video(values[None], video_of_query)
    rng = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for number in range(resamples):  # one draw at a time: all of them would need resamples x V numbers
        times = np.bincount(rng.integers(len(counts), size=len(counts)), minlength=len(counts))
        drawn[number] = times @ sums[0] / (times @ counts)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def permutation_test(
    differences: Float[np.ndarray, " Q"],
    video_of_query: Int[np.ndarray, " Q"],
    *,
    resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> float:
    """Return the two-sided p-value of the mean difference of two rows, by swapping the rows video by video.

    All ways to swap are counted if there are at most `resamples`, else a random sample of them.

    Args:
        differences: The difference for each query, averaged over the runs of each row.
        video_of_query: The video of each query. The queries of a video are swapped together.
        resamples: The number of ways to swap.
        seed: The seed of the sample.
    """
    sums, _ = _by_video(differences[None], video_of_query)
    of_video = sums[0]
    observed = abs(of_video.sum())
    limit = observed - 1e-9 * np.abs(of_video).sum()  # equal sums differ by rounding
    if 2 ** len(of_video) <= resamples:
        ways = np.arange(2 ** len(of_video))[:, None] >> np.arange(len(of_video)) & 1
        return float((np.abs((1 - 2 * ways) @ of_video) >= limit).mean())
    rng = np.random.default_rng(seed)
    as_far = sum(
        abs(np.where(rng.random(len(of_video)) < 0.5, -of_video, of_video).sum()) >= limit for _ in range(resamples)
    )
    return float((1 + as_far) / (1 + resamples))


# ---------------------------------------------------------------- many tests, and power


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests, by Holm's method. NaN stays, and counts as no test.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = list(p_values), 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[place] = largest
    return adjusted


def mark(p_value: float) -> str:
    """Return the stars of a p-value: one below 0.05, two below 0.01, three below 0.001.

    >>> mark(0.03), mark(0.2)
    ('*', '')
    """
    return next((stars for limit, stars in MARKS.items() if p_value < limit), "")


def detectable(
    ours: Float[np.ndarray, "N Q"],
    theirs: Float[np.ndarray, "M Q"],
    video_of_query: Int[np.ndarray, " Q"],
    num_runs: int,
) -> float:
    """Return the smallest true difference that a test at 5 % finds with a probability of 80 %.

    It is NaN if a row has a single run, because the variance between runs is then unknown.

    Args:
        ours: The points of each run and query of one row.
        theirs: The points of the other row.
        video_of_query: The video of each query.
        num_runs: The number of runs of each row in the planned comparison.

    Raises:
        BadSetting: `num_runs` is below 2.
    """
    if num_runs < 2:
        raise BadSetting(f"num_runs is {num_runs}, expected 2 or more. The variance between runs needs two.")
    rows = [_Row.of(each, video_of_query) for each in (ours, theirs)]
    if min(row.num_runs for row in rows) < 2:
        return math.nan
    num_videos = len(rows[0].of_video)
    rest = sum(row.rest for row in rows)
    seeds = sum(max(_variance(row.of_run) - row.rest / num_videos, 0.0) for row in rows)
    videos = _variance(rows[0].of_video - rows[1].of_video) - sum(row.rest / row.num_runs for row in rows)
    shared = rest / num_runs / num_videos
    parts = [(seeds / num_runs + shared, 2 * (num_runs - 1)), (max(videos, 0.0) / num_videos + shared, num_videos - 1)]
    error = math.sqrt(sum(part for part, _ in parts) - shared)
    freedom = _freedom([(part, freedom) for part, freedom in parts if freedom > 0])
    return error * (_quantile((1 + CONFIDENCE) / 2, freedom) + _quantile(POWER, freedom))
