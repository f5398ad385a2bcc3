"""AMDNet: "Towards Efficient Partially Relevant Video Retrieval with Active Moment Discovering" (IEEE TMM 2025).

A small network with one branch of 32 clips. It predicts four soft spans of a video, one for each attention head, and
two losses keep the spans apart and more relevant to the queries than the whole video.

A query is one vector of the whole sentence: [EOS] of CLIP in its joint space. Features without a sentence vector of
that kind, such as RoBERTa's, have words only. For these, training sets `query="words"`, which takes the mean of the
words. In published RoBERTa features the sentence vector is the last word, which is a poor summary.

The released code does not run as published. This is the only consistent reading of it: the leftover call of a version
with global anchors is dropped. The "learnable span anchors" of the abstract are spans that each video predicts.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadBatch
from midreel.losses import contrastive, ranking, spans
from midreel.methods.base import Branch, Method, check_ranges, expect_whole, uniform_tokens
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.model_card import Paper
from midreel.nn.embed import InputProjection, init_weights
from midreel.nn.spans import SpanEncoder, SpanEncoding
from midreel.ops import scoring, segments
from midreel.ops.precision import at_least_single
from midreel.types import Tokens


@dataclass(frozen=True, kw_only=True)
class AMDNetConfig:
    """The settings of AMDNet. The defaults are the release's on ActivityNet Captions, with CLIP-B/32 features.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["amdnet"] = "amdnet"

    # Inputs
    video_width: int = 512  # Width of the frame features. Must match the backbone.
    text_width: int = 512  # Width of the sentence vectors, or of the words if query is words.
    num_frames: int = 128  # Learned positions, of which only num_clips are used, and frames of a window in a library.
    num_clips: int = 32  # Every video is averaged to this many clips.
    # sentence: a query is the sentence vector of the backbone. words: it is the mean of the word vectors.
    query: Literal["sentence", "words"] = "sentence"

    # Network
    width: int = 256  # Width of the encoded vectors. Must be a multiple of num_heads.
    num_heads: int = 4  # Attention heads, and spans of a video.
    input_dropout: float = 0.2  # Dropout rate of the inputs.
    dropout: float = 0.2  # Dropout rate inside the network.

    # Losses
    nce_weight: float = 0.02  # Weight of InfoNCE.
    diversity_weight: float = 1.0  # Weight of the moment diversity loss.
    diversity_target: float = 0.15  # Product of a span with itself that costs nothing.
    relevance_weight: float = 25.0  # Weight of the moment relevance loss.
    relevance_margin: float = 0.02  # Margin by which the best span must be more relevant than the whole video.
    triplet_weight: float = 0.0  # Weight of the triplet loss. The release has none.
    margin: float = 0.2  # Margin of the triplet loss.
    hard_from_epoch: int = 20  # First epoch with hard negatives in the triplet loss.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong videos.

    def __post_init__(self) -> None:
        check_ranges(self)


