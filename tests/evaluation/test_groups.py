import numpy as np

from midreel.evaluation import groups
from midreel.types import Moment, Query


def query(number: int, *moments: tuple[float, float]) -> Query:
    made = tuple(Moment(start=float(start), end=float(end)) for start, end in moments)
    return Query(id=f"q{number}", text="", video_id="v", moments=made)


QUERIES = [query(0, (0, 2)), query(1, (1, 3), (6, 8)), query(2, (0, 9)), query(3)]


def test_by_ratio() -> None:
    found = groups.by_ratio(QUERIES, np.full(4, 10.0))
    assert [np.flatnonzero(chosen).tolist() for chosen in found.values()] == [[0], [1], [2]]
    np.testing.assert_allclose(groups.moment_ratios(QUERIES, np.full(4, 10.0)), [0.2, 0.4, 0.9, np.nan])
    assert list(groups.by_ratio(QUERIES[3:], np.full(1, 10.0))) == []


def test_by_length_in_thirds() -> None:
    durations = np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    found = groups.by_length(durations)
    assert [int(chosen.sum()) for chosen in found.values()] == [2, 2, 2]
    assert [int(chosen.sum()) for chosen in groups.by_length(np.full(3, 7.0)).values()] == [3]
    assert groups.by_length(np.zeros(0)) == {}


def test_by_kind() -> None:
    found = groups.by_kind({"q0": "still", "q2": "moving", "q9": "moving"}, QUERIES)
    assert {name: np.flatnonzero(chosen).tolist() for name, chosen in found.items()} == {"still": [0], "moving": [2]}
    assert groups.by_kind({}, QUERIES) == {}
