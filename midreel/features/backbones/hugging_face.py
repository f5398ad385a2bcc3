"""What all encoders in the Hugging Face format share: reading their folders with care, and holding them frozen.

Only this file and those of the encoders, clip.py and siglip.py, import transformers.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from transformers.utils import logging

from midreel.errors import BadModel
from midreel.features.backbones.base import Fingerprint, Image, weight_files
from midreel.features.backbones.preprocess import Preprocessing
from midreel.ops.devices import on_device
from midreel.types import TextFeatures


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A batch of texts: the words, of which the first `lengths` are real, and the whole texts in the joint space."""

    words: Float[Tensor, "N L C"]
    lengths: Int[Tensor, " N"]
    sentences: Float[Tensor, "N E"]


class Encoders(ABC):
    """An image and a text encoder of one model, frozen, computing in float32."""

    window = 1

    def __init__(self, model: Any, preprocessing: Preprocessing, fingerprint: Fingerprint, *, device: str) -> None:
        self._model = on_device(model.eval().requires_grad_(False), device)
        self._preprocessing = preprocessing
        self._fingerprint = fingerprint
        self._device = device

    @abstractmethod
    def _embed_images(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N E"]:
        """Normalised images in the joint space."""

    @abstractmethod
    def _embed_texts(self, texts: Sequence[str]) -> Encoded:
        """At least one text, through the text encoder."""

    @property
    def fingerprint(self) -> Fingerprint:
        return self._fingerprint

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        return self._preprocessing.prepare(image)

    @torch.no_grad()
    def encode_pixels(self, pixels: UInt8[np.ndarray, "N 3 H W"]) -> Float[np.ndarray, "N E"]:
        on_device = torch.from_numpy(pixels).to(self._device)
        return self._embed_images(self._preprocessing.normalise(on_device)).cpu().numpy()

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        if not images:
            return np.empty((0, self._fingerprint.width), np.float32)
        return self.encode_pixels(np.stack([self.prepare(image) for image in images]))

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        if not texts:
            return []
        encoded = self._embed_texts(texts)
        return [
            # A copy, so that keeping one sentence does not keep its whole batch.
            TextFeatures(words=words[:length].clone().numpy(), sentence=sentence.clone().numpy())
            for words, length, sentence in zip(
                encoded.words.cpu(), encoded.lengths.tolist(), encoded.sentences.cpu(), strict=True
            )
        ]


def load_model(folder: Path, model_class: Any, name: str) -> Any:
    """The model in `folder`, all of it: transformers would fill gaps with random weights."""
    if not weight_files(folder):
        raise BadModel(f"{folder} holds no weights, expected model.safetensors; download the folder as a whole")
    try:
        with _quietly():
            model, info = model_class.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
    except Exception as error:
        # transformers passes on whatever its config, safetensors or torch raise.
        raise BadModel(
            f"{folder} cannot be loaded as a {name} ({type(error).__name__}: {error}); download it again"
        ) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadModel(
            f"{weight_files(folder)[0]} lacks {len(missing)} weights that config.json asks for, such as "
            f"{missing[0]!r}; keep the two together"
        )
    return model


@contextmanager
def reading_tokenizer(folder: Path) -> Iterator[None]:
    """Says of which folder the tokenizer is that cannot be loaded: the libraries raise whatever they please."""
    try:
        yield
    except Exception as error:
        raise BadModel(
            f"the tokenizer in {folder} cannot be loaded ({type(error).__name__}: {error}); download it again"
        ) from error


def expect_fit(folder: Path, config: Any, num_tokens: int, preprocessing: Preprocessing) -> None:
    """Refuses files that do not belong together."""
    size = config.vision_config.image_size
    if preprocessing.crop != (size, size):
        raise BadModel(
            f"{folder}: images are cropped to {preprocessing.crop}, the encoder takes {(size, size)}; set crop_size"
        )
    if num_tokens > config.text_config.vocab_size:
        raise BadModel(
            f"{folder}: the tokenizer has {num_tokens} tokens, the text encoder knows "
            f"{config.text_config.vocab_size}; keep the two together"
        )


def architecture(name: str, config: Any) -> str:
    """The model in words, for its fingerprint: what weights compute with another activation is something else."""
    text, vision = config.text_config, config.vision_config
    return f"{name}; vision {_layers(vision)}, patch {vision.patch_size}; text {_layers(text)}"


def _layers(config: Any) -> str:
    return (
        f"{config.num_hidden_layers}x{config.hidden_size}, {config.num_attention_heads} heads, {config.hidden_act}, "
        f"eps {config.layer_norm_eps:g}"
    )


def hash_of_vocabulary(vocabulary: dict[str, int]) -> str:
    """Of the tokens in order, which imply the merges. Their files differ from one version to the next, they do not."""
    return hashlib.sha256(json.dumps(sorted(vocabulary, key=vocabulary.__getitem__)).encode()).hexdigest()


@contextmanager
def _quietly() -> Iterator[None]:
    """What matters of what transformers says while it loads is checked and raised; stderr belongs to whoever called."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
