"""A server in a process of its own, as somebody would start it."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(library: Path) -> Iterator[str]:
    """Its address, once it is ready to search."""
    command = [sys.executable, "-m", "midreel.cli", "serve", str(library), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        while True:
            try:
                with urllib.request.urlopen(f"{address}readyz"):
                    break
            except urllib.error.HTTPError:
                time.sleep(0.2)
        try:
            yield address
        finally:
            process.terminate()
