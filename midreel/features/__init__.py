"""Features: the vectors that a frozen backbone computes for frames and texts, and the files that store them.

Importing this package is fast. Each name imports its module at the first use, because torch, transformers and h5py
take seconds to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midreel.features.backbones.base import Backbone, Fingerprint, load_backbone
    from midreel.features.extract import ExtractionReport, extract_texts, extract_videos
    from midreel.features.stores.base import Features
    from midreel.features.stores.join import JoinedParts, JoinReport, join_stores
    from midreel.features.stores.published import PublishedFeatures, find_published
    from midreel.features.stores.store import FeatureStore

_HOME = {
    "Backbone": "midreel.features.backbones.base",
    "ExtractionReport": "midreel.features.extract",
    "FeatureStore": "midreel.features.stores.store",
    "Features": "midreel.features.stores.base",
    "Fingerprint": "midreel.features.backbones.base",
    "JoinReport": "midreel.features.stores.join",
    "JoinedParts": "midreel.features.stores.join",
    "PublishedFeatures": "midreel.features.stores.published",
    "extract_texts": "midreel.features.extract",
    "extract_videos": "midreel.features.extract",
    "find_published": "midreel.features.stores.published",
    "join_stores": "midreel.features.stores.join",
    "load_backbone": "midreel.features.backbones.base",
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
