"""The network of MS-SL with its key-clip attention, for the papers that build on it.

The clip branch scores a query against the mean of every run of consecutive clips, the proposals. The best one is the
key clip of the query. It guides an attention over the frames, and the frame branch scores the query against the
attended mean. This module has what MS-SL and BGM-Net share: the network, the inputs, the score, the base losses and
the checks.

Axes: B videos, T frames, P proposals, Q queries, D model width.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from midreel.errors import BadSetting
from midreel.losses import contrastive, ranking
from midreel.methods.base import (
    CLIP_CURVE_WEIGHT,
    FRAME_CURVE_WEIGHT,
    Branch,
    equal_spans,
)
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.capped import Capped, expect_mask_and_clips, truncated
from midreel.methods.two_branch import check_network
from midreel.nn.embed import init_weights, unit_rows
from midreel.nn.encoders import PooledQueryEncoder, SequenceEncoder
from midreel.nn.proposals import ProposalPooling
from midreel.ops.precision import at_least_single
from midreel.ops.scoring import HIDDEN_LOGIT
from midreel.types import Similarity, Tokens

MOST_CLIPS = 256  # the number of proposals grows with the square of the number of clips
SMALLEST_NORM = 1e-12  # as in torch.nn.functional.normalize


@dataclass(frozen=True, kw_only=True)
class KeyClipConfig:
    """The settings that these methods share. The defaults are those of MS-SL on ActivityNet Captions.

    Raises:
        BadSetting: a value is out of range.
    """

    method: str

    # Inputs
    video_width: int = 1024  # Width of the frame features. Must match the backbone.
    text_width: int = 1024  # Width of the word features. Must match the backbone.
    num_frames: int = 128  # A video with more frames is resampled to this many. A shorter one is padded.
    num_clips: int = 32  # Clips of a video. Every run of consecutive clips is a proposal.
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

    def __post_init__(self) -> None:
        check_network(self)
        if self.num_clips > MOST_CLIPS:
            raise BadSetting(f"num_clips is {self.num_clips}, expected at most {MOST_CLIPS}. Try 32.")


@dataclass(frozen=True, kw_only=True)
class BestClips:
    """The proposal by which each query scores each video.

    Attributes:
        by_cosine: the proposal whose cosine is the score.
        by_product: the proposal whose dot product is the score.
    """

    by_cosine: Int[Tensor, "Q B"]
    by_product: Int[Tensor, "Q B"]


class KeyClip(Capped):
    """A method with proposals and key-clip attention.

    A subclass may set `clip_features` and override `best_clips` and `own_losses`.

    Args:
        config: the settings.
    """

    def __init__(self, config: KeyClipConfig) -> None:
        super().__init__(config)
        common: dict[str, Any] = {
            "width": config.width,
            "num_heads": config.num_heads,
            "input_dropout": config.input_dropout,
            "dropout": config.dropout,
        }
        # Both branches have a position for each frame, as in the released code. The clips use the first ones.
        of_branch: dict[str, Any] = {"input_width": config.video_width, "num_positions": config.num_frames}
        self.query = PooledQueryEncoder(input_width=config.text_width, num_positions=config.max_words, **common)
        self.clip = SequenceEncoder(**of_branch, **common)
        self.frame = SequenceEncoder(**of_branch, **common)
        self.frame_key = nn.Linear(config.width, config.width, bias=False)
        self.frame_value = nn.Linear(config.width, config.width, bias=False)
        self.proposals = ProposalPooling(length=config.num_clips)
        self.apply(init_weights)

    # ------------------------------------------------------------ videos and queries

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the proposals, and a key and a value for each frame.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        mask, features = expect_mask_and_clips(videos, self.config)
        dtype = self.frame_key.weight.dtype
        proposals = self.proposals(self.clip(unit_rows(features.to(dtype))))
        frames = self.frame(unit_rows(videos.frames.to(dtype)), mask)
        spans = equal_spans(mask)
        return {
            "clip": Tokens(
                vectors=proposals,
                mask=torch.ones_like(proposals[..., 0], dtype=torch.bool),
                spans=self.proposals.spans.expand(proposals.shape[0], -1, -1),
            ),
            "frame_key": Tokens(vectors=self.frame_key(frames), mask=mask, spans=spans),
            "frame": Tokens(vectors=self.frame_value(frames), mask=mask, spans=spans),
        }

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the pooled query, the same vector for all branches. Words after `max_words` are dropped.

        Raises:
            BadBatch: the words have the wrong width.
        """
        queries = truncated(queries, self.config)
        vectors = self.query(queries.words, queries.mask)
        return dict.fromkeys(self.branches, vectors)

    @property
    def branches(self) -> dict[str, Branch]:
        """The proposals, the keys of the frames, and the frames with the weight `frame_weight` in the score.

        The attention ranks videos. In the curve that moments are read from, a frame counts by the cosine of its value.
        """
        weight = self.config.frame_weight
        attention = Similarity(kind="attention", guide="clip", keys="frame_key")
        return {
            "clip": Branch(role="segments", rank_weight=1 - weight, curve_weight=CLIP_CURVE_WEIGHT),
            "frame_key": Branch(role="keys", rank_weight=0.0, curve_weight=0.0),
            "frame": Branch(role="frames", rank_weight=weight, curve_weight=FRAME_CURVE_WEIGHT, similarity=attention),
        }

    # ------------------------------------------------------------ losses

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """Return the base losses of both branches and the losses of the paper, weighted.

        As in the released code, InfoNCE uses dot products and triplet ranking cosines. The frame branch compares each
        query with the attended mean of each query's own video, so its scores are a square. Other queries of the same
        video are negatives there.
        """
        config, video_of_query = self.config, batch.video_of_query
        tokens = self.in_parts(self.encode_videos, batch.videos)
        queries = self.in_parts(self.encode_queries, batch.queries)
        # Under autocast the encoders may use half precision. The losses need single precision, and take little time.
        with torch.autocast(batch.videos.frames.device.type, enabled=False):
            tokens = {branch: replace(part, vectors=at_least_single(part.vectors)) for branch, part in tokens.items()}
            query, clips, frames = at_least_single(queries["clip"]), tokens["clip"].vectors, tokens["frame"]
            best = self.best_clips(query, clips, video_of_query, epoch=epoch)
            key_clips = clips[video_of_query, best.by_cosine.gather(1, video_of_query[:, None]).squeeze(1)]
            attended = attended_means(
                key_clips, tokens["frame_key"].vectors, frames.vectors, frames.mask, video_of_query
            )
            triplet = {"margin": config.margin, "hard": epoch >= config.hard_from_epoch, "hard_pool": config.hard_pool}
            products = pair_products(query, clips, best.by_product)
            cosines = pair_products(F.normalize(query, dim=-1), F.normalize(clips, dim=-1), best.by_cosine)
            of_frames = F.normalize(query, dim=-1) @ F.normalize(attended, dim=-1).T
            return {
                "clip_nce": config.clip_nce_weight * contrastive.infonce(products, video_of_query),
                "clip_triplet": ranking.triplet(cosines, video_of_query, **triplet),
                "frame_nce": config.frame_nce_weight * contrastive.paired_infonce(query @ attended.T),
                "frame_triplet": ranking.paired_triplet(of_frames, **triplet),
            } | self.own_losses(query, key_clips)

    def best_clips(
        self,
        queries: Float[Tensor, "Q D"],
        clips: Float[Tensor, "B P D"],
        video_of_query: Int[Tensor, " Q"],
        *,
        epoch: int,
    ) -> BestClips:
        """Return the proposal by which each query scores each video. The one of its own video is its key clip.

        Args:
            queries: one vector for each query.
            clips: the proposals of each video.
            video_of_query: the video of each query.
            epoch: the number of the epoch, from 0.
        """
        return largest(queries, clips)

    def own_losses(
        self, queries: Float[Tensor, "Q D"], key_clips: Float[Tensor, "Q D"]
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the terms that the paper adds to the base losses, weighted, by name.

        Args:
            queries: one vector for each query.
            key_clips: the key clip of each query.
        """
        return {}


# ---------------------------------------------------------------- scores in training


@torch.no_grad()
def largest(queries: Float[Tensor, "Q D"], clips: Float[Tensor, "B P D"]) -> BestClips:
    """Return the proposal of the largest cosine, and of the largest dot product, for each query and video.

    The maximum passes a gradient to the largest proposal only. So the comparison of all proposals needs no gradient,
    and `pair_products` computes the scores again from one proposal for each pair.
    """
    products = (queries @ clips.flatten(0, 1).T).view(len(queries), *clips.shape[:2])
    by_product = products.argmax(2)
    products /= torch.linalg.vector_norm(clips, dim=-1).clamp_min(SMALLEST_NORM)
    return BestClips(by_cosine=products.argmax(2), by_product=by_product)


def pair_products(
    queries: Float[Tensor, "Q D"], clips: Float[Tensor, "B P D"], best: Int[Tensor, "Q B"]
) -> Float[Tensor, "Q B"]:
    """Return the dot product of each query with one proposal of each video.

    Args:
        queries: one vector for each query.
        clips: the proposals of each video.
        best: the proposal for each query and video.
    """
    chosen = clips[torch.arange(len(clips), device=clips.device), best]
    return torch.einsum("qd,qbd->qb", queries, chosen)


def attended_means(
    guides: Float[Tensor, "Q D"],
    keys: Float[Tensor, "B T D"],
    values: Float[Tensor, "B T D"],
    mask: Bool[Tensor, "B T"],
    video_of_query: Int[Tensor, " Q"],
) -> Float[Tensor, "Q D"]:
    """Return the mean of each query's own frames under the attention of its guide: Σ_t softmax_t(<k_t, g>) v_t.

    The logits have no scale. `ops.scoring.attended_cosine` has the same formula for all pairs of queries and videos.

    Args:
        guides: g, the key clip of each query.
        keys: k, a key for each frame.
        values: v, a value for each frame.
        mask: True for real frames.
        video_of_query: the video of each query.
    """
    # The guides of a video become the rows of one matrix. Copies of the frames for each query would need more memory.
    row = (video_of_query[:, None] == video_of_query).tril(-1).sum(1)  # number of earlier queries of the same video
    guides_of_video = guides.new_zeros(len(keys), int(row.max()) + 1, guides.shape[1])
    guides_of_video = guides_of_video.index_put((video_of_query, row), guides)
    logits = (guides_of_video @ keys.mT).masked_fill(~mask[:, None], HIDDEN_LOGIT)
    return (logits.softmax(2) @ values)[video_of_query, row]
