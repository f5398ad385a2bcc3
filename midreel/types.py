"""The values that packages exchange. Frozen, named, checked when they are made.

Axes everywhere: B videos, Q queries, T frames, S segments, L words, C feature width, D model width, H heads,
G Gaussian widths. A mask is True where something is real. Times are fractions of a video unless they say seconds.

Arrays are numpy's where videos are indexed, searched and served, and torch's where models are trained. Nothing here
imports torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float

from midreel.errors import BadAnnotation, BadBatch


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A part of a video, in seconds."""

    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise BadAnnotation(f"a moment goes from {self.start} to {self.end} s, expected 0 <= start <= end; fix it")


@dataclass(frozen=True, kw_only=True)
class Query:
    """A sentence that describes a part of a video, and the part, where it is annotated; it may happen several times."""

    id: str
    text: str
    video_id: str
    moments: tuple[Moment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Split:
    """Videos and the queries that describe them."""

    video_ids: tuple[str, ...]
    queries: tuple[Query, ...]

    def __post_init__(self) -> None:
        strays = sorted({query.video_id for query in self.queries} - set(self.video_ids))
        if strays:
            raise BadAnnotation(
                f"queries describe {len(strays)} videos that the split does not hold, such as {strays[0]!r}; "
                f"add the videos or drop their queries"
            )


@dataclass(frozen=True, kw_only=True)
class VideoFeatures:
    """A video as a backbone sees it: a vector per frame, the instant of each in seconds, the length of the video."""

    frames: Float[Any, "T C"]
    times: Float[Any, " T"]
    duration: float


@dataclass(frozen=True, kw_only=True)
class TextFeatures:
    """A sentence as a backbone sees it: its words from [SOS] to [EOS], and the whole in the joint space."""

    words: Float[Any, "L C"]
    sentence: Float[Any, " E"]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Encoded videos: vectors, which of them are real, and the part of the video (start, end) that each stands for.

    The arrays are all of torch or all of numpy.
    """

    vectors: Float[Any, "B S D"]
    mask: Bool[Any, "B S"]
    spans: Float[Any, "B S 2"]

    def __post_init__(self) -> None:
        shapes = {name: tuple(part.shape) for name, part in vars(self).items()}
        if len(shapes["vectors"]) != 3 or shapes["mask"] != shapes["vectors"][:2]:
            raise BadBatch(
                f"vectors and mask have the shapes {shapes}, expected (B, S, D) and (B, S); pass one video's"
            )
        if shapes["spans"] != (*shapes["mask"], 2):
            raise BadBatch(f"spans has shape {shapes['spans']}, expected {(*shapes['mask'], 2)}; stack starts and ends")
        if str(self.mask.dtype).removeprefix("torch.") != "bool":
            raise BadBatch(f"mask holds {self.mask.dtype}, expected True for real tokens; convert it to bool")

    def __len__(self) -> int:
        return len(self.vectors)


Encoded = Mapping[str, Tokens]  # by branch
Vectors = Mapping[str, Float[Any, "Q D"]]  # by branch
