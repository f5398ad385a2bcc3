"""The interface of a method, and functions that implementations share.

`Method` is the specification for methods in midreel and in other packages. docs/extend.md is the tutorial.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import safetensors.torch
import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn

from midreel.errors import BadBatch, BadModel, BadSetting
from midreel.methods.batches import Batch, QueryBatch, VideoBatch
from midreel.methods.model_card import Paper, model_card
from midreel.methods.settings import CLIP_CURVE_WEIGHT as CLIP_CURVE_WEIGHT
from midreel.methods.settings import FRAME_CURVE_WEIGHT as FRAME_CURVE_WEIGHT
from midreel.methods.settings import check_ranges as check_ranges
from midreel.methods.settings import check_settings as check_settings
from midreel.methods.settings import feature_widths as feature_widths
from midreel.ops import scoring, segments
from midreel.ops.precision import at_least_single
from midreel.ops.processes import Processes
from midreel.types import COSINE, Similarity, TextFeatures, Tokens
from midreel.types import Encoded as Encoded
from midreel.types import Vectors as Vectors

Rows = TypeVar("Rows")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Branch:
    """The purpose of one branch: one of the token sequences that a method computes from a video.

    Attributes:
        role: "segments" if a token stands for a part of the video, "frames" if it stands for an instant, "video" if it
            stands for the whole video, "keys" if it only serves the attention of another branch.
        rank_weight: the weight of the branch in the score that ranks videos.
        curve_weight: the weight of the branch in the curve over time that moments are read from.
        similarity: how the tokens of the branch score a video. Default: by the best cosine.
    """

    role: Literal["segments", "frames", "video", "keys"]
    rank_weight: float
    curve_weight: float
    similarity: Similarity = COSINE


class Method(nn.Module, PyTorchModelHubMixin, ABC):
    """A retrieval method: it encodes videos and queries, scores them and, if it is trained, returns its losses.

    A subclass sets `Config` and `paper` and implements `branches`, `segment`, `encode_videos` and `encode_queries`. A
    method that is trained also implements `losses`. midreel does the rest: training, evaluation, indexing, search and
    export. docs/extend.md shows how to register a method of another package.

    `branches`, `encode_videos` and `encode_queries` use the same branch names. The result for a video or query must not
    depend on the rest of its batch.

    `save_pretrained(folder)` writes config.json, model.safetensors and a model card. `midreel.load_method(folder)`
    reads the model back.

    Attributes:
        Config: a frozen dataclass of JSON values with default values. Its field `method` is the name of the method.
            The fields `num_frames` and `num_clips` are required, and `width` (of the tokens) unless the method
            overrides `token_width`. midreel checks inputs
            against the fields `video_width`, `text_width` and `max_words` if they exist.
        paper: the paper that the method implements.
        reconstruction: True if no code of the paper was released, so that the method follows its text and fills gaps
            with choices. Model cards and `midreel methods` say so. Default: False.
        config: the settings of this instance.
        processes: the processes that train this method together, set by training. Default: None, this one only.

    Raises:
        BadSetting: `config` is not an instance of `Config`.

    Example: a method that ranks videos by the best frame.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class BestFrameConfig:
    ...     method: Literal["best_frame"] = "best_frame"
    ...     width: int = 4
    ...     num_frames: int = 8
    ...     num_clips: int = 2
    >>> class BestFrame(Method):
    ...     Config = BestFrameConfig
    ...     paper = Paper(method="Best frame", title="An example", bibtex="@misc{example}")
    ...
    ...     @property
    ...     def branches(self):
    ...         return {"frame": Branch(role="frames", rank_weight=1.0, curve_weight=1.0)}
    ...
    ...     def segment(self, frames):
    ...         return segments.uniform(frames, self.config.num_clips)
    ...
    ...     def encode_videos(self, videos):
    ...         return {"frame": uniform_tokens(videos.frames)}
    ...
    ...     def encode_queries(self, queries):
    ...         return {"frame": queries.sentence}
    >>> method = BestFrame(BestFrameConfig())
    >>> videos = method.encode_videos(method.prepare_videos(torch.randn(3, 30, 4)))
    >>> queries = QueryBatch(words=torch.zeros(2, 1, 4), mask=torch.ones(2, 1).bool(), sentence=torch.randn(2, 4))
    >>> method.score(method.encode_queries(queries), videos).shape
    torch.Size([2, 3])
    """

    Config: ClassVar[type]
    paper: ClassVar[Paper]
    reconstruction: ClassVar[bool] = False
    processes: Processes | None = None

    def __init__(self, config: Any) -> None:
        super().__init__()
        if not isinstance(config, self.Config):
            raise BadSetting(
                f"config is a {type(config).__name__}, expected a {self.Config.__name__}. Create one: "
                f"{type(self).__name__}.Config(name=value, …)"
            )
        self.config: Any = config

    @classmethod
    def _load_as_safetensor(  # type: ignore[override]
        cls, model: "Method", model_file: str, map_location: str, strict: bool
    ) -> "Method":
        # The inherited implementation of `from_pretrained` silently keeps random weights that the file lacks.
        load_weights(model, Path(model_file))
        return model.to(map_location).eval()

    def generate_model_card(self, **known: Any) -> ModelCard:
        """Return the model card that `save_pretrained` writes. `known` are keyword arguments of `card.model_card`."""
        num_weights = sum(parameter.numel() for parameter in self.parameters())
        return ModelCard(model_card(self.paper, self.config, num_weights, reconstruction=self.reconstruction, **known))

    # ------------------------------------------------------------ videos and queries

    @property
    def num_frames(self) -> int:
        """The number of frames of a prepared video."""
        return self.config.num_frames

    @property
    def token_width(self) -> int:
        """The width of the tokens. Default: `width`."""
        return self.config.width

    @property
    def sentence_width(self) -> int:
        """The width of the sentence vectors of queries, for methods that use them. Default: `token_width`."""
        return self.token_width

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Return the input of `encode_videos` for backbone features of any length.

        The result depends on the features only, not on the weights, so training computes it once for each video. The
        default resamples each video to `num_frames` frames and calls `segment`. A method that overrides it also
        overrides `preparation`.

        Args:
            features: the features of each video, padded at the end.
            num_frames: the number of real frames of each video. Default: all frames are real.
        """
        frames = segments.resample(features, self.num_frames, num_frames)
        return VideoBatch(frames=frames, clip_of_frame=self.segment(frames))

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values, for programs without midreel (docs/export.md)."""
        return {"frames": "averaged", "num_frames": self.num_frames, "num_clips": self.config.num_clips}

    @abstractmethod
    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        """Return the clip of each frame: integers from 0 to `num_clips` - 1.

        `midreel.ops.segments` has `uniform` and `order_preserving` clips.
        """

    @abstractmethod
    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the tokens of each branch, by name.

        A token is a vector, the part of the video that it stands for (start and end as fractions), and a mask for
        padding. All tokens of a branch have one width. `uniform_tokens` and `segment_tokens` create them from vectors.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """

    @abstractmethod
    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the vector of each query in each branch, by name. Its width is the width of the branch's tokens.

        Raises:
            BadBatch: the queries have words of another width, or too many words.
        """

    # ------------------------------------------------------------ branches and score

    @property
    @abstractmethod
    def branches(self) -> Mapping[str, Branch]:
        """The branches by name, in the order of the results of `encode_videos`."""

    @property
    def branch_weights(self) -> dict[str, float]:
        """The weight of each branch in the score that ranks videos."""
        return {name: branch.rank_weight for name, branch in self.branches.items()}

    @property
    def curve_weights(self) -> dict[str, float]:
        """The weight of each branch in the curve over time that moments are read from."""
        return {name: branch.curve_weight for name, branch in self.branches.items()}

    @property
    def similarities(self) -> dict[str, Similarity]:
        """The similarity of each branch that does not score by its best cosine."""
        return {name: branch.similarity for name, branch in self.branches.items() if branch.similarity != COSINE}

    @property
    def segment_branch(self) -> str:
        """The first branch whose tokens are segments, or the first branch. Its semantic collapse is measured."""
        return next(
            (name for name, branch in self.branches.items() if branch.role == "segments"), next(iter(self.branches))
        )

    def score(self, queries: Vectors, videos: Encoded) -> Float[Tensor, "Q B"]:
        """Return how well each query describes a part of each video: the weighted sum of the scores of the branches.

        For MSC it is 0.6 frame + 0.4 clip (Sec. 4 of the paper). Search computes the same formula from `branches`, so
        do not override it.

        Args:
            queries: the result of `encode_queries`.
            videos: the result of `encode_videos`.
        """
        return self.weighted(self.branch_scores(queries, videos))

    def branch_scores(self, queries: Vectors, videos: Encoded) -> dict[str, Float[Tensor, "Q B"]]:
        """Return the scores of each branch by itself. Branches of keys have none.

        Args:
            queries: the result of `encode_queries`.
            videos: the result of `encode_videos`.

        Raises:
            BadBatch: another method encoded the queries or the videos.
        """
        scored = [name for name, branch in self.branches.items() if branch.role != "keys"]
        for name, parts, expected in (("queries", queries, scored), ("videos", videos, list(self.branches))):
            if any(branch not in parts for branch in expected):
                raise BadBatch(
                    f"{name} have the branches {list(parts)}, expected {expected}. Encode them with this method."
                )
        return {
            name: scoring.branch_score(name, branch.similarity, queries, videos)
            for name, branch in self.branches.items()
            if branch.role != "keys"
        }

    def weighted(self, branch_scores: Mapping[str, Float[Tensor, "Q B"]]) -> Float[Tensor, "Q B"]:
        """Return the sum of the scores of the branches, each times its weight."""
        weights = self.branch_weights
        return torch.stack([weights[branch] * scores for branch, scores in branch_scores.items()]).sum(0)

    # ------------------------------------------------------------ training

    def losses(self, batch: Batch, *, epoch: int = 0) -> dict[str, Float[Tensor, ""]]:
        """Return the terms of the loss by name, already weighted. Training minimises their sum.

        The default is no terms, for a method that is not trained. Encode with `in_parts`, so that several processes
        share the work.

        Args:
            batch: videos, their queries, and the video of each query.
            epoch: the number of the epoch, from 0, for losses that change during training.
        """
        return {}

    def in_parts(self, function: Callable[[Rows], Result], rows: Rows) -> Result:
        """Return `function(rows)`. In a training on several processes, each of them computes a part of the rows.

        The result has all rows in each process, with gradients, so the loss is that of the whole batch. A function that
        is called without `in_parts` is right too: each process then computes all rows.

        Args:
            function: encodes each row by itself, such as `encode_videos`. Its result is tensors with one row for each
                row, or a dataclass, tuple or mapping of them.
            rows: a batch of videos or queries, or tensors.
        """
        return function(rows) if self.processes is None else self.processes.encode(function, rows)

    def start_epoch(self, epoch: int, batches: Iterable[Batch]) -> None:
        """Prepare an epoch, for losses that depend on the whole training set. The default does nothing.

        Training calls it before each epoch, in evaluation mode and without gradients. Derive the result from the
        weights and the batches only, so that a resumed run computes the same one.

        Args:
            epoch: the number of the epoch, from 0.
            batches: all training videos with their queries, in order. Read it at most once.
        """


@contextmanager
def evaluating(method: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and restore the mode of each module at the end.

    Each module keeps its own mode, because some may be frozen on purpose.
    """
    modes = {module: module.training for module in method.modules()}
    method.eval()
    try:
        # Not inference_mode: training could not use a tensor that a module caches there.
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


