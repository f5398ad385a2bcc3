"""SlowFast 8x8 R50 as a backbone: a vector of 2304 numbers for each clip, which describes motion. No texts."""

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

# The preprocessing of HERO and Moment-DETR: a center crop of the size used in training. At this size, the network pools
# by a plain average over its last layer.
PREPROCESSING = Preprocessing(
    image_size=224, crop=(224, 224), resample="bicubic", scale=1 / 255, mean=(0.45,) * 3, std=(0.225,) * 3
)


class SlowFastBackbone:
    """A frozen SlowFast without its classification layer, in float32.

    It was trained on clips of about two seconds, so use a rate of 0.5: one vector every two seconds.

    Args:
        network: The network, with its weights.
        weights: A hash of the weights, for the fingerprint.
        source: Where the weights were loaded from, for the fingerprint.
        device: The device of torch.
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
        """The weights and the settings of the backbone, without a frame rate and a dtype."""
        return self._fingerprint

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """Resize and crop an image of any size."""
        return PREPROCESSING.prepare(image)

    @torch.no_grad()
    def encode_pixels(self, pixels: UInt8[np.ndarray, "N F 3 H W"]) -> Float[np.ndarray, "N E"]:
        """Return a vector for each clip of prepared images. Raise BadBatch unless a clip has `window` images."""
        if pixels.shape[1] != self.window:
            raise BadBatch(
                f"the clips have {pixels.shape[1]} frames, expected {self.window}. Use "
                f"midreel.features.backbones.frame_windows.windows."
            )
        frames = PREPROCESSING.normalise(torch.from_numpy(pixels).to(self._device).flatten(0, 1))
        return self._network(frames.unflatten(0, pixels.shape[:2]).transpose(1, 2)).cpu().numpy()

    def encode_images(self, images: Sequence[Image]) -> Float[np.ndarray, "N E"]:
        """Prepare and encode images: a vector for each `window` images. Raise BadBatch if some are left over."""
        if not images:
            return np.empty((0, self._fingerprint.width), np.float32)
        if len(images) % self.window:
            raise BadBatch(
                f"got {len(images)} images, expected a multiple of {self.window}. Repeat the last image to fill the "
                f"last clip."
            )
        return self.encode_pixels(
            np.stack([self.prepare(image) for image in images]).reshape(-1, self.window, 3, *PREPROCESSING.crop)
        )

    def encode_texts(self, texts: Sequence[str]) -> list[TextFeatures]:
        """Raise BadSetting unless `texts` is empty: SlowFast does not encode texts."""
        if not texts:
            return []
        raise BadSetting(
            f"slowfast does not encode texts, expected none but got {len(texts)}. Use a CLIP or a SigLIP for texts."
        )


def load(file: Path, *, device: str, source: str) -> SlowFastBackbone:
    """Load the published weights in a file. See `load_backbone`.

    Args:
        file: The file of the published weights.
        device: The torch device.
        source: The name that the user gave, for the fingerprint.
    """
    network = SlowFast()
    fill(network, file)
    return SlowFastBackbone(network, weights=hash_of_files([file]), source=source, device=device)
