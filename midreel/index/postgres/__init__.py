"""The index in PostgreSQL: tables of vectors of half precision (pgvector), searched by the server."""

import importlib.util

from midreel.errors import BadPackage

if importlib.util.find_spec("psycopg") is None:
    raise BadPackage("psycopg is not installed. Install it: pip install 'midreel[postgres]'")

from midreel.index.postgres.index import PostgresIndex

__all__ = ["PostgresIndex"]
