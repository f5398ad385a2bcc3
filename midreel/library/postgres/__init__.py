"""A library in a PostgreSQL database, which any number of processes on any machines search and index."""

from midreel.index.postgres import PostgresIndex  # raises BadPackage if psycopg is not installed
from midreel.library.postgres.storage import PostgresStorage

__all__ = ["PostgresIndex", "PostgresStorage"]
