"""Methods that cap videos at a number of frames and pad shorter ones: their inputs."""

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadBatch
from midreel.methods.base import Method, expect_clips, expect_frames
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.ops import segments


class Capped(Method):
    """A method that resamples videos of more than `num_frames` frames, and pads shorter ones.

    The clips of a video have equal length.

    Attributes:
        clip_features: how `prepare_videos` computes the features of the clips from all original frames. "averaged":
            the means over equal windows. "interpolated": between neighbouring frames, where the first and last clips
            of a short video are zeros. None: the method reads frames only. Default: "averaged".
    """

    clip_features: ClassVar[Literal["averaged", "interpolated"] | None] = "averaged"

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Pad or resample the frames to `num_frames`, with a mask, and compute the clips from all original frames."""
        config = self.config
        compute = {"averaged": segments.resample, "interpolated": segments.interpolate}
        clips = compute[self.clip_features](features, config.num_clips, num_frames) if self.clip_features else None
        frames, mask = segments.cap(features, config.num_frames, num_frames)
        position = torch.arange(config.num_frames, device=frames.device)
        clip_of_frame = position * config.num_clips // mask.sum(1, keepdim=True)
        return VideoBatch(
            frames=frames, clip_of_frame=clip_of_frame.clamp_max(config.num_clips - 1), mask=mask, clips=clips
        )

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values (docs/export.md)."""
        clips = {"clips": self.clip_features} if self.clip_features else {}
        return super().preparation() | {"frames": "capped"} | clips

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        """Return clips of equal length."""
        return segments.uniform(frames, self.config.num_clips)


def expect_mask(videos: VideoBatch, config: Any) -> Bool[Tensor, "B T"]:
    """Return the mask of the videos.

    Args:
        videos: the videos.
        config: settings with `num_frames` and `video_width`.

    Raises:
        BadBatch: another method prepared the videos, or the features have another width.
    """
    expect_frames(videos, config)
    if videos.mask is None:
        raise BadBatch("videos have no mask, expected one. Create the batch with this method's prepare_videos().")
    return videos.mask


def expect_mask_and_clips(videos: VideoBatch, config: Any) -> tuple[Bool[Tensor, "B T"], Float[Tensor, "B S C"]]:
    """Return the mask and the clips of the videos.

    Args:
        videos: the videos.
        config: settings with `num_frames`, `num_clips` and `video_width`.

    Raises:
        BadBatch: another method prepared the videos, or the features have another width.
    """
    mask = expect_mask(videos, config)
    if videos.clips is None:
        raise BadBatch("videos have no clips, expected them. Create the batch with this method's prepare_videos().")
    expect_clips(videos.clips, config.num_clips)
    return mask, videos.clips


def truncated(queries: QueryBatch, config: Any) -> QueryBatch:
    """Return the first `config.max_words` words of each query.

    Raises:
        BadBatch: the words have another width than `config.text_width`.
    """
    if queries.words.shape[2] != config.text_width:
        raise BadBatch(
            f"words have width {queries.words.shape[2]}, expected {config.text_width}. Encode the queries with the "
            f"backbone of this model."
        )
    return queries.first(config.max_words)
