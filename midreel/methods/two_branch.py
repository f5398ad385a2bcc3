"""Methods with two branches, and the network of GMMFormer v2, for the papers that build on them.

One branch encodes the clips of a video, the other its frames. `ClipsAndFrames` has what GMMFormer, GMMFormer v2 and MSC
share: the score, the base losses and the checks. `TwoBranch` adds the network of GMMFormer v2 and MSC.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from midreel.errors import BadBatch
from midreel.losses import contrastive, ranking
from midreel.methods.base import (
    CLIP_CURVE_WEIGHT,
    FRAME_CURVE_WEIGHT,
    Branch,
    Encoded,
    Method,
    Vectors,
    check_ranges,
)
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.nn.embed import init_weights
from midreel.nn.encoders import QueryEncoder, VideoBranch
from midreel.ops import scoring
from midreel.ops.precision import at_least_single
from midreel.types import Tokens

LOW_TEMPERATURE = 0.3  # below it the rounding errors of the mixture show


class ClipsAndFrames(Method):
    """A method with a clip branch and a frame branch: its score, its base losses and its checks.

    A subclass creates `query`, an encoder of queries, and implements `segment` and `encode_videos`. It implements
    `own_losses` for the losses of its paper.

    Args:
        config: settings with the fields that `check_network` checks.
    """

    query: nn.Module

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the pooled query T̄, the same vector for both branches.

        Raises:
            BadBatch: the words have the wrong width, or there are too many.
        """
        queries = self.truncated(queries)
        vectors = self.query(queries.words, queries.mask)
        return {"clip": vectors, "frame": vectors}

    @property
    def as_released(self) -> bool:
        """Whether the results must equal those of a released code.

        If so, words after `max_words` are dropped and not an error, and a mixture of low temperature computes in
        double precision.
        """
        return False

    def truncated(self, queries: QueryBatch) -> QueryBatch:
        """Return the words that the network reads: the first `max_words` if `as_released`, else all.

        Raises:
            BadBatch: the words have the wrong width, or there are too many.
        """
        self._expect_words(queries)
        return queries.first(self.config.max_words) if self.as_released else queries

    def video_encoder(self, videos: VideoBatch) -> Callable[[VideoBatch], dict[str, Tokens]]:
        """Return the function that encodes each part of a training batch. Default: `encode_videos`."""
        return self.encode_videos

    @property
    def branches(self) -> dict[str, Branch]:
        """The clip branch, and the frame branch with the weight `frame_weight` in the score."""
        weight = self.config.frame_weight
        return {
            "clip": Branch(role="segments", rank_weight=1 - weight, curve_weight=CLIP_CURVE_WEIGHT),
            "frame": Branch(role="frames", rank_weight=weight, curve_weight=FRAME_CURVE_WEIGHT),
        }

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """Return the base losses of both branches and the losses of the paper, L^overall in Eq. (10) of MSC."""
        tokens = self.in_parts(self.video_encoder(batch.videos), batch.videos)
        queries = self.in_parts(self.encode_queries, batch.queries)
        # Under autocast the encoders may use half precision. The losses need single precision, and take little time.
        with torch.autocast(batch.videos.frames.device.type, enabled=False):
            tokens = {branch: replace(part, vectors=at_least_single(part.vectors)) for branch, part in tokens.items()}
            queries = {branch: at_least_single(vectors) for branch, vectors in queries.items()}
            hard = epoch >= self.config.hard_from_epoch
            return self.base_losses(queries, tokens, batch.video_of_query, hard=hard) | self.own_losses(
                queries, tokens, batch, epoch=epoch
            )

    def base_losses(
        self, queries: Vectors, tokens: Encoded, video_of_query: Int[Tensor, " Q"], *, hard: bool
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the summands of L^base, Eq. (1): InfoNCE and triplet ranking of each branch, weighted.

        As in the released code, InfoNCE uses the best dot product of a video's tokens, and triplet ranking the best
        cosine.

        Args:
            queries: T̄ for each branch.
            tokens: V̄_c and V̄_f by branch.
            video_of_query: the video of each query.
            hard: draw hard negatives for the triplets.
        """
        config = self.config
        terms = {}
        for branch, nce_weight in (("clip", config.clip_nce_weight), ("frame", config.frame_nce_weight)):
            query, video = queries[branch], tokens[branch]
            products = scoring.max_sim(query, video.vectors, video.mask)
            cosines = scoring.cosine_max_sim(query, video.vectors, video.mask)
            terms[f"{branch}_nce"] = nce_weight * contrastive.infonce(products, video_of_query)
            terms[f"{branch}_triplet"] = ranking.triplet(
                cosines, video_of_query, margin=config.margin, hard=hard, hard_pool=config.hard_pool
            )
        return terms

    def own_losses(
        self, queries: Vectors, tokens: Encoded, batch: Batch, *, epoch: int = 0
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the terms that the paper adds to the base losses, weighted, by name.

        Args:
            queries: the result of `encode_queries`, in at least single precision.
            tokens: the result of `encode_videos`, in at least single precision.
            batch: the batch.
            epoch: the number of the epoch, from 0.
        """
        return {}

    # ------------------------------------------------------------ checks

    def _expect_words(self, queries: QueryBatch) -> None:
        """Raise BadBatch unless the words have the number and the width of the settings."""
        length, width = queries.words.shape[1:]
        if width != self.config.text_width:
            raise BadBatch(
                f"words have width {width}, expected {self.config.text_width}. Encode the queries with the backbone of "
                f"this model."
            )
        if length > self.config.max_words and not self.as_released:
            raise BadBatch(
                f"queries have up to {length} words, expected at most {self.config.max_words}. "
                f"Truncate them: queries.first({self.config.max_words})"
            )


class TwoBranch(ClipsAndFrames):
    """A method with the network of GMMFormer v2.

    The network has an encoder of queries, an encoder for each branch, and one learned token that the mixtures of both
    branches share. A subclass implements `segment` and `encode_videos`, and `own_losses` for the losses of its paper.
    Its `__init__` adds its layers and then calls `reset_weights`.

    Args:
        config: settings with the fields that `check_network` checks.
    """

    def __init__(self, config: Any) -> None:
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
            "temperature": config.temperature,
            "precise": self.as_released and config.temperature < LOW_TEMPERATURE,
        }
        self.query = QueryEncoder(input_width=config.text_width, max_words=config.max_words, **common)
        self.clip = VideoBranch(length=config.num_clips, **of_branch, **common)
        self.frame = VideoBranch(length=config.num_frames, **of_branch, **common)

    def reset_weights(self) -> None:
        """Draw the initial weights of all layers and of the learned token."""
        self.apply(init_weights)
        self.weight_token = nn.Parameter(torch.randn(self.config.width))


def check_network(config: Any, *, at_least_zero: Iterable[str] = ()) -> None:
    """Raise BadSetting unless the settings of the network and the base losses are in range.

    The configs of all papers with a clip branch and a frame branch have these fields under the same names.
    `at_least_zero` are the names of further settings that are at least 0.
    """
    mixture = [name for name in ("temperature",) if hasattr(config, name)]
    check_ranges(config, at_least_zero=at_least_zero, positive=mixture, shares=("frame_weight",))
