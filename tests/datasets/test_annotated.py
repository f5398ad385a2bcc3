import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets import annotated
from midreel.errors import BadAnnotation
from midreel.types import Moment, Query, Split


def folder_of(tmp_path: Path, *lines: object) -> Path:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (tmp_path / "annotations.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


WORDS = st.text(min_size=1).filter(str.strip)
SECONDS = st.floats(0, 1e6)


Line = tuple[int, str, list[tuple[float, float]]]  # the number of a video, a sentence, when


def splits_of(videos: dict[str, str], lines: list[Line]) -> dict[str, Split]:
    """Of videos with the names of their splits, each described at least once."""
    names = list(videos)
    lines = [*((number, "a dog", []) for number in range(len(names))), *lines]
    queries = [
        Query(
            id=f"q{number}",
            text=text,
            video_id=names[video % len(names)],
            moments=tuple(Moment(start=min(pair), end=max(pair)) for pair in times),
        )
        for number, (video, text, times) in enumerate(lines)
    ]
    return {
        split: Split(
            video_ids=tuple(name for name in names if videos[name] == split),
            queries=tuple(query for query in queries if videos[query.video_id] == split),
        )
        for split in dict.fromkeys(videos.values())
    }


@given(
    st.dictionaries(WORDS, WORDS | st.just("test"), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 99), WORDS, st.lists(st.tuples(SECONDS, SECONDS), max_size=3)), max_size=4),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, videos: dict[str, str], lines: list[Line]
) -> None:
    folder, splits = tmp_path_factory.mktemp("folder"), splits_of(videos, lines)
    annotated.write(folder, splits)
    assert annotated.read(folder) == splits
    assert [path.name for path in folder.iterdir()] == ["annotations.jsonl"]


def test_what_may_be_left_out(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"video": "beach.mp4", "query": "a dog"}, "", {"video": "pool", "query": "a cat"})
    assert annotated.read(folder) == {
        "train": Split(
            video_ids=("beach.mp4", "pool"),
            queries=(
                Query(id="1", text="a dog", video_id="beach.mp4"),
                Query(id="3", text="a cat", video_id="pool"),
            ),
        )
    }


def test_files_of_other_editors(tmp_path: Path) -> None:
    """A mark of the encoding, the line ends of Windows, and characters that Python alone takes for line ends."""
    line = json.dumps({"video": "v", "query": "one\u2028line\x85of \u4e24"}, ensure_ascii=False)
    (tmp_path / "annotations.jsonl").write_bytes(f"\ufeff{line}\r\n{line}\r\n".encode())
    queries = annotated.read(tmp_path)["train"].queries
    assert [query.text for query in queries] == ["one\u2028line\x85of \u4e24"] * 2


def test_a_write_that_fails_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, {"video": "v", "query": "a dog"})
    before = annotated.read(folder)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="No space left"):
            annotated.write(folder, {"test": before["train"]})
    assert annotated.read(folder) == before
    assert [path.name for path in folder.iterdir()] == ["annotations.jsonl"]


GOOD = {"video": "v", "query": "a dog"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "{",
            r"line 2 is not JSON \(.*\), expected an object with id, video, query, start, end, moments, split; fix",
        ),
        ([], r"line 2 is '\[\]', expected an object with video and query"),
        ({"video": "v"}, r"line 2 is '{.*}', expected an object with video and query"),
        (GOOD | {"begin": 3}, "and nothing but id, video, query, start, end, moments, split; fix the line"),
        (GOOD | {"query": "  "}, "line 2: query is '  ', expected words in quotes"),
        (GOOD | {"video": None}, "line 2: video is None, expected words in quotes"),
        (GOOD | {"id": 7}, "line 2: id is 7, expected words in quotes; fix the line"),
        (GOOD | {"start": 3}, "line 2: start and end are 3 and None, expected seconds, or neither; fix it"),
        (GOOD | {"start": "3", "end": 4}, "line 2: start and end are '3' and 4, expected seconds"),
        (GOOD | {"start": True, "end": 4}, "line 2: start and end are True and 4, expected seconds"),
        (GOOD | {"start": 3, "end": math.nan}, "line 2: start and end are 3 and nan, expected seconds"),
        (
            GOOD | {"start": 4, "end": 3},
            r"line 2: a moment goes from 4\.0 to 3\.0 s, expected 0 <= start <= end; fix it",
        ),
        (
            GOOD | {"moments": [[1, 2], [4, 3]]},
            r"line 2: a moment goes from 4\.0 to 3\.0 s, expected 0 <= start <= end",
        ),
        (
            GOOD | {"moments": [[1, 2, 3]]},
            r"line 2: moments is \[\[1, 2, 3\]\], expected pairs such as \[\[3.5, 9.0\]\]",
        ),
        (GOOD | {"moments": 3}, "line 2: moments is 3, expected pairs such as"),
        (GOOD | {"moments": [["1", 2]]}, "line 2: start and end are '1' and 2, expected seconds"),
        (GOOD | {"moments": [[1, 2]], "end": 2}, "line 2 has start or end, and moments, expected one way to say when"),
        (GOOD | {"id": "1"}, "line 2: the id '1' is taken; give each query its own"),
        (GOOD | {"split": "test", "id": "1"}, "line 2: the id '1' is taken; give each query its own"),
        (
            GOOD | {"split": "test"},
            "line 2: v is in train and in test, expected one split for all sentences of a video",
        ),
    ],
)
def test_lines_that_are_refused(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(BadAnnotation, match=message):
        annotated.read(folder_of(tmp_path, GOOD, line))


def test_files_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=r"has no annotations.jsonl, .* make a library \(midreel playhouse"):
        annotated.read(tmp_path)
    with pytest.raises(BadAnnotation, match="is empty, expected a line for each query; write some"):
        annotated.read(folder_of(tmp_path, "", " "))
    (tmp_path / "annotations.jsonl").write_bytes(b'{"video": "v", "query": "\xe9t\xe9"}')
    with pytest.raises(BadAnnotation, match=r"is not UTF-8 \(.*\), expected that encoding; save it again"):
        annotated.read(tmp_path)
