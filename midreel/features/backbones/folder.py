"""A folder in the Hugging Face format, read without torch: its config with all defaults, and its weights.

The weights are memory-mapped: a search encodes a text, and never reads the weights of the image encoder.
"""

import hashlib
import json
import math
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from midreel.errors import BadModel
from midreel.features.backbones.base import read_json

# What transformers assumes for a field that config.json leaves out.
_TEXT: dict[str, dict[str, Any]] = {
    "clip": {
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "eos_token_id": 49407,
    },
    "siglip": {
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
}
_VISION: dict[str, dict[str, Any]] = {
    "clip": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 32,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    },
    "siglip": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
}
_JOINT_WIDTH = 512  # of CLIP
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LARGEST_HEADER = 100_000_000  # bytes, as in the safetensors library


def read_config(folder: Path, kind: str) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the config of the texts, the config of the images, and the width of the joint space.

    Args:
        folder: The folder.
        kind: "clip" or "siglip".

    Raises:
        BadModel: If config.json is missing or damaged.
    """
    config = read_json(folder / "config.json")
    text, vision = (
        _part(config, name, defaults[kind]) for name, defaults in (("text_config", _TEXT), ("vision_config", _VISION))
    )
    if kind == "clip":
        return text, vision, config.get("projection_dim") or _JOINT_WIDTH
    text["projection_size"] = text.get("projection_size") or text["hidden_size"]
    return text, vision, vision["hidden_size"]


def _part(config: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return one part of a config. In files before transformers 4.27, `text_config_dict` overrides `text_config`."""
    found = {**defaults, **(config.get(name) or {})}
    older = config.get(f"{name}_dict")
    return found if older is None else {**found, **defaults, **older}


def architecture(kind: str, text: Mapping[str, Any], vision: Mapping[str, Any]) -> str:
    """Describe a model for its fingerprint. The same weights with another activation are another backbone.

    Args:
        kind: "clip" or "siglip".
        text: The config of the texts.
        vision: The config of the images.
    """
    return f"{kind}; vision {_layers(vision)}, patch {vision['patch_size']}; text {_layers(text)}"


def _layers(config: Mapping[str, Any]) -> str:
    return (
        f"{config['num_hidden_layers']}x{config['hidden_size']}, {config['num_attention_heads']} heads, "
        f"{config['hidden_act']}, eps {config['layer_norm_eps']:g}"
    )


def hash_of_vocabulary(vocabulary: Mapping[str, int]) -> str:
    """Return a hash of the tokens in the order of their ids.

    The tokens imply the merges, and do not depend on the version of the tokenizer files.
    """
    return hashlib.sha256(json.dumps(sorted(vocabulary, key=vocabulary.__getitem__)).encode()).hexdigest()


# ---------------------------------------------------------------- weights


class Weights(Mapping[str, NDArray[Any]]):
    """The weights in safetensors files, by name, as float32. Only what is used is read from disk.

    The safetensors library would copy each weight into memory.

    Args:
        files: The files. Each has weights of its own.

    Raises:
        BadModel: If a file is damaged or truncated.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._found: dict[str, tuple[memoryview, str, tuple[int, ...]]] = {}
        for path in files:
            try:
                self._found |= _entries(path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise BadModel(
                    f"{path} cannot be read ({type(error).__name__}: {error}). It may be truncated: download it again."
                ) from error

    def __getitem__(self, name: str) -> NDArray[Any]:
        content, kind, shape = self._found[name]
        array = np.frombuffer(content, _FLOATS[kind])
        if kind == "BF16":  # the upper half of a float32
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32, copy=False).reshape(shape)

    def __iter__(self) -> Any:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def expect(self, shapes: Mapping[str, tuple[int, ...]], file: Path) -> None:
        """Raise BadModel unless these weights exist and have these shapes. Nothing is read from disk.

        Args:
            shapes: The shapes of the weights, by name.
            file: The file with the weights, for the message.
        """
        found = {name: self._found[name][2] if name in self._found else None for name in shapes}
        misfits = [name for name, shape in shapes.items() if found[name] != shape]
        if misfits:
            first = misfits[0]
            raise BadModel(
                f"{file} does not fit its config.json in {len(misfits)} weights: {first!r} is {found[first]}, expected "
                f"{shapes[first]}. Download the whole folder again."
            )


def _entries(path: Path) -> dict[str, tuple[memoryview, str, tuple[int, ...]]]:
    """Return the bytes, type and shape of each weight of floats in a safetensors file."""
    with path.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    length = int.from_bytes(content[:8], "little")
    if length > min(_LARGEST_HEADER, len(content) - 8):
        raise ValueError(f"its header has {length} bytes")
    header, data = json.loads(bytes(content[8 : 8 + length])), content[8 + length :]
    found = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _FLOATS:  # the positions of old CLIPs are integers
            continue
        (start, end), shape = entry["data_offsets"], tuple(entry["shape"])
        size = math.prod(shape) * np.dtype(_FLOATS[entry["dtype"]]).itemsize
        if not 0 <= start <= end <= len(data) or end - start != size:
            raise ValueError(f"{name} has {end - start} bytes from {start}, expected {size} within {len(data)}")
        found[name] = (data[start:end], entry["dtype"], shape)
    return found


def expect_joint_space(folder: Path, text: Mapping[str, Any], vision: Mapping[str, Any]) -> None:
    """Raise BadModel unless a SigLIP projects texts and images into one space.

    Args:
        folder: The folder, for messages.
        text: The config of the texts.
        vision: The config of the images.
    """
    texts, images, pooled = text["projection_size"], vision["hidden_size"], vision.get("vision_use_head", True)
    if texts != images or not pooled:
        raise BadModel(
            f"{folder}: the width of texts is {texts} and the width of images {images if pooled else None}, expected "
            f"the same. Use a SigLIP with both heads."
        )


def expect_vocabulary(folder: Path, num_tokens: int, known: int) -> None:
    """Raise BadModel if the tokenizer has more tokens than the text encoder.

    Args:
        folder: The folder, for messages.
        num_tokens: The number of tokens of the tokenizer.
        known: The number of tokens of the text encoder.
    """
    if num_tokens > known:
        raise BadModel(
            f"{folder}: the tokenizer has {num_tokens} tokens, but the text encoder knows {known}. Download the whole "
            f"folder again."
        )
