"""Start `midreel serve` in a separate process."""

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
    """Start `midreel serve` on a free port. The first line of its output is its address.

    Args:
        library: The library to serve.
        words: More arguments of the command.
        options: Arguments of `subprocess.Popen`.
    """
    command = [sys.executable, "-m", "midreel", "serve", str(library), "--port", "0", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def address_of(process: "subprocess.Popen[str]") -> str:
    """Wait for the address of a server, and return it."""
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        raise RuntimeError(f"the server ended with code {process.wait()} before it printed its address")
    return address


@contextmanager
def serving(library: Path) -> Iterator[str]:
    """Serve a library, and yield the address when the server is ready to search."""
    with ready(start(library)) as address:
        yield address


@contextmanager
def ready(started: "subprocess.Popen[str]") -> Iterator[str]:
    """Yield the address of a server that was started, when it is ready. Stop it at the end of the block."""
    with started as process:
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
