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
    """Return splits with at least one query per video. `videos` has the split of each video."""
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
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, videos: dict[str, str], lines: list[Line]) -> None:
    folder, splits = tmp_path_factory.mktemp("folder"), splits_of(videos, lines)
    own.write(folder, splits)
    assert own.read(folder) == splits
    assert [path.name for path in folder.iterdir()] == ["annotations.jsonl"]


def test_optional_fields(tmp_path: Path) -> None:
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


def test_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    """The line ends of Windows end a line. U+2028 and U+0085, where str.splitlines splits, do not."""
    line = json.dumps({"video": "v", "query": "one\u2028line\x85of \u4e24"}, ensure_ascii=False)
    (tmp_path / "annotations.jsonl").write_bytes(f"\ufeff{line}\r\n{line}\r\n".encode())
    queries = own.read(tmp_path)["train"].queries
    assert [query.text for query in queries] == ["one\u2028line\x85of \u4e24"] * 2


def test_a_failed_write_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"start": ' + "9" * 5000 + "}", "line 2 is not JSON"),
        ([], rf"line 2 is '\[\]', .*{FIELDS}"),
        ({"video": "v"}, "line 2 is '{.*}'"),
        (GOOD | {"begin": 3}, f"line 2 is .*{FIELDS}"),
        (GOOD | {"video": "  "}, "line 2: video is '  '"),
        (GOOD | {"query": "half a \ud83d"}, r"line 2: query is 'half a \\ud83d'"),
        (GOOD | {"video": None}, "line 2: video is None"),
        (GOOD | {"id": 7}, "line 2: id is 7"),
        (GOOD | {"start": 3}, "line 2: start is 3 and end is None"),
        (GOOD | {"start": "3", "end": 4}, "line 2: start is '3'"),
        (GOOD | {"start": True, "end": 4}, "line 2: start is True"),
        (GOOD | {"start": 3, "end": math.nan}, "line 2: .*3.0 to nan s"),
        (GOOD | {"start": 3, "end": 10**400}, "line 2: .*3.0 to inf s"),
        (GOOD | {"start": 4, "end": 3}, r"line 2: .*4\.0 to 3\.0 s"),
        (GOOD | {"moments": [[1, 2], [4, 3]]}, r"line 2: .*4\.0 to 3\.0 s"),
        (GOOD | {"moments": [[1, 2, 3]]}, r"line 2: moments is \[\[1, 2, 3\]\]"),
        (GOOD | {"moments": 3}, "line 2: moments is 3"),
        (GOOD | {"moments": [["1", 2]]}, "line 2: moments is '1'"),
        (GOOD | {"moments": [[1, 2]], "end": 2}, "line 2 has moments and also start or end"),
        (GOOD | {"id": "1"}, "line 2: the id '1'"),
        (GOOD | {"split": "test", "id": "1"}, "line 2: the id '1'"),
        (GOOD | {"split": "test"}, "line 2: v is in train and in test"),
        (GOOD | {"video": "v.mp4"}, "jsonl names a video 'v' and 'v.mp4'"),
    ],
)
def test_invalid_lines_are_rejected(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(BadAnnotation, match=message):
        own.read(folder_of(tmp_path, GOOD, line))


def test_invalid_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=r"no annotations.jsonl or annotations.csv.*midreel data new"):
        own.read(tmp_path)
    with pytest.raises(BadAnnotation, match="is empty"):
        own.read(folder_of(tmp_path, "", " "))
    (tmp_path / "annotations.jsonl").write_bytes(b'{"video": "v", "query": "\xe9t\xe9"}')
    with pytest.raises(BadAnnotation, match="is not UTF-8"):
        own.read(tmp_path)
    table_of(tmp_path, "video,query\n")
    with pytest.raises(BadAnnotation, match=r"has annotations.jsonl and annotations.csv"):
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
def test_tables_of_several_spreadsheets(tmp_path: Path, text: str) -> None:
    splits = own.read(table_of(tmp_path, text))
    (dog,), (no,) = splits["train"].queries, splits["val"].queries
    assert dog == Query(id="q1", text="a dog, wet, jumps", video_id="beach.mp4", moments=(Moment(start=3.5, end=9.0),))
    assert (no.text, no.video_id, no.moments) == ("she says “no”", "pool", (Moment(start=3723.25, end=3724.0),))


CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(str.strip).filter(bool)


