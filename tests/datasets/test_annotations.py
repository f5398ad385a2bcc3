from dataclasses import replace
from pathlib import Path

import pytest

from midreel.datasets.annotations import Annotations, starts
from midreel.errors import BadAnnotation, UnknownName
from midreel.types import Query, Split

DOG = Query(id="1", text="a dog", video_id="v")


def annotations(**splits: tuple[Query, ...]) -> Annotations:
    return Annotations(
        name="own",
        layout="own",
        folder=Path("clips"),
        files=(),
        splits={name: Split(video_ids=("v",), queries=queries) for name, queries in splits.items()},
    )


def test_a_query_may_be_in_two_splits() -> None:
    assert annotations(val=(DOG,), test=(replace(DOG),)).split("test").queries == (DOG,)


def test_duplicate_ids_in_a_split_are_rejected() -> None:
    with pytest.raises(BadAnnotation, match=r"clips, split val: '1' .*'a dog' and 'a cat'"):
        annotations(val=(DOG, replace(DOG, text="a cat")))


def test_an_unknown_split_is_rejected() -> None:
    with pytest.raises(UnknownName, match=r"'tset'; did you mean 'test'\?"):
        annotations(val=(DOG,), test=()).split("tset")


def test_no_parts_have_no_starts() -> None:
    assert starts([]) == []
