"""From frames to what a backbone makes one vector of: a frame, or a run of them."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import numpy as np
from jaxtyping import UInt8

from midreel.features.backbones.base import Backbone, Image

T = TypeVar("T")


def windows(frames: Iterable[tuple[float, T]], size: int) -> Iterator[tuple[float, list[T]]]:
    """Runs of `size` frames, one after the other, each with the time of its first; the last is filled up with its last.

    Of frames taken `size * rate` times a second there are as many runs as there are frames taken `rate` times a second,
    and they begin with just those, so that features of runs and of single frames share one clock.
    """
    rest = iter(frames)
    while run := list(islice(rest, size)):
        images = [image for _, image in run]
        yield run[0][0], images + images[-1:] * (size - len(images))


def prepared(
    frames: Iterable[tuple[float, Image]], backbone: Backbone
) -> Iterator[tuple[float, UInt8[np.ndarray, "..."]]]:
    """For each vector to come its time, and the pixels that it is made of as `encode_pixels` takes them in a batch."""
    pixels = ((time, backbone.prepare(image)) for time, image in frames)
    for time, run in windows(pixels, backbone.window):
        yield time, np.stack(run) if backbone.window > 1 else run[0]
