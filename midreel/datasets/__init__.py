"""Videos with sentences that describe their parts."""

from midreel.datasets.annotations import Annotations, Part
from midreel.datasets.discovery import find_annotations, is_dataset, open_annotations

__all__ = ["Annotations", "Part", "find_annotations", "is_dataset", "open_annotations"]
