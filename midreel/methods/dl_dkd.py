"""DL-DKD: "Dual Learning with Dynamic Knowledge Distillation for Partially Relevant Video Retrieval" (ICCV 2023).

Two light networks encode the same frames and words. The inheritance branch imitates how similar CLIP finds a query and
each frame of its video. The exploration branch only learns to retrieve. The weight of the imitation falls from epoch to
epoch. Search needs the student only, not CLIP.

DL-DKD++ (arXiv 2510.12283) replaces the labels of InfoNCE: `objective="plus_plus"`, the default. The scores of CLIP, or
of the exploration branch itself, soften the labels of a part of the queries and videos, and the part grows.

The teacher is read from the features of the frames: their last `teacher_width` columns must be from the CLIP that also
encodes the sentences. CLIP features are their own teacher, and so is the CLIP part of SlowFast and CLIP. Features of
another backbone are joined with those of CLIP (`midreel join`), and the student reads only the columns before CLIP's.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from midreel.errors import BadBatch, MissingFeatures
from midreel.losses import contrastive, distillation, ranking, soft_labels
from midreel.methods.base import Branch, check_ranges, equal_spans
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.capped import Capped, expect_mask, truncated
from midreel.methods.model_card import Paper
from midreel.nn.embed import init_weights, unit_rows
from midreel.nn.encoders import PooledQueryEncoder, SequenceEncoder
from midreel.ops import scoring
from midreel.ops.precision import at_least_single
from midreel.types import Tokens

BRANCHES = ("inheritance", "exploration")
# The falling share of DL-DKD++ is 800 / (800 + exp(epoch / 8)): it halves at epoch 8 log 800, about 53.
FALL_SCALE, FALL_EPOCHS = 800.0, 8.0
LARGEST_EXPONENT = 700.0  # exp() of a larger number overflows


@dataclass(frozen=True, kw_only=True)
class DLDKDConfig:
    """The settings of DL-DKD. The defaults are those of DL-DKD++ on ActivityNet Captions.

    Raises:
        BadSetting: a value is out of range.
        UnknownName: a value is not one of the choices.
    """

    method: Literal["dl_dkd"] = "dl_dkd"
    # plus_plus: DL-DKD++, with soft labels. hard_labels: the same network with hard labels. iccv: hard labels, and one
    # projection of words for both branches.
    objective: Literal["iccv", "hard_labels", "plus_plus"] = "plus_plus"

    # Inputs
    video_width: int = 1024  # Width of the frame features of the student. Must match the backbone.
    # Width of the joint space of CLIP. The last columns of the features are the teacher: of video_width columns, or of
    # video_width + teacher_width columns, where the student reads the first ones only.
    teacher_width: int = 512
    text_width: int = 1024  # Width of the word features. Must match the backbone.
    num_frames: int = 128  # A longer video is averaged to this many frames.
    num_clips: int = 32  # Number of clips in comparisons of methods. The network has no clips.
    max_words: int = 30  # Longest query, in tokens of the backbone. Later words are ignored.

    # Network
    width: int = 384  # Width of the encoded vectors. Must be a multiple of num_heads.
    num_heads: int = 4  # Attention heads.
    input_dropout: float = 0.25  # Dropout rate of the inputs.
    dropout: float = 0.25  # Dropout rate inside the network.
    inheritance_weight: float = 0.7  # Weight of the inheritance branch in the score. Exploration has the rest.

    # Losses
    margin: float = 0.2  # Margin of the triplet loss.
    hard_from_epoch: int = 0  # First epoch with hard negatives. Earlier epochs draw random ones.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong videos.
    inheritance_nce_weight: float = 0.04  # Weight of InfoNCE in the inheritance branch.
    exploration_nce_weight: float = 0.04  # Weight of InfoNCE in the exploration branch.
    distillation_weight: float = 0.1  # Weight of the distillation in the first epoch. It is a sum over the queries.
    distillation_decay: float = 0.95  # Factor of this weight from epoch to epoch.
    distillation_temperature: float = 0.2  # Temperature of the softmax over the frames of a video.
    # Soft labels, of plus_plus only. Both shares fall: times 800 / (800 + exp(epoch / 8)).
    hard_share: float = 0.8  # Share of the queries and videos with hard labels, and the weight of their losses.
    truth_share: float = 0.8  # Share of the hard label in a soft label.
    min_truth_share: float = 0.5  # The share of the hard label does not fall below this, if it starts above.

    def __post_init__(self) -> None:
        shares = ("inheritance_weight", "distillation_decay", "hard_share", "truth_share", "min_truth_share")
        check_ranges(self, positive=("distillation_temperature",), shares=shares)

    @property
    def feature_widths(self) -> tuple[int, int]:
        """The accepted widths of the features: the student's columns, and these joined with the teacher's."""
        return self.video_width, self.video_width + self.teacher_width


class DLDKD(Capped):
    """DL-DKD and DL-DKD++ as released. The losses are in `losses`."""

    Config = DLDKDConfig
    clip_features = None
    paper = Paper(
        method="DL-DKD",
        title="Dual Learning with Dynamic Knowledge Distillation for Partially Relevant Video Retrieval",
        bibtex="""@inproceedings{dong2023dual,
  title = {Dual Learning with Dynamic Knowledge Distillation for Partially Relevant Video Retrieval},
  author = {Dong, Jianfeng and Zhang, Minsong and Zhang, Zheng and Chen, Xianke and Liu, Daizong and Qu, Xiaoye and
            Wang, Xun and Liu, Baolong},
  booktitle = {IEEE/CVF International Conference on Computer Vision},
  year = {2023}
}

