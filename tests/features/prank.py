"""An object whose pickle runs code."""

import os
from collections.abc import Callable
from pathlib import Path


class Prank:
    """Unpickling this object creates a folder, unless the unpickler is safe."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)
