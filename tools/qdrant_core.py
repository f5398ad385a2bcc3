"""The core of Qdrant (qdrant-edge-py) behind the methods of its client, for tests and benchmarks.

The index sends its requests to this client as to a server. They are translated one by one, and executed by the engine
that a server runs in each of its shards. What a server adds is missing: HTTP, gRPC, several shards and replicas.
"""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import qdrant_edge as edge
from qdrant_client import QdrantClient, models

_LARGE = 2**31  # kilobytes: segments are not split, and quantised only by `optimize`


class CoreClient(QdrantClient):
    """A client of the core. It has the methods that the index calls.

    Args:
        folder: A folder for the collections. Default: a temporary one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory()
        self._folder = folder or Path(self._temporary.name if self._temporary else "")
        self._shards: dict[str, Any] = {}
        self._names = self._folder / "names.json"  # aliases and metadata, which a server keeps

    def close(self, grpc_grace: float | None = None, **kwargs: Any) -> None:
        """Close all collections.

        Args:
            grpc_grace: No effect.
            kwargs: No effect.
        """
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __del__(self, **kwargs: Any) -> None:
        """Do nothing: the index does not close a client that it was given."""

    def optimize(self, collection: str) -> None:
        """Build the quantised vectors, as a server does in the background."""
        while self._shard(collection).optimize():
            pass

    # ------------------------------------------------------------ collections

    def create_collection(self, collection_name: str, **settings: Any) -> bool:  # type: ignore[override]
        """Create a collection.

        Args:
            collection_name: Its name.
            settings: Its vectors and metadata. Others concern clusters only.
        """
        folder = self._folder / collection_name
        folder.mkdir(parents=True)
        vectors = {name: _vector(params) for name, params in settings["vectors_config"].items()}
        optimizers = edge.EdgeOptimizersConfig(default_segment_number=1, max_segment_size=_LARGE)
        self._shards[collection_name] = edge.EdgeShard.create(
            str(folder), edge.EdgeConfig(vectors=vectors, optimizers=optimizers)
        )
        self._put("metadata", collection_name, settings["metadata"])
        return True

    def create_payload_index(self, collection_name: str, field_name: str, field_schema: Any) -> None:  # type: ignore[override]
        """Index a field of the payload.

        Args:
            collection_name: The collection.
            field_name: The field.
            field_schema: Its kind.
        """
        kind = getattr(edge.PayloadSchemaType, field_schema.value.capitalize())
        self._shard(collection_name).update(edge.UpdateOperation.create_field_index(field_name, kind))

    def get_collection(self, collection_name: str, **kwargs: Any) -> Any:
        """Return the metadata of a collection."""
        return SimpleNamespace(config=SimpleNamespace(metadata=self._got("metadata")[collection_name]))

    def delete_collection(self, collection_name: str, **kwargs: Any) -> bool:  # type: ignore[override]
        """Forget a collection."""
        self._shards.pop(collection_name).close()
        return True

    def get_aliases(self, **kwargs: Any) -> Any:
        """Return all aliases."""
        found = self._got("aliases").items()
        return SimpleNamespace(aliases=[SimpleNamespace(alias_name=a, collection_name=c) for a, c in found if c])

    def update_collection_aliases(self, change_aliases_operations: Any, **kwargs: Any) -> bool:  # type: ignore[override]
        """Change aliases."""
        for change in change_aliases_operations:
            if isinstance(change, models.DeleteAliasOperation):
                self._put("aliases", change.delete_alias.alias_name, None)
            else:
                self._put("aliases", change.create_alias.alias_name, change.create_alias.collection_name)
        return True

    # ------------------------------------------------------------ points

    def upsert(self, collection_name: str, points: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Write points."""
        made = [edge.Point(id=point.id, vector=point.vector, payload=point.payload) for point in points]
        shard = self._shard(collection_name)
        shard.update(edge.UpdateOperation.upsert_points(made))

    def delete(self, collection_name: str, points_selector: Any, **kwargs: Any) -> None:  # type: ignore[override]
        """Delete points."""
        if isinstance(points_selector, models.PointIdsList):
            operation = edge.UpdateOperation.delete_points(points_selector.points)
        else:
            operation = edge.UpdateOperation.delete_points_by_filter(_filter(points_selector.filter))
        self._shard(collection_name).update(operation)

    def retrieve(self, collection_name: str, ids: Any, with_vectors: bool = False, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return points by id."""
        return self._shard(collection_name).retrieve(ids, with_payload=True, with_vector=with_vectors)

    def scroll(self, collection_name: str, **settings: Any) -> Any:  # type: ignore[override]
        """Return some points that match a filter, and where to go on."""
        request = edge.ScrollRequest(
            offset=settings.get("offset"),
            limit=settings["limit"],
            filter=_filter(settings["scroll_filter"]),
            with_payload=True,
            with_vector=False,
        )
        return self._shard(collection_name).scroll(request)

    def count(self, collection_name: str, count_filter: Any = None, exact: bool = True, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return the number of points."""
        request = edge.CountRequest(exact=exact, filter=_filter(count_filter))
        return SimpleNamespace(count=self._shard(collection_name).count(request))

    def query_points(self, collection_name: str, **settings: Any) -> Any:  # type: ignore[override]
        """Search."""
        query = settings["query"]
        request = edge.QueryRequest(
            limit=settings["limit"],
            query=edge.Formula(_expression(query.formula), query.defaults),
            prefetches=[*map(_prefetch, settings["prefetch"])],
            with_payload=edge.PayloadSelector.Include(settings["with_payload"].include),
            with_vector=False,
        )
        return SimpleNamespace(points=self._shard(collection_name).query(request))

    # ------------------------------------------------------------ files

    def _shard(self, collection: str) -> Any:
        """Return the shard of a collection, opened if needed."""
        if collection not in self._shards:
            self._shards[collection] = edge.EdgeShard.load(str(self._folder / collection))
        return self._shards[collection]

    def _got(self, kind: str) -> dict[str, Any]:
        kept = json.loads(self._names.read_text()) if self._names.exists() else {}
        return dict(kept.get(kind, {}))

    def _put(self, kind: str, name: str, value: Any) -> None:
        kept = json.loads(self._names.read_text()) if self._names.exists() else {}
        self._names.write_text(json.dumps(kept | {kind: kept.get(kind, {}) | {name: value}}))


def _vector(params: models.VectorParams) -> Any:
    assert params.hnsw_config is not None
    distance = {models.Distance.DOT: edge.Distance.Dot, models.Distance.COSINE: edge.Distance.Cosine}[params.distance]
    half = params.datatype == models.Datatype.FLOAT16
    return edge.EdgeVectorParams(
        size=params.size,
        distance=distance,
        multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim),
        datatype=edge.VectorStorageDatatype.Float16 if half else edge.VectorStorageDatatype.Float32,
        quantization_config=edge.ScalarQuantizationConfig(
            type=edge.ScalarType.Int8, quantile=0.99, memory=edge.Memory.Pinned
        ),
        hnsw_config=edge.HnswIndexConfig(m=params.hnsw_config.m or 0, ef_construct=100, full_scan_threshold=10_000),
        memory=edge.Memory.Cold,
    )


