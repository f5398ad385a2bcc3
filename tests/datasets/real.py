"""Real annotation files, which the project does not ship: in the folder MIDREEL_REAL_DATA, or beside the repository."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def real_file(*names: str) -> Path:
    """The file, or a test that is skipped."""
    path = Path(os.environ.get("MIDREEL_REAL_DATA", BESIDE)).joinpath(*names)
    if not path.is_file():
        pytest.skip(f"{'/'.join(names)} is not there; set MIDREEL_REAL_DATA to the folder that holds it")
    return path
