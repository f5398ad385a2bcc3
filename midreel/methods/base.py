"""What a method is: four verbs on batches, and a folder to be kept in."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

import safetensors.torch
import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn

from midreel.errors import BadBatch, BadModel, BadSetting, UnknownName
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.card import Paper, model_card
from midreel.ops import scoring, segments
from midreel.ops.precision import at_least_single
from midreel.types import Encoded as Encoded
from midreel.types import TextFeatures, Tokens
from midreel.types import Vectors as Vectors

MOST_FRAMES = 2**12  # that a method takes of a video; attention takes memory by their square
# Of a clip and a frame branch, by measurement: docs/results/moments.md.
CLIP_CURVE_WEIGHT, FRAME_CURVE_WEIGHT = 1.0, 3.0


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One of the sequences of tokens that a method makes of a video.

    role: whether a token stands for a part of the video, or for an instant.
    rank_weight: what its best cosine contributes to the score.
    curve_weight: what it contributes to the curve over time that moments are read from.
    """

    role: Literal["segments", "frames"]
    rank_weight: float
    curve_weight: float


class Method(nn.Module, PyTorchModelHubMixin, ABC):
    """A paper: it encodes videos and queries, scores them and, if it learns, says its losses.

    `save_pretrained(folder)` writes config.json, model.safetensors and a model card; `midreel.load_method(folder)`
    reads the first two back.
    """

    Config: ClassVar[type]
    paper: ClassVar[Paper]

    def __init__(self, config: Any) -> None:
        super().__init__()
        if not isinstance(config, self.Config):
            raise BadSetting(
                f"config is a {type(config).__name__}, expected {self.Config.__name__}; make one: "
                f"{type(self).__name__}.Config(name=value, …)"
            )
        self.config: Any = config

    @classmethod
    def _load_as_safetensor(  # type: ignore[override]
        cls, model: "Method", model_file: str, map_location: str, strict: bool
    ) -> "Method":
        """Of `from_pretrained`, which would leave weights that a file lacks as they were drawn, without a word."""
        load_weights(model, Path(model_file))
        return model.to(map_location).eval()

    def generate_model_card(self, **known: Any) -> ModelCard:
        """README.md of a saved folder; `known` is what is known of the model's making, for `card.model_card`."""
        num_weights = sum(parameter.numel() for parameter in self.parameters())
        return ModelCard(model_card(self.paper, self.config, num_weights, **known))

    @property
    def num_frames(self) -> int:
        return self.config.num_frames

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Backbone features of any length as this method takes them. Constant for frozen features: do it once."""
        frames = segments.resample(features, self.num_frames, num_frames)
        return VideoBatch(frames=frames, clip_of_frame=self.segment(frames))

    def preparation(self) -> dict[str, Any]:
        """What `prepare_videos` does, in words and numbers for programs without midreel (docs/export.md)."""
        return {"frames": "averaged", "num_frames": self.num_frames, "num_clips": self.config.num_clips}

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
    def branches(self) -> Mapping[str, Branch]:
        """The sequences of tokens that `encode_videos` makes, by name, and what each is for."""

    @property
    def branch_weights(self) -> dict[str, float]:
        """What the best cosine of each branch contributes to the score."""
        return {name: branch.rank_weight for name, branch in self.branches.items()}

    @property
    def curve_weights(self) -> dict[str, float]:
        """What each branch contributes to the curve over time that moments are read from."""
        return {name: branch.curve_weight for name, branch in self.branches.items()}

    @property
    def segment_branch(self) -> str:
        """The branch whose tokens are the paper's segments; the first one, if no branch says so."""
        return next(
            (name for name, branch in self.branches.items() if branch.role == "segments"), next(iter(self.branches))
        )

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