def _prefetch(stage: Any) -> Any:
    inner = stage.prefetch or []
    return edge.Prefetch(
        limit=stage.limit,
        query=edge.Query.Nearest(stage.query, using=stage.using),
        prefetches=[*map(_prefetch, inner if isinstance(inner, list) else [inner])],
        params=_params(stage.params),
        filter=_filter(stage.filter),
    )


def _params(params: models.SearchParams) -> Any:
    asked = params.quantization
    assert asked is not None
    quantisation = edge.QuantizationSearchParams(
        ignore=bool(asked.ignore), rescore=asked.rescore, oversampling=asked.oversampling
    )
    return edge.SearchParams(exact=bool(params.exact), quantization=quantisation)


def _expression(node: Any) -> Any:
    if isinstance(node, models.SumExpression):
        return edge.Expression.Sum([*map(_expression, node.sum)])
    if isinstance(node, models.MultExpression):
        return edge.Expression.Mult([*map(_expression, node.mult)])
    return edge.Expression.Variable(node) if isinstance(node, str) else edge.Expression.Constant(float(node))


def _filter(asked: Any) -> Any:
    if asked is None:
        return None
    return edge.Filter(must=[edge.FieldCondition(key=each.key, match=_match(each.match)) for each in asked.must])


def _match(asked: Any) -> Any:
    return edge.MatchAny(asked.any) if isinstance(asked, models.MatchAny) else edge.MatchValue(asked.value)