# ---------------------------------------------------------------- weights


def load_weights(method: Method, path: Path) -> None:
    """Load the weights of a model.safetensors into a method.

    Raises:
        BadModel: the file cannot be read, or the names or shapes of its weights differ from the method's.
    """
    weights = read_weights(path)
    expect_fit(method, weights, path)
    method.load_state_dict(weights)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights in a model.safetensors by name.

    Raises:
        BadModel: the file cannot be read.
    """
    try:
        return safetensors.torch.load(path.read_bytes())  # load_file rejects paths that are not UTF-8
    except FileNotFoundError as error:
        raise BadModel(f"{path} does not exist. Copy it to the folder of its config.json.") from error
    except (OSError, SafetensorError) as error:
        raise BadModel(f"{path} cannot be read ({error}). It may be truncated: copy it again.") from error


def expect_fit(method: Method, weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise BadModel unless weights have the names and shapes of a method's.

    Args:
        method: the method. Its own weights may be on the meta device.
        weights: the weights by name.
        path: their file, for the message.
    """
    expected = {name: tuple(weight.shape) for name, weight in method.state_dict().items()}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    misfits = [name for name in sorted(expected | found) if expected.get(name) != found.get(name)]
    if misfits:
        shown = "; ".join(f"{name} is {found.get(name)}, expected {expected.get(name)}" for name in misfits[:3])
        raise BadModel(
            f"{path} does not fit its config.json in {len(misfits)} weights: {shown}. Keep the two files together."
        )