@article{dong2025dual,
  title = {Dual Learning with Dynamic Knowledge Distillation and Soft Alignment for Partially Relevant Video Retrieval},
  author = {Dong, Jianfeng and Huang, Lei and Liu, Daizong and others},
  journal = {arXiv preprint arXiv:2510.12283},
  year = {2025}
}""",
    )

    def __init__(self, config: DLDKDConfig) -> None:
        super().__init__(config)
        common: dict[str, Any] = {
            "width": config.width,
            "num_heads": config.num_heads,
            "input_dropout": config.input_dropout,
            "dropout": config.dropout,
        }
        of_query = {"input_width": config.text_width, "num_positions": config.max_words, **common}
        of_frame = {"input_width": config.video_width, "num_positions": config.num_frames, **common}
        self.inheritance_query = PooledQueryEncoder(**of_query)
        self.inheritance_frame = SequenceEncoder(**of_frame)
        self.inheritance_output = nn.Linear(config.width, config.width)
        self.exploration_query = PooledQueryEncoder(**of_query)
        self.exploration_frame = SequenceEncoder(**of_frame)
        self.exploration_output = nn.Linear(config.width, config.width)
        self.apply(init_weights)

    # ------------------------------------------------------------ videos

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Pad or average the frames to 128, and separate the columns of the teacher if they are not the student's.

        Raises:
            BadBatch: the features have another width than the student's, with or without the teacher's.
        """
        config = self.config
        if features.shape[-1] not in config.feature_widths:
            raise BadBatch(
                f"features have width {features.shape[-1]}, expected {config.video_width}, or "
                f"{config.feature_widths[1]} with the {config.teacher_width} columns of the "
                f"teacher last. Set video_width and teacher_width to the widths of the student and of CLIP."
            )
        videos = super().prepare_videos(features, num_frames)
        if features.shape[-1] == config.video_width:
            return videos  # without a second copy of the frames
        frames, teacher = videos.frames.split([config.video_width, config.teacher_width], -1)
        return replace(videos, frames=frames, teacher=teacher)

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the frames as each branch encodes them. The teacher is not read.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        mask = expect_mask(videos, self.config)
        frames = unit_rows(videos.frames)
        spans = equal_spans(mask)
        vectors = {
            "inheritance": self.inheritance_output(self.inheritance_frame(frames, mask)),
            "exploration": self.exploration_output(self.exploration_frame(frames, mask)),
        }
        return {branch: Tokens(vectors=each, mask=mask, spans=spans) for branch, each in vectors.items()}

    # ------------------------------------------------------------ queries

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the vector of each query in each branch. Words after the first `max_words` are ignored.

        Raises:
            BadBatch: the words have the wrong width.
        """
        queries = truncated(queries, self.config)
        # The ICCV release applies the projection of the inheritance branch in both branches.
        shared = self.inheritance_query.project if self.config.objective == "iccv" else None
        return {
            "inheritance": self.inheritance_query(queries.words, queries.mask),
            "exploration": self.exploration_query(queries.words, queries.mask, shared),
        }

    @property
    def branches(self) -> dict[str, Branch]:
        """Both branches on the same frames, with the same weights in the score and in the curve."""
        weight = self.config.inheritance_weight
        weights = {"inheritance": weight, "exploration": 1 - weight}
        return {
            branch: Branch(role="frames", rank_weight=weights[branch], curve_weight=weights[branch])
            for branch in BRANCHES
        }

    # ------------------------------------------------------------ losses

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """Return InfoNCE and triplet ranking of both branches, and the distillation of the inheritance branch.

        Raises:
            MissingFeatures: the batch has no sentence vectors or no teacher frames.
            BadBatch: the sentence vectors and the teacher frames have different widths, or not `teacher_width`.
        """
        config = self.config
        sentence, teacher = self._teacher(batch)
        tokens = self.in_parts(self.encode_videos, batch.videos)
        queries = self.in_parts(self.encode_queries, batch.queries)
        # Under autocast the encoders may use half precision. The losses need single precision, and take little time.
        with torch.autocast(batch.videos.frames.device.type, enabled=False):
            tokens = {branch: replace(part, vectors=at_least_single(part.vectors)) for branch, part in tokens.items()}
            queries = {branch: at_least_single(vectors) for branch, vectors in queries.items()}
            terms: dict[str, Float[Tensor, ""]] = {}
            for branch in BRANCHES:
                terms |= self._retrieval_losses(branch, queries[branch], tokens[branch], batch, epoch)
            inheritance = tokens["inheritance"]
            divergence = distillation.curve_divergence(
                scoring.own_cosines(queries["inheritance"], inheritance.vectors, batch.video_of_query),
                scoring.own_cosines(sentence, teacher, batch.video_of_query).to(inheritance.vectors.dtype),
                inheritance.mask[batch.video_of_query],
                temperature=config.distillation_temperature,
            )
            return terms | {"distillation": self.distillation_weight(epoch) * divergence}

    def _retrieval_losses(
        self, branch: str, query: Float[Tensor, "Q D"], video: Tokens, batch: Batch, epoch: int
    ) -> dict[str, Float[Tensor, ""]]:
        """Return InfoNCE and triplet ranking of a branch, weighted."""
        config = self.config
        products = scoring.max_sim(query, video.vectors, video.mask)
        if config.objective != "plus_plus":
            nce = contrastive.infonce(products, batch.video_of_query)
        else:
            softening = products  # the exploration branch softens its labels by its own scores, with their gradient
            if branch == "inheritance":
                softening = scoring.max_sim(*self._teacher(batch), video.mask).to(products.dtype)
            nce = soft_labels.soft_infonce(
                products,
                softening,
                batch.video_of_query,
                hard_share=self.hard_share(epoch),
                truth_share=self.truth_share(epoch),
            )
        triplet = ranking.triplet(
            scoring.cosine_max_sim(query, video.vectors, video.mask),
            batch.video_of_query,
            margin=config.margin,
            hard=epoch >= config.hard_from_epoch,
            hard_pool=config.hard_pool,
        )
        return {f"{branch}_nce": getattr(config, f"{branch}_nce_weight") * nce, f"{branch}_triplet": triplet}

    def distillation_weight(self, epoch: int) -> float:
        """Return the weight of the distillation in an epoch: 0.1 · 0.95^epoch."""
        return self.config.distillation_weight * self.config.distillation_decay**epoch

    def hard_share(self, epoch: int) -> float:
        """Return α of DL-DKD++ in an epoch: the share of the queries and videos with hard labels."""
        return self.config.hard_share * _falling(epoch)

    def truth_share(self, epoch: int) -> float:
        """Return β of DL-DKD++ in an epoch: the share of the hard label in a soft label."""
        config = self.config
        # As in the release, a share that starts below the minimum has none.
        least = config.min_truth_share if config.truth_share >= config.min_truth_share else 0.0
        return max(config.truth_share * _falling(epoch), least)

    def _teacher(self, batch: Batch) -> tuple[Float[Tensor, "Q E"], Float[Tensor, "B T E"]]:
        """Return the sentences and the frames in the joint space of CLIP, or raise if the batch does not have them."""
        sentence, teacher, width = batch.queries.sentence, batch.videos.teacher, self.config.teacher_width
        if sentence is None:
            raise MissingFeatures(
                f"queries have no sentence vectors, expected one of width {width} for each, because the teacher "
                f"compares them with frames. Encode the sentences with CLIP."
            )
        if teacher is None:
            if self.config.video_width < width:
                raise MissingFeatures(
                    f"videos have no teacher frames, and video_width is {self.config.video_width}, expected at least "
                    f"teacher_width = {width}. Join the features with CLIP's: midreel join"
                )
            teacher = batch.videos.frames[..., -width:]
        if sentence.shape[1] != width or teacher.shape[2] != width:
            raise BadBatch(
                f"sentences have width {sentence.shape[1]} and teacher frames {teacher.shape[2]}, expected "
                f"teacher_width = {width} for both: there is no joint space. Use sentences and frames of one CLIP, and "
                f"set teacher_width to its width."
            )
        return at_least_single(sentence), at_least_single(teacher)


def _falling(epoch: int) -> float:
    """Return the factor of the shares of DL-DKD++, from nearly 1 to 0."""
    return FALL_SCALE / (FALL_SCALE + math.exp(min(epoch / FALL_EPOCHS, LARGEST_EXPONENT)))
