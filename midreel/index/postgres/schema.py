"""The tables of an index in PostgreSQL: migrations, and generations of which one serves.

An index is a schema (a namespace) of a database. Its table `generations` has one row per generation. Each generation
has tables of its own, so that vectors can have another width, and dropping it frees its space at once:

    format                      the version of these tables
    generations                 number, state, width, weights, similarities, fingerprint, graph
    videos_N                    number, name, before: one row per video; the number is the order of addition
    tokens_N_B                  video, win, part, spans, norms, v0, v1, ...: the tokens of branch B, see `rows`
    graph_N                     video, win, v: vectors of an HNSW graph, see `graph`

A new number is given to a video whenever it is added, so the numbers of a replaced video are never used again.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from midreel.errors import BadIndex, BadSetting, FingerprintMismatch
from midreel.index.postgres import rows
from midreel.index.postgres.database import Connection
from midreel.types import Similarity, with_norms

MIGRATIONS = (
    # 1: the first format
    """
    CREATE TABLE {schema}.generations (
        number integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
        state text NOT NULL CHECK (state IN ('building', 'serving', 'retired')),
        width integer NOT NULL CHECK (width > 0),
        per_row integer NOT NULL CHECK (per_row > 0),
        branch_weights json NOT NULL,
        similarities json NOT NULL,
        fingerprint text NOT NULL,
        graph json,
        created timestamptz NOT NULL DEFAULT now()
    );
    CREATE UNIQUE INDEX one_serves ON {schema}.generations ((true)) WHERE state = 'serving';
    """,
)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_OLDEST_VECTOR = (0, 7)  # the first version of pgvector with halfvec


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The settings of a generation.

    Attributes:
        schema: The schema of the index.
        number: The number of the generation.
        width: The width of all vectors.
        per_row: The number of tokens in a row.
        branch_weights: The weight of each branch. Its order is the order of the token tables.
        similarities: How each branch scores that does not score by its best cosine.
        fingerprint: What made the tokens.
    """

    schema: str
    number: int
    width: int
    per_row: int
    branch_weights: dict[str, float]
    similarities: dict[str, Similarity] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def videos(self) -> str:
        """The table of videos."""
        return f"{self.schema}.videos_{self.number}"

    @property
    def graph(self) -> str:
        """The table of the vectors of the graph."""
        return f"{self.schema}.graph_{self.number}"

    def tokens(self, branch: str) -> str:
        """Return the token table of a branch."""
        return f"{self.schema}.tokens_{self.number}_{list(self.branch_weights).index(branch)}"

    def vectors(self) -> list[str]:
        """Return the vector columns of a token table."""
        return [f"v{column}" for column in range(self.per_row)]

    def has_norms(self, branch: str) -> bool:
        """Return whether the token table of a branch stores lengths."""
        return branch in with_norms(self.similarities)


def checked_name(name: str) -> str:
    """Return the name of an index. Raise BadSetting unless it is a plain name of a schema."""
    if not _NAME.fullmatch(name):
        raise BadSetting(f"the name of the index is {name!r}, expected up to 48 of a-z, 0-9 and _, a letter first.")
    return name


def migrate(connection: Connection, schema: str, *, create: bool) -> None:
    """Bring the tables of an index to the present format, in the caller's transaction.

    Args:
        connection: The connection.
        schema: The schema of the index.
        create: Whether to create what is missing. Otherwise a missing index is an error.

    Raises:
        BadIndex: There is no index, its format is newer, or pgvector is missing or too old.
    """
    # Two programs may come here at once. The lock ends with the transaction.
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"midreel {schema}",))
    if create:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
        connection.execute(f"CREATE TABLE IF NOT EXISTS {schema}.format (version integer NOT NULL)".encode())
    version = _format(connection, schema)
    if version is None:
        raise BadIndex(f"the database has no index {schema}. Create it, or check its name.")
    if version > len(MIGRATIONS):
        raise BadIndex(f"index {schema} has format {version}, expected {len(MIGRATIONS)} or less. Upgrade midreel.")
    check_vector(connection, _OLDEST_VECTOR)
    for statements in MIGRATIONS[version:]:
        for statement in filter(str.strip, statements.split(";")):
            connection.execute(statement.format(schema=schema).encode())
    if version < len(MIGRATIONS):
        connection.execute(f"DELETE FROM {schema}.format".encode())
        connection.execute(f"INSERT INTO {schema}.format VALUES (%s)".encode(), (len(MIGRATIONS),))


def _format(connection: Connection, schema: str) -> int | None:
    """Return the version of the tables: 0 if they were never filled, None if there are none."""
    found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schema}.format",)).fetchone()
    if found is None or not found[0]:
        return None
    row = connection.execute(f"SELECT max(version) FROM {schema}.format".encode()).fetchone()
    return (row and row[0]) or 0


def check_vector(connection: Connection, oldest: tuple[int, ...]) -> None:
    """Raise BadIndex if pgvector is missing or older than a version."""
    row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    version = row[0] if row else "none"
    if not row or tuple(int(part) for part in re.findall(r"\d+", version)) < oldest:
        expected = ".".join(map(str, oldest))
        raise BadIndex(f"the version of pgvector is {version}, expected {expected} or later. Upgrade the extension.")


