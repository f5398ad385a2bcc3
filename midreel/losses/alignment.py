"""Cross-branch video alignment (CBVA): within a video, frames and clips of one time attract, others repel.

Relations: `contrastive.infonce` tells videos apart by their queries; this loss tells the parts of one video apart and
needs no text. The adaptive form is the same function: merge the clips first (`segments.adaptive`), then pass the merged
clips and the composed map.
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
    """Eq. (vidcon): a frame picks its clip among the clips, a clip its frames among the frames, by cosine.

    The frames of a clip are summed inside the logarithm. A clip without frames (left over from merging) does not count.
    """
    expect_axes(frames=(frames, "B T D"), clips=(clips, "B S D"), clip_of_frame=(clip_of_frame, "B T"))
    expect_indices("clip_of_frame", clip_of_frame, clips.shape[1], "the clips")
    own = membership(clip_of_frame, clips.shape[1])
    used = own.any(-1)
    clips = clips.masked_fill(~used[..., None], 0)  # whatever is left of a clip that is not used, even nan
    similarity = F.normalize(clips, dim=-1) @ F.normalize(frames, dim=-1).mT

    positive = similarity.gather(1, clip_of_frame[:, None]).squeeze(1)
    frame_to_clip = similarity.masked_fill(~used[..., None], -math.inf).logsumexp(1) - positive
    # An unused clip would give inf - inf; a zero row gives log T twice instead and is dropped below.
    positives = similarity.masked_fill(~own & used[..., None], -math.inf).logsumexp(2)
    clip_to_frame = (similarity.logsumexp(2) - positives) * used
    return (frame_to_clip.mean(1) + clip_to_frame.sum(1) / used.sum(1)).mean()


def released_alignment(
    frames: Float[Tensor, "B T D"], clips: Float[Tensor, "B S D"], clip_of_frame: Int[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """The released code's form of CBVA (docs/paper.md, deviation F7), on tokens that share a learned projection.

    Raw dot products; a positive is weighed against the mean of exp over the positives and over the negatives,
    -log(pos / (pos + neg)); each direction moves only the branch that asks.
    """
    expect_axes(frames=(frames, "B T D"), clips=(clips, "B S D"), clip_of_frame=(clip_of_frame, "B T"))
    expect_indices("clip_of_frame", clip_of_frame, clips.shape[1], "the clips")
    own = membership(clip_of_frame, clips.shape[1])
    used = own.any(-1)
    clips = clips.masked_fill(~used[..., None], 0)
    frame_to_clip = _mean_contrast(frames @ clips.detach().mT, own.mT, used[:, None, :])
    clip_to_frame = _mean_contrast(clips @ frames.detach().mT, own, torch.ones_like(own[:, :1])) * used
    return (frame_to_clip.mean(1) + clip_to_frame.sum(1) / used.sum(1)).mean()


def _mean_contrast(
    scores: Float[Tensor, "B N M"], own: Bool[Tensor, "B N M"], used: Bool[Tensor, "B 1 M"]
) -> Float[Tensor, "B N"]:
    """-log(p / (p + n)), p and n the means of exp(score) over a row's own and its other columns; 0 without others."""
    other = ~own & used
    return torch.where(own.any(-1) & other.any(-1), F.softplus(_log_mean(scores, other) - _log_mean(scores, own)), 0)


def _log_mean(scores: Float[Tensor, "B N M"], chosen: Bool[Tensor, "B N M"]) -> Float[Tensor, "B N"]:
    """log of the mean of exp(score) over the chosen columns; finite, with finite gradients, where none is chosen."""
    none = ~chosen.any(-1, keepdim=True)
    chosen = chosen | none
    return scores.masked_fill(~chosen, -math.inf).logsumexp(-1) - chosen.sum(-1).to(scores.dtype).log()
