"""A reconstruction of ProtoPRVR: "Prototypes are Balanced Units for Efficient and Effective Partially Relevant Video
Retrieval" (Moon et al., ICCV 2025).

A video is searched by a few prototypes instead of all its clips. Learned vectors, shared by all videos, gather the
contexts of a video by cross-attention: its frames, and the means of all windows of neighbouring clips, as in MS-SL.
Prototypes do not attend to each other. In training they reconstruct masked words and the frames of the video, attend to
their own part of two mixed videos, and are pushed apart. These heads are not part of the exported encoders.

No code of the paper was released, and its full text was not available. The parts above are the paper's. The
figures of the paper cannot be expected.

Free choices
------------

Settings, of which the paper's values are unknown: `num_prototypes`, `num_layers`, `prototype_deviation`,
`attention_gain`, the weights of all losses, `mask_rate`, `word_temperature`, `margin`, `hard_from_epoch`, both dropouts
and all settings of training.

Fixed in this module:

- Encoders of queries, clips and frames are those of MS-SL: projection, positions, one attention block. Queries are
  pooled by attention.
- A cross-attention layer is multi-head attention, a projection, a residual and LayerNorm, without a feed-forward
  network. Each layer has its own weights. All layers read the same contexts.
- Retrieval is trained as in MS-SL: InfoNCE on the best dot product and triplet ranking on the best cosine. A video
  scores as its best prototype, by cosine.
- The retrieved prototype of a query is the one of its own video with the largest cosine.
- A learned vector replaces the input of a masked word. [SOS] and [EOS] are never masked. The masked query passes the
  query encoder before the decoder. The target is the input projection of the word, without dropout and gradient.
- The frame decoder is a linear map from prototypes to frames, ReLU, and a linear map of the channels. The target is the
  input projection of the frame, without dropout and gradient, at the position of the frame before padding.
- Two mixed videos are the contexts of both, side by side, so no window contains frames of two videos. Each video is
  mixed with another one of the batch, and its queries ask for its part. The loss is the negative logarithm of the
  attention to that part in the last layer.
- Orthogonality is the mean squared cosine of two prototypes of a video.
- A prototype has no fixed part of the video. Its span is where it attends more than the other prototypes
  (`nn.prototypes.attended_spans`). These spans are coarse, so moments come from a second branch: for each
  of `num_steps` equal parts of the video, the mean of the prototypes, weighted by how much more each attends to it
  (`nn.prototypes.prototypes_over_time`). It does not rank videos. `num_steps=0` omits it, and then a video is stored
  as its prototypes alone, as in the paper.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from midreel.losses import contrastive, prototypes, ranking
from midreel.methods.base import Branch, check_ranges, equal_spans, uniform_tokens
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.capped import Capped, expect_mask, expect_mask_and_clips, truncated
from midreel.methods.model_card import Paper
from midreel.nn.embed import InputProjection, init_weights, unit_rows
from midreel.nn.encoders import PooledQueryEncoder, SequenceEncoder
from midreel.nn.proposals import runs
from midreel.nn.prototypes import (
    FrameDecoder,
    PrototypeGenerator,
    WordDecoder,
    attended_spans,
    prototypes_over_time,
)
from midreel.ops import scoring
from midreel.ops.precision import at_least_single
from midreel.types import Tokens


@dataclass(frozen=True, kw_only=True)
class ProtoPRVRConfig:
    """The settings of ProtoPRVR. The paper's values are unknown; the defaults are choices.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["proto_prvr"] = "proto_prvr"

    # Inputs
    video_width: int = 768  # Width of the frame features. Must match the backbone.
    text_width: int = 768  # Width of the word features. Must match the backbone.
    num_frames: int = 128  # Longer videos are resampled to this many frames, shorter ones are padded.
    num_clips: int = 32  # Every video is cut into this many clips, of which all windows are formed.
    max_words: int = 77  # Longest query, in tokens of the backbone. Further words are dropped.

    # Network
    width: int = 384  # Width of the encoded vectors. Must be a multiple of num_heads.
    num_heads: int = 4  # Attention heads.
    num_prototypes: int = 30  # Vectors that are stored for each video.
    num_layers: int = 2  # Cross-attention layers that form the prototypes.
    prototype_deviation: float = 1.0  # Standard deviation of the initial prototypes.
    attention_gain: float = 1.0  # Standard deviation of the generator's initial weights, times the root of the width.
    # Parts of a video in time, each stored as one more vector, from which moments are found. With 0, moments are the
    # parts of the video that the prototypes attend to, which is much less exact.
    num_steps: int = 32
    input_dropout: float = 0.2  # Dropout rate of the inputs.
    dropout: float = 0.2  # Dropout rate inside the network.

    # Losses
    nce_weight: float = 0.02  # Weight of InfoNCE.
    margin: float = 0.2  # Margin of the triplet loss.
    hard_from_epoch: int = 20  # First epoch with hard negatives. Earlier epochs draw random ones.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong videos.
    word_weight: float = 0.1  # Weight of the reconstruction of masked words. 0 switches it off.
    mask_rate: float = 0.2  # Share of the words that are masked.
    word_temperature: float = 0.07  # Temperature of the InfoNCE over masked words.
    frame_weight: float = 1.0  # Weight of the reconstruction of frames. 0 switches it off.
    mixing_weight: float = 0.1  # Weight of the guidance by mixed videos. 0 switches it off.
    orthogonality_weight: float = 0.1  # Weight of the orthogonality of prototypes. 0 switches it off.

    def __post_init__(self) -> None:
        check_ranges(
            self,
            sizes=("num_prototypes", "num_layers"),
            at_least_zero=("num_steps",),
            positive=("word_temperature", "prototype_deviation", "attention_gain"),
            shares=("mask_rate",),
        )


