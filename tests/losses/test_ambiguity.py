"""The losses of ARL: cases by hand, slow twins, and their equality with the losses of the siblings."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from midreel.errors import BadBatch, BadSetting
from midreel.losses import contrastive, ranking
from midreel.losses.ambiguity import detect, dual_triplet, multi_positive, pair_uncertainty

Sets = tuple[Tensor, Tensor, Tensor]


def sets_of(rows: list[str]) -> Sets:
    """Positive, ambiguous and negative pairs from rows of the letters p, a, n. Other letters are ignored pairs."""
    return tuple(torch.tensor([[each == kind for each in row] for row in rows]) for kind in "pan")  # type: ignore[return-value]


# ---------------------------------------------------------------- slow twins


def slow_multi_positive(scores: Tensor, rows: list[str], weight: float) -> Tensor:
    losses = []
    for i, kinds in enumerate(rows):
        if "p" not in kinds:
            continue
        everything = sum(scores[i, j].exp() for j, kind in enumerate(kinds) if kind in "pan")
        known = sum(scores[i, j].exp() * {"p": 1.0, "a": weight}[kind] for j, kind in enumerate(kinds) if kind in "pa")
        losses.append(torch.as_tensor(everything).log() - torch.as_tensor(known).log())
    return torch.stack(losses).mean()


def slow_dual_triplet(scores: Tensor, rows: list[str], margins: tuple[float, float, float]) -> Tensor:
    """The hardest negative, and the only ambiguous pair of each row."""
    losses = []
    for i, kinds in enumerate(rows):
        if "p" not in kinds:
            continue
        columns = {kind: [j for j, each in enumerate(kinds) if each == kind] for kind in "pan"}
        own = torch.stack([scores[i, j] for j in columns["p"]]).mean()
        loss = torch.zeros((), dtype=scores.dtype)
        wrong = max((scores[i, j] for j in columns["n"]), key=Tensor.item, default=None)
        between = scores[i, columns["a"][0]] if columns["a"] else None
        if wrong is not None:
            loss = loss + (margins[0] + wrong - own).clamp_min(0)
        if wrong is not None and between is not None:
            loss = loss + (margins[1] + wrong - between).clamp_min(0)
        if between is not None:
            loss = loss + (margins[2] + between - own).clamp_min(0)
        losses.append(loss)
    return torch.stack(losses).mean()


def slow_quantile(values: list[float], share: float) -> float:
    """Linear interpolation between neighbours."""
    values, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def slow_detect(
    similarity: list[list[float]],
    uncertainty: list[list[float]],
    rows: list[str],
    *,
    p_u: float,
    p_s: float,
    rho: float | None,
    most: int,
) -> list[list[bool]]:
    """Letters: p positive, u unlabelled, anything else padding."""
    pairs = [(i, j) for i, row in enumerate(rows) for j, kind in enumerate(row) if kind in "pu"]
    unlabelled = [(i, j) for i, j in pairs if rows[i][j] == "u"]
    found = [[False] * len(row) for row in rows]
    least_u = slow_quantile([uncertainty[i][j] for i, j in pairs], p_u)
    least_s = slow_quantile([similarity[i][j] for i, j in unlabelled], p_s)
    for i, row in enumerate(rows):
        own = [similarity[i][j] for j, kind in enumerate(row) if kind == "p"]
        chosen = []
        for j, kind in enumerate(row):
            s, u = similarity[i][j], uncertainty[i][j]
            similar = s > least_s if rho is None else s >= rho * sum(own) / len(own)
            if kind == "u" and u > least_u and similar:
                chosen.append((s, j))
        for _, j in sorted(chosen, reverse=True)[:most]:
            found[i][j] = True
    return found


ROWS = ["pnann", "anpnx", "nnnnp", "nnann", "paxxx", "pxxxx", "ppann"]


@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0])
def test_multi_positive_equals_the_loop_in_value_and_gradient(weight: float) -> None:
    scores = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    fast = multi_positive(scores, *sets_of(ROWS), ambiguous_weight=weight)
    slow = slow_multi_positive(scores, ROWS, weight)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (fast, slow)))


def test_dual_triplet_equals_the_loop_in_value_and_gradient() -> None:
    scores = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    margins = (0.7, 0.4, 0.2)
    named = dict(zip(("margin", "ambiguous_margin", "order_margin"), margins, strict=True))
    fast = dual_triplet(scores, *sets_of(ROWS), **named, pool=1)
    slow = slow_dual_triplet(scores, ROWS, margins)
    torch.testing.assert_close(fast, slow)
    torch.testing.assert_close(*(torch.autograd.grad(loss, scores)[0] for loss in (fast, slow)))


@pytest.mark.parametrize("rho", [None, 0.5, 0.9])
@pytest.mark.parametrize(("p_u", "p_s", "most"), [(0.7, 0.5, 5), (0.0, 0.0, 2), (0.3, 0.9, 1), (1.0, 0.0, 5)])
def test_detect_equals_the_loop(rho: float | None, p_u: float, p_s: float, most: int) -> None:
    generator = torch.Generator().manual_seed(5)
    similarity, uncertainty = torch.rand(2, 6, 8, dtype=torch.float64, generator=generator)
    rows = ["puuuuuuu", "upuuuuxx", "uuuuuuup", "puxxxxxx", "pxxxxxxx", "uuupuuuu"]
    positive, unlabelled = (torch.tensor([[each == kind for each in row] for row in rows]) for kind in "pu")
    found = detect(
        similarity,
        uncertainty,
        positive,
        unlabelled,
        uncertainty_quantile=p_u,
        similarity_quantile=p_s,
        relative_similarity=rho,
        most=most,
    )
    slow = slow_detect(similarity.tolist(), uncertainty.tolist(), rows, p_u=p_u, p_s=p_s, rho=rho, most=most)
    assert found.tolist() == slow
    assert p_u < 1 or not found.any()


def test_pair_uncertainty_equals_the_loop() -> None:
    of_query, of_frame, best = torch.randn(4), torch.randn(3, 5), torch.randint(5, (4, 3))
    found = pair_uncertainty(of_query, of_frame, best)
    for i in range(4):
        for j in range(3):
            assert found[i, j] == (of_query[i] + of_frame[j, best[i, j]]) / 2


# ---------------------------------------------------------------- by hand, and properties


def test_multi_positive_by_hand() -> None:
    # exp: 4 positive, 2 ambiguous with weight 1/2, 1 negative. log 7 - log 5.
    scores = torch.tensor([[4.0, 2.0, 1.0]]).log()
    assert multi_positive(scores, *sets_of(["pan"])).item() == pytest.approx(math.log(7 / 5))
    assert multi_positive(scores, *sets_of(["pan"]), ambiguous_weight=0.0).item() == pytest.approx(math.log(7 / 4))
    assert multi_positive(scores, *sets_of(["pax"]), ambiguous_weight=1.0).item() == pytest.approx(0)


def test_dual_triplet_by_hand() -> None:
    scores = torch.tensor([[0.5, 0.45, 0.4], [0.9, 0.95, 0.1]])
    # Row 0: .2+.4-.5, .1+.4-.45, 0. Row 1: 0, 0, .95-.9.
    expected = (0.1 + 0.05 + 0 + 0.05) / 2
    assert dual_triplet(scores, *sets_of(["pan", "pan"])).item() == pytest.approx(expected)


def test_detect_by_hand() -> None:
    similarity = torch.tensor([[0.9, 0.8, 0.7, 0.1]])
    uncertainty = torch.tensor([[0.1, 0.9, 0.2, 0.8]])
    positive = torch.tensor([[True, False, False, False]])
    kinds = {"uncertainty_quantile": 0.5, "similarity_quantile": 0.4}
    # Above the median uncertainty: columns 1 and 3. Above the similarity quantile: 1 and 2.
    found = detect(similarity, uncertainty, positive, ~positive, **kinds)
    assert found.tolist() == [[False, True, False, False]]


def test_negatives_are_drawn_from_all_and_never_ambiguous() -> None:
    scores = torch.tensor([[0.0, 5.0, 1.0, 2.0, 3.0]])
    positive, ambiguous, negative = sets_of(["pannn"])
    drawn = {
        dual_triplet(scores, positive, ambiguous, negative, margin=0.0, ambiguous_margin=0.0).item() for _ in range(60)
    }
    assert drawn == {6.0, 7.0, 8.0}  # s_n - s_p, and s_a - s_p = 5
    hard = {dual_triplet(scores, positive, ambiguous, negative, margin=0.0, pool=2).item() for _ in range(60)}
    assert hard == {7.0, 8.0}


@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 2**31))
def test_without_ambiguous_pairs_they_are_the_losses_of_the_siblings(queries: int, videos: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(queries, videos, dtype=torch.float64, generator=generator)
    video_of_query = torch.randint(videos, (queries,), generator=generator)
    own = video_of_query[:, None] == torch.arange(videos)
    both = [(scores, own, torch.zeros_like(own), ~own), (scores.T, own.T, torch.zeros_like(own).T, ~own.T)]
    summed = sum(multi_positive(*each) for each in both)
    torch.testing.assert_close(summed, contrastive.infonce(scores, video_of_query))
    ranked = sum(dual_triplet(*each, margin=0.3, pool=1) for each in both)
    expected = ranking.triplet(scores, video_of_query, margin=0.3, hard=True, hard_pool=1)
    torch.testing.assert_close(ranked, expected)


@given(st.integers(0, 2**31))
def test_a_heavier_ambiguous_pair_costs_less(seed: int) -> None:
    scores = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed))
    losses = [multi_positive(scores, *sets_of(["pan"]), ambiguous_weight=weight) for weight in (0.0, 0.3, 1.0)]
    assert losses[0] >= losses[1] >= losses[2] >= -1e-6


def test_gradcheck() -> None:
    scores = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: multi_positive(s, *sets_of(ROWS)), scores)
    assert torch.autograd.gradcheck(lambda s: dual_triplet(s, *sets_of(ROWS), pool=1), scores)


def test_infinite_scores_of_padding_leave_no_trace() -> None:
    scores = torch.randn(2, 4, requires_grad=True)
    rows = ["panx", "pxxx"]
    padded = torch.where(torch.tensor([[each == "x" for each in row] for row in rows]), -math.inf, scores)
    (multi_positive(padded, *sets_of(rows)) + dual_triplet(padded, *sets_of(rows))).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_rows_without_positives_and_empty_sets() -> None:
    scores = torch.randn(1, 3, requires_grad=True)
    assert multi_positive(scores, *sets_of(["ann"])) == dual_triplet(scores, *sets_of(["ann"])) == 0
    nothing = torch.zeros(1, 3).bool()
    assert not detect(scores, scores, ~nothing, nothing).any()


def test_bad_input(unchecked: None) -> None:
    scores = torch.randn(1, 3)
    with pytest.raises(BadSetting, match=r"ambiguous_weight is 2\.0"):
        multi_positive(scores, *sets_of(["pan"]), ambiguous_weight=2.0)
    with pytest.raises(BadBatch, match="ambiguous has shape"):
        dual_triplet(scores, sets_of(["pan"])[0], sets_of(["pa"])[0], sets_of(["pan"])[2])
    with pytest.raises(BadBatch, match="positive has type"):
        multi_positive(scores, scores, *sets_of(["pan"])[1:])
