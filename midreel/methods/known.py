"""The methods by name, and `load_method`. `midreel.methods` imports this module when one of its names is used."""

import json
from pathlib import Path
from typing import Any

import torch

from midreel.errors import BadModel, UnknownName
from midreel.methods.amdnet import AMDNet
from midreel.methods.arl import ARL
from midreel.methods.base import Method, expect_fit, read_weights
from midreel.methods.bgm_net import BGMNet
from midreel.methods.clip_residual import ClipResidual
from midreel.methods.clip_zero_shot import ClipZeroShot
from midreel.methods.dl_dkd import DLDKD
from midreel.methods.gmmformer import GMMFormer
from midreel.methods.gmmformer_v2 import GMMFormerV2
from midreel.methods.ms_sl import MSSL
from midreel.methods.msc import MSC
from midreel.methods.msc_residual import MSCResidual
from midreel.methods.proto_prvr import ProtoPRVR
from midreel.methods.registry import Registry
from midreel.methods.tf_prvr import TFPRVR

METHODS: Registry[type[Method]] = Registry(
    "method",
    "midreel.methods",
    {
        "amdnet": AMDNet,
        "arl": ARL,
        "bgm_net": BGMNet,
        "clip_residual": ClipResidual,
        "clip_zero_shot": ClipZeroShot,
        "dl_dkd": DLDKD,
        "gmmformer": GMMFormer,
        "gmmformer_v2": GMMFormerV2,
        "ms_sl": MSSL,
        "msc": MSC,
        "msc_residual": MSCResidual,
        "proto_prvr": ProtoPRVR,
        "tf_prvr": TFPRVR,
    },
    expected=Method,
)
"""All methods by name: midreel's own and those of installed packages."""


def load_method(folder: str | Path) -> Method:
    """Return the model in a folder, in evaluation mode.

    Args:
        folder: the folder that `save_pretrained` wrote, with config.json and model.safetensors.

    Raises:
        BadModel: a file is missing or damaged, or the two files do not fit together.
        UnknownName: no method has the name in config.json.
        BadSetting: a value in config.json is out of range.

    >>> import tempfile
    >>> from midreel import load_method
    >>> from midreel.methods import ClipZeroShot
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ClipZeroShot(ClipZeroShot.Config(width=64)).save_pretrained(folder)
    ...     load_method(folder).config.width
    64
    """
    folder = Path(folder)
    settings = _read_config(folder / "config.json")
    name = settings.get("method")
    if not isinstance(name, str) or name not in METHODS:
        raise UnknownName.among(f"method in {folder / 'config.json'}:", name, METHODS)
    make = METHODS[name]
    try:
        config = make.Config(**settings)
    except TypeError as error:
        raise BadModel(f"{folder / 'config.json'} does not fit the method {name} ({error}). Update midreel.") from error
    path = folder / "model.safetensors"
    weights = read_weights(path)
    expect_fit(_outline(make, config, folder), weights, path)
    method = make(config)
    method.load_state_dict(weights)
    return method.eval()


def _outline(make: type[Method], config: Any, folder: Path) -> Method:
    """Return the method without memory for its weights. A damaged config.json may require more than there is."""
    try:
        with torch.device("meta"):
            return make(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # torch counts elements in 64 bits
        raise BadModel(f"{folder / 'config.json'} has impossible sizes ({error}). Copy the model again.") from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadModel(f"{path} does not exist. Pass the folder that save_pretrained wrote.") from error
    except OSError as error:
        raise BadModel(f"{path} cannot be read ({error.strerror}). Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{path} is not JSON ({error}). Copy the model again.") from error
    if not isinstance(settings, dict):
        raise BadModel(f"{path} contains a {type(settings).__name__}, expected an object. Copy the model again.")
    return settings
