"""A split for training and evaluation: prepared videos and query features, in memory or read from their store."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.datasets.dataset import Dataset
from midreel.errors import BadBatch, BadSetting
from midreel.methods.base import Method, join_texts
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.training.streaming import (
    FeatureSource,
    StreamedTexts,
    StreamedVideos,
    ahead,
    fits_in_memory,
    frames_of,
    prepared,
)
from midreel.types import Query, Split, TextFeatures


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """The videos of a split, prepared for one method, and the features of its queries.

    Attributes:
        video_ids: The videos that at least one query describes.
        queries: All queries of the split.
        durations: The length of each video, in seconds.
        videos: All videos, prepared, in memory or streamed. `video_batch` selects some of them.
        texts: The features of each query, in memory or streamed.
        video_of_query: The position of each query's video in `video_ids`.
    """

    video_ids: tuple[str, ...]
    queries: tuple[Query, ...]
    durations: Float[Tensor, " N"]
    videos: VideoBatch | StreamedVideos
    texts: Sequence[TextFeatures]
    video_of_query: Int[Tensor, " M"]

    @classmethod
    def prepare(
        cls, method: Method, split: Split, source: FeatureSource, *, stream: bool | None = None
    ) -> "FeatureSet":
        """Read the features of a split and prepare its videos for a method.

        Videos without a query are left out, as in the evaluation protocol of the benchmarks. Every video is read once,
        also if it is streamed, so that damaged features are found before the training.

        Args:
            method: The method to prepare the videos for.
            split: The videos and queries.
            source: The features of the videos and queries, by id.
            stream: Leave the features in the source, and read each batch when it is needed. Default: if the videos do
                not fit in memory.

        Raises:
            BadBatch: The split has no query.
        """
        described = {query.video_id for query in split.queries}
        video_ids = tuple(video_id for video_id in split.video_ids if video_id in described)
        if not video_ids:
            raise BadBatch("the split has 0 queries, expected at least 1. Check its annotations.")
        position = {video_id: index for index, video_id in enumerate(video_ids)}
        videos = StreamedVideos(method, source, video_ids)
        texts = StreamedTexts(source, [query.id for query in split.queries])
        if stream is None:
            stream = not fits_in_memory(videos[torch.zeros(1, dtype=torch.int64)].num_bytes * len(video_ids))
        durations: list[float] = []

        def read_frames() -> Iterator[Tensor]:
            for video_id in video_ids:
                features = source.video(video_id)
                durations.append(features.duration)
                yield frames_of(features)

        if stream:
            for _ in read_frames():
                pass
        return cls(
            video_ids=video_ids,
            queries=split.queries,
            videos=videos if stream else VideoBatch.join(prepared(method, read_frames()), len(video_ids)),
            durations=torch.tensor(durations),  # filled by read_frames
            texts=texts if stream else tuple(texts),
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
        return self.each(torch.arange(len(self)).split(size))

    def each(self, batches: Sequence[Tensor]) -> Iterator[Batch]:
        """Iterate over `batch(videos)` for the given videos. A streamed batch is read while the last one is used."""
        return map(self.batch, batches) if isinstance(self.videos, VideoBatch) else ahead(self.batch, batches)

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
