from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import settings

settings.register_profile("midreel", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("midreel")
torch.set_num_threads(1)  # the tensors are tiny: more threads would only wait for each other


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switches jaxtyping off, as it is outside pytest, so that a test can read midreel's own message."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