@contextmanager
def evaluating(method: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; then each module gets back its own mode, for some are frozen on purpose."""
    modes = {module: module.training for module in method.modules()}
    method.eval()
    try:
        # Not inference_mode: a tensor that a module caches there could not take part in training afterwards.
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def join_texts(texts: Sequence[TextFeatures]) -> QueryBatch:
    """Queries of different lengths as one padded batch."""
    lengths = torch.tensor([len(text.words) for text in texts])
    words = torch.nn.utils.rnn.pad_sequence([torch.as_tensor(text.words).float() for text in texts], batch_first=True)
    return QueryBatch(
        words=words,
        mask=torch.arange(words.shape[1]) < lengths[:, None],
        sentence=torch.stack([torch.as_tensor(text.sentence).float() for text in texts]),
    )


def load_weights(method: Method, path: Path) -> None:
    """Fills the method with the weights of a model.safetensors, which must be its own in name and shape."""
    weights = read_weights(path)
    expect_fit(method, weights, path)
    method.load_state_dict(weights)


def read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(path.read_bytes())  # load_file refuses paths that are not UTF-8
    except FileNotFoundError as error:
        raise BadModel(f"{path} does not exist; copy it beside its config.json") from error
    except (OSError, SafetensorError) as error:
        raise BadModel(f"{path} cannot be read ({error}); it may be cut short: copy it again") from error


def expect_fit(method: Method, weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise BadModel unless the weights have the names and shapes of a method's own, which may be on "meta"."""
    expected = {name: tuple(weight.shape) for name, weight in method.state_dict().items()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    misfits = [name for name in sorted(expected | found) if expected.get(name) != found.get(name)]
    if misfits:
        shown = "; ".join(f"{name} is {found.get(name)}, expected {expected.get(name)}" for name in misfits[:3])
        raise BadModel(f"{path} does not fit its config.json in {len(misfits)} weights: {shown}; keep the two together")


def check_settings(config: Any) -> None:
    """Raises unless every field of a config holds what its annotation says; configs come from people and from files."""
    for field in fields(config):
        value, kind = getattr(config, field.name), field.type
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise UnknownName.among(field.name, value, get_args(kind))
        if kind is bool and not isinstance(value, bool):
            raise BadSetting(f"{field.name} is {value!r}, expected true or false; choose either")
        if kind is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise BadSetting(f"{field.name} is {value!r}, expected a whole number, such as {field.default}")
        a_number = isinstance(value, int | float) and not isinstance(value, bool)
        if kind is float and not (a_number and math.isfinite(value)):
            raise BadSetting(f"{field.name} is {value!r}, expected a number, such as {field.default}")


def check_num_frames(num_frames: int) -> None:
    """Raise BadSetting for more frames than fit into memory, which the weights of a method do not show."""
    if num_frames > MOST_FRAMES:
        raise BadSetting(f"num_frames is {num_frames}, expected at most {MOST_FRAMES}. Try 128.")


def expect_whole(videos: VideoBatch) -> None:
    """Raises if the videos were padded, which a method that resamples would take for frames."""
    if videos.mask is not None:
        raise BadBatch(
            "videos have a mask, which this method does not take: it resamples short videos and never pads them; "
            "make the batch with its own prepare_videos(features)"
        )


def expect_clips(clips: Float[Tensor, "B S C"], num_clips: int) -> None:
    if clips.shape[1] != num_clips:
        raise BadBatch(
            f"videos have {clips.shape[1]} clips, expected {num_clips}; make the batch with "
            f"method.prepare_videos(features)"
        )


def clip_inputs(videos: VideoBatch, num_clips: int) -> tuple[Float[Tensor, "B S C"], Int[Tensor, "B S"]]:
    """The clips' features, which are means unless the batch has its own, and their sizes in frames."""
    expect_whole(videos)
    sizes = segments.segment_sizes(videos.clip_of_frame, num_clips)
    if videos.clips is not None:
        expect_clips(videos.clips, num_clips)
        return at_least_single(videos.clips), sizes
    return segments.segment_mean(at_least_single(videos.frames), videos.clip_of_frame, num_clips), sizes


def frame_spans(videos: VideoBatch) -> Float[Tensor, "B T 2"]:
    """Each frame stands for its share of the video."""
    mask = torch.ones_like(videos.clip_of_frame, dtype=torch.bool) if videos.mask is None else videos.mask
    return equal_spans(mask)


def equal_spans(mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S 2"]:
    """Each real token stands for an equal share of the video; one behind them for nothing, at the video's end."""
    edges = torch.arange(mask.shape[1] + 1, device=mask.device) / mask.sum(1, keepdim=True)
    return torch.stack((edges[:, :-1], edges[:, 1:]), -1).clamp_max(1)
