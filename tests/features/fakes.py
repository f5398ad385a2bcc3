"""A backbone without weights, and random features with its fingerprint."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8

from midreel.features.backbones.base import Fingerprint, Image
from midreel.types import TextFeatures, VideoFeatures

WORD_WIDTH, FRAME_RATE = 6, 2.0
FINGERPRINT = Fingerprint(
    backbone="fake",
    weights="0" * 64,
    vocabulary="1" * 64,
    context_length=16,
    width=4,
    word_width=WORD_WIDTH,
    image_size=8,
    crop=(8, 8),
    resample="bicubic",
    scale=1 / 255,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
    frame_rate=FRAME_RATE,
    dtype="float32",
    source="local-dir:fake",
)


class FakeBackbone:
    """Encodes an image as its mean colours and their sum, and a text as its letters."""

    window = 1

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []
        self.fingerprint = FINGERPRINT

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        return image.transpose(2, 0, 1).copy()

    def encode_pixels(self, pixels: UInt8[np.ndarray, "N 3 H W"]) -> Float[np.ndarray, "N E"]:
        self.batch_sizes.append(len(pixels))
        colours = pixels.mean((2, 3), dtype=np.float32)
        return np.concatenate((colours, colours.sum(1, keepdims=True)), 1)

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        return self.encode_pixels(np.stack([self.prepare(image) for image in images]))

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        self.batch_sizes.append(len(texts))
        if any("bad" in text for text in texts):
            raise RuntimeError("a text that the tokenizer refuses")
        letters = [np.array([ord(letter) for letter in f"^{text}$"], np.float32) for text in texts]
        return [
            TextFeatures(words=np.repeat(row[:, None], WORD_WIDTH, 1), sentence=np.repeat(row[:1], 4) + len(row))
            for row in letters
        ]


def image_of(value: int) -> Image:
    return np.full((8, 8, 3), value, np.uint8)


def video_features(num_frames: int = 5, *, seed: int = 0) -> VideoFeatures:
    generator = torch.Generator().manual_seed(seed)
    return VideoFeatures(
        frames=torch.randn(num_frames, FINGERPRINT.width, generator=generator).numpy(),
        times=(np.arange(num_frames) / FRAME_RATE).astype(np.float32),
        duration=num_frames / 2,
    )


def text_features(num_words: int = 3, *, seed: int = 0) -> TextFeatures:
    generator = torch.Generator().manual_seed(seed)
    return TextFeatures(
        words=torch.randn(num_words, WORD_WIDTH, generator=generator).numpy(),
        sentence=torch.randn(FINGERPRINT.width, generator=generator).numpy(),
    )
