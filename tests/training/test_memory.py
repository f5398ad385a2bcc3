import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from midreel.training.memory import keep_freed_memory
if "keep" in sys.argv:
    assert keep_freed_memory()
for _ in range(30):  # the heap settles first
    torch.ones(12 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.ones(12 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*arguments: str) -> int:
    shown = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return int(shown.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_freed_memory_is_not_faulted_in_again() -> None:
    assert page_faults("keep") < page_faults() / 10