@given(
    st.lists(st.tuples(CELLS, CELLS, st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1), st.sampled_from(",;\t")
)
def test_tables_round_trip(
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
        ("", "begins with ''"),
        ("beach,a dog\n", r"begins with 'beach,a dog\\n'"),
        ("video,query,begin\n", "columns video, query, begin,"),
        ("video,query,query\n", "columns video, query, query,"),
        ("video,query\nv,a dog, wet\n", "line 2 has 3 cells, expected 2"),
        ('video,query\nv,"a dog\n', "line 2: unexpected end of data"),
        ('video,query\nv,"a dog" barks\n', "line 2: ',' expected after '\"'"),
        ("video,query\nv,\n", "no query yet"),
        ("video,query\n,a dog\n", "line 2: video is ''"),
        ("video,query\n", "is empty"),
        ("video,query,start\nv,a dog,3\n", r"line 2: start is 3\.0 and end is None"),
        ("video,query,start,end\nv,a dog,3,soon\n", "line 2: end is 'soon'"),
        ("video,query,start,end\nv,a dog,1:2:3:4,5\n", "line 2: start is '1:2:3:4'"),
        ("video,query,start,end\nv,a dog,1:60,5\n", "line 2: start is '1:60', .*below 60"),
        ("video,query,start,end\nv,a dog,-1,5\n", "line 2: start is '-1'"),
        ('video,query,start,end\nv,a dog,"1,200",1300\n', "line 2: start is '1,200', .*1200 s or 1.200 s"),
        ("video,query,start,end\nv,a dog,9,5\n", r"line 2: .*9\.0 to 5\.0 s"),
    ],
)
def test_invalid_tables_are_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadAnnotation, match=message):
        own.read(table_of(tmp_path, text))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(own.FIELDS), VALUES) | VALUES)
def test_any_json_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, values: object) -> None:
    expect_read_or_rejected(folder_of(tmp_path_factory.mktemp("folder"), GOOD, values))


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    for name, head in (
        ("annotations.jsonl", b""),
        ("annotations.csv", b"video,query,start,end\n"),
        ("annotations.csv", b""),
    ):
        folder = tmp_path_factory.mktemp("folder")
        (folder / name).write_bytes(head + content)
        expect_read_or_rejected(folder)


@given(st.text(st.sampled_from('v,;\t"\n\r :.0159')))
def test_any_table_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    expect_read_or_rejected(table_of(tmp_path_factory.mktemp("folder"), f"video,query,start,end,split,id\n{text}"))


def expect_read_or_rejected(folder: Path) -> None:
    splits: dict[str, Split] = {}
    with contextlib.suppress(MidreelError):
        splits = own.read(folder)
    for query in (query for split in splits.values() for query in split.queries):
        assert all(words.strip() and words.encode() for words in (query.id, query.text, query.video_id))


# ---------------------------------------------------------------- splits


def split_of_video(folder: Path) -> dict[str, str]:
    return {video: name for name, split in own.read(folder).items() for video in split.video_ids}


def test_videos_keep_their_split_when_others_are_removed(tmp_path: Path) -> None:
    lines = [{"video": f"v{k}", "query": text} for k in range(500) for text in ("a dog", "a cat")]
    drawn = split_of_video(folder_of(tmp_path, *lines))
    assert len(drawn) == 500
    assert 25 <= list(drawn.values()).count("val") <= 80
    fewer = split_of_video(folder_of(tmp_path, *reversed(lines[300:])))
    assert all(drawn[video] == split for video, split in fewer.items())
    with_ending = split_of_video(folder_of(tmp_path, *({**line, "video": f"{line['video']}.MP4"} for line in lines)))
    assert with_ending == {f"{video}.MP4": split for video, split in drawn.items()}
    (remark,) = own.load(folder_of(tmp_path, *lines)).remarks
    num_val = list(drawn.values()).count("val")
    assert remark.startswith(f"videos without a split: 500, of these {num_val} became val")


def test_one_of_two_videos_is_val(tmp_path: Path) -> None:
    drawn = split_of_video(folder_of(tmp_path, *({"video": video, "query": "a dog"} for video in ("beach", "pool"))))
    assert sorted(drawn.values()) == ["train", "val"]


