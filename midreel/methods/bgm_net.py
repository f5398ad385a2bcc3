"""BGM-Net: "Exploiting Instance-level Relationships in Weakly Supervised Text-to-Video Retrieval" (ACM TOMM 2024).

The network is that of MS-SL, in `key_clip`. Clips are interpolated, not averaged. In later epochs the queries of a
video are matched with different proposals, instead of the best one for each. Another loss aligns the cosines between
queries with the cosines between their key clips.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.losses import matching, relational
from midreel.methods.key_clip import BestClips, KeyClip, KeyClipConfig, largest
from midreel.methods.model_card import Paper


@dataclass(frozen=True, kw_only=True)
class BGMNetConfig(KeyClipConfig):
    """The settings of BGM-Net. The defaults are the release's on ActivityNet Captions.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["bgm_net"] = "bgm_net"

    # Inputs
    num_clips: int = 48  # Clips of a video. Every run of consecutive clips is a proposal.

    # Losses
    matching_from_epoch: int = 20  # First epoch that matches queries and proposals. Earlier ones take the best.
    alignment_weight: float = 1.0  # Weight of the relation alignment of queries and key clips.


class BGMNet(KeyClip):
    """BGM-Net as released. The network is in `key_clip` and `nn`, the losses in `losses`."""

    Config = BGMNetConfig
    clip_features = "interpolated"
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
