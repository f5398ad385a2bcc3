import contextlib
import csv
import json
import math
from pathlib import Path
from posixpath import normpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midreel.datasets import own
from midreel.errors import BadAnnotation, MidreelError, UnknownName
from midreel.types import Moment, Query, Split


def folder_of(tmp_path: Path, *lines: object) -> Path:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (tmp_path / "annotations.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


def table_of(tmp_path: Path, text: str) -> Path:
    (tmp_path / "annotations.csv").write_bytes(text.encode())
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


# ---------------------------------------------------------------- JSON


@given(
    st.dictionaries(WORDS.map(normpath), WORDS.map(str.strip).map(str.lower) | st.just("test"), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 99), WORDS, st.lists(st.tuples(SECONDS, SECONDS), max_size=3)), max_size=4),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, videos: dict[str, str], lines: list[Line]
) -> None:
    folder, splits = tmp_path_factory.mktemp("folder"), splits_of(videos, lines)
    own.write(folder, splits)
    assert own.read(folder) == splits
    assert [path.name for path in folder.iterdir()] == ["annotations.jsonl"]


def test_what_may_be_left_out(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path, {"video": "beach.mp4", "query": "a dog"}, "", {"video": "beach.mp4", "query": "a cat", "end": None}
    )
    queries = (
        Query(id="1", text="a dog", video_id="beach.mp4"),
        Query(id="3", text="a cat", video_id="beach.mp4"),
    )
    assert own.read(folder) == {"train": Split(video_ids=("beach.mp4",), queries=queries)}


def test_several_moments(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path,
        {"video": "v", "query": "a dog", "start": 1, "end": 2.5},
        {"video": "v", "query": "a cat", "moments": [[3, 4], [7.5, 9]]},
        {"video": "v", "query": "a cow", "moments": []},
    )
    assert [query.moments for query in own.read(folder)["train"].queries] == [
        (Moment(start=1.0, end=2.5),),
        (Moment(start=3.0, end=4.0), Moment(start=7.5, end=9.0)),
        (),
    ]


def test_files_of_other_editors(tmp_path: Path) -> None:
    """A mark of the encoding, the line ends of Windows, and characters that Python alone takes for line ends."""
    line = json.dumps({"video": "v", "query": "one\u2028line\x85of \u4e24"}, ensure_ascii=False)
    (tmp_path / "annotations.jsonl").write_bytes(f"\ufeff{line}\r\n{line}\r\n".encode())
    queries = own.read(tmp_path)["train"].queries
    assert [query.text for query in queries] == ["one\u2028line\x85of \u4e24"] * 2


def test_a_write_that_fails_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, {"video": "v", "query": "a dog"})
    before = own.read(folder)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="No space left"):
            own.write(folder, {"test": before["train"]})
    assert own.read(folder) == before
    assert [path.name for path in folder.iterdir()] == ["annotations.jsonl"]


