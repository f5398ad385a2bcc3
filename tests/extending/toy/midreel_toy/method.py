"""A small method of three branches: the halves, the clips and the frames of a video, each a linear projection."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from midreel.losses import contrastive
from midreel.methods.base import Branch, Method, check_settings, segment_tokens, uniform_tokens
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.model_card import Paper
from midreel.ops import scoring, segments
from midreel.types import Tokens


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    """The settings of the toy method."""

    method: Literal["toy"] = "toy"
    video_width: int = 128
    text_width: int = 128
    num_frames: int = 16
    num_clips: int = 4
    max_words: int = 77
    width: int = 32

    def __post_init__(self) -> None:
        check_settings(self)


class Toy(Method):
    """The toy method."""

    Config = ToyConfig
    paper = Paper(method="Toy", title="A method of another package", bibtex="@misc{toy}")

    def __init__(self, config: ToyConfig) -> None:
        super().__init__(config)
        self.video = nn.Linear(config.video_width, config.width)
        self.text = nn.Linear(config.text_width, config.width)

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {
            "half": Branch(role="segments", rank_weight=0.2, curve_weight=0.0),
            "shot": Branch(role="segments", rank_weight=0.5, curve_weight=1.0),
            "instant": Branch(role="frames", rank_weight=0.3, curve_weight=1.0),
        }

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        return segments.uniform(frames, self.config.num_clips)

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        frames = self.video(videos.frames)
        half_of_frame = segments.uniform(videos.frames, 2)
        halves = segments.segment_mean(frames, half_of_frame, 2)
        shots = segments.segment_mean(frames, videos.clip_of_frame, self.config.num_clips)
        return {
            "half": segment_tokens(halves, half_of_frame),
            "shot": segment_tokens(shots, videos.clip_of_frame),
            "instant": uniform_tokens(frames),
        }

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        words = self.text(queries.words) * queries.mask[..., None]
        mean = words.sum(1) / queries.mask.sum(1, keepdim=True)
        return dict.fromkeys(self.branches, mean)

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        videos, queries = self.encode_videos(batch.videos), self.encode_queries(batch.queries)
        return {
            f"{name}_nce": contrastive.infonce(
                10 * scoring.cosine_max_sim(queries[name], part.vectors, part.mask), batch.video_of_query
            )
            for name, part in videos.items()
        }
