"""Distillation of a teacher's curve over time: the student learns which frames of a video fit a query.

Relations: `relational` preserves distances between queries. This loss preserves the similarities of one query to the
frames of its own video.

Axes: Q queries, T frames.
"""

import math

from jaxtyping import Bool, Float
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.ops.checks import expect_axes, expect_mask, expect_numbers


def curve_divergence(
    student: Float[Tensor, "Q T"], teacher: Float[Tensor, "Q T"], mask: Bool[Tensor, "Q T"], *, temperature: float = 0.2
) -> Float[Tensor, ""]:
    """Return the distillation loss of DL-DKD (ICCV 2023): Σ_i KL(softmax(k_i / τ) || softmax(c_i / τ)).

    It is a sum over the queries, not a mean, so its scale depends on the batch, as in the released code. The teacher
    gets no gradient.

    Args:
        student: c, the similarity of each query to each frame of its video.
        teacher: k, the same similarity in the teacher's space.
        mask: True for real frames. Other frames are ignored.
        temperature: τ.

    Raises:
        BadBatch: the shapes do not fit together, or a query has no frames.
        BadSetting: the temperature is not above 0.

    >>> import torch
    >>> curves = torch.tensor([[0.0, 0.2 * math.log(3)]])  # the probabilities 1/4 and 3/4
    >>> curve_divergence(torch.zeros(1, 2), curves, torch.ones(1, 2).bool())  # 1/4 log 1/2 + 3/4 log 3/2
    tensor(0.1308)
    """
    expect_axes(student=(student, "Q T"), teacher=(teacher, "Q T"), mask=(mask, "Q T"))
    expect_numbers("student", student)
    expect_numbers("teacher", teacher)
    expect_mask("mask", mask, "frames")
    if not temperature > 0:
        raise BadSetting(f"temperature is {temperature}, expected a number above 0. Try 0.2.")
    if not mask.any(1).all():
        raise BadBatch("mask has a query without frames, expected at least one for each query. Drop empty videos.")
    wanted, found = (
        (curves / temperature).masked_fill(~mask, -math.inf).log_softmax(1) for curves in (teacher.detach(), student)
    )
    # The difference of two -inf is NaN, so padding is cleared after the subtraction, too.
    return (wanted.exp() * (wanted - found).masked_fill(~mask, 0)).sum()