class AMDNet(Method):
    """AMDNet as released. The network is in `nn.spans`, the losses in `losses`."""

    Config = AMDNetConfig
    paper = Paper(
        method="AMDNet",
        title="Towards Efficient Partially Relevant Video Retrieval with Active Moment Discovering",
        bibtex="""@article{song2025towards,
  title = {Towards Efficient Partially Relevant Video Retrieval with Active Moment Discovering},
  author = {Song, Peipei and Zhang, Long and Lan, Long and Chen, Weidong and Guo, Dan and Yang, Xun and Wang, Meng},
  journal = {IEEE Transactions on Multimedia},
  year = {2025}
}""",
    )

    def __init__(self, config: AMDNetConfig) -> None:
        super().__init__(config)
        self.query = InputProjection(input_width=config.text_width, width=config.width, dropout=config.input_dropout)
        self.clip = SpanEncoder(
            input_width=config.video_width,
            width=config.width,
            num_heads=config.num_heads,
            num_positions=config.num_frames,
            input_dropout=config.input_dropout,
            dropout=config.dropout,
        )
        self.apply(init_weights)

    # ------------------------------------------------------------ videos and queries

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Average the frames of each video over 32 windows. The frames of the batch are these clips.

        Features are not scaled to length one, because the network starts with LayerNorm.
        """
        clips = segments.resample(features, self.config.num_clips, num_frames)
        return VideoBatch(frames=clips, clip_of_frame=self.segment(clips))

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values (docs/export.md)."""
        return super().preparation() | {"num_frames": self.config.num_clips, "clips": "uniform"}

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        """Return clips of equal length."""
        return segments.uniform(frames, self.config.num_clips)

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the encoded clips.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        return {"clip": uniform_tokens(self._encode(videos).tokens)}

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the projected sentence vectors.

        Raises:
            BadBatch: there are no sentence vectors, or they have another width.
        """
        sentence = self._sentences(queries).to(self.query.linear.weight.dtype)
        return {"clip": self.query(sentence[:, None]).squeeze(1)}

    @property
    def sentence_width(self) -> int:
        """The width of the sentence vectors."""
        return self.config.text_width

    @property
    def branches(self) -> dict[str, Branch]:
        """The only branch, of clips."""
        return {"clip": Branch(role="segments", rank_weight=1.0, curve_weight=1.0)}

    # ------------------------------------------------------------ losses

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """Return InfoNCE, moment diversity and moment relevance, and triplet ranking if it has a weight."""
        config = self.config
        encoded = self.in_parts(self._encode, batch.videos)
        queries = self.in_parts(self.encode_queries, batch.queries)["clip"]
        # As in the release, the relevance encodes the queries again, with other dropout.
        again = self.in_parts(self.encode_queries, batch.queries)["clip"]
        # Under autocast the encoders may use half precision. The losses need single precision, and take little time.
        with torch.autocast(batch.videos.frames.device.type, enabled=False):
            tokens, video, masks, moments = map(at_least_single, encoded)
            queries, again = at_least_single(queries), at_least_single(again)
            products = scoring.max_sim(queries, tokens)
            relevance = spans.span_relevance(
                again, moments, video, batch.video_of_query, margin=config.relevance_margin
            )
            terms = {
                "nce": config.nce_weight * contrastive.infonce(products, batch.video_of_query),
                "span_diversity": config.diversity_weight * spans.span_diversity(masks, target=config.diversity_target),
                "span_relevance": config.relevance_weight * relevance,
            }
            if config.triplet_weight:
                terms["triplet"] = config.triplet_weight * ranking.triplet(
                    scoring.cosine_max_sim(queries, tokens),
                    batch.video_of_query,
                    margin=config.margin,
                    hard=epoch >= config.hard_from_epoch,
                    hard_pool=config.hard_pool,
                )
            return terms

    # ------------------------------------------------------------ inputs

    def _encode(self, videos: VideoBatch) -> SpanEncoding:
        """Return the encoded videos. Raise BadBatch if another method prepared them."""
        expect_whole(videos)
        expected = (self.config.num_clips, self.config.video_width)
        if tuple(videos.frames.shape[1:]) != expected:
            raise BadBatch(
                f"videos have {videos.frames.shape[1]} frames of width {videos.frames.shape[2]}, expected "
                f"{expected[0]} of width {expected[1]}. Use the method's prepare_videos() on features of its backbone."
            )
        encoded: SpanEncoding = self.clip(videos.frames.to(self.query.linear.weight.dtype))
        return encoded

    def _sentences(self, queries: QueryBatch) -> Float[Tensor, "Q C"]:
        """Return one vector for each query: the sentence, or the mean of its words."""
        if self.config.query == "words":
            words = at_least_single(queries.words).masked_fill(~queries.mask[..., None], 0)
            sentence = words.sum(1) / queries.mask.sum(1, keepdim=True)
        elif queries.sentence is None:
            raise BadBatch(
                "queries have no sentence vectors, expected one for each. Encode the sentences, or use a model with "
                "the setting query=words."
            )
        else:
            sentence = queries.sentence
        if sentence.shape[1] != self.config.text_width:
            vectors = "words" if self.config.query == "words" else "sentence vectors"
            raise BadBatch(
                f"{vectors} have width {sentence.shape[1]}, expected {self.config.text_width}. Encode the queries with "
                f"the backbone of this model."
            )
        return sentence
