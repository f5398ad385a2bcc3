"""CLIP zero-shot: rank videos by the cosine of the sentence and the best frame. Nothing is trained.

The row "CLIP zero-shot" of the paper's table for TVR, ActivityNet Captions and Charades-STA. The paper does not say how
frames are pooled; the maximum is the plainest reading. It runs over `num_frames` windows of the video, which are the
frames themselves for a video that has no more of them. `clip_weight` mixes in the best clip as the trained model does,
and `clips` says how a video is cut, which moments show.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.methods.base import (
    CLIP_CURVE_WEIGHT,
    FRAME_CURVE_WEIGHT,
    Branch,
    Method,
    check_num_frames,
    check_settings,
    clip_inputs,
    frame_spans,
)
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.card import Paper
from midreel.ops import segments
from midreel.ops.precision import at_least_single
from midreel.types import Tokens


@dataclass(frozen=True, kw_only=True)
class ClipZeroShotConfig:
    method: Literal["clip_zero_shot"] = "clip_zero_shot"
    width: int = 512  # Width of CLIP's joint space.
    num_frames: int = 128  # Every video is resampled to this many frames.
    num_clips: int = 32  # Every video is cut into this many clips.
    # order_preserving: clips that follow the content (OP-ToMe). uniform: clips of equal length.
    clips: Literal["uniform", "order_preserving"] = "uniform"
    clip_weight: float = 0.0  # Weight of the clip branch in the score. The frame branch has the rest.

    def __post_init__(self) -> None:
        check_settings(self)
        check_num_frames(self.num_frames)
        for name in ("width", "num_frames", "num_clips"):
            if getattr(self, name) < 1:
                raise BadSetting(f"{name} is {getattr(self, name)}, expected at least 1; give a larger one")
        if not 0 <= self.clip_weight <= 1:
            raise BadSetting(
                f"clip_weight is {self.clip_weight}, expected 0 to 1, such as 0.4; the frames have the rest"
            )


class ClipZeroShot(Method):
    """Frames must be image embeddings, and sentences text embeddings, of the same joint space.

    Of wider frame features (SlowFast and CLIP side by side) the last `width` channels are taken.
    """

    Config = ClipZeroShotConfig
    paper = Paper(
        method="CLIP zero-shot",
        title="Learning Transferable Visual Models From Natural Language Supervision",
        bibtex="""@inproceedings{radford2021learning,
  title = {Learning Transferable Visual Models From Natural Language Supervision},
  author = {Radford, Alec and Kim, Jong Wook and Hallacy, Chris and Ramesh, Aditya and Goh, Gabriel and
            Agarwal, Sandhini and Sastry, Girish and Askell, Amanda and Mishkin, Pamela and Clark, Jack and
            Krueger, Gretchen and Sutskever, Ilya},
  booktitle = {International Conference on Machine Learning},
  year = {2021}
}""",
    )

    def __init__(self, config: ClipZeroShotConfig) -> None:
        super().__init__(config)

    def preparation(self) -> dict[str, Any]:
        known = super().preparation() | {"clips": self.config.clips}
        if self.config.clips == "uniform":
            return known
        return known | {
            "similarity": "cosine",
            "lengths": segments.merge_schedule(self.num_frames, self.config.num_clips),
        }

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        cut = segments.uniform if self.config.clips == "uniform" else segments.order_preserving
        return cut(frames, self.config.num_clips)

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        if videos.frames.shape[2] < self.config.width:
            raise BadBatch(
                f"frames have width {videos.frames.shape[2]}, expected at least {self.config.width}; "
                f"set width to that of the joint space of your CLIP"
            )
        means, sizes = clip_inputs(videos, self.config.num_clips)
        channels = slice(-self.config.width, None)
        return {
            "clip": Tokens(
                vectors=means[..., channels],
                mask=sizes > 0,
                spans=segments.segment_spans(videos.clip_of_frame, self.config.num_clips),
            ),
            "frame": Tokens(
                vectors=at_least_single(videos.frames[..., channels]),
                mask=torch.ones_like(videos.clip_of_frame, dtype=torch.bool),
                spans=frame_spans(videos),
            ),
        }

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        if queries.sentence is None:
            raise BadBatch("queries have no sentence vectors, which zero-shot search compares with frames; encode them")
        if queries.sentence.shape[1] != self.config.width:
            raise BadBatch(
                f"sentences have width {queries.sentence.shape[1]}, expected {self.config.width}; "
                f"use the CLIP that made the frames"
            )
        sentence = at_least_single(queries.sentence)
        return {"clip": sentence, "frame": sentence}

    @property
    def branches(self) -> dict[str, Branch]:
        weight = self.config.clip_weight
        return {
            "clip": Branch(role="segments", rank_weight=weight, curve_weight=CLIP_CURVE_WEIGHT),
            "frame": Branch(role="frames", rank_weight=1 - weight, curve_weight=FRAME_CURVE_WEIGHT),
        }
