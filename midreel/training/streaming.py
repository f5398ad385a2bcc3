"""Features that stay in their store until a batch needs them, for datasets that do not fit in memory.

A streamed video is read and prepared again in every epoch, with the same bits. Reading overlaps with the training step:
`ahead` reads the next batch meanwhile.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar, overload, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from midreel.methods.base import Method
from midreel.methods.batches import VideoBatch
from midreel.types import TextFeatures, VideoFeatures

# Limits of one call of `prepare_videos`, by measurement. Larger batches leave the cache of a CPU and gain nothing.
MAX_VIDEOS_AT_ONCE = 32
MAX_PADDED_VALUES = 1 << 22  # 16 MB of float32

# A split that needs more than this share of the memory is streamed. The rest is for the model and its activations.
SHARE_OF_MEMORY = 0.5

Key = TypeVar("Key")
Item = TypeVar("Item")


@runtime_checkable
class FeatureSource(Protocol):
    """A provider of features by id, such as a feature store."""

    def video(self, video_id: str) -> VideoFeatures:
        """Return the features of a video."""

    def text(self, query_id: str) -> TextFeatures:
        """Return the features of a query."""


class StreamedVideos:
    """Prepared videos that are read from a source whenever they are selected, like a `VideoBatch` of all of them.

    Args:
        method: The method that prepares the videos.
        source: The features of the videos, by id.
        video_ids: The ids of the videos, in order.
    """

    def __init__(self, method: Method, source: FeatureSource, video_ids: Sequence[str]) -> None:
        self._method, self._source, self._video_ids = method, source, video_ids

    def __len__(self) -> int:
        return len(self._video_ids)

    def __getitem__(self, videos: Int[Tensor, " N"]) -> VideoBatch:
        """Return the videos with these numbers."""
        frames = (frames_of(self._source.video(self._video_ids[number])) for number in videos.tolist())
        return VideoBatch.join(prepared(self._method, frames), len(videos))


class StreamedTexts(Sequence[TextFeatures]):
    """The features of queries, read from a source whenever they are selected.

    Args:
        source: The features of the queries, by id.
        query_ids: The ids of the queries, in order.
    """

    def __init__(self, source: FeatureSource, query_ids: Sequence[str]) -> None:
        self._source, self._query_ids = source, query_ids

    def __len__(self) -> int:
        return len(self._query_ids)

    @overload
    def __getitem__(self, queries: int) -> TextFeatures: ...
    @overload
    def __getitem__(self, queries: slice) -> "StreamedTexts": ...
    def __getitem__(self, queries: int | slice) -> "TextFeatures | StreamedTexts":
        """Return the features of a query, or a part of the sequence."""
        if isinstance(queries, slice):
            return StreamedTexts(self._source, self._query_ids[queries])
        return as_tensors(self._source.text(self._query_ids[queries]))


def frames_of(features: VideoFeatures) -> Float[Tensor, "T C"]:
    """Return the frames of a video in single precision."""
    return torch.as_tensor(features.frames).float()


def as_tensors(text: TextFeatures) -> TextFeatures:
    """Return the features of a text as tensors."""
    teacher = None if text.teacher is None else torch.as_tensor(text.teacher)
    return TextFeatures(words=torch.as_tensor(text.words), sentence=torch.as_tensor(text.sentence), teacher=teacher)


def prepared(method: Method, videos: Iterable[Float[Tensor, "T C"]]) -> Iterator[VideoBatch]:
    """Prepare videos of different lengths in padded batches.

    The result has the same bits as one call of `prepare_videos` for each video.
    """
    for group in _groups(videos):
        num_frames = torch.tensor([len(frames) for frames in group])
        yield method.prepare_videos(pad_sequence(group, batch_first=True), num_frames)


def _groups(videos: Iterable[Float[Tensor, "T C"]]) -> Iterator[list[Tensor]]:
    """Group consecutive videos. A video that exceeds the limit by itself is a group of its own."""
    group: list[Tensor] = []
    for frames in videos:
        grown = [*group, frames]
        padded = len(grown) * max(each.numel() for each in grown)
        one_width = frames.shape[1] == grown[0].shape[1]  # VideoBatch.join reports the others
        if group and (len(grown) > MAX_VIDEOS_AT_ONCE or padded > MAX_PADDED_VALUES or not one_width):
            yield group
            grown = [frames]
        group = grown
    if group:
        yield group


def fits_in_memory(num_bytes: int) -> bool:
    """Return whether this process may use `num_bytes` of memory for features.

    The processes that `torchrun` starts on this machine share the memory.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return num_bytes <= SHARE_OF_MEMORY * memory / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def ahead(function: Callable[[Key], Item], keys: Iterable[Key]) -> Iterator[Item]:
    """Iterate over `function(key)` for each key. A thread computes the next result meanwhile."""
    with ThreadPoolExecutor(1, "read features") as pool:
        future = None
        for key in keys:
            following = pool.submit(function, key)
            if future is not None:
                yield future.result()
            future = following
        if future is not None:
            yield future.result()