def create_generation(
    connection: Connection,
    schema: str,
    *,
    width: int,
    branch_weights: Mapping[str, float],
    similarities: Mapping[str, Similarity],
    fingerprint: str,
    state: str,
) -> Generation:
    """Create the tables of a generation.

    Args:
        connection: The connection.
        schema: The schema of the index.
        width: The width of all vectors.
        branch_weights: The weight of each branch.
        similarities: How each branch scores that does not score by its best cosine.
        fingerprint: What makes the tokens.
        state: "building" or "serving".
    """
    forms = {branch: asdict(form) for branch, form in similarities.items()}
    values = (state, width, rows.per_row(width), json.dumps(branch_weights), json.dumps(forms), fingerprint)
    statement = f"""
        INSERT INTO {schema}.generations (state, width, per_row, branch_weights, similarities, fingerprint)
        VALUES (%s, %s, %s, %s, %s, %s) RETURNING number"""
    row = connection.execute(statement.encode(), values).fetchone()
    assert row is not None
    made = generation(connection, schema, row[0])
    for table in _tables(made):
        connection.execute(table.encode())
    return made


def _tables(made: Generation) -> list[str]:
    """Return the statements that create the tables of a generation."""
    storage = "STORAGE PLAIN" if rows.fits_page(made.width) else ""
    vectors = ", ".join(f"{column} halfvec({made.width}) {storage}" for column in made.vectors())
    name = made.videos.rpartition(".")[2]
    return [
        f"CREATE TABLE {made.videos} (number bigint PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, "
        f"name bytea NOT NULL, before bigint)",
        f"CREATE UNIQUE INDEX {name}_name ON {made.videos} (sha256(name))",  # a name may be longer than an index allows
        *(
            f"CREATE TABLE {made.tokens(branch)} (video bigint NOT NULL, win integer NOT NULL, part smallint NOT NULL, "
            f"spans real[] NOT NULL, {'norms real[] NOT NULL,' if made.has_norms(branch) else ''} {vectors}, "
            f"PRIMARY KEY (video, win, part))"
            for branch in made.branch_weights
        ),
    ]


def generation(connection: Connection, schema: str, number: int | None = None) -> Generation:
    """Return a generation. Default: the one that serves.

    Args:
        connection: The connection.
        schema: The schema of the index.
        number: The number of the generation.

    Raises:
        BadIndex: There is none.
    """
    where, values = ("state = 'serving'", ()) if number is None else ("number = %s", (number,))
    statement = f"""
        SELECT number, width, per_row, branch_weights, similarities, fingerprint
        FROM {schema}.generations WHERE {where}"""
    row = connection.execute(statement.encode(), values).fetchone()
    if row is None:
        wanted = "that serves" if number is None else f"{number}"
        raise BadIndex(f"index {schema} has no generation {wanted}. Open the index again, or rebuild it.")
    return Generation(
        schema=schema,
        number=row[0],
        width=row[1],
        per_row=row[2],
        branch_weights=row[3],
        similarities={branch: Similarity(**form) for branch, form in row[4].items()},
        fingerprint=row[5],
    )


def check_fingerprint(found: Generation, expected: str | None) -> None:
    """Raise FingerprintMismatch if a generation was made with another model. None allows any."""
    if expected is not None and found.fingerprint != expected:
        raise FingerprintMismatch(
            f"generation {found.number} of index {found.schema} was made with {found.fingerprint!r}, expected "
            f"{expected!r}. Use its model, or reindex."
        )


def serve(connection: Connection, chosen: Generation) -> None:
    """Let a generation serve instead of the present one, in the caller's transaction."""
    _hold(connection, chosen, "FOR UPDATE")
    table = f"{chosen.schema}.generations"
    connection.execute(f"UPDATE {table} SET state = 'retired' WHERE state = 'serving'".encode())
    connection.execute(f"UPDATE {table} SET state = 'serving' WHERE number = %s".encode(), (chosen.number,))


def drop(connection: Connection, chosen: Generation) -> None:
    """Drop a generation that does not serve.

    Raises:
        BadSetting: It serves.
    """
    if _hold(connection, chosen, "FOR UPDATE") == "serving":
        raise BadSetting(f"generation {chosen.number} serves. Let another one serve first.")
    tables = [chosen.videos, chosen.graph, *map(chosen.tokens, chosen.branch_weights)]
    connection.execute(f"DROP TABLE IF EXISTS {', '.join(tables)}".encode())
    connection.execute(f"DELETE FROM {chosen.schema}.generations WHERE number = %s".encode(), (chosen.number,))


def hold(connection: Connection, chosen: Generation) -> None:
    """Keep a generation from being dropped until the transaction ends. Raise BadIndex if it is gone."""
    _hold(connection, chosen, "FOR KEY SHARE")


def _hold(connection: Connection, chosen: Generation, lock: str) -> str:
    statement = f"SELECT state FROM {chosen.schema}.generations WHERE number = %s {lock}"
    row: tuple[Any, ...] | None = connection.execute(statement.encode(), (chosen.number,)).fetchone()
    if row is None:
        raise BadIndex(f"generation {chosen.number} of index {chosen.schema} was dropped. Open the index again.")
    return str(row[0])


def states(connection: Connection, schema: str) -> dict[int, str]:
    """Return the state of each generation, by number."""
    found = connection.execute(f"SELECT number, state FROM {schema}.generations ORDER BY number".encode())
    return {int(number): str(state) for number, state in found}