def test_in_a_small_folder_only_the_val_video_changes_its_split(tmp_path: Path) -> None:
    def drawn(num: int) -> dict[str, str]:
        return split_of_video(folder_of(tmp_path, *({"video": f"w{k}", "query": "a dog"} for k in range(num))))

    before = drawn(2)
    for num in range(3, 60):
        after = drawn(num)
        moved = [video for video, split in before.items() if after[video] != split]
        # Until a hash is in the lowest tenth there is a single val video, and only this one can move.
        assert all(list(before.values()).count("val") == 1 and before[video] == "val" for video in moved)
        before = after
    assert list(before.values()).count("val") > 1


def test_paths_are_normalised(tmp_path: Path) -> None:
    rows = "a.mp4,a dog,train\n./a.mp4,a cat,{}\ntrip//b.mp4,a cow,val\ntrip/../trip/b.mp4,a fox,val\n"
    splits = own.read(table_of(tmp_path, f"video,query,split\n{rows.format('train')}"))
    assert {name: split.video_ids for name, split in splits.items()} == {"train": ("a.mp4",), "val": ("trip/b.mp4",)}
    with pytest.raises(BadAnnotation, match=r"line 3: a.mp4 is in train and in val"):
        own.read(table_of(tmp_path, f"video,query,split\n{rows.format('val')}"))


def test_splits_ignore_case(tmp_path: Path) -> None:
    splits = own.read(table_of(tmp_path, "video,query,split\na,a dog,Train\nb,a cat,VAL\na,a cow,train\n"))
    assert {name: len(split.queries) for name, split in splits.items()} == {"train": 2, "val": 1}


def test_one_line_decides_the_split_of_its_video(tmp_path: Path) -> None:
    lines: list[object] = [{"video": f"v{k}", "query": "a dog"} for k in range(100)]
    lines += [{"video": "v3", "query": "a cat", "split": "test"}, {"video": "v4", "query": "a cat", "split": "val"}]
    found = split_of_video(folder_of(tmp_path, *lines))
    assert {video: split for video, split in found.items() if split != "train"} == {"v3": "test", "v4": "val"}


def test_given_splits_are_used(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, *({"video": f"v{k}", "query": "a dog", "split": "train"} for k in range(50)))
    assert (list(own.read(folder)), own.load(folder).remarks) == (["train"], ())


# ---------------------------------------------------------------- folders


def test_find_file_with_and_without_an_ending(tmp_path: Path) -> None:
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
    """A folder with videos, hidden files, other files and a folder whose name looks like a video."""
    for name in ("b, second.mp4", "A.MOV", "trip/été.mkv", ".hidden.mp4", ".trash/c.mp4", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.mp4").mkdir()
    return tmp_path


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_template_lists_the_videos(clips: Path, form: str) -> None:
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
    with pytest.raises(BadAnnotation, match="no query yet"):
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
    assert set(found.values()) == {"train", "val"}  # drawn, because no line has a split


def test_comments_in_a_table_are_skipped(tmp_path: Path) -> None:
    found = own.read(table_of(tmp_path, "video,query,split\n# by Ann,,\n#1,a dog,train\n"))
    assert [query.video_id for query in found["train"].queries] == ["#1"]


def test_splits_are_sorted(tmp_path: Path) -> None:
    names = ("other", "test", "val", "train", "another")
    folder = folder_of(tmp_path, *({"video": name, "query": "a dog", "split": name} for name in names))
    assert list(own.read(folder)) == ["train", "val", "test", "another", "other"]


def test_a_template_never_overwrites_a_file(clips: Path) -> None:
    path = own.new_template(clips, "jsonl")
    path.write_text("mine")
    for form in own.FILES:
        with pytest.raises(BadAnnotation, match=r"annotations.jsonl exists"):
            own.new_template(clips, form)
    assert path.read_text() == "mine"
    assert not (clips / "annotations.csv").exists()


def test_invalid_templates_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation, match=r"has no videos, .*\.mp4"):
        own.new_template(tmp_path)
    with pytest.raises(BadAnnotation, match="nowhere does not exist"):
        own.new_template(tmp_path / "nowhere")
    with pytest.raises(UnknownName, match="'xlsx'; choose one of: jsonl, csv"):
        own.new_template(tmp_path, "xlsx")
    (tmp_path / "\udce9t\udce9.mp4").touch()
    with pytest.raises(BadAnnotation, match=r"'\\udce9t\\udce9.mp4', .*UTF-8"):
        own.new_template(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".mp4"]
