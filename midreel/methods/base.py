"""What a method is: four verbs on batches, and a folder to be kept in."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Literal, get_args, get_origin

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from midreel import scoring, segments
from midreel.errors import BadBatch, BadSetting, UnknownName
from midreel.types import Batch, QueryBatch, Tokens, VideoBatch
from midreel.types import Encoded as Encoded
from midreel.types import Vectors as Vectors


class Method(
    nn.Module,
    PyTorchModelHubMixin,
    ABC,
    library_name="midreel",
    tags=["video-retrieval", "partially-relevant-video-retrieval"],
    license="apache-2.0",
):
    """A paper: it encodes videos and queries, scores them and, if it learns, says its losses.

    `save_pretrained(folder)` writes config.json and model.safetensors; `midreel.load_method(folder)` reads them back.
    """

    Config: ClassVar[type]
    config: Any

    @property
    def num_frames(self) -> int:
        return self.config.num_frames

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Backbone features of any length as this method takes them. Constant for frozen features: do it once."""
        frames = segments.resample(features, self.num_frames, num_frames)
        return VideoBatch(frames=frames, clip_of_frame=self.segment(frames))

    @abstractmethod
    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        """The clip that each frame belongs to."""

    @abstractmethod
    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Each branch's tokens of each video."""

    @abstractmethod
    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Each branch's vector of each query."""

    @property
    @abstractmethod
    def branch_weights(self) -> Mapping[str, float]:
        """What each branch contributes to the score."""

    def score(self, queries: Vectors, videos: Encoded) -> Float[Tensor, "Q B"]:
        """How well each query describes a part of each video: the branches' best cosines, weighted."""
        scores = (
            weight * scoring.cosine_max_sim(queries[branch], videos[branch].vectors, videos[branch].mask)
            for branch, weight in self.branch_weights.items()
        )
        return torch.stack(list(scores)).sum(0)

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """The terms whose sum is minimised, weighted, by name. A method that does not learn has none."""
        return {}


def check_settings(config: Any) -> None:
    """Raises unless every field of a config holds what its annotation says; configs come from people and from files."""
    for field in fields(config):
        value, kind = getattr(config, field.name), field.type
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise UnknownName.among(field.name, value, get_args(kind))
        if kind is bool and not isinstance(value, bool):
            raise BadSetting(f"{field.name} is {value!r}, expected true or false")
        if kind is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise BadSetting(f"{field.name} is {value!r}, expected a whole number")
        if kind is float and (not isinstance(value, int | float) or not math.isfinite(value)):
            raise BadSetting(f"{field.name} is {value!r}, expected a number")


def expect_whole(videos: VideoBatch) -> None:
    """Raises if the videos were padded, which a method that resamples would take for frames."""
    if videos.mask is not None:
        raise BadBatch(
            "videos have a mask, which this method does not take: it resamples short videos and never pads them; "
            "make the batch with its own prepare_videos(features)"
        )


def clip_inputs(videos: VideoBatch, num_clips: int) -> tuple[Float[Tensor, "B S C"], Int[Tensor, "B S"]]:
    """The clips' features, which are means unless the batch has its own, and their sizes in frames."""
    expect_whole(videos)
    sizes = segments.segment_sizes(videos.clip_of_frame, num_clips)
    if videos.clips is not None:
        return videos.clips, sizes
    return segments.segment_mean(videos.frames, videos.clip_of_frame, num_clips), sizes


def frame_spans(videos: VideoBatch) -> Float[Tensor, "B T 2"]:
    """Each frame stands for its share of the video."""
    mask = torch.ones_like(videos.clip_of_frame, dtype=torch.bool) if videos.mask is None else videos.mask
    return equal_spans(mask)


def equal_spans(mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S 2"]:
    """Each real token stands for an equal share of the video; one behind them for nothing, at the video's end."""
    edges = torch.arange(mask.shape[1] + 1, device=mask.device) / mask.sum(1, keepdim=True)
    return torch.stack((edges[:, :-1], edges[:, 1:]), -1).clamp_max(1)
