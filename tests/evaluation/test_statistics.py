import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from midreel.errors import BadBatch, BadSetting
from midreel.evaluation import metrics, statistics
from midreel.evaluation.statistics import (
    Estimate,
    bootstrap,
    detectable,
    estimate,
    holm,
    mark,
    permutation_test,
    points,
)

RNG = np.random.default_rng(0)
ONE_EACH = np.arange(40)  # as many videos as queries


def draw(rng: np.random.Generator, runs: int, videos: int, *, run: float, rest: float = 1.0) -> np.ndarray:
    """Draw points of runs and videos without the effect of the videos, which two rows share."""
    return run * rng.normal(size=(runs, 1)) + rest * rng.normal(size=(runs, videos))


# ---------------------------------------------------------------- points


def test_the_mean_of_the_points_is_sumr() -> None:
    ranks = RNG.integers(1, 300, size=(2, 50))
    for run, of_run in zip(ranks, points(ranks), strict=True):
        assert of_run.mean() == pytest.approx(metrics.recalls(torch.from_numpy(run))["SumR"])
    assert statistics.RECALLS_AT == metrics.RECALLS_AT


# ---------------------------------------------------------------- runs and videos


def test_by_hand() -> None:
    # Two runs with means 2 and 4, two videos with means 2 and 4, no rest: 1 + 1 for runs and videos.
    found = estimate(np.array([[1.0, 3.0], [3.0, 5.0]]), np.array([0, 1]))
    assert (found.value, found.error) == (3.0, pytest.approx(math.sqrt(2)))
    assert found.freedom == pytest.approx(2**2 / (1 + 1))


def test_one_run_a_row_is_the_paired_t_test() -> None:
    ours, theirs = RNG.normal(0.3, 1, (1, 40)), RNG.normal(0, 1, (1, 40))
    found, expected = estimate(ours, ONE_EACH, theirs), stats.ttest_rel(ours[0], theirs[0])
    assert found.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert found.interval() == pytest.approx((interval.low, interval.high))


def test_one_video_is_welchs_test() -> None:
    ours, theirs = RNG.normal(1, 1, (5, 1)), RNG.normal(0, 3, (4, 1))
    found, expected = (
        estimate(ours, np.zeros(1, int), theirs),
        stats.ttest_ind(ours[:, 0], theirs[:, 0], equal_var=False),
    )
    assert (found.p_value, found.freedom) == (pytest.approx(expected.pvalue), pytest.approx(expected.df))


def test_videos_without_a_difference_leave_welchs_test() -> None:
    of_run, of_video = RNG.normal(size=(5, 1)), RNG.normal(size=(1, 40))
    ours, theirs = of_run + of_video, of_run[::-1] * 2 + of_video
    expected = stats.ttest_ind(of_run[:, 0], 2 * of_run[:, 0], equal_var=False)
    assert estimate(ours, ONE_EACH, theirs).p_value == pytest.approx(expected.pvalue)


def slow_error(values: np.ndarray, video_of_query: list[int]) -> float:
    """Return the standard error of the mean of a row in plain loops."""
    videos = sorted(set(video_of_query))
    per_video = len(video_of_query) / len(videos)
    table = []
    for run in values:
        mean = sum(run) / len(run)
        line = []
        for video in videos:
            own = [x for x, other in zip(run, video_of_query, strict=True) if other == video]
            line.append(mean + (sum(own) - len(own) * mean) / per_video)
        table.append(line)
    runs, num = len(table), len(videos)
    of_run = [sum(line) / num for line in table]
    of_video = [sum(line[v] for line in table) / runs for v in range(num)]
    total = sum(of_run) / runs
    var_run = sum((x - total) ** 2 for x in of_run) / (runs - 1)
    var_video = sum((x - total) ** 2 for x in of_video) / (num - 1)
    rest = sum((table[r][v] - of_run[r] - of_video[v] + total) ** 2 for r in range(runs) for v in range(num))
    rest /= (runs - 1) * (num - 1)
    return math.sqrt(max(var_run / runs + var_video / num - rest / runs / num, var_video / num, var_run / runs))


