"""Group frames into the input of one vector: a single frame, or a window of consecutive frames."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import numpy as np
from jaxtyping import UInt8

from midreel.features.backbones.base import Backbone, Image

T = TypeVar("T")


def windows(frames: Iterable[tuple[float, T]], size: int) -> Iterator[tuple[float, list[T]]]:
    """Yield consecutive windows of `size` frames, each with the time of its first frame.

    The last window repeats its last frame until it is full. Windows of frames at the rate `size * rate` start at the
    same times as single frames at the rate `rate`, so features of both kinds can be joined.

    Examples:
        >>> list(windows([(0.0, "a"), (0.5, "b"), (1.0, "c")], size=2))
        [(0.0, ['a', 'b']), (1.0, ['c', 'c'])]
    """
    rest = iter(frames)
    while window := list(islice(rest, size)):
        images = [image for _, image in window]
        yield window[0][0], images + images[-1:] * (size - len(images))


def prepared(
    frames: Iterable[tuple[float, Image]], backbone: Backbone
) -> Iterator[tuple[float, UInt8[np.ndarray, "..."]]]:
    """Yield the time and the pixels of each vector. A stack of such pixels is the input of `encode_pixels`."""
    pixels = ((time, backbone.prepare(image)) for time, image in frames)
    for time, window in windows(pixels, backbone.window):
        yield time, np.stack(window) if backbone.window > 1 else window[0]
