"""EfficientNet-Lite as an ONNX graph: a classifier of the 1,000 classes of ImageNet (Tan & Le 2019, without its
squeeze-and-excitation and with ReLU6).

The weights are those of a file of torch.save, under the names of the package efficientnet_lite_pytorch. The batch norms
are folded into the convolutions. torch is not needed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from midreel.errors import BadModel
from midreel.features.backbones.preprocess import Preprocessing
from midreel.io import torch_files
from midreel.io.onnx_graph import Graph
from midreel.io.safe_pickle import StoredTensor

Weights = Mapping[str, NDArray[Any]]
NUM_CLASSES = 1000
# The stages of Lite2: the number of blocks, and the stride of the first one. All sizes are those of the weights.
STAGES = ((1, 1), (3, 2), (3, 2), (4, 2), (4, 1), (5, 2), (1, 1))
_EPS = 1e-3  # of the batch norms, as in TensorFlow


def read_weights(path: Path) -> dict[str, NDArray[Any]]:
    """Return the weights in a file by name. Raise BadModel if it is damaged, or not an EfficientNet-Lite2."""
    found = torch_files.load(path).value
    if not isinstance(found, dict) or not all(isinstance(tensor, StoredTensor) for tensor in found.values()):
        raise BadModel(f"{path} does not contain weights by name, expected an EfficientNet-Lite2. Install it again.")
    weights = {name: tensor.array() for name, tensor in found.items()}
    missing = [name for name in _names() if name not in weights]
    if missing or weights["_fc.weight"].shape[0] != NUM_CLASSES:
        reason = f"it lacks {missing[0]}" if missing else f"it has {weights['_fc.weight'].shape[0]} classes"
        raise BadModel(f"{path} is not an EfficientNet-Lite2 of {NUM_CLASSES} classes: {reason}. Install it again.")
    return weights


def _names() -> list[str]:
    """Return the names of the weights of all convolutions and of the last layer."""
    blocks = range(sum(repeats for repeats, _ in STAGES))
    inner = [f"_blocks.{block}._{part}_conv.weight" for block in blocks for part in ("depthwise", "project")]
    return ["_conv_stem.weight", "_conv_head.weight", "_fc.weight", "_fc.bias", *inner]


def classifier(weights: Weights, preprocessing: Preprocessing, *, grid: int = 1) -> Graph:
    """Return the graph from prepared pixels, `pixels` (N, 3, H, W), to `logits` (N, regions, 1000).

    Args:
        weights: The weights.
        preprocessing: How pixels are normalised.
        grid: 1 gives the logits of the whole picture. Above, the logits of each cell of a grid of overlapping parts
            follow: their edges are half of the picture.
    """
    graph = Graph()
    height, width = preprocessing.crop
    pixels = graph.add("Cast", graph.input("pixels", "uint8", ["N", 3, height, width]), to=1)
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    scaled = graph.add("Mul", pixels, graph.constant(np.array(preprocessing.scale, np.float32)))
    pixels = graph.add("Div", graph.add("Sub", scaled, graph.constant(mean)), graph.constant(std))
    features = _convolved(graph, pixels, weights, "_conv_stem", "_bn0", stride=2)
    block = 0
    for repeats, first_stride in STAGES:
        for repeat in range(repeats):
            features = _block(graph, features, weights, f"_blocks.{block}", first_stride if repeat == 0 else 1)
            block += 1
    features = _convolved(graph, features, weights, "_conv_head", "_bn1")
    pooled = [graph.add("ReduceMean", features, axes=[2, 3], keepdims=0)]
    if grid > 1:
        side = (_cells(height), _cells(width))
        for top in _starts(side[0], grid):
            for left in _starts(side[1], grid):
                starts, ends = graph.ints(top, left), graph.ints(top + (side[0] + 1) // 2, left + (side[1] + 1) // 2)
                part = graph.add("Slice", features, starts, ends, graph.ints(2, 3))
                pooled.append(graph.add("ReduceMean", part, axes=[2, 3], keepdims=0))
    rows = [graph.add("Unsqueeze", part, graph.ints(1)) for part in pooled]
    joined = graph.add("Concat", *rows, axis=1)
    matrix = graph.constant(np.ascontiguousarray(weights["_fc.weight"].T), "_fc.weight")
    logits = graph.add("Add", graph.add("MatMul", joined, matrix), graph.constant(weights["_fc.bias"], "_fc.bias"))
    graph.output("logits", logits, ["N", len(pooled), NUM_CLASSES])
    return graph


def _cells(size: int) -> int:
    """Return the size of the last feature map: halved five times, rounded up.

    >>> _cells(260)
    9
    """
    return -(-size // 32)


def _starts(cells: int, grid: int) -> list[int]:
    """Return where parts of half the length start, so that they are evenly spread.

    >>> _starts(9, 3)
    [0, 2, 4]
    """
    return [round(index * (cells - (cells + 1) // 2) / (grid - 1)) for index in range(grid)]


def _block(graph: Graph, inputs: str, weights: Weights, name: str, stride: int) -> str:
    """Add an inverted bottleneck: expand, convolve each channel, project, and add the input where it fits."""
    features = inputs
    if f"{name}._expand_conv.weight" in weights:
        features = _convolved(graph, features, weights, f"{name}._expand_conv", f"{name}._bn0")
    features = _convolved(graph, features, weights, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride)
    features = _convolved(graph, features, weights, f"{name}._project_conv", f"{name}._bn2", activated=False)
    channels = weights[f"{name}._project_conv.weight"].shape[0]
    first = f"{name}._expand_conv.weight"
    width_in = weights[first].shape[1] if first in weights else weights[f"{name}._depthwise_conv.weight"].shape[0]
    return graph.add("Add", features, inputs) if stride == 1 and channels == width_in else features


def _convolved(
    graph: Graph, inputs: str, weights: Weights, name: str, norm: str, *, stride: int = 1, activated: bool = True
) -> str:
    """Add a convolution with its batch norm and, optionally, ReLU6.

    Args:
        graph: The graph.
        inputs: The name of the input.
        weights: The weights.
        name: The name of the convolution.
        norm: The name of its batch norm.
        stride: The stride.
        activated: Whether ReLU6 follows.
    """
    kernel, bias = folded(weights, name, norm)
    groups = len(kernel) if "depthwise" in name else 1
    result = graph.add(
        "Conv",
        inputs,
        graph.constant(kernel, f"{name}.weight"),
        graph.constant(bias, f"{name}.bias"),
        auto_pad="SAME_UPPER",  # as TensorFlow pads
        strides=[stride, stride],
        group=groups,
    )
    if not activated:
        return result
    zero, six = (graph.constant(np.array(number, np.float32), f"number_{number}") for number in (0, 6))
    return graph.add("Clip", result, zero, six)


def folded(weights: Weights, name: str, norm: str) -> tuple[Float[np.ndarray, "O I H W"], Float[np.ndarray, " O"]]:
    """Return the kernel and the bias of a convolution with the batch norm that follows it.

    (x ∗ k - mean) / √(var + ε) · γ + β = x ∗ (k · s) + (β - mean · s), with s = γ / √(var + ε).

    Args:
        weights: The weights.
        name: The name of the convolution.
        norm: The name of the batch norm.
    """
    scale = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + _EPS)
    kernel = weights[f"{name}.weight"] * scale[:, None, None, None]
    return kernel.astype(np.float32), (weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale).astype(
        np.float32
    )
