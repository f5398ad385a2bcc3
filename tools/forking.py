"""Fork a process that has loaded everything, so that its children start at once."""

import gc
import os


def fork() -> int:
    """`os.fork`, without garbage collection in the child.

    The child has none of its parent's threads. Objects of native libraries that wait for their threads when they are
    freed, such as sessions of onnxruntime, would wait for ever if the child collected them.
    """
    process = os.fork()
    if process == 0:
        gc.disable()
    return process
