"""Where to compute."""

from typing import Any, TypeVar

from midreel.errors import BadSetting

M = TypeVar("M", bound=Any)


def on_device(module: M, device: str) -> M:
    """Move a torch module to a device, and return it. Raises BadSetting if the device cannot be used."""
    try:
        return module.to(device)
    except (RuntimeError, AssertionError) as error:
        raise BadSetting(f"the device {device!r} cannot be used ({error}); choose cpu, or one that is here") from error
