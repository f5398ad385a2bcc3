"""Losses that preserve a teacher's distances and angles, TCPL and VCPL, and the relation alignment of BGM-Net.

TCPL is Sec. 3.2 of the MSC paper, VCPL its counterpart for videos (Table 2). The losses compare the distances of all
pairs and the angles of all triples. They ignore rotation, translation and scale of the student's points. In TCPL the
student is the pooled queries T̄, and the teacher CLIP's [EOS] tokens T^EOS. In VCPL the student is encoded video tokens,
and the teacher their frozen features.

Relations: for videos the paper uses `alignment` instead of VCPL.

Axes: Q points (B_q queries in the paper), D student width (d), C teacher width (d_CLIP), V vertices of a block.
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

# Cosines from the Gram matrix subtract nearly equal numbers where two points are close together, and lose digits. Below
# NEAR times the mean distance the matrix needs double precision. Below TOUCHING that is not enough, and differences of
# points are used instead.
NEAR, TOUCHING = 0.03, 1e-4
# The size of the arrays of one block of vertices, which should fit into the cache.
ANGLE_BLOCK_BYTES = 4 << 20


def distance_preservation(
    student: Float[Tensor, "Q D"], teacher: Float[Tensor, "Q C"], *, include_diagonal: bool = False
) -> Float[Tensor, ""]:
    """Return L^E, Eq. (4): the Huber loss between the distances in both spaces, averaged over all pairs i ≠ j.

    L^E = 1/(Q (Q - 1)) Σ_{i≠j} L^H(f^e(t_i, t_j), f^e(s_i, s_j)), where f^e(x, y) = ‖x - y‖ / μ (Eq. (2)) and μ is the
    mean distance in the space. The teacher gets no gradient.

    Args:
        student: s, T̄ in the paper.
        teacher: t, T^EOS in the paper.
        include_diagonal: divide by Q², as the released code does.

    Raises:
        BadBatch: the shapes do not fit together, or there are no points.

    >>> student, teacher = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0.0], [2.0], [6.0]])
    >>> distance_preservation(student, teacher)
    tensor(0.)
    """
    student, teacher = _precise(student, teacher)
    num = len(student)
    gap = F.smooth_l1_loss(_scaled_distances(student), _scaled_distances(teacher), reduction="sum")
    return gap / max(num * num if include_diagonal else num * (num - 1), 1)


def relation_alignment(first: Float[Tensor, "Q D"], second: Float[Tensor, "Q C"]) -> Float[Tensor, ""]:
    """Return the relation alignment of BGM-Net: mean_ij |cos(a_i, a_j) - cos(b_i, b_j)| over all Q² pairs.

    Unlike a teacher, both sides get a gradient. The pairs i = j cost nothing, but count in the mean.

    Args:
        first: a, such as queries.
        second: b, such as the clip of each query.

    Raises:
        BadBatch: the shapes do not fit together, or there are no points.

    >>> relation_alignment(torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]]))  # 0.6 for two of four pairs
    tensor(0.3000)
    """
    expect_axes(first=(first, "Q D"), second=(second, "Q C"))
    if not len(first):
        raise BadBatch(f"first has shape {tuple(first.shape)}, expected at least 1 row. Drop the empty batch.")
    unit_first, unit_second = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
    return (unit_first @ unit_first.T - unit_second @ unit_second.T).abs().mean()


def angle_preservation(student: Float[Tensor, "Q D"], teacher: Float[Tensor, "Q C"]) -> Float[Tensor, ""]:
    """Return L^A, Eq. (5): the Huber loss between the cosines of all angles in both spaces, averaged over Q³ triples.

    L^A = 1/Q³ Σ_{i,j,k} L^H(f^a(t_i, t_j, t_k), f^a(s_i, s_j, s_k)), where f^a(x, y, z) is the cosine of the angle at y
    (Eq. (2)). An arm of length zero has no direction, and its cosines are 0. The teacher gets no gradient.

    Differences of all pairs would take Q × Q × D numbers. The cosines come from the Gram matrix G instead,
    (G_ik - G_ij - G_jk + G_jj) / (d_ij d_kj), one block of vertices at a time. The same pass computes the gradient.
    Differences are used only at points that nearly coincide with others, where the Gram matrix loses digits.

    Args:
        student: s, T̄ in the paper.
        teacher: t, T^EOS in the paper.

    Raises:
        BadBatch: the shapes do not fit together, or there are no points.
    """
    return _AnglePreservation.apply(*_precise(student, teacher))


def retrieved_token_of_query(
    queries: Float[Tensor, "Q D"], tokens: Float[Tensor, "B S D"], video_of_query: Int[Tensor, " Q"]
) -> Int[Tensor, " Q"]:
    """Return the token of its own video with the highest cosine for each query: VCPL, "retrieved segment" (Table 2).

    Args:
        queries: one vector for each query.
        tokens: the encoded tokens of each video.
        video_of_query: the video of each query.

    Raises:
        BadBatch: the shapes do not fit together, or a query has no video.
    """
    expect_axes(queries=(queries, "Q D"), tokens=(tokens, "B S D"), video_of_query=(video_of_query, "Q"))
    expect_indices("video_of_query", video_of_query, len(tokens), "the videos of the batch")
    own = F.normalize(tokens.detach(), dim=-1)[video_of_query]
    return torch.einsum("qd,qsd->qs", F.normalize(queries.detach(), dim=-1), own).argmax(1)


def spread_tokens(
    num_tokens: int, num_spans: int = 4, *, jitter: bool = False, generator: torch.Generator | None = None
) -> Int[Tensor, " {num_spans}"]:
    """Return one token of each of `num_spans` equal spans: VCPL, "uniform sampling" (Table 2).

    Args:
        num_tokens: the number of tokens of a video.
        num_spans: the number of spans.
        jitter: draw a random token of each span. Default: its centre.
        generator: the source of the random draws. Default: torch's global one.

    Raises:
        BadSetting: there are more spans than tokens, or none.

    >>> spread_tokens(128)
    tensor([ 16,  48,  80, 112])
    """
    if not 1 <= num_spans <= num_tokens:
        raise BadSetting(f"num_spans is {num_spans}, expected 1 to {num_tokens}, the number of tokens. Lower it.")
    place = torch.rand(num_spans, generator=generator) if jitter else torch.full((num_spans,), 0.5)
    span = torch.arange(num_spans)
    token = ((span + place) * num_tokens / num_spans).long()
    return token.minimum(((span + 1) * num_tokens / num_spans).ceil().long() - 1)  # rounding may leave the span


def _precise(student: Float[Tensor, "Q D"], teacher: Float[Tensor, "Q C"]) -> tuple[Tensor, Tensor]:
    """Return both in at least single precision, the teacher without gradient."""
    expect_axes(student=(student, "Q D"), teacher=(teacher, "Q C"))
    if not len(student):
        raise BadBatch("student is empty, expected at least one point. Drop the empty batch.")
    student = at_least_single(student)
    return student, teacher.detach().to(student.dtype)


def _scaled_distances(points: Float[Tensor, "Q D"]) -> Float[Tensor, "Q Q"]:
    """Return f^e of Eq. (2): all distances, divided by their mean μ over i ≠ j. They are 0 if all points are equal."""
    distance = _distances(points)
    mean = distance.sum() / max(len(points) * (len(points) - 1), 1)
    return distance / torch.where(mean > 0, mean, 1)


class _AnglePreservation(torch.autograd.Function):
    """Computes loss and gradient in one pass, because autograd would keep Q³ numbers for the backward pass."""

    @staticmethod
    def forward(ctx: FunctionCtx, student: Float[Tensor, "Q D"], teacher: Float[Tensor, "Q C"]) -> Float[Tensor, ""]:
        with torch.autocast(student.device.type, enabled=False):  # the gradient needs full precision
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
    """Return the loss and its derivative with respect to the student, in one pass over the vertices."""
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
    """Points and what the angles need of their distances.

    Attributes:
        points: the points.
        reach: the reciprocal of each distance, 0 between equal points.
        nearest: for each point, the smallest distance above 0 as a share of the mean distance, inf if there is none.
    """

    def __init__(self, points: Float[Tensor, "Q D"]) -> None:
        num, distance = len(points), _distances(points)
        self.points = points
        self.reach = torch.where(distance > 0, distance.reciprocal(), 0)
        self.nearest = torch.where(distance > 0, distance, math.inf).amin(1) * max(num * (num - 1), 1) / distance.sum()


def _from_gram_matrix(
    vertices: Int[Tensor, " N"], student: _Points, teacher: _Points
) -> tuple[Float[Tensor, ""], Float[Tensor, "Q D"]]:
    """Return the sum of the Huber losses of all angles at these vertices, and its derivative.

    At vertex j, with r_i = 1 / d_ij, the cosines are A_ik = r_i r_k (G_ik - G_ij - G_jk + G_jj). The derivative of the
    Huber loss is P = clamp(A - A of the teacher, -1, 1). The chain rule gives, with M_ik = r_i r_k P_ik (`pull`):
      dL/dG      M at (i, k), minus the row sums of M at (i, j) and at (j, k), plus the sum of M at (j, j);
      dL/dd_ij   -2 r_i Σ_k P_ik A_ik (`stretch`), because the cosines fall with the length of the arm.
    Both change the gradient by multiples of the points, so one Q × Q matrix of coefficients collects them.
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
    """Return the same from the arms u_i = r_i (x_i - x_j). Short arms need this, because the Gram matrix loses digits.

    The cosines are A = u u', so dL/du = 2 P u. The derivative of u_i by x_i is r_i (1 - u_i u_i').
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
    """Return the sum of the Huber losses, gap² / 2 below 1 and |gap| - 1/2 above, from the gap and its clamped value.

    Both cases are clamped · gap - clamped² / 2.
    """
    return clamped.flatten().dot(gap.flatten()) - clamped.flatten().dot(clamped.flatten()) / 2


def _cosines_at(
    vertex: Int[Tensor, " V"], gram: Float[Tensor, "Q Q"], reach: Float[Tensor, "Q Q"]
) -> Float[Tensor, "V Q Q"]:
    """Return f^a of Eq. (2) for all angles at the vertices j: r_ij r_kj (G_ik - u_i - u_k), u_i = G_ij - G_jj / 2."""
    rows, arms = gram[vertex], reach[vertex]
    offset = rows - gram.diagonal()[vertex, None] / 2
    cosine = gram - offset[:, :, None]
    cosine -= offset[:, None, :]
    cosine *= arms[:, :, None]
    cosine *= arms[:, None, :]
    return cosine


def _distances(points: Float[Tensor, "Q D"]) -> Float[Tensor, "Q Q"]:
    """Return all distances. Differences are squared, so equal points have distance exactly 0 and get no gradient."""
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def _blocks(vertices: Int[Tensor, " N"], num_bytes: int) -> tuple[Int[Tensor, " V"], ...]:
    """Split the vertices into blocks that fit into the cache. `num_bytes` is the size of the arrays of one vertex."""
    return vertices.split(max(1, ANGLE_BLOCK_BYTES // num_bytes))
