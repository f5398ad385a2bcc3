"""VideoPrism with its text encoder, in the Hugging Face format: a vector for each clip of 16 (base) or 8 frames."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from transformers import PreTrainedTokenizerFast, VideoPrismClipModel

from midreel.errors import BadBatch, BadModel
from midreel.features.backbones.base import Fingerprint, Image, hash_of_files, read_json, weight_files
from midreel.features.backbones.folder import expect_vocabulary, hash_of_vocabulary
from midreel.features.backbones.hugging_face import load_model
from midreel.features.backbones.preprocess import Preprocessing
from midreel.features.backbones.words import reading_tokenizer
from midreel.ops.devices import on_device
from midreel.types import TextFeatures


class VideoPrism:
    """The video and text encoder of a VideoPrism, in float32. A vector covers `window` frames.

    Args:
        model: The model of transformers.
        tokenizer: Its tokenizer.
        preprocessing: The preprocessing of frames.
        weights: A hash of the weights, for the fingerprint.
        source: Where the model was loaded from, for the fingerprint.
        device: The device of torch.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerFast,
        preprocessing: Preprocessing,
        *,
        weights: str,
        source: str,
        device: str,
    ) -> None:
        self._model = on_device(model.eval().requires_grad_(False), device)
        self._tokenizer, self._preprocessing, self._device = tokenizer, preprocessing, device
        vision, text = model.config.vision_config, model.config.text_config
        self.window = int(vision.num_frames)
        self._fingerprint = Fingerprint(
            backbone=(
                f"videoprism; vision {vision.num_spatial_layers}+{vision.num_temporal_layers}x{vision.hidden_size}, "
                f"{self.window} frames a vector; text {text.num_hidden_layers}x{text.hidden_size}"
            ),
            weights=weights,
            vocabulary=hash_of_vocabulary(tokenizer.get_vocab()),
            context_length=text.max_position_embeddings,
            width=vision.hidden_size,
            word_width=text.hidden_size,
            **vars(preprocessing),
            source=source,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """The weights and the settings of the backbone, without a frame rate and a dtype."""
        return self._fingerprint

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """Resize and crop an image of any size."""
        return self._preprocessing.prepare(image)

    @torch.no_grad()
    def encode_pixels(self, pixels: UInt8[np.ndarray, "N F 3 H W"]) -> Float[np.ndarray, "N E"]:
        """Return a vector for each clip of prepared images. Raise BadBatch unless a clip has `window` images."""
        if pixels.ndim != 5 or pixels.shape[1] != self.window:
            raise BadBatch(
                f"the clips have the shape {pixels.shape[1:]}, expected {self.window} frames. Use "
                f"midreel.features.backbones.frame_windows.windows."
            )
        frames = self._preprocessing.normalise(torch.from_numpy(pixels).to(self._device).flatten(0, 1))
        found = self._model.get_video_features(frames.unflatten(0, pixels.shape[:2])).pooler_output
        return found.reshape(len(pixels), -1).cpu().numpy()

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        """Prepare and encode images: a vector for each `window` images. Raise BadBatch if some are left over."""
        if not images:
            return np.empty((0, self._fingerprint.width), np.float32)
        if len(images) % self.window:
            raise BadBatch(
                f"got {len(images)} images, expected a multiple of {self.window}. Repeat the last image to fill the "
                f"last clip."
            )
        prepared = np.stack([self.prepare(image) for image in images])
        return self.encode_pixels(prepared.reshape(-1, self.window, *prepared.shape[1:]))

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Encode texts in one batch: the vectors of the words, and the sentence in the joint space."""
        if not texts:
            return []
        # Padded to one length, as in training: the token of the sentence follows the padding.
        tokens = self._tokenizer(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=self._fingerprint.context_length,
            return_tensors="pt",
        ).to(self._device)
        found = self._model.get_text_features(tokens["input_ids"], tokens["attention_mask"])
        lengths = tokens["attention_mask"].sum(1).clamp(min=1).tolist()
        return [
            # Copies, because views of one text would keep the whole batch in memory.
            TextFeatures(words=words[:length].clone().numpy(), sentence=sentence.clone().numpy())
            for words, length, sentence in zip(
                found.last_hidden_state.cpu(), lengths, found.pooler_output.cpu(), strict=True
            )
        ]


def load(folder: Path, *, device: str, source: str) -> VideoPrism:
    """Load the VideoPrism in a folder. Raise BadModel if its files do not fit together. See `load_backbone`.

    Args:
        folder: A folder in the Hugging Face format.
        device: The torch device.
        source: The name that the user gave, for the fingerprint.
    """
    if "text_config" not in read_json(folder / "config.json"):
        raise BadModel(
            f"{folder} has no text encoder, expected a VideoPrism LvT. Use google/videoprism-lvt-base-f16r288."
        )
    model = load_model(folder, VideoPrismClipModel, "VideoPrism")
    preprocessing = Preprocessing.read(folder)
    size = model.config.vision_config.image_size
    preprocessing.expect_crop(size if isinstance(size, int) else size[0], folder)
    with reading_tokenizer(folder):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, padding_side="right")
    text = model.config.text_config
    expect_vocabulary(folder, len(tokenizer), text.vocab_size)
    if text.hidden_size != model.config.vision_config.hidden_size or tokenizer.pad_token_id is None:
        raise BadModel(f"{folder}: texts and videos have different widths, or texts no padding. Download it again.")
    weights = hash_of_files(weight_files(folder))
    return VideoPrism(model, tokenizer, preprocessing, weights=weights, source=source, device=device)
