from pathlib import Path

import pytest

from midreel.datasets import open_annotations, own
from midreel.datasets.sources import Source
from midreel.errors import BadAnnotation
from midreel.types import Query, Split


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_a_library(tmp_path: Path) -> None:
    queries = [Query(id=f"q{k}", text=f"sentence {k}", video_id=video) for k, video in enumerate("abba")]
    train, val = (Split(video_ids=(name,), queries=tuple(q for q in queries if q.video_id == name)) for name in "ab")
    own.write(tmp_path, {"train": train, "val": val})
    found = Source.find(tmp_path)
    assert found == Source.of(open_annotations(tmp_path))
    assert (found.folder, found.store) == (tmp_path, tmp_path / "features.h5")
    assert found.video_ids == ["a", "b"]
    assert found.queries == [(query.id, query.text) for query in (*train.queries, *val.queries)]


def test_a_folder_of_videos(tmp_path: Path) -> None:
    """However deep, in a fixed order, whatever else lies there; an id is what annotations would call the file."""
    videos = ["a/b.mkv", "a/b.mp4", "a/c.d.mkv", "b.mp4", "tape.MPG", "two.mp4", "z.MP4"]
    touch(tmp_path, *videos[::-1], "two", "a/notes.txt", "b.txt", "._b.mp4", ".trash/b.mp4", "a/.c.mp4.1.partial")
    touch(tmp_path, "features.h5", "features.quarantine.json")
    (tmp_path / "folder.mp4").mkdir()
    found = Source.find(tmp_path)
    assert found.video_ids == ["a/b.mkv", "a/b", "a/c.d", "b", "tape", "two.mp4", "z"]
    assert [own.find_file(tmp_path, video_id) for video_id in found.video_ids] == [tmp_path / name for name in videos]
    assert (found.queries, found.store) == ((), tmp_path / "features.h5")
    assert found.remarks == ["files passed over, for their names do not end as those of videos do: 3 (.txt, two)"]


def test_annotations_in_a_folder_of_the_folder(tmp_path: Path) -> None:
    """They are those of all videos, or of none."""
    touch(tmp_path, "sub/c.mp4")
    (tmp_path / "sub/annotations.csv").write_text("video,query\nc.mp4,a dog\n")
    assert Source.find(tmp_path) == Source.find(tmp_path / "sub")
    touch(tmp_path, "a.mp4")
    found = Source.find(tmp_path)
    assert (found.video_ids, found.queries, found.store) == (["a", "sub/c"], (), tmp_path / "features.h5")
    (remark,) = found.remarks
    assert remark == (
        f"the annotations in {tmp_path}/sub were passed over, for there are videos beside it; midreel extract "
        f"{tmp_path}/sub takes them"
    )
    own.write(tmp_path, {"train": Split(video_ids=("a",), queries=(Query(id="q", text="a dog", video_id="a"),))})
    assert Source.find(tmp_path).video_ids == ["a"]


def test_a_list_of_videos(tmp_path: Path) -> None:
    touch(tmp_path, "here/beach.mp4", "elsewhere/far.mp4")
    path = tmp_path / "here/list.txt"
    path.write_text(f"\ufeffbeach.mp4\r\n\n  {tmp_path}/elsewhere/far.mp4\ngone.mp4\n../here/beach.mp4\nbeach.mp4\n")
    found = Source.find(path)
    assert found.video_ids == ["beach", f"{tmp_path}/elsewhere/far", "gone.mp4", "../here/beach"]
    assert (found.folder, found.store) == (tmp_path / "here", tmp_path / "here/list.h5")


def test_a_single_video(tmp_path: Path) -> None:
    touch(tmp_path, "beach.MOV")
    found = Source.find(tmp_path / "beach.MOV")
    assert (found.video_ids, found.store) == (["beach"], tmp_path / "beach.h5")


def test_what_holds_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=r"holds no dataset, expected in it, .* midreel data new"):
        Source.find(tmp_path)
    with pytest.raises(BadAnnotation, match="gone does not exist, expected a dataset, a folder of videos or a list of"):
        Source.find(tmp_path / "gone")
    path = tmp_path / "list"
    path.write_text(" \n")
    with pytest.raises(BadAnnotation, match="list is empty, expected the path of a video on each line; write some"):
        Source.find(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(
        BadAnnotation, match=r"list is not UTF-8 \(.+\), expected the path of a video on each line; save"
    ):
        Source.find(path)


def test_annotations_that_cannot_be_read_are_not_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "beach.mp4")
    (tmp_path / "annotations.jsonl").write_text("{")
    with pytest.raises(BadAnnotation, match=r"annotations.jsonl, line 1 is not JSON"):
        Source.find(tmp_path)
