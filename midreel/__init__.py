"""midreel: find the video, and the moment in it, from a description of any part of it.

Search a library that `midreel index` wrote:

    >>> from midreel import Searcher
    >>> with Searcher.open("midreel-library") as searcher:  # doctest: +SKIP
    ...     for hit in searcher.search("a dog jumps into a pool", top=3):
    ...         print(hit.path, hit.moments[0].start, hit.moments[0].end)

List the methods that can be trained:

    >>> import midreel
    >>> "msc" in midreel.METHODS
    True

`import midreel` imports nothing heavy. Each public name is imported when it is first used.
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

_MODULE_OF_NAME = {
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
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'midreel' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
