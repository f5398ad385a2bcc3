"""The inputs of methods: frozen batches of torch tensors, checked when they are created.

Axes: B videos, T frames, S clips, Q queries, L words, C feature width, E width of the joint space.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadBatch
from midreel.ops.checks import expect_axes, expect_indices, expect_labels, expect_mask


@dataclass(frozen=True, kw_only=True)
class VideoBatch:
    """A batch of videos with the same number of frames, and the clip of each frame.

    A method's `prepare_videos` creates it.

    Attributes:
        frames: the features of each frame, V_f in the MSC paper.
        clip_of_frame: the number of each frame's clip, δ in the MSC paper.
        mask: True for real frames. None if the method resamples videos and does not pad them.
        clips: the features of each clip. None if they are the means of the frames.
        teacher: the frames in the joint space of images and texts, for a method that distils their similarity to a
            query. None if the method has no teacher, or reads it from `frames`.

    Raises:
        BadBatch: the tensors have the wrong type, or their shapes do not fit together.

    >>> from midreel import VideoBatch
    >>> videos = VideoBatch(frames=torch.zeros(3, 4, 8), clip_of_frame=torch.tensor([[0, 0, 1, 1]] * 3))
    >>> len(videos)
    3
    >>> len(videos[torch.tensor([0, 2])])
    2
    """

    frames: Float[Tensor, "B T C"]
    clip_of_frame: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"] | None = None
    clips: Float[Tensor, "B S C"] | None = None
    teacher: Float[Tensor, "B T E"] | None = None

    def __post_init__(self) -> None:
        expect_axes(frames=(self.frames, "B T C"), clip_of_frame=(self.clip_of_frame, "B T"))
        expect_labels("clip_of_frame", self.clip_of_frame, "the clips of a video")
        if self.mask is not None:
            expect_axes(frames=(self.frames, "B T C"), mask=(self.mask, "B T"))
            expect_mask("mask", self.mask, "frames")
        if self.clips is not None:
            expect_axes(frames=(self.frames, "B T C"), clips=(self.clips, "B S C"))
        if self.teacher is not None:
            expect_axes(frames=(self.frames, "B T C"), teacher=(self.teacher, "B T E"))

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def num_bytes(self) -> int:
        """The size of all tensors in memory."""
        return sum(part.numel() * part.element_size() for part in _parts(self).values())

    def __getitem__(self, videos: Int[Tensor, " N"]) -> "VideoBatch":
        """Return the videos with these numbers."""
        return replace(self, **{name: part[videos] for name, part in _parts(self).items()})

    @classmethod
    def join(cls, batches: Iterable["VideoBatch"], num_videos: int) -> "VideoBatch":
        """Join batches of one method into one.

        Each batch is copied as it arrives, so a generator of batches needs no memory for a second copy of all videos.

        Args:
            batches: batches with the same parts, shapes and types.
            num_videos: the total number of videos.

        Raises:
            BadBatch: the batches differ in parts, shapes or types, or contain more or fewer videos.
        """
        whole: dict[str, Tensor] = {}
        end = 0
        for batch in batches:
            start, end = end, end + len(batch)
            parts = _parts(batch)
            whole = whole or {name: part.new_empty(num_videos, *part.shape[1:]) for name, part in parts.items()}
            kinds, expected = (
                {name: (tuple(part.shape[1:]), part.dtype) for name, part in each.items()} for each in (parts, whole)
            )
            if kinds != expected:  # the copy below would broadcast and round silently
                raise BadBatch(
                    f"videos {start} to {end - 1} have parts {kinds}, expected {expected}. Prepare all videos with one "
                    f"method."
                )
            if end > num_videos:
                break
            for name, part in parts.items():
                whole[name][start:end] = part
        if end != num_videos or not end:
            count = f"{end} or more" if end > num_videos else end
            raise BadBatch(
                f"the batches contain {count} videos, expected {num_videos}, and at least one. Fix num_videos."
            )
        return cls(**whole)

    def to(self, device: str) -> "VideoBatch":
        """Return the batch on a device."""
        return _moved(self, device)


@dataclass(frozen=True, kw_only=True)
class QueryBatch:
    """A batch of queries as the words of a text encoder.

    Attributes:
        words: the features of each word, T in the MSC paper: [SOS] first, [EOS] last, then padding.
        mask: True for real words.
        sentence: the vector of each query in the joint space of images and texts, for methods that compare it with
            frames.
        teacher: the vectors whose relations TCPL preserves. Default: the [EOS] words.

    Raises:
        BadBatch: the tensors have the wrong type, their shapes do not fit together, or a query has no words.

    >>> from midreel import QueryBatch
    >>> words, lengths = torch.zeros(2, 5, 8), torch.tensor([3, 5])
    >>> len(QueryBatch(words=words, mask=torch.arange(5) < lengths[:, None]))
    2
    """

    words: Float[Tensor, "Q L C"]
    mask: Bool[Tensor, "Q L"]
    sentence: Float[Tensor, "Q E"] | None = None
    teacher: Float[Tensor, "Q R"] | None = None

    def __post_init__(self) -> None:
        expect_axes(words=(self.words, "Q L C"), mask=(self.mask, "Q L"))
        expect_mask("mask", self.mask, "words")
        for name, vectors in (("sentence", self.sentence), ("teacher", self.teacher)):
            if vectors is not None:
                expect_axes(words=(self.words, "Q L C"), **{name: (vectors, "Q E")})
        if torch.compiler.is_compiling():  # while an export traces the graph, the tensors have no values
            return
        empty = (~self.mask.any(1)).nonzero().flatten().tolist()
        if empty:
            raise BadBatch(
                f"queries {empty} have no words, expected at least [SOS] and [EOS]. Drop them or fix the mask."
            )

    def __len__(self) -> int:
        return len(self.words)

    def first(self, num_words: int) -> "QueryBatch":
        """Return the queries with only their first `num_words` words."""
        return replace(self, words=self.words[:, :num_words], mask=self.mask[:, :num_words])

    def to(self, device: str) -> "QueryBatch":
        """Return the batch on a device."""
        return _moved(self, device)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A training batch: videos, their queries, and the video of each query.

    Attributes:
        videos: the videos.
        queries: the queries of these videos.
        video_of_query: the position in `videos` of the video that each query describes.

    Raises:
        BadBatch: the numbers of queries differ, or a query has no video.

    >>> from midreel import Batch, QueryBatch, VideoBatch
    >>> videos = VideoBatch(frames=torch.zeros(1, 4, 8), clip_of_frame=torch.tensor([[0, 0, 1, 1]]))
    >>> queries = QueryBatch(words=torch.zeros(2, 5, 8), mask=torch.ones(2, 5).bool())
    >>> Batch(videos=videos, queries=queries, video_of_query=torch.tensor([0, 0])).video_of_query
    tensor([0, 0])
    """

    videos: VideoBatch
    queries: QueryBatch
    video_of_query: Int[Tensor, " Q"]

    def __post_init__(self) -> None:
        expect_axes(words=(self.queries.words, "Q L C"), video_of_query=(self.video_of_query, "Q"))
        expect_indices("video_of_query", self.video_of_query, len(self.videos), "the videos of the batch")

    def to(self, device: str) -> "Batch":
        """Return the batch on a device."""
        return _moved(self, device)


def _moved(batch: Any, device: str) -> Any:
    """Return the batch with every tensor on `device`."""
    return replace(batch, **{name: part.to(device) for name, part in _parts(batch).items()})


def _parts(batch: Any) -> dict[str, Any]:
    """Return the tensors, or batches, of a batch by name, without the missing optional ones."""
    named = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: part for name, part in named.items() if part is not None}
