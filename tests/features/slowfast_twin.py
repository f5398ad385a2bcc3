"""A second implementation of SlowFast 8x8 R50, by the published names of its weights."""

import pickle
from collections.abc import Callable, Iterator
from io import BytesIO
from struct import pack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCKS = {2: 3, 3: 4, 4: 6, 5: 3}
INNER = {2: 64, 3: 128, 4: 256, 5: 512}
SLOW_IN = {2: 80, 3: 320, 4: 640, 5: 1280}
FAST_IN = {2: 64, 3: 256, 4: 512, 5: 1024}  # times 8
TIME = {0: {1: 1, 2: 1, 3: 1, 4: 3, 5: 3}, 1: {1: 5, 2: 3, 3: 3, 4: 3, 5: 3}}

Names = Callable[..., tuple[str, str]]  # pathway, stage, block, part -> convolution, norm


def caffe2(pathway: int, stage: int, block: int, part: str) -> tuple[str, str]:
    prefix = "t_" * pathway
    if part == "stem":
        return f"{prefix}conv1", f"{prefix}res_conv1_bn"
    if part == "fuse":
        after = "pool1" if stage == 1 else f"res{stage}_{BLOCKS[stage] - 1}_branch2c_bn"
        return f"t_{after}_subsample", f"t_{after}_subsample_bn"
    name = f"{prefix}res{stage}_{block}_branch{'1' if part == '1' else '2' + part}"
    return name, f"{name}_bn"


def pytorchvideo(pathway: int, stage: int, block: int, part: str) -> tuple[str, str]:
    if part == "fuse":
        name = f"blocks.{stage - 1}.multipathway_fusion"
        return f"{name}.conv_fast_to_slow", f"{name}.norm"
    name = f"blocks.{stage - 1}.multipathway_blocks.{pathway}"
    if part == "stem":
        return f"{name}.conv", f"{name}.norm"
    name = f"{name}.res_blocks.{block}"
    if part == "1":
        return f"{name}.branch1_conv", f"{name}.branch1_norm"
    return f"{name}.branch2.conv_{part}", f"{name}.branch2.norm_{part}"


NAMES: dict[str, Names] = {"caffe2": caffe2, "pytorchvideo": pytorchvideo}
ENDINGS = {
    "caffe2": ("_w", "_s", "_b", "_rm", "_riv"),
    "pytorchvideo": (".weight", ".weight", ".bias", ".running_mean", ".running_var"),
}


def _layers() -> Iterator[tuple[tuple[int, int, int, str], tuple[int, ...]]]:
    """Yield each convolution and the shape of its weight, for a slow pathway with 64 channels at the start."""
    for pathway, share in ((0, 1), (1, 8)):
        yield (pathway, 1, 0, "stem"), (64 // share, 3, TIME[pathway][1], 7, 7)
        for stage, inner in INNER.items():
            inner //= share
            first = SLOW_IN[stage] if pathway == 0 else FAST_IN[stage] // 8
            for block in range(BLOCKS[stage]):
                width_in = 4 * inner if block else first
                yield (pathway, stage, block, "a"), (inner, width_in, TIME[pathway][stage], 1, 1)
                yield (pathway, stage, block, "b"), (inner, inner, 1, 3, 3)
                yield (pathway, stage, block, "c"), (4 * inner, inner, 1, 1, 1)
                if block == 0:
                    yield (pathway, stage, block, "1"), (4 * inner, width_in, 1, 1, 1)
    for stage, fast in ((1, 8), (2, 32), (3, 64), (4, 128)):
        yield (1, stage, 0, "fuse"), (2 * fast, fast, 7, 1, 1)


def published_shapes(form: str, *, shrink: int = 1) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes in a file, without the last layer. `shrink` divides all numbers of channels."""
    shapes = {}
    for layer, (width_out, width_in, *kernel) in _layers():
        conv, norm = NAMES[form](*layer)
        width_out //= shrink
        weight, *others = ENDINGS[form]
        shapes[f"{conv}{weight}"] = (width_out, width_in if width_in == 3 else width_in // shrink, *kernel)
        shapes |= {f"{norm}{ending}": (width_out,) for ending in others}
    return shapes


def random_weights(form: str, *, shrink: int = 1, seed: int = 0) -> dict[str, Tensor]:
    """Return different random weights, scaled so that activations stay bounded."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in published_shapes(form, shrink=shrink).items():
        values = torch.randn(shape, generator=generator)
        if len(shape) > 1:
            values *= (2 / (values[0].numel())) ** 0.5
        else:
            values = values * 0.1 + (0 if name.endswith((ENDINGS[form][2], ENDINGS[form][3])) else 1)
        weights[name] = values
    return weights


def twin(weights: dict[str, Tensor], form: str, clips: Tensor) -> Tensor:
    """Return the vectors of clips by a SlowFast with these weights."""

    def conv_norm(x: Tensor, *layer: Any, stride: tuple[int, int, int] = (1, 1, 1)) -> Tensor:
        conv, norm = NAMES[form](*layer)
        ending, factor, offset, mean, variance = ENDINGS[form]
        weight = weights[f"{conv}{ending}"]
        x = F.conv3d(x, weight, stride=stride, padding=[size // 2 for size in weight.shape[2:]])
        of = [weights[f"{norm}{part}"][:, None, None, None] for part in (factor, offset, mean, variance)]
        return (x - of[2]) / torch.sqrt(of[3] + 1e-5) * of[0] + of[1]

    x = [clips[:, :, [0, 4, 8, 13, 17, 22, 26, 31]], clips]
    for pathway in (0, 1):
        x[pathway] = conv_norm(x[pathway], pathway, 1, 0, "stem", stride=(1, 2, 2)).relu()
        x[pathway] = F.max_pool3d(x[pathway], (1, 3, 3), (1, 2, 2), (0, 1, 1))
    for stage, num_blocks in BLOCKS.items():
        x[0] = torch.cat((x[0], conv_norm(x[1], 1, stage - 1, 0, "fuse", stride=(4, 1, 1)).relu()), 1)
        for pathway in (0, 1):
            for block in range(num_blocks):
                stride = (1, 2, 2) if stage > 2 and block == 0 else (1, 1, 1)
                inner = conv_norm(x[pathway], pathway, stage, block, "a").relu()
                inner = conv_norm(inner, pathway, stage, block, "b", stride=stride).relu()
                inner = conv_norm(inner, pathway, stage, block, "c")
                if block == 0:
                    x[pathway] = conv_norm(x[pathway], pathway, stage, block, "1", stride=stride)
                x[pathway] = (x[pathway] + inner).relu()
    return torch.cat([part.mean((2, 3, 4)) for part in x], 1)


class _Python2Pickler(pickle._Pickler):
    """Writes text and bytes as strings of Python 2, like the published pickle."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_string(self, value: str | bytes) -> None:
        data = value.encode("latin1") if isinstance(value, str) else value
        quoted = repr(data).removeprefix("b").encode() + b"\n"
        self.write(pickle.BINSTRING + pack("<i", len(data)) + data if self.bin else pickle.STRING + quoted)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def pickled_by_python2(value: object, protocol: int = 2) -> bytes:
    file = BytesIO()
    _Python2Pickler(file, protocol).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray\n", b"numpy.core.multiarray\n")
