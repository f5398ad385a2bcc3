"""The index in PostgreSQL: tables of vectors of half precision (pgvector), searched by the server."""

from midreel.index.postgres.index import PostgresIndex

__all__ = ["PostgresIndex"]
