"""The cache of query vectors: it never changes an answer, and it is bounded."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from midreel.index.base import Array
from midreel.library.recent import RecentQueries


class Model:
    """An encoder whose vectors depend on the batch, as those of a network do, and that counts its batches."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def encode(self, queries: list[str]) -> dict[str, Array]:
        self.batches.append(queries)
        return {"clip": np.array([[len(query), len(queries)] for query in queries], np.float32).reshape(-1, 2)}


def test_a_query_is_encoded_once() -> None:
    model = Model()
    recent = RecentQueries(model.encode)
    assert np.array_equal(recent.encode(["a ball"])["clip"], recent.encode(["a ball"])["clip"])
    assert model.batches == [["a ball"]]


def test_only_new_queries_are_encoded_and_rows_keep_their_order() -> None:
    model = Model()
    recent = RecentQueries(model.encode)
    recent.encode(["bb"])
    found = recent.encode(["a", "bb", "ccc", "a"])["clip"]
    assert found.tolist() == [[1, 2], [2, 1], [3, 2], [1, 2]]
    assert model.batches[1:] == [["a", "ccc"]]


def test_the_last_queries_are_kept() -> None:
    model = Model()
    recent = RecentQueries(model.encode, most=2)
    for query in ("a", "b", "a", "c", "a", "b"):
        recent.encode([query])
    assert model.batches == [["a"], ["b"], ["c"], ["b"]]


def test_no_queries() -> None:
    assert RecentQueries(Model().encode).encode([])["clip"].shape == (0, 2)


@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), max_size=8))
def test_a_query_alone_is_answered_as_without_the_cache(batches: list[list[str]]) -> None:
    recent = RecentQueries(Model().encode, most=2)
    for batch in batches:
        recent.encode(batch)
        for query in batch:
            assert recent.encode([query])["clip"].tolist() == Model().encode([query])["clip"].tolist()
