"""The collections of an index in Qdrant: one per generation, and an alias for the one that serves."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from qdrant_client import models

from midreel.errors import BadSetting
from midreel.index.base import checked_similarities, checked_weights
from midreel.index.qdrant.server import Server
from midreel.index.rerank import Scoring
from midreel.types import Similarities

Settings = Mapping[str, Any]
_FIELDS = {"kind": "keyword", "video": "keyword", "version": "keyword"}  # that filters name


def create(
    server: Server,
    name: str,
    number: int,
    branch_weights: Mapping[str, float],
    width: int,
    similarities: Similarities | None,
    fingerprint: str,
    *,
    shards: int,
    replicas: int,
) -> tuple[str, Settings]:
    """Create an empty collection, and return its name and its settings.

    Args:
        server: The server.
        name: The alias of the index.
        number: The number of the generation.
        branch_weights: The weight of each branch.
        width: The width of all vectors.
        similarities: How each branch scores that does not score by its best cosine.
        fingerprint: What makes the tokens.
        shards: The number of shards.
        replicas: The number of copies of each shard.
    """
    weights = checked_weights(branch_weights)
    forms = checked_similarities(similarities, weights)
    if not 1 <= width <= 65_536:
        raise BadSetting(f"width is {width}, expected 1 to 65536, the limit of Qdrant.")
    settings = {
        "branch_weights": weights,
        "similarities": {branch: asdict(form) for branch, form in forms.items()},
        "width": width,
        "fingerprint": fingerprint,
    }
    collection = f"{name}_{number}"
    scoring = Scoring(weights, forms)
    server.call(
        "create_collection",
        collection,
        vectors_config={branch: _vector_params(width, scoring.kind(branch)) for branch in weights},
        shard_number=shards,
        replication_factor=replicas,
        write_consistency_factor=replicas // 2 + 1,
        on_disk_payload=True,
        metadata={"midreel": settings},
    )
    for field, kind in _FIELDS.items():  # before the first point, so that Qdrant can use them everywhere
        server.call("create_payload_index", collection, field, models.PayloadSchemaType(kind))
    return collection, settings


def serving(server: Server, name: str) -> str | None:
    """Return the collection to which an alias points, or None."""
    aliases = server.call("get_aliases").aliases
    return next((alias.collection_name for alias in aliases if alias.alias_name == name), None)


def serve(server: Server, name: str, collection: str) -> None:
    """Point the alias of an index to a collection, in one step.

    Args:
        server: The server.
        name: The alias.
        collection: The collection.
    """
    changes: list[Any] = []
    if serving(server, name) is not None:
        changes.append(models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=name)))
    target = models.CreateAlias(collection_name=collection, alias_name=name)
    changes.append(models.CreateAliasOperation(create_alias=target))
    server.call("update_collection_aliases", change_aliases_operations=changes)


def _vector_params(width: int, kind: str) -> models.VectorParams:
    quantisation = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, quantile=0.99, always_ram=True)
    return models.VectorParams(
        size=width,
        # Lengths of dot products reach far beyond half precision.
        distance=models.Distance.DOT if kind == "dot" else models.Distance.COSINE,
        datatype=models.Datatype.FLOAT32 if kind == "dot" else models.Datatype.FLOAT16,
        on_disk=True,
        multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
        hnsw_config=models.HnswConfigDiff(m=0),  # a graph over whole matrices costs thousands of products per edge
        quantization_config=models.ScalarQuantization(scalar=quantisation),
    )
