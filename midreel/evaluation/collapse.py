"""Semantic collapse, measured: Tables 8, 9 and A2 of the paper.

Training on (query, video) pairs alone draws everything of one video together. Cosines within a video against cosines
overall show how far that went, and the rank correlation with the backbone's cosines how much of its text space is left.

Axes: N vectors (queries or tokens), B videos, S tokens, D and C widths, Q queries, P pairs.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from midreel.errors import BadBatch, BadSetting, UnknownName
from midreel.evaluation.evaluate import query_vectors
from midreel.methods.base import Method, evaluating
from midreel.methods.batches import QueryBatch, VideoBatch
from midreel.methods.msc import last_words
from midreel.ops.checks import expect_axes

MAX_PAIRS = 1_000_000
PAIRS_AT_ONCE = 1 << 14  # whose vectors are gathered: (2, P, D) of them


# ---------------------------------------------------------------- Table 8: similarity structure


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Mean cosines over pairs of different vectors.

    `intra` (Intra Sim) is the mean over all pairs i ≠ j of one video, every pair counted alike. The paper says "the
    average similarity among instances of the same video"; the mean of the videos' own means would be another reading,
    in which a video with two queries weighs as much as one with twenty. A video with a single vector has no pair.

    `total` (Total Sim) is the mean over all pairs i ≠ j, those of one video included, as the table's caption says
    ("across all instances"). `inter` is the mean over pairs of different videos alone, another reading of the paper's
    text ("between all instances across videos"). With many videos the two agree; with few, `total` holds a visible part
    of `intra`, and Diff. Norm stays below the 1 that the paper names for full collapse.

    A mean over no pairs is NaN.
    """

    intra: float
    inter: float
    total: float

    @property
    def diff_norm(self) -> float:
        """Table 8: (Intra Sim - Total Sim) / (Intra Sim + Total Sim).

        0 if pairs of one video are like any other; 1 if the vectors of a video are one and those of others orthogonal.
        The sum may be zero or negative for vectors that repel each other, and the quotient then says nothing.
        """
        both = self.intra + self.total
        return (self.intra - self.total) / both if both != 0 else math.nan

    def figures(self, prefix: str = "") -> dict[str, float]:
        """As columns of a table."""
        named = {"Intra Sim": self.intra, "Total Sim": self.total, "Diff. Norm": self.diff_norm}
        return {prefix + name: value for name, value in named.items()}


