"""What a pickle must not be able to do."""

import os
from collections.abc import Callable
from pathlib import Path


class Prank:
    """Pickled, it is an order to make a folder, which whoever unpickles it without care carries out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)
