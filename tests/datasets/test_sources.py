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


def test_a_dataset(tmp_path: Path) -> None:
    queries = [Query(id=f"q{k}", text=f"sentence {k}", video_id=video) for k, video in enumerate("abba")]
    train, val = (Split(video_ids=(name,), queries=tuple(q for q in queries if q.video_id == name)) for name in "ab")
    own.write(tmp_path, {"train": train, "val": val})
    found = Source.find(tmp_path)
    assert found == Source.of(open_annotations(tmp_path))
    assert (found.folder, found.store) == (tmp_path, tmp_path / "features.h5")
    assert found.video_ids == ["a", "b"]
    assert found.queries == [(query.id, query.text) for query in (*train.queries, *val.queries)]


def test_a_folder_of_videos(tmp_path: Path) -> None:
    """Videos in subfolders are found, the order is fixed, and an id is the name that annotations use."""
    videos = ["a/b.mkv", "a/b.mp4", "a/c.d.mkv", "b.mp4", "tape.MPG", "two.mp4", "z.MP4"]
    touch(tmp_path, *videos[::-1], "two", "a/notes.txt", "b.txt", "._b.mp4", ".trash/b.mp4", "a/.c.mp4.1.partial")
    touch(tmp_path, "features.h5", "features.quarantine.json")
    (tmp_path / "folder.mp4").mkdir()
    found = Source.find(tmp_path)
    assert found.video_ids == ["a/b.mkv", "a/b", "a/c.d", "b", "tape", "two.mp4", "z"]
    assert [own.find_file(tmp_path, video_id) for video_id in found.video_ids] == [tmp_path / name for name in videos]
    assert (found.queries, found.store) == ((), tmp_path / "features.h5")
    assert found.remarks == ["non-video files skipped: 3 (.txt, two)"]


def test_annotations_in_a_subfolder(tmp_path: Path) -> None:
    """They are used if they are beside all videos, and skipped otherwise."""
    touch(tmp_path, "sub/c.mp4")
    (tmp_path / "sub/annotations.csv").write_text("video,query\nc.mp4,a dog\n")
    assert Source.find(tmp_path) == Source.find(tmp_path / "sub")
    touch(tmp_path, "a.mp4")
    found = Source.find(tmp_path)
    assert (found.video_ids, found.queries, found.store) == (["a", "sub/c"], (), tmp_path / "features.h5")
    (remark,) = found.remarks
    assert "skipped" in remark
    assert remark.endswith(f"midreel extract {tmp_path}/sub")
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


def test_empty_and_missing_sources_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=r"no dataset.* midreel data new"):
        Source.find(tmp_path)
    with pytest.raises(BadAnnotation, match="gone does not exist"):
        Source.find(tmp_path / "gone")
    path = tmp_path / "list"
    path.write_text(" \n")
    with pytest.raises(BadAnnotation, match="list is empty"):
        Source.find(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadAnnotation, match="list is not UTF-8"):
        Source.find(path)


def test_unreadable_annotations_are_not_skipped(tmp_path: Path) -> None:
    touch(tmp_path, "beach.mp4")
    (tmp_path / "annotations.jsonl").write_text("{")
    with pytest.raises(BadAnnotation, match=r"annotations.jsonl, line 1 is not JSON"):
        Source.find(tmp_path)
