"""TF-PRVR: "Training-Free Partially Relevant Video Retrieval for Real-World Generalization" (NeurIPS 2026).

This method is not trained. It cuts a video at changes of direction of its frame features, on several time scales, and
links all segments of all scales in a graph. A query's cosines with the segments spread over the graph, r = K y. The
score of an instant is the mean of r over the segments that contain it, and the score of a video that of its best
instant.

r is linear in the query, so the score of an instant is a dot product of the query with a vector that depends on the
video only: <u_τ, t>, u_τ = Σ_j a_τj v̂_j, where a_τ is the mean of the rows of K of the segments that contain τ. The
vectors are computed once for each video. A search is the best dot product, as with any other method.

The paper leaves some points open, and the authors' code differs from it in others:

| | `variant="paper"` | `variant="released"` |
|---|---|---|
| levels of a signal of n samples | ⌊log2 n⌋ | ⌊log2(n / 7)⌋, as PyWavelets advises |
| fewer frames than one level needs | below 4: each frame is a token | below 16: the whole video is one token |
| a peak of sample i cuts before frame | i + 1 | i + 2 |
| a segment is the mean of | frames | frames of length one |
| links between two levels | half: the matrix is filled above its diagonal, then made symmetric | whole |

In both, a peak is larger than its two neighbours, and a segment has the link 1 with itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.methods.base import Branch, Method, check_ranges
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.model_card import Paper
from midreel.ops import segments, wavelets
from midreel.ops.precision import at_least_single
from midreel.types import Similarity, Tokens

_STILL = 1e-8  # added to the length of a step between two frames, which may be 0
_ROUNDING = 1e-12  # a smaller response of the wavelets is a rounding error

Variant = Literal["paper", "released"]
Edges = Int[np.ndarray, " _"]  # the first frame of each segment of a level, and the number of frames


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


class TFPRVR(Method):
    """A ranking of videos by CLIP's own embeddings that are spread over a graph of segments, without training.

    Frames must be image embeddings and sentences text embeddings of one joint space. If frames are wider, such as
    SlowFast and CLIP side by side, the last `width` channels are used.
    """

    Config = TFPRVRConfig
    paper = Paper(
        method="TF-PRVR",
        title="TF-PRVR: Training-Free Partially Relevant Video Retrieval for Real-World Generalization",
        bibtex="""@inproceedings{kim2026tfprvr,
  title = {{TF-PRVR}: Training-Free Partially Relevant Video Retrieval for Real-World Generalization},
  author = {Kim, Giyeol and Eom, Chanho},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2026}
}""",
    )

    def __init__(self, config: TFPRVRConfig) -> None:
        super().__init__(config)

    # ------------------------------------------------------------ videos and queries

    def prepare_videos(
        self, features: Float[Tensor, "B T C"], num_frames: Int[Tensor, " B"] | None = None
    ) -> VideoBatch:
        """Return the frames, padded to `num_frames`, and the tokens as their clips.

        All of the method happens here, because the tokens depend on the features only.

        Raises:
            BadBatch: the frames are narrower than the joint space.
        """
        if features.shape[2] < self.config.width:
            raise BadBatch(
                f"frames have width {features.shape[2]}, expected at least {self.config.width}. Set width to the width "
                f"of the joint space."
            )
        joint = at_least_single(features[..., -self.config.width :])
        frames, mask = segments.cap(joint, self.num_frames, num_frames)
        tokens = torch.zeros_like(frames)
        clip_of_frame = torch.zeros_like(mask, dtype=torch.long)
        for video, num_real in enumerate(mask.sum(1).tolist()):
            own, token_of_frame = moment_vectors(
                frames[video, :num_real].double().cpu().numpy(), self.config.spread, self.config.variant
            )
            tokens[video, : len(own)] = torch.from_numpy(own)
            clip_of_frame[video, :num_real] = torch.from_numpy(token_of_frame)
        return VideoBatch(frames=frames, clip_of_frame=clip_of_frame, mask=mask, clips=tokens)

    def preparation(self) -> dict[str, Any]:
        """Return a description of `prepare_videos` as JSON values. A program without midreel cannot repeat it."""
        return super().preparation() | {"frames": "capped", "clips": "tf_prvr"}

    def segment(self, frames: Float[Tensor, "B T C"]) -> Int[Tensor, "B T"]:
        """Return the token of each frame."""
        return self.prepare_videos(frames).clip_of_frame

    def encode_videos(self, videos: VideoBatch) -> dict[str, Tokens]:
        """Return the tokens u_τ, one for each part of the video in which no level has a cut.

        Raises:
            BadBatch: the videos were not prepared for this method.
        """
        expected = (self.num_frames, self.config.width)
        if videos.mask is None or videos.clips is None or tuple(videos.clips.shape[1:]) != expected:
            raise BadBatch(
                f"videos have no mask or no clips, or not {expected[0]} clips of width {expected[1]}. Create the batch "
                f"with this method's prepare_videos()."
            )
        total = videos.mask.shape[1]
        token_of_frame = torch.where(videos.mask, videos.clip_of_frame, -1)  # padding belongs to no token
        share = total / videos.mask.sum(1)[:, None, None]
        spans = segments.segment_spans(token_of_frame, total) * share
        mask = segments.segment_sizes(token_of_frame, total) > 0
        return {"clip": Tokens(vectors=videos.clips, mask=mask, spans=spans)}

    def encode_queries(self, queries: QueryBatch) -> dict[str, Float[Tensor, "Q D"]]:
        """Return the sentence vectors at length one.

        Raises:
            BadBatch: there are no sentence vectors, or they have another width.
        """
        if queries.sentence is None:
            raise BadBatch("queries have no sentence vectors, expected one for each. Encode the sentences.")
        if queries.sentence.shape[1] != self.config.width:
            raise BadBatch(
                f"sentences have width {queries.sentence.shape[1]}, expected {self.config.width}. Use the backbone of "
                f"the frames."
            )
        sentence = at_least_single(queries.sentence)
        return {"clip": sentence / sentence.norm(dim=-1, keepdim=True).clamp_min(1e-12)}

    @property
    def branches(self) -> dict[str, Branch]:
        """The only branch. The length of its tokens counts."""
        return {"clip": Branch(role="segments", rank_weight=1.0, curve_weight=1.0, similarity=Similarity(kind="dot"))}


# ---------------------------------------------------------------- the method, for one video of N frames
# Axes: N frames, M segments of all levels, S tokens, C feature width.


def moment_vectors(
    frames: Float[np.ndarray, "N C"], spread: float = 0.7, variant: Variant = "released"
) -> tuple[Float[np.ndarray, "S C"], Int[np.ndarray, " N"]]:
    """Return the vectors u_τ, one for each part of the video in which no level has a cut, and the part of each frame.

    Args:
        frames: the embeddings of the frames.
        spread: β.
        variant: the paper's formulas, or those of the authors' code.
    """
    unit = _unit(frames)
    if variant == "paper" and len(frames) < 4:
        return unit, np.arange(len(frames))
    levels = [np.array([0, *cuts, len(frames)]) for cuts in level_cuts(unit, variant)]
    starts = np.concatenate([edges[:-1] for edges in levels])
    ends = np.concatenate([edges[1:] for edges in levels])
    level = np.repeat(np.arange(len(levels)), [len(edges) - 1 for edges in levels])
    sums = np.concatenate((np.zeros((1, frames.shape[1])), (unit if variant == "released" else frames).cumsum(0)))
    means = _unit((sums[ends] - sums[starts]) / (ends - starts)[:, None])
    links = segment_graph(means, starts, ends, level, across=1.0 if variant == "released" else 0.5)
    spread_means = diffusion(links, spread) @ means
    edges = np.unique(np.concatenate(levels))
    tokens = np.mean([spread_means[segment] for segment in _segments_at(edges[:-1], levels)], axis=0)
    return tokens, np.searchsorted(edges, np.arange(len(frames)), "right") - 1


def level_cuts(unit: Float[np.ndarray, "N C"], variant: Variant) -> list[Int[np.ndarray, " _"]]:
    """Return the frames that start a new segment, for each level, the finest first.

    A cut is a peak of the level's part of the signal s_t = 1 - cos(d_t, d_{t+1}), where d_t is the step from frame t to
    frame t + 1. The peak must exceed the mean of the level by its standard deviation. Without levels, the video is one
    segment.

    Args:
        unit: the embeddings of the frames, at length one.
        variant: the paper's formulas, or those of the authors' code.
    """
    num_samples = len(unit) - 2
    if num_samples < 1:
        return [np.empty(0, np.int64)]
    steps = np.diff(unit, axis=0)
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    directions = steps / (lengths + _STILL)
    signal = 1 - (directions[:-1] * directions[1:]).sum(1).clip(-1, 1)
    if variant == "released":
        still = lengths[:, 0] <= _STILL
        signal[still[:-1] & still[1:]] = 0
        num_levels, first = wavelets.max_levels(num_samples), 2
    else:
        num_levels, first = num_samples.bit_length() - 1, 1
    responses = np.abs(wavelets.detail_bands(signal, num_levels))
    cuts = [first + _peaks(response) for response in responses]
    return cuts or [np.empty(0, np.int64)]


def _peaks(response: Float[np.ndarray, " N"]) -> Int[np.ndarray, " K"]:
    """Return the local maxima that exceed the mean by the standard deviation. The ends are none, a plateau is one."""
    starts = np.flatnonzero(np.diff(response, prepend=np.nan))  # of runs of equal samples
    lasts, heights = np.append(starts[1:], len(response)) - 1, response[starts]
    is_peak = (heights[1:-1] > heights[:-2]) & (heights[1:-1] > heights[2:])
    is_peak &= heights[1:-1] > max(response.mean() + response.std(), _ROUNDING)
    return (starts[1:-1][is_peak] + lasts[1:-1][is_peak]) // 2


def segment_graph(
    means: Float[np.ndarray, "M C"],
    starts: Int[np.ndarray, " M"],
    ends: Int[np.ndarray, " M"],
    level: Int[np.ndarray, " M"],
    *,
    across: float = 1.0,
) -> Float[np.ndarray, "M M"]:
    """Return the links between all segments of all levels.

    Within a level: max(0, cos) + exp(-distance of the centres / mean length). Between neighbouring levels: the
    intersection over union of the spans, times max(0, cos). A segment has the link 1 with itself.

    Args:
        means: the segments, at length one.
        starts: the first frame of each segment.
        ends: the frame after the last of each segment.
        level: the level of each segment.
        across: a factor for the links between levels.
    """
    alike = np.maximum(means @ means.T, 0)
    lengths, centres = ends - starts, (starts + ends) / 2
    mean_length = (np.bincount(level, lengths) / np.bincount(level))[level]
    near = np.exp(-np.abs(centres[:, None] - centres) / mean_length)
    shared = np.maximum(np.minimum(ends[:, None], ends) - np.maximum(starts[:, None], starts), 0)
    overlap = shared / (lengths[:, None] + lengths - shared)
    distance = np.abs(level[:, None] - level)
    links = np.where(distance == 0, alike + near, np.where(distance == 1, across * overlap * alike, 0))
    np.fill_diagonal(links, 1)
    return links


def diffusion(links: Float[np.ndarray, "M M"], spread: float) -> Float[np.ndarray, "M M"]:
    """Return K = (1 - β) (I - β D^-½ W D^-½)^-1, where W are the links, D their row sums, and β is `spread`."""
    scale = 1 / np.sqrt(links.sum(1))
    identity = np.eye(len(links))
    kernel: Float[np.ndarray, "M M"] = (1 - spread) * np.linalg.inv(identity - spread * scale[:, None] * links * scale)
    return kernel


def _segments_at(frames: Int[np.ndarray, " S"], levels: Sequence[Edges]) -> list[Int[np.ndarray, " S"]]:
    """Return, for each level, the segment that contains each frame. Segments are numbered through all levels."""
    found, first = [], 0
    for edges in levels:
        found.append(first + np.searchsorted(edges, frames, "right") - 1)
        first += len(edges) - 1
    return found


def _unit(rows: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
    """Return the rows at length one. A row of zeros stays zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)
