"""The losses of AMDNet on the spans of a video: apart from each other, and more relevant than the whole video.

Relations: `diversity` pushes queries apart, `matching` pulls queries to different clips. Here a video predicts its
spans itself, and no query chooses among them except by its best one.

Axes: Q queries, B videos, K spans, L clips, D model width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from midreel.errors import BadSetting
from midreel.ops.checks import expect_axes, expect_indices


def span_diversity(masks: Float[Tensor, "B K L"], *, target: float = 0.15) -> Float[Tensor, ""]:
    """Return the moment diversity loss of AMDNet (arXiv 2504.10920): mean_b ‖ρ I - N N'‖²_F.

    N_k = M_k / Σ_j M_k(j) are the masks as shares. Two spans that overlap have a large product. The product of a span
    with itself is larger the narrower it is. At the product ρ it costs nothing.

    Args:
        masks: M, how much each clip belongs to each span.
        target: ρ.

    Raises:
        BadBatch: the masks do not have three axes.

    >>> span_diversity(torch.ones(1, 1, 2))  # (0.15 - 0.5)²
    tensor(0.1225)
    """
    expect_axes(masks=(masks, "B K L"))
    shares = masks / masks.sum(-1, keepdim=True)
    ideal = target * torch.eye(masks.shape[1], dtype=masks.dtype, device=masks.device)
    return (ideal - shares @ shares.mT).square().sum((1, 2)).mean()


def span_relevance(
    queries: Float[Tensor, "Q D"],
    moments: Float[Tensor, "B K D"],
    videos: Float[Tensor, "B D"],
    video_of_query: Int[Tensor, " Q"],
    *,
    margin: float = 0.02,
) -> Float[Tensor, ""]:
    """Return the moment relevance loss of AMDNet: mean_i [m + cos(q_i, g_y(i)) - max_k cos(q_i, m_y(i),k)]+.

    The gradient flows into both cosines.

    Args:
        queries: q, one vector for each query.
        moments: m, the vector of each span.
        videos: g, one vector for each whole video.
        video_of_query: y, the video of each query.
        margin: m.

    Raises:
        BadBatch: the shapes do not fit together, or a query has no video.
        BadSetting: `margin` is negative.
    """
    expect_axes(queries=(queries, "Q D"), moments=(moments, "B K D"), videos=(videos, "B D"))
    expect_axes(queries=(queries, "Q D"), video_of_query=(video_of_query, "Q"))
    expect_indices("video_of_query", video_of_query, len(videos), "the videos of the batch")
    if margin < 0:
        raise BadSetting(f"margin is {margin}, expected 0 or more. Try 0.02.")
    unit = F.normalize(queries, dim=-1)
    of_spans = (F.normalize(moments, dim=-1)[video_of_query] @ unit[..., None]).squeeze(-1)
    of_video = (F.normalize(videos, dim=-1)[video_of_query] * unit).sum(-1)
    return (margin + of_video - of_spans.max(-1).values).relu().mean()
