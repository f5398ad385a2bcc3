"""What the C library does with freed memory, which decides how fast a large model trains on a CPU."""

import ctypes
import sys

# glibc's names for what mallopt sets.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Lets the process reuse the memory of freed tensors instead of giving it back. True if the C library complied.

    glibc returns every large tensor to the kernel when it is freed, and the next one is mapped, zeroed and faulted in
    page by page, which can take as long as the training step itself. Process-wide and lasting, so call it where a long
    run starts (training, benchmarks), never on import.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
