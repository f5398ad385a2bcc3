"""A server in a process of its own, as somebody would start it."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def start(library: Path, *words: str, **options: Any) -> "subprocess.Popen[str]":
    """`midreel serve` on any free port; its first line is its address."""
    command = [sys.executable, "-m", "midreel", "serve", str(library), "--port", "0", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def address_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        raise RuntimeError(f"the server ended with code {process.wait()} instead of telling its address")
    return address


@contextmanager
def serving(library: Path) -> Iterator[str]:
    """Its address, once it is ready to search."""
    with start(library) as process:
        try:
            address = address_of(process)
            while process.poll() is None:
                try:
                    with urllib.request.urlopen(f"{address}readyz"):
                        break
                except urllib.error.HTTPError:
                    time.sleep(0.2)
            yield address
        finally:
            process.terminate()
