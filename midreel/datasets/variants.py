"""The numbers of videos and queries in each known variant of each benchmark.

Papers use one name for different variants of a benchmark: videos disappeared, annotations were revised, or videos are
grouped in another way. `midreel data verify` compares a dataset with these counts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A split of a benchmark with its published counts.

    Attributes:
        name: The variant, for people.
        splits: The names under which this split appears.
        videos: The number of videos; None if unknown.
        queries: The number of queries.
    """

    name: str
    splits: tuple[str, ...]
    videos: int | None
    queries: int

    def matches(self, videos: int, queries: int) -> bool:
        """Return whether a split with these counts is this variant."""
        return self.videos in (None, videos) and self.queries == queries

    def __str__(self) -> str:
        videos = "" if self.videos is None else f"{self.videos:,} videos, "
        return f"{self.name} ({videos}{self.queries:,} queries)"


TRAIN, EVALUATION = ("train",), ("val", "test")  # releases with a single evaluation set call it either val or test

VARIANTS: dict[str, tuple[Variant, ...]] = {
    "activitynet": (
        Variant(name="ActivityNet Captions, train", splits=TRAIN, videos=10_009, queries=37_421),
        Variant(
            name="ActivityNet Captions without four flawed lines, train", splits=TRAIN, videos=None, queries=37_417
        ),
        Variant(name="MS-SL's ActivityNet, train", splits=TRAIN, videos=9_043, queries=33_721),
        Variant(name="ActivityNet Captions, val_1", splits=EVALUATION, videos=4_917, queries=17_505),
        Variant(name="ActivityNet Captions, val_2", splits=("val_2", "test"), videos=None, queries=17_031),
        Variant(name="MS-SL's ActivityNet, evaluation", splits=EVALUATION, videos=4_430, queries=15_753),
    ),
    "charades": (
        Variant(name="Charades-STA, train", splits=TRAIN, videos=None, queries=12_408),
        Variant(name="MS-SL's Charades-STA, train", splits=TRAIN, videos=5_538, queries=12_408),
        Variant(name="Charades-STA in uniform lines, train", splits=TRAIN, videos=5_336, queries=12_404),
        Variant(name="the older Charades-STA of MSC's paper, train", splits=TRAIN, videos=None, queries=13_898),
        Variant(name="Charades-STA, test", splits=EVALUATION, videos=1_334, queries=3_720),
        Variant(name="the older Charades-STA of MSC's paper, test", splits=EVALUATION, videos=None, queries=4_233),
    ),
    "qvhighlights": (
        Variant(name="QVHighlights by YouTube video, train", splits=TRAIN, videos=2_214, queries=7_218),
        Variant(name="QVHighlights by YouTube video, val", splits=EVALUATION, videos=474, queries=1_550),
        Variant(name="QVHighlights, test", splits=("test",), videos=None, queries=1_542),
    ),
    "tvr": (
        Variant(name="TVR, train", splits=TRAIN, videos=17_435, queries=87_175),
        Variant(name="TVR, val", splits=EVALUATION, videos=2_179, queries=10_895),
    ),
}


def nearest(name: str, split: str, videos: int, queries: int) -> Variant | None:
    """Return the known variant of a split with these counts, or with the nearest; None if none is known.

    Args:
        name: The benchmark.
        split: The name of the split.
        videos: The number of videos in the split.
        queries: The number of queries in the split.
    """
    known = (variant for variant in VARIANTS.get(name, ()) if split in variant.splits)
    # Of several matches, prefer one with a known number of videos, because it is more specific.
    return min(known, key=lambda each: (_distance(each, videos, queries), each.videos is None), default=None)


def _distance(variant: Variant, videos: int, queries: int) -> float:
    """Return the sum of the relative differences of both counts."""
    videos_distance = 0.0 if variant.videos is None else abs(videos - variant.videos) / variant.videos
    return videos_distance + abs(queries - variant.queries) / variant.queries
