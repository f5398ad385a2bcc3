import pytest
from torch import nn

from midreel.errors import BadSetting
from midreel.ops.devices import on_device


def test_the_module_is_returned() -> None:
    module = nn.Linear(1, 1)
    assert on_device(module, "cpu") is module


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_unknown_device(device: str) -> None:
    with pytest.raises(BadSetting, match=device):
        on_device(nn.Linear(1, 1), device)
