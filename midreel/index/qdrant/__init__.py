"""The index in Qdrant: a point per window, with one multivector per branch, searched by the server."""

import importlib.util

from midreel.errors import BadPackage

if importlib.util.find_spec("qdrant_client") is None:
    raise BadPackage("qdrant-client is not installed. Install it: pip install 'midreel[qdrant]'")

from midreel.index.qdrant.index import QdrantIndex

__all__ = ["QdrantIndex"]
