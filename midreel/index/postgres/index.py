"""The index in PostgreSQL: many processes on many machines can change and search it at the same time.

`schema` describes the tables, `rows` their format, `scan` the statements, `graph` the optional HNSW graph, and
`database` the connections.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import TypeVar

import numpy as np

from midreel.errors import BadIndex, BadSetting
from midreel.index.base import (
    Array,
    Match,
    checked_similarities,
    checked_tokens,
    checked_weights,
    missing_video,
)
from midreel.index.embedded.ann import hard_queries
from midreel.index.postgres import graph as graphs
from midreel.index.postgres import rows, scan, schema
from midreel.index.postgres.database import Connection, Database, Joined, Pool
from midreel.index.postgres.graph import Graph
from midreel.index.postgres.schema import Generation
from midreel.index.rerank import QueryVector, Scoring, padded
from midreel.types import Encoded, Similarities, Tokens, Vectors

T = TypeVar("T")
NAME = "midreel"  # of the schema, unless another is given
PATIENCE = 5.0  # seconds
_AT_ONCE = 64  # videos that are copied together


class PostgresIndex:
    """An index in a PostgreSQL database. Make it with `create` or `open`. See `Index` for the shared methods.

    Any number of processes can search and change it at the same time. A change is one transaction. A lost connection is
    replaced, and the work is repeated. All methods are thread-safe.

    Every method raises Unreachable if the server does not answer, Locked if other writers hold the same rows,
    Unwritable if its disk is full, and BadIndex for other errors of the server.

    Args:
        database: Runs the transactions.
        generation: The generation of this index.

    Attributes:
        generation: The settings of the generation. It stays the same after another one has begun to serve.
    """

    def __init__(self, database: Database, generation: Generation) -> None:
        self.generation, self._database = generation, database
        self._scoring = Scoring(generation.branch_weights, generation.similarities)
        self._scanned: str | None = None
        self._makers = {
            branch: rows.TokenRows(generation.width, norms=generation.has_norms(branch))
            for branch in generation.branch_weights
        }

    @classmethod
    def create(
        cls,
        url: str,
        *,
        branch_weights: Mapping[str, float],
        width: int,
        similarities: Similarities | None = None,
        fingerprint: str = "",
        name: str = NAME,
        patience: float = PATIENCE,
    ) -> "PostgresIndex":
        """Create an empty index, and open it. Its first generation serves.

        Args:
            url: postgresql://USER@HOST/DATABASE, without a password. See `database`.
            branch_weights: The weight of each branch in the score.
            width: The width of all vectors.
            similarities: How each branch scores that does not score by its best cosine. Default: there is none.
            fingerprint: A name of the model that makes the tokens. `open` compares it.
            name: The schema of the database that holds the index.
            patience: The seconds to wait for a server that does not answer, before Unreachable is raised.

        Raises:
            BadSetting: A value is out of range, or the URL holds a password.
            BadIndex: The index exists already.
        """
        weights, forms = _checked(branch_weights, width, similarities)
        place = schema.checked_name(name)

        def work(connection: Connection) -> Generation:
            schema.migrate(connection, place, create=True)
            if schema.states(connection, place):
                raise BadIndex(f"the database has an index {place} already. Open it, or choose another name.")
            return schema.create_generation(
                connection,
                place,
                width=width,
                branch_weights=weights,
                similarities=forms,
                fingerprint=fingerprint,
                state="serving",
            )

        return cls._opened(Pool(url, patience=patience), work)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        name: str = NAME,
        fingerprint: str | None = None,
        generation: int | None = None,
        patience: float = PATIENCE,
    ) -> "PostgresIndex":
        """Open an existing index.

        Args:
            url: postgresql://USER@HOST/DATABASE, without a password. See `database`.
            name: The schema of the database that holds the index.
            fingerprint: The expected model. Default: any.
            generation: The number of a generation. Default: the one that serves.
            patience: The seconds to wait for a server that does not answer, before Unreachable is raised.

        Raises:
            BadIndex: There is no such index.
            FingerprintMismatch: It was made with another model.
        """
        place = schema.checked_name(name)

        def work(connection: Connection) -> Generation:
            schema.migrate(connection, place, create=False)
            found = schema.generation(connection, place, generation)
            schema.check_fingerprint(found, fingerprint)
            return found

        return cls._opened(Pool(url, patience=patience), work)

    @classmethod
    def _opened(cls, pool: Pool, work: Callable[[Connection], Generation]) -> "PostgresIndex":
        try:
            return cls(pool, pool.run(work, repeatable=False))
        except BaseException:
            pool.close()
            raise

    def within(self, connection: Connection) -> "PostgresIndex":
        """Return this index as a part of the caller's transaction.

        What it changes is committed or rolled back by the caller, together with the caller's own changes:

            with psycopg.connect(url) as connection:
                connection.execute("INSERT INTO catalogue ...")
                index.within(connection).add(video_id, tokens)
        """
        joined = PostgresIndex(Joined(connection), self.generation)
        joined._scanned = self._scanned
        return joined

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run work in one transaction of this index's database. It may run again if the connection is lost."""
        return self._database.run(work)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def __enter__(self) -> "PostgresIndex":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PostgresIndex({self.generation.schema!r}, generation {self.generation.number})"

    # ------------------------------------------------------------ contents

    @property
    def branch_weights(self) -> Mapping[str, float]:
        """The weight of each branch in the score."""
        return dict(self.generation.branch_weights)

    @property
    def similarities(self) -> Similarities:
        """How each branch scores that does not score by its best cosine."""
        return dict(self.generation.similarities)

    @property
    def width(self) -> int:
        """The width of all vectors."""
        return self.generation.width

    def __len__(self) -> int:
        (number,) = self._one(f"SELECT count(*) FROM {self.generation.videos}")
        return int(str(number))

    def __contains__(self, video_id: object) -> bool:
        return isinstance(video_id, str) and self._number(video_id) is not None

    def video_ids(self) -> list[str]:
        """Return the ids of all videos, in the order in which they were added."""
        statement = f"SELECT name FROM {self.generation.videos} ORDER BY number"

        def work(connection: Connection) -> list[str]:
            return [scan.decoded_name(row[0]) for row in connection.execute(statement.encode(), binary=True)]

        return self._database.run(work)

    def tokens(self, video_id: str) -> dict[str, Tokens]:
        """Return the stored tokens of a video: vectors of half precision, padded to its longest window."""

        def work(connection: Connection) -> dict[str, Tokens]:
            number = _number(connection, self.generation, video_id)
            if number is None:
                raise missing_video(video_id, len(self.within(connection)))
            windows = scan.read_video(connection, self.generation, number)
            return {branch: padded(parts) for branch, parts in windows.items()}

        return self._database.run(work, snapshot=True)

    def tokens_of(self, video_ids: Collection[str]) -> dict[str, dict[str, Tokens]]:
        """Return what `tokens` returns for several videos. Those that the index does not contain are left out."""
        keys = [scan.key(video_id) for video_id in video_ids]
        statement = f"SELECT number, name FROM {self.generation.videos} WHERE sha256(name) = ANY(%s)".encode()

        def work(connection: Connection) -> dict[str, dict[str, Tokens]]:
            numbers = dict(connection.execute(statement, (keys,), binary=True).fetchall())
            windows = scan.read_videos(connection, self.generation, list(numbers))
            return {
                scan.decoded_name(numbers[number]): {branch: padded(parts) for branch, parts in found.items()}
                for number, found in windows.items()
            }

        return self._database.run(work, snapshot=True)

    def verify(self) -> list[str]:
        """Read all tokens, which lets the server check their pages, and return the problems as text."""
        videos, problems = self.generation.videos, []
        for branch in self.generation.branch_weights:
            table = self.generation.tokens(branch)
            (bare,) = self._one(f"SELECT count(*) FROM {videos} WHERE number NOT IN (SELECT video FROM {table})")
            other = f"video NOT IN (SELECT number FROM {videos})"
            (stray,) = self._one(f"SELECT count(DISTINCT video) FROM {table} WHERE {other}")
            problems += [f"{bare} videos have no {branch} tokens"] if bare else []
            problems += [f"{stray} videos have {branch} tokens but no row"] if stray else []
        return problems

    @property
    def damaged(self) -> Mapping[str, str]:
        """No videos: the server refuses to read damaged pages."""
        return {}

    @property
    def waste(self) -> float:
        """0, because the server frees the space of removed videos by itself (autovacuum)."""
        return 0.0

    def _number(self, video_id: str) -> int | None:
        return self._database.run(lambda connection: _number(connection, self.generation, video_id))

    def _one(self, statement: str) -> tuple[object, ...]:
        row = self._database.run(lambda connection: connection.execute(statement.encode()).fetchone())
        assert row is not None
        return tuple(row)

    # ------------------------------------------------------------ changes

    def add(self, video_id: str, tokens: Encoded) -> None:
        """Add a video, or replace it, in one transaction."""
        self.add_all([(video_id, tokens)])

    def add_all(self, videos: Iterable[tuple[str, Encoded]]) -> None:
        """Add or replace several videos in one transaction, which is faster. A crash leaves all of them or none."""
        checked = [(video_id, self._checked(video_id, tokens)) for video_id, tokens in videos]

        def work(connection: Connection) -> None:
            schema.hold(connection, self.generation)
            remaining = iter(checked)
            while some := list(islice(remaining, _AT_ONCE)):
                # A video that comes twice is added once, in its last place.
                self._add(connection, {video_id: some[last][1] for video_id, last in _last_places(some)})

        self._database.run(work)

    def remove(self, video_id: str) -> None:
        """Remove a video."""

        def work(connection: Connection) -> None:
            schema.hold(connection, self.generation)
            statement = f"DELETE FROM {self.generation.videos} WHERE sha256(name) = %s RETURNING number"
            row = connection.execute(statement.encode(), (scan.key(video_id),)).fetchone()
            if row is None:
                raise missing_video(video_id, len(self.within(connection)))
            self._forget(connection, [row[0]])

        self._database.run(work, repeatable=False)

    def compact(self) -> None:
        """Make the space of removed videos free for new ones, and bring the statistics of the tables up to date."""
        for table in (self.generation.videos, *map(self.generation.tokens, self.generation.branch_weights)):
            self._database.outside(f"VACUUM ANALYZE {table}")

    def _checked(self, video_id: str, tokens: Encoded) -> dict[str, Tokens]:
        weights, forms = self.generation.branch_weights, self.generation.similarities
        return checked_tokens(video_id, tokens, weights, self.width, forms)

    def _add(self, connection: Connection, videos: Mapping[str, Encoded]) -> None:
        """Add different videos in the caller's transaction."""
        # The row is locked from here on. Another writer of the same video waits, and then replaces what this one adds.
        statement = f"""
            INSERT INTO {self.generation.videos} AS old (name)
            SELECT name FROM unnest(%s::bytea[]) WITH ORDINALITY AS new (name, place) ORDER BY place
            ON CONFLICT (sha256(name)) DO UPDATE SET number = excluded.number, before = old.number
            RETURNING number, name, before"""
        found = connection.execute(statement.encode(), ([*map(scan.encoded_name, videos)],), binary=True).fetchall()
        self._forget(connection, [before for _, _, before in found if before is not None])
        number_of = {scan.decoded_name(name): number for number, name, _ in found}
        for branch, maker in self._makers.items():
            table = self.generation.tokens(branch)
            with connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()) as copy:
                copy.write(rows.HEADER)
                for video_id, tokens in videos.items():
                    for piece in maker.encoded(number_of[video_id], tokens[branch]):
                        copy.write(piece)
                copy.write(rows.TRAILER)

    def _forget(self, connection: Connection, numbers: list[int]) -> None:
        """Delete the tokens of removed or replaced videos."""
        if not numbers:
            return
        tables = [*map(self.generation.tokens, self.generation.branch_weights)]
        if graphs.stored(connection, self.generation) is not None:
            tables.append(self.generation.graph)
        for table in tables:
            connection.execute(f"DELETE FROM {table} WHERE video = ANY(%s)".encode(), (numbers,))

    # ------------------------------------------------------------ search

    def search(
        self, queries: Vectors, *, top: int = 10, among: Collection[str] | None = None, exact: bool = False
    ) -> list[list[Match]]:
        """Return the best videos for each query, best first. See `Index.search` for the errors.

        Args:
            queries: One vector per query and branch. Branches that only provide keys need none.
            top: The maximum number of results per query.
            among: The ids to search. Unknown ids are ignored. Default: all videos.
            exact: Whether to score every token, instead of selecting candidates first.
        """
        prepared = self._scoring.prepared(queries, self.width, top)

        def work(connection: Connection) -> list[list[Match]]:
            searching = self._searching(connection)
            graph = None if exact or among is not None else graphs.stored(connection, self.generation)
            return [searching.best(connection, query, top, among, exact, graph) for query in prepared]

        return self._database.run(work, snapshot=True)

    def _searching(self, connection: Connection) -> scan.Searching:
        """Return the search. The smallest table of a branch that can select windows is scanned."""
        if self._scanned is None:
            choices = self._scoring.scannable
            columns = ", ".join(f"pg_relation_size('{self.generation.tokens(branch)}')" for branch in choices)
            row = connection.execute(f"SELECT {columns}".encode()).fetchone()
            sizes = dict(zip(choices, row or (), strict=True))
            smallest = min(choices, key=lambda branch: sizes[branch])
            if sizes[smallest]:
                self._scanned = smallest
            return scan.Searching(self.generation, smallest)
        return scan.Searching(self.generation, self._scanned)

    # ------------------------------------------------------------ generations

    def successor(
        self,
        *,
        branch_weights: Mapping[str, float],
        width: int,
        similarities: Similarities | None = None,
        fingerprint: str = "",
    ) -> "PostgresIndex":
        """Create an empty generation beside this one, for another model. It serves once `serve` is called.

        Args:
            branch_weights: The weight of each branch in the score.
            width: The width of all vectors.
            similarities: How each branch scores that does not score by its best cosine. Default: there is none.
            fingerprint: A name of the model that makes the tokens.
        """
        weights, forms = _checked(branch_weights, width, similarities)

        def work(connection: Connection) -> Generation:
            return schema.create_generation(
                connection,
                self.generation.schema,
                width=width,
                branch_weights=weights,
                similarities=forms,
                fingerprint=fingerprint,
                state="building",
            )

        return PostgresIndex(self._database, self._database.run(work, repeatable=False))

    def serve(self) -> None:
        """Let this generation serve instead of the present one, in one transaction. `open` returns it from then on."""
        self._database.run(lambda connection: schema.serve(connection, self.generation))

    def is_serving(self) -> bool:
        """Return whether this generation serves."""
        return self._states().get(self.generation.number) == "serving"

    def drop(self) -> None:
        """Delete this generation. Raise BadSetting if it serves."""
        self._database.run(lambda connection: schema.drop(connection, self.generation))

    def _states(self) -> dict[int, str]:
        return self._database.run(lambda connection: schema.states(connection, self.generation.schema))

    # ------------------------------------------------------------ the graph

    def build_graph(self, *, goal: float = 0.99, least: float = 0.95) -> Graph | None:
        """Make an HNSW graph of all videos, so that searches need not scan. They go on meanwhile.

        Recall is the share of the results of the scan that the graph finds, for hard queries drawn from the index.

        Args:
            goal: The recall to reach with the least effort.
            least: The recall below which the graph is deleted, so that searches scan on.

        Returns:
            The graph with its recall. None if its recall is too low, or if the scanned branch scores by dot product,
            whose lengths a graph of halves cannot hold.
        """

        def work(connection: Connection) -> Graph | None:
            schema.hold(connection, self.generation)
            searching = self._searching(connection)
            branch = searching.scanned
            if self._scoring.kind(branch) == "dot":
                return None
            newest = graphs.build(connection, self.generation, branch)
            found = self._proven(connection, searching, newest, goal)
            if found is not None and found.recall < least:
                found = None
            graphs.store(connection, self.generation, found)
            return found

        return self._database.run(work)

    def drop_graph(self) -> None:
        """Delete the graph. Searches scan from then on."""
        self._database.run(lambda connection: graphs.store(connection, self.generation, None))

    def _proven(self, connection: Connection, searching: scan.Searching, newest: int, goal: float) -> Graph | None:
        """Return the graph with the least effort that reaches a recall, or with the largest effort. None if empty."""
        statement = f"SELECT number FROM {self.generation.videos} ORDER BY number"
        numbers = np.array([row[0] for row in connection.execute(statement.encode())], np.int64)
        if not len(numbers):
            return None

        def draw(number: int) -> dict[str, Array] | None:
            windows = scan.read_video(connection, self.generation, number)
            return {branch: parts[0].units for branch, parts in windows.items()}

        drawn = hard_queries(draw, numbers)
        asked = [
            {branch: QueryVector(vector, 1.0) for branch, vector in query.items() if branch in self._scoring.branches}
            for query in drawn
        ]
        top = 10
        expected = [{match.video_id for match in searching.best(connection, query, top)} for query in asked]
        for effort in graphs.LADDER:
            graph = Graph(newest=newest, effort=effort, recall=0.0)
            found = [searching.best(connection, query, top, graph=graph) for query in asked]
            pairs = zip(found, expected, strict=True)
            common = sum(len({match.video_id for match in ours} & theirs) for ours, theirs in pairs)
            graph = replace(graph, recall=common / sum(map(len, expected)))
            if graph.recall >= goal:
                break
        return graph


def _checked(
    branch_weights: Mapping[str, float], width: int, similarities: Similarities | None
) -> tuple[dict[str, float], Similarities]:
    weights = checked_weights(branch_weights)
    forms = checked_similarities(similarities, weights)
    if not 1 <= width <= 16_000:
        raise BadSetting(f"width is {width}, expected 1 to 16000, the limit of pgvector.")
    return weights, forms


def _number(connection: Connection, generation: Generation, video_id: str) -> int | None:
    statement = f"SELECT number FROM {generation.videos} WHERE sha256(name) = %s"
    row = connection.execute(statement.encode(), (scan.key(video_id),)).fetchone()
    return int(row[0]) if row else None


def _last_places(videos: list[tuple[str, dict[str, Tokens]]]) -> list[tuple[str, int]]:
    """Return each id with its last place, in the order of these places."""
    last = {video_id: place for place, (video_id, _) in enumerate(videos)}
    return sorted(last.items(), key=lambda item: item[1])