GOOD = {"video": "v", "query": "a dog", "split": "train"}
FIELDS = "id, video, query, start, end, moments, split"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"line 2 is not JSON \(.*\), expected a JSON value; fix or drop it"),
        ("[" * 100_000, r"line 2 is not JSON \(.*\), expected a JSON value; fix or drop it"),
        ('{"start": ' + "9" * 5000 + "}", r"line 2 is not JSON \(.*\), expected a JSON value; fix or drop it"),
        ([], rf"line 2 is '\[\]', expected an object with video and query, and nothing but {FIELDS}; fix the line"),
        ({"video": "v"}, r"line 2 is '{.*}', expected an object with video and query"),
        (GOOD | {"begin": 3}, f"and nothing but {FIELDS}; fix the line"),
        (GOOD | {"video": "  "}, "line 2: video is '  ', expected words; write them, or delete the line"),
        (GOOD | {"query": "half a \ud83d"}, r"line 2: query is 'half a \\ud83d', expected a text; fix it"),
        (GOOD | {"video": None}, "line 2: video is None, expected a text; fix it"),
        (GOOD | {"id": 7}, "line 2: id is 7, expected a text; fix it"),
        (GOOD | {"start": 3}, "line 2: start and end are 3 and None, expected seconds, or neither; fix it"),
        (GOOD | {"start": "3", "end": 4}, "line 2: start and end are '3' and 4, expected seconds"),
        (GOOD | {"start": True, "end": 4}, "line 2: start and end are True and 4, expected seconds"),
        (GOOD | {"start": 3, "end": math.nan}, "line 2: start and end are 3 and nan, expected seconds"),
        (GOOD | {"start": 3, "end": 10**400}, "line 2: start and end are 3 and 10+, expected seconds"),
        (
            GOOD | {"start": 4, "end": 3},
            r"line 2: a moment goes from 4\.0 to 3\.0 s, expected 0 <= start <= end",
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
            "line 2: v is in train and in test, expected one split for all sentences of a video; move them",
        ),
        (
            GOOD | {"video": "v.mp4"},
            "jsonl: a video is called 'v' and 'v.mp4', expected one name for a video; write it the same way everywhere",
        ),
    ],
)
def test_lines_that_are_refused(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(BadAnnotation, match=message):
        own.read(folder_of(tmp_path, GOOD, line))


def test_files_that_are_refused(tmp_path: Path) -> None:
    message = r"has no annotations.jsonl or annotations.csv, .*; begin one \(midreel data new .*\) or make a dataset"
    with pytest.raises(BadAnnotation, match=message):
        own.read(tmp_path)
    with pytest.raises(BadAnnotation, match="is empty, expected a line for each query; write some"):
        own.read(folder_of(tmp_path, "", " "))
    (tmp_path / "annotations.jsonl").write_bytes(b'{"video": "v", "query": "\xe9t\xe9"}')
    with pytest.raises(BadAnnotation, match=r"is not UTF-8 \(.*\), expected that encoding; save it again"):
        own.read(tmp_path)
    table_of(tmp_path, "video,query\n")
    with pytest.raises(BadAnnotation, match=r"has annotations.jsonl and annotations.csv, expected one of them; move"):
        own.read(tmp_path)


# ---------------------------------------------------------------- tables

AS_TABLE = """video,query,start,end,split,id
beach.mp4,"a dog, wet, jumps",3.5,0:09,train,q1
pool,she says “no”,1:02:03.25,1:02:04,val,
"""


@pytest.mark.parametrize(
    "text",
    [
        AS_TABLE,
        "\ufeff" + AS_TABLE.replace("\n", "\r\n"),
        AS_TABLE.replace("\n", "\r"),
        AS_TABLE.replace('"a dog, wet, jumps"', "a dog|wet|jumps")
        .replace(",", ";")
        .replace("|", ", ")
        .replace("3.5", "3,5"),
        AS_TABLE.replace('"a dog, wet, jumps"', "a dog|wet|jumps").replace(",", "\t").replace("|", ", "),
        "sep=,\r\n" + AS_TABLE,
        AS_TABLE.replace("video,query", '"Video", QUERY'),
        AS_TABLE.replace("split,id", "split,id,,").replace("q1", "q1,,"),
        "\n\n" + AS_TABLE + "\n,,,,,\n",
    ],
    ids=["plain", "excel", "old mac", "german", "tabs", "hint", "header", "empty columns", "blank lines"],
)
def test_tables_of_spreadsheets(tmp_path: Path, text: str) -> None:
    splits = own.read(table_of(tmp_path, text))
    (dog,), (no,) = splits["train"].queries, splits["val"].queries
    assert dog == Query(id="q1", text="a dog, wet, jumps", video_id="beach.mp4", moments=(Moment(start=3.5, end=9.0),))
    assert (no.text, no.video_id, no.moments) == ("she says “no”", "pool", (Moment(start=3723.25, end=3724.0),))


CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(str.strip).filter(bool)


@given(
    st.lists(st.tuples(CELLS, CELLS, st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1), st.sampled_from(",;\t")
)
def test_a_table_says_what_the_lines_say(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, int, int]], delimiter: str
) -> None:
    folder = tmp_path_factory.mktemp("folder")
    with (folder / "annotations.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(("video", "query", "start", "end", "split"))
        writer.writerows((f"{k} {video}", text, a, a + b, "val") for k, (video, text, a, b) in enumerate(rows))
    expected = [
        (normpath(f"{k} {video}"), text, (Moment(start=float(a), end=float(a + b)),))
        for k, (video, text, a, b) in enumerate(rows)
    ]
    assert [(each.video_id, each.text, each.moments) for each in own.read(folder)["val"].queries] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with '', expected a line with the names of the columns: video, query and, if you like, start"),
        ("beach,a dog\n", r"begins with 'beach,a dog\\n', expected a line with the names of the columns"),
        (
            "video,query,begin\n",
            "has the columns video, query, begin, expected video and query, and nothing but id, video",
        ),
        ("video,query,query\n", "has the columns video, query, query, expected .*, each once; rename or delete"),
        (
            "video,query\nv,a dog, wet\n",
            "line 2 has 3 cells, expected the 2 of the header; put quotes around a sentence",
        ),
        (
            'video,query\nv,"a dog\n',
            "line 2: unexpected end of data, expected quotes around a whole cell, or none; fix",
        ),
        ('video,query\nv,"a dog" barks\n', "line 2: ',' expected after '\"', expected quotes around a whole cell"),
        ("video,query\nv,\n", "has no sentence yet, expected at least one; write in the column query what happens"),
        ("video,query\n,a dog\n", "line 2: video is '', expected words"),
        ("video,query\n", "is empty, expected a line for each query; write some"),
        ("video,query,start\nv,a dog,3\n", r"line 2: start and end are 3\.0 and None, expected seconds, or neither"),
        ("video,query,start,end\nv,a dog,3,soon\n", "line 2: end is 'soon', expected seconds, m:ss or h:mm:ss; fix it"),
        ("video,query,start,end\nv,a dog,1:2:3:4,5\n", "line 2: start is '1:2:3:4', expected seconds, m:ss or h:mm:ss"),
        (
            "video,query,start,end\nv,a dog,1:60,5\n",
            "line 2: start is '1:60', expected less than 60 minutes or seconds",
        ),
        ("video,query,start,end\nv,a dog,-1,5\n", "line 2: start is '-1', expected seconds"),
        (
            'video,query,start,end\nv,a dog,"1,200",1300\n',
            "line 2: start is '1,200', which some read as 1200 s and some as 1.200 s, expected seconds, .*; write it w",
        ),
        ("video,query,start,end\nv,a dog,9,5\n", r"line 2: a moment goes from 9\.0 to 5\.0 s"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadAnnotation, match=message):
        own.read(table_of(tmp_path, text))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(own.FIELDS), VALUES) | VALUES)
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, values: object) -> None:
    expect_read_or_refused(folder_of(tmp_path_factory.mktemp("folder"), GOOD, values))


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    for name, head in (
        ("annotations.jsonl", b""),
        ("annotations.csv", b"video,query,start,end\n"),
        ("annotations.csv", b""),
    ):
        folder = tmp_path_factory.mktemp("folder")
        (folder / name).write_bytes(head + content)
        expect_read_or_refused(folder)