@given(st.integers(2, 5), st.integers(2, 12), st.integers(0, 1000))
def test_equals_the_loop(runs: int, videos: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    video_of_query = np.concatenate((np.arange(videos), rng.integers(videos, size=videos)))
    values = rng.normal(size=(runs, len(video_of_query)))
    found = estimate(values, video_of_query)
    assert found.error == pytest.approx(slow_error(values, video_of_query.tolist()))
    assert found.value == pytest.approx(values.mean())
    again = estimate(values + 7, 3 * video_of_query + 2)  # a shift and other names change no error
    assert (again.error, again.freedom) == (pytest.approx(found.error), pytest.approx(found.freedom))
    assert estimate(values, video_of_query, values).value == 0


def test_a_single_run_and_video_has_no_error() -> None:
    found = estimate(np.ones((1, 1)), np.zeros(1, int))
    assert found.value == 1
    assert math.isnan(found.p_value)
    assert all(map(math.isnan, found.interval()))


def test_equal_rows_have_a_p_value_of_one() -> None:
    same = np.ones((3, 40))
    assert estimate(same, ONE_EACH, same).p_value == 1
    assert estimate(same + 1, ONE_EACH, same).p_value == 0  # a difference without any variance


@pytest.mark.usefixtures("unchecked")
def test_no_points() -> None:
    with pytest.raises(BadBatch, match="shape"):
        estimate(np.zeros((0, 3)), np.zeros(3, int))
    with pytest.raises(BadBatch, match="queries"):
        estimate(np.zeros((1, 3)), np.zeros(2, int))


@pytest.mark.parametrize(("runs", "run"), [(3, 0.0), (3, 0.3), (3, 2.0), (5, 0.3)])
def test_type_1_error_and_coverage_by_simulation(runs: int, run: float) -> None:
    """Without an effect, the test must find one in 5 % of the cases, whether the seeds vary little or much."""
    rng = np.random.default_rng(1)
    num, found, covered = 400, 0, 0
    for _ in range(num):
        videos = rng.normal(size=(1, 40))
        ours, theirs = (draw(rng, runs, 40, run=run) + videos for _ in range(2))
        found += estimate(ours, ONE_EACH, theirs).p_value < 0.05
        low, high = estimate(ours, ONE_EACH).interval()
        covered += low <= 0 <= high
    # Binomial limits around 5 % and 95 %; an interval may be a little too wide, never too narrow.
    assert found / num < 0.05 + 3 * math.sqrt(0.05 * 0.95 / num)
    assert found / num > 0.01  # cautious where neither seeds nor videos matter: the rest is then counted twice
    assert covered / num > 0.95 - 4 * math.sqrt(0.05 * 0.95 / num)


def test_coverage_with_queries_in_videos() -> None:
    """Videos with one to six queries that are alike. The queries as independent samples would be far too sure."""
    rng, num, covered, naive = np.random.default_rng(2), 300, 0, 0
    for _ in range(num):
        video_of_query = np.repeat(np.arange(40), rng.integers(1, 7, size=40))
        of_video = rng.normal(size=40)
        values = of_video[video_of_query] + 0.5 * rng.normal(size=(1, len(video_of_query)))
        low, high = estimate(values, video_of_query).interval()
        covered += low <= 0 <= high
        low, high = estimate(values, np.arange(values.shape[1])).interval()
        naive += low <= 0 <= high
    assert covered / num > 0.95 - 4 * math.sqrt(0.05 * 0.95 / num)
    assert naive / num < 0.8


# ---------------------------------------------------------------- these runs, other videos


def test_bootstrap_agrees_with_scipy() -> None:
    values = RNG.exponential(size=40)
    expected = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=0).confidence_interval
    assert bootstrap(values, ONE_EACH) == pytest.approx((expected.low, expected.high), abs=0.02)
    assert bootstrap(values, ONE_EACH, resamples=50) == bootstrap(values, ONE_EACH, resamples=50)


