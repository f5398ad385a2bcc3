"""The device that a torch module computes on."""

from typing import Any, TypeVar

from midreel.errors import BadSetting

M = TypeVar("M", bound=Any)


def on_device(module: M, device: str) -> M:
    """Move a torch module to a device, such as "cpu" or "cuda:0", and return it.

    Raises:
        BadSetting: torch does not know the device, or this machine does not have it.
    """
    import torch

    try:
        torch.empty(0).to(device)  # a module without weights would not notice
        return module.to(device)
    except (RuntimeError, AssertionError) as error:
        raise BadSetting(f"the device {device!r} cannot be used ({error}). Try cpu.") from error
