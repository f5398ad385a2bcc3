"""Inputs of methods that cap videos at a number of frames and pad shorter ones, and checks of their settings."""

from dataclasses import fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.methods.base import check_num_frames, check_settings, expect_clips, expect_frames
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.ops import segments


def capped_videos(
    features: Float[Tensor, "B T C"],
    num_frames: Int[Tensor, " B"] | None,
    config: Any,
    clips: Float[Tensor, "B S C"] | None = None,
) -> VideoBatch:
    """Pad or resample each video to `config.num_frames` frames, with a mask, and divide it into clips of equal length.

    Args:
        features: the features of each video, padded at the end.
        num_frames: the number of real frames of each video. None: all frames are real.
        config: settings with `num_frames` and `num_clips`.
        clips: the features of each clip, from all original frames. None if the method does not read them.
    """
    frames, mask = segments.cap(features, config.num_frames, num_frames)
    position = torch.arange(config.num_frames, device=frames.device)
    clip_of_frame = position * config.num_clips // mask.sum(1, keepdim=True)
    return VideoBatch(
        frames=frames, clip_of_frame=clip_of_frame.clamp_max(config.num_clips - 1), mask=mask, clips=clips
    )


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


def check_capped(config: Any, *, sizes: tuple[str, ...] = (), shares: tuple[str, ...] = ()) -> None:
    """Raise BadSetting unless the settings that these methods share are in range.

    Args:
        config: the settings.
        sizes: the names of further settings that are at least 1.
        shares: the names of further settings from 0 to 1.
    """
    check_settings(config)
    check_num_frames(config.num_frames)
    common = ("video_width", "text_width", "num_frames", "num_clips", "max_words", "width", "num_heads", "hard_pool")
    for name in (*common, *sizes):
        if getattr(config, name) < 1:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected at least 1. Use a larger one.")
    for name in ("input_dropout", "dropout"):
        if not 0 <= getattr(config, name) < 1:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected at least 0 and below 1. Try 0.2.")
    for name in shares:
        if not 0 <= getattr(config, name) <= 1:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected 0 to 1. Choose a share.")
    for field in fields(config):
        if field.name.endswith(("_weight", "margin", "_from_epoch")) and getattr(config, field.name) < 0:
            raise BadSetting(f"{field.name} is {getattr(config, field.name)}, expected 0 or more. Raise it.")
    if config.num_clips > config.num_frames:
        raise BadSetting(
            f"num_clips is {config.num_clips}, expected at most num_frames = {config.num_frames}. Lower it."
        )
