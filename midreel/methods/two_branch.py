"""The network of GMMFormer-v2 and what follows from it, for the papers that build on it: a clip and a frame branch."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from midreel.errors import BadBatch, BadSetting
from midreel.losses import contrastive, ranking
from midreel.methods.base import (
    CLIP_CURVE_WEIGHT,
    FRAME_CURVE_WEIGHT,
    Branch,
    Encoded,
    Method,
    Vectors,
    check_num_frames,
    check_settings,
)
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.nn.embed import init_weights
from midreel.nn.encoders import QueryEncoder, VideoBranch
from midreel.ops import scoring
from midreel.ops.precision import at_least_single
from midreel.types import Tokens

LOW_TEMPERATURE = 0.3


class TwoBranch(Method):
    """One encoder of queries, one for each of the two branches, and the token that both mixtures share.

    A paper's own `__init__` adds its own layers and then calls `reset_weights`.
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
            "num_positions": config.num_frames,  # in both branches; the clips use the first few
            "temperature": config.temperature,
            "precise": self.as_released and config.temperature < LOW_TEMPERATURE,
        }
        self.query = QueryEncoder(input_width=config.text_width, max_words=config.max_words, **common)
        self.clip = VideoBranch(length=config.num_clips, **of_branch, **common)
        self.frame = VideoBranch(length=config.num_frames, **of_branch, **common)

    def reset_weights(self) -> None:
        self.apply(init_weights)
        self.weight_token = nn.Parameter(torch.randn(self.config.width))

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        queries = self.taken(queries)
        vectors = self.query(queries.words, queries.mask)
        return {"clip": vectors, "frame": vectors}

    @property
    def as_released(self) -> bool:
        """Whether results are to be those of a released code: words beyond `max_words` are left out rather than
        refused, and a low temperature does not blow up the rounding.
        """
        return False

    def taken(self, queries: QueryBatch) -> QueryBatch:
        """What the method sees of the queries."""
        self._expect_words(queries)
        return queries.first(self.config.max_words) if self.as_released else queries

    @property
    def branches(self) -> dict[str, Branch]:
        weight = self.config.frame_weight
        return {
            "clip": Branch(role="segments", rank_weight=1 - weight, curve_weight=CLIP_CURVE_WEIGHT),
            "frame": Branch(role="frames", rank_weight=weight, curve_weight=FRAME_CURVE_WEIGHT),
        }

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """What each branch costs by itself, and the terms that the paper adds."""
        tokens, queries = self.encode_videos(batch.videos), self.encode_queries(batch.queries)
        # Under autocast the encoders may work in half precision; the losses, small and delicate, do not.
        with torch.autocast(batch.videos.frames.device.type, enabled=False):
            tokens = {branch: replace(part, vectors=at_least_single(part.vectors)) for branch, part in tokens.items()}
            queries = {branch: at_least_single(vectors) for branch, vectors in queries.items()}
            hard = epoch >= self.config.hard_from_epoch
            return self.base_losses(queries, tokens, batch.video_of_query, hard=hard) | self.own_losses(
                queries, tokens, batch
            )

    def base_losses(
        self, queries: Vectors, tokens: Encoded, video_of_query: Int[Tensor, " Q"], *, hard: bool
    ) -> dict[str, Float[Tensor, ""]]:
        """Per branch, InfoNCE on the best dot product and triplet ranking on the best cosine."""
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
        self, queries: Mapping[str, Float[Tensor, "Q D"]], tokens: Mapping[str, Tokens], batch: Batch
    ) -> dict[str, Float[Tensor, ""]]:
        """The terms that the paper adds to those of the branches."""
        return {}

    # ------------------------------------------------------------ what cannot be encoded

    def _expect_frames(self, videos: VideoBatch) -> None:
        expected = (self.config.num_frames, self.config.video_width)
        if tuple(videos.frames.shape[1:]) != expected:
            raise BadBatch(
                f"videos have {videos.frames.shape[1]} frames of width {videos.frames.shape[2]}, expected "
                f"{expected[0]} of width {expected[1]}; make the batch with method.prepare_videos(features) "
                f"from the backbone that this model was trained on"
            )

    def _expect_words(self, queries: QueryBatch) -> None:
        length, width = queries.words.shape[1:]
        if width != self.config.text_width:
            raise BadBatch(
                f"words have width {width}, expected {self.config.text_width}; encode the queries with the text "
                f"encoder that this model was trained on"
            )
        if length > self.config.max_words and not self.as_released:
            raise BadBatch(
                f"queries have up to {length} words, expected at most {self.config.max_words}; "
                f"cut them: words[:, :{self.config.max_words}]"
            )


def check_network(config: Any) -> None:
    """Raises unless the settings of the network, which every paper's config has under the same names, can be."""
    check_settings(config)
    check_num_frames(config.num_frames)
    sizes = ("video_width", "text_width", "num_frames", "num_clips", "max_words", "width", "num_heads", "hard_pool")
    for name, least in (*((size, 1) for size in sizes), ("hard_from_epoch", 0)):
        if getattr(config, name) < least:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected at least {least}; give a larger one")
    for name in ("input_dropout", "dropout"):
        if not 0 <= getattr(config, name) < 1:
            raise BadSetting(f"{name} is {getattr(config, name)}, expected at least 0 and below 1, such as 0.2")
    for name in ("margin", *(field.name for field in fields(config) if field.name.endswith("_weight"))):
        if getattr(config, name) < 0:
            raise BadSetting(
                f"{name} is {getattr(config, name)}, expected 0 or more: it pulls, it does not push; 0 leaves it out"
            )
    if config.num_clips > config.num_frames:
        raise BadSetting(
            f"num_clips is {config.num_clips}, expected at most num_frames = {config.num_frames}: clips hold frames"
        )
    if not 0 <= config.frame_weight <= 1:
        raise BadSetting(
            f"frame_weight is {config.frame_weight}, expected 0 to 1, such as 0.6; the clip branch has the rest"
        )
    if config.temperature <= 0:
        raise BadSetting(f"temperature is {config.temperature}, expected above 0, such as 0.6")
