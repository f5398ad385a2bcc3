"""The index in Qdrant: one point per window, with one multivector per branch.

A generation is a collection, `NAME_1`, `NAME_2` and so on. The alias NAME points to the one that serves. The metadata
of a collection hold its settings.

A video has a head, a point without vectors, and a point for each window. The head names the present version of the
video; windows of other versions are ignored. Qdrant has no transactions, so a video is added in three steps: the
windows of a new version, then the head, then the old windows are deleted. The second step changes a single point, and
so a search sees the old video or the new one, also after a crash between the steps.

`server` sends the requests, `collections` describes the collections, and `points` the points.
"""

import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models

from midreel.errors import BadIndex, BadSetting, FingerprintMismatch, expect_text
from midreel.index.base import Array, Match, checked_tokens, missing_video
from midreel.index.qdrant import collections
from midreel.index.qdrant.points import (
    Head,
    Points,
    condition,
    head_id,
    head_of,
    head_point,
    is_present,
    matching,
    num_tokens,
    window_id,
)
from midreel.index.qdrant.server import Server
from midreel.index.rerank import (
    MANY,
    QueryVector,
    Scored,
    Scoring,
    WindowTokens,
    best_matches,
    contenders,
    padded,
    too_few_videos,
)
from midreel.types import Encoded, Similarities, Similarity, Tokens, Vectors

NAME = "midreel"
_REQUEST = 12 * 2**20  # bytes of vectors in a request; a server accepts 32 MB, and JSON takes up to 5 times as much
_AT_ONCE = 64  # windows whose vectors are read together
_HEADS = 256  # heads that are read together
_DOUBT = 2**-10  # the error of a product of unit vectors that are both rounded to half precision
_GRACE = 3600 * 10**9  # nanoseconds that an unfinished version is kept: its writer may still be at work
_ATTEMPTS = 5  # to read a video that others replace meanwhile


