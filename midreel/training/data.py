"""A split in memory: prepared videos and query features, as training and evaluation use them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from midreel.datasets.dataset import Dataset
from midreel.errors import BadBatch, BadSetting
from midreel.methods.base import Method, join_texts
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.types import Query, Split, TextFeatures, VideoFeatures

# Limits of one call of `prepare_videos`, by measurement. Larger batches leave the cache of a CPU and gain nothing.
MAX_VIDEOS_AT_ONCE = 32
MAX_PADDED_VALUES = 1 << 22  # 16 MB of float32


@runtime_checkable
class FeatureSource(Protocol):
    """A provider of features by id, such as a feature store."""

    def video(self, video_id: str) -> VideoFeatures:
        """Return the features of a video."""

    def text(self, query_id: str) -> TextFeatures:
        """Return the features of a query."""


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """The videos of a split, prepared for one method, and the features of its queries.

    Attributes:
        video_ids: The videos that at least one query describes.
        queries: All queries of the split.
        durations: The length of each video, in seconds.
        videos: All videos, prepared. `video_batch` selects some of them.
        texts: The features of each query.
        video_of_query: The position of each query's video in `video_ids`.
    """

    video_ids: tuple[str, ...]
    queries: tuple[Query, ...]
    durations: Float[Tensor, " N"]
    videos: VideoBatch
    texts: tuple[TextFeatures, ...]
    video_of_query: Int[Tensor, " M"]

    @classmethod
    def prepare(cls, method: Method, split: Split, source: FeatureSource) -> "FeatureSet":
        """Read the features of a split and prepare its videos for a method.

        Videos without a query are left out, as in the evaluation protocol of the benchmarks.

        Args:
            method: The method to prepare the videos for.
            split: The videos and queries.
            source: The features of the videos and queries, by id.

        Raises:
            BadBatch: The split has no query.
        """
        described = {query.video_id for query in split.queries}
        video_ids = tuple(video_id for video_id in split.video_ids if video_id in described)
        if not video_ids:
            raise BadBatch("the split has 0 queries, expected at least 1. Check its annotations.")
        position = {video_id: index for index, video_id in enumerate(video_ids)}
        durations: list[float] = []

        def read_frames() -> Iterator[Tensor]:
            for video_id in video_ids:
                features = source.video(video_id)
                durations.append(features.duration)
                yield torch.as_tensor(features.frames).float()

        return cls(
            video_ids=video_ids,
            queries=split.queries,
            videos=VideoBatch.join(prepared(method, read_frames()), len(video_ids)),
            durations=torch.tensor(durations),  # filled by read_frames
            texts=tuple(_as_tensors(source.text(query.id)) for query in split.queries),
            video_of_query=torch.tensor([position[query.video_id] for query in split.queries]),
        )

    @classmethod
    def of(cls, method: Method, dataset: Dataset, split: str) -> "FeatureSet":
        """Prepare a split of a dataset, by name.

        Args:
            method: The method to prepare the videos for.
            dataset: The annotations and features.
            split: The name of the split, such as "train".
        """
        return cls.prepare(method, dataset.split(split), dataset.store)

    def __len__(self) -> int:
        """Return the number of videos."""
        return len(self.video_ids)

    def batch(self, videos: Int[Tensor, " B"]) -> Batch:
        """Return these videos with all their queries."""
        position = torch.full((len(self),), -1)
        position[videos] = torch.arange(len(videos))
        queries = (position[self.video_of_query] >= 0).nonzero().flatten()
        return Batch(
            videos=self.video_batch(videos),
            queries=self.query_batch(queries),
            video_of_query=position[self.video_of_query[queries]],
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Iterate over all videos, with their queries, in batches of at most `size` videos."""
        for videos in torch.arange(len(self)).split(size):
            yield self.batch(videos)

    def video_batch(self, videos: Int[Tensor, " B"]) -> VideoBatch:
        """Return these videos, by position."""
        return self.videos[videos]

    def query_batch(self, queries: Int[Tensor, " Q"]) -> QueryBatch:
        """Return these queries, by position, padded to the longest."""
        return join_texts([self.texts[index] for index in queries.tolist()])

    def video_batches(self, size: int) -> Iterator[VideoBatch]:
        """Iterate over all videos in batches of at most `size`."""
        for videos in torch.arange(len(self)).split(size):
            yield self.video_batch(videos)

    def query_batches(self, size: int) -> Iterator[QueryBatch]:
        """Iterate over all queries in batches of at most `size`."""
        for queries in torch.arange(len(self.queries)).split(size):
            yield self.query_batch(queries)


def prepared(method: Method, videos: Iterable[Float[Tensor, "T C"]]) -> Iterator[VideoBatch]:
    """Prepare videos of different lengths in padded batches.

    The result has the same bits as one call of `prepare_videos` for each video.
    """
    for group in _groups(videos):
        num_frames = torch.tensor([len(frames) for frames in group])
        yield method.prepare_videos(pad_sequence(group, batch_first=True), num_frames)


def hold_out(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """Divide the videos of a split into two: one part for training, one for choosing the epoch.

    Args:
        split: The split to divide. Queries stay with their video.
        share: The share of the videos in the second part. Each part has at least one video.
        seed: The seed of the random choice.

    Raises:
        BadSetting: The split has fewer than two videos.
    """
    num_videos = len(split.video_ids)
    if num_videos < 2:
        raise BadSetting(
            f"the split has {num_videos} video{'s' * (num_videos != 1)}, expected at least 2 to hold some out. "
            f"Try --set selection=val."
        )
    order = torch.randperm(num_videos, generator=torch.Generator().manual_seed(seed)).tolist()
    num_held = min(max(1, round(share * num_videos)), num_videos - 1)
    held = {split.video_ids[index] for index in order[:num_held]}
    return _only(split, set(split.video_ids) - held), _only(split, held)


def _only(split: Split, kept: set[str]) -> Split:
    return Split(
        video_ids=tuple(video_id for video_id in split.video_ids if video_id in kept),
        queries=tuple(query for query in split.queries if query.video_id in kept),
    )


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


def _as_tensors(text: TextFeatures) -> TextFeatures:
    teacher = None if text.teacher is None else torch.as_tensor(text.teacher)
    return TextFeatures(words=torch.as_tensor(text.words), sentence=torch.as_tensor(text.sentence), teacher=teacher)
