"""Cross-branch video alignment (CBVA), a contrast of the frames and clips of a video.

Frames and clips of the same time attract each other, others repel each other.

Relations: `contrastive.infonce` separates videos by their queries. This loss separates the parts of one video and needs
no text. Adaptive CBVA is the same function: merge the clips with `segments.adaptive`, then pass the merged clips and
the composed map.

Axes: B videos, T frames (L_f in the paper), S clips (L_c), D model width (d).
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.ops.checks import expect_axes, expect_indices
from midreel.ops.segments import membership


def cross_branch_alignment(
    frames: Float[Tensor, "B T D"], clips: Float[Tensor, "B S D"], clip_of_frame: Int[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Return L^CBVA, Eq. (8), averaged over the videos of the batch.

    -1/L_f Σ_i log [exp sim(f_i, c_δ(i)) / Σ_j exp sim(f_i, c_j)]
    -1/L_c Σ_i log [Σ_{j: δ(j) = i} exp sim(f_j, c_i) / Σ_j exp sim(f_j, c_i)], where sim is the cosine.

    The first term classifies each frame by its clip, the second each clip by its frames. A clip without frames, which
    merging leaves over, is ignored, and L_c is the number of the other clips.

    Args:
        frames: the encoded frames f, V̄_f in the paper.
        clips: the encoded clips c, V̄_c, or the merged clips Ṽ_c.
        clip_of_frame: the clip δ(i) of each frame.

    Raises:
        BadBatch: the shapes do not fit together, or a frame has no clip.

    >>> cross_branch_alignment(torch.eye(2)[None], torch.eye(2)[None], torch.tensor([[0, 1]]))  # 2 log(1 + 1/e)
    tensor(0.6265)
    """
    own, used, clips = _own_frames(frames, clips, clip_of_frame)
    similarity = F.normalize(clips, dim=-1) @ F.normalize(frames, dim=-1).mT

    positive = similarity.gather(1, clip_of_frame[:, None]).squeeze(1)
    frame_to_clip = similarity.masked_fill(~used[..., None], -math.inf).logsumexp(1) - positive
    # The row of an unused clip has no positives and would give inf - inf. Without the mask it gives log T - log T, and
    # the product with `used` drops it.
    positives = similarity.masked_fill(~own & used[..., None], -math.inf).logsumexp(2)
    clip_to_frame = (similarity.logsumexp(2) - positives) * used
    return (frame_to_clip.mean(1) + clip_to_frame.sum(1) / used.sum(1)).mean()


def released_alignment(
    frames: Float[Tensor, "B T D"], clips: Float[Tensor, "B S D"], clip_of_frame: Int[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Return the CBVA loss of the released code (docs/paper.md, deviation F7), averaged over the videos of the batch.

    Each frame, and each clip, costs -log(p / (p + n)). Here p and n are the means of exp(dot product) over its
    positives and its negatives. Each direction has a gradient for one branch only: frames when frames are classified,
    clips when clips are classified.

    Args:
        frames: the encoded frames after the learned projection.
        clips: the encoded or merged clips after the same projection.
        clip_of_frame: the clip of each frame.

    Raises:
        BadBatch: the shapes do not fit together, or a frame has no clip.
    """
    own, used, clips = _own_frames(frames, clips, clip_of_frame)
    frame_to_clip = _mean_contrast(frames @ clips.detach().mT, own.mT, used[:, None, :])
    clip_to_frame = _mean_contrast(clips @ frames.detach().mT, own, torch.ones_like(own[:, :1])) * used
    return (frame_to_clip.mean(1) + clip_to_frame.sum(1) / used.sum(1)).mean()


def _own_frames(
    frames: Float[Tensor, "B T D"], clips: Float[Tensor, "B S D"], clip_of_frame: Int[Tensor, "B T"]
) -> tuple[Bool[Tensor, "B S T"], Bool[Tensor, "B S"], Float[Tensor, "B S D"]]:
    """Return the frames of each clip, which clips have frames, and the clips with zeros for those without."""
    expect_axes(frames=(frames, "B T D"), clips=(clips, "B S D"), clip_of_frame=(clip_of_frame, "B T"))
    expect_indices("clip_of_frame", clip_of_frame, clips.shape[1], "the clips")
    own = membership(clip_of_frame, clips.shape[1])
    used = own.any(-1)
    return own, used, clips.masked_fill(~used[..., None], 0)  # a clip without frames may be NaN


def _mean_contrast(
    scores: Float[Tensor, "B N M"], own: Bool[Tensor, "B N M"], used: Bool[Tensor, "B 1 M"]
) -> Float[Tensor, "B N"]:
    """Return -log(p / (p + n)) of each row, 0 without negatives.

    p and n are the means of exp(score) over the row's own columns and over the other used columns. The result is
    softplus(log n - log p), which does not overflow.
    """
    other = ~own & used
    return torch.where(own.any(-1) & other.any(-1), F.softplus(_log_mean(scores, other) - _log_mean(scores, own)), 0)


def _log_mean(scores: Float[Tensor, "B N M"], chosen: Bool[Tensor, "B N M"]) -> Float[Tensor, "B N"]:
    """Return the logarithm of the mean of exp(score) over the chosen columns.

    A row without a chosen column uses all columns. Its result is meaningless but finite, and so are its gradients.
    An infinite gradient would become NaN in `torch.where`, even where the row is not selected.
    """
    none = ~chosen.any(-1, keepdim=True)
    chosen = chosen | none
    return scores.masked_fill(~chosen, -math.inf).logsumexp(-1) - chosen.sum(-1).to(scores.dtype).log()
