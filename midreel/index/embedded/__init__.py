"""The embedded index: one directory, eight-bit vectors in memory-mapped files, and a SQLite manifest."""

from midreel.index.embedded.index import COARSE, EmbeddedIndex

__all__ = ["COARSE", "EmbeddedIndex"]