# ---------------------------------------------------------------- batches and tokens


def join_texts(texts: Sequence[TextFeatures]) -> QueryBatch:
    """Return queries of different lengths as one padded batch."""
    lengths = torch.tensor([len(text.words) for text in texts])
    teachers = [text.teacher for text in texts if text.teacher is not None]
    words = torch.nn.utils.rnn.pad_sequence([torch.as_tensor(text.words).float() for text in texts], batch_first=True)
    return QueryBatch(
        words=words,
        mask=torch.arange(words.shape[1]) < lengths[:, None],
        sentence=torch.stack([torch.as_tensor(text.sentence).float() for text in texts]),
        teacher=torch.stack([torch.as_tensor(each).float() for each in teachers]) if teachers else None,
    )


def expect_whole(videos: VideoBatch) -> None:
    """Raise BadBatch if the videos are padded. A method that resamples would treat padding as frames."""
    if videos.mask is not None:
        raise BadBatch(
            "videos have a mask, expected none: this method does not pad. Create the batch with its prepare_videos()."
        )


def expect_clips(clips: Float[Tensor, "B S C"], num_clips: int) -> None:
    """Raise BadBatch unless each video has `num_clips` clips."""
    if clips.shape[1] != num_clips:
        raise BadBatch(
            f"videos have {clips.shape[1]} clips, expected {num_clips}. Create the batch with the method's "
            f"prepare_videos()."
        )


