"""Methods: one paper a file. METHODS lists them; adding one is a line here, or an entry point of another package."""

import json
from pathlib import Path
from typing import Any

import torch

from midreel.errors import BadModel, UnknownName
from midreel.methods.base import Method, expect_fit, load_weights, read_weights
from midreel.methods.clip_zero_shot import ClipZeroShot
from midreel.methods.gmmformer_v2 import GMMFormerV2
from midreel.methods.msc import MSC
from midreel.methods.registry import Registry

METHODS: Registry[type[Method]] = Registry(
    "method",
    "midreel.methods",
    {"clip_zero_shot": ClipZeroShot, "gmmformer_v2": GMMFormerV2, "msc": MSC},
    expected=Method,
)

__all__ = ["METHODS", "MSC", "ClipZeroShot", "GMMFormerV2", "Method", "load_method", "load_weights"]


def load_method(folder: str | Path) -> Method:
    """The method saved in `folder` (config.json and model.safetensors), in evaluation mode."""
    folder = Path(folder)
    settings = _read_config(folder / "config.json")
    name = settings.get("method")
    if not isinstance(name, str) or name not in METHODS:
        raise UnknownName.among(f"method in {folder / 'config.json'}:", name, METHODS)
    make = METHODS[name]
    try:
        config = make.Config(**settings)
    except TypeError as error:
        raise BadModel(
            f"{folder / 'config.json'} does not fit {name}: {error}; was it made by a newer midreel?"
        ) from error
    path = folder / "model.safetensors"
    weights = read_weights(path)
    expect_fit(_outline(make, config, folder), weights, path)
    method = make(config)
    method.load_state_dict(weights)
    return method.eval()


def _outline(make: type[Method], config: Any, folder: Path) -> Method:
    """The method without memory for its weights: a damaged config.json may ask for more than there is."""
    try:
        with torch.device("meta"):
            return make(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # torch counts elements in 64 bits
        raise BadModel(
            f"{folder / 'config.json'} has sizes that no model has ({error}). Copy the model again."
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadModel(f"{path} does not exist; give the folder that save_pretrained wrote") from error
    except OSError as error:
        raise BadModel(f"{path} cannot be read ({error.strerror}); check what it is, and its permissions") from error
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{path} is not JSON ({error}); restore it or save the model again") from error
    if not isinstance(settings, dict):
        raise BadModel(f"{path} holds {type(settings).__name__}, expected an object of settings; save the model again")
    return settings
