"""The tables of a library in PostgreSQL, beside those of its index (`midreel.index.postgres.schema`).

    library    one row: the version of these tables, the settings, and a number that every change increases
    videos, files, tags, places    the records, as in a folder's catalogue
    features   one row per video, which outlives the video
    cards      the card and the calibration of each generation
    models     the files of the model of each generation
    work       files that processes read now, or have planned to read, and the lock of a reindex
    feedback   what users say about hits

All are in one schema, whose name comes after # in the URL of the library.
"""

from typing import Any

from psycopg import errors as pg

from midreel.errors import BadLibrary, MissingLibrary
from midreel.index.postgres import schema
from midreel.index.postgres.database import Connection

FORMAT = 1

# Texts are ordered by their bytes, as in SQLite.
_TABLES = """
CREATE TABLE IF NOT EXISTS library (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format integer NOT NULL,
    settings json,                  -- NULL until the library is complete
    changes bigint NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS videos (
    id text COLLATE "C" PRIMARY KEY,
    duration double precision NOT NULL CHECK (duration > 0 AND duration < 'infinity'),
    num_frames bigint NOT NULL CHECK (num_frames > 0),
    date double precision NOT NULL
);
CREATE TABLE IF NOT EXISTS files (
    path bytea PRIMARY KEY,
    size bigint NOT NULL,
    modified bigint NOT NULL,
    video_id text COLLATE "C",
    reason text COLLATE "C" NOT NULL
);
CREATE INDEX IF NOT EXISTS file_of_video ON files (video_id);
CREATE TABLE IF NOT EXISTS tags (
    video_id text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    PRIMARY KEY (video_id, tag)
);
CREATE TABLE IF NOT EXISTS places (path bytea PRIMARY KEY);
CREATE TABLE IF NOT EXISTS features (
    video_id text COLLATE "C" PRIMARY KEY,
    number bigint GENERATED ALWAYS AS IDENTITY,
    origin bytea NOT NULL,
    duration double precision NOT NULL,
    times bytea NOT NULL,
    frames bytea STORAGE EXTERNAL NOT NULL,
    checksum bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS cards (
    generation integer PRIMARY KEY REFERENCES generations (number) ON DELETE CASCADE,
    card json NOT NULL,
    calibration text
);
CREATE TABLE IF NOT EXISTS models (
    generation integer REFERENCES generations (number) ON DELETE CASCADE,
    name text,
    content bytea NOT NULL,
    PRIMARY KEY (generation, name)
);
CREATE TABLE IF NOT EXISTS work (
    path bytea PRIMARY KEY,
    owner text,                     -- NULL if no process reads the file yet
    until timestamptz               -- when the claim of the owner ends, by the clock of the server
);
CREATE TABLE IF NOT EXISTS feedback (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    query text COLLATE "C" NOT NULL,
    video_id text COLLATE "C" NOT NULL,
    is_match boolean NOT NULL,
    start double precision NOT NULL,
    "end" double precision NOT NULL,
    created double precision NOT NULL
);
"""


def create(connection: Connection, name: str, place: str) -> None:
    """Create the tables unless they exist, in the caller's transaction. Only their creator needs the right to do so.

    Args:
        connection: A connection whose search path begins with the schema.
        name: The schema.
        place: The library, for messages.
    """
    if exists(connection, name):
        read(connection, name, place, "true")
        return
    schema.migrate(connection, name, create=True)  # also keeps other processes out until the transaction ends
    for statement in filter(str.strip, _TABLES.split(";\n")):
        connection.execute(statement.encode())
    connection.execute("INSERT INTO library (format) VALUES (%s) ON CONFLICT DO NOTHING", (FORMAT,))


def exists(connection: Connection, name: str) -> bool:
    """Return whether a schema has the tables. Other schemas of the search path do not count."""
    return connection.execute("SELECT to_regclass(%s)", (f"{name}.library",)).fetchone() != (None,)


def read(connection: Connection, name: str, place: str, columns: str) -> tuple[Any, ...]:
    """Return columns of the one row of the table `library`, by one statement.

    Args:
        connection: The connection.
        name: The schema.
        place: The library, for messages.
        columns: The columns, in SQL.

    Raises:
        MissingLibrary: There is no library.
        BadLibrary: A newer version of midreel has made it.
    """
    try:
        row = connection.execute(f"SELECT format, {columns} FROM {name}.library".encode()).fetchone()
    except (pg.UndefinedTable, pg.InvalidSchemaName):
        row = None
    if row is None:
        raise missing(place)
    if row[0] > FORMAT:
        raise BadLibrary(f"{place} has format {row[0]}, expected {FORMAT} or less. Upgrade midreel.")
    return tuple(row[1:])


def missing(place: str) -> MissingLibrary:
    """Return the error for a database without a library."""
    return MissingLibrary(f"{place} has no library. Create it: midreel index VIDEOS --library URL")
