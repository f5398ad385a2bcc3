"""Relations of a teacher's space, preserved: TCPL (Sec. 3.2) and its video counterpart VCPL (Table "VideoCPL").

A student's points may be rotated, shifted and scaled at will; what the losses hold on to are the distances of all pairs
and the angles of all triples. TCPL takes the pooled queries as student and CLIP's [EOS] tokens as teacher; VCPL takes
encoded video tokens and the frozen features they came from.

Relations: `alignment` is what the paper uses on video instead of VCPL.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from midreel.errors import BadBatch, BadSetting
from midreel.ops.checks import expect_axes, expect_indices
from midreel.ops.precision import at_least_single

# Points that lie close together, and not on each other, cancel in a Gram matrix. At this share of the mean distance it
# takes double precision to tell what is left, and at this one that does not do.
NEAR, TOUCHING = 0.03, 1e-4
# What is handled at a time, for some vertices of angles, should stay in cache.
ANGLE_BLOCK_BYTES = 4 << 20


def distance_preservation(
    student: Float[Tensor, "Q D"], teacher: Float[Tensor, "Q C"], *, include_diagonal: bool = False
) -> Float[Tensor, ""]:
    """L^E: the Huber loss between the distances of all pairs i ≠ j, each space scaled by its mean distance μ.

    With `include_diagonal` the mean runs over all Q² entries (the released code). The teacher gets no gradient.
    """
    student, teacher = _precise(student, teacher)
    num = len(student)
    gap = F.smooth_l1_loss(_scaled_distances(student), _scaled_distances(teacher), reduction="sum")
    return gap / max(num * num if include_diagonal else num * (num - 1), 1)


def angle_preservation(student: Float[Tensor, "Q D"], teacher: Float[Tensor, "Q C"]) -> Float[Tensor, ""]:
    """L^A: the Huber loss between the cosines of all Q³ angles (i, j, k) with vertex j. The teacher gets no gradient.

    An arm of length zero has no direction: its cosines count as 0. Written out over differences of vectors this takes
    Q × Q × D numbers. Here the cosines come from the Gram matrix, (G_ik - G_ij - G_jk + G_jj) / d_ij d_kj, a block of
    vertices at a time, and the gradient is collected on the way. Only at points that others nearly touch, which would
    cancel, are differences taken.
    """
    return _AnglePreservation.apply(*_precise(student, teacher))


def retrieved_token_of_query(
    queries: Float[Tensor, "Q D"], tokens: Float[Tensor, "B S D"], video_of_query: Int[Tensor, " Q"]
) -> Int[Tensor, " Q"]:
    """VCPL, "retrieved segment": the token of its own video that a query resembles most, by cosine."""
    expect_axes(queries=(queries, "Q D"), tokens=(tokens, "B S D"), video_of_query=(video_of_query, "Q"))
    expect_indices("video_of_query", video_of_query, len(tokens), "the videos of the batch")
    own = F.normalize(tokens.detach(), dim=-1)[video_of_query]
    return torch.einsum("qd,qsd->qs", F.normalize(queries.detach(), dim=-1), own).argmax(1)


def spread_tokens(
    num_tokens: int, num_spans: int = 4, *, jitter: bool = False, generator: torch.Generator | None = None
) -> Int[Tensor, " {num_spans}"]:
    """VCPL, "uniform sampling": the centre of each of `num_spans` equal spans, or with `jitter` a random token of each.

    >>> spread_tokens(128)
    tensor([ 16,  48,  80, 112])
    """
    if not 1 <= num_spans <= num_tokens:
        raise BadSetting(f"num_spans is {num_spans}, expected 1 to {num_tokens}, one for each token at most; lower it")
    place = torch.rand(num_spans, generator=generator) if jitter else torch.full((num_spans,), 0.5)
    span = torch.arange(num_spans)
    token = ((span + place) * num_tokens / num_spans).long()
    return token.minimum(((span + 1) * num_tokens / num_spans).ceil().long() - 1)  # rounding must not leave the span


def _precise(student: Float[Tensor, "Q D"], teacher: Float[Tensor, "Q C"]) -> tuple[Tensor, Tensor]:
    """Both in single precision at least, the teacher as a constant."""
    expect_axes(student=(student, "Q D"), teacher=(teacher, "Q C"))
    if not len(student):
        raise BadBatch("student has no point, expected at least one; drop the empty batch")
    student = at_least_single(student)
    return student, teacher.detach().to(student.dtype)


def _scaled_distances(points: Float[Tensor, "Q D"]) -> Float[Tensor, "Q Q"]:
    """Distances over their mean μ across i ≠ j; all zero if the points coincide."""
    distance = _distances(points)
    mean = distance.sum() / max(len(points) * (len(points) - 1), 1)
    return distance / torch.where(mean > 0, mean, 1)


class _AnglePreservation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, student: Float[Tensor, "Q D"], teacher: Float[Tensor, "Q C"]) -> Float[Tensor, ""]:
        with torch.autocast(student.device.type, enabled=False):  # the gradient is taken here, not by autograd
            loss, gradient = _angle_loss_and_gradient(student, teacher)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, upstream: Float[Tensor, ""]) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return upstream * gradient, None


def _angle_loss_and_gradient(
    student: Float[Tensor, "Q D"], teacher: Float[Tensor, "Q C"]
) -> tuple[Float[Tensor, ""], Float[Tensor, "Q D"]]:
    """The loss and its derivative by the student, in one pass over the vertices."""
    num, dtype = len(student), student.dtype
    ours, theirs = _Points(student), _Points(teacher)
    nearest = torch.minimum(ours.nearest, theirs.nearest)
    if (nearest < NEAR).any():
        ours, theirs = _Points(student.double()), _Points(teacher.double())
    loss, gradient = _from_gram_matrix((nearest >= TOUCHING).nonzero().flatten(), ours, theirs)
    width = max(num, student.shape[1], teacher.shape[1])
    for vertex in _blocks((nearest < TOUCHING).nonzero().flatten(), num * width * student.element_size()):
        more, by_student = _from_arms(vertex, ours, theirs)
        loss, gradient = loss + more, gradient + by_student
    return (loss / num**3).to(dtype), (gradient / num**3).to(dtype)


class _Points:
    """Points, the reciprocals of their distances, 0 between equal points, and how near each has another: as a share of
    the mean distance, and infinitely far where all others lie on it."""

    def __init__(self, points: Float[Tensor, "Q D"]) -> None:
        num, distance = len(points), _distances(points)
        self.points = points
        self.reach = torch.where(distance > 0, distance.reciprocal(), 0)
        self.nearest = torch.where(distance > 0, distance, math.inf).amin(1) * max(num * (num - 1), 1) / distance.sum()


def _from_gram_matrix(
    vertices: Int[Tensor, " N"], student: _Points, teacher: _Points
) -> tuple[Float[Tensor, ""], Float[Tensor, "Q D"]]:
    """The sum over the angles at these vertices, and its derivative.

    Per vertex j, with r_i = 1 / d_ij, the cosines are A_ik = r_i r_k (G_ik - G_ij - G_jk + G_jj), and the Huber loss
    passes on P = clamp(A - teacher's A, -1, 1). By the chain rule, with M_ik = r_i r_k P_ik ("pull" below),
      dL/dG  gets M, less M's row sums at (i, j) and at (j, k), plus M's sum at (j, j);
      dL/dd_ij = -2 r_i Σ_k P_ik A_ik ("stretch", a longer arm turns less);
    and both reach the points through one Q × Q matrix of coefficients.
    """
    centred, others = (each.points - each.points.mean(0) for each in (student, teacher))
    student_gram, teacher_gram = centred @ centred.T, others @ others.T
    loss = student_gram.new_zeros(())
    coefficients, arm_sums, stretch = (torch.zeros_like(student_gram) for _ in range(3))
    for vertex in _blocks(vertices, student_gram.nbytes):
        cosine = _cosines_at(vertex, student_gram, student.reach)
        gap = cosine - _cosines_at(vertex, teacher_gram, teacher.reach)
        pull = gap.clamp(-1, 1)
        loss += _huber(gap, pull)
        stretch[vertex] = (pull * cosine).sum(2)
        reach = student.reach[vertex]
        pull *= reach[:, :, None]
        pull *= reach[:, None, :]
        arm_sums[vertex] = pull.sum(2)
        coefficients += pull.sum(0)
    coefficients = 2 * (coefficients - arm_sums - arm_sums.T + arm_sums.sum(1).diag())
    stretch = -2 * stretch * student.reach.square()
    stretch = stretch + stretch.T
    coefficients += stretch.sum(1).diag() - stretch
    return loss, coefficients @ centred


def _from_arms(
    vertex: Int[Tensor, " V"], student: _Points, teacher: _Points
) -> tuple[Float[Tensor, ""], Float[Tensor, "Q D"]]:
    """The same from the arms u_i = r_i (x_i - x_j) themselves, which short ones need: in a Gram matrix they cancel.

    With the cosines A = u u', dL/du = 2 P u, and u_i turns with x_i as r_i (1 - u_i u_i').
    """
    arms, others = _arms(vertex, student), _arms(vertex, teacher)
    gap = arms @ arms.mT - others @ others.mT
    pull = gap.clamp(-1, 1)
    by_arm = 2 * pull @ arms
    by_point = (by_arm - (by_arm * arms).sum(2, keepdim=True) * arms) * student.reach[vertex][..., None]
    gradient = by_point.sum(0).index_add_(0, vertex, -by_point.sum(1))
    return _huber(gap, pull), gradient


def _arms(vertex: Int[Tensor, " V"], of: _Points) -> Float[Tensor, "V Q D"]:
    return (of.points - of.points[vertex, None]) * of.reach[vertex][..., None]


def _huber(gap: Float[Tensor, "V Q Q"], clamped: Float[Tensor, "V Q Q"]) -> Float[Tensor, ""]:
    """Half the square of each gap, from 1 on the gap less a half; summed."""
    return clamped.flatten().dot(gap.flatten()) - clamped.flatten().dot(clamped.flatten()) / 2


def _cosines_at(
    vertex: Int[Tensor, " V"], gram: Float[Tensor, "Q Q"], reach: Float[Tensor, "Q Q"]
) -> Float[Tensor, "V Q Q"]:
    """The cosines of all angles at the given vertices j: r_ij r_kj (G_ik - u_i - u_k) with u_i = G_ij - G_jj / 2."""
    rows, arms = gram[vertex], reach[vertex]
    offset = rows - gram.diagonal()[vertex, None] / 2
    cosine = gram - offset[:, :, None]
    cosine -= offset[:, None, :]
    cosine *= arms[:, :, None]
    cosine *= arms[:, None, :]
    return cosine


def _distances(points: Float[Tensor, "Q D"]) -> Float[Tensor, "Q Q"]:
    """Differences are taken before squares, so that equal points are exactly 0 apart and the gradient there is 0."""
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def _blocks(vertices: Int[Tensor, " N"], num_bytes: int) -> tuple[Int[Tensor, " V"], ...]:
    """So many vertices at a time as stay in cache, where each takes so many bytes."""
    return vertices.split(max(1, ANGLE_BLOCK_BYTES // num_bytes))
