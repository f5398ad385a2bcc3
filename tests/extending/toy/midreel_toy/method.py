"""A small method of three branches: halves of a video, its clips, and its frames, each a projection of the features."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from midreel.losses import contrastive
from midreel.methods.base import Branch, Method, check_settings, frame_spans
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.card import Paper
from midreel.ops import scoring, segments
from midreel.types import Tokens


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
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
        halves = segments.uniform(videos.frames, 2)
        return {
            "half": _means(frames, halves, 2),
            "shot": _means(frames, videos.clip_of_frame, self.config.num_clips),
            "instant": Tokens(
                vectors=frames, mask=torch.ones(frames.shape[:2], dtype=torch.bool), spans=frame_spans(videos)
            ),
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


def _means(frames: Float[Tensor, "B T D"], segment_of_frame: Int[Tensor, "B T"], number: int) -> Tokens:
    return Tokens(
        vectors=segments.segment_mean(frames, segment_of_frame, number),
        mask=segments.segment_sizes(segment_of_frame, number) > 0,
        spans=segments.segment_spans(segment_of_frame, number),
    )
