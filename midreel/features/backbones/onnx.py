"""CLIP and SigLIP computed by onnxruntime, from the same files as with torch, but without torch.

Each encoder is made when it is first used: a search needs the text encoder only.
"""

import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, UInt8

from midreel.errors import BadModel
from midreel.features.backbones import towers
from midreel.features.backbones.base import Fingerprint, Image, hash_of_files, read_json, weight_files
from midreel.features.backbones.folder import (
    Weights,
    architecture,
    expect_joint_space,
    expect_vocabulary,
    hash_of_vocabulary,
    read_config,
)
from midreel.features.backbones.preprocess import Preprocessing
from midreel.features.backbones.words import ClipWords, SiglipWords, expect_clip_eos
from midreel.types import TextFeatures

Kind = Literal["clip", "siglip"]
KINDS: tuple[Kind, ...] = ("clip", "siglip")
_SMALL = 2**20  # weights of a text encoder; to wake threads takes longer than to compute a sentence with fewer
INT8_IMAGES = "; images in int8"  # the end of `backbone` in the fingerprint, because such vectors differ


def problem(folder: Path) -> str:
    """Return why onnxruntime cannot compute the model in a folder, or "" if it can.

    Raises:
        BadModel: If config.json is missing or damaged.
    """
    kind = read_json(folder / "config.json").get("model_type")
    if kind not in KINDS:
        return f"the model_type is {kind!r}"
    text, vision, _ = read_config(folder, kind)
    unknown = [part["hidden_act"] for part in (text, vision) if part["hidden_act"] not in towers.ACTIVATIONS]
    if unknown:
        return f"the activation is {unknown[0]!r}"
    files = weight_files(folder)
    if files and files[0].suffix != ".safetensors":
        return f"{files[0].name} is not a safetensors file"
    return ""


class Onnx:
    """The image and text encoder of a CLIP or SigLIP, in float32. A backbone, and safe to use from several threads.

    Args:
        folder: A folder in the Hugging Face format.
        source: Where the model was loaded from, for the fingerprint.
        int8_images: Compute images with weights of eight bits. Their vectors differ, and so does the fingerprint.
        int8_texts: Compute texts with weights of eight bits.
        threads: The number of threads. 0: one for each core.

    Raises:
        BadModel: If files are missing, damaged or do not fit together.
    """

    window = 1

    def __init__(
        self, folder: Path, *, source: str = "", int8_images: bool = False, int8_texts: bool = False, threads: int = 0
    ) -> None:
        self._kind: Kind = read_json(folder / "config.json")["model_type"]
        self._text, self._vision, self._width = read_config(folder, self._kind)
        self._folder, self._threads = folder, threads
        self._int8_images, self._int8_texts = int8_images, int8_texts
        self._preprocessing = Preprocessing.read(folder)
        self._preprocessing.expect_crop(self._vision["image_size"], folder)
        self._files = weight_files(folder)
        if not self._files:
            raise BadModel(f"{folder} has no weights, expected model.safetensors. Download the whole folder.")
        self._words = self._tokenizer()
        self._weights = Weights(self._files)
        self._weights.expect(towers.shapes(self._kind, self._text, self._vision, self._width), self._files[0])
        self._loading = threading.Lock()
        self._fingerprint = Fingerprint(
            backbone=architecture(self._kind, self._text, self._vision) + INT8_IMAGES * int8_images,
            weights=hash_of_files(self._files),
            vocabulary=hash_of_vocabulary(self._words.vocabulary),
            context_length=self._text["max_position_embeddings"],
            width=self._width,
            word_width=self._text["hidden_size"],
            **vars(self._preprocessing),
            source=source,
        )

    def _tokenizer(self) -> ClipWords | SiglipWords:
        length = self._text["max_position_embeddings"]
        if self._kind == "clip":
            words = ClipWords(self._folder, length)
            expect_vocabulary(self._folder, len(words), self._text["vocab_size"])
            expect_clip_eos(self._folder, self._text["eos_token_id"], words.ids("a"), words.sos, words.eos)
            return words
        expect_joint_space(self._folder, self._text, self._vision)
        siglip = SiglipWords(self._folder, length)
        expect_vocabulary(self._folder, len(siglip), self._text["vocab_size"])
        return siglip

    @property
    def fingerprint(self) -> Fingerprint:
        """The weights and the settings of the backbone, without a frame rate and a dtype."""
        return self._fingerprint

    # ------------------------------------------------------------ images

    @cached_property
    def _images(self) -> Any:
        tower = towers.image_tower(self._kind, self._vision, self._weights, self._preprocessing, int8=self._int8_images)
        return tower.session(self._threads)

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """Resize and crop an image of any size."""
        return self._preprocessing.prepare(image)

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N 3 H W"]) -> Float[np.ndarray, "N E"]:
        """Return a vector for each prepared image."""
        with self._loading:
            session = self._images
        found: Float[np.ndarray, "N E"] = session.run(["vectors"], {"pixels": pixels})[0]
        return found

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        """Prepare and encode images in one batch: a vector for each image."""
        if not images:
            return np.empty((0, self._width), np.float32)
        return self.encode_pixels(np.stack([self.prepare(image) for image in images]))

    # ------------------------------------------------------------ texts

    @cached_property
    def _texts(self) -> Any:
        tower = towers.text_tower(self._kind, self._text, self._weights, int8=self._int8_texts)
        weights = self._text["num_hidden_layers"] * self._text["hidden_size"] * self._text["intermediate_size"]
        return tower.session(1 if weights < _SMALL else self._threads)

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Encode texts in one batch: the vectors of the words, and the sentence in the joint space."""
        if not texts:
            return []
        with self._loading:
            session = self._texts
        ids = [self._words.ids(text) for text in texts]
        lengths = np.array([len(row) for row in ids])
        if isinstance(self._words, ClipWords):
            # A token attends to earlier tokens only, so it does not matter what follows [EOS].
            tokens = np.full((len(ids), lengths.max()), self._words.eos, np.int64)
            for row, found in zip(tokens, ids, strict=True):
                row[: len(found)] = found
            inputs = {"tokens": tokens, "last": lengths - 1}
        else:
            inputs = {"tokens": np.array([self._words.padded(row) for row in ids])}
        words, sentences = session.run(["words", "sentences"], inputs)
        return [
            # Copies, because views of one text would keep the whole batch in memory.
            TextFeatures(words=of[:length].copy(), sentence=sentence.copy())
            for of, length, sentence in zip(words, lengths, sentences, strict=True)
        ]