def test_bootstrap_draws_whole_videos() -> None:
    values = np.array([0.0, 0.0, 1.0, 1.0])
    assert bootstrap(values, np.array([0, 0, 1, 1]), resamples=500) == (0, 1)
    assert bootstrap(values, np.zeros(4, int), resamples=50) == (0.5, 0.5)


def test_coverage_of_the_bootstrap() -> None:
    rng, num = np.random.default_rng(3), 150
    covered = 0
    for _ in range(num):
        low, high = bootstrap(rng.normal(size=40), ONE_EACH, resamples=200)
        covered += low <= 0 <= high
    assert 0.88 < covered / num < 0.99  # percentiles are a little too narrow for 40 videos


@pytest.mark.parametrize("num", [5, 12])
def test_all_permutations_agree_with_scipy(num: int) -> None:
    values = RNG.normal(0.4, 1, num)
    expected = stats.permutation_test((values, np.zeros(num)), lambda a, b: np.mean(a - b), permutation_type="samples")
    assert permutation_test(values, np.arange(num)) == pytest.approx(expected.pvalue)


def test_permutations_by_hand() -> None:
    # Three videos that all differ by 1: two of eight ways to swap give a sum as far from 0.
    assert permutation_test(np.ones(3), np.arange(3)) == 0.25
    assert permutation_test(np.ones(3), np.zeros(3, int)) == 1.0  # one video
    assert permutation_test(np.zeros(3), np.arange(3)) == 1.0


def test_sampled_permutations_agree_with_all() -> None:
    values = RNG.normal(0.4, 1, 13)
    every, some = (permutation_test(values, np.arange(13), resamples=n) for n in (8192, 8000))
    assert some == pytest.approx(every, abs=0.02)
    assert permutation_test(np.ones(40), ONE_EACH, resamples=99) == 0.01  # never 0


def test_type_1_error_of_the_permutation_test() -> None:
    rng, num = np.random.default_rng(4), 200
    found = sum(permutation_test(rng.normal(size=40), ONE_EACH, resamples=200, seed=s) < 0.05 for s in range(num))
    assert 0.01 < found / num < 0.05 + 3 * math.sqrt(0.05 * 0.95 / num)


# ---------------------------------------------------------------- many tests, and power


def test_holm_by_hand() -> None:
    assert holm([0.01, math.nan, 0.2])[0] == 0.02
    assert math.isnan(holm([0.01, math.nan, 0.2])[1])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_marks() -> None:
    assert [mark(p) for p in (0.0001, 0.009, 0.05, math.nan)] == ["***", "**", "", ""]


def test_power_by_simulation() -> None:
    """At the detectable difference, four of five comparisons find it."""
    rng, num, found = np.random.default_rng(5), 300, 0
    large = [draw(rng, 60, 40, run=0.3) for _ in range(2)]
    difference = detectable(*large, ONE_EACH, num_runs=4)
    for _ in range(num):
        ours, theirs = (draw(rng, 4, 40, run=0.3) for _ in range(2))
        found += estimate(ours + difference, ONE_EACH, theirs).p_value < 0.05
    assert 0.7 < found / num < 0.9


def test_more_runs_detect_less_and_one_run_nothing() -> None:
    rows = [draw(np.random.default_rng(seed), 3, 40, run=1) for seed in (0, 1)]
    found = [detectable(*rows, ONE_EACH, num_runs=n) for n in (2, 3, 5, 20)]
    assert found == sorted(found, reverse=True)
    assert math.isnan(detectable(rows[0][:1], rows[1], ONE_EACH, num_runs=3))
    with pytest.raises(BadSetting, match="num_runs"):
        detectable(*rows, ONE_EACH, num_runs=1)


def test_an_estimate_by_hand() -> None:
    found = Estimate(value=2.0, error=1.0, freedom=10.0)
    assert found.interval() == pytest.approx((2 - 2.2281, 2 + 2.2281), abs=1e-4)
    assert found.p_value == pytest.approx(0.0734, abs=1e-4)
