"""The embedded index beyond the contract of all indexes."""

from pathlib import Path

import pytest

from midreel.errors import BadSetting, UnknownName
from midreel.index import EmbeddedIndex
from tests.index.library import FILES, WEIGHTS, WIDTH, video


def test_an_index_can_be_opened_again(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    with EmbeddedIndex.open(folder) as index:
        assert index.video_ids() == [f"v{number}" for number in range(12)]
        assert index.branch_weights == WEIGHTS
        assert index.width == WIDTH
        assert repr(index) == f"EmbeddedIndex({str(folder)!r}, 12 videos)"


def test_ids_may_be_any_string(index: EmbeddedIndex, folder: Path) -> None:
    strange = ["a b", "it's", 'say "no"', "two\nlines", "\udcff not utf-8", "日本", "\0"]
    for name in strange:
        index.add(name, video(1))
    index.close()
    with EmbeddedIndex.open(folder) as again:
        assert again.video_ids()[12:] == strange


def test_settings_are_checked(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(BadSetting, match="width is 0"):
        EmbeddedIndex.create(tmp_path / "new", branch_weights=WEIGHTS, width=0)
    with pytest.raises(UnknownName, match=r"'abacus'.*numkong, numpy"):
        EmbeddedIndex.open(folder, kernel="abacus")


def test_several_videos_are_added_in_one_commit(index: EmbeddedIndex, folder: Path) -> None:
    number = index._storage.state.next_number
    index.add_all([("a", video(1)), ("b", video(2)), ("a", video(3))])
    assert index.video_ids()[-2:] == ["b", "a"]
    assert index._storage.state.next_number == number + 3
    with pytest.raises(BadSetting):
        index.add_all([("c", video(1)), ("", video(2))])
    assert "c" not in index
    index.add("d", video(4))
    assert index.verify() == []
