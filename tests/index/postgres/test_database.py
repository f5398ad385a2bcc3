"""Connections: URLs, passwords, lost connections and errors."""

import traceback
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from midreel.errors import BadIndex, BadSetting, Locked, Unreachable, Unwritable
from midreel.index.postgres import PostgresIndex
from midreel.index.postgres.database import Connection, Pool, check_url, scrubbed, shown
from tests.index.library import WEIGHTS, WIDTH, video
from tools.postgres_server import PostgresServer

SECRET = "tr0ub4dor and 3"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:tr0ub4dor@db/films",
        "postgresql://me@db/films?password=tr0ub4dor",
        "postgresql://db/films?sslpassword=tr0ub4dor",
        "mysql://me:tr0ub4dor@db/films",
        "postgresql://me@[tr0ub4dor/films",
        "postgresql://me@db/films?tr0ub4dor=1",
        "host=db password=tr0ub4dor",
    ],
)
def test_urls_with_secrets_or_mistakes_are_refused_and_never_quoted(url: str) -> None:
    with pytest.raises(BadSetting) as caught:
        PostgresIndex.create(url, branch_weights=WEIGHTS, width=WIDTH)
    assert "tr0ub4dor" not in "".join(traceback.format_exception(caught.value)).replace(url, "")
    assert "tr0ub4dor" not in str(caught.value)


def test_messages_name_the_server_and_the_database_only() -> None:
    check_url("postgresql://me@db.example:5433/films?sslmode=require")
    assert shown("postgresql://me@db.example:5433/films?sslmode=require") == "postgresql://db.example:5433/films"
    assert shown("postgresql:///films?host=/run/pg") == "postgresql:///run/pg/films"


def test_the_password_of_the_environment_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert SECRET not in scrubbed(f"no role {SECRET}")
    monkeypatch.delenv("PGPASSWORD")
    assert scrubbed("no role") == "no role"


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    with PostgresServer({"fsync": "off"}, password=SECRET) as server:
        yield server


def test_a_wrong_password_is_reported_without_it(guarded: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "a wrong one")
    with pytest.raises(Unreachable, match="password") as caught:
        PostgresIndex.open(guarded.url)
    assert "a wrong one" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is None


def test_a_password_comes_from_the_environment_or_a_file(
    guarded: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    with PostgresIndex.create(guarded.url, branch_weights=WEIGHTS, width=WIDTH) as index:
        index.add("a", video(0))
        assert SECRET not in repr(index)
    monkeypatch.delenv("PGPASSWORD")
    with pytest.raises(Unreachable):
        PostgresIndex.open(guarded.url)
    file = tmp_path / "passwords"
    file.write_text(f"*:*:*:*:{SECRET}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    with PostgresIndex.open(guarded.url) as index:
        assert index.video_ids() == ["a"]
    with psycopg.connect(guarded.url) as connection:  # the password is in no table of the index
        found = connection.execute("SELECT string_agg(g::text, ' ') FROM midreel.generations AS g").fetchone()
    assert found is not None
    assert SECRET not in str(found)


def test_a_missing_server_is_unreachable(tmp_path: Path) -> None:
    pool = Pool(f"postgresql:///none?host={tmp_path}", patience=0.1)
    with pytest.raises(Unreachable):
        pool.run(lambda connection: None)


def test_errors_of_the_server(postgres_url: str) -> None:
    pool = Pool(postgres_url, patience=0.5)

    def raising(statement: str) -> None:
        pool.run(lambda connection: connection.execute(statement.encode()))

    with pytest.raises(BadIndex):
        raising("SELECT * FROM no_such_table")
    with pytest.raises(Unwritable):
        pool.run(lambda connection: connection.execute("CREATE TABLE x (i int)"), snapshot=True)
    with pytest.raises(Unwritable):
        raising("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full'; END $$")
    with pytest.raises(Locked):
        raising("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'lock_not_available'; END $$")
    assert pool.run(lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
    pool.close()


def test_all_connections_in_use(postgres_url: str) -> None:
    pool = Pool(postgres_url, size=1, patience=0.2)
    with pytest.raises(Locked):
        pool.run(lambda connection: pool.run(lambda other: None))
    pool.close()


def test_a_transaction_is_repeated_after_a_conflict(postgres_url: str) -> None:
    pool, runs = Pool(postgres_url), []

    def work(connection: Connection) -> int:
        runs.append(connection)
        if len(runs) < 3:
            connection.execute("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'serialization_failure'; END $$")
        return len(runs)

    assert pool.run(work) == 3
    pool.close()


def test_errors_of_the_work_roll_back_and_pass_through(postgres_url: str, schema_name: str) -> None:
    pool = Pool(postgres_url)

    def work(connection: Connection) -> None:
        connection.execute(f"CREATE SCHEMA {schema_name}".encode())
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        pool.run(work)
    assert pool.run(lambda c: c.execute("SELECT to_regnamespace(%s)", (schema_name,)).fetchone()) == (None,)
    pool.close()
