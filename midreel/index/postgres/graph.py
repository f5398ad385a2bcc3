"""An HNSW graph that proposes windows without a scan. It is optional, because it can miss windows.

The graph holds a few vectors per window: means of neighbouring tokens of the scanned branch. The server makes them and
the graph, so no token crosses the network. Windows added later are scanned. A graph is kept only if it finds what the
scan finds, for hard queries that are drawn from the index.
"""

import json
from dataclasses import asdict, dataclass

from midreel.index.postgres.database import Connection
from midreel.index.postgres.schema import Generation, check_vector

COARSE = 12  # vectors per window
LADDER = (100, 200, 400, 1000)  # vectors that a search visits at least; 1000 is the largest value of hnsw.ef_search
OLDEST_VECTOR = (0, 8, 4)  # earlier versions can damage a graph: pgvector 0.8.2 and 0.8.3 fix its build and its vacuum
_MEMORY = "256MB"  # for building; a larger graph is built more slowly


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A graph that can be searched.

    Attributes:
        newest: The number of the newest video in it.
        effort: The number of vectors that a search visits at least, and proposes.
        recall: The share of the results of the scan that it found when it was made.
    """

    newest: int
    effort: int
    recall: float


def build(connection: Connection, generation: Generation, branch: str) -> int:
    """Make the vectors and the graph of all videos, and return the number of the newest one.

    Args:
        connection: The connection.
        generation: The generation.
        branch: The branch whose tokens are averaged. It must score by cosine.
    """
    check_vector(connection, OLDEST_VECTOR)
    connection.execute(f"SET LOCAL maintenance_work_mem = '{_MEMORY}'".encode())
    connection.execute(f"DROP TABLE IF EXISTS {generation.graph}".encode())
    vector = f"v halfvec({generation.width}) NOT NULL"
    connection.execute(
        f"CREATE TABLE {generation.graph} (video bigint NOT NULL, win integer NOT NULL, {vector})".encode()
    )
    table = generation.tokens(branch)
    columns = ", ".join(f"({number}, t.{column})" for number, column in enumerate(generation.vectors()))
    # The bucket of a token is its place among the tokens of its window, in COARSE equal parts.
    connection.execute(
        f"""
        INSERT INTO {generation.graph}
        SELECT video, win, l2_normalize(avg(v))
        FROM (
            SELECT video, win, v,
                   ((row_number() OVER w - 1) * {COARSE}) / count(*) OVER (PARTITION BY video, win) AS bucket
            FROM {table} AS t, LATERAL (VALUES {columns}) AS c (number, v)
            WHERE v IS NOT NULL WINDOW w AS (PARTITION BY video, win ORDER BY part, number)
        ) AS token
        GROUP BY video, win, bucket
        """.encode()
    )
    name = generation.graph.rpartition(".")[2]
    connection.execute(f"CREATE INDEX {name}_hnsw ON {generation.graph} USING hnsw (v halfvec_ip_ops)".encode())
    connection.execute(f"CREATE INDEX {name}_video ON {generation.graph} (video)".encode())
    row = connection.execute(f"SELECT coalesce(max(video), 0) FROM {generation.graph}".encode()).fetchone()
    return int(row[0]) if row else 0


def stored(connection: Connection, generation: Generation) -> Graph | None:
    """Return the graph of a generation, or None if it has none."""
    statement = f"SELECT graph FROM {generation.schema}.generations WHERE number = %s"
    row = connection.execute(statement.encode(), (generation.number,)).fetchone()
    return Graph(**row[0]) if row and row[0] else None


def store(connection: Connection, generation: Generation, graph: Graph | None) -> None:
    """Let searches use a graph.

    Args:
        connection: The connection.
        generation: The generation.
        graph: The graph. None: delete it.
    """
    text = json.dumps(asdict(graph)) if graph else None
    statement = f"UPDATE {generation.schema}.generations SET graph = %s WHERE number = %s"
    connection.execute(statement.encode(), (text, generation.number))
    if graph is None:
        connection.execute(f"DROP TABLE IF EXISTS {generation.graph}".encode())
