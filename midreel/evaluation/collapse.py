"""Measures of semantic collapse: Tables 8, 9 and A2 of the paper.

Training on pairs of query and video alone moves all queries, and all segments, of one video together. Comparing the
cosines within a video with all cosines shows how far. The rank correlation with the cosines of the backbone shows how
much of its text space remains.

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
PAIRS_AT_ONCE = 1 << 14  # limits the memory of gathered vectors, (2, P, D)


# ---------------------------------------------------------------- Table 8: similarity structure


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Mean cosines over pairs of different vectors. A mean over no pairs is NaN.

    The paper leaves two choices open. `intra` weights all pairs equally, not all videos: a video with twenty queries
    counts more than one with two. `total` includes the pairs within a video, as the caption of Table 8 says ("across
    all instances"); the text may also mean `inter`. With many videos the two agree. With few, the pairs within a video
    are a visible share of `total`, and Diff. Norm stays below the 1 of full collapse.

    Attributes:
        intra: Intra Sim, over all pairs within a video.
        inter: The mean over all pairs across videos.
        total: Total Sim, over all pairs.
    """

    intra: float
    inter: float
    total: float

    @property
    def diff_norm(self) -> float:
        """Table 8: (Intra Sim - Total Sim) / (Intra Sim + Total Sim).

        0: pairs within a video are like all others. 1: the vectors of a video are equal, and orthogonal to all others.
        For vectors that repel each other the sum may be 0 or negative. The ratio then has no meaning; it is NaN for 0.
        """
        both = self.intra + self.total
        return (self.intra - self.total) / both if both != 0 else math.nan

    def figures(self, prefix: str = "") -> dict[str, float]:
        """Return the columns of Table 8, with a prefix before their names."""
        named = {"Intra Sim": self.intra, "Total Sim": self.total, "Diff. Norm": self.diff_norm}
        return {prefix + name: value for name, value in named.items()}


