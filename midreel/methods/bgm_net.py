"""BGM-Net: "Exploiting Instance-level Relationships in Weakly Supervised Text-to-Video Retrieval" (ACM TOMM 2024).

The network is that of MS-SL, in `key_clip`. Clips are interpolated, not averaged. In later epochs the queries of a
video are matched with different proposals, instead of the best one for each. Another loss aligns the cosines between
queries with the cosines between their key clips.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadSetting
from midreel.losses import matching, relational
from midreel.methods.key_clip import BestClips, KeyClip, check_key_clip, largest
from midreel.methods.model_card import Paper
from midreel.ops import segments


@dataclass(frozen=True, kw_only=True)
class BGMNetConfig:
    """The settings of BGM-Net. The defaults are the release's on ActivityNet Captions.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["bgm_net"] = "bgm_net"

    # Inputs
    video_width: int = 1024  # Width of the frame features. Must match the backbone.
    text_width: int = 1024  # Width of the word features. Must match the backbone.
    num_frames: int = 128  # A video with more frames is resampled to this many. A shorter one is padded.
    num_clips: int = 48  # Clips of a video. Every run of consecutive clips is a proposal.
    max_words: int = 30  # Longest query, in tokens of the backbone. The rest is dropped.

    # Network
    width: int = 384  # Width of the encoded vectors. Must be a multiple of num_heads.
    num_heads: int = 4  # Attention heads.
    input_dropout: float = 0.1  # Dropout rate of the inputs.
    dropout: float = 0.1  # Dropout rate inside the network.
    frame_weight: float = 0.3  # Weight of the frame branch in the score. The clip branch has the rest.

    # Losses
    clip_nce_weight: float = 0.02  # Weight of InfoNCE in the clip branch.
    frame_nce_weight: float = 0.04  # Weight of InfoNCE in the frame branch.
    margin: float = 0.2  # Margin of the triplet loss.
    hard_from_epoch: int = 20  # First epoch with hard negatives. Earlier epochs draw random ones.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong ones.
    matching_from_epoch: int = 20  # First epoch that matches queries and proposals. Earlier ones take the best.
    alignment_weight: float = 1.0  # Weight of the relation alignment of queries and key clips.

    def __post_init__(self) -> None:
        check_key_clip(self)
        if self.matching_from_epoch < 0:
            raise BadSetting(f"matching_from_epoch is {self.matching_from_epoch}, expected at least 0. Try 20.")


class BGMNet(KeyClip):
    """BGM-Net as released. The network is in `key_clip` and `nn`, the losses in `losses`."""

    Config = BGMNetConfig
    paper = Paper(
        method="BGM-Net",
        title="Exploiting Instance-level Relationships in Weakly Supervised Text-to-Video Retrieval",
        bibtex="""@article{yin2024exploiting,
  title = {Exploiting Instance-level Relationships in Weakly Supervised Text-to-Video Retrieval},
  author = {Yin, Shukang and Zhao, Sirui and Wang, Hao and Xu, Tong and Chen, Enhong},
  journal = {ACM Transactions on Multimedia Computing, Communications and Applications},
  volume = {20},
  number = {10},
  pages = {1--21},
  year = {2024}
}""",
    )

    def __init__(self, config: BGMNetConfig) -> None:
        super().__init__(config)

    def clip_features(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None
    ) -> Float[Tensor, "B S C"]:
        """Interpolate between neighbouring frames. The first and last clips of a short video are zeros."""
        return segments.interpolate(features, self.config.num_clips, num_frames)

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values (docs/export.md)."""
        return super().preparation() | {"frames": "capped", "clips": "interpolated"}

    def best_clips(
        self,
        queries: Float[Tensor, "Q D"],
        clips: Float[Tensor, "B P D"],
        video_of_query: Int[Tensor, " Q"],
        *,
        epoch: int,
    ) -> BestClips:
        """Return the best proposals, from `matching_from_epoch` on with the matched one in each query's own video.

        A video may have more queries than proposals. The queries without a match then keep their best proposals.

        Args:
            queries: one vector for each query.
            clips: the proposals of each video.
            video_of_query: the video of each query.
            epoch: the number of the epoch, from 0.
        """
        best = largest(queries, clips)
        if epoch < self.config.matching_from_epoch:
            return best
        matched = matching.matched_clips(queries, clips, video_of_query)[:, None]
        own = video_of_query[:, None] == torch.arange(len(clips), device=clips.device)
        replaced = own & (matched >= 0)
        return BestClips(
            by_cosine=torch.where(replaced, matched, best.by_cosine),
            by_product=torch.where(replaced, matched, best.by_product),
        )

    def own_losses(
        self, queries: Float[Tensor, "Q D"], key_clips: Float[Tensor, "Q D"]
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the relation alignment of queries and key clips, weighted."""
        return {"alignment": self.config.alignment_weight * relational.relation_alignment(queries, key_clips)}
