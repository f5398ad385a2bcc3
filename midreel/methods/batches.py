"""What methods take: batches of videos and queries, as torch tensors. Frozen, checked when they are made."""

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
    """Videos, each with the same number of frames, and the clip that each frame belongs to.

    `mask` says which frames are real, where a method pads short videos instead of resampling them; None is all of them.
    `clips` are the features of the clips where a method does not take the means of their frames.
    """

    frames: Float[Tensor, "B T C"]
    clip_of_frame: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"] | None = None
    clips: Float[Tensor, "B S C"] | None = None

    def __post_init__(self) -> None:
        expect_axes(frames=(self.frames, "B T C"), clip_of_frame=(self.clip_of_frame, "B T"))
        expect_labels("clip_of_frame", self.clip_of_frame, "the clips of a video")
        if self.mask is not None:
            expect_axes(frames=(self.frames, "B T C"), mask=(self.mask, "B T"))
            expect_mask("mask", self.mask, "frames")
        if self.clips is not None:
            expect_axes(frames=(self.frames, "B T C"), clips=(self.clips, "B S C"))

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, videos: Int[Tensor, " N"]) -> "VideoBatch":
        """Some of the videos, by number."""
        return replace(self, **{name: part[videos] for name, part in _parts(self).items()})

    @classmethod
    def join(cls, batches: Iterable["VideoBatch"], num_videos: int) -> "VideoBatch":
        """Batches that one method prepared, of so many videos in all, as one.

        Each is copied to its place when it comes, so that batches made one after the other are never all held twice.
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
            if kinds != expected:  # which a copy would stretch and round without a word
                raise BadBatch(
                    f"videos {start} to {end - 1} have parts {kinds}, expected {expected} as those before; "
                    f"prepare them with one method"
                )
            if end > num_videos:
                break
            for name, part in parts.items():
                whole[name][start:end] = part
        if end != num_videos or not end:
            count = f"{end} or more" if end > num_videos else end
            raise BadBatch(
                f"{count} videos came to be joined, expected {num_videos}, and one at least; count them again"
            )
        return cls(**whole)

    def to(self, device: str) -> "VideoBatch":
        return _moved(self, device)


@dataclass(frozen=True, kw_only=True)
class QueryBatch:
    """Queries as the words of a text encoder, [SOS] first and [EOS] last, padded at the end.

    `sentence` is the query's vector in the backbone's joint space, where a method compares it with frames directly.
    `teacher` replaces the [EOS] word as the space whose relations TCPL preserves.
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
        if torch.compiler.is_compiling():  # a graph has numbers only when it runs, and nothing to raise
            return
        empty = (~self.mask.any(1)).nonzero().flatten().tolist()
        if empty:
            raise BadBatch(
                f"queries {empty} have no word, expected at least [SOS] and [EOS]; drop them or fix the mask"
            )

    def __len__(self) -> int:
        return len(self.words)

    def first(self, num_words: int) -> "QueryBatch":
        """The same queries, cut to their first words."""
        return replace(self, words=self.words[:, :num_words], mask=self.mask[:, :num_words])

    def to(self, device: str) -> "QueryBatch":
        return _moved(self, device)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A training batch: videos, all their queries, and the video that each query describes."""

    videos: VideoBatch
    queries: QueryBatch
    video_of_query: Int[Tensor, " Q"]

    def __post_init__(self) -> None:
        expect_axes(words=(self.queries.words, "Q L C"), video_of_query=(self.video_of_query, "Q"))
        expect_indices("video_of_query", self.video_of_query, len(self.videos), "the videos of the batch")

    def to(self, device: str) -> "Batch":
        return _moved(self, device)


def _moved(batch: Any, device: str) -> Any:
    """The same batch with every tensor on `device`."""
    return replace(batch, **{name: part.to(device) for name, part in _parts(batch).items()})


def _parts(batch: Any) -> dict[str, Any]:
    """What a batch holds, by name; optional parts that it does not have are left out."""
    named = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: part for name, part in named.items() if part is not None}
