"""Methods: one file for each paper. `METHODS` lists them by name.

To add a method, add a line to `METHODS` in known.py, or an entry point in another package (docs/extend.md).

>>> from midreel import METHODS
>>> "msc" in METHODS
True
>>> METHODS["msc"].Config(width=128).width
128

The networks need torch, so each name is imported when it is first used. Modules of this package without torch, such as
`model_files` and `onnx_encoder`, serve libraries on machines that have no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midreel.methods.amdnet import AMDNet
    from midreel.methods.arl import ARL
    from midreel.methods.base import Method, load_weights
    from midreel.methods.bgm_net import BGMNet
    from midreel.methods.clip_residual import ClipResidual
    from midreel.methods.clip_zero_shot import ClipZeroShot
    from midreel.methods.dl_dkd import DLDKD
    from midreel.methods.gmmformer import GMMFormer
    from midreel.methods.gmmformer_v2 import GMMFormerV2
    from midreel.methods.known import METHODS, load_method
    from midreel.methods.ms_sl import MSSL
    from midreel.methods.msc import MSC
    from midreel.methods.msc_residual import MSCResidual
    from midreel.methods.proto_prvr import ProtoPRVR
    from midreel.methods.tf_prvr import TFPRVR

_MODULE_OF_NAME = {
    "AMDNet": "amdnet",
    "ARL": "arl",
    "BGMNet": "bgm_net",
    "ClipResidual": "clip_residual",
    "ClipZeroShot": "clip_zero_shot",
    "DLDKD": "dl_dkd",
    "GMMFormer": "gmmformer",
    "GMMFormerV2": "gmmformer_v2",
    "METHODS": "known",
    "MSC": "msc",
    "MSCResidual": "msc_residual",
    "MSSL": "ms_sl",
    "Method": "base",
    "ProtoPRVR": "proto_prvr",
    "TFPRVR": "tf_prvr",
    "load_method": "known",
    "load_weights": "base",
}

__all__ = [
    "ARL",
    "DLDKD",
    "METHODS",
    "MSC",
    "MSSL",
    "TFPRVR",
    "AMDNet",
    "BGMNet",
    "ClipResidual",
    "ClipZeroShot",
    "GMMFormer",
    "GMMFormerV2",
    "MSCResidual",
    "Method",
    "ProtoPRVR",
    "load_method",
    "load_weights",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'midreel.methods' has no attribute {name!r}")
    return getattr(import_module(f"midreel.methods.{_MODULE_OF_NAME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