def expect_frames(videos: VideoBatch, config: Any) -> None:
    """Raise BadBatch unless the frames have the number and the width of the settings."""
    expected = (config.num_frames, config.video_width)
    if tuple(videos.frames.shape[1:]) != expected:
        raise BadBatch(
            f"videos have {videos.frames.shape[1]} frames of width {videos.frames.shape[2]}, expected "
            f"{expected[0]} of width {expected[1]}. Use the method's prepare_videos() on features of its backbone."
        )


def expect_sentences(queries: QueryBatch, width: int) -> Float[Tensor, "Q E"]:
    """Return the sentence vectors of queries. Raise BadBatch if there are none, or they have another width."""
    if queries.sentence is None:
        raise BadBatch("queries have no sentence vectors, expected one for each. Encode the sentences.")
    if queries.sentence.shape[1] != width:
        raise BadBatch(
            f"sentences have width {queries.sentence.shape[1]}, expected {width}. Use the backbone of the frames."
        )
    return at_least_single(queries.sentence)


def clip_inputs(videos: VideoBatch, num_clips: int) -> tuple[Float[Tensor, "B S C"], Int[Tensor, "B S"]]:
    """Return the frozen clip features, V_c in the MSC paper, and the number of frames of each clip.

    The features are those of the batch, or else the means of the frames of each clip.

    Raises:
        BadBatch: the videos are padded, or have another number of clips.
    """
    expect_whole(videos)
    sizes = segments.segment_sizes(videos.clip_of_frame, num_clips)
    if videos.clips is not None:
        expect_clips(videos.clips, num_clips)
        return at_least_single(videos.clips), sizes
    return segments.segment_mean(at_least_single(videos.frames), videos.clip_of_frame, num_clips), sizes


def segment_tokens(vectors: Float[Tensor, "B S D"], segment_of_frame: Int[Tensor, "B T"]) -> Tokens:
    """Return vectors as tokens that stand for the segments of a video. A segment without frames is padding.

    Args:
        vectors: one vector for each segment.
        segment_of_frame: the segment of each frame.
    """
    num_segments = vectors.shape[1]
    return Tokens(
        vectors=vectors,
        mask=segments.segment_sizes(segment_of_frame, num_segments) > 0,
        spans=segments.segment_spans(segment_of_frame, num_segments),
    )


def uniform_tokens(vectors: Float[Tensor, "B S D"]) -> Tokens:
    """Return vectors as tokens that stand for equal shares of a video, such as its frames."""
    mask = torch.ones_like(vectors[..., 0], dtype=torch.bool)
    return Tokens(vectors=vectors, mask=mask, spans=equal_spans(mask))


def equal_spans(mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S 2"]:
    """Return an equal share of the video for each real token, and an empty span at its end for padding."""
    edges = torch.arange(mask.shape[1] + 1, device=mask.device) / mask.sum(1, keepdim=True)
    return torch.stack((edges[:, :-1], edges[:, 1:]), -1).clamp_max(1)