class QdrantIndex:
    """An index in Qdrant. Make it with `create` or `open`. See `Index` for the shared methods.

    Any number of processes can search and change it at the same time. A lost connection is replaced, and the request is
    repeated. The order of addition is that of the writers' clocks.

    Every method raises Unreachable if the server does not answer, Unwritable if its disk is full, and BadIndex for
    other errors of the server.

    Args:
        server: Sends the requests.
        collection: The collection of the generation.
        settings: The settings in its metadata.
    """

    def __init__(self, server: Server, collection: str, settings: Mapping[str, Any]) -> None:
        self._server, self.collection = server, collection
        self._weights: dict[str, float] = dict(settings["branch_weights"])
        self._similarities = {branch: Similarity(**form) for branch, form in settings["similarities"].items()}
        self.width, self.fingerprint = int(settings["width"]), str(settings["fingerprint"])
        self._scoring = Scoring(self._weights, self._similarities)
        self._points = Points(self._scoring, self._similarities)
        self._scanned: str | None = None
        self._last_order = 0

    @classmethod
    def create(
        cls,
        server: str | QdrantClient,
        *,
        branch_weights: Mapping[str, float],
        width: int,
        similarities: Similarities | None = None,
        fingerprint: str = "",
        name: str = NAME,
        shards: int = 1,
        replicas: int = 1,
    ) -> "QdrantIndex":
        """Create an empty index, and open it. Its first generation serves.

        Args:
            server: http://HOST:6333 or https://HOST:6333, or a client. A key comes from QDRANT_API_KEY.
            branch_weights: The weight of each branch in the score.
            width: The width of all vectors.
            similarities: How each branch scores that does not score by its best cosine. Default: there is none.
            fingerprint: A name of the model that makes the tokens. `open` compares it.
            name: The alias of the collection that serves.
            shards: The number of shards. Qdrant cannot change it later.
            replicas: The number of copies of each shard. A write needs a majority of them.

        Raises:
            BadSetting: A value is out of range, or the URL holds a key.
            BadIndex: The index exists already.
        """
        connected = Server(server)
        if collections.serving(connected, name) is not None:
            raise BadIndex(f"Qdrant has an index {name} already. Open it, or choose another name.")
        made = cls(
            connected,
            *collections.create(
                connected, name, 1, branch_weights, width, similarities, fingerprint, shards=shards, replicas=replicas
            ),
        )
        made.serve()
        return made

    @classmethod
    def open(cls, server: str | QdrantClient, *, name: str = NAME, fingerprint: str | None = None) -> "QdrantIndex":
        """Open the generation that serves.

        Args:
            server: http://HOST:6333 or https://HOST:6333, or a client. A key comes from QDRANT_API_KEY.
            name: The alias of the collection that serves.
            fingerprint: The expected model. Default: any.

        Raises:
            BadIndex: There is no such index.
            FingerprintMismatch: It was made with another model.
        """
        connected = Server(server)
        collection = collections.serving(connected, name)
        if collection is None:
            raise BadIndex(f"Qdrant has no index {name}. Create it, or check its name.")
        found = connected.call("get_collection", collection).config.metadata or {}
        if "midreel" not in found:
            raise BadIndex(f"collection {collection} is not an index of midreel. Choose another name.")
        index = cls(connected, collection, found["midreel"])
        if fingerprint is not None and index.fingerprint != fingerprint:
            raise FingerprintMismatch(
                f"collection {collection} was made with {index.fingerprint!r}, expected {fingerprint!r}. "
                f"Use its model, or reindex."
            )
        return index

    def close(self) -> None:
        """Close the connection, unless the client was given."""
        self._server.close()

    def __enter__(self) -> "QdrantIndex":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ contents

    @property
    def branch_weights(self) -> Mapping[str, float]:
        """The weight of each branch in the score."""
        return dict(self._weights)

    @property
    def similarities(self) -> Similarities:
        """How each branch scores that does not score by its best cosine."""
        return dict(self._similarities)

    def __len__(self) -> int:
        return self._server.call("count", self.collection, count_filter=matching(is_head=True), exact=True).count

    def __contains__(self, video_id: object) -> bool:
        return isinstance(video_id, str) and self._head(video_id) is not None

    def video_ids(self) -> list[str]:
        """Return the ids of all videos, in the order in which they were added."""
        heads = sorted(map(head_of, self._scroll(matching(is_head=True))), key=lambda head: (head.order, head.version))
        return [head.video_id for head in heads]

    def tokens(self, video_id: str) -> dict[str, Tokens]:
        """Return the stored tokens of a video, padded to its longest window."""
        for _ in range(_ATTEMPTS):
            head = self._head(video_id)
            if head is None:
                raise missing_video(video_id, len(self))
            ids = [window_id(head, window) for window in range(head.windows)]
            windows = self._read(ids)
            if len(windows) == len(ids):  # otherwise the video was replaced meanwhile
                return {branch: padded([windows[key][branch] for key in ids]) for branch in self._weights}
        raise BadIndex(f"video {video_id!r} lacks windows in collection {self.collection}. Add it again.")

    def _head(self, video_id: str) -> Head | None:
        return self._heads([video_id]).get(video_id)

    def _heads(self, video_ids: Iterable[str]) -> dict[str, Head]:
        """Return the heads of some videos, as far as they exist."""
        found: dict[str, Head] = {}
        remaining = iter(video_ids)
        while some := [head_id(video_id) for video_id in islice(remaining, _HEADS)]:
            points = self._server.call("retrieve", self.collection, ids=some)
            found |= {head.video_id: head for head in map(head_of, points)}
        return found

    def _scroll(self, where: models.Filter) -> Iterator[Any]:
        """Yield all points that match a filter, without vectors."""
        offset: Any = None
        while True:
            points, offset = self._server.call(
                "scroll", self.collection, scroll_filter=where, limit=_HEADS, offset=offset, with_vectors=False
            )
            yield from points
            if offset is None:
                return

    def _read(self, ids: Sequence[str]) -> dict[str, dict[str, WindowTokens]]:
        """Return the tokens of some windows by the id of their point, as far as they exist."""
        found: dict[str, dict[str, WindowTokens]] = {}
        for start in range(0, len(ids), _AT_ONCE):
            some = list(ids[start : start + _AT_ONCE])
            points = self._server.call("retrieve", self.collection, ids=some, with_vectors=True)
            found |= {str(point.id): self._points.decoded(point.vector, point.payload) for point in points}
        return found

    # ------------------------------------------------------------ changes

    def add(self, video_id: str, tokens: Encoded) -> None:
        """Add a video, or replace it."""
        self.add_all([(video_id, tokens)])

    def add_all(self, videos: Iterable[tuple[str, Encoded]]) -> None:
        """Add or replace several videos with fewer requests. A crash leaves some of them complete, others as before."""
        for some in self._batches(videos):
            heads = {video_id: self._next_head(video_id, tokens) for video_id, tokens in some.items()}
            before = self._heads(some)
            points = [
                point for video_id, tokens in some.items() for point in self._points.encoded(heads[video_id], tokens)
            ]
            self._upsert(points)
            self._upsert([head_point(heads[video_id], some[video_id]) for video_id in some])
            self._delete_windows(before.values())

    def remove(self, video_id: str) -> None:
        """Remove a video."""
        head = self._head(video_id)
        if head is None:
            raise missing_video(video_id, len(self))
        self._delete(models.PointIdsList(points=[head_id(video_id)]))
        self._delete_windows([head])

    def compact(self) -> None:
        """Delete the windows that crashed writers have left. Qdrant frees the space of deleted points by itself."""
        heads = {head.video_id: head.version for head in map(head_of, self._scroll(matching(is_head=True)))}
        oldest = time.time_ns() - _GRACE
        stale = [
            point.id
            for point in self._scroll(matching(is_head=False))
            if heads.get(point.payload["video"]) != point.payload["version"] and point.payload["order"] < oldest
        ]
        for start in range(0, len(stale), _HEADS):
            self._delete(models.PointIdsList(points=stale[start : start + _HEADS]))

    def _batches(self, videos: Iterable[tuple[str, Encoded]]) -> Iterator[dict[str, dict[str, Tokens]]]:
        """Yield different videos whose vectors fit into a request."""
        some: dict[str, dict[str, Tokens]] = {}
        size = 0
        for video_id, tokens in videos:
            expect_text("video_id", video_id)
            found = checked_tokens(video_id, tokens, self._weights, self.width, self._similarities)
            num_bytes = 4 * self.width * sum(int(part.mask.sum()) for part in found.values())
            if some and (video_id in some or size + num_bytes > _REQUEST):
                yield some
                some, size = {}, 0
            some[video_id], size = found, size + num_bytes
        if some:
            yield some

    def _next_head(self, video_id: str, tokens: Encoded) -> Head:
        self._last_order = max(time.time_ns(), self._last_order + 1)
        return Head(video_id, uuid.uuid4().hex, self._last_order, len(next(iter(tokens.values()))))

    def _upsert(self, points: Sequence[models.PointStruct]) -> None:
        """Write points in requests that a server accepts, and wait until they are durable."""
        size = max(1, _REQUEST // (4 * self.width * max([1, *map(num_tokens, points)])))
        for start in range(0, len(points), size):
            some = list(points[start : start + size])
            self._server.call("upsert", self.collection, points=some, wait=True)

    def _delete_windows(self, heads: Iterable[Head]) -> None:
        """Delete the windows of versions that have been replaced. Others may have replaced them already."""
        versions = [head.version for head in heads]
        if versions:
            where = models.FieldCondition(key="version", match=models.MatchAny(any=versions))
            self._delete(models.FilterSelector(filter=models.Filter(must=[where, *condition(is_head=False)])))

    def _delete(self, selector: Any) -> None:
        self._server.call("delete", self.collection, points_selector=selector, wait=True)

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
        number = self._server.call("count", self.collection, exact=True).count
        if not number or (among is not None and not among):
            return [[] for _ in prepared]
        return [self._best(query, top, among, exact, number) for query in prepared]

    def _best(
        self, query: Mapping[str, QueryVector], top: int, among: Collection[str] | None, exact: bool, number: int
    ) -> list[Match]:
        limit = number if exact else int(self._scoring.num_candidates(top) * max(1, number / MANY) ** 0.25)
        while True:
            points = self._candidates(query, among, min(limit, number), exact)
            heads = self._heads(dict.fromkeys(point.payload["video"] for point in points))
            # Windows of replaced, removed and unfinished versions are dropped here.
            points = [point for point in points if is_present(point.payload, heads)]
            videos = [point.payload["video"] for point in points]
            if limit >= number or not too_few_videos(videos, top, len(videos)):
                break
            limit *= 4
        chosen = range(len(points)) if self._scoring.attends else self._contenders(query, points, videos, top)
        by_id = {str(points[line].id): points[line].payload for line in chosen}
        windows = self._read(list(by_id))
        scored = [
            Scored(
                order=heads[by_id[key]["video"]].order,
                video_id=by_id[key]["video"],
                scores=self._scoring.scores(query, windows[key]),
            )
            for key in by_id
            if key in windows
        ]
        return best_matches(scored, self._scoring, top)

    def _contenders(
        self, query: Mapping[str, QueryVector], points: Sequence[Any], videos: list[str], top: int
    ) -> Array:
        total = np.array([point.score for point in points]) * self._factor(query)
        lengths = {
            branch: np.array([point.payload["longest"].get(branch, 1.0) for point in points]) * query[branch].length
            if self._scoring.kind(branch) == "dot"
            else np.ones(len(points))
            for branch in self._scoring.by_token
        }
        doubt = _DOUBT * self._scoring.totals(lengths) if points else total
        return contenders(total, doubt, np.unique(videos, return_inverse=True)[1], top)

    def _candidates(
        self, query: Mapping[str, QueryVector], among: Collection[str] | None, limit: int, exact: bool
    ) -> list[Any]:
        request = self.request(query, limit=limit, among=among, exact=exact)
        return self._server.call("query_points", self.collection, **request).points

    def request(
        self, query: Mapping[str, QueryVector], *, limit: int, among: Collection[str] | None = None, exact: bool = False
    ) -> dict[str, Any]:
        """Return the request that selects windows by one branch and scores them by all branches.

        Args:
            query: The query by branch.
            limit: The number of windows.
            among: The ids to search. Default: all.
            exact: Whether to score every window, without quantisation.
        """
        quantisation = models.QuantizationSearchParams(ignore=exact, rescore=True, oversampling=2.0)
        params = models.SearchParams(exact=exact, quantization=quantisation)
        where = matching(is_head=False, among=among)  # in every prefetch, because a filter at the root comes too late
        scanned = self._scanned_branch()
        branches = [scanned, *(branch for branch in self._scoring.by_token if branch != scanned)]

        def prefetch(branch: str, inner: list[models.Prefetch] | None = None) -> models.Prefetch:
            return models.Prefetch(
                query=[query[branch].direction.tolist()],
                using=branch,
                limit=limit,
                filter=where,
                params=params,
                prefetch=inner,
            )

        # The others score the windows that the scanned branch selects, so that no window lacks the score of a branch.
        first = prefetch(scanned)
        others = [prefetch(branch, None if exact else [first]) for branch in branches[1:]]
        factor = self._factor(query)
        terms: list[Any] = [
            models.MultExpression(mult=[self._weights[branch] * query[branch].length / factor, f"$score[{number}]"])
            for number, branch in enumerate(branches)
        ]
        return {
            "prefetch": [first, *others],
            "query": models.FormulaQuery(
                formula=models.SumExpression(sum=terms),
                defaults={f"$score[{number}]": 0.0 for number in range(len(branches))},
            ),
            "limit": limit,
            "with_payload": models.PayloadSelectorInclude(include=["video", "version", "window", "longest"]),
            "with_vectors": False,
        }

    def _factor(self, query: Mapping[str, QueryVector]) -> float:
        """Return the largest factor of a branch. Qdrant computes formulas in float32, so factors are divided by it."""
        return max(self._weights[branch] * query[branch].length for branch in self._scoring.by_token) or 1.0

    def _scanned_branch(self) -> str:
        """Return the branch with the fewest tokens among those that can select windows."""
        if self._scanned is None:
            points, _ = self._server.call("scroll", self.collection, scroll_filter=matching(is_head=True), limit=1)
            if not points:
                return self._scoring.scannable[0]
            counts = points[0].payload["counts"]
            self._scanned = min(self._scoring.scannable, key=lambda branch: int(counts[branch]))
        return self._scanned

    # ------------------------------------------------------------ generations

    def successor(
        self,
        *,
        branch_weights: Mapping[str, float],
        width: int,
        similarities: Similarities | None = None,
        fingerprint: str = "",
        shards: int = 1,
        replicas: int = 1,
    ) -> "QdrantIndex":
        """Create an empty generation beside this one, for another model. See `create` for the arguments.

        Args:
            branch_weights: The weight of each branch in the score.
            width: The width of all vectors.
            similarities: How each branch scores that does not score by its best cosine. Default: there is none.
            fingerprint: A name of the model that makes the tokens.
            shards: The number of shards.
            replicas: The number of copies of each shard.
        """
        name, _, number = self.collection.rpartition("_")
        made = collections.create(
            self._server,
            name,
            int(number) + 1,
            branch_weights,
            width,
            similarities,
            fingerprint,
            shards=shards,
            replicas=replicas,
        )
        return QdrantIndex(self._server, *made)

    def serve(self) -> None:
        """Let this generation serve. The alias is changed in one step."""
        collections.serve(self._server, self.collection.rpartition("_")[0], self.collection)

    def is_serving(self) -> bool:
        """Return whether this generation serves."""
        return collections.serving(self._server, self.collection.rpartition("_")[0]) == self.collection

    def drop(self) -> None:
        """Delete this generation. Raise BadSetting if it serves."""
        if self.is_serving():
            raise BadSetting(f"collection {self.collection} serves. Let another one serve first.")
        self._server.call("delete_collection", self.collection)