@given(st.text(st.sampled_from('v,;\t"\n\r :.0159')))
def test_any_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    expect_read_or_refused(table_of(tmp_path_factory.mktemp("folder"), f"video,query,start,end,split,id\n{text}"))


def expect_read_or_refused(folder: Path) -> None:
    splits: dict[str, Split] = {}
    with contextlib.suppress(MidreelError):
        splits = own.read(folder)
    for query in (query for split in splits.values() for query in split.queries):
        assert all(words.strip() and words.encode() for words in (query.id, query.text, query.video_id))


# ---------------------------------------------------------------- splits


def split_of_video(folder: Path) -> dict[str, str]:
    return {video: name for name, split in own.read(folder).items() for video in split.video_ids}


def test_videos_are_divided_and_keep_their_split(tmp_path: Path) -> None:
    lines = [{"video": f"v{k}", "query": text} for k in range(500) for text in ("a dog", "a cat")]
    drawn = split_of_video(folder_of(tmp_path, *lines))
    assert len(drawn) == 500
    assert 25 <= list(drawn.values()).count("val") <= 80
    fewer = split_of_video(folder_of(tmp_path, *reversed(lines[300:])))
    assert all(drawn[video] == split for video, split in fewer.items())
    with_ending = split_of_video(folder_of(tmp_path, *({**line, "video": f"{line['video']}.MP4"} for line in lines)))
    assert with_ending == {f"{video}.MP4": split for video, split in drawn.items()}
    (remark,) = own.collect(folder_of(tmp_path, *lines)).remarks
    num_val = list(drawn.values()).count("val")
    assert remark == f"videos that name no split: 500, of which {num_val} by a hash of their names became val"


