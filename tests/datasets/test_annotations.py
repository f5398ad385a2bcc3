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


def test_an_id_is_that_of_one_query() -> None:
    message = (
        "clips, val: '1' is the id of 'a dog' and of 'a cat', expected one for each query; give one of them another"
    )
    with pytest.raises(BadAnnotation, match=message):
        annotations(val=(DOG, replace(DOG, text="a cat")))


def test_a_split_that_is_not_there() -> None:
    with pytest.raises(
        UnknownName, match=r"no split of own in clips: 'tset'; did you mean 'test'\? Choose one of: val"
    ):
        annotations(val=(DOG,), test=()).split("tset")


def test_no_parts_begin_nowhere() -> None:
    assert starts([]) == []