class ProtoPRVR(Capped):
    """A reconstruction of ProtoPRVR. The docstring of the module lists what the paper does not say."""

    window_shares: Tensor
    window_spans: Tensor

    Config = ProtoPRVRConfig
    reconstruction = True
    paper = Paper(
        method="ProtoPRVR",
        title="Prototypes are Balanced Units for Efficient and Effective Partially Relevant Video Retrieval",
        bibtex="""@inproceedings{moon2025prototypes,
  title = {Prototypes are Balanced Units for Efficient and Effective Partially Relevant Video Retrieval},
  author = {Moon, WonJun and Cho, Cheol-Ho and Jun, Woojin and Shim, Minho and Kim, Taeoh and Lee, Inwoong and
            Wee, Dongyoon and Heo, Jae-Pil},
  booktitle = {Proceedings of the IEEE/CVF International Conference on Computer Vision},
  pages = {21789--21799},
  year = {2025}
}""",
    )

    def __init__(self, config: ProtoPRVRConfig) -> None:
        super().__init__(config)
        width, num_heads, dropout = config.width, config.num_heads, config.dropout
        common: dict[str, Any] = {"width": width, "num_heads": num_heads, "dropout": dropout}
        encoder: dict[str, Any] = common | {"input_dropout": config.input_dropout}
        of_video: dict[str, Any] = encoder | {"input_width": config.video_width, "num_positions": config.num_frames}
        self.query = PooledQueryEncoder(input_width=config.text_width, num_positions=config.max_words, **encoder)
        self.clip = SequenceEncoder(**of_video)
        self.frame = SequenceEncoder(**of_video)
        self.generator = PrototypeGenerator(
            num_prototypes=config.num_prototypes,
            num_layers=config.num_layers,
            deviation=config.prototype_deviation,
            gain=config.attention_gain,
            **common,
        )
        # The following layers serve training only.
        self.word_decoder = WordDecoder(**common)
        self.frame_decoder = FrameDecoder(
            num_prototypes=config.num_prototypes, num_frames=config.num_frames, width=width
        )
        self.masked_word = nn.Parameter(torch.randn(config.text_width) * 0.02)
        bounds, members = runs(config.num_clips)
        self.register_buffer("window_shares", members / members.sum(1, keepdim=True), persistent=False)
        self.register_buffer("window_spans", bounds / config.num_clips, persistent=False)
        self.apply(init_weights)
        self.generator.reset_weights()

    # ------------------------------------------------------------ videos and queries

    @property
    def branches(self) -> dict[str, Branch]:
        """The prototypes, which rank videos, and the prototypes over time, which find moments."""
        if not self.config.num_steps:
            return {"prototype": Branch(role="segments", rank_weight=1.0, curve_weight=1.0)}
        return {
            "prototype": Branch(role="segments", rank_weight=1.0, curve_weight=0.0),
            "time": Branch(role="frames", rank_weight=0.0, curve_weight=1.0),
        }

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the prototypes of each video with the part that each attends to, and the prototypes over time.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        contexts, mask = self.contexts(videos)
        vectors, attention = self.generator(contexts, mask)
        of_frames = equal_spans(mask[:, -self.config.num_frames :])
        of_windows = self.window_spans.to(of_frames.dtype).expand(of_frames.shape[0], -1, -1)
        spans, attention = torch.cat((of_windows, of_frames), 1), attention.detach().to(of_frames.dtype)
        found = {
            "prototype": Tokens(
                vectors=vectors,
                mask=torch.ones_like(vectors[..., 0], dtype=torch.bool),
                spans=attended_spans(attention, spans),
            )
        }
        if self.config.num_steps:
            found["time"] = uniform_tokens(prototypes_over_time(vectors, attention, spans, self.config.num_steps))
        return found

    def contexts(self, videos: VideoBatch) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B S"]]:
        """Return what prototypes attend to, with a mask: the means of all windows of clips, then the frames.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        mask, features = expect_mask_and_clips(videos, self.config)
        dtype = self.masked_word.dtype
        clips = self.clip(unit_rows(features.to(dtype)))
        means = self.window_shares.to(clips.dtype) @ clips
        frames = self.frame(unit_rows(videos.frames.to(dtype)), mask)
        whole = torch.ones_like(means[..., 0], dtype=torch.bool)
        return torch.cat((means, frames), 1), torch.cat((whole, mask), 1)

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the pooled query, the same vector for both branches.

        Raises:
            BadBatch: the words have the wrong width.
        """
        queries = truncated(queries, self.config)
        vectors = self.query(queries.words, queries.mask)
        return dict.fromkeys(self.branches, vectors)

    # ------------------------------------------------------------ losses

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """Return InfoNCE, triplet ranking, both reconstructions, the guidance by mixed videos, and orthogonality."""
        config, video_of_query = self.config, batch.video_of_query
        contexts, mask, found = self.in_parts(self._contexts_and_prototypes, batch.videos)
        queries = self.in_parts(self.encode_queries, batch.queries)["prototype"]
        # Under autocast the network may use half precision. The losses need single precision, and take little time.
        with torch.autocast(found.device.type, enabled=False):
            vectors, tokens = at_least_single(queries), at_least_single(found)
            terms = {
                "nce": config.nce_weight * contrastive.infonce(scoring.max_sim(vectors, tokens), video_of_query),
                "triplet": ranking.triplet(
                    scoring.cosine_max_sim(vectors, tokens),
                    video_of_query,
                    margin=config.margin,
                    hard=epoch >= config.hard_from_epoch,
                    hard_pool=config.hard_pool,
                ),
            }
            apart = prototypes.orthogonality(tokens)
        if config.word_weight:
            terms["words"] = config.word_weight * self.word_loss(queries, found, batch)
        if config.frame_weight:
            terms["frames"] = config.frame_weight * self.frame_loss(found, batch.videos)
        if config.mixing_weight:
            terms["mixing"] = config.mixing_weight * self.mixing_loss(queries, contexts, mask, video_of_query)
        if config.orthogonality_weight:
            terms["orthogonality"] = config.orthogonality_weight * apart
        return terms

    def _contexts_and_prototypes(
        self, videos: VideoBatch
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B S"], Float[Tensor, "B P D"]]:
        contexts, mask = self.contexts(videos)
        return contexts, mask, self.generator(contexts, mask)[0]

    def word_loss(
        self, vectors: Float[Tensor, "Q D"], found: Float[Tensor, "B P D"], batch: Batch
    ) -> Float[Tensor, ""]:
        """Return L_crec: masked words, reconstructed from the rest of the query and its retrieved prototype.

        Args:
            vectors: the pooled queries.
            found: the prototypes of each video.
            batch: the batch.
        """
        queries, own = truncated(batch.queries, self.config), found[batch.video_of_query]
        words = queries.words.to(self.masked_word.dtype).masked_fill(~queries.mask[..., None], 0)
        chosen = prototypes.words_to_mask(queries.mask, self.config.mask_rate)
        rows = torch.arange(len(own), device=own.device)
        prototype = own[rows, retrieved(vectors, own)]
        rebuilt = self.in_parts(self._rebuilt_words, (words, chosen, queries.mask, prototype))
        targets = projected(self.query.project, unit_rows(words[chosen]))
        with torch.autocast(found.device.type, enabled=False):
            return prototypes.word_reconstruction(
                at_least_single(rebuilt[chosen]), at_least_single(targets), temperature=self.config.word_temperature
            )

    def _rebuilt_words(
        self,
        rows: tuple[Float[Tensor, "Q L C"], Bool[Tensor, "Q L"], Bool[Tensor, "Q L"], Float[Tensor, "Q D"]],
    ) -> Float[Tensor, "Q L D"]:
        """Return the words of queries, reconstructed. The rows are words, which are masked, a mask and prototypes."""
        words, chosen, mask, prototypes_of_query = rows
        # SequenceEncoder.forward: the words of the query encoder before they are pooled.
        hidden = torch.where(chosen[..., None], self.masked_word, words)
        encoded = SequenceEncoder.forward(self.query, unit_rows(hidden), mask)
        return self.word_decoder(encoded, prototypes_of_query, mask)

    def frame_loss(self, found: Float[Tensor, "B P D"], videos: VideoBatch) -> Float[Tensor, ""]:
        """Return L_urec: the frames of each video, reconstructed from its prototypes."""
        mask = expect_mask(videos, self.config)
        targets = projected(self.frame.project, unit_rows(videos.frames.to(self.masked_word.dtype)))
        return prototypes.frame_reconstruction(
            at_least_single(self.frame_decoder(found)), at_least_single(targets), mask
        )

    def mixing_loss(
        self,
        vectors: Float[Tensor, "Q D"],
        contexts: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "B S"],
        video_of_query: Int[Tensor, " Q"],
    ) -> Float[Tensor, ""]:
        """Return L_wg: the prototype of a query, in a mix of two videos, attends to the query's own video.

        Args:
            vectors: the pooled queries.
            contexts: the contexts of each video.
            mask: True for real contexts.
            video_of_query: the video of each query.
        """
        num, length = mask.shape
        if num < 2:
            return vectors.sum() * 0  # there is no other video
        # A random cycle: each video has another one as its partner.
        cycle = torch.randperm(num, device=mask.device)
        partner = torch.empty_like(cycle).scatter_(0, cycle, cycle.roll(1))
        mixed, attention = self.in_parts(
            lambda both: self.generator(*both),
            (torch.cat((contexts, contexts[partner]), 1), torch.cat((mask, mask[partner]), 1)),
        )
        best = retrieved(vectors, mixed[video_of_query])
        of_query = at_least_single(attention)[video_of_query, best]
        own = torch.arange(2 * length, device=mask.device) < length
        return prototypes.attention_guidance(of_query, own.expand_as(of_query))


def retrieved(vectors: Float[Tensor, "Q D"], own: Float[Tensor, "Q P D"]) -> Int[Tensor, " Q"]:
    """Return the number of each query's prototype: the one of its video with the largest cosine.

    Args:
        vectors: the pooled queries.
        own: the prototypes of each query's video.
    """
    unit, tokens = (F.normalize(at_least_single(each.detach()), dim=-1) for each in (vectors, own))
    with torch.autocast(own.device.type, enabled=False):
        return (tokens @ unit[..., None]).squeeze(2).argmax(1)


@torch.no_grad()
def projected(layer: InputProjection, features: Float[Tensor, "*rows C"]) -> Float[Tensor, "*rows D"]:
    """Return the input projection of features without dropout, as a constant target."""
    return layer.linear(layer.norm(features)).relu()