def test_of_two_videos_one_is_val(tmp_path: Path) -> None:
    drawn = split_of_video(folder_of(tmp_path, *({"video": video, "query": "a dog"} for video in ("beach", "pool"))))
    assert sorted(drawn.values()) == ["train", "val"]


def test_in_a_small_folder_val_gives_way_to_a_lower_hash_and_that_is_all_that_changes(tmp_path: Path) -> None:
    def drawn(num: int) -> dict[str, str]:
        return split_of_video(folder_of(tmp_path, *({"video": f"w{k}", "query": "a dog"} for k in range(num))))

    before = drawn(2)
    for num in range(3, 60):
        after = drawn(num)
        moved = [video for video, split in before.items() if after[video] != split]
        # Until a hash is in the lowest tenth there is one val, and only it can move.
        assert all(list(before.values()).count("val") == 1 and before[video] == "val" for video in moved)
        before = after
    assert list(before.values()).count("val") > 1


def test_one_file_is_one_video_however_its_path_is_written(tmp_path: Path) -> None:
    rows = "a.mp4,a dog,train\n./a.mp4,a cat,{}\ntrip//b.mp4,a cow,val\ntrip/../trip/b.mp4,a fox,val\n"
    splits = own.read(table_of(tmp_path, f"video,query,split\n{rows.format('train')}"))
    assert {name: split.video_ids for name, split in splits.items()} == {"train": ("a.mp4",), "val": ("trip/b.mp4",)}
    with pytest.raises(BadAnnotation, match=r"line 3: a.mp4 is in train and in val, expected one split for all"):
        own.read(table_of(tmp_path, f"video,query,split\n{rows.format('val')}"))


def test_capitals_make_no_other_split(tmp_path: Path) -> None:
    splits = own.read(table_of(tmp_path, "video,query,split\na,a dog,Train\nb,a cat,VAL\na,a cow,train\n"))
    assert {name: len(split.queries) for name, split in splits.items()} == {"train": 2, "val": 1}


def test_a_line_goes_with_its_video_and_a_val_is_left_as_it_is(tmp_path: Path) -> None:
    lines: list[object] = [{"video": f"v{k}", "query": "a dog"} for k in range(100)]
    lines += [{"video": "v3", "query": "a cat", "split": "test"}, {"video": "v4", "query": "a cat", "split": "val"}]
    found = split_of_video(folder_of(tmp_path, *lines))
    assert {video: split for video, split in found.items() if split != "train"} == {"v3": "test", "v4": "val"}


def test_where_every_line_names_its_split_nothing_is_divided(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, *({"video": f"v{k}", "query": "a dog", "split": "train"} for k in range(50)))
    assert (list(own.read(folder)), own.collect(folder).remarks) == (["train"], ())


# ---------------------------------------------------------------- folders


