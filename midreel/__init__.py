"""midreel: find the video, and the moment in it, from a description of any part of it.

Importing this package does nothing; each public name loads its part when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from midreel.errors import MidreelError
    from midreel.library.hits import Hit
    from midreel.library.searcher import Searcher
    from midreel.methods import METHODS, load_method
    from midreel.methods.batches import Batch, QueryBatch, VideoBatch
    from midreel.types import Tokens

_HOME = {
    "METHODS": "midreel.methods",
    "Batch": "midreel.methods.batches",
    "Hit": "midreel.library.hits",
    "MidreelError": "midreel.errors",
    "QueryBatch": "midreel.methods.batches",
    "Searcher": "midreel.library.searcher",
    "Tokens": "midreel.types",
    "VideoBatch": "midreel.methods.batches",
    "load_method": "midreel.methods",
}

__all__ = [
    "METHODS",
    "Batch",
    "Hit",
    "MidreelError",
    "QueryBatch",
    "Searcher",
    "Tokens",
    "VideoBatch",
    "load_method",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'midreel' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
