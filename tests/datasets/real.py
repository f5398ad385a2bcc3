"""Real annotation files, in the folder MIDREEL_REAL_DATA or beside the repository. The project does not ship them."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def real_file(*names: str) -> Path:
    """Return the file, or skip the test if it is missing."""
    path = Path(os.environ.get("MIDREEL_REAL_DATA", BESIDE)).joinpath(*names)
    if not path.is_file():
        pytest.skip(f"{'/'.join(names)} is missing. Set MIDREEL_REAL_DATA to its folder.")
    return path
