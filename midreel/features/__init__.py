"""Features: what a frozen backbone makes of images and texts, and the file that keeps it.

Importing this package does nothing; each name loads its part when it is first used, for torch, transformers and h5py
take seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midreel.features.backbone import Backbone, Fingerprint, load_backbone
    from midreel.features.extract import ExtractionReport, extract_texts, extract_videos
    from midreel.features.join import JoinedParts, JoinReport, join_stores
    from midreel.features.published import PublishedFeatures, find_published
    from midreel.features.source import Features
    from midreel.features.store import FeatureStore

_HOME = {
    "Backbone": "midreel.features.backbone",
    "ExtractionReport": "midreel.features.extract",
    "FeatureStore": "midreel.features.store",
    "Features": "midreel.features.source",
    "Fingerprint": "midreel.features.backbone",
    "JoinReport": "midreel.features.join",
    "JoinedParts": "midreel.features.join",
    "PublishedFeatures": "midreel.features.published",
    "extract_texts": "midreel.features.extract",
    "extract_videos": "midreel.features.extract",
    "find_published": "midreel.features.published",
    "join_stores": "midreel.features.join",
    "load_backbone": "midreel.features.backbone",
}

__all__ = [
    "Backbone",
    "ExtractionReport",
    "FeatureStore",
    "Features",
    "Fingerprint",
    "JoinReport",
    "JoinedParts",
    "PublishedFeatures",
    "extract_texts",
    "extract_videos",
    "find_published",
    "join_stores",
    "load_backbone",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'midreel.features' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
