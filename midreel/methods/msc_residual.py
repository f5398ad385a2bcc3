"""MSC as a residual of CLIP: a method beyond the paper, for hundreds of training videos and more.

MSC learns a space of its own. This method has the same network and losses, but stays in CLIP's joint space:

    token of a video:  v = unit(unit(a) + λ U_b h)   a: the frame, or the mean of a clip, in the joint space
    query:             q = unit(unit(s) + λ U_q t)   s: the sentence in the joint space

h and t are MSC's token and query. U_clip, U_frame and U_q are zero before training, so every score is that of zero-shot
then. The share λ is 1 in training, and chosen on the validation videos after each epoch (`nn.residual.Share`). InfoNCE
is on cosines times a learned scale, because the vectors have length one. docs/results/trust.md compares it with MSC and
with `clip_residual`, which has no network and needs fewer videos.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from midreel.losses import ranking
from midreel.methods.base import Encoded, Vectors, clip_inputs, expect_sentences, segment_tokens, uniform_tokens
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.clip_residual import check_residual, scaled_infonce
from midreel.methods.model_card import Paper
from midreel.methods.msc import MSC, MSCConfig
from midreel.nn.residual import Share, corrected, zero_linear
from midreel.ops import scoring
from midreel.types import Tokens


@dataclass(frozen=True, kw_only=True)
class MSCResidualConfig(MSCConfig):
    """The settings of MSC, and those of the residual.

    `clip_nce_weight` and `frame_nce_weight` are 1, because InfoNCE is on scaled cosines. The variant is "paper".

    Raises:
        BadSetting: a value is out of range, or two values contradict each other.
        UnknownName: a value is not one of the choices.
    """

    method: Literal["msc_residual"] = "msc_residual"  # type: ignore[assignment]
    variant: Literal["paper"] = "paper"
    clip_nce_weight: float = 1.0  # Weight of InfoNCE in the clip branch.
    frame_nce_weight: float = 1.0  # Weight of InfoNCE in the frame branch.
    joint_width: int = 512  # Width of the joint space of images and texts.
    scale: float = 20.0  # Factor of the cosines in InfoNCE, before training.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_residual(self)


class MSCResidual(MSC):
    """MSC whose tokens and queries are CLIP's vectors plus what the network adds."""

    Config: ClassVar[type] = MSCResidualConfig
    paper = Paper(
        method="MSC as a residual of CLIP",
        title=MSC.paper.title,
        bibtex=MSC.paper.bibtex,
    )

    def __init__(self, config: MSCResidualConfig) -> None:
        super().__init__(config)
        self.of_clip, self.of_frame, self.of_query = (
            zero_linear(config.width, config.joint_width) for _ in ("clip", "frame", "query")
        )
        self.log_scale = nn.Parameter(torch.tensor(math.log(config.scale)))
        self.share = Share()

    @property
    def token_width(self) -> int:
        """The width of the joint space."""
        return self.config.joint_width

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the frozen clips and frames in the joint space, with what the network adds.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        encoded = super().encode_videos(videos)
        clips, _ = clip_inputs(videos, self.config.num_clips)
        clips, frames = (
            part[..., -self.config.joint_width :].to(self.log_scale.dtype) for part in (clips, videos.frames)
        )
        clips = corrected(clips, self.share(self.of_clip(encoded["clip"].vectors)))
        frames = corrected(frames, self.share(self.of_frame(encoded["frame"].vectors)))
        return {"clip": segment_tokens(clips, videos.clip_of_frame), "frame": uniform_tokens(frames)}

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q E"]]:
        """Return the sentence vectors with what the network adds, the same for both branches.

        Raises:
            BadBatch: there are no sentence vectors, or words or sentences have the wrong width.
        """
        pooled = super().encode_queries(queries)["frame"]
        sentences = expect_sentences(queries, self.config.joint_width).to(self.log_scale.dtype)
        vectors = corrected(sentences, self.share(self.of_query(pooled)))
        return {"clip": vectors, "frame": vectors}

    def base_losses(
        self, queries: Vectors, tokens: Encoded, video_of_query: Int[Tensor, " Q"], *, hard: bool
    ) -> dict[str, Float[Tensor, ""]]:
        """Return InfoNCE on scaled cosines and triplet ranking of each branch, weighted.

        Args:
            queries: the vectors of the queries, by branch.
            tokens: the tokens of the videos, by branch.
            video_of_query: the video of each query.
            hard: draw hard negatives for the triplets.
        """
        config = self.config
        weights = {"clip_nce": config.clip_nce_weight, "frame_nce": config.frame_nce_weight}
        terms = {
            name: weights[name] * term
            for name, term in scaled_infonce(queries, tokens, video_of_query, self.log_scale).items()
        }
        for branch, part in tokens.items():
            cosines = scoring.cosine_max_sim(queries[branch], part.vectors, part.mask)
            terms[f"{branch}_triplet"] = ranking.triplet(
                cosines, video_of_query, margin=config.margin, hard=hard, hard_pool=config.hard_pool
            )
        return terms
