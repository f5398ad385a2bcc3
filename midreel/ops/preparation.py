"""How methods prepare one video, on numpy arrays: the frames and clips that an encoder in ONNX form takes.

`ops.segments` does the same for batches of torch tensors, and a test compares the two. docs/export.md describes each
step for programs without midreel.

Axes: T frames of the features, N frames of the prepared video, S clips, C feature width.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from midreel.errors import BadBatch, BadModel

Frames = Float[np.ndarray, "T C"]


def prepared(frames: Frames, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of an encoder: `frames`, and what the preparation has of `clips`, `mask` and `clip_of_frame`.

    Args:
        frames: the features of a video.
        how: the description of the preparation, `Method.preparation()`.

    Raises:
        BadBatch: features are NaN or infinite.
        BadModel: the preparation is unknown. The model was exported by a newer midreel.
    """
    num_frames, num_clips, clips = how["num_frames"], how["num_clips"], how.get("clips")
    if how["frames"] == "capped":
        kept, mask = capped(frames, num_frames)
        made: dict[str, Any] = {"frames": kept, "mask": mask}
        made["clip_of_frame"] = np.minimum(np.arange(num_frames) * num_clips // mask.sum(), num_clips - 1)
        match clips:
            case "averaged":
                made["clips"] = averaged(frames, num_clips)
            case "interpolated":
                made["clips"] = interpolated(frames, num_clips)
    else:
        kept = averaged(frames, num_frames)
        made = {"frames": kept}
        match clips:
            case "order_preserving" if how["similarity"] == "cosine":
                made["clip_of_frame"] = order_preserving(kept, how["lengths"])
            case "order_preserving":
                made["clips"], made["clip_of_frame"] = order_preserving_by_dot(kept, how["lengths"])
            case "uniform" | "whole":
                made["clip_of_frame"] = uniform(num_frames, num_clips)
        if clips == "whole":
            made["clips"] = frames.mean(0, keepdims=True)
    if how["frames"] not in ("averaged", "capped") or clips not in _CLIPS[how["frames"]]:
        raise BadModel(f"the preparation is {dict(how)}, which is unknown. Update midreel.")
    expect_finite(made["frames"])
    return made


def expect_finite(frames: Float[np.ndarray, "T C"]) -> None:
    """Raise BadBatch if frames contain NaN or infinite values."""
    if not np.isfinite(frames).all():
        raise BadBatch("the frames contain NaN or infinite values, expected finite ones. Extract them again.")


_CLIPS = {"averaged": ("order_preserving", "uniform", "whole"), "capped": ("averaged", "interpolated", None)}


# ---------------------------------------------------------------- frames


def averaged(frames: Frames, length: int, grid: Any = np.float32) -> Float[np.ndarray, "N C"]:
    """Average the frames over `length` equal windows. A shorter video repeats its frames. See `segments.resample`.

    Args:
        frames: the features of a video.
        length: the number of windows.
        grid: the type of the bounds, as in `segments.resample`.

    >>> averaged(np.float32([[0], [2], [4], [6], [8]]), 2)[:, 0].tolist()
    [1.0, 5.0]
    """
    share = np.arange(length + 1, dtype=grid) / grid(length)
    bounds = np.minimum(np.rint(share * grid(len(frames))).astype(np.int64), len(frames) - 1)
    return np.stack([frames[low : max(high, low + 1)].mean(0) for low, high in pairwise(bounds)])


def capped(frames: Frames, length: int) -> tuple[Float[np.ndarray, "N C"], Bool[np.ndarray, " N"]]:
    """Pad a video with zeros, or average it if it has more frames. Also return the mask of real frames."""
    kept = frames if len(frames) <= length else averaged(frames, length, np.float64)
    return np.pad(kept, ((0, length - len(kept)), (0, 0))), np.arange(length) < len(kept)


def interpolated(frames: Frames, length: int) -> Float[np.ndarray, "S C"]:
    """Sample the lines between neighbouring frames in `length` equal windows. See `segments.interpolate`.

    >>> interpolated(np.float32([[0], [4]]), 4)[:, 0].round(2).tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    step, last = length / len(frames), len(frames) - 1
    first, final = step / 2, step / 2 + last * step
    borders = np.arange(length + 1) * (1 / length) * length
    low, high = np.maximum(first + 1e-4, borders[:-1]), np.minimum(final - 1e-4, borders[1:])
    place = ((np.stack((low, (low + high) / 2, high), 1) - first) / step).clip(0, last)
    before = place.astype(np.int64)
    share, after = (place - before)[..., None], np.minimum(before + 1, last)
    exact = frames.astype(np.float64)
    means = (exact[before] + share * (exact[after] - exact[before])).mean(1)
    if last > 0:
        means[(high < first) | (low > final)] = 0
    return means.astype(frames.dtype)


# ---------------------------------------------------------------- clips


def uniform(num_frames: int, num_clips: int) -> Int[np.ndarray, " N"]:
    """Return clips of equal length: the clip of each frame.

    >>> uniform(6, 3).tolist()
    [0, 0, 1, 1, 2, 2]
    """
    return np.arange(num_frames) * min(num_clips, num_frames) // num_frames


def order_preserving(frames: Float[np.ndarray, "N C"], lengths: Sequence[int]) -> Int[np.ndarray, " N"]:
    """Return clips of similar neighbouring frames, Algorithm 1 of MSC. See `segments.order_preserving`.

    The cosines of sums of frames follow from the inner products of the frames, so that equal pairs tie exactly.

    Args:
        frames: the frames of a video.
        lengths: the numbers of tokens before the first step and after each step.

    >>> order_preserving(np.float32([[1, 0], [1, 0.1], [0, 1], [1, 1]]), [4, 3]).tolist()
    [0, 0, 1, 2]
    """
    exact = frames.astype(np.float64)
    products = exact @ exact.T
    clip_of_frame = np.arange(len(frames))
    for length, keep in pairwise(lengths):
        starts = np.searchsorted(clip_of_frame, np.arange(length))
        sums = np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1)
        left, right = np.arange(0, length - 1, 2), np.arange(1, length, 2)
        squares = np.maximum(np.diagonal(sums), 0)
        scale = np.maximum(np.sqrt(squares[left] * squares[right]), np.finfo(np.float64).tiny)
        clip_of_frame = _joined((sums[left, right] / scale).clip(-1, 1), length, keep)[clip_of_frame]
    return clip_of_frame


def order_preserving_by_dot(
    frames: Float[np.ndarray, "N C"], lengths: Sequence[int]
) -> tuple[Float[np.ndarray, "S C"], Int[np.ndarray, " N"]]:
    """Return the clip features and clips of the released OP-ToMe. See `segments.order_preserving_by_dot`.

    Of pairs that tie, the earlier is merged. torch's unstable sort, which the released code uses, may take another: a
    video that repeats its frames then has other clips of equal frames.

    Args:
        frames: the frames of a video.
        lengths: the numbers of tokens before the first step and after each step.
    """
    tokens, sizes, clip_of_frame = frames, np.ones(len(frames), np.float32), np.arange(len(frames))
    for length, keep in pairwise(lengths):
        end = length // 2 * 2
        new = _joined((tokens[0:end:2] * tokens[1:end:2]).sum(1), length, keep)
        starts = np.searchsorted(new, np.arange(keep))
        sums = np.add.reduceat(tokens * sizes[:, None], starts, axis=0)
        is_single = np.bincount(new) == 1
        sizes = np.add.reduceat(sizes, starts)
        tokens = np.where(is_single[:, None], tokens[starts], sums / sizes[:, None])
        clip_of_frame = new[clip_of_frame]
    return tokens, clip_of_frame


def _joined(alike: Float[np.ndarray, " P"], length: int, keep: int) -> Int[np.ndarray, " _"]:
    """Return the map that joins the best pairs of (0, 1), (2, 3), … and reduces `length` tokens to `keep`.

    Args:
        alike: the similarity of each pair.
        length: the number of tokens.
        keep: the number of tokens after the step.
    """
    begins = np.ones(length, np.int64)
    begins[2 * np.argsort(-alike, kind="stable")[: length - keep] + 1] = 0
    return np.cumsum(begins) - 1


def clip_means(
    frames: Float[np.ndarray, "N C"], clip_of_frame: Int[np.ndarray, " N"], num_clips: int
) -> Float[np.ndarray, "S C"]:
    """Return the mean of the frames of each clip. A clip without frames has zeros.

    Args:
        frames: the frames of a video.
        clip_of_frame: the clip of each frame.
        num_clips: the number of clips.
    """
    members = (clip_of_frame == np.arange(num_clips)[:, None]).astype(frames.dtype)
    return (members / np.maximum(members.sum(1, keepdims=True), 1)) @ frames


def clip_spans(clip_of_frame: Int[np.ndarray, " N"], num_clips: int) -> Float[np.ndarray, "S 2"]:
    """Return the start and end of each clip as fractions of the video. A clip without frames has (0, 0)."""
    members = clip_of_frame == np.arange(num_clips)[:, None]
    start, end = members.argmax(1), members.shape[1] - members[:, ::-1].argmax(1)
    spans = np.where(members.any(1)[:, None], np.stack((start, end), 1), 0) / members.shape[1]
    return spans.astype(np.float32)
