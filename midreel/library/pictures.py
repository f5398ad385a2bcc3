"""Pictures to search with: image files, and frames of videos."""

import warnings
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from midreel.errors import UnreadableVideo
from midreel.io.files import open_regular

# Formats that Pillow decodes by itself. For EPS it would start Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP", "TIFF", "JPEG2000", "PPM")


def read_image(path: Path) -> UInt8[np.ndarray, "H W 3"]:
    """Return the pixels of an image file, rotated as its EXIF data says. Raise UnreadableVideo if it has none."""
    from PIL import Image, ImageOps

    try:
        with BufferedReader(open_regular(path)) as file, warnings.catch_warnings():
            # Pillow warns of more than 89 million pixels before it decodes them. That is too many.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    except FileNotFoundError as error:
        raise UnreadableVideo(f"{path} does not exist, expected an image or VIDEO@TIME. Check the path.") from error
    except Exception as error:  # Pillow's decoders raise any exception for a damaged image
        raise UnreadableVideo(
            f"{path} is not a readable image ({str(error) or type(error).__name__}), expected an image or VIDEO@TIME, "
            f"such as film.mp4@1:30"
        ) from error


def read_frame(path: Path, at: float) -> Any:
    """Return the pixels that a video shows at a second. Raise UnreadableVideo if it cannot be decoded."""
    from midreel.media.decode import frames_at

    return frames_at(path, [at])[0][1]
