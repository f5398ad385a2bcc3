import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets.annotations import Annotations
from midreel.datasets.assembly import Entry, Remarks, assemble, mend, present
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
            ((5, 2), (2, 5), "moments that ended before they began, turned round"),
            ((8, 10.4), (8, 10), "moments that reached beyond their video, cut off"),
            ((-1, 3), (0, 3), "moments that reached beyond their video, cut off"),
            ((10, 12), None, "moments outside their video, left out"),
            ((12, 13), None, "moments outside their video, left out"),
            ((-3, 0), None, "moments outside their video, left out"),
            ((11, 11), None, "moments outside their video, left out"),
            ((2, math.inf), None, "moments whose times are no numbers, left out"),
            ((math.nan, 3), None, "moments whose times are no numbers, left out"),
        ],
    )
    def test_by_hand(
        self, window: tuple[float, float], expected: tuple[float, float] | None, remark: str | None
    ) -> None:
        remarks = Remarks()
        found = mend([(float(window[0]), float(window[1]))], 10.0, "q", remarks)
        assert [(moment.start, moment.end) for moment in found] == ([] if expected is None else [expected])
        told = f"{remark}: 1, first {window[0]:g} to {window[1]:g} s of q"
        assert remarks.told() == (() if remark is None else (told,))

    @given(st.tuples(st.floats(), st.floats()), st.none() | st.floats(0.1, 1e6))
    def test_what_is_left_is_within_the_video_and_was_there_before(
        self, window: tuple[float, float], duration: float | None
    ) -> None:
        for moment in mend([window], duration, "q", Remarks()):
            limit = math.inf if duration is None else duration
            assert min(window) <= moment.start <= moment.end <= min(limit, max(window))
            assert moment.start >= 0

    @given(st.tuples(st.floats(0, 5), st.floats(0, 5)))
    def test_what_is_right_is_left_as_it_is(self, window: tuple[float, float]) -> None:
        remarks = Remarks()
        start, end = min(window), max(window)
        assert mend([(start, end)], 5.0, "q", remarks) == (Moment(start=start, end=end),)
        assert remarks.told() == ()


def test_texts_lose_their_spaces_and_lines_without_text_are_left_out() -> None:
    annotations = assembled(entry(1, " a dog \n"), entry(2, " \t"))
    assert [query.text for query in annotations.split("val").queries] == ["a dog"]
    assert annotations.remarks == ("lines without a text, left out: 1, first 2 of v",)


def test_ids_become_different_and_stay_what_they_are() -> None:
    annotations = assembled(entry(7), entry(7, "a cat"), entry(7), entry(7, "a cow"), entry(7, "a cat"))
    assert [(query.id, query.text) for query in annotations.split("val").queries] == [
        ("7", "a dog"),
        ("7~2", "a cat"),
        ("7~3", "a cow"),
    ]
    assert annotations.remarks == (
        "ids that several lines have, made different: 2, first 7, now also 7~2",
        "lines that are there twice, counted once: 2, first 7 of v",
    )


def test_the_longest_duration_holds() -> None:
    annotations = assembled(
        entry(1, duration=10.0), entry(2, duration=12.5, windows=((11.0, 13.0),)), entry(3, duration=math.nan)
    )
    assert annotations.durations == {"v": 12.5}
    assert annotations.split("val").queries[1].moments == (Moment(start=11.0, end=12.5),)
    assert annotations.remarks[:2] == (
        "lines that give a video another duration, of which the longest holds: 1, first v with 10 and 12.5 s",
        "durations that cannot be, left out: 1, first nan s of v",
    )


def test_without_a_query() -> None:
    with pytest.raises(BadAnnotation, match=r"folder: val.jsonl hold no query about a video, expected some; fetch"):
        assembled()


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=r"has none of the files a.txt, b.txt, expected one; fetch it"):
        present(tmp_path, {"a.txt": "train", "b.txt": "val"}, Remarks())
