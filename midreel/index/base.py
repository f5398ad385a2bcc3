"""The protocol of indexes, and the checks of their arguments.

An index knows vectors, not files, backbones or methods. A video is a string id with one or more windows. Each window is
encoded as if it were a video of its own. The score of a video is the score of its best window.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from midreel.errors import BadBatch, BadSetting, MissingTokens
from midreel.types import COSINE, Encoded, Similarities, Similarity, Tokens, Vectors, with_norms

Array = npt.NDArray[Any]

LONGEST = 1e30  # the largest length of a token whose length counts, so that sums of products stay finite


@dataclass(frozen=True, kw_only=True)
class Match:
    """A video that a query found.

    Attributes:
        video_id: The id of the video.
        score: The score of its best window: the sum over branches of weight × score of the branch.
        branch_scores: The score of each branch in that window: the best cosine, or what its `Similarity` says.
    """

    video_id: str
    score: float
    branch_scores: Mapping[str, float]


@runtime_checkable
class Index(Protocol):
    """A collection of videos, as tokens, that can be searched."""

    @property
    def branch_weights(self) -> Mapping[str, float]:
        """The weight of each branch in the score."""
        ...

    @property
    def similarities(self) -> Similarities:
        """How each branch scores that does not score by its best cosine."""
        ...

    def __len__(self) -> int:
        """Return the number of videos that can be found."""
        ...

    def __contains__(self, video_id: object) -> bool:
        """Return whether a video can be found."""
        ...

    def video_ids(self) -> list[str]:
        """Return the ids of all videos, in the order in which they were added."""
        ...

    def add(self, video_id: str, tokens: Encoded) -> None:
        """Add a video, or replace it.

        The change is durable when this returns. A crash before that leaves the index as it was.

        Args:
            video_id: Any non-empty string.
            tokens: The tokens of each branch, one row per window. Masked tokens are dropped.

        Raises:
            BadSetting: The id is empty.
            BadBatch: The tokens do not fit the index.
        """
        ...

    def remove(self, video_id: str) -> None:
        """Remove a video.

        Raises:
            MissingTokens: The index does not contain the video.
        """
        ...

    def tokens(self, video_id: str) -> dict[str, Tokens]:
        """Return the stored tokens of a video, padded to its longest window.

        Branches in `types.with_norms(similarities)` have vectors of full length, others have unit vectors.

        Raises:
            MissingTokens: The index does not contain the video.
        """
        ...

    def search(
        self, queries: Vectors, *, top: int = 10, among: Collection[str] | None = None, exact: bool = False
    ) -> list[list[Match]]:
        """Return the best videos for each query, best first. Among equal scores, the first added comes first.

        Args:
            queries: One vector per query and branch. Branches that only provide keys need none.
            top: The maximum number of results per query.
            among: The ids to search. Unknown ids are ignored. Default: all videos.
            exact: Whether to score every token, instead of selecting candidates first.

        Raises:
            BadSetting: `top` is below 1.
            BadBatch: The queries do not fit the index.
        """
        ...

    def compact(self) -> None:
        """Free the space of removed and replaced videos."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


