"""Search the token tables: the statements that select and score windows, and the reading of their tokens.

1. The server scores every window by the tokens of one branch, and keeps the best ones. This is exact in half precision,
   and no index can miss a window. Or a graph proposes the windows (see `graph`).
2. The server scores the other branches of these windows.
3. The client reads the tokens of the windows that half precision cannot separate from the best, and scores them.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from midreel.index.base import Array, Match
from midreel.index.postgres import rows
from midreel.index.postgres.database import Connection
from midreel.index.postgres.graph import Graph
from midreel.index.postgres.schema import Generation
from midreel.index.rerank import (
    MANY,
    QueryVector,
    Scored,
    Scoring,
    WindowTokens,
    best_matches,
    contenders,
    too_few_videos,
)

_DEVIATIONS = 6  # standard deviations of the rounding errors that are allowed for, as in the embedded index
_AT_ONCE = 512  # windows whose tokens are in memory together


class Searching:
    """The search in one generation.

    Args:
        generation: The generation.
        scanned: The branch that selects windows.
    """

    def __init__(self, generation: Generation, scanned: str) -> None:
        self._generation, self.scanned = generation, scanned
        self.scoring = Scoring(generation.branch_weights, generation.similarities)
        self._others = [branch for branch in self.scoring.by_token if branch != scanned]

    def best(
        self,
        connection: Connection,
        query: Mapping[str, QueryVector],
        top: int,
        among: Collection[str] | None = None,
        exact: bool = False,
        graph: Graph | None = None,
    ) -> list[Match]:
        """Return the best videos for one query.

        Args:
            connection: A connection, in a transaction whose statements see the same state.
            query: The query by branch.
            top: The maximum number of results.
            among: The ids to search. Default: all.
            exact: Whether to score every token.
            graph: Proposes windows, instead of a scan. Not used with `among` or `exact`.
        """
        found = self._candidates(connection, query, top, among, exact, graph)
        if not found.keys:
            return []
        total, doubt = self._approximate(query, found)
        every = np.arange(len(total))
        # Only the client can score an attention, so every candidate may be the best.
        chosen = every if self.scoring.attends else contenders(total, doubt, np.array([k[0] for k in found.keys]), top)
        scored: list[Scored] = []
        for start in range(0, len(chosen), _AT_ONCE):
            keys = [found.keys[line] for line in chosen[start : start + _AT_ONCE]]
            windows = read_windows(connection, self._generation, keys)
            scored += [
                Scored(order=key[0], video_id=found.names[key[0]], scores=self.scoring.scores(query, windows[key]))
                for key in sorted(keys)
            ]
        return best_matches(scored, self.scoring, top)

    def _candidates(
        self,
        connection: Connection,
        query: Mapping[str, QueryVector],
        top: int,
        among: Collection[str] | None,
        exact: bool,
        graph: Graph | None,
    ) -> "_Candidates":
        """Return windows with their scores by the server. There are more if they belong to too few videos."""
        values: dict[str, Any] = {f"q_{b}": rows.literal(vector.direction) for b, vector in enumerate(query.values())}
        values["limit"] = None if exact else self.scoring.num_candidates(top)
        numbers = {branch: number for number, branch in enumerate(query)}
        if among is not None:
            values["among"] = [key(video_id) for video_id in among]
        if graph is not None and among is None and not exact:
            # The effort was chosen for the graph, so a small graph is not scanned either.
            connection.execute(f"SET LOCAL hnsw.ef_search = {graph.effort}".encode())
            connection.execute("SET LOCAL enable_seqscan = off")
            proposed = self._run(connection, self._proposal(numbers, graph), values)
            connection.execute("SET LOCAL enable_seqscan = on")
            if len({key[0] for key in proposed.keys}) >= 2 * top:
                return proposed
        statement = self._scan(numbers, filtered=among is not None)
        while True:
            found = self._run(connection, statement, values)
            if values["limit"] is None or not too_few_videos((key[0] for key in found.keys), top, values["limit"]):
                return found
            values["limit"] *= 4

    def _run(self, connection: Connection, statement: str, values: Mapping[str, Any]) -> "_Candidates":
        found = connection.execute(statement.encode(), values, binary=True).fetchall()
        names = {int(row[0]): decoded_name(row[2]) for row in found}
        keys = [(int(row[0]), int(row[1])) for row in found]
        return _Candidates(keys, names, np.array([row[3:] for row in found], np.float64))

    def _scan(self, numbers: Mapping[str, int], *, filtered: bool) -> str:
        """Return the statement that scores every window by one branch, and the best ones by all others."""
        table = self._generation.tokens(self.scanned)
        where = f"WHERE video IN (SELECT number FROM {self._generation.videos} WHERE sha256(name) = ANY(%(among)s))"
        # OFFSET 0 keeps the planner from sorting whole rows by window: their scores are computed first.
        return f"""
            WITH candidate AS MATERIALIZED (
                SELECT video, win, max(score) AS score, max(norm) AS norm
                FROM (SELECT video, win, {self._columns(self.scanned, numbers)} FROM {table} {where if filtered else ""}
                      OFFSET 0) AS part
                GROUP BY video, win ORDER BY score DESC, video, win
                LIMIT (SELECT ceil(%(limit)s::float8 * greatest(1, coalesce(max(number), 0) / {MANY}.0) ^ 0.25)::bigint
                       FROM {self._generation.videos})
            )
            {self._with_others(numbers)}"""

    def _proposal(self, numbers: Mapping[str, int], graph: Graph) -> str:
        """Return the statement that scores the windows that a graph proposes, and those that are newer than it."""
        table, query = self._generation.tokens(self.scanned), f"%(q_{numbers[self.scanned]})s::halfvec"
        return f"""
            WITH proposed AS MATERIALIZED (
                SELECT DISTINCT video, win FROM (
                    SELECT video, win FROM {self._generation.graph} ORDER BY v <#> {query} LIMIT {graph.effort}
                ) AS near
                UNION SELECT DISTINCT video, win FROM {table} WHERE video > {graph.newest}
            ), candidate AS MATERIALIZED (
                SELECT proposed.video, proposed.win, scanned.*
                FROM proposed, LATERAL (
                    SELECT max(score) AS score, max(norm) AS norm
                    FROM (SELECT {self._columns(self.scanned, numbers)} FROM {table} AS t
                          WHERE t.video = proposed.video AND t.win = proposed.win OFFSET 0) AS part
                ) AS scanned
                WHERE scanned.score IS NOT NULL
            )
            {self._with_others(numbers)}"""

    def _with_others(self, numbers: Mapping[str, int]) -> str:
        """Return the end of a statement: the candidates, with the scores of the other branches."""
        parts, columns = [], []
        for branch in self._others:
            number = numbers[branch]
            parts.append(f"""
                LATERAL (SELECT max(score) AS score, max(norm) AS norm
                         FROM (SELECT {self._columns(branch, numbers)} FROM {self._generation.tokens(branch)} AS t
                               WHERE t.video = candidate.video AND t.win = candidate.win OFFSET 0) AS part) AS b{number}
            """)
            columns.append(f", b{number}.score, b{number}.norm")
        named = f"candidate JOIN {self._generation.videos} AS v ON v.number = candidate.video"
        return f"""SELECT candidate.video, candidate.win, v.name, candidate.score, candidate.norm {"".join(columns)}
            FROM {", ".join([named, *parts])}"""

    def _columns(self, branch: str, numbers: Mapping[str, int]) -> str:
        """Return the score of the best token of a row, and the length of its longest token."""
        # No width after halfvec: checking it would be a function that runs once per row.
        query, dot = f"%(q_{numbers[branch]})s::halfvec", self.scoring.kind(branch) == "dot"
        products = [f"{column} <#> {query}" for column in self._generation.vectors()]  # the negative product
        if not dot:
            return f"-least({', '.join(products)}) AS score, 1::float8 AS norm"
        lengths = [f"norms[{number + 1}]::float8" for number in range(len(products))]
        scaled = (f"({product}) * {length}" for product, length in zip(products, lengths, strict=True))
        return f"-least({', '.join(scaled)}) AS score, greatest({', '.join(lengths)}) AS norm"

    def _approximate(self, query: Mapping[str, QueryVector], found: "_Candidates") -> tuple[Array, Array]:
        """Return the total and its maximum error of each candidate, by the branches that the server scores."""
        branches = [self.scanned, *self._others]
        scores = {branch: found.columns[:, 2 * n] * query[branch].length for n, branch in enumerate(branches)}
        errors = {branch: found.columns[:, 2 * n + 1] * query[branch].length for n, branch in enumerate(branches)}
        return self.scoring.totals(scores), rounding_error(self._generation.width) * self.scoring.totals(errors)


def rounding_error(width: int) -> float:
    """Return the expected maximum error of a product of two unit vectors that are rounded to half precision.

    >>> rounding_error(384) < 2e-4 < rounding_error(24)
    True
    """
    # Each of 2 × width values has a relative error of up to 2^-11, and the sum is computed in float32.
    return min(2**-10, _DEVIATIONS * 2**-11 * (2 / (3 * width)) ** 0.5) + 2**-16


class _Candidates(NamedTuple):
    """Windows that the server has selected.

    Attributes:
        keys: The number of the video, and of the window in it.
        names: The id of each video.
        columns: A score and a length per branch.
    """

    keys: list[tuple[int, int]]
    names: dict[int, str]
    columns: Array


Windows = dict[tuple[int, int], dict[str, WindowTokens]]


def read_windows(connection: Connection, generation: Generation, keys: Sequence[tuple[int, int]]) -> Windows:
    """Return the tokens of some windows, by branch.

    Args:
        connection: The connection.
        generation: The generation.
        keys: The number of the video, and of the window in it.
    """
    videos, windows = [video for video, _ in keys], [window for _, window in keys]
    source = "FROM unnest(%s::bigint[], %s::integer[]) AS k (video, win) JOIN {table} AS t USING (video, win)"
    return _read(connection, generation, source, (videos, windows))


def read_videos(
    connection: Connection, generation: Generation, numbers: list[int]
) -> dict[int, dict[str, list[WindowTokens]]]:
    """Return what `read_video` returns for several videos, by number.

    Args:
        connection: The connection.
        generation: The generation.
        numbers: The numbers of the videos.
    """
    windows = _read(connection, generation, "FROM {table} AS t WHERE video = ANY(%s)", (numbers,))
    found: dict[int, dict[str, list[WindowTokens]]] = {}
    for number, window in sorted(windows):
        parts = found.setdefault(number, {branch: [] for branch in generation.branch_weights})
        for branch, tokens in windows[number, window].items():
            parts[branch].append(tokens)
    return found


def read_video(connection: Connection, generation: Generation, number: int) -> dict[str, list[WindowTokens]]:
    """Return the tokens of all windows of a video, by branch.

    Args:
        connection: The connection.
        generation: The generation.
        number: The number of the video.
    """
    return read_videos(connection, generation, [number])[number]


def _read(connection: Connection, generation: Generation, source: str, values: tuple[Any, ...]) -> Windows:
    """Return windows from a source of rows. The statements of all branches are sent before a result is read."""
    with ExitStack() as stack:
        cursors = {}
        for branch in generation.branch_weights:
            norms = "norms" if generation.has_norms(branch) else "NULL::real[]"
            columns = ", ".join(["t.video", "t.win", "spans", norms, *(f"t.{name}" for name in generation.vectors())])
            statement = f"SELECT {columns} {source.format(table=generation.tokens(branch))}"
            cursors[branch] = stack.enter_context(connection.cursor(binary=True))
            cursors[branch].adapters.register_loader(rows.FLOATS, rows.FloatsLoader)
            cursors[branch].execute(f"{statement} ORDER BY t.video, t.win, t.part".encode(), values)
        found: Windows = defaultdict(dict)
        for branch, cursor in cursors.items():
            for key, parts in groupby(cursor.fetchall(), key=lambda row: (row[0], row[1])):
                found[key][branch] = rows.decoded([(row[2], row[3], row[4:]) for row in parts])
    return found


def decoded_name(name: bytes) -> str:
    """Return the id of a video."""
    return name.decode("utf-8", "surrogatepass")


def encoded_name(video_id: str) -> bytes:
    """Return the id of a video as it is stored: UTF-8, also of names of files that are not."""
    return video_id.encode("utf-8", "surrogatepass")


def key(video_id: str) -> bytes:
    """Return what the index of names holds for the id of a video."""
    return hashlib.sha256(encoded_name(video_id)).digest()
