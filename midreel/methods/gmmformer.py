"""GMMFormer: "Gaussian-Mixture-Model Based Transformer for Efficient Partially Relevant Video Retrieval" (AAAI 2024).

The network attends under four Gaussian windows of different widths, so that 32 clip tokens contain context of several
time scales. The frames become one vector for each video. A loss pushes the queries of a video apart.

A video of fewer than 128 frames is padded, not resampled, and padding is hidden. The Gaussian windows of the frames
have the length of the longest video of the batch, as in the released code. So the frame vector of a shorter video
depends on its batch. A library encodes the windows of one video at a time: there the length is the video's own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadBatch
from midreel.losses import diversity
from midreel.methods.base import (
    CLIP_CURVE_WEIGHT,
    Branch,
    Encoded,
    Vectors,
    uniform_tokens,
)
from midreel.methods.batches import Batch, VideoBatch
from midreel.methods.capped import Capped, expect_mask_and_clips
from midreel.methods.model_card import Paper
from midreel.methods.two_branch import ClipsAndFrames, check_network
from midreel.nn.embed import init_weights, unit_rows
from midreel.nn.encoders import GaussianEncoder, PooledGaussianEncoder, PooledQueryEncoder, num_steps
from midreel.types import Tokens

# In the order of the released checkpoints. None is attention without a window.
GAUSSIAN_WIDTHS = (None, 0.5, 1.0, 5.0)
NUM_BLOCKS = 2  # in each branch


@dataclass(frozen=True, kw_only=True)
class GMMFormerConfig:
    """The settings of GMMFormer. The defaults are the paper's on ActivityNet Captions.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["gmmformer"] = "gmmformer"

    # Inputs
    video_width: int = 1024  # Width of the frame features. Must match the backbone.
    text_width: int = 1024  # Width of the word features. Must match the backbone.
    num_frames: int = 128  # Longest video, in frames. A longer one is resampled, a shorter one padded.
    num_clips: int = 32  # Every video is cut into this many clips.
    max_words: int = 30  # Longest query, in tokens of the backbone.

    # Network
    width: int = 384  # Width of the encoded vectors. Must be a multiple of num_heads.
    num_heads: int = 4  # Attention heads.
    input_dropout: float = 0.2  # Dropout rate of the inputs.
    dropout: float = 0.2  # Dropout rate inside the network.
    frame_weight: float = 0.3  # Weight of the frame branch in the score. The clip branch has the rest.

    # Losses
    clip_nce_weight: float = 0.02  # Weight of InfoNCE in the clip branch.
    frame_nce_weight: float = 0.04  # Weight of InfoNCE in the frame branch.
    margin: float = 0.2  # Margin of the triplet loss.
    hard_from_epoch: int = 20  # First epoch with hard negatives. Earlier epochs draw random ones.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong videos.
    diversity_weight: float = 0.015  # Weight of the query-diverse loss.
    diversity_shift: float = 0.2  # Shift: added to the cosine of two queries of one video.
    diversity_scale: float = 32.0  # Scale: multiplies the shifted cosine.

    def __post_init__(self) -> None:
        check_network(self, at_least_zero=("diversity_scale",))


class GMMFormer(Capped, ClipsAndFrames):
    """GMMFormer as released. The layers are in `nn.encoders` and `nn.gaussian`, the losses in `losses`."""

    Config = GMMFormerConfig
    paper = Paper(
        method="GMMFormer",
        title="GMMFormer: Gaussian-Mixture-Model Based Transformer for Efficient Partially Relevant Video Retrieval",
        bibtex="""@inproceedings{wang2024gaussian,
  title = {{GMMFormer}: {Gaussian-Mixture-Model} Based Transformer for Efficient Partially Relevant Video Retrieval},
  author = {Wang, Yuting and Wang, Jinpeng and Chen, Bin and Zeng, Ziyun and Xia, Shu-Tao},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year = {2024}
}""",
    )

    def __init__(self, config: GMMFormerConfig) -> None:
        super().__init__(config)
        common: dict[str, Any] = {
            "width": config.width,
            "num_heads": config.num_heads,
            "input_dropout": config.input_dropout,
            "dropout": config.dropout,
        }
        of_branch: dict[str, Any] = {
            "input_width": config.video_width,
            "num_positions": config.num_frames,  # in both branches, as in the released code
            "gaussian_widths": GAUSSIAN_WIDTHS,
            "num_blocks": NUM_BLOCKS,
        }
        self.query = PooledQueryEncoder(input_width=config.text_width, num_positions=config.max_words, **common)
        self.clip = GaussianEncoder(**of_branch, **common)
        self.frame = PooledGaussianEncoder(**of_branch, **common)
        self.apply(init_weights)

    # ------------------------------------------------------------ videos

    def video_encoder(self, videos: VideoBatch) -> Callable[[VideoBatch], dict[str, Tokens]]:
        """Return the function that encodes each part of a batch, with the longest video of the whole batch."""
        mask, _ = expect_mask_and_clips(videos, self.config)
        return partial(self._encode, longest=num_steps(mask))

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the encoded clips, and one vector for the frames of each video.

        The frame vector depends on the number of frames of the longest video of the batch.

        Raises:
            BadBatch: the videos were not prepared for this method, one has no frames, or there are no videos.
        """
        return self._encode(videos)

    def _encode(self, videos: VideoBatch, longest: Int[Tensor, ""] | None = None) -> dict[str, Tokens]:
        mask, features = expect_mask_and_clips(videos, self.config)
        if not torch.compiler.is_compiling():  # while an export traces the graph, the tensors have no values
            if not len(mask):
                raise BadBatch("videos is empty, expected at least one video. Drop the empty batch.")
            empty = (~mask.any(1)).nonzero().flatten().tolist()
            if empty:
                raise BadBatch(f"videos {empty} have no frames, expected at least 1. Drop them or fix the mask.")
        dtype = self.clip.project.linear.weight.dtype
        frames = self.frame(unit_rows(videos.frames.to(dtype)), mask, longest)
        return {
            "clip": uniform_tokens(self.clip(unit_rows(features.to(dtype)))),
            "frame": uniform_tokens(frames[:, None]),
        }

    @property
    def branches(self) -> dict[str, Branch]:
        """The clip branch, and the frame branch with one vector for each video. Only clips tell when a moment is."""
        weight = self.config.frame_weight
        return {
            "clip": Branch(role="segments", rank_weight=1 - weight, curve_weight=CLIP_CURVE_WEIGHT),
            "frame": Branch(role="video", rank_weight=weight, curve_weight=0.0),
        }

    @property
    def as_released(self) -> bool:
        """Always True. There is no other variant, and many sentences have more than 30 RoBERTa tokens."""
        return True

    # ------------------------------------------------------------ losses

    def own_losses(
        self, queries: Vectors, tokens: Encoded, batch: Batch, *, epoch: int = 0
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the query-diverse loss, weighted."""
        config = self.config
        # As in the release, this term encodes the queries again, with other dropout.
        again = self.in_parts(self.encode_queries, batch.queries)["clip"].to(queries["clip"].dtype)
        apart = diversity.joint_query_diversity(
            again, batch.video_of_query, shift=config.diversity_shift, scale=config.diversity_scale
        )
        return {"query_diversity": config.diversity_weight * apart}
