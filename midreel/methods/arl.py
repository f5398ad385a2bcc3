"""A reconstruction of ARL: "Ambiguity-Restrained Text-Video Representation Learning for Partially Relevant Video
Retrieval" (Cho et al., AAAI 2025).

Labels call every other video wrong for a query, although some show the same content. ARL finds such ambiguous pairs by
two criteria: a high similarity, and a high uncertainty, which is the mean similarity to everything in the training set.
Ambiguous pairs become weak positives, and rank between positives and negatives. The same holds for the frames of the
query's own video. Two models, a and b, are trained side by side, and each finds the ambiguous pairs of the other.

No code of the paper was released, and its full text was not available. The parts above and the definition of
uncertainty are the paper's. The figures of the paper cannot be expected.

Free choices
------------

Settings, of which the paper's values are unknown: the quantiles, `detection`, `relative_similarity`, `most_ambiguous`,
`ambiguity_from_epoch`, all weights and margins, `hard_from_epoch`, both dropouts and all settings of training.

Fixed in this module:

- Each model is a branch of DL-DKD: an encoder of queries and one of frames, each with one attention block, and a linear
  map of the frames. There is no clip branch.
- A video's score is the mean of the scores of both models.
- The uncertainty uses two mean vectors for each model, the mean unit frame and the mean unit query of the training set.
  They are computed at the start of each epoch without dropout. The product with a mean is the mean of the products. The
  frame or query itself is that of the training step, with dropout.
- A pair is ambiguous above quantiles of the batch (`losses.ambiguity.detect`).
- The contrastive loss uses dot products at video level and cosines at frame level. The triplets use cosines. Both
  losses work in both directions at video level, from queries to videos and from videos to queries.
- At frame level the positive is the model's own best frame of the query's video. Its two neighbours are no negatives.
- The frame level begins with the ambiguous pairs, because the best frame of an untrained model is arbitrary.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from midreel.losses import ambiguity
from midreel.methods.base import Branch, Vectors, check_ranges, equal_spans
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.capped import Capped, expect_mask, truncated
from midreel.methods.model_card import Paper
from midreel.nn.embed import init_weights, unit_rows
from midreel.nn.encoders import PooledQueryEncoder, SequenceEncoder
from midreel.ops import scoring
from midreel.ops.precision import at_least_single
from midreel.types import Tokens

MODELS = ("a", "b")
OTHER = {"a": "b", "b": "a"}


@dataclass(frozen=True, kw_only=True)
class ARLConfig:
    """The settings of ARL. The paper's values are unknown; the defaults are choices.

    Raises:
        BadSetting: a value is out of range.
        UnknownName: a value is not one of the choices.
    """

    method: Literal["arl"] = "arl"

    # Inputs
    video_width: int = 768  # Width of the frame features. Must match the backbone.
    text_width: int = 768  # Width of the word features. Must match the backbone.
    num_frames: int = 128  # Longer videos are resampled to this many frames, shorter ones are padded.
    num_clips: int = 32  # Clips of a video. The method has no use for them, but evaluation reports may.
    max_words: int = 77  # Longest query, in tokens of the backbone. Further words are dropped.

    # Network
    width: int = 384  # Width of the encoded vectors. Must be a multiple of num_heads.
    num_heads: int = 4  # Attention heads.
    input_dropout: float = 0.2  # Dropout rate of the inputs.
    dropout: float = 0.2  # Dropout rate inside the network.

    # Ambiguous pairs
    ambiguity_from_epoch: int = 5  # First epoch with ambiguous pairs and with losses at frame level.
    cross_model: bool = True  # Each model finds the ambiguous pairs of the other. false: its own.
    uncertainty_quantile: float = 0.7  # Ambiguous pairs have an uncertainty above this quantile of the batch.
    # quantile: the similarity is above a quantile of the batch. relative: it is near that of the query's own video.
    detection: Literal["quantile", "relative"] = "quantile"
    similarity_quantile: float = 0.98  # Quantile of the similarities of unpaired queries and videos.
    frame_similarity_quantile: float = 0.9  # Quantile of the similarities of queries and frames of their videos.
    relative_similarity: float = 0.9  # With detection=relative: the least share of the similarity of the own video.
    most_ambiguous: int = 5  # Most ambiguous videos, and most ambiguous frames, of a query.

    # Losses
    contrastive_weight: float = 0.04  # Weight of the multi-positive contrastive loss.
    ambiguous_weight: float = 0.5  # Weight of an ambiguous pair among the positives, 0 to 1.
    margin: float = 0.2  # Margin between positives and negatives.
    ambiguous_margin: float = 0.1  # Margin between ambiguous pairs and negatives.
    order_margin: float = 0.0  # Margin between positives and ambiguous pairs.
    hard_from_epoch: int = 20  # First epoch with hard negatives. Earlier epochs draw random ones.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong videos.
    frame_level_weight: float = 0.1  # Weight of both losses at frame level. 0 switches them off.

    def __post_init__(self) -> None:
        shares = ("uncertainty_quantile", "similarity_quantile", "frame_similarity_quantile")
        check_ranges(self, sizes=("most_ambiguous",), shares=(*shares, "relative_similarity", "ambiguous_weight"))


@dataclass(frozen=True, kw_only=True)
class View:
    """What one model sees in a batch: similarities and uncertainties. Frames are those of the query's own video.

    Attributes:
        products: the best dot product of each query and video.
        cosines: the best cosine of each query and video.
        uncertainty: the uncertainty of each query and video.
        frame_cosines: the cosine of each query and frame, -inf for padding.
        frame_uncertainty: the uncertainty of each query and frame.
    """

    products: Float[Tensor, "Q B"]
    cosines: Float[Tensor, "Q B"]
    uncertainty: Float[Tensor, "Q B"]
    frame_cosines: Float[Tensor, "Q T"]
    frame_uncertainty: Float[Tensor, "Q T"]


class ARL(Capped):
    """A reconstruction of ARL. The docstring of the module lists what the paper does not say."""

    Config = ARLConfig
    clip_features = None
    reconstruction = True
    paper = Paper(
        method="ARL",
        title="Ambiguity-Restrained Text-Video Representation Learning for Partially Relevant Video Retrieval",
        bibtex="""@inproceedings{cho2025ambiguity,
  title = {Ambiguity-Restrained Text-Video Representation Learning for Partially Relevant Video Retrieval},
  author = {Cho, Cheol-Ho and Moon, WonJun and Jun, Woojin and Jung, MinSeok and Heo, Jae-Pil},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year = {2025}
}""",
    )

    def __init__(self, config: ARLConfig) -> None:
        super().__init__(config)
        common: dict[str, Any] = {
            "width": config.width,
            "num_heads": config.num_heads,
            "input_dropout": config.input_dropout,
            "dropout": config.dropout,
        }
        for model in MODELS:
            query = PooledQueryEncoder(input_width=config.text_width, num_positions=config.max_words, **common)
            frame = SequenceEncoder(input_width=config.video_width, num_positions=config.num_frames, **common)
            self.add_module(f"{model}_query", query)
            self.add_module(f"{model}_frame", frame)
            self.add_module(f"{model}_output", nn.Linear(config.width, config.width))
            # Not saved: start_epoch computes them from the weights, so a resumed run has the same ones.
            for mean in ("mean_frame", "mean_query"):
                self.register_buffer(f"{model}_{mean}", torch.zeros(config.width), persistent=False)
        self.apply(init_weights)

    # ------------------------------------------------------------ videos and queries

    @property
    def branches(self) -> dict[str, Branch]:
        """The frames of both models, with equal weights."""
        return {model: Branch(role="frames", rank_weight=0.5, curve_weight=0.5) for model in MODELS}

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the frames of each model. The vectors of padding are zeros.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        mask = expect_mask(videos, self.config)
        frames = unit_rows(videos.frames.to(self._part("a", "output").weight.dtype))
        encoded = {model: self._part(model, "output")(self._part(model, "frame")(frames, mask)) for model in MODELS}
        spans = equal_spans(mask)
        return {
            model: Tokens(vectors=vectors.masked_fill(~mask[..., None], 0), mask=mask, spans=spans)
            for model, vectors in encoded.items()
        }

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the pooled query of each model.

        Raises:
            BadBatch: the words have the wrong width.
        """
        queries = truncated(queries, self.config)
        return {model: self._part(model, "query")(queries.words, queries.mask) for model in MODELS}

    def _part(self, model: str, name: str) -> Any:
        """Return a layer or a buffer of one model."""
        return getattr(self, f"{model}_{name}")

    # ------------------------------------------------------------ training

    def start_epoch(self, epoch: int, batches: Iterable[Batch]) -> None:
        """Compute the mean unit frame and the mean unit query of the training set, for each model.

        The mean similarity of a query to all frames is its product with the mean unit frame, so the similarities of all
        queries and frames are never stored.
        """
        if epoch < self.config.ambiguity_from_epoch:
            return
        sums: dict[str, Tensor] = {}
        counts = {"mean_frame": 0, "mean_query": 0}
        for batch in batches:
            tokens = self.in_parts(self.encode_videos, batch.videos)
            queries = self.in_parts(self.encode_queries, batch.queries)
            counts["mean_frame"] += int(tokens["a"].mask.sum())
            counts["mean_query"] += len(batch.queries)
            for model in MODELS:  # padding is zeros, so it adds nothing
                for mean, vectors in (("mean_frame", tokens[model].vectors), ("mean_query", queries[model])):
                    name = f"{model}_{mean}"
                    sums[name] = sums.get(name, 0) + F.normalize(vectors, dim=-1).flatten(0, -2).sum(0)
        for model in MODELS:
            for mean, count in counts.items():
                self._part(model, mean).copy_(sums[f"{model}_{mean}"] / count)

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """Return the contrastive loss and the triplets of each model, at the level of videos and of frames."""
        tokens = self.in_parts(self.encode_videos, batch.videos)
        queries = self.in_parts(self.encode_queries, batch.queries)
        # Under autocast the encoders may use half precision. The losses need single precision, and take little time.
        with torch.autocast(batch.videos.frames.device.type, enabled=False):
            tokens = {model: replace(part, vectors=at_least_single(part.vectors)) for model, part in tokens.items()}
            queries = {model: at_least_single(vectors) for model, vectors in queries.items()}
            seen = {model: self.view(model, queries, tokens, batch.video_of_query) for model in MODELS}
            terms: dict[str, Tensor] = {}
            for model in MODELS:
                detector = seen[OTHER[model] if self.config.cross_model else model]
                of_model = self.video_losses(seen[model], detector, batch.video_of_query, epoch=epoch)
                of_model |= self.frame_losses(seen[model], detector, epoch=epoch)
                terms |= {f"{model}_{name}": term for name, term in of_model.items()}
        return terms

    def view(
        self, model: str, queries: Vectors, tokens: Mapping[str, Tokens], video_of_query: Int[Tensor, " Q"]
    ) -> View:
        """Return what one model sees in a batch.

        Args:
            model: "a" or "b".
            queries: the result of `encode_queries`, in at least single precision.
            tokens: the result of `encode_videos`, in at least single precision.
            video_of_query: the video of each query.
        """
        query, video = queries[model], tokens[model]
        unit_query, unit_frame = F.normalize(query, dim=-1), F.normalize(video.vectors, dim=-1)
        cosines = (unit_query @ unit_frame.flatten(0, 1).T).view(len(query), *video.mask.shape)
        best = cosines.masked_fill(~video.mask, -torch.inf).max(2)
        of_query = unit_query.detach() @ self._part(model, "mean_frame").to(query.dtype)
        of_frame = unit_frame.detach() @ self._part(model, "mean_query").to(query.dtype)
        rows = torch.arange(len(query), device=query.device)
        return View(
            products=scoring.max_sim(query, video.vectors, video.mask),
            cosines=best.values,
            uncertainty=ambiguity.pair_uncertainty(of_query, of_frame, best.indices),
            frame_cosines=cosines[rows, video_of_query].masked_fill(~video.mask[video_of_query], -torch.inf),
            frame_uncertainty=(of_query[:, None] + of_frame[video_of_query]) / 2,
        )

    def video_losses(
        self, seen: View, detector: View, video_of_query: Int[Tensor, " Q"], *, epoch: int
    ) -> dict[str, Float[Tensor, ""]]:
        """Return both losses of queries and videos for one model.

        Args:
            seen: what the model sees.
            detector: what the model sees that finds the ambiguous pairs.
            video_of_query: the video of each query.
            epoch: the number of the epoch, from 0.
        """
        config, hard = self.config, epoch >= self.config.hard_from_epoch
        own = video_of_query[:, None] == torch.arange(seen.cosines.shape[1], device=seen.cosines.device)
        ambiguous = torch.zeros_like(own)
        if epoch >= config.ambiguity_from_epoch:
            quantile = config.similarity_quantile
            ambiguous = self._detected(detector.cosines, detector.uncertainty, own, ~own, quantile)
        contrastive, triplets = [], []
        # From queries to videos, and from videos to queries. The number of hard negatives is that of the siblings.
        for turn, hard_pool in ((lambda each: each, config.hard_pool), (torch.t, 1)):
            sets = [turn(each) for each in (own, ambiguous, ~own & ~ambiguous)]
            contrastive.append(self._multi_positive(turn(seen.products), *sets))
            triplets.append(self._dual_triplet(turn(seen.cosines), *sets, pool=hard_pool if hard else None))
        return {"contrastive": config.contrastive_weight * sum(contrastive), "triplet": sum(triplets)}

    def frame_losses(self, seen: View, detector: View, *, epoch: int) -> dict[str, Float[Tensor, ""]]:
        """Return both losses of queries and frames of their own videos for one model.

        Args:
            seen: what the model sees.
            detector: what the model sees that finds the ambiguous frames.
            epoch: the number of the epoch, from 0.
        """
        config, hard = self.config, epoch >= self.config.hard_from_epoch
        cosines, weight = seen.frame_cosines, config.frame_level_weight
        if epoch < config.ambiguity_from_epoch or not weight:
            return {"frame_contrastive": cosines.new_zeros(()), "frame_triplet": cosines.new_zeros(())}
        real, position = cosines.isfinite(), torch.arange(cosines.shape[1], device=cosines.device)
        distance = (position - cosines.argmax(1, keepdim=True)).abs()
        of_detector = position == detector.frame_cosines.argmax(1, keepdim=True)
        ambiguous = self._detected(
            detector.frame_cosines,
            detector.frame_uncertainty,
            of_detector,
            real & ~of_detector,
            config.frame_similarity_quantile,
        ) & (distance > 0)
        sets = (distance == 0, ambiguous, real & ~ambiguous & (distance > 1))
        return {
            "frame_contrastive": weight * self._multi_positive(cosines, *sets),
            "frame_triplet": weight * self._dual_triplet(cosines, *sets, pool=config.hard_pool if hard else None),
        }

    def _detected(
        self, cosines: Tensor, uncertainty: Tensor, positive: Tensor, unlabelled: Tensor, quantile: float
    ) -> Bool[Tensor, "N M"]:
        config = self.config
        return ambiguity.detect(
            cosines,
            uncertainty,
            positive,
            unlabelled,
            uncertainty_quantile=config.uncertainty_quantile,
            similarity_quantile=quantile,
            relative_similarity=config.relative_similarity if config.detection == "relative" else None,
            most=config.most_ambiguous,
        )

    def _multi_positive(self, scores: Tensor, *sets: Tensor) -> Float[Tensor, ""]:
        return ambiguity.multi_positive(scores, *sets, ambiguous_weight=self.config.ambiguous_weight)

    def _dual_triplet(self, scores: Tensor, *sets: Tensor, pool: int | None) -> Float[Tensor, ""]:
        config = self.config
        return ambiguity.dual_triplet(
            scores,
            *sets,
            margin=config.margin,
            ambiguous_margin=config.ambiguous_margin,
            order_margin=config.order_margin,
            pool=pool,
        )
