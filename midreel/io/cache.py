"""The folder for files that can be made again: of the user, and outside of all libraries."""

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """Return the cache folder of midreel, whether it exists or not. None if the user has no home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or "~/.cache"
    try:
        return Path(base).expanduser() / "midreel"
    except RuntimeError:
        return None