def test_files_are_found_with_and_without_their_ending(tmp_path: Path) -> None:
    for name in ("one", "one.mp4", "two.mov", "three.txt", "four.MP4"):
        (tmp_path / name).touch()
    assert own.find_file(tmp_path, "one") == tmp_path / "one"
    assert own.find_file(tmp_path, "one.mp4") == tmp_path / "one.mp4"
    assert own.find_file(tmp_path, "two") == tmp_path / "two.mov"
    assert own.find_file(tmp_path, "three") is None
    assert own.find_file(tmp_path, "four") == tmp_path / "four.MP4"
    assert own.find_file(tmp_path, "x" * 300) is None
    assert own.find_file(tmp_path, "nul\0") is None


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """A folder as cameras leave it."""
    for name in ("b, second.mp4", "A.MOV", "trip/été.mkv", ".hidden.mp4", ".trash/c.mp4", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.mp4").mkdir()
    return tmp_path


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_template_lists_the_videos_and_can_be_filled_in(clips: Path, form: str) -> None:
    path = own.new_template(clips, form)
    assert path == clips / f"annotations.{form}"
    lines = path.read_text(encoding="utf-8-sig" if form == "csv" else "utf-8").splitlines()
    assert (
        lines
        == {
            "csv": [
                "video,query,start,end,split",
                f'"# {own.ABOUT_SPLITS}"',
                "A.MOV,,,,",
                '"b, second.mp4",,,,',
                "trip/été.mkv,,,,",
            ],
            "jsonl": [
                f'{{"video": "{name}", "query": "", "start": null, "end": null, "split": null}}'
                for name in ("A.MOV", "b, second.mp4", "trip/été.mkv")
            ],
        }[form]
    )
    with pytest.raises(BadAnnotation, match="has no sentence yet, expected at least one; write in the column query"):
        own.read(clips)
    filled = (
        path.read_text(encoding="utf-8")
        .replace(",,,,\n", ",a dog,0:01,2,\n")
        .replace('"query": ""', '"query": "a dog"')
    )
    path.write_text(filled, encoding="utf-8")
    found = split_of_video(clips)
    assert sorted(found) == ["A.MOV", "b, second.mp4", "trip/été.mkv"]
    assert all(own.find_file(clips, video) for video in found)
    assert set(found.values()) == {"train", "val"}  # what happens where nobody says the split


def test_a_note_in_a_table_is_not_a_line(tmp_path: Path) -> None:
    found = own.read(table_of(tmp_path, "video,query,split\n# by Ann,,\n#1,a dog,train\n"))
    assert [query.video_id for query in found["train"].queries] == ["#1"]


def test_splits_come_in_the_order_that_people_expect(tmp_path: Path) -> None:
    names = ("other", "test", "val", "train", "another")
    folder = folder_of(tmp_path, *({"video": name, "query": "a dog", "split": name} for name in names))
    assert list(own.read(folder)) == ["train", "val", "test", "another", "other"]


def test_a_template_never_takes_the_place_of_a_file(clips: Path) -> None:
    path = own.new_template(clips, "jsonl")
    path.write_text("mine")
    for form in own.FILES:
        with pytest.raises(
            BadAnnotation, match=r"annotations.jsonl is there already, expected a folder without .*; go on"
        ):
            own.new_template(clips, form)
    assert path.read_text() == "mine"
    assert not (clips / "annotations.csv").exists()


def test_templates_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=r"holds no video, expected files that end in \.mp4, .*; copy some"):
        own.new_template(tmp_path)
    with pytest.raises(UnknownName, match="no form 'xlsx'; choose one of: jsonl, csv"):
        own.new_template(tmp_path, "xlsx")
    (tmp_path / "\udce9t\udce9.mp4").touch()
    with pytest.raises(
        BadAnnotation, match=r"has a file '\\udce9t\\udce9.mp4', expected a name that is UTF-8; rename it"
    ):
        own.new_template(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".mp4"]
