from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from midreel.errors import BadModel
from midreel.features.backbones.efficientnet import STAGES, classifier, folded, read_weights
from midreel.features.backbones.preprocess import Preprocessing
from tests.features.tiny_offline import random_classifier, save_classifier

PREPROCESSING = Preprocessing(
    image_size=(70, 70), crop=(70, 70), resample="bicubic", scale=1.0, mean=(127.0,) * 3, std=(128.0,) * 3
)


def same_padded(inputs: Tensor, kernel: Tensor, stride: int) -> Tensor:
    """Convolve with the padding of TensorFlow: more at the end if it cannot be equal. Depthwise if the kernel is."""
    sizes = [max((-(-size // stride) - 1) * stride + kernel.shape[-1] - size, 0) for size in inputs.shape[-2:]]
    (top, left) = (size // 2 for size in sizes)
    padded = F.pad(inputs, (left, sizes[1] - left, top, sizes[0] - top))
    return F.conv2d(padded, kernel, stride=stride, groups=inputs.shape[1] // kernel.shape[1])


def slow_features(weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """The network in torch, with its batch norms as layers of their own."""

    def layer(inputs: Tensor, name: str, norm: str, stride: int = 1) -> Tensor:
        found = same_padded(inputs, weights[f"{name}.weight"], stride)
        mean, var = weights[f"{norm}.running_mean"], weights[f"{norm}.running_var"]
        return F.batch_norm(found, mean, var, weights[f"{norm}.weight"], weights[f"{norm}.bias"], eps=1e-3)

    features = F.relu6(layer((pixels.float() - 127) / 128, "_conv_stem", "_bn0", 2))
    block = 0
    for repeats, first_stride in STAGES:
        for repeat in range(repeats):
            name, inputs, stride = f"_blocks.{block}", features, first_stride if repeat == 0 else 1
            if f"{name}._expand_conv.weight" in weights:
                features = F.relu6(layer(features, f"{name}._expand_conv", f"{name}._bn0"))
            features = F.relu6(layer(features, f"{name}._depthwise_conv", f"{name}._bn1", stride))
            features = layer(features, f"{name}._project_conv", f"{name}._bn2")
            features = features + inputs if features.shape == inputs.shape else features
            block += 1
    return F.relu6(layer(features, "_conv_head", "_bn1"))


@pytest.mark.parametrize("zipped", [False, True])
def test_the_graph_computes_what_torch_does(tmp_path: Path, zipped: bool) -> None:
    weights = random_classifier()
    pixels = torch.randint(0, 256, (2, 3, 70, 70), dtype=torch.uint8)
    graph = classifier(read_weights(save_classifier(tmp_path, zipped=zipped)), PREPROCESSING, grid=2)
    (found,) = graph.session(1).run(["logits"], {"pixels": pixels.numpy()})
    features = slow_features(weights, pixels)
    assert features.shape[-2:] == (3, 3)
    parts = [features, *(features[..., top : top + 2, left : left + 2] for top in (0, 1) for left in (0, 1))]
    for number, part in enumerate(parts):
        expected = part.mean((2, 3)) @ weights["_fc.weight"].T + weights["_fc.bias"]
        np.testing.assert_allclose(found[:, number], expected.numpy(), atol=2e-4)


def test_the_whole_picture_only() -> None:
    graph = classifier({name: weight.numpy() for name, weight in random_classifier().items()}, PREPROCESSING)
    (found,) = graph.session(1).run(["logits"], {"pixels": np.zeros((1, 3, 70, 70), np.uint8)})
    assert found.shape == (1, 1, 1000)


def test_a_batch_norm_is_folded_into_its_convolution() -> None:
    numbers = {"weight": 2.0, "bias": 1.0, "running_mean": 3.0, "running_var": 4.0 - 1e-3}
    weights = {f"bn.{name}": np.array([value], np.float32) for name, value in numbers.items()}
    kernel, bias = folded({"conv.weight": np.full((1, 1, 1, 1), 5, np.float32), **weights}, "conv", "bn")
    assert kernel.item() == pytest.approx(5)  # 5 · 2 / √4
    assert bias.item() == pytest.approx(-2)  # 1 - 3 · 2 / √4


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(b"nothing")
    with pytest.raises(BadModel):
        read_weights(path)
    torch.save([1], path)
    with pytest.raises(BadModel):
        read_weights(path)
    weights = random_classifier()
    torch.save({name: weight for name, weight in weights.items() if name != "_fc.bias"}, path)
    with pytest.raises(BadModel, match=r"_fc\.bias"):
        read_weights(path)
    torch.save(weights | {"_fc.weight": torch.zeros(10, 16)}, path)
    with pytest.raises(BadModel, match="10 classes"):
        read_weights(path)
