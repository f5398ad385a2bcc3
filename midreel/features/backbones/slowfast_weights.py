"""Load the published weights of SlowFast 8x8 R50, without running code in a pickle.

Two files contain them. The one of PySlowFast (SLOWFAST_8x8_R50.pkl) uses the names of Caffe2, the one of PyTorchVideo
(SLOWFAST_8x8_R50.pyth) uses its own names. The last layer, which classifies into the classes of Kinetics, is skipped.
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
_USE_OTHER = "Use SLOWFAST_8x8_R50.pkl of PySlowFast or SLOWFAST_8x8_R50.pyth of PyTorchVideo."


@dataclass(frozen=True, kw_only=True)
class Form:
    """The names of the weights in the file of one library.

    Attributes:
        within: The key of the dictionary of weights in the file.
        names: A function from a layer of `SlowFast` to the names of its convolution and its norm.
        weight: The suffix of the weight of a convolution.
        norm: The suffixes of the factor, offset, mean and variance of a norm.
        beside: Matches names in the file that are not weights of the features.
    """

    within: str
    names: Callable[[str], tuple[str, str]]
    weight: str
    norm: tuple[str, str, str, str]
    beside: re.Pattern[str]

    def of(self, network: SlowFast) -> Iterator[tuple[str, Tensor]]:
        """Yield each name that the file must have, and the tensor of the network that it fills."""
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
        case ["laterals", number]:  # named after the last block of the stage before it
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
        norm=("_s", "_b", "_rm", "_riv"),  # "riv" is the variance, although its name suggests its inverse
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
    """Copy the weights in a file into a network.

    Raises:
        BadModel: If the file is damaged, or its weights are not exactly those of the network.
    """
    form, stored = _read(path)
    wanted = dict(form.of(network))
    missing = sorted(wanted.keys() - stored.keys())
    if missing:
        raise BadModel(
            f"{path} lacks {len(missing)} of the {len(wanted)} weights of SlowFast 8x8 R50, such as {missing[0]!r}. "
            f"{_USE_OTHER}"
        )
    unknown = sorted(name for name in stored.keys() - wanted.keys() if not form.beside.search(name))
    if unknown:
        raise BadModel(
            f"{path} has {len(unknown)} weights that are not in SlowFast 8x8 R50, such as {unknown[0]!r}. {_USE_OTHER}"
        )
    for name, tensor in wanted.items():
        try:
            found = _tensor(stored[name])
        except BadModel as error:
            raise BadModel(f"{path}: {name}: {error} {_USE_OTHER}") from error
        shape = None if found is None else tuple(found.shape)
        if found is None or shape != tuple(tensor.shape):
            raise BadModel(f"{path}: {name} has shape {shape}, expected {tuple(tensor.shape)}. {_USE_OTHER}")
        tensor.copy_(found)


def _tensor(value: object) -> Tensor | None:
    """Return the numbers of a weight as a tensor, or None if it does not contain floats."""
    if isinstance(value, StoredTensor) and value.dtype.is_floating_point:
        return value.read()
    if isinstance(value, StoredArray) and (array := value.read()).dtype.kind == "f":
        return torch.from_numpy(array.astype(np.float32))
    return None


def _read(path: Path) -> tuple[Form, dict[str, Any]]:
    try:
        content = torch_files.load(path, bare=True).value
    except BadModel as error:
        raise BadModel(f"{error} {_USE_OTHER}") from error
    for form in FORMS:
        stored = content.get(form.within) if isinstance(content, dict) else None
        if isinstance(stored, dict):
            return form, {str(name): value for name, value in stored.items()}
    raise BadModel(f"{path} has no {' or '.join(form.within for form in FORMS)}. {_USE_OTHER}")
