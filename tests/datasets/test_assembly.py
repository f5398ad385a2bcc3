import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Entry, Remarks, assemble, find_files, repair_moments
from midreel.errors import BadAnnotation
from midreel.types import Moment


def entry(number: int = 1, text: str = "a dog", video_id: str = "v", **more: object) -> Entry:
    return Entry(where="line", id=str(number), text=text, video_id=video_id, **more)  # type: ignore[arg-type]


def assembled(*entries: Entry) -> Annotations:
    return assemble("tvr", Path("folder"), {"val": Path("folder/val.jsonl")}, {"val": entries}, Remarks())


class TestMoments:
    @pytest.mark.parametrize(
        ("window", "expected", "remark"),
        [
            ((2, 5), (2, 5), None),
            ((0, 10), (0, 10), None),
            ((4, 4), (4, 4), None),
            ((10, 10), (10, 10), None),
            ((5, 2), (2, 5), "moments with the end before the start, swapped"),
            ((8, 10.4), (8, 10), "moments partly outside their video, clipped"),
            ((-1, 3), (0, 3), "moments partly outside their video, clipped"),
            ((10, 12), None, "moments outside their video, removed"),
            ((12, 13), None, "moments outside their video, removed"),
            ((-3, 0), None, "moments outside their video, removed"),
            ((11, 11), None, "moments outside their video, removed"),
            ((2, math.inf), None, "moments with times that are not finite, removed"),
            ((math.nan, 3), None, "moments with times that are not finite, removed"),
        ],
    )
    def test_examples(
        self, window: tuple[float, float], expected: tuple[float, float] | None, remark: str | None
    ) -> None:
        remarks = Remarks()
        found = repair_moments([(float(window[0]), float(window[1]))], 10.0, "q", remarks)
        assert [(moment.start, moment.end) for moment in found] == ([] if expected is None else [expected])
        line = f"{remark}: 1, first {window[0]:g} to {window[1]:g} s of q"
        assert remarks.lines() == (() if remark is None else (line,))

    @given(st.tuples(st.floats(), st.floats()), st.none() | st.floats(0.1, 1e6))
    def test_moments_are_inside_the_video_and_the_window(
        self, window: tuple[float, float], duration: float | None
    ) -> None:
        for moment in repair_moments([window], duration, "q", Remarks()):
            limit = math.inf if duration is None else duration
            assert min(window) <= moment.start <= moment.end <= min(limit, max(window))
            assert moment.start >= 0

    @given(st.tuples(st.floats(0, 5), st.floats(0, 5)))
    def test_valid_moments_are_unchanged(self, window: tuple[float, float]) -> None:
        remarks = Remarks()
        start, end = min(window), max(window)
        assert repair_moments([(start, end)], 5.0, "q", remarks) == (Moment(start=start, end=end),)
        assert remarks.lines() == ()


def test_texts_are_stripped_and_empty_ones_skipped() -> None:
    annotations = assembled(entry(1, " a dog \n"), entry(2, " \t"))
    assert [query.text for query in annotations.split("val").queries] == ["a dog"]
    assert annotations.remarks == ("lines without text, skipped: 1, first 2 of v",)


def test_duplicate_ids_are_renamed() -> None:
    annotations = assembled(entry(7), entry(7, "a cat"), entry(7), entry(7, "a cow"), entry(7, "a cat"))
    assert [(query.id, query.text) for query in annotations.split("val").queries] == [
        ("7", "a dog"),
        ("7~2", "a cat"),
        ("7~3", "a cow"),
    ]
    assert annotations.remarks == (
        "duplicate ids, renamed: 2, first 7 to 7~2",
        "duplicate lines, skipped: 2, first 7 of v",
    )


def test_the_longest_duration_is_used() -> None:
    annotations = assembled(
        entry(1, duration=10.0), entry(2, duration=12.5, windows=((11.0, 13.0),)), entry(3, duration=math.nan)
    )
    assert annotations.durations == {"v": 12.5}
    assert annotations.split("val").queries[1].moments == (Moment(start=11.0, end=12.5),)
    assert annotations.remarks[:2] == (
        "conflicting durations, the longest used: 1, first v with 10 and 12.5 s",
        "invalid durations, ignored: 1, first nan s of v",
    )


def test_files_without_queries_are_rejected() -> None:
    with pytest.raises(BadAnnotation, match=r"folder: no query in val.jsonl"):
        assembled()


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=r"none of the files a.txt, b.txt"):
        find_files(tmp_path, {"a.txt": "train", "b.txt": "val"}, Remarks())
