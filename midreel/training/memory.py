"""Settings of the C library's memory allocator, which affect the speed of training on a CPU."""

import ctypes
import sys

# Options of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Keep the memory of freed tensors for reuse. Return whether the C library supports it.

    By default glibc returns a large freed tensor to the kernel. The kernel then zeroes the pages of the next tensor one
    by one, which can take as long as the training step itself.

    The setting is permanent and affects the whole process. Call this function at the start of a long run, never on
    import.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
