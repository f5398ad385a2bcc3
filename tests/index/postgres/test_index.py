"""What only the index in PostgreSQL has: the caller's transactions, generations, migrations and the graph."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest
import torch

from midreel.errors import BadIndex, BadSetting, FingerprintMismatch
from midreel.index import ExactIndex
from midreel.index.postgres import PostgresIndex, schema
from midreel.index.postgres.graph import Graph
from tests.index.library import DOT, WEIGHTS, WIDTH, queries, tokens, video
from tests.index.test_contract import assert_alike, oracle


@pytest.fixture
def index(postgres_url: str, schema_name: str) -> Iterator[PostgresIndex]:
    with PostgresIndex.create(
        postgres_url, name=schema_name, branch_weights=WEIGHTS, width=WIDTH, fingerprint="model 1"
    ) as index:
        yield index


@pytest.fixture
def connection(postgres_url: str) -> Iterator["psycopg.Connection[Any]"]:
    with psycopg.connect(postgres_url) as connection:
        yield connection


def num_rows(index: PostgresIndex, table: str) -> int:
    (number,) = index.transact(lambda connection: connection.execute(f"SELECT count(*) FROM {table}").fetchone())
    return int(number)


# ---------------------------------------------------------------- the caller's transaction


def test_the_caller_commits_rows_and_tokens_together(index: PostgresIndex, connection: Any) -> None:
    table = f"{index.generation.schema}.catalogue"
    connection.execute(f"CREATE TABLE {table} (path text)")
    connection.commit()
    joined = index.within(connection)
    connection.execute(f"INSERT INTO {table} VALUES ('a.mp4')")
    joined.add("a", video(0))
    assert joined.video_ids() == ["a"]
    assert joined.search(queries(0, 1))[0][0].video_id == "a"
    assert index.video_ids() == []  # not committed yet
    connection.rollback()
    assert index.video_ids() == []
    connection.execute(f"INSERT INTO {table} VALUES ('a.mp4')")
    joined.add("a", video(0))
    connection.commit()
    assert index.video_ids() == ["a"]
    assert num_rows(index, table) == 1


def test_an_error_leaves_the_callers_transaction_usable(index: PostgresIndex, connection: Any) -> None:
    joined = index.within(connection)
    joined.add("a", video(0))
    with pytest.raises(BadIndex):
        joined.remove("b")
    with pytest.raises(BadSetting, match="transaction"):
        joined.compact()
    connection.commit()
    assert index.video_ids() == ["a"]


# ---------------------------------------------------------------- contents


@pytest.mark.parametrize("name", ["ü 'quoted\" ☃", "\udcff broken", "nul \0", "x" * 5000, "%s", "null"])
def test_any_id(index: PostgresIndex, name: str) -> None:
    index.add(name, video(0))
    index.add("other", video(1))
    assert name in index
    assert index.video_ids() == [name, "other"]
    assert [match.video_id for match in index.search(queries(0, 1), among=[name])[0]] == [name]
    index.remove(name)
    assert name not in index
    assert 3 not in index


def test_a_replaced_video_leaves_no_rows(index: PostgresIndex) -> None:
    index.add("a", video(0, windows=4))
    index.add_all([("a", video(1)), ("b", video(2)), ("a", video(3))])
    assert index.video_ids() == ["b", "a"]
    tables = [*map(index.generation.tokens, WEIGHTS)]
    rows = [num_rows(index, table) for table in tables]
    index.add("a", video(3))
    assert [num_rows(index, table) for table in tables] == rows
    index.remove("a")
    index.remove("b")
    assert [num_rows(index, table) for table in tables] == [0, 0]


def test_all_videos_are_added_or_none(index: PostgresIndex) -> None:
    with pytest.raises(BadSetting):
        index.add_all([("a", video(0)), ("", video(1))])
    assert len(index) == 0


@pytest.mark.parametrize("width", [1, 7, 4000, 4100])
def test_any_width(postgres_url: str, schema_name: str, width: int) -> None:
    """Also vectors that are larger than a page."""
    vectors = torch.randn(5, 3, width)
    with PostgresIndex.create(postgres_url, name=schema_name, branch_weights={"clip": 1.0}, width=width) as index:
        for number in range(5):
            index.add(f"v{number}", {"clip": tokens(vectors[number : number + 1])})
        asked = {"clip": torch.randn(2, width)}
        assert_alike(index.search(asked), oracle(index).search(asked))
    with pytest.raises(BadSetting, match="width"):
        PostgresIndex.create(postgres_url, name=f"{schema_name}_x", branch_weights={"clip": 1.0}, width=0)


def test_more_videos_than_one_copy(index: PostgresIndex) -> None:
    named = [(f"v{number}", video(number)) for number in range(150)]
    index.add_all(named)
    exact = ExactIndex(WEIGHTS)
    for name, each in named:
        exact.add(name, each)
    assert index.video_ids() == exact.video_ids()
    for ours, theirs in zip(index.search(queries(0)), exact.search(queries(0)), strict=True):
        assert [match.score for match in ours] == pytest.approx([match.score for match in theirs], abs=1e-3)


def test_moments_come_from_the_stored_spans(index: PostgresIndex) -> None:
    added = video(3, windows=2)
    index.add("a", added)
    kept = index.tokens("a")["frame"]
    query = added["frame"].vectors[1, 0]  # the first token is never masked
    products = np.where(kept.mask, kept.vectors @ query.numpy(), -np.inf)
    window, token = np.unravel_index(products.argmax(), products.shape)
    assert window == 1
    assert kept.spans[window, token] == pytest.approx(added["frame"].spans[1, 0].numpy())


# ---------------------------------------------------------------- generations and formats


def test_a_generation_is_built_beside_the_one_that_serves(index: PostgresIndex, postgres_url: str) -> None:
    name = index.generation.schema
    index.add("a", video(0))
    other = index.successor(branch_weights={"frame": 1.0}, width=8, fingerprint="model 2")
    other.add("b", {"frame": video(1, width=8)["frame"]})
    assert not other.is_serving()
    with PostgresIndex.open(postgres_url, name=name) as found:
        assert found.video_ids() == ["a"]
    with pytest.raises(BadSetting, match="serves"):
        index.drop()
    other.serve()
    assert other.is_serving()
    assert index.video_ids() == ["a"]  # open indexes stay in their generation
    assert index.search(queries(0, 1))[0][0].video_id == "a"
    with PostgresIndex.open(postgres_url, name=name, fingerprint="model 2") as found:
        assert found.video_ids() == ["b"]
        assert found.width == 8
    with PostgresIndex.open(postgres_url, name=name, generation=index.generation.number) as found:
        assert found.video_ids() == ["a"]
    index.drop()
    for call in (lambda: index.add("c", video(2)), lambda: index.search(queries(0)), index.video_ids, index.serve):
        with pytest.raises(BadIndex):
            call()
    assert other.video_ids() == ["b"]


def test_the_switch_can_join_a_transaction(index: PostgresIndex, connection: Any) -> None:
    other = index.successor(branch_weights=WEIGHTS, width=WIDTH)
    other.within(connection).serve()
    assert index.is_serving()
    connection.rollback()
    assert index.is_serving()
    other.within(connection).serve()
    connection.commit()
    assert not index.is_serving()


def test_another_model_is_refused(index: PostgresIndex, postgres_url: str) -> None:
    with pytest.raises(FingerprintMismatch, match="model 1"):
        PostgresIndex.open(postgres_url, name=index.generation.schema, fingerprint="model 2")
    PostgresIndex.open(postgres_url, name=index.generation.schema, fingerprint="model 1").close()


def test_missing_existing_and_misnamed_indexes(index: PostgresIndex, postgres_url: str) -> None:
    with pytest.raises(BadIndex, match="already"):
        PostgresIndex.create(postgres_url, name=index.generation.schema, branch_weights=WEIGHTS, width=WIDTH)
    with pytest.raises(BadIndex, match="no index"):
        PostgresIndex.open(postgres_url, name="test_missing")
    for name in ("", "A", "a b", "a; DROP TABLE x", "1a", "x" * 60):
        with pytest.raises(BadSetting, match="name"):
            PostgresIndex.open(postgres_url, name=name)


def test_migrations(index: PostgresIndex, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = index.generation.schema
    index.add("a", video(0))
    more = "ALTER TABLE {schema}.generations ADD COLUMN note text DEFAULT 'new'; SELECT 1;"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, more))
    for _ in range(2):  # the second time, there is nothing to do
        with PostgresIndex.open(postgres_url, name=name) as found:
            assert found.video_ids() == ["a"]
            note = found.transact(lambda c: c.execute(f"SELECT note FROM {name}.generations").fetchone())
            assert note == ("new",)
    monkeypatch.undo()
    with pytest.raises(BadIndex, match="Upgrade"):
        PostgresIndex.open(postgres_url, name=name)


def test_a_failed_migration_changes_nothing(
    index: PostgresIndex, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = index.generation.schema
    more = "ALTER TABLE {schema}.generations ADD COLUMN note text; SELECT no_such_function()"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, more))
    with pytest.raises(BadIndex):
        PostgresIndex.open(postgres_url, name=name)
    monkeypatch.undo()
    PostgresIndex.open(postgres_url, name=name).close()


def test_an_old_pgvector_is_refused(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        schema.check_vector(connection, (0, 7))
        with pytest.raises(BadIndex, match="pgvector"):
            schema.check_vector(connection, (99,))


# ---------------------------------------------------------------- the graph


def eventually_scanned(url: str, schema: str) -> bool:
    """Return whether the server reports a scan of the graph. A backend reports its counters only now and then."""
    scans = "SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE schemaname = %s AND indexrelname LIKE %s"
    for _ in range(150):
        with psycopg.connect(url) as connection:
            (number,) = connection.execute(scans, (schema, "graph%hnsw")).fetchone() or (0,)
        if number:
            return True
        time.sleep(0.1)
    return False


def test_a_graph_finds_new_videos_and_no_removed_ones(index: PostgresIndex, postgres_url: str) -> None:
    index.add_all((f"v{number}", video(number)) for number in range(40))
    graph = index.build_graph(least=0.0)
    assert isinstance(graph, Graph)
    assert 0.9 <= graph.recall <= 1
    index.remove("v3")
    index.add("v4", video(99))
    index.add("new", video(7))
    found, expected = index.search(queries(1), top=10), oracle(index).search(queries(1), top=10)
    for ours, theirs in zip(found, expected, strict=True):
        names = {match.video_id for match in ours}
        assert "v3" not in names
        assert len(names & {match.video_id for match in theirs}) >= 8
    asked = {branch: part.vectors[:, 0] for branch, part in video(7).items()}
    assert [match.video_id for match in index.search(asked, top=2)[0]] == ["v7", "new"]
    assert eventually_scanned(postgres_url, index.generation.schema)
    index.drop_graph()
    assert_alike(index.search(queries(1)), expected)


def test_a_graph_with_a_low_recall_is_not_kept(index: PostgresIndex) -> None:
    index.add_all((f"v{number}", video(number)) for number in range(20))
    assert index.build_graph(least=1.1) is None
    assert index.search(queries(1))[0]


def test_a_graph_needs_cosines(postgres_url: str, schema_name: str) -> None:
    with PostgresIndex.create(
        postgres_url, name=schema_name, branch_weights={"clip": 1.0}, width=WIDTH, similarities={"clip": DOT}
    ) as index:
        index.add("a", {"clip": video(0)["clip"]})
        assert index.build_graph(least=0.0) is None


def test_a_graph_of_nothing(index: PostgresIndex) -> None:
    assert index.build_graph(least=0.0) is None
    assert index.search(queries(0)) == [[], [], []]
