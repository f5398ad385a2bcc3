"""CLIP plus a residual: a method beyond the paper that starts as CLIP zero-shot and learns what to add.

The methods of the papers learn a new space from random weights. With few training videos this space is worse than the
one of CLIP, which they give up. This method keeps CLIP's space and adds a small learned correction:

    token of a video:  v = unit(unit(a) + λ B_v A_v x)   a: the frame, or the mean of a clip, in the joint space
    query:             q = unit(unit(s) + λ B_q A_q s)   s: the sentence in the joint space

x is the whole feature of the frame or clip, which may have more channels than CLIP's, such as SlowFast's. A maps to
`rank` channels and B back to the joint space. B is zero before training, so every score is that of zero-shot then. The
share λ is 1 in training. After each epoch, the share with the highest SumR on the validation videos is chosen
(`nn.residual.Share`). The loss is InfoNCE of both branches on the cosines, times a learned scale.

docs/results/trust.md compares it with zero-shot, the methods of the papers and blends, by the number of videos.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from midreel.errors import BadSetting
from midreel.losses import contrastive
from midreel.methods.base import (
    CLIP_CURVE_WEIGHT,
    FRAME_CURVE_WEIGHT,
    Branch,
    Encoded,
    Method,
    Vectors,
    check_ranges,
    clip_inputs,
    expect_frames,
    expect_sentences,
    segment_tokens,
    uniform_tokens,
)
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.model_card import Paper
from midreel.nn.residual import LowRank, Share, corrected
from midreel.ops import scoring, segments
from midreel.ops.precision import at_least_single
from midreel.types import Tokens

LARGEST_SCALE = 100.0  # of the cosines in the loss, as in CLIP


@dataclass(frozen=True, kw_only=True)
class ClipResidualConfig:
    """The settings of CLIP plus a residual.

    Raises:
        BadSetting: a value is out of range.
        UnknownName: a value is not one of the choices.
    """

    method: Literal["clip_residual"] = "clip_residual"
    video_width: int = 512  # Width of the frame features. Their last joint_width channels are CLIP's.
    joint_width: int = 512  # Width of the joint space of images and texts.
    num_frames: int = 128  # Every video is resampled to this many frames.
    num_clips: int = 32  # Every video is cut into this many clips.
    # order_preserving: clips that follow the content (OP-ToMe). uniform: clips of equal length.
    clips: Literal["uniform", "order_preserving"] = "order_preserving"
    frame_weight: float = 0.6  # Weight of the frame branch in the score. The clip branch has the rest.
    rank: int = 64  # Width of the residual.
    scale: float = 20.0  # Factor of the cosines in the loss, before training.

    def __post_init__(self) -> None:
        check_ranges(self, sizes=("rank",), shares=("frame_weight",))
        check_residual(self)


def check_residual(config: Any) -> None:
    """Raise BadSetting unless `joint_width` and `scale` are in range."""
    if not 1 <= config.joint_width <= config.video_width:
        raise BadSetting(
            f"joint_width is {config.joint_width}, expected 1 to video_width = {config.video_width}. Use the width of "
            f"CLIP's vectors."
        )
    if not 1 <= config.scale <= LARGEST_SCALE:
        raise BadSetting(f"scale is {config.scale}, expected 1 to {LARGEST_SCALE:g}. Try 20.")


class ClipResidual(Method):
    """A search in CLIP's joint space with a learned residual. Before training it equals zero-shot with clips."""

    Config = ClipResidualConfig
    paper = Paper(
        method="CLIP plus a residual",
        title="midreel: partially relevant video retrieval",
        bibtex="""@software{midreel,
  title = {midreel: partially relevant video retrieval},
  note = {CLIP plus a residual is a method of midreel. No paper describes it.}
}""",
    )

    def __init__(self, config: ClipResidualConfig) -> None:
        super().__init__(config)
        joint: dict[str, Any] = {"width": config.joint_width, "rank": config.rank}
        self.video = LowRank(input_width=config.video_width, **joint)
        self.query = LowRank(input_width=config.joint_width, **joint)
        self.log_scale = nn.Parameter(torch.tensor(math.log(config.scale)))
        self.share = Share()

    @property
    def branches(self) -> dict[str, Branch]:
        """The clip branch, and the frame branch with the weight `frame_weight` in the score."""
        weight = self.config.frame_weight
        return {
            "clip": Branch(role="segments", rank_weight=1 - weight, curve_weight=CLIP_CURVE_WEIGHT),
            "frame": Branch(role="frames", rank_weight=weight, curve_weight=FRAME_CURVE_WEIGHT),
        }

    @property
    def token_width(self) -> int:
        """The width of the joint space."""
        return self.config.joint_width

    # ------------------------------------------------------------ videos and queries

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values (docs/export.md)."""
        known = super().preparation() | {"clips": self.config.clips}
        if self.config.clips == "uniform":
            return known
        lengths = segments.merge_schedule(self.num_frames, self.config.num_clips)
        return known | {"similarity": "cosine", "lengths": lengths}

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        """Return clips of equal length, or of similar neighbouring frames (Algorithm 1 of MSC)."""
        cut = segments.order_preserving if self.config.clips == "order_preserving" else segments.uniform
        return cut(frames, self.config.num_clips)

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the frames and the means of the clips, each with its residual.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        expect_frames(videos, self.config)
        clips, _ = clip_inputs(videos, self.config.num_clips)
        clips, frames = (part.to(self.log_scale.dtype) for part in (clips, videos.frames))
        joint = slice(-self.config.joint_width, None)
        return {
            "clip": segment_tokens(corrected(clips[..., joint], self.share(self.video(clips))), videos.clip_of_frame),
            "frame": uniform_tokens(corrected(frames[..., joint], self.share(self.video(frames)))),
        }

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q E"]]:
        """Return the sentence vectors with their residual, the same for both branches.

        Raises:
            BadBatch: there are no sentence vectors, or they have another width.
        """
        sentences = expect_sentences(queries, self.config.joint_width).to(self.log_scale.dtype)
        vectors = corrected(sentences, self.share(self.query(sentences)))
        return {"clip": vectors, "frame": vectors}

    # ------------------------------------------------------------ losses

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """Return InfoNCE of each branch on the scaled cosines."""
        tokens = self.in_parts(self.encode_videos, batch.videos)
        queries = self.in_parts(self.encode_queries, batch.queries)
        with torch.autocast(batch.videos.frames.device.type, enabled=False):
            return scaled_infonce(queries, tokens, batch.video_of_query, self.log_scale)


def scaled_infonce(
    queries: Vectors, tokens: Encoded, video_of_query: Int[Tensor, " Q"], log_scale: Float[Tensor, ""]
) -> dict[str, Float[Tensor, ""]]:
    """Return InfoNCE on the best cosine of each query and video, times a scale, for each branch.

    Args:
        queries: one vector for each query, by branch.
        tokens: the tokens of each video, by branch.
        video_of_query: the video of each query.
        log_scale: the logarithm of the scale, which is at most `LARGEST_SCALE`.
    """
    scale = at_least_single(log_scale).clamp(max=math.log(LARGEST_SCALE)).exp()
    cosines = {
        branch: scoring.cosine_max_sim(at_least_single(queries[branch]), at_least_single(part.vectors), part.mask)
        for branch, part in tokens.items()
    }
    return {f"{branch}_nce": contrastive.infonce(scale * each, video_of_query) for branch, each in cosines.items()}
