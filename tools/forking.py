"""Run work in child processes that are forked, limited in time and memory, and read through a pipe."""

import gc
import os
import resource
import select
import time
from pathlib import Path


def fork() -> int:
    """Fork this process without garbage collection in the child, and return what `os.fork` returns.

    The child has none of its parent's threads. Some objects of native libraries, such as sessions of onnxruntime, wait
    for their threads when they are freed. If the child collected them, it would wait forever.
    """
    process = os.fork()
    if process == 0:
        gc.disable()
    return process


def limit_memory(more: int) -> None:
    """Limit the address space of this process to its present size and `more` bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def read_until_closed(reader: int, seconds: float) -> tuple[bytes, bool]:
    """Read a pipe until its other end is closed, or until a timeout.

    Args:
        reader: The file descriptor of the pipe.
        seconds: The timeout.

    Returns:
        The bytes, and whether the timeout passed.
    """
    content, end = b"", time.monotonic() + seconds
    while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(reader, 2**16)
        if not piece:
            return content, False
        content += piece
    return content, True
