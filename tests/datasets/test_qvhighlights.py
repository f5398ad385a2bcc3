from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets import qvhighlights
from midreel.errors import BadAnnotation
from midreel.types import Moment
from tests.datasets import fuzz, trees
from tests.datasets.real import real_file


def test_segments_are_joined(tmp_path: Path) -> None:
    splits = trees.write_qvhighlights(tmp_path)
    annotations = qvhighlights.load(tmp_path)
    assert annotations.splits == splits
    assert annotations.parts == trees.QVHIGHLIGHTS_PARTS
    assert annotations.durations == {"aBc_dEfGh12": 276, "-_s0sXOfS3w": 150, "NUsG9BgSes0": 150, "T0123456789": 150}
    assert annotations.remarks == ()
    assert [path.name for path in annotations.files] == [f"highlight_{split}_release.jsonl" for split in splits]


def row(**changes: object) -> dict[str, object]:
    return {"qid": 1, "query": "a cat", "vid": "aBc_dEfGh12_60.0_210.0", "duration": 150} | changes


def test_the_test_file_with_windows_takes_precedence(tmp_path: Path) -> None:
    trees.write_lines(tmp_path / "highlight_test_release.jsonl", [row()])
    trees.write_lines(tmp_path / "highlight_test_with_gt.jsonl", [row(relevant_windows=[[2, 4]])])
    annotations = qvhighlights.load(tmp_path)
    assert annotations.split("test").queries[0].moments == (Moment(start=2.0, end=4.0),)
    (remark,) = annotations.remarks
    assert "skipped" in remark
    assert remark.endswith(": 1, first highlight_test_release.jsonl")


def test_a_video_in_two_splits_has_the_segments_of_both(tmp_path: Path) -> None:
    trees.write_lines(tmp_path / "highlight_train_release.jsonl", [row()])
    later = row(qid=2, vid="aBc_dEfGh12_210.0_360.0", relevant_windows=[[0, 2]])
    trees.write_lines(tmp_path / "highlight_val_release.jsonl", [later])
    annotations = qvhighlights.load(tmp_path)
    assert annotations.durations == {"aBc_dEfGh12": 300}
    assert annotations.split("val").queries[0].moments == (Moment(start=150.0, end=152.0),)


@pytest.mark.parametrize("changes", [{"duration": None}, {"duration": -3}, {"duration": 1e300}])
def test_an_invalid_duration_is_taken_from_the_id(tmp_path: Path, changes: dict[str, object]) -> None:
    rows = [row(relevant_windows=[[100, 170]], **changes)]
    trees.write_lines(tmp_path / "highlight_val_release.jsonl", rows)
    annotations = qvhighlights.load(tmp_path)
    assert annotations.durations == {"aBc_dEfGh12": 150}
    assert annotations.split("val").queries[0].moments == (Moment(start=100.0, end=150.0),)
    assert "segments with a duration taken from their id: 1, first aBc_dEfGh12_60.0_210.0" in annotations.remarks


@pytest.mark.parametrize("vid", ["aBc_dEfGh12", "_60_70", "aBc_60.0_50.0", "aBc_1e3_2e3", "aBc_-1_20"])
def test_an_invalid_segment_id_is_rejected(tmp_path: Path, vid: str) -> None:
    trees.write_lines(tmp_path / "highlight_val_release.jsonl", [row(), row(vid=vid)])
    with pytest.raises(BadAnnotation, match=f"line 2: vid is '{vid}'"):
        qvhighlights.load(tmp_path)


@given(
    fuzz.rows(
        qid=st.integers(0, 3),
        query=st.text(max_size=3),
        vid=st.sampled_from(["a_b_0_60", "a_b_60.0_90.0", "c_9_99", "c_99999999_99999999.5"]),
        duration=fuzz.NUMBERS,
        relevant_windows=fuzz.WINDOWS,
    )
)
def test_anything_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "highlight_val_release.jsonl").write_text(text)
    fuzz.expect_read_or_rejected(qvhighlights.load, folder)


def test_the_real_validation_set() -> None:
    """Compare with the counts of the papers, and with facts about the segments that were found by inspection."""
    annotations = qvhighlights.load(real_file("qvhighlights", "highlight_val_release.jsonl").parent)
    val = annotations.split("val")
    assert (len(val.video_ids), len(val.queries)) == (474, 1550)
    assert {len(video_id) for video_id in val.video_ids} == {11}
    assert sum(len(query.moments) for query in val.queries) == 2803
    assert all(query.moments for query in val.queries)
    assert sorted({len(parts) for parts in annotations.parts.values()}) == [1, 2, 3, 4, 5]
    assert max(annotations.durations.values()) == 750
    assert annotations.remarks == ()
    fuzz.expect_consistent(annotations)
    # Its segments are 60–210, 210–360 and 360–510, all 150 s long; the second's window 82–150 is now 232–300.
    query = next(query for query in val.queries if query.id == "2579")
    assert (query.video_id, query.moments) == ("NUsG9BgSes0", (Moment(start=232.0, end=300.0),))
