"""The methods without training, on numpy arrays: CLIP zero-shot and TF-PRVR encode without torch.

They compute what `clip_zero_shot.py` and `tf_prvr.py` compute, and a test compares the two.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from midreel.errors import BadBatch, BadModel, BadSetting
from midreel.methods.settings import CLIP_CURVE_WEIGHT, FRAME_CURVE_WEIGHT, check_ranges
from midreel.ops import preparation
from midreel.ops.moment_graph import Variant, moment_vectors
from midreel.ops.schedules import merge_schedule
from midreel.types import Similarity, TextFeatures, Tokens

EMPTY = (8).to_bytes(8, "little") + b"{}      "  # a safetensors file without weights


@dataclass(frozen=True, kw_only=True)
class ClipZeroShotConfig:
    """The settings of CLIP zero-shot.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["clip_zero_shot"] = "clip_zero_shot"
    width: int = 512  # Width of the joint space of images and texts.
    num_frames: int = 128  # Every video is resampled to this many frames.
    num_clips: int = 32  # Every video is cut into this many clips.
    # order_preserving: clips that follow the content (OP-ToMe). uniform: clips of equal length. whole: the whole video,
    # as the mean of all its frames.
    clips: Literal["uniform", "order_preserving", "whole"] = "uniform"
    clip_weight: float = 0.0  # Weight of the clip branch in the score. The frame branch has the rest.

    def __post_init__(self) -> None:
        check_ranges(self, shares=("clip_weight",))
        if self.clips == "whole" and self.num_clips != 1:
            raise BadSetting(f"num_clips is {self.num_clips}, expected 1 for clips 'whole'. Set num_clips to 1.")

    def preparation(self) -> dict[str, Any]:
        """Return the description of the preparation of videos (docs/export.md)."""
        known = {"frames": "averaged", "num_frames": self.num_frames, "num_clips": self.num_clips, "clips": self.clips}
        if self.clips != "order_preserving":
            return known
        return known | {"similarity": "cosine", "lengths": merge_schedule(self.num_frames, self.num_clips)}


@dataclass(frozen=True, kw_only=True)
class TFPRVRConfig:
    """The settings of TF-PRVR.

    Raises:
        BadSetting: a value is out of range.
    """

    method: Literal["tf_prvr"] = "tf_prvr"
    width: int = 512  # Width of the joint space of images and texts.
    num_frames: int = 128  # A longer video is averaged to this many frames. A shorter one keeps its own.
    spread: float = 0.7  # How far relevance spreads over the graph, β. 0: not at all.
    variant: Variant = "released"  # paper: as the paper says. released: as the authors' code does.

    def __post_init__(self) -> None:
        check_ranges(self)
        if not 0 <= self.spread < 1:
            raise BadSetting(f"spread is {self.spread}, expected at least 0 and below 1. Try 0.7.")

    @property
    def num_clips(self) -> int:
        """The largest number of tokens of a video: one for each frame."""
        return self.num_frames


class UntrainedEncoder(ABC):
    """Encodes videos and queries with a method that has no weights. It implements `midreel.library.encoder.Encoder`.

    Args:
        config: The settings of the method.
    """

    branch_weights: dict[str, float]
    curve_weights: dict[str, float]
    similarities: dict[str, Similarity]

    def __init__(self, config: Any) -> None:
        self.config = config
        self.width, self.num_frames = config.width, config.num_frames

    def encode_videos(self, frames: Float[np.ndarray, "B T C"]) -> dict[str, Tokens]:
        """Return each branch's tokens of videos that have the same number of frames.

        Raises:
            BadBatch: the frames are narrower than the joint space.
        """
        if frames.shape[2] < self.width:
            raise BadBatch(
                f"frames have width {frames.shape[2]}, expected at least {self.width}. Set width to the width of the "
                f"joint space."
            )
        each = [self._encode(video) for video in np.asarray(frames, np.float32)]
        return {
            branch: Tokens(
                vectors=np.stack([video[branch][0] for video in each]),
                mask=np.stack([video[branch][1] for video in each]),
                spans=np.stack([video[branch][2] for video in each]),
            )
            for branch in self.branch_weights
        }

    @abstractmethod
    def _encode(self, frames: Float[np.ndarray, "T C"]) -> dict[str, tuple[Any, Any, Any]]:
        """Return the vectors, mask and spans of each branch, for one video."""

    def encode_queries(self, texts: Sequence[TextFeatures]) -> dict[str, Float[np.ndarray, "Q D"]]:
        """Return each branch's vectors of the queries."""
        sentences = np.stack([np.asarray(text.sentence, np.float32) for text in texts])
        if sentences.shape[1] != self.width:
            raise BadBatch(
                f"sentences have width {sentences.shape[1]}, expected {self.width}. Use the backbone of the frames."
            )
        return dict.fromkeys(self.branch_weights, self._query(sentences))

    def _query(self, sentences: Float[np.ndarray, "Q D"]) -> Float[np.ndarray, "Q D"]:
        return sentences

    def files(self) -> dict[str, bytes]:
        """Return the files of the model by name. They are the same bytes as with torch."""
        config = json.dumps(asdict(self.config), indent=2, sort_keys=True).encode()
        return {"config.json": config, "model.safetensors": EMPTY}


