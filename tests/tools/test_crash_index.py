from pathlib import Path

import pytest

from tools import crash_index
from tools.postgres_server import PostgresServer


def test_a_killed_writer_damages_nothing(tmp_path: Path) -> None:
    engine = crash_index.in_folder(tmp_path / "index")
    assert crash_index.crash(engine, times=12, seed=1).startswith("12 kills")


@pytest.mark.slow
def test_a_killed_client_of_postgres_damages_nothing() -> None:
    with PostgresServer() as server:
        engine = crash_index.in_postgres(server.url, "crash")
        assert crash_index.crash(engine, times=12, seed=1).startswith("12 kills")
