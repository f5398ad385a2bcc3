"""The published weights of SlowFast 8x8 R50, from either file that holds them, without running what a pickle asks for.

PySlowFast's model zoo has them in the names of Caffe2 (SLOWFAST_8x8_R50.pkl), PyTorchVideo's in those of its own
network (SLOWFAST_8x8_R50.pyth). The last layer of both, which tells the classes of Kinetics apart, is left out.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from midreel.errors import BadModel
from midreel.features.backbones.slowfast_net import DEPTHS, ConvNorm, SlowFast
from midreel.io import torch_files
from midreel.io.safe_pickle import StoredArray, StoredTensor

_LETTERS = {"reduce": "a", "spatial": "b", "expand": "c"}


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a library names the weights."""

    within: str  # the key under which its file keeps them
    names: Callable[[str], tuple[str, str]]  # of a layer's convolution and norm
    weight: str  # ending, of a convolution's
    norm: tuple[str, str, str, str]  # endings: factor, offset, mean, variance
    beside: re.Pattern[str]  # what its file holds that is none of the features' business

    def of(self, network: SlowFast) -> Iterator[tuple[str, Tensor]]:
        """Every name that the file must have, with the tensor of the network that it fills."""
        for layer, module in network.named_modules():
            if isinstance(module, ConvNorm):
                conv, norm = self.names(layer)
                yield f"{conv}{self.weight}", module.conv.weight
                parts = (module.norm.weight, module.norm.bias, module.norm.running_mean, module.norm.running_var)
                for ending, part in zip(self.norm, parts, strict=True):
                    assert part is not None
                    yield f"{norm}{ending}", part


def _caffe2(layer: str) -> tuple[str, str]:
    match layer.split("."):
        case ["laterals", "0"]:
            return "t_pool1_subsample", "t_pool1_subsample_bn"
        case ["laterals", number]:  # after a stage's last block, whose name it bears
            stage = int(number) - 1
            name = f"t_res{stage + 2}_{DEPTHS[stage] - 1}_branch2c_bn_subsample"
            return name, f"{name}_bn"
        case [pathway, "stem"]:
            prefix = _caffe2_prefix(pathway)
            return f"{prefix}conv1", f"{prefix}res_conv1_bn"
        case [pathway, "stages", number, block, part]:
            branch = f"branch2{_LETTERS[part]}" if part in _LETTERS else "branch1"
            name = f"{_caffe2_prefix(pathway)}res{int(number) + 2}_{block}_{branch}"
            return name, f"{name}_bn"
    raise AssertionError(layer)


def _caffe2_prefix(pathway: str) -> str:
    return "t_" if pathway == "fast" else ""


def _pytorchvideo(layer: str) -> tuple[str, str]:
    match layer.split("."):
        case ["laterals", number]:
            fusion = f"blocks.{number}.multipathway_fusion"
            return f"{fusion}.conv_fast_to_slow", f"{fusion}.norm"
        case [pathway, "stem"]:
            stem = f"blocks.0.multipathway_blocks.{int(pathway == 'fast')}"
            return f"{stem}.conv", f"{stem}.norm"
        case [pathway, "stages", number, block, part]:
            stage = f"blocks.{int(number) + 1}.multipathway_blocks.{int(pathway == 'fast')}.res_blocks.{block}"
            if part in _LETTERS:
                return f"{stage}.branch2.conv_{_LETTERS[part]}", f"{stage}.branch2.norm_{_LETTERS[part]}"
            return f"{stage}.branch1_conv", f"{stage}.branch1_norm"
    raise AssertionError(layer)


FORMS = (
    Form(
        within="blobs",
        names=_caffe2,
        weight="_w",
        norm=("_s", "_b", "_rm", "_riv"),  # riv is the variance itself, whatever its name says
        beside=re.compile(r"momentum|lr|model_iter|^pred_[wb]$"),
    ),
    Form(
        within="model_state",
        names=_pytorchvideo,
        weight=".weight",
        norm=(".weight", ".bias", ".running_mean", ".running_var"),
        beside=re.compile(r"\.num_batches_tracked$|^blocks\.6\.proj\.(weight|bias)$"),
    ),
)


@torch.no_grad()
def fill(network: SlowFast, path: Path) -> None:
    """Puts the weights of the file into the network, each into one place and none left over."""
    form, stored = _read(path)
    wanted = dict(form.of(network))
    lacking = sorted(wanted.keys() - stored.keys())
    if lacking:
        raise BadModel(
            f"{path} lacks {len(lacking)} of the {len(wanted)} weights of SlowFast 8x8 R50, such as {lacking[0]!r}; "
            f"use the file of that network"
        )
    unknown = sorted(name for name in stored.keys() - wanted.keys() if not form.beside.search(name))
    if unknown:
        raise BadModel(
            f"{path} holds {len(unknown)} weights that SlowFast 8x8 R50 has not, such as {unknown[0]!r}; "
            f"use the file of that network"
        )
    for name, tensor in wanted.items():
        try:
            found = _tensor(stored[name])
        except BadModel as error:
            raise BadModel(f"{path}: {name}: {error} Use the file of SlowFast 8x8 R50.") from error
        shape = None if found is None else tuple(found.shape)
        if found is None or shape != tuple(tensor.shape):
            raise BadModel(
                f"{path}: {name} has shape {shape}, expected {tuple(tensor.shape)}; use the file of SlowFast 8x8 R50"
            )
        tensor.copy_(found)


def _tensor(value: object) -> Tensor | None:
    """Numbers of either library as a tensor; nothing for anything else."""
    if isinstance(value, StoredTensor) and value.dtype.is_floating_point:
        return value.read()
    if isinstance(value, StoredArray) and (array := value.read()).dtype.kind == "f":
        return torch.from_numpy(array.astype(np.float32))
    return None


def _read(path: Path) -> tuple[Form, dict[str, Any]]:
    try:
        content = torch_files.load(path, bare=True).value
    except BadModel as error:
        raise BadModel(f"{error} It should be SLOWFAST_8x8_R50.pkl or .pyth.") from error
    for form in FORMS:
        stored = content.get(form.within) if isinstance(content, dict) else None
        if isinstance(stored, dict):
            return form, {str(name): value for name, value in stored.items()}
    raise BadModel(
        f"{path} holds no {' or '.join(form.within for form in FORMS)}, expected the file of PySlowFast "
        f"(SLOWFAST_8x8_R50.pkl) or of PyTorchVideo (SLOWFAST_8x8_R50.pyth); use one of them"
    )