def checked_weights(branch_weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights as a dict. Raise BadSetting unless they define a score."""
    weights = dict(branch_weights)
    if not weights or any(not math.isfinite(w) or w < 0 for w in weights.values()) or not any(weights.values()):
        raise BadSetting(
            f"branch_weights is {weights}, expected finite weights, none below 0 and at least one above. "
            f"Pass those of the method."
        )
    return weights


def checked_similarities(
    similarities: Similarities | None, branch_weights: Mapping[str, float]
) -> dict[str, Similarity]:
    """Return the similarities that are not cosines, as a dict.

    Raises:
        BadSetting: A similarity names an unknown branch, or no branch with a weight can select candidates.
    """
    found = {branch: form for branch, form in (similarities or {}).items() if form != COSINE}
    named = {name for branch, form in found.items() for name in (branch, form.guide, form.keys) if name}
    if not named <= set(branch_weights):
        raise BadSetting(
            f"similarities name the branches {sorted(named)}, expected some of {sorted(branch_weights)}. "
            f"Pass those of the method."
        )
    if not scannable(branch_weights, found):
        raise BadSetting(
            f"similarities is {found}, expected a branch with a weight that scores by tokens, or the guide of one. "
            f"Pass those of the method."
        )
    return found


def scored_branches(branch_weights: Mapping[str, float], similarities: Similarities) -> list[str]:
    """Return the branches with a score of their own: all but those that only provide keys for an attention."""
    keys = {form.keys for form in similarities.values()} - {form.guide for form in similarities.values()}
    return [branch for branch, weight in branch_weights.items() if weight or branch not in keys]


def scannable(branch_weights: Mapping[str, float], similarities: Similarities) -> list[str]:
    """Return the branches whose best token can select candidates.

    These are the branches with a weight that score by their best token. If there are none, these are the guides of the
    attentions with a weight.
    """
    attentions = {branch: form for branch, form in similarities.items() if form.kind == "attention"}
    by_token = [
        branch
        for branch in scored_branches(branch_weights, similarities)
        if branch_weights[branch] and branch not in attentions
    ]
    guides = {form.guide for branch, form in attentions.items() if branch_weights[branch]} - set(attentions)
    return by_token or [branch for branch in branch_weights if branch in guides]


def checked_tokens(
    video_id: str,
    tokens: Encoded,
    branches: Collection[str],
    width: int | None = None,
    similarities: Similarities | None = None,
) -> dict[str, Tokens]:
    """Return the tokens of a video as numpy arrays.

    Args:
        video_id: The id of the video.
        tokens: The tokens of each branch, one row per window.
        branches: The expected branches.
        width: The expected width. Default: any.
        similarities: How the branches score. Default: all by cosine.

    Raises:
        BadSetting: The id is empty.
        BadBatch: A branch is missing, branches have different numbers of windows, a window has no token, a value is
            not finite, a token is too long, or an attention does not have one key for each token.
    """
    if not video_id:
        raise BadSetting("video_id is '', expected a non-empty string.")
    if set(tokens) != set(branches):
        raise BadBatch(f"video {video_id!r} has the branches {sorted(tokens)}, expected {sorted(branches)}.")
    windows = {branch: len(part) for branch, part in tokens.items()}
    if len(set(windows.values())) != 1 or not min(windows.values()):
        raise BadBatch(f"video {video_id!r} has {windows} windows, expected the same number in each branch, above 0.")
    found = {}
    for branch, part in tokens.items():
        vectors, mask = np.asarray(part.vectors, np.float32), np.asarray(part.mask)
        if width is not None and vectors.shape[2] != width:
            raise BadBatch(
                f"{branch} tokens of video {video_id!r} have width {vectors.shape[2]}, expected {width}. "
                f"Use the method of the index."
            )
        if not mask.any(1).all():
            raise BadBatch(f"video {video_id!r} has a window without {branch} tokens. Drop the window.")
        if not np.isfinite(vectors[mask]).all():
            raise BadBatch(f"video {video_id!r} has {branch} tokens that are not finite. Encode it again.")
        found[branch] = Tokens(vectors=vectors, mask=mask, spans=np.asarray(part.spans, np.float32))
    _check_similarities(video_id, found, similarities or {})
    return found


def _check_similarities(video_id: str, tokens: Encoded, similarities: Similarities) -> None:
    """Raise BadBatch if tokens are too long, or an attention does not have one key for each token."""
    for branch in with_norms(similarities):
        longest = np.linalg.norm(tokens[branch].vectors[tokens[branch].mask].astype(np.float64), axis=-1).max()
        if longest > LONGEST:
            raise BadBatch(
                f"video {video_id!r} has {branch} tokens of length {longest:.1e}, expected at most {LONGEST:.0e}. "
                f"Encode it again."
            )
    for branch, form in similarities.items():
        if form.keys and not np.array_equal(tokens[form.keys].mask, tokens[branch].mask):
            raise BadBatch(
                f"{form.keys} and {branch} tokens of video {video_id!r} have different masks, expected a key for each "
                f"token. Use the method of the index."
            )


def checked_queries(queries: Vectors, branches: Collection[str], width: int | None, top: int) -> dict[str, Array]:
    """Return the query vectors as numpy arrays.

    Args:
        queries: One vector per query and branch. Additional branches are ignored.
        branches: The expected branches.
        width: The expected width. None allows any.
        top: The number of results, which must be above 0.

    Raises:
        BadSetting: `top` is below 1.
        BadBatch: A branch is missing, branches have different shapes, or a value is not finite.
    """
    if top < 1:
        raise BadSetting(f"top is {top}, expected at least 1.")
    missing = sorted(set(branches) - set(queries))
    if missing:
        raise BadBatch(f"queries lack the branches {missing}. Encode them with the method of the index.")
    found = {branch: np.asarray(queries[branch], np.float32) for branch in branches}
    shapes = {branch: vectors.shape for branch, vectors in found.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 2 for shape in shapes.values()):
        raise BadBatch(f"queries have the shapes {shapes}, expected the same shape (Q, D) in each branch.")
    found_width = next(iter(shapes.values()))[1]
    if width is not None and found_width != width:
        raise BadBatch(f"queries have width {found_width}, expected {width}. Encode them with the method of the index.")
    if not all(np.isfinite(vectors).all() for vectors in found.values()):
        raise BadBatch("queries have values that are not finite. Encode them again.")
    return found


def missing_video(video_id: str, num_videos: int) -> MissingTokens:
    """Return the error for an unknown id."""
    return MissingTokens(f"video {video_id!r} is not in the index of {num_videos} videos. Add it first.")
