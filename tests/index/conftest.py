import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from midreel.index import EmbeddedIndex
from tests.index.library import WEIGHTS, WIDTH, video
from tools.postgres_server import PostgresServer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index of twelve videos, closed."""
    with EmbeddedIndex.create(tmp_path / "index", branch_weights=WEIGHTS, width=WIDTH) as index:
        for number in range(12):
            index.add(f"v{number}", video(number, windows=1 + number % 2))
    return tmp_path / "index"


@pytest.fixture
def index(folder: Path) -> Iterator[EmbeddedIndex]:
    with EmbeddedIndex.open(folder) as index:
        yield index


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL database: of a temporary server, or of the one that MIDREEL_POSTGRES_URL names."""
    if url := os.environ.get("MIDREEL_POSTGRES_URL"):
        yield url
        return
    # Without fsync, commits survive killed processes, but not a machine without power. Tests kill only processes.
    with PostgresServer({"fsync": "off", "shared_buffers": "64MB"}) as server:
        yield server.url


@pytest.fixture
def schema_name(postgres_url: str) -> Iterator[str]:
    """The name of a new index in the database, which is deleted afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield name
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        found = connection.execute("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, %s)", (name,))
        for (each,) in found.fetchall():
            connection.execute(f"DROP SCHEMA {each} CASCADE".encode())
