"""Resize, crop and normalise images as the preprocessor_config.json of a backbone says.

transformers does the same in one step, and warns without torchvision. Here decoding threads resize and crop, and the
device of the encoder normalises.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from midreel.errors import BadBatch, BadModel
from midreel.features.backbones.base import Image, read_json

# The largest ratio of the sides of an image. Of a longer image only the middle is resized: an image of 1 x 60,000 would
# become 224 x 13,440,000, and the center crop would keep 224 x 224 of it.
LONGEST_SHAPE = 100
# The resampling filters of Pillow, by number. A search for a sentence does not import Pillow.
_FILTERS = dict(enumerate(("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")))


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The steps from an image to the input of an encoder: resize, center crop, (pixel · scale - mean) / std.

    Attributes:
        image_size: The size after resizing: the short side, or height and width.
        crop: The height and width of the center crop.
        resample: The resampling filter of Pillow, in lower case.
        scale: The factor applied to pixel values.
        mean: The mean of each channel.
        std: The standard deviation of each channel.
    """

    image_size: int | tuple[int, int]
    crop: tuple[int, int]
    resample: str
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def read(cls, folder: Path) -> "Preprocessing":
        """Read preprocessor_config.json or, as newer versions of transformers write it, processor_config.json.

        Video encoders have a video_preprocessor_config.json instead.

        Raises:
            BadModel: If the file is missing, or images would not all get the same size.
        """
        path = folder / "video_preprocessor_config.json"
        if path.exists():
            return cls._from_settings(read_json(path), path)
        path = folder / "preprocessor_config.json"
        if path.exists() or not (folder / "processor_config.json").exists():
            return cls._from_settings(read_json(path), path)
        path = folder / "processor_config.json"
        return cls._from_settings(read_json(path).get("image_processor", {}), path)

    @classmethod
    def _from_settings(cls, settings: dict[str, Any], path: Path) -> "Preprocessing":
        try:
            image_size = _resize_target(settings["size"])
            cropped = settings.get("do_center_crop", "crop_size" in settings)
            crop = _pair(settings["crop_size"] if cropped else image_size)
            rescaled, normalised = settings.get("do_rescale", True), settings.get("do_normalize", True)
            made = cls(
                image_size=image_size,
                crop=crop,
                resample=_FILTERS[settings.get("resample", 3)],
                scale=float(settings.get("rescale_factor", 1 / 255)) if rescaled else 1.0,
                mean=tuple(map(float, settings["image_mean"])) if normalised else (0.0, 0.0, 0.0),
                std=tuple(map(float, settings["image_std"])) if normalised else (1.0, 1.0, 1.0),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadModel(
                f"{path} has no valid {error}, expected size, crop_size, image_mean and image_std of a CLIP or SigLIP. "
                f"Download it again."
            ) from error
        fits = cropped or not isinstance(image_size, int)
        if not settings.get("do_resize", True) or not fits or min(_pair(image_size)) < max(crop):
            raise BadModel(
                f"{path} resizes to {image_size} and crops to {crop if cropped else None}, expected a resize and a "
                f"crop that is not larger. Set do_resize, size and crop_size."
            )
        return made

    def expect_crop(self, size: int, folder: Path) -> None:
        """Raise BadModel unless images are cropped to the size that an encoder expects."""
        if self.crop != (size, size):
            raise BadModel(
                f"{folder}: images are cropped to {self.crop}, but the encoder expects {(size, size)}. Set crop_size."
            )

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """Resize and crop an image. Raise BadBatch if it is not a uint8 array of RGB pixels."""
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
            raise BadBatch(
                f"the image is {image.dtype} of shape {image.shape}, expected uint8 of shape (height, width, 3). "
                f"Convert it to RGB with values from 0 to 255."
            )
        from PIL import Image as Pillow

        image = self._middle(image)
        height, width = self._resized(*image.shape[:2])
        resized = Pillow.fromarray(image).resize((width, height), Pillow.Resampling[self.resample.upper()])
        top, left = (height - self.crop[0]) // 2, (width - self.crop[1]) // 2
        cropped = np.asarray(resized)[top : top + self.crop[0], left : left + self.crop[1]]
        return cropped.transpose(2, 0, 1).copy()

    def normalise(self, pixels: UInt8[Any, "N 3 H W"]) -> Float[Any, "N 3 H W"]:
        """Scale and normalise prepared pixels, a tensor of torch, on their device."""
        scaled = pixels.float().mul_(self.scale)
        mean, std = (scaled.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return scaled.sub_(mean).div_(std)

    def _middle(self, image: Image) -> Image:
        if not isinstance(self.image_size, int):
            return image  # the whole image is resized to one shape
        height, width = image.shape[:2]
        longest = LONGEST_SHAPE * min(height, width)
        top, left = max(0, height - longest) // 2, max(0, width - longest) // 2
        return image[top : top + longest, left : left + longest]

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.image_size, int):
            return self.image_size
        # The long side is truncated to an integer, not rounded, as in transformers and torchvision.
        if width <= height:
            return int(self.image_size * height / width), self.image_size
        return self.image_size, int(self.image_size * width / height)


def _resize_target(size: Any) -> int | tuple[int, int]:
    if isinstance(size, dict) and "shortest_edge" not in size:
        return _pair(size)
    return int(size["shortest_edge"] if isinstance(size, dict) else size)


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, dict):
        return int(size["height"]), int(size["width"])
    height, width = size if isinstance(size, tuple) else (size, size)
    return int(height), int(width)
