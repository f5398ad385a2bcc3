"""What an index is: it keeps the tokens of videos, and finds the videos that a query describes.

An index knows vectors, not files, backbones or methods. A video is a string; it has one or more windows, each encoded
as if it were a video of its own, and scores as its best window does.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from midreel.errors import BadBatch, BadSetting, MissingTokens
from midreel.types import Encoded, Tokens, Vectors

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Match:
    """A video that a query found.

    `score` is the one score, the sum of weight × best cosine of each branch, of the best of the video's windows;
    `branch_scores` are that window's best cosines.
    """

    video_id: str
    score: float
    branch_scores: Mapping[str, float]


class Index(Protocol):
    @property
    def branch_weights(self) -> Mapping[str, float]: ...

    def __len__(self) -> int:
        """How many videos can be found."""
        ...

    def __contains__(self, video_id: object) -> bool: ...

    def video_ids(self) -> list[str]:
        """In the order in which they were added."""
        ...

    def add(self, video_id: str, tokens: Encoded) -> None:
        """Adds the windows of one video, or puts them in the place of those it had. Masked tokens are dropped.

        When it returns, the video is there to stay: a kill afterwards does not lose it, a kill before leaves what was.
        """
        ...

    def remove(self, video_id: str) -> None: ...

    def tokens(self, video_id: str) -> dict[str, Tokens]:
        """What is kept of a video: unit vectors as the index scores them, padded to the longest of its windows."""
        ...

    def search(
        self, queries: Vectors, *, top: int = 10, among: Collection[str] | None = None, exact: bool = False
    ) -> list[list[Match]]:
        """The best videos of each query, best first; of equal ones the first added.

        `among` restricts the videos before candidates are chosen; ids that the index does not hold are passed over.
        `exact` scores every token instead of the candidates'.
        """
        ...

    def compact(self) -> None:
        """Gives back the room of what was removed or replaced."""
        ...

    def close(self) -> None: ...


def checked_weights(branch_weights: Mapping[str, float]) -> dict[str, float]:
    """The weights, if a score can be made of them."""
    weights = dict(branch_weights)
    if not weights or any(not math.isfinite(w) or w < 0 for w in weights.values()) or not any(weights.values()):
        raise BadSetting(
            f"branch weights are {weights}, expected finite ones, none below 0 and one above; pass the method's own"
        )
    return weights


def checked_tokens(
    video_id: str, tokens: Encoded, branches: Collection[str], width: int | None = None
) -> dict[str, Tokens]:
    """The tokens of one video's windows as numpy arrays. Raises unless they have every branch, the same number of
    windows in each, and a token in each window."""
    if not video_id:
        raise BadSetting("a video's id is the empty string, expected some text; name the video")
    if set(tokens) != set(branches):
        raise BadBatch(f"video {video_id!r} has the branches {sorted(tokens)}, expected {sorted(branches)}")
    windows = {branch: len(part) for branch, part in tokens.items()}
    if len(set(windows.values())) != 1 or not min(windows.values()):
        raise BadBatch(f"video {video_id!r} has {windows} windows, expected as many in each branch, and at least one")
    found = {}
    for branch, part in tokens.items():
        vectors, mask = np.asarray(part.vectors, np.float32), np.asarray(part.mask)
        if width is not None and vectors.shape[2] != width:
            raise BadBatch(
                f"video {video_id!r}: its {branch} tokens have width {vectors.shape[2]}, expected {width}; "
                f"use the method that the index was made for"
            )
        if not mask.any(1).all():
            raise BadBatch(f"video {video_id!r} has a window without any {branch} token; drop the window")
        if not np.isfinite(vectors[mask]).all():
            raise BadBatch(f"video {video_id!r} has {branch} tokens that are not finite numbers; encode it again")
        found[branch] = Tokens(vectors=vectors, mask=mask, spans=np.asarray(part.spans, np.float32))
    return found


def checked_queries(queries: Vectors, branches: Collection[str], width: int | None, top: int) -> dict[str, Array]:
    """The queries' vectors as numpy arrays. Raises unless they have every branch, and one shape in all of them."""
    if top < 1:
        raise BadSetting(f"top is {top}, expected at least 1")
    missing = sorted(set(branches) - set(queries))
    if missing:
        raise BadBatch(f"queries lack the branches {missing}; encode them with the method that the index was made for")
    found = {branch: np.asarray(queries[branch], np.float32) for branch in branches}
    shapes = {branch: vectors.shape for branch, vectors in found.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 2 for shape in shapes.values()):
        raise BadBatch(f"queries have the shapes {shapes}, expected one shape [Q, D] in every branch")
    found_width = next(iter(shapes.values()))[1]
    if width is not None and found_width != width:
        raise BadBatch(
            f"queries have width {found_width}, expected {width}; encode them with the method that the index was made "
            f"for"
        )
    if not all(np.isfinite(vectors).all() for vectors in found.values()):
        raise BadBatch("queries hold numbers that are not finite; encode them again")
    return found


def absent(video_id: str, number: int) -> MissingTokens:
    return MissingTokens(f"the index does not hold video {video_id!r} among its {number}; add it first")