class SimilaritySums:
    """Mean cosines of many vectors, accumulated batch by batch, in time linear in the number of vectors.

    For unit vectors u, the cosines of all ordered pairs i ≠ j sum to |Σ u|² - Σ |u|². One sum per video and one over
    all videos are enough. The two terms nearly cancel, so the sums have double precision. A vector of zeros has the
    cosine 0 with all others.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._squares = 0.0
        self._num = 0
        self._intra = 0.0
        self._num_intra = 0

    def add(self, vectors: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"]) -> None:
        """Add whole videos: all the vectors of each."""
        expect_axes(vectors=(vectors, "B S D"), mask=(mask, "B S"))
        unit = _unit(vectors) * mask[..., None]
        self._add(unit.sum(1), unit.square().sum(), mask.sum(1))

    def add_flat(self, vectors: Float[Tensor, "N D"], video_of_vector: Int[Tensor, " N"]) -> None:
        """Add whole videos, with their vectors in any order."""
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
        """Return the mean cosines of all vectors added so far."""
        total = 0.0 if self._sum is None else float(self._sum.square().sum()) - self._squares
        pairs = self._num * (self._num - 1)
        return Similarity(
            intra=_mean(self._intra, self._num_intra),
            inter=_mean(total - self._intra, pairs - self._num_intra),
            total=_mean(total, pairs),
        )


def similarity(vectors: Float[Tensor, "N D"], video_of_vector: Int[Tensor, " N"]) -> Similarity:
    """Return the mean cosines of vectors, such as the pooled queries of a split.

    >>> similarity(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
    Similarity(intra=1.0, inter=0.0, total=0.3333333333333333)
    """
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
    """Return Spearman's rank correlation, -1 to 1, of the cosines of all pairs i < j in two spaces.

    It is NaN for fewer than two pairs, or if all cosines of one space are equal.

    Args:
        student: The vectors in one space.
        teacher: The same vectors in the other space.
        max_pairs: The number of pairs to sample with replacement, if there are more. The error of a million is about
            0.001.
        seed: The seed of the sample.
    """
    expect_axes(student=(student, "N D"), teacher=(teacher, "N C"))
    pairs = draw_pairs(torch.zeros(len(student), dtype=torch.long), max_pairs, seed)
    ours, theirs = cosines(student, pairs), cosines(teacher, pairs)
    if pairs.shape[1] < 2 or bool((ours == ours[0]).all()) or bool((theirs == theirs[0]).all()):
        return math.nan
    from scipy import stats  # type: ignore[import-untyped]  # only here: it takes a second to import

    return float(stats.spearmanr(ours.numpy(), theirs.numpy()).statistic)


def draw_pairs(group_of_vector: Int[Tensor, " N"], max_pairs: int = MAX_PAIRS, seed: int = 0) -> Int[Tensor, "2 P"]:
    """Return all pairs of vectors within a group, or a random sample of `max_pairs` if there are more.

    Args:
        group_of_vector: The group of each vector.
        max_pairs: The maximum number of pairs.
        seed: The seed of the sample.

    Raises:
        BadSetting: `max_pairs` is below 1.
    """
    if max_pairs < 1:
        raise BadSetting(f"max_pairs is {max_pairs}, expected 1 or more. Try {MAX_PAIRS}.")
    # Pair number k is computed without a list of all pairs. Sorted by group, a vector has one pair with each later
    # member of its group. The cumulative sum of these counts gives the first vector of pair k, and the remainder the
    # second.
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
    """Return the cosine of each pair, computed on the CPU in double precision so that equal pairs tie exactly."""
    unit = _unit(vectors.cpu())
    found = unit.new_empty(pairs.shape[1])
    # Written into one array: small results between large temporaries would fragment the heap.
    for start in range(0, len(found), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        found[part] = (unit[pairs[0, part]] * unit[pairs[1, part]]).sum(-1)
    return found


@dataclass(frozen=True, kw_only=True)
class CosineSamples:
    """Cosines of pairs within a video and of pairs across videos, for a histogram."""

    within: Float[Tensor, " P"]
    across: Float[Tensor, " R"]


def sample_cosines(
    vectors: Float[Tensor, "N D"], video_of_vector: Int[Tensor, " N"], *, max_pairs: int = 100_000, seed: int = 0
) -> CosineSamples:
    """Return the cosines of all pairs of each kind, or of a random sample of at most `max_pairs`.

    Args:
        vectors: The vectors.
        video_of_vector: The video of each vector.
        max_pairs: The maximum number of pairs within videos, and of pairs drawn from all vectors.
        seed: The seed of the sample.
    """
    expect_axes(vectors=(vectors, "N D"), video_of_vector=(video_of_vector, "N"))
    video_of_vector = video_of_vector.cpu()
    within = draw_pairs(video_of_vector, max_pairs, seed)
    pairs = draw_pairs(torch.zeros_like(video_of_vector), max_pairs, seed)
    across = pairs[:, video_of_vector[pairs[0]] != video_of_vector[pairs[1]]]
    return CosineSamples(within=cosines(vectors, within), across=cosines(vectors, across))


# ---------------------------------------------------------------- Table A2: two methods, query by query


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The number of queries that both methods answer, only one of them, and neither."""

    both: int
    only_a: int
    only_b: int
    neither: int

    def shares(self) -> dict[str, float]:
        """Return the numbers in percent of all queries."""
        num = self.both + self.only_a + self.only_b + self.neither
        return {name: 100 * count / num for name, count in vars(self).items()}


def outcomes(ranks_a: Int[Tensor, " Q"], ranks_b: Int[Tensor, " Q"], at: int = 1) -> Outcomes:
    """Compare two methods query by query, as in Table A2.

    Args:
        ranks_a: `Report.ranks` of the first method.
        ranks_b: `Report.ranks` of the second method, for the same queries.
        at: A query is answered if its video has this rank or a better one.

    Raises:
        BadBatch: There are no ranks.
    """
    expect_axes(ranks_a=(ranks_a, "Q"), ranks_b=(ranks_b, "Q"))
    if not len(ranks_a):
        raise BadBatch("ranks_a and ranks_b are empty, expected at least one query. Pass Report.ranks.")
    a, b = ranks_a <= at, ranks_b.to(ranks_a.device) <= at
    return Outcomes(
        both=int((a & b).sum()), only_a=int((a & ~b).sum()), only_b=int((~a & b).sum()), neither=int((~a & ~b).sum())
    )


# ---------------------------------------------------------------- all measures of a method


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """Tables 8 and 9 for one method, by branch.

    Attributes:
        text: The similarity of the pooled queries.
        video: The similarity of the tokens.
        spearman: The rank correlation with the backbone, -1 to 1.
        segment_branch: The branch whose tokens are the paper's segments.
    """

    text: Mapping[str, Similarity]
    video: Mapping[str, Similarity]
    spearman: Mapping[str, float]
    segment_branch: str

    def figures(self, branch: str | None = None) -> dict[str, float]:
        """Return a row of Tables 8 and 9, with Spearman in percent as the paper prints it.

        Args:
            branch: The branch. Default: `segment_branch`.

        Raises:
            UnknownName: The branch does not exist.
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
    """Measure the collapse of a method on the batches that `evaluate` takes.

    The text measures compare the pooled queries with the [EOS] words of the backbone. The video measures use the tokens
    of each branch.

    Args:
        method: The method to measure.
        videos: Batches of videos. Read once, so it may be a generator.
        queries: Batches of queries. Read once, so it may be a generator.
        video_of_query: The video of each query, counted over all batches.
        max_pairs: The number of pairs to sample for `spearman`.
        seed: The seed of the sample.
    """
    backbone: list[Tensor] = []

    def recorded(batches: Iterable[QueryBatch]) -> Iterable[QueryBatch]:
        for batch in batches:
            backbone.append(last_words(batch.words, batch.mask).cpu())
            yield batch

    with evaluating(method):
        parts = query_vectors(method, recorded(queries), len(video_of_query))
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
