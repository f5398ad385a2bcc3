"""SlowFast 8x8 R50 as a backbone: a vector of 2304 numbers for each clip, by which motion can be told; no texts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8

from midreel.errors import BadBatch, BadSetting
from midreel.features.backbones.base import Fingerprint, Image, hash_of_files
from midreel.features.backbones.preprocess import Preprocessing
from midreel.features.backbones.slowfast_net import NUM_FRAMES, SlowFast
from midreel.features.backbones.slowfast_weights import fill
from midreel.ops.devices import on_device
from midreel.types import TextFeatures

# As the features of HERO and Moment-DETR were made: the middle of the frame at the size of the training, where one
# average over the last layer is all that the network's own pooling does.
PREPROCESSING = Preprocessing(
    image_size=224, crop=(224, 224), resample="bicubic", scale=1 / 255, mean=(0.45,) * 3, std=(0.225,) * 3
)


class SlowFastBackbone:
    """The network before its classes, frozen, computing in float32.

    It was trained on clips of about two seconds, so a vector every two seconds (a rate of 0.5) is what it sees best.
    """

    window = NUM_FRAMES

    def __init__(self, network: SlowFast, *, weights: str, source: str, device: str) -> None:
        self._network = on_device(network.eval().requires_grad_(False), device)
        self._device = device
        self._fingerprint = Fingerprint(
            backbone=f"slowfast, resnet 50, 8x8, {NUM_FRAMES} frames a vector",
            weights=weights,
            width=network.width_out,
            **vars(PREPROCESSING),
            source=source,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        return self._fingerprint

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        return PREPROCESSING.prepare(image)

    @torch.no_grad()
    def encode_pixels(self, pixels: UInt8[np.ndarray, "N F 3 H W"]) -> Float[np.ndarray, "N E"]:
        if pixels.shape[1] != self.window:
            raise BadBatch(
                f"clips of {pixels.shape[1]} frames, expected {self.window}; take {self.window} from one vector to the "
                f"next: midreel.features.backbones.frame_windows.windows"
            )
        frames = PREPROCESSING.normalise(torch.from_numpy(pixels).to(self._device).flatten(0, 1))
        return self._network(frames.unflatten(0, pixels.shape[:2]).transpose(1, 2)).cpu().numpy()

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        if not images:
            return np.empty((0, self._fingerprint.width), np.float32)
        if len(images) % self.window:
            raise BadBatch(
                f"{len(images)} images, expected a multiple of {self.window}, for so many make one vector; "
                f"repeat the last one until they do"
            )
        return self.encode_pixels(
            np.stack([self.prepare(image) for image in images]).reshape(-1, self.window, 3, *PREPROCESSING.crop)
        )

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        if not texts:
            return []
        raise BadSetting(
            f"slowfast was asked to read {len(texts)} texts, expected none, for it sees videos only; "
            f"read them with a CLIP or a SigLIP"
        )


def load(file: Path, *, device: str, source: str) -> SlowFastBackbone:
    """The network with the published weights in `file`."""
    network = SlowFast()
    fill(network, file)
    return SlowFastBackbone(network, weights=hash_of_files([file]), source=source, device=device)
