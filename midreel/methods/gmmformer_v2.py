"""GMMFormer v2: "An Uncertainty-aware Framework for Partially Relevant Video Retrieval" (arXiv 2405.13824).

The network attends under eight Gaussian windows of different widths and mixes them at each time step, on 32 clips and
on up to 128 frames. Two losses push the queries of a video apart and pull each to a different clip. MSC uses the same
network.

A video of fewer than 128 frames is padded, not resampled. Padding is hidden from attention, and its vectors are zeros.
These zeros count in the score, so the frame branch of a padded video never scores below 0. The released models were
trained and evaluated in this way.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from midreel.losses import diversity, matching
from midreel.methods.base import (
    Encoded,
    Vectors,
    equal_spans,
    uniform_tokens,
)
from midreel.methods.batches import Batch, VideoBatch
from midreel.methods.capped import Capped, expect_mask_and_clips
from midreel.methods.model_card import Paper
from midreel.methods.two_branch import TwoBranch, check_network
from midreel.nn.embed import unit_rows
from midreel.types import Tokens


@dataclass(frozen=True, kw_only=True)
class GMMFormerV2Config:
    """The settings of GMMFormer v2. The defaults are the paper's on ActivityNet Captions.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["gmmformer_v2"] = "gmmformer_v2"

    # Inputs
    video_width: int = 1024  # Width of the frame features. Must match the backbone.
    text_width: int = 1024  # Width of the word features. Must match the backbone.
    num_frames: int = 128  # Every video is resampled to this many frames.
    num_clips: int = 32  # Every video is cut into this many clips.
    max_words: int = 30  # Longest query, in tokens of the backbone.

    # Network
    width: int = 384  # Width of the encoded vectors. Must be a multiple of num_heads.
    num_heads: int = 4  # Attention heads.
    temperature: float = 0.6  # Temperature of the softmax over the Gaussian widths.
    input_dropout: float = 0.31  # Dropout rate of the inputs.
    dropout: float = 0.31  # Dropout rate inside the network.
    frame_weight: float = 0.3  # Weight of the frame branch in the score. The clip branch has the rest.

    # Losses
    clip_nce_weight: float = 0.02  # Weight of InfoNCE in the clip branch.
    frame_nce_weight: float = 0.04  # Weight of InfoNCE in the frame branch.
    margin: float = 0.2  # Margin of the triplet loss.
    hard_from_epoch: int = 20  # First epoch with hard negatives. Earlier epochs draw random ones.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong videos.
    diversity_weight: float = 0.003  # Weight of the query-diverse loss.
    diversity_shift: float = 0.2  # Shift: added to the cosine of two queries of one video.
    diversity_scale: float = 32.0  # Scale: multiplies the shifted cosine.
    diversity_focus: float = 1.0  # Exponent of the weight of similar pairs. 0 weighs all pairs equally.
    matching_weight: float = 0.11  # Weight of the optimal matching loss.

    def __post_init__(self) -> None:
        check_network(self, at_least_zero=("diversity_scale", "diversity_focus"))


class GMMFormerV2(Capped, TwoBranch):
    """GMMFormer v2 as released. The network is in `two_branch` and `nn`, the losses in `losses`."""

    Config = GMMFormerV2Config
    paper = Paper(
        method="GMMFormer v2",
        title="GMMFormer v2: An Uncertainty-aware Framework for Partially Relevant Video Retrieval",
        bibtex="""@article{wang2024gmmformer,
  title = {{GMMFormer} v2: An Uncertainty-aware Framework for Partially Relevant Video Retrieval},
  author = {Wang, Yuting and Wang, Jinpeng and Chen, Bin and Dai, Tao and Luo, Ruisheng and Xia, Shu-Tao},
  journal = {arXiv preprint arXiv:2405.13824},
  year = {2024}
}""",
    )

    def __init__(self, config: GMMFormerV2Config) -> None:
        super().__init__(config)
        self.reset_weights()

    # ------------------------------------------------------------ videos

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the encoded clips and frames. The vectors of padding are zeros.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        mask, features = expect_mask_and_clips(videos, self.config)
        dtype = self.weight_token.dtype
        clips = self.clip(unit_rows(features.to(dtype)), self.weight_token)
        frames = self.frame(unit_rows(videos.frames.to(dtype)), self.weight_token, mask=mask)
        # The mask of the frames is all True: padding counts in the score.
        return {
            "clip": uniform_tokens(clips),
            "frame": Tokens(vectors=frames, mask=torch.ones_like(mask), spans=equal_spans(mask)),
        }

    @property
    def as_released(self) -> bool:
        """Always True. There is no other variant, and many sentences have more than 30 RoBERTa tokens."""
        return True

    # ------------------------------------------------------------ losses

    def own_losses(
        self, queries: Vectors, tokens: Encoded, batch: Batch, *, epoch: int = 0
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the query-diverse loss and the optimal matching loss, weighted."""
        config = self.config
        # As in the release, these terms encode the queries again, with other dropout.
        again = self.in_parts(self.encode_queries, batch.queries)["clip"].to(queries["clip"].dtype)
        apart = diversity.query_diversity(
            again,
            batch.video_of_query,
            shift=config.diversity_shift,
            scale=config.diversity_scale,
            focus=config.diversity_focus,
        )
        matched = matching.optimal_matching(again, tokens["clip"].vectors, batch.video_of_query)
        return {"query_diversity": config.diversity_weight * apart, "matching": config.matching_weight * matched}
