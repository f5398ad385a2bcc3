"""The embedded index: one folder of eight-bit vectors in memory-mapped files, and a SQLite manifest.

See `midreel.index.embedded.storage` for the file format and crash safety.
"""

from midreel.index.embedded.index import COARSE, EmbeddedIndex

__all__ = ["COARSE", "EmbeddedIndex"]
