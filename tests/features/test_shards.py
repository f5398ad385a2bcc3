"""Shards divide videos by content. Each is in one shard, under any name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.errors import BadSetting, BadStore
from midreel.features import shards
from midreel.features.shards import Shard


@given(st.integers(0, 2**128 - 1), st.integers(1, 40))
def test_every_video_is_in_one_shard(content: int, count: int) -> None:
    taken = [number for number in range(1, count + 1) if Shard(number=number, count=count).has_id(f"{content:032x}")]
    assert taken == [content % count + 1]


def test_a_copy_is_in_the_same_shard(tmp_path: Path) -> None:
    parts = [Shard(number=number, count=3) for number in (1, 2, 3)]
    homes = set()
    for number in range(12):
        one, other = tmp_path / f"{number}.mp4", tmp_path / f"copy of {number}.mkv"
        one.write_bytes(bytes([number]) * 50)
        other.write_bytes(one.read_bytes())
        homes_of_file = [[part.number for part in parts if part.has_file(path)] for path in (one, other)]
        assert homes_of_file[0] == homes_of_file[1]
        homes.update(homes_of_file[0])
        assert sum(part.has_text(one.name) for part in parts) == 1
    assert homes == {1, 2, 3}


def test_an_unreadable_file_is_reported_by_one_shard(tmp_path: Path) -> None:
    taken = [number for number in (1, 2, 3) if Shard(number=number, count=3).has_file(tmp_path / "absent.mp4")]
    assert taken == [1]


@pytest.mark.parametrize("text", ["", "3", "0/2", "3/2", "1/0", "a/b", "-1/2", "1/2/3", "1 / 2"])
def test_wrong_shards(text: str) -> None:
    with pytest.raises(BadSetting, match="expected K/N"):
        Shard.parse(text)


def test_a_part_records_its_shard(tmp_path: Path) -> None:
    store, library = tmp_path / "features.h5", tmp_path / "library"
    library.mkdir()
    part = Shard.parse("2/3")
    assert part.part_of(store).name == "features.part-2-of-3.h5"
    assert shards.read(store) is None
    for place in (store, library):
        part.record(place, finished=False)
        assert shards.read(place) == part
        part.record(place, finished=True)
        with pytest.raises(BadSetting, match="2/3"):
            Shard.parse("1/3").record(place, finished=False)
    assert shards.unfinished([store, library]).keys() == {"1/3", "3/3"}
    part.record(store, finished=False)
    Shard.parse("1/3").record(tmp_path / "one.h5", finished=True)
    assert shards.unfinished([store, tmp_path / "one.h5"]).keys() == {str(store), "3/3"}
    (tmp_path / "one.h5.shard.json").write_text("{}")
    with pytest.raises(BadStore, match="damaged"):
        shards.read(tmp_path / "one.h5")
