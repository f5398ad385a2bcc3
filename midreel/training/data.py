"""Features in memory, as training and evaluation take them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.datasets.dataset import Dataset
from midreel.errors import BadBatch, BadSetting
from midreel.methods.base import Method, join_texts
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.types import Query, Split, TextFeatures, VideoFeatures


@runtime_checkable
class FeatureSource(Protocol):
    """Where features come from: a store, or a test's dictionary."""

    def video(self, video_id: str) -> VideoFeatures: ...

    def text(self, query_id: str) -> TextFeatures: ...


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """Videos, prepared for a method once and for all, and their queries' words."""

    video_ids: tuple[str, ...]
    queries: tuple[Query, ...]
    durations: Float[Tensor, " N"]
    videos: VideoBatch  # all of them; `video_batch` takes some
    texts: tuple[TextFeatures, ...]
    video_of_query: Int[Tensor, " M"]

    @classmethod
    def prepare(cls, method: Method, split: Split, source: FeatureSource) -> "FeatureSet":
        """Reads what the split needs. Videos that no query describes are left out, as in the benchmarks' protocol."""
        described = {query.video_id for query in split.queries}
        video_ids = tuple(video_id for video_id in split.video_ids if video_id in described)
        if not video_ids:
            raise BadBatch("the split has no query, expected at least one; check its annotations")
        place = {video_id: index for index, video_id in enumerate(video_ids)}
        durations: list[float] = []

        def prepared() -> Iterator[VideoBatch]:
            for video_id in video_ids:
                features = source.video(video_id)
                durations.append(features.duration)
                yield method.prepare_videos(torch.as_tensor(features.frames)[None].float())

        videos = VideoBatch.join(prepared(), len(video_ids))
        return cls(
            video_ids=video_ids,
            queries=split.queries,
            durations=torch.tensor(durations),
            videos=videos,
            texts=tuple(source.text(query.id) for query in split.queries),
            video_of_query=torch.tensor([place[query.video_id] for query in split.queries]),
        )

    @classmethod
    def of(cls, method: Method, dataset: Dataset, split: str) -> "FeatureSet":
        """A split of a dataset."""
        return cls.prepare(method, dataset.split(split), dataset.store)

    def __len__(self) -> int:
        return len(self.video_ids)

    def batch(self, videos: Int[Tensor, " B"]) -> Batch:
        """These videos with all their queries."""
        place = torch.full((len(self),), -1)
        place[videos] = torch.arange(len(videos))
        queries = (place[self.video_of_query] >= 0).nonzero().flatten()
        return Batch(
            videos=self.video_batch(videos),
            queries=self.query_batch(queries),
            video_of_query=place[self.video_of_query[queries]],
        )

    def video_batch(self, videos: Int[Tensor, " B"]) -> VideoBatch:
        return self.videos[videos]

    def query_batch(self, queries: Int[Tensor, " Q"]) -> QueryBatch:
        return join_texts([self.texts[index] for index in queries.tolist()])

    def video_batches(self, size: int) -> Iterator[VideoBatch]:
        for videos in torch.arange(len(self)).split(size):
            yield self.video_batch(videos)

    def query_batches(self, size: int) -> Iterator[QueryBatch]:
        for queries in torch.arange(len(self.queries)).split(size):
            yield self.query_batch(queries)


def hold_out(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """The split in two, by video: what to train on, and what to choose the epoch on."""
    if len(split.video_ids) < 2:
        raise BadSetting("a split of 1 video, expected two or more to hold some out; add videos, or choose on val")
    order = torch.randperm(len(split.video_ids), generator=torch.Generator().manual_seed(seed)).tolist()
    num_held = min(max(1, round(share * len(order))), len(order) - 1)
    held = {split.video_ids[index] for index in order[:num_held]}
    return _only(split, set(split.video_ids) - held), _only(split, held)


def _only(split: Split, kept: set[str]) -> Split:
    return Split(
        video_ids=tuple(video_id for video_id in split.video_ids if video_id in kept),
        queries=tuple(query for query in split.queries if query.video_id in kept),
    )
