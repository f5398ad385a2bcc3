"""Losses of ProtoPRVR: prototypes that reconstruct words and frames, attend to their own video, and differ.

No code of ProtoPRVR was released. The paper's text names these losses; the formulas in detail are reconstructions.

Relations: `contrastive` and `ranking` train the retrieval itself. `alignment` and `diversity` also shape the tokens or
queries of one video, but without a decoder.

Axes: B videos, Q queries, L words, M masked words, P prototypes, T frames, S tokens of a video, D model width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from midreel.errors import BadSetting
from midreel.ops.checks import expect_axes, expect_mask

LEAST_MASS = 1e-6  # keeps the logarithm of an attention mass of zero finite


def words_to_mask(
    mask: Bool[Tensor, "Q L"], rate: float, generator: torch.Generator | None = None
) -> Bool[Tensor, "Q L"]:
    """Draw the words of each query that a reconstruction has to recover.

    The first and the last real word, [SOS] and [EOS], are never drawn. Each other real word is drawn with probability
    `rate`, and at least one word of a query that has any.

    Args:
        mask: True for real words.
        rate: the probability, 0 to 1.
        generator: the source of the random draws. Default: torch's global one.

    Raises:
        BadSetting: the rate is out of range.
        BadBatch: the mask is not boolean.
    """
    expect_axes(mask=(mask, "Q L"))
    expect_mask("mask", mask, "words")
    if not 0 <= rate <= 1:
        raise BadSetting(f"rate is {rate}, expected a probability from 0 to 1. Try 0.2.")
    position = mask.long().cumsum(1)
    inner = mask & (position > 1) & (position < mask.sum(1, keepdim=True))
    keys = torch.rand(mask.shape, generator=generator, device=mask.device).masked_fill(~inner, 2)
    lowest = torch.zeros_like(mask).scatter_(1, keys.argmin(1, keepdim=True), True)
    return inner & ((keys < rate) | lowest)


def word_reconstruction(
    words: Float[Tensor, "M D"], targets: Float[Tensor, "M D"], *, temperature: float = 0.07
) -> Float[Tensor, ""]:
    """Return the cross-modal reconstruction loss: each masked word must be found among all masked words of the batch.

    L_crec = mean_m -log softmax_n(cos(w_m, z_n) / τ) at n = m. The targets z get no gradient. Without masked words the
    loss is 0.

    Args:
        words: w, the reconstruction of each masked word.
        targets: z, the feature of each masked word.
        temperature: τ.

    Raises:
        BadBatch: the shapes do not fit together.
        BadSetting: the temperature is not above 0.

    >>> word_reconstruction(torch.eye(2), torch.eye(2), temperature=1.0)  # log(1 + 1 / e)
    tensor(0.3133)
    """
    expect_axes(words=(words, "M D"), targets=(targets, "M D"))
    if temperature <= 0:
        raise BadSetting(f"temperature is {temperature}, expected a number above 0. Try 0.07.")
    if not len(words):
        return words.sum()
    logits = F.normalize(words, dim=-1) @ F.normalize(targets.detach(), dim=-1).T / temperature
    return (logits.logsumexp(1) - logits.diagonal()).mean()


def frame_reconstruction(
    decoded: Float[Tensor, "B T D"], frames: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """Return the uni-modal reconstruction loss: the mean squared error of the decoded frames.

    L_urec = mean_b 1/T_b Σ_t |f_bt - f̃_bt|² / D, over the T_b real frames of a video. The frames get no gradient.

    Args:
        decoded: f̃, the frames that a decoder reads from the prototypes.
        frames: f, the features of the frames.
        mask: True for real frames, at least one of each video.

    Raises:
        BadBatch: the shapes do not fit together.

    >>> frame_reconstruction(torch.ones(1, 2, 3), torch.zeros(1, 2, 3), torch.tensor([[True, False]]))
    tensor(1.)
    """
    expect_axes(decoded=(decoded, "B T D"), frames=(frames, "B T D"), mask=(mask, "B T"))
    expect_mask("mask", mask, "frames")
    errors = (decoded - frames.detach()).square().mean(-1)
    return (errors * mask).sum(1).div(mask.sum(1)).mean()


def attention_guidance(attention: Float[Tensor, "Q S"], own: Bool[Tensor, "Q S"]) -> Float[Tensor, ""]:
    """Return the weak guidance of a mixed video: -mean_i log(a_i + 1e-6).

    a_i is the attention of query i's prototype to the tokens of the query's own video. The rest of its attention is on
    the other video of the mix. Without queries the loss is 0.

    Args:
        attention: the attention of each query's prototype. A row sums to one.
        own: True for the tokens of the query's own video.

    Raises:
        BadBatch: the shapes do not fit together.

    >>> attention_guidance(torch.tensor([[0.25, 0.25, 0.5]]), torch.tensor([[True, True, False]]))
    tensor(0.6931)
    """
    expect_axes(attention=(attention, "Q S"), own=(own, "Q S"))
    expect_mask("own", own, "tokens")
    if not len(attention):
        return attention.sum()
    return -((attention * own).sum(1) + LEAST_MASS).log().mean()


def orthogonality(prototypes: Float[Tensor, "B P D"]) -> Float[Tensor, ""]:
    """Return the mean squared cosine of two different prototypes of one video.

    L_ortho = mean_b ‖N N' - I‖² / (P (P - 1)), where the rows of N are the prototypes, scaled to length one. The square
    treats both signs alike, so prototypes do not gain from being opposite. A single prototype costs nothing.

    Args:
        prototypes: the prototypes of each video.

    Raises:
        BadBatch: the tensor has other axes.

    >>> orthogonality(torch.tensor([[[1.0, 0.0], [3.0, 4.0]]]))  # 0.6²
    tensor(0.3600)
    """
    expect_axes(prototypes=(prototypes, "B P D"))
    num = prototypes.shape[1]
    unit = F.normalize(prototypes, dim=-1)
    # Masked, and not compared with I: the diagonal is one up to rounding, and must have no gradient.
    other = ~torch.eye(num, dtype=torch.bool, device=unit.device)
    return ((unit @ unit.mT).square() * other).sum((1, 2)).mean() / max(num * (num - 1), 1)