class SimilaritySums:
    """Mean cosines of any number of vectors, some videos at a time, without a cosine of any pair.

    For unit vectors u the cosines of all ordered pairs i ≠ j sum to |Σ u|² - Σ |u|²: one sum for each video and one for
    all of them suffice. In double precision, since the two terms nearly cancel. A vector of zeros has the cosine 0 with
    all others.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._squares = 0.0
        self._num = 0
        self._intra = 0.0
        self._num_intra = 0

    def add(self, vectors: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"]) -> None:
        """Whole videos: all the vectors of each, `mask` True for the real ones."""
        expect_axes(vectors=(vectors, "B S D"), mask=(mask, "B S"))
        unit = _unit(vectors) * mask[..., None]
        self._add(unit.sum(1), unit.square().sum(), mask.sum(1))

    def add_flat(self, vectors: Float[Tensor, "N D"], video_of_vector: Int[Tensor, " N"]) -> None:
        """Whole videos, their vectors in any order."""
        expect_axes(vectors=(vectors, "N D"), video_of_vector=(video_of_vector, "N"))
        unit = _unit(vectors)
        _, place, sizes = video_of_vector.to(unit.device).unique(return_inverse=True, return_counts=True)
        of_video = unit.new_zeros(len(sizes), unit.shape[1]).index_add(0, place, unit)
        self._add(of_video, unit.square().sum(), sizes)

    def _add(self, of_video: Float[Tensor, "B D"], squares: Float[Tensor, ""], sizes: Int[Tensor, " B"]) -> None:
        self._intra += float(of_video.square().sum() - squares)
        self._num_intra += int((sizes * (sizes - 1)).sum())
        self._sum = of_video.sum(0) + (0 if self._sum is None else self._sum)
        self._squares += float(squares)
        self._num += int(sizes.sum())

    def similarity(self) -> Similarity:
        total = 0.0 if self._sum is None else float(self._sum.square().sum()) - self._squares
        pairs = self._num * (self._num - 1)
        return Similarity(
            intra=_mean(self._intra, self._num_intra),
            inter=_mean(total - self._intra, pairs - self._num_intra),
            total=_mean(total, pairs),
        )


def similarity(vectors: Float[Tensor, "N D"], video_of_vector: Int[Tensor, " N"]) -> Similarity:
    """Of vectors that are all at hand, such as the pooled queries of a split."""
    sums = SimilaritySums()
    sums.add_flat(vectors, video_of_vector)
    return sums.similarity()


def _unit(vectors: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
    return F.normalize(vectors.detach().double(), dim=-1)


def _mean(total: float, num: int) -> float:
    return total / num if num else math.nan


# ---------------------------------------------------------------- Table 9: the backbone's text space


def spearman(
    student: Float[Tensor, "N D"], teacher: Float[Tensor, "N C"], *, max_pairs: int = MAX_PAIRS, seed: int = 0
) -> float:
    """Spearman's rank correlation, -1 to 1, of the cosines of all pairs i < j in two spaces.

    Above `max_pairs` pairs, that many are drawn with replacement, the same ones for a seed; a million leave an error of
    about 0.001. NaN where the ranks are not defined: fewer than two pairs, or all cosines of one space equal.
    """
    expect_axes(student=(student, "N D"), teacher=(teacher, "N C"))
    pairs = draw_pairs(torch.zeros(len(student), dtype=torch.long), max_pairs, seed)
    ours, theirs = cosines(student, pairs), cosines(teacher, pairs)
    if pairs.shape[1] < 2 or bool((ours == ours[0]).all()) or bool((theirs == theirs[0]).all()):
        return math.nan
    from scipy import stats  # type: ignore[import-untyped]  # only here: it takes a second to import

    return float(stats.spearmanr(ours.numpy(), theirs.numpy()).statistic)


def draw_pairs(group_of_vector: Int[Tensor, " N"], max_pairs: int = MAX_PAIRS, seed: int = 0) -> Int[Tensor, "2 P"]:
    """Pairs of vectors of one group: each once or, if there are more than `max_pairs`, that many drawn at random.

    Pair number k is found without listing the others: sorted by group, each vector has as many pairs as there are later
    members in its group, so the running sum of these counts says which vector comes first, and the rest which second.
    """
    if max_pairs < 1:
        raise BadSetting(f"max_pairs is {max_pairs}, expected at least 1, such as {MAX_PAIRS}")
    group_of_vector = group_of_vector.cpu()
    order = group_of_vector.argsort(stable=True)
    sizes = group_of_vector.unique(return_counts=True)[1]
    later = sizes.cumsum(0).repeat_interleave(sizes) - torch.arange(len(order)) - 1
    bounds = later.cumsum(0)
    num_pairs = int(bounds[-1]) if len(bounds) else 0
    if num_pairs <= max_pairs:
        number = torch.arange(num_pairs)
    else:
        number = torch.randint(num_pairs, (max_pairs,), generator=torch.Generator().manual_seed(seed))
    first = torch.searchsorted(bounds, number, right=True)
    second = first + 1 + number - (bounds - later)[first]
    return torch.stack((order[first], order[second]))


def cosines(vectors: Float[Tensor, "N D"], pairs: Int[Tensor, "2 P"]) -> Float[Tensor, " P"]:
    """The cosine of each pair, on the CPU and in double precision: equal pairs must tie, whatever their neighbours."""
    unit = _unit(vectors.cpu())
    found = unit.new_empty(pairs.shape[1])
    # Filled in place: small results kept between large temporaries would keep the C library from reusing their memory.
    for start in range(0, len(found), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        found[part] = (unit[pairs[0, part]] * unit[pairs[1, part]]).sum(-1)
    return found


@dataclass(frozen=True, kw_only=True)
class CosineSamples:
    """Cosines of pairs of one video, and of pairs of different videos: what a histogram shows."""

    within: Float[Tensor, " P"]
    across: Float[Tensor, " R"]


def sample_cosines(
    vectors: Float[Tensor, "N D"], video_of_vector: Int[Tensor, " N"], *, max_pairs: int = 100_000, seed: int = 0
) -> CosineSamples:
    """All pairs of each kind, or up to `max_pairs` drawn at random."""
    expect_axes(vectors=(vectors, "N D"), video_of_vector=(video_of_vector, "N"))
    video_of_vector = video_of_vector.cpu()
    within = draw_pairs(video_of_vector, max_pairs, seed)
    pairs = draw_pairs(torch.zeros_like(video_of_vector), max_pairs, seed)
    across = pairs[:, video_of_vector[pairs[0]] != video_of_vector[pairs[1]]]
    return CosineSamples(within=cosines(vectors, within), across=cosines(vectors, across))


# ---------------------------------------------------------------- Table A2: two methods, query by query


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """How many queries both methods answer, only one of them, and neither."""

    both: int
    only_a: int
    only_b: int
    neither: int

    def shares(self) -> dict[str, float]:
        """In percent of all queries."""
        num = self.both + self.only_a + self.only_b + self.neither
        return {name: 100 * count / num for name, count in vars(self).items()}


def outcomes(ranks_a: Int[Tensor, " Q"], ranks_b: Int[Tensor, " Q"], at: int = 1) -> Outcomes:
    """Table A2: a query is answered if its video is among the first `at`."""
    expect_axes(ranks_a=(ranks_a, "Q"), ranks_b=(ranks_b, "Q"))
    if not len(ranks_a):
        raise BadBatch("ranks_a and ranks_b are empty, expected the ranks of at least one query; pass Report.ranks")
    a, b = ranks_a <= at, ranks_b.to(ranks_a.device) <= at
    return Outcomes(
        both=int((a & b).sum()), only_a=int((a & ~b).sum()), only_b=int((~a & b).sum()), neither=int((~a & ~b).sum())
    )


# ---------------------------------------------------------------- a method as a whole


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """Tables 8 and 9 for one method: similarities and correlation by branch. `spearman` goes from -1 to 1."""

    text: Mapping[str, Similarity]
    video: Mapping[str, Similarity]
    spearman: Mapping[str, float]
    segment_branch: str  # of the paper's "segments"

    def figures(self, branch: str | None = None) -> dict[str, float]:
        """A row of Tables 8 and 9, of one branch or of the one whose tokens are the paper's segments; Spearman in
        percent, as the paper prints it.
        """
        branch = self.segment_branch if branch is None else branch
        if branch not in self.video:
            raise UnknownName.among("branch", branch, self.video)
        return (
            self.text[branch].figures("text ")
            | self.video[branch].figures("video ")
            | {"Spearman": 100 * self.spearman[branch]}
        )


def measure(
    method: Method,
    videos: Iterable[VideoBatch],
    queries: Iterable[QueryBatch],
    video_of_query: Int[Tensor, " Q"],
    *,
    max_pairs: int = MAX_PAIRS,
    seed: int = 0,
) -> Collapse:
    """How far a method's spaces have collapsed, on the same batches that `evaluate` takes.

    Text: the pooled queries, against the [EOS] words that the backbone gave them. Video: the tokens of each branch as
    they are scored, one batch of videos at a time.
    """
    backbone: list[Tensor] = []

    def remember(batches: Iterable[QueryBatch]) -> Iterable[QueryBatch]:
        for batch in batches:
            backbone.append(last_words(batch.words, batch.mask).cpu())
            yield batch

    with evaluating(method):
        parts = query_vectors(method, remember(queries), len(video_of_query))
        pooled = {branch: torch.cat([part[branch] for part in parts]) for branch in method.branches}
        sums = {branch: SimilaritySums() for branch in method.branches}
        for batch in videos:
            tokens = method.encode_videos(batch)
            for branch, of_branch in sums.items():
                of_branch.add(tokens[branch].vectors, tokens[branch].mask)
    return Collapse(
        text={branch: similarity(vectors.cpu(), video_of_query.cpu()) for branch, vectors in pooled.items()},
        video={branch: of_branch.similarity() for branch, of_branch in sums.items()},
        spearman={
            branch: spearman(vectors, torch.cat(backbone), max_pairs=max_pairs, seed=seed)
            for branch, vectors in pooled.items()
        },
        segment_branch=method.segment_branch,
    )
