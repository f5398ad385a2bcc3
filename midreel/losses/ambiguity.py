"""Losses of ARL: ambiguous pairs, which no label calls positive, between the positives and the negatives.

A pair is ambiguous if its similarity is high and its content is common in the dataset ("uncertainty"). The same
functions serve queries against videos and queries against the frames of their video.

No code of ARL was released. The definition of uncertainty is the paper's; the rule of `detect` and the formulas of both
losses are reconstructions from its text.

Relations: without ambiguous pairs, `multi_positive` in both directions is `contrastive.infonce`, and `dual_triplet` in
both directions is `ranking.triplet`.

Axes: N rows, such as queries, M columns, such as videos or frames, Q queries, B videos, T frames, D model width.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadSetting
from midreel.losses import ranking
from midreel.ops.checks import expect_axes, expect_mask, expect_numbers


def pair_uncertainty(
    of_query: Float[Tensor, " Q"], of_frame: Float[Tensor, "B T"], best_frame: Int[Tensor, "Q B"]
) -> Float[Tensor, "Q B"]:
    """Return the uncertainty of each query and video: u_ij = (U^q_i + U^v_j,k) / 2, where k is the best frame.

    Args:
        of_query: U^q, the mean similarity of a query to all frames of the dataset.
        of_frame: U^v, the mean similarity of a frame to all queries of the dataset.
        best_frame: k, the frame of video j that is most similar to query i.

    Raises:
        BadBatch: the shapes do not fit together.

    >>> pair_uncertainty(torch.tensor([0.2]), torch.tensor([[0.0, 0.6]]), torch.tensor([[1]]))
    tensor([[0.4000]])
    """
    expect_axes(of_query=(of_query, "Q"), of_frame=(of_frame, "B T"), best_frame=(best_frame, "Q B"))
    videos = torch.arange(len(of_frame), device=of_frame.device)
    return (of_query[:, None] + of_frame[videos, best_frame]) / 2


@torch.no_grad()
def detect(
    similarity: Float[Tensor, "N M"],
    uncertainty: Float[Tensor, "N M"],
    positive: Bool[Tensor, "N M"],
    unlabelled: Bool[Tensor, "N M"],
    *,
    uncertainty_quantile: float = 0.7,
    similarity_quantile: float = 0.98,
    relative_similarity: float | None = None,
    most: int = 5,
) -> Bool[Tensor, "N M"]:
    """Return the ambiguous pairs: unlabelled pairs of high uncertainty and high similarity.

    The uncertainty must be above a quantile of all pairs. The similarity must be above a quantile of the unlabelled
    pairs or, with `relative_similarity` ρ, at least ρ times that of the row's positive. A row keeps its `most` pairs of
    highest similarity.

    Args:
        similarity: the similarity of each pair.
        uncertainty: the uncertainty of each pair.
        positive: True for the positive of each row.
        unlabelled: True for the pairs that may be ambiguous.
        uncertainty_quantile: the quantile of uncertainty, 0 to 1.
        similarity_quantile: the quantile of similarity, 0 to 1.
        relative_similarity: ρ. Default: use the quantile of similarity.
        most: the largest number of ambiguous pairs of a row.

    Raises:
        BadBatch: the shapes do not fit together.
    """
    expect_axes(similarity=(similarity, "N M"), uncertainty=(uncertainty, "N M"), positive=(positive, "N M"))
    expect_axes(similarity=(similarity, "N M"), unlabelled=(unlabelled, "N M"))
    if not unlabelled.any():
        return torch.zeros_like(unlabelled)
    common = uncertainty > uncertainty[positive | unlabelled].quantile(uncertainty_quantile)
    if relative_similarity is None:
        similar = similarity > similarity[unlabelled].quantile(similarity_quantile)
    else:
        similar = similarity >= relative_similarity * _mean(similarity, positive)[:, None]
    found = unlabelled & common & similar
    best = similarity.masked_fill(~found, -math.inf).topk(min(most, similarity.shape[1]), dim=1).indices
    return found & torch.zeros_like(found).scatter_(1, best, True)


def multi_positive(
    scores: Float[Tensor, "N M"],
    positive: Bool[Tensor, "N M"],
    ambiguous: Bool[Tensor, "N M"],
    negative: Bool[Tensor, "N M"],
    *,
    ambiguous_weight: float = 0.5,
) -> Float[Tensor, ""]:
    """Return the multi-positive contrastive loss of the rows: ambiguous pairs join the positives with a lower weight.

    mean_i [lse_j s_ij - lse_{j in P(i) or A(i)} (s_ij + log w_ij)], where lse is log Σ exp. w is 1 for a positive and
    `ambiguous_weight` for an ambiguous pair. A row without a positive costs nothing.

    Args:
        scores: s, without normalisation.
        positive: P.
        ambiguous: A.
        negative: the pairs that only the first sum has. Pairs in none of the three sets are ignored.
        ambiguous_weight: the weight of an ambiguous pair, 0 to 1.

    Raises:
        BadBatch: the shapes do not fit together.
        BadSetting: the weight is out of range.

    >>> none = torch.tensor([[False, False]])
    >>> multi_positive(torch.zeros(1, 2), torch.tensor([[True, False]]), none, torch.tensor([[False, True]]))
    tensor(0.6931)
    """
    _expect_sets(scores, positive, ambiguous, negative)
    if not 0 <= ambiguous_weight <= 1:
        raise BadSetting(f"ambiguous_weight is {ambiguous_weight}, expected 0 to 1. Try 0.5.")
    rows = positive.any(1)
    if not rows.any():
        return scores.sum() * 0
    scores, positive, ambiguous, negative = (each[rows] for each in (scores, positive, ambiguous, negative))
    known = positive | ambiguous
    weight = torch.where(positive, 0.0, math.log(ambiguous_weight) if ambiguous_weight else -math.inf)
    weighted = (scores + weight.to(scores.dtype)).masked_fill(~known, -math.inf)
    return (scores.masked_fill(~(known | negative), -math.inf).logsumexp(1) - weighted.logsumexp(1)).mean()


def dual_triplet(
    scores: Float[Tensor, "N M"],
    positive: Bool[Tensor, "N M"],
    ambiguous: Bool[Tensor, "N M"],
    negative: Bool[Tensor, "N M"],
    *,
    margin: float = 0.2,
    ambiguous_margin: float = 0.1,
    order_margin: float = 0.0,
    pool: int | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, ""]:
    """Return the dual triplet loss of the rows, for the order positive > ambiguous > negative.

    mean_i {[m1 + s_n - s_p]+ + [m2 + s_n - s_a]+ + [m3 + s_a - s_p]+}.

    s_p is the mean score of the row's positives, s_n the score of a drawn negative, and s_a that of a drawn ambiguous
    pair. Without a negative or an ambiguous pair the hinges that need it cost nothing, and neither does a row without a
    positive.

    Args:
        scores: s, as cosines.
        positive: the positives.
        ambiguous: the ambiguous pairs.
        negative: the pairs that negatives are drawn from.
        margin: m1.
        ambiguous_margin: m2.
        order_margin: m3.
        pool: draw the negative from this many of the row's best negatives. Default: from all.
        generator: the source of the random draws. Default: torch's global one.

    Raises:
        BadBatch: the shapes do not fit together.

    >>> scores = torch.tensor([[0.5, 0.6, 0.3]])
    >>> sets = [torch.tensor([[column == index for column in range(3)]]) for index in range(3)]
    >>> dual_triplet(scores, *sets, margin=0.25)  # .05 + 0 + .1
    tensor(0.1500)
    """
    _expect_sets(scores, positive, ambiguous, negative)
    rows = positive.any(1)
    if not rows.any():
        return scores.sum() * 0
    scores, positive, ambiguous, negative = (each[rows] for each in (scores, positive, ambiguous, negative))
    own = _mean(scores, positive)
    wrong = scores.gather(1, ranking.drawn(scores, negative, pool, generator))[:, 0]
    between = scores.gather(1, ranking.drawn(scores, ambiguous, None, generator))[:, 0]
    has_wrong, has_between = negative.any(1), ambiguous.any(1)
    hinges = (
        torch.where(has_wrong, (margin + wrong - own).relu(), 0)
        + torch.where(has_wrong & has_between, (ambiguous_margin + wrong - between).relu(), 0)
        + torch.where(has_between, (order_margin + between - own).relu(), 0)
    )
    return hinges.mean()


def _mean(scores: Float[Tensor, "N M"], chosen: Bool[Tensor, "N M"]) -> Float[Tensor, " N"]:
    """Return the mean of the chosen scores of each row, 0 if there are none."""
    # Not a product with the mask: a padded score may be infinite.
    return scores.masked_fill(~chosen, 0).sum(1) / chosen.sum(1).clamp_min(1)


def _expect_sets(scores: Tensor, positive: Tensor, ambiguous: Tensor, negative: Tensor) -> None:
    expect_axes(scores=(scores, "N M"), positive=(positive, "N M"))
    expect_axes(scores=(scores, "N M"), ambiguous=(ambiguous, "N M"), negative=(negative, "N M"))
    expect_numbers("scores", scores)
    for name, pairs in (("positive", positive), ("ambiguous", ambiguous), ("negative", negative)):
        expect_mask(name, pairs, "pairs")
