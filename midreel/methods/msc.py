"""MSC: "Mitigating Semantic Collapse in Partially Relevant Video Retrieval" (Moon, Jung et al., NeurIPS 2025).

Queries of one video, and segments of one video, collapse together when all that training knows is which query belongs
to which video. On the text side TCPL keeps the relations that CLIP sees among the queries; on the video side CBVA makes
frames and clips of one time attract and others repel, helped by clips that follow the content (order-preserving
merging) and by as many of them as there are contexts (adaptive merging).

The architecture is GMMFormer-v2's. docs/paper.md maps every equation to its function here and below, and lists what
`variant = "paper"` and `variant = "released"` do differently.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from midreel.errors import BadSetting
from midreel.losses import alignment, relational
from midreel.methods.base import Encoded, Vectors, clip_inputs, frame_spans
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.card import Paper
from midreel.methods.two_branch import TwoBranch, check_network
from midreel.nn.embed import unit_rows
from midreel.ops import segments
from midreel.ops.checks import expect_indices
from midreel.ops.precision import at_least_single
from midreel.types import Tokens

VCPL_SPANS = 4

# The released code holds these as literals, for 128 frames and 32 clips only.
RELEASED_FRAME_LENGTHS = (128, 80, 52, 32)
RELEASED_CLIP_LENGTHS = (32, 20, 12, 8, 5)


@dataclass(frozen=True, kw_only=True)
class MSCConfig:
    """Defaults are the paper's, on QVHighlights."""

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
    temperature: float = 0.6  # Temperature of the mixture over Gaussian widths.
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
    merge_rate: float = 0.75  # Share of the pairs that one merging step joins.
    min_clips: int = 5  # Adaptive merging keeps at least this many clips.
    similarity_threshold: float = 0.7  # Clips above this cosine are similar; adaptive merging joins more of them.

    # Losses
    clip_nce_weight: float = 0.02  # Weight of InfoNCE in the clip branch.
    frame_nce_weight: float = 0.04  # Weight of InfoNCE in the frame branch.
    margin: float = 0.2  # Margin of the triplet loss.
    hard_from_epoch: int = 20  # First epoch with hard negatives. Earlier epochs draw random ones.
    hard_pool: int = 20  # A hard negative is drawn from this many highest-ranked wrong videos.
    tcpl_distance_weight: float = 15.0  # Weight of TCPL's distance term.
    tcpl_angle_weight: float = 30.0  # Weight of TCPL's angle term.
    cbva_weight: float = 0.1  # Weight of CBVA.
    vcpl_weight: float = 1.0  # Weight of VCPL.
    vcpl_teacher: Literal["clip", "all"] = "clip"  # clip: the last text_width channels, which are CLIP's features.
    vcpl_jitter: bool = False  # With vcpl=uniform: a random token of each span instead of its centre.

    def __post_init__(self) -> None:
        check_network(self)
        if not -1 <= self.similarity_threshold <= 1:
            raise BadSetting(
                f"similarity_threshold is {self.similarity_threshold}, expected a cosine, from -1 to 1; try 0.7"
            )
        if self.min_clips < 1:
            raise BadSetting(f"min_clips is {self.min_clips}, expected at least 1; try 5")
        if not 0 < self.merge_rate <= 1:
            raise BadSetting(
                f"merge_rate is {self.merge_rate}, expected a share of the pairs above 0 and at most 1; try 0.75"
            )
        sizes = (self.num_frames, self.num_clips, self.merge_rate, self.min_clips)
        if self.variant == "released" and sizes != (128, 32, 0.75, 5):
            raise BadSetting(
                f"num_frames, num_clips, merge_rate and min_clips are {sizes}, but variant 'released' has them fixed "
                f"at (128, 32, 0.75, 5); use variant 'paper' to change them"
            )
        if self.cbva and self.adaptive and self.min_clips > self.num_clips:
            raise BadSetting(
                f"min_clips is {self.min_clips}, expected at most num_clips = {self.num_clips}; lower it, or set "
                f"adaptive to false"
            )
        if self.vcpl != "none" and self.vcpl_teacher == "clip" and self.text_width > self.video_width:
            raise BadSetting(
                f"vcpl_teacher 'clip' takes the last text_width = {self.text_width} channels of features that have "
                f"{self.video_width}; use vcpl_teacher 'all'"
            )


