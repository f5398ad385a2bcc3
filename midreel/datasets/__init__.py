"""Videos with sentences that describe their parts."""

from midreel.datasets.collection import Collection, Part
from midreel.datasets.discovery import find_collections, is_dataset, open_collection

__all__ = ["Collection", "Part", "find_collections", "is_dataset", "open_collection"]
