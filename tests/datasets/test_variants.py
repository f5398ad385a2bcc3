import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel import recipes
from midreel.datasets.variants import VARIANTS, nearest


@pytest.mark.parametrize(
    ("name", "split", "videos", "queries", "expected"),
    [
        ("qvhighlights", "train", 2214, 7218, "QVHighlights by YouTube video, train"),
        ("qvhighlights", "val", 474, 1550, "QVHighlights by YouTube video, val"),
        ("qvhighlights", "test", 470, 1542, "QVHighlights, test"),
        ("tvr", "train", 17435, 87175, "TVR, train"),
        ("tvr", "test", 2179, 10895, "TVR, val"),  # some releases call it test
        ("activitynet", "val", 4917, 17505, "ActivityNet Captions, val_1"),
        ("activitynet", "test", 4430, 15753, "MS-SL's ActivityNet, evaluation"),
        ("charades", "train", 5336, 12404, "Charades-STA in uniform lines, train"),
        ("charades", "train", 5538, 12408, "MS-SL's Charades-STA, train"),
        ("charades", "train", 5337, 12408, "Charades-STA, train"),
        ("charades", "test", 1334, 3720, "Charades-STA, test"),
        ("charades", "train", 6000, 13898, "the older Charades-STA of MSC's paper, train"),
    ],
)
def test_counts_name_their_variant(name: str, split: str, videos: int, queries: int, expected: str) -> None:
    variant = nearest(name, split, videos, queries)
    assert variant is not None
    assert variant.name == expected
    assert variant.matches(videos, queries)


@given(st.sampled_from([(name, variant) for name, each in VARIANTS.items() for variant in each]), st.integers(-9, 9))
def test_slightly_different_counts_have_a_nearest_variant(known: tuple[str, object], missing: int) -> None:
    name, variant = known
    videos, queries = variant.videos or 500, variant.queries + missing  # type: ignore[attr-defined]
    for split in variant.splits:  # type: ignore[attr-defined]
        found = nearest(name, split, videos, queries)
        assert found is not None
        assert abs(found.queries - queries) <= 9
        assert found.matches(videos, queries) or missing != 0


def test_other_datasets_have_no_variant() -> None:
    assert nearest("own", "train", 3, 9) is None
    assert nearest("tvr", "val_2", 3, 9) is None


def test_every_benchmark_with_a_recipe_has_variants() -> None:
    assert set(VARIANTS) == set(recipes.of_method("msc")) - {"playhouse", "playhouse-large"}