class ZeroShotEncoder(UntrainedEncoder):
    """Tokens are the frames, and the means of clips."""

    def __init__(self, config: ClipZeroShotConfig) -> None:
        super().__init__(config)
        self.branch_weights = {"clip": config.clip_weight, "frame": 1 - config.clip_weight}
        self.curve_weights = {"clip": CLIP_CURVE_WEIGHT, "frame": FRAME_CURVE_WEIGHT}
        self.similarities = {}

    def _encode(self, frames: Float[np.ndarray, "T C"]) -> dict[str, tuple[Any, Any, Any]]:
        config: ClipZeroShotConfig = self.config
        made = preparation.prepared(frames, config.preparation())
        clip_of_frame = made["clip_of_frame"]
        clips = made.get("clips")
        if clips is None:
            clips = preparation.clip_means(made["frames"], clip_of_frame, config.num_clips)
        spans = preparation.clip_spans(clip_of_frame, config.num_clips)
        edges = np.arange(config.num_frames + 1, dtype=np.float32) / np.float32(config.num_frames)
        return {
            "clip": (clips[:, -self.width :], spans[:, 1] > 0, spans),
            "frame": (
                made["frames"][:, -self.width :],
                np.ones(config.num_frames, bool),
                np.stack((edges[:-1], edges[1:]), 1),
            ),
        }


class TFPRVREncoder(UntrainedEncoder):
    """Tokens are the vectors of the graph of segments."""

    def __init__(self, config: TFPRVRConfig) -> None:
        super().__init__(config)
        self.branch_weights, self.curve_weights = {"clip": 1.0}, {"clip": 1.0}
        self.similarities = {"clip": Similarity(kind="dot")}

    def _encode(self, frames: Float[np.ndarray, "T C"]) -> dict[str, tuple[Any, Any, Any]]:
        config: TFPRVRConfig = self.config
        kept, mask = preparation.capped(frames[:, -self.width :], config.num_frames)
        preparation.expect_finite(kept)
        own, token_of_frame = moment_vectors(kept[mask].astype(np.float64), config.spread, config.variant)
        tokens = np.zeros((config.num_frames, self.width), np.float32)
        tokens[: len(own)] = own
        spans = preparation.clip_spans(token_of_frame, config.num_frames)
        return {"clip": (tokens, spans[:, 1] > 0, spans)}

    def _query(self, sentences: Float[np.ndarray, "Q D"]) -> Float[np.ndarray, "Q D"]:
        return sentences / np.maximum(np.linalg.norm(sentences, axis=-1, keepdims=True), 1e-12)


ENCODERS: dict[str, tuple[Any, Any]] = {
    "clip_zero_shot": (ClipZeroShotConfig, ZeroShotEncoder),
    "tf_prvr": (TFPRVRConfig, TFPRVREncoder),
}


def untrained(settings: Mapping[str, Any]) -> UntrainedEncoder:
    """Return the encoder of settings, with the name of their method.

    Raises:
        BadModel: a setting is unknown.
        BadSetting: a value is out of range.
    """
    config, make = ENCODERS[settings["method"]]
    unknown = settings.keys() - {field.name for field in fields(config)}
    if unknown:
        raise BadModel(f"config.json has unknown settings {sorted(unknown)}. Update midreel.")
    made: UntrainedEncoder = make(config(**settings))
    return made
