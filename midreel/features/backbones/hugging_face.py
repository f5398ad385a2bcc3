"""The common part of CLIP and SigLIP: load a folder in the Hugging Face format, and encode images and texts.

Only this module and those of the kinds of models (clip.py, siglip.py and so on) import transformers.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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
from midreel.features.backbones.base import Fingerprint, Image, hash_of_files, weight_files
from midreel.features.backbones.folder import architecture, expect_vocabulary, hash_of_vocabulary
from midreel.features.backbones.preprocess import Preprocessing
from midreel.ops.devices import on_device
from midreel.types import TextFeatures


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """The model in a folder, with its preprocessing. The subclasses of `Encoders` add the tokenizer.

    Attributes:
        folder: The folder.
        model: The model of transformers, in float32.
        preprocessing: The preprocessing of images.
        weights: A SHA-256 of the files with the weights.
    """

    folder: Path
    model: Any
    preprocessing: Preprocessing
    weights: str

    @property
    def config(self) -> Any:
        """The configuration of the model, as transformers reads it."""
        return self.model.config

    @classmethod
    def load(cls, folder: Path, model_class: Any, name: str) -> "Pretrained":
        """Load the model and the preprocessing in a folder.

        Args:
            folder: The folder.
            model_class: The class of transformers.
            name: The name of the kind of model, for error messages.

        Raises:
            BadModel: If files are missing, damaged or do not fit together.
        """
        preprocessing = Preprocessing.read(folder)
        model = load_model(folder, model_class, name)
        preprocessing.expect_crop(model.config.vision_config.image_size, folder)
        weights = hash_of_files(weight_files(folder))
        return cls(folder=folder, model=model, preprocessing=preprocessing, weights=weights)

    def expect_vocabulary(self, num_tokens: int) -> None:
        """Raise BadModel if the tokenizer has more tokens than the text encoder."""
        expect_vocabulary(self.folder, num_tokens, self.config.text_config.vocab_size)


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A batch of encoded texts.

    Attributes:
        words: The vectors of the words, padded.
        lengths: The number of words of each text.
        sentences: The vectors of the texts in the joint space.
    """

    words: Float[Tensor, "N L C"]
    lengths: Int[Tensor, " N"]
    sentences: Float[Tensor, "N E"]


class Encoders(ABC):
    """The frozen image and text encoder of one model, in float32. A backbone whose arrays are numpy's.

    Args:
        pretrained: The model.
        kind: The kind of model, for the fingerprint.
        width: The width of the joint space.
        vocabulary: The tokens and their ids, for the fingerprint.
        source: Where the model was loaded from, for the fingerprint.
        device: The device of torch.
    """

    window = 1

    def __init__(
        self,
        pretrained: Pretrained,
        *,
        kind: str,
        width: int,
        vocabulary: Mapping[str, int],
        source: str,
        device: str,
    ) -> None:
        self._model = on_device(pretrained.model.eval().requires_grad_(False), device)
        self._preprocessing = pretrained.preprocessing
        self._device = device
        text_config = pretrained.config.text_config
        self._fingerprint = Fingerprint(
            backbone=architecture(kind, text_config.to_dict(), pretrained.config.vision_config.to_dict()),
            weights=pretrained.weights,
            vocabulary=hash_of_vocabulary(vocabulary),
            context_length=text_config.max_position_embeddings,
            width=width,
            word_width=text_config.hidden_size,
            **vars(pretrained.preprocessing),
            source=source,
        )

    @abstractmethod
    def _embed_images(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N E"]:
        """Return the vectors of normalised images in the joint space."""

    @abstractmethod
    def _embed_texts(self, texts: Sequence[str]) -> Encoded:
        """Encode one or more texts."""

    @property
    def fingerprint(self) -> Fingerprint:
        """The weights and the settings of the backbone, without a frame rate and a dtype."""
        return self._fingerprint

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """Resize and crop an image of any size."""
        return self._preprocessing.prepare(image)

    @torch.no_grad()
    def encode_pixels(self, pixels: UInt8[np.ndarray, "N 3 H W"]) -> Float[np.ndarray, "N E"]:
        """Return a vector for each prepared image."""
        on_device = torch.from_numpy(pixels).to(self._device)
        return self._embed_images(self._preprocessing.normalise(on_device)).cpu().numpy()

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        """Prepare and encode images in one batch: a vector for each image."""
        if not images:
            return np.empty((0, self._fingerprint.width), np.float32)
        return self.encode_pixels(np.stack([self.prepare(image) for image in images]))

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Encode texts in one batch: the vectors of the words, and the sentence in the joint space."""
        if not texts:
            return []
        encoded = self._embed_texts(texts)
        return [
            # Copies, because views of one text would keep the whole batch in memory.
            TextFeatures(words=words[:length].clone().numpy(), sentence=sentence.clone().numpy())
            for words, length, sentence in zip(
                encoded.words.cpu(), encoded.lengths.tolist(), encoded.sentences.cpu(), strict=True
            )
        ]


def load_model(folder: Path, model_class: Any, name: str) -> Any:
    """Load the model in a folder. Raise BadModel if weights are missing, which transformers would fill at random.

    Args:
        folder: The folder.
        model_class: The class of transformers.
        name: The name of the kind of model, for error messages.
    """
    if not weight_files(folder):
        raise BadModel(f"{folder} has no weights, expected model.safetensors. Download the whole folder.")
    try:
        with _quiet_transformers():
            model, info = model_class.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
    except Exception as error:
        # The config, safetensors and torch raise errors of many classes.
        raise BadModel(
            f"{folder} cannot be loaded as a {name} ({type(error).__name__}: {error}). Download it again."
        ) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise BadModel(
            f"{weight_files(folder)[0]} lacks {len(missing)} weights of the model in config.json, such as "
            f"{missing[0]!r}. Download the whole folder again."
        )
    return model


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Suppress the log and the progress bars of transformers. `load_model` raises the problems that matter."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