class MSC(TwoBranch):
    Config = MSCConfig
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

    # ------------------------------------------------------------ the verbs

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        if self.config.clips == "uniform" or self.config.variant == "paper":
            return super().prepare_videos(features, num_frames)
        # Of a short video many clips are equal, and how the release rounds them decides which of them it merges next.
        frames = segments.resample(features, self.num_frames, num_frames)
        clips, clip_of_frame = segments.order_preserving_by_dot(frames, RELEASED_FRAME_LENGTHS)
        return VideoBatch(frames=frames, clip_of_frame=clip_of_frame, clips=clips)

    def preparation(self) -> dict[str, Any]:
        config, known = self.config, super().preparation() | {"clips": self.config.clips}
        if config.clips == "uniform":
            return known
        if config.variant == "released":
            return known | {"similarity": "dot", "lengths": list(RELEASED_FRAME_LENGTHS)}
        lengths = segments.merge_schedule(config.num_frames, config.num_clips, config.merge_rate)
        return known | {"similarity": "cosine", "lengths": lengths}

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        config = self.config
        if config.clips == "uniform":
            return segments.uniform(frames, config.num_clips)
        if config.variant == "released":
            return segments.order_preserving(frames, similarity="dot", lengths=RELEASED_FRAME_LENGTHS)
        return segments.order_preserving(frames, config.num_clips, config.merge_rate)

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        self._expect_frames(videos)
        if not torch.compiler.is_compiling():  # a graph has numbers only when it runs, and nothing to raise
            expect_indices("clip_of_frame", videos.clip_of_frame, self.config.num_clips, "the clips of a video")
        dtype = self.weight_token.dtype
        means, sizes = clip_inputs(videos, self.config.num_clips)
        # Proportional attention: a clip weighs as much as the frames it holds. An empty one (fewer frames than clips
        # were asked for) is hidden: log 0 is -inf.
        clips = self.clip(unit_rows(means.to(dtype)), self.weight_token, sizes.to(dtype).log())
        frames = self.frame(unit_rows(videos.frames.to(dtype)), self.weight_token)
        return {
            "clip": Tokens(
                vectors=clips,
                mask=sizes > 0,
                spans=segments.segment_spans(videos.clip_of_frame, self.config.num_clips),
            ),
            "frame": Tokens(
                vectors=frames,
                mask=torch.ones_like(videos.clip_of_frame, dtype=torch.bool),
                spans=frame_spans(videos),
            ),
        }

    @property
    def as_released(self) -> bool:
        return self.config.variant == "released"

    def own_losses(self, queries: Vectors, tokens: Encoded, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """What L^overall adds to L^base: L^TCPL, L^CBVA and the VCPL control, where they are switched on."""
        terms: dict[str, Tensor] = {}
        if self.config.tcpl:
            terms |= self.tcpl_losses(queries["frame"], batch.queries)
        if self.config.cbva:
            terms |= self.cbva_loss(tokens, batch.videos)
        if self.config.vcpl != "none":
            terms |= self.vcpl_losses(queries, tokens, batch)
        return terms

    # ------------------------------------------------------------ the terms

    def tcpl_losses(self, pooled: Float[Tensor, "Q D"], queries: QueryBatch) -> dict[str, Float[Tensor, ""]]:
        """L^TCPL (Sec. 3.2): the pooled queries keep the distances and angles of CLIP's [EOS] tokens."""
        queries = self.taken(queries)
        teacher = last_words(unit_rows(queries.words), queries.mask) if queries.teacher is None else queries.teacher
        return self._relations("tcpl", pooled, teacher, weight=1.0)

    def cbva_loss(self, tokens: Encoded, videos: VideoBatch) -> dict[str, Float[Tensor, ""]]:
        """L^CBVA (Sec. 3.3), on the clips as they are or, if adaptive, merged to the video's number of contexts."""
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
        """Algorithm 3 on the frozen features of the clips: which clips are one context."""
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
        """VCPL (Table "VideoCPL"), the control experiment: TCPL's losses on video tokens, in both branches."""
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
        distance = relational.distance_preservation(
            student, teacher, include_diagonal=self.config.variant == "released"
        )
        angle = relational.angle_preservation(student, teacher)
        return {
            f"{name}_distance": weight * self.config.tcpl_distance_weight * distance,
            f"{name}_angle": weight * self.config.tcpl_angle_weight * angle,
        }


def released_unit_rows(clips: Float[Tensor, "B S C"]) -> Float[Tensor, "B S C"]:
    """`unit_rows` with the lengths rounded as numpy rounds them, which the release used.

    Clips of a short video are equal but for rounding, and then rounding decides which of them are merged.
    """
    precise = clips.cpu().to(torch.promote_types(clips.dtype, torch.float32))
    lengths = np.linalg.norm(precise.numpy(), axis=-1, keepdims=True)
    return clips / (torch.from_numpy(lengths).to(clips) + 1e-5)


def last_words(words: Float[Tensor, "Q L C"], mask: Bool[Tensor, "Q L"]) -> Float[Tensor, "Q C"]:
    """The last real word of each query, which is [EOS]."""
    position = torch.arange(mask.shape[1], device=mask.device)
    return words[torch.arange(len(words), device=words.device), (mask * position).argmax(1)]
