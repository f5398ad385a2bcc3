import pytest
from torch import nn

from midreel.errors import BadSetting
from midreel.ops.devices import on_device


def test_a_module_is_moved() -> None:
    module = nn.Linear(1, 1)
    assert on_device(module, "cpu") is module


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_a_device_that_is_not_here(device: str) -> None:
    with pytest.raises(BadSetting, match=device):
        on_device(nn.Linear(1, 1), device)
