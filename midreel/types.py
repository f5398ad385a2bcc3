"""Values that packages exchange: annotations, features and encoded videos.

All of them are frozen dataclasses that check their fields.

Letters for the axes of arrays: B videos, Q queries, T frames, S segments, L words, C feature width, D model width,
E width of the joint space of images and texts, H heads, G Gaussian widths. A mask is True for real entries and False
for padding. Times are fractions of a video unless a name or a docstring says seconds.

Indexing, searching and serving use numpy arrays, training uses torch tensors. This module imports neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from jaxtyping import Bool, Float

from midreel.errors import BadAnnotation, BadBatch, BadSetting, UnknownName

_SimilarityKind = Literal["cosine", "dot", "attention"]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A part of a video, in seconds.

    >>> Moment(start=2.0, end=7.5)
    Moment(start=2.0, end=7.5)

    Raises:
        BadAnnotation: Unless 0 <= start <= end.
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise BadAnnotation(
                f"a moment goes from {self.start} to {self.end} s, expected 0 <= start <= end. Fix the annotation."
            )


@dataclass(frozen=True, kw_only=True)
class Query:
    """A sentence that describes a part of a video.

    Attributes:
        id: A unique name.
        text: The sentence.
        video_id: The video that the sentence describes.
        moments: The parts of the video that it describes, or none if they are not annotated.
    """

    id: str
    text: str
    video_id: str
    moments: tuple[Moment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Split:
    """Videos and the queries that describe them.

    Raises:
        BadAnnotation: If a query describes a video that is not in the split.
    """

    video_ids: tuple[str, ...]
    queries: tuple[Query, ...]

    def __post_init__(self) -> None:
        missing = sorted({query.video_id for query in self.queries} - set(self.video_ids))
        if missing:
            raise BadAnnotation(
                f"queries describe {len(missing)} videos that are not in the split, such as {missing[0]!r}. "
                f"Add the videos, or remove their queries."
            )


@dataclass(frozen=True, kw_only=True)
class VideoFeatures:
    """The features of a video.

    Attributes:
        frames: A vector per frame.
        times: The time of each frame, in seconds.
        duration: The length of the video, in seconds.
    """

    frames: Float[Any, "T C"]
    times: Float[Any, " T"]
    duration: float


@dataclass(frozen=True, kw_only=True)
class TextFeatures:
    """The features of a sentence.

    Attributes:
        words: A vector per token of the text encoder, from its first to its last special token.
        sentence: The vector of the whole sentence in the joint space of images and texts.
        teacher: The vector of the whole sentence in another text space, whose relations TCPL preserves. None for those
            of the last word.
    """

    words: Float[Any, "L C"]
    sentence: Float[Any, " E"]
    teacher: Float[Any, " R"] | None = None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A batch of encoded videos: the vectors that a search compares with a query.

    All arrays are numpy arrays, or all are torch tensors. `len` is the number of videos.

    >>> import numpy as np
    >>> tokens = Tokens(
    ...     vectors=np.ones((1, 2, 4), np.float32),
    ...     mask=np.array([[True, True]]),
    ...     spans=np.array([[[0.0, 0.5], [0.5, 1.0]]], np.float32),
    ... )
    >>> len(tokens)
    1

    Attributes:
        vectors: A vector for each segment of each video.
        mask: True for real segments.
        spans: The start and the end of each segment, as fractions of the video.

    Raises:
        BadBatch: If the shapes do not fit together, or the mask is not boolean.
    """

    vectors: Float[Any, "B S D"]
    mask: Bool[Any, "B S"]
    spans: Float[Any, "B S 2"]

    def __post_init__(self) -> None:
        vectors, mask, spans = tuple(self.vectors.shape), tuple(self.mask.shape), tuple(self.spans.shape)
        if len(vectors) != 3 or mask != vectors[:2]:
            raise BadBatch(
                f"vectors has shape {vectors} and mask {mask}, expected (B, S, D) and (B, S). "
                f"Pass the vectors and the mask of the same videos."
            )
        if spans != (*mask, 2):
            raise BadBatch(f"spans has shape {spans}, expected {(*mask, 2)}. Stack starts and ends in the last axis.")
        # The first comparison holds for numpy, and is faster.
        if self.mask.dtype != bool and str(self.mask.dtype) != "torch.bool":
            raise BadBatch(f"mask has type {self.mask.dtype}, expected bool. Convert it.")

    def __len__(self) -> int:
        return len(self.vectors)


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """How the tokens of a branch score a video.

    - "cosine": the largest cosine of the query with a token.
    - "dot": the largest dot product of the query with a token, so that the length of a token counts.
    - "attention": the cosine of the query with one vector, a weighted mean of the tokens. The weights are the softmax
      of the dot products of each key with the best token of the branch `guide`, by cosine. The keys are the
      tokens of the branch `keys`, one for each token of this branch. MS-SL and BGM-Net call this key-clip attention.

    >>> Similarity(kind="attention", guide="clip", keys="key").guide
    'clip'

    Raises:
        BadSetting: If `kind` is unknown, or `guide` and `keys` are not those of an attention.
    """

    kind: _SimilarityKind = "cosine"
    guide: str = ""
    keys: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(_SimilarityKind):
            raise UnknownName.among("similarity", self.kind, get_args(_SimilarityKind))
        if any(named == (self.kind != "attention") for named in (bool(self.guide), bool(self.keys))):
            raise BadSetting(
                f"guide is {self.guide!r} and keys is {self.keys!r}, expected two branches for an attention, and none "
                f"otherwise."
            )


COSINE = Similarity()

Similarities = Mapping[str, Similarity]
"""The similarity of each branch, by its name. A missing branch has `COSINE`."""


def with_norms(similarities: Similarities) -> set[str]:
    """Return the branches for whose score the length of a token counts. An index stores it for these."""
    attentions = {name: form for name, form in similarities.items() if form.kind == "attention"}
    named = {each for form in attentions.values() for each in (form.guide, form.keys)}
    return named | set(attentions) | {name for name, form in similarities.items() if form.kind == "dot"}


Encoded = Mapping[str, Tokens]
"""The encoded videos of each branch of a method, by the name of the branch."""

Vectors = Mapping[str, Float[Any, "Q D"]]
"""The encoded queries of each branch of a method, by the name of the branch."""
