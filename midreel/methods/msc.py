"""MSC: "Mitigating Semantic Collapse in Partially Relevant Video Retrieval" (Moon, Jung et al., NeurIPS 2025).

If training only knows which query belongs to which video, the queries of a video collapse together, and so do its
segments. For texts, TCPL preserves the relations that CLIP sees between the queries. For videos, CBVA attracts frames
and clips of the same time and repels others. Its clips follow the content (order-preserving merging), and their number
follows the number of contexts (adaptive merging).

The network is GMMFormer v2's. docs/paper.md maps every equation to its function and lists the differences between
`variant="paper"` and `variant="released"`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from midreel.errors import BadSetting
from midreel.losses import alignment, relational
from midreel.methods.base import Encoded, Vectors, clip_inputs, expect_frames, segment_tokens, uniform_tokens
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.model_card import Paper
from midreel.methods.two_branch import TwoBranch, check_network
from midreel.nn.embed import unit_rows
from midreel.ops import segments
from midreel.ops.checks import expect_indices
from midreel.ops.precision import at_least_single
from midreel.types import Tokens

VCPL_SPANS = 4  # tokens of a video in VCPL with uniform sampling

# The numbers of tokens after each merge in the released code, which has them as literals for 128 frames and 32 clips.
RELEASED_FRAME_LENGTHS = (128, 80, 52, 32)
RELEASED_CLIP_LENGTHS = (32, 20, 12, 8, 5)


@dataclass(frozen=True, kw_only=True)
class MSCConfig:
    """The settings of MSC. The defaults are the paper's on QVHighlights.

    Raises:
        BadSetting: a value is out of range, or two values contradict each other.
        UnknownName: a value is not one of the choices.
    """

    method: Literal["msc"] = "msc"

    # Inputs
    video_width: int = 2816  # Width of the frame features. Must match the backbone.
    text_width: int = 512  # Width of the word features. Must match the backbone.
    num_frames: int = 128  # Every video is resampled to this many frames.
    num_clips: int = 32  # Every video is cut into this many clips.
    max_words: int = 77  # Longest query, in tokens of the backbone.

    # Network
    width: int = 384  # Width of the encoded vectors. Must be a multiple of num_heads.
    num_heads: int = 4  # Attention heads.
    temperature: float = 0.6  # Temperature of the softmax over the Gaussian widths.
    input_dropout: float = 0.31  # Dropout rate of the inputs.
    dropout: float = 0.31  # Dropout rate inside the network.
    frame_weight: float = 0.6  # Weight of the frame branch in the score. The clip branch has the rest.

    # Parts of the paper, as switches for ablations
    variant: Literal["paper", "released"] = "paper"  # paper: as the paper says. released: as the authors' code does.
    tcpl: bool = True  # Preserve the relations between queries in CLIP's text space.
    # order_preserving: clips that follow the content (OP-ToMe). uniform: clips of equal length.
    clips: Literal["uniform", "order_preserving"] = "order_preserving"
    cbva: bool = True  # Align frames and clips of the same time.
    adaptive: bool = True  # Merge similar clips before CBVA. No effect without cbva.
    # Control experiment of the paper: TCPL's loss on the video side.
    vcpl: Literal["none", "retrieved", "uniform"] = "none"

    # Token merging
    merge_rate: float = 0.75  # Share of the pairs that one merging step joins: N / 100 in the paper.
    min_clips: int = 5  # Adaptive merging keeps at least this many clips: C_min.
    similarity_threshold: float = 0.7  # τ: clips above this cosine are similar. Adaptive merging joins more of them.

    # Losses
    clip_nce_weight: float = 0.02  # Weight of InfoNCE in the clip branch.
    frame_nce_weight: float = 0.04  # Weight of InfoNCE in the frame branch.
    margin: float = 0.2  # Margin of the triplet loss.
    hard_from_epoch: int = 20  # First epoch with hard negatives. Earlier epochs draw random ones.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong videos.
    tcpl_distance_weight: float = 15.0  # Weight of TCPL's distance term: λ^E.
    tcpl_angle_weight: float = 30.0  # Weight of TCPL's angle term: λ^A.
    cbva_weight: float = 0.1  # Weight of CBVA: λ^CBVA.
    vcpl_weight: float = 1.0  # Weight of VCPL.
    vcpl_teacher: Literal["clip", "all"] = "clip"  # clip: the last text_width channels, which are CLIP's features.
    vcpl_jitter: bool = False  # With vcpl=uniform: a random token of each span instead of its centre.

    def __post_init__(self) -> None:
        check_network(self)
        if not -1 <= self.similarity_threshold <= 1:
            raise BadSetting(
                f"similarity_threshold is {self.similarity_threshold}, expected a cosine, -1 to 1. Try 0.7."
            )
        if self.min_clips < 1:
            raise BadSetting(f"min_clips is {self.min_clips}, expected at least 1. Try 5.")
        if not 0 < self.merge_rate <= 1:
            raise BadSetting(f"merge_rate is {self.merge_rate}, expected a share above 0 and at most 1. Try 0.75.")
        sizes = (self.num_frames, self.num_clips, self.merge_rate, self.min_clips)
        if self.variant == "released" and sizes != (128, 32, 0.75, 5):
            raise BadSetting(
                f"num_frames, num_clips, merge_rate and min_clips are {sizes}, expected (128, 32, 0.75, 5) for variant "
                f"'released'. Use variant 'paper' to change them."
            )
        if self.cbva and self.adaptive and self.min_clips > self.num_clips:
            raise BadSetting(
                f"min_clips is {self.min_clips}, expected at most num_clips = {self.num_clips}. Lower it, or set "
                f"adaptive to false."
            )
        if self.vcpl != "none" and self.vcpl_teacher == "clip" and self.text_width > self.video_width:
            raise BadSetting(
                f"text_width is {self.text_width}, expected at most video_width = {self.video_width} for vcpl_teacher "
                f"'clip'. Use vcpl_teacher 'all'."
            )


class MSC(TwoBranch):
    """MSC, as in the paper or as released (`MSCConfig.variant`). Each part of the paper can be switched off."""

    Config: ClassVar[type] = MSCConfig
    paper = Paper(
        method="MSC",
        title="Mitigating Semantic Collapse in Partially Relevant Video Retrieval",
        bibtex="""@inproceedings{moon2025mitigating,
  title = {Mitigating Semantic Collapse in Partially Relevant Video Retrieval},
  author = {Moon, WonJun and Jung, MinSeok and Park, Gilhan and Kim, Tae-Young and Cho, Cheol-Ho and Jun, Woojin and
            Heo, Jae-Pil},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2025}
}""",
    )

    def __init__(self, config: MSCConfig) -> None:
        super().__init__(config)
        self.alignment_projection = nn.Linear(config.width, config.width) if config.variant == "released" else None
        self.reset_weights()

    # ------------------------------------------------------------ videos

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Resample the frames to 128 and cut them into clips. The released variant also returns clip features."""
        if self.config.clips == "uniform" or self.config.variant == "paper":
            return super().prepare_videos(features, num_frames)
        # Many clips of a short video are equal, and rounding decides which are merged. So the released variant also
        # needs the clip features with the rounding of the released code.
        frames = segments.resample(features, self.num_frames, num_frames)
        clips, clip_of_frame = segments.order_preserving_by_dot(frames, RELEASED_FRAME_LENGTHS)
        return VideoBatch(frames=frames, clip_of_frame=clip_of_frame, clips=clips)

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values (docs/export.md)."""
        config, known = self.config, super().preparation() | {"clips": self.config.clips}
        if config.clips == "uniform":
            return known
        if config.variant == "released":
            return known | {"similarity": "dot", "lengths": list(RELEASED_FRAME_LENGTHS)}
        lengths = segments.merge_schedule(config.num_frames, config.num_clips, config.merge_rate)
        return known | {"similarity": "cosine", "lengths": lengths}

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        """Return clips of equal length, or of similar neighbouring frames (Algorithm 1)."""
        config = self.config
        if config.clips == "uniform":
            return segments.uniform(frames, config.num_clips)
        if config.variant == "released":
            return segments.order_preserving(frames, similarity="dot", lengths=RELEASED_FRAME_LENGTHS)
        return segments.order_preserving(frames, config.num_clips, config.merge_rate)

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return V̄_c and V̄_f: the encoded clips and frames.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        expect_frames(videos, self.config)
        if not torch.compiler.is_compiling():  # while an export traces the graph, the tensors have no values
            expect_indices("clip_of_frame", videos.clip_of_frame, self.config.num_clips, "the clips of a video")
        dtype = self.weight_token.dtype
        means, sizes = clip_inputs(videos, self.config.num_clips)
        # Proportional attention: a clip counts as many times as it has frames. log 0 = -inf hides a clip without
        # frames, which exists if a video has fewer frames than clips.
        clips = self.clip(unit_rows(means.to(dtype)), self.weight_token, sizes.to(dtype).log())
        frames = self.frame(unit_rows(videos.frames.to(dtype)), self.weight_token)
        return {"clip": segment_tokens(clips, videos.clip_of_frame), "frame": uniform_tokens(frames)}

    @property
    def as_released(self) -> bool:
        """Whether the variant is "released"."""
        return self.config.variant == "released"

    # ------------------------------------------------------------ losses

    def own_losses(
        self, queries: Vectors, tokens: Encoded, batch: Batch, *, epoch: int = 0
    ) -> dict[str, Float[Tensor, ""]]:
        """Return what L^overall, Eq. (10), adds to L^base: L^TCPL, λ^CBVA L^CBVA and VCPL, if they are switched on."""
        terms: dict[str, Tensor] = {}
        if self.config.tcpl:
            terms |= self.tcpl_losses(queries["frame"], batch.queries)
        if self.config.cbva:
            terms |= self.cbva_loss(tokens, batch.videos)
        if self.config.vcpl != "none":
            terms |= self.vcpl_losses(queries, tokens, batch)
        return terms

    def tcpl_losses(self, pooled: Float[Tensor, "Q D"], queries: QueryBatch) -> dict[str, Float[Tensor, ""]]:
        """Return the summands of L^TCPL = λ^E L^E + λ^A L^A, Eq. (6).

        Args:
            pooled: T̄, the student.
            queries: the words. Their [EOS] tokens T^EOS, scaled to length one, are the teacher unless `teacher` is set.
        """
        queries = self.truncated(queries)
        teacher = last_words(unit_rows(queries.words), queries.mask) if queries.teacher is None else queries.teacher
        return self._relations("tcpl", pooled, teacher, weight=1.0)

    def cbva_loss(self, tokens: Encoded, videos: VideoBatch) -> dict[str, Float[Tensor, ""]]:
        """Return λ^CBVA L^CBVA, Eq. (8), on the clips or, if adaptive, on the clips merged by Algorithm 3.

        Args:
            tokens: V̄_c and V̄_f by branch.
            videos: the frozen features, which determine the merges.
        """
        frames, clips, clip_of_frame = tokens["frame"].vectors, tokens["clip"].vectors, videos.clip_of_frame
        if self.config.adaptive:
            means, sizes = clip_inputs(videos, self.config.num_clips)
            merged_of_clip = self.merge_clips(means, sizes)
            clips = segments.segment_mean(clips, merged_of_clip, self.config.num_clips, sizes)
            clip_of_frame = segments.compose(clip_of_frame, merged_of_clip)
        if self.alignment_projection is None:
            loss = alignment.cross_branch_alignment(frames, clips, clip_of_frame)
        else:
            project = self.alignment_projection
            loss = alignment.released_alignment(project(frames), project(clips), clip_of_frame)
        return {"cbva": self.config.cbva_weight * loss}

    def merge_clips(self, clips: Float[Tensor, "B S C"], sizes: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
        """Return the context of each clip, Algorithm 3.

        Args:
            clips: V_c, the frozen features of the clips.
            sizes: the number of frames of each clip.
        """
        config = self.config
        if config.variant == "released":
            return segments.adaptive(
                released_unit_rows(clips),
                sizes,
                config.similarity_threshold,
                RELEASED_CLIP_LENGTHS,
                transitive=True,
                exclusive=True,
            )
        lengths = segments.levels(config.num_clips, config.merge_rate, config.min_clips)
        return segments.adaptive(unit_rows(clips), sizes, config.similarity_threshold, lengths)

    def vcpl_losses(self, queries: Vectors, tokens: Encoded, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """Return the summands of VCPL, the control experiment of Table 2: the losses of TCPL on video tokens.

        The student is encoded tokens of both branches, the teacher their frozen features. `MSCConfig.vcpl` chooses the
        tokens: the best one of each query, or tokens at equal distances.

        Args:
            queries: the result of `encode_queries`, in at least single precision.
            tokens: the result of `encode_videos`, in at least single precision.
            batch: the batch.
        """
        channels = self.config.text_width if self.config.vcpl_teacher == "clip" else self.config.video_width
        means, _ = clip_inputs(batch.videos, self.config.num_clips)
        frozen = {"clip": means, "frame": at_least_single(batch.videos.frames)}
        terms: dict[str, Tensor] = {}
        for branch, features in frozen.items():
            student, teacher = tokens[branch].vectors, unit_rows(features[..., -channels:])
            if self.config.vcpl == "retrieved":
                chosen = relational.retrieved_token_of_query(queries[branch], student, batch.video_of_query)
                student, teacher = student[batch.video_of_query, chosen], teacher[batch.video_of_query, chosen]
            else:
                chosen = relational.spread_tokens(student.shape[1], VCPL_SPANS, jitter=self.config.vcpl_jitter)
                student, teacher = student[:, chosen].flatten(0, 1), teacher[:, chosen].flatten(0, 1)
            for name, term in self._relations("vcpl", student, teacher, self.config.vcpl_weight).items():
                terms[name] = terms.get(name, 0) + term
        return terms

    def _relations(
        self, name: str, student: Float[Tensor, "N D"], teacher: Float[Tensor, "N C"], weight: float
    ) -> dict[str, Float[Tensor, ""]]:
        """Return λ^E L^E and λ^A L^A times a weight, Eqs. (4) to (6)."""
        distance = relational.distance_preservation(
            student, teacher, include_diagonal=self.config.variant == "released"
        )
        angle = relational.angle_preservation(student, teacher)
        return {
            f"{name}_distance": weight * self.config.tcpl_distance_weight * distance,
            f"{name}_angle": weight * self.config.tcpl_angle_weight * angle,
        }


def released_unit_rows(clips: Float[Tensor, "B S C"]) -> Float[Tensor, "B S C"]:
    """Scale rows to length one like `unit_rows`, with the rounding of numpy, which the released code uses.

    Clips of a short video may differ only by rounding errors, which then determine the merges.
    """
    precise = clips.cpu().to(torch.promote_types(clips.dtype, torch.float32))
    lengths = np.linalg.norm(precise.numpy(), axis=-1, keepdims=True)
    return clips / (torch.from_numpy(lengths).to(clips) + 1e-5)


def last_words(words: Float[Tensor, "Q L C"], mask: Bool[Tensor, "Q L"]) -> Float[Tensor, "Q C"]:
    """Return T^EOS, Eq. (3): the last real word of each query, which is [EOS]."""
    position = torch.arange(mask.shape[1], device=mask.device)
    return words[torch.arange(len(words), device=words.device), (mask * position).argmax(1)]
