"""Videos with sentences that describe their parts."""

from midreel.datasets.catalogue import find_collections, open_collection
from midreel.datasets.collection import Collection, Part

__all__ = ["Collection", "Part", "find_collections", "open_collection"]
