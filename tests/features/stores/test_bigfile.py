import ast
import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from midreel.errors import BadFeatures, BadStore, MissingFeatures
from midreel.features.stores.bigfile import BigFile, parse_shape, parse_videos
from tests.features.published_trees import Matrix, write_bigfile

SOMEWHERE = Path("somewhere.txt")


def matrices(*lengths: int, width: int = 3) -> dict[str, Matrix]:
    random = np.random.default_rng(0)
    return {f"vid{n}": random.standard_normal((rows, width)).astype("<f4") for n, rows in enumerate(lengths)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_bigfile(tmp_path / "i3d", matrices(3, 1, 4))
    return tmp_path / "i3d"


# ---------------------------------------------------------------- reading


def test_a_file_written_by_hand(tmp_path: Path) -> None:
    np.arange(12, dtype="<f4").tofile(tmp_path / "feature.bin")
    (tmp_path / "shape.txt").write_text("3 4")
    (tmp_path / "id.txt").write_text("vidA_0 vidA_1\nvidB_0\n")
    (tmp_path / "video2frames.txt").write_text("{'vidA': ['vidA_0', 'vidA_1'], 'vidB': ['vidB_0']}")
    file = BigFile(tmp_path)
    assert file.ids() == ["vidA", "vidB"]
    assert (file.width, file.dtype) == (4, "float32")
    assert file.read("vidA").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert file.read("vidB").tolist() == [[8, 9, 10, 11]]
    assert "vidA" in file
    assert "vidC" not in file
    assert repr(file) == f"BigFile({str(tmp_path)!r})"


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5), data=st.data())
def test_matrices_are_read_whatever_the_order_of_the_rows(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], data: st.DataObject
) -> None:
    videos, folder = matrices(*lengths), tmp_path_factory.mktemp("big") / "file"
    write_bigfile(folder, videos, data.draw(st.permutations(range(sum(lengths)))))
    file = BigFile(folder)
    for name, expected in videos.items():
        assert np.array_equal(file.read(name), expected)
        assert file.read(name).dtype == np.float32


def test_frames_are_in_the_order_of_the_list(folder: Path) -> None:
    (folder / "video2frames.txt").write_text("{'x': ['vid2_1', 'vid0_2', 'vid0_2'], 'y': ['vid2_0', 'vid2_1']}")
    videos = matrices(3, 1, 4)
    file = BigFile(folder)
    assert np.array_equal(file.read("x"), np.stack([videos["vid2"][1], videos["vid0"][2], videos["vid0"][2]]))
    assert np.array_equal(file.read("y"), videos["vid2"][:2])


def test_the_matrix_is_memory_mapped_and_consecutive_rows_are_a_slice(folder: Path) -> None:
    file = BigFile(folder)
    assert isinstance(file._matrix, np.memmap)
    assert file._rows_of_video == {"vid0": slice(0, 3), "vid1": slice(3, 4), "vid2": slice(4, 8)}
    assert file.read("vid0").base is None  # a copy: changes do not reach the file
    with pytest.raises(ValueError, match="read-only"):
        file._matrix[0] = 0


def test_a_pickled_file_is_its_path(folder: Path) -> None:
    file = BigFile(folder)
    file.read("vid0")
    copy = pickle.loads(pickle.dumps(file))
    assert "_matrix" not in copy.__dict__
    assert np.array_equal(copy.read("vid0"), file.read("vid0"))


def _read_in_child(file: BigFile, results: "multiprocessing.SimpleQueue[Matrix]") -> None:
    results.put(file.read("vid2"))


def test_a_forked_process_reads_the_file(folder: Path) -> None:
    file = BigFile(folder)
    file.read("vid0")
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_read_in_child, args=(file, results))
    child.start()
    assert np.array_equal(results.get(), file.read("vid2"))
    child.join()


def test_a_closed_file_opens_again(folder: Path) -> None:
    file = BigFile(folder)
    file.read("vid0")
    file.close()
    assert "_matrix" not in file.__dict__
    assert len(file.read("vid0")) == 3


def test_the_digest_depends_on_the_content(folder: Path, tmp_path: Path) -> None:
    digest = BigFile(folder).digest()
    write_bigfile(tmp_path / "copy", matrices(3, 1, 4))
    assert BigFile(tmp_path / "copy").digest() == digest
    videos = matrices(3, 1, 4)
    videos["vid1"][0, 2] += 1
    write_bigfile(tmp_path / "number", videos)
    write_bigfile(tmp_path / "name", {f"_{name}": rows for name, rows in matrices(3, 1, 4).items()})
    write_bigfile(tmp_path / "order", dict(reversed(matrices(3, 1, 4).items())))
    others = {BigFile(tmp_path / name).digest() for name in ("number", "name", "order")}
    assert len(others | {digest}) == 4


# ---------------------------------------------------------------- damaged files


def test_a_missing_video(folder: Path) -> None:
    with pytest.raises(MissingFeatures, match=r"'v_x' or 'x' \(it has 3 ids\)"):
        BigFile(folder).read("v_x", "x")


def test_a_truncated_matrix(folder: Path) -> None:
    path = folder / "feature.bin"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(BadStore, match=r"feature\.bin has 92 bytes, .* 96: 8 x 3 "):
        BigFile(folder).read("vid0")


@pytest.mark.parametrize("name", ["shape.txt", "id.txt", "feature.bin", "video2frames.txt"])
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(BadStore, match=rf"{name} does not exist"):
        BigFile(folder).read("vid0")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("shape.txt", "8 4", r"feature\.bin has 96 bytes, .* 128: 8 x 4 "),
        ("shape.txt", "8", r"shape\.txt begins with b'8',"),
        ("shape.txt", "0 3", r"shape\.txt begins with b'0 3',"),
        ("shape.txt", "-8 -3", r"shape\.txt begins with b'-8 -3',"),
        ("shape.txt", "9" * 5000 + " 3", r"shape\.txt begins with b'9{60}'…,"),
        ("shape.txt", "", r"shape\.txt begins with b'',"),
        ("id.txt", "a b c", r"id\.txt has 3 ids, .* 8"),
        ("id.txt", "a b c d e f g a", r"id\.txt has 'a' more than once"),
        ("video2frames.txt", "{'a': ['b']}", r"frame 'b' of 'a' .* 8"),
        ("video2frames.txt", "{'a': ['vid0_0'], 'a': []}", r"video 'a' twice"),
    ],
)
def test_inconsistent_files(folder: Path, name: str, text: str, message: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(BadStore, match=message):
        BigFile(folder).read("vid0")


def test_videos_without_frames_and_with_nans(folder: Path) -> None:
    (folder / "video2frames.txt").write_text("{'none': [], 'some': ['vid0_0', 'vid0_1']}")
    matrix = np.fromfile(folder / "feature.bin", "<f4")
    matrix[4:6] = np.nan, np.inf
    matrix.tofile(folder / "feature.bin")
    file = BigFile(folder)
    with pytest.raises(BadFeatures, match=r"'none' has shape \(0, 3\)"):
        file.read("none")
    with pytest.raises(BadFeatures, match="2 values of 'some'"):
        file.read("some")


# ---------------------------------------------------------------- the parsers

NAMES = st.text(st.characters(codec="utf-8"), max_size=8)


@given(st.dictionaries(NAMES, st.lists(NAMES, max_size=4), min_size=1))
@example({"it's": ['a "quoted" one', 'it\'s "both"', "new\nline", "back\\slash", "\x00", "\U0001f600", ""]})
def test_the_output_of_str_is_parsed(frames_of_video: dict[str, list[str]]) -> None:
    for text in (str(frames_of_video), ascii(frames_of_video), f"\n {frames_of_video}\r\n\t"):
        assert dict(parse_videos(text.encode(), SOMEWHERE)) == frames_of_video


def test_other_spellings() -> None:
    expected = {"a": ["b", "c"], "d": []}
    for text in (
        "{'a':['b','c'],'d':[]}",
        "{u'a': [u'b', u'c'], u'd': []}",  # Python 2
        '{"a": ["b", "c"], "d": []}',
        "{\n  'a': [\n    'b',\n    'c',\n  ],\n  'd': [ ],\n}\n",
    ):
        assert dict(parse_videos(text.encode(), SOMEWHERE)) == expected


PIECES = [
    *("{", "}", "[", "]", ":", ",", " ", "\n", "'", '"', "\\", "'a'", "'b'", '"c"', "u'd'", "'\\x41'", "'\\", "b'e'"),
    *("'''", "#", "(", ")", "1", "None", "\xa0", "\x00", "'a': ['b']", "{'a': ['b', ", "'\\U00110000'", "'\\d'"),
]


@st.composite
def corrupted(draw: st.DrawFn) -> str:
    """Return the output of `str` with a few characters replaced."""
    text = str(draw(st.dictionaries(NAMES, st.lists(NAMES, max_size=3), min_size=1, max_size=3)))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(start + 3, len(text))))
    return text[:start] + draw(st.sampled_from(["", *PIECES])) + text[end:]


@given(corrupted() | st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=20))
@example("{'a' 'b': ['c']}")
@example("{'a': ['\\U00110000']}")
@example("{'a': ('b',)}")
@settings(max_examples=200)
def test_any_text_is_parsed_as_by_python_or_rejected(text: str) -> None:
    try:
        found = dict(parse_videos(text.encode("utf-8", "surrogatepass"), SOMEWHERE))
    except BadStore:
        return
    assert found == ast.literal_eval(text.strip())


@given(st.binary(max_size=40) | st.from_regex(rb"\s*[0-9]{1,20}\s+-?[0-9]{1,20}\s*", fullmatch=True))
def test_any_bytes_are_a_shape_or_rejected(text: bytes) -> None:
    try:
        shape = parse_shape(text, SOMEWHERE)
    except BadStore:
        return
    assert shape == tuple(map(int, text.split(b"\n")[0].split()))
    assert min(shape) > 0


@given(st.binary(max_size=60))
def test_any_bytes_are_ids_or_rejected(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    folder = tmp_path_factory.mktemp("big") / "file"
    write_bigfile(folder, matrices(2))
    names = text.decode("latin-1").split()
    (folder / "id.txt").write_bytes(text)
    (folder / "video2frames.txt").write_text(str({"v": names}), encoding="utf-8")
    if len(names) == 2 and names[0] != names[1]:
        assert np.array_equal(BigFile(folder).read("v"), matrices(2)["vid0"])
    else:
        with pytest.raises(BadStore, match=r"id.txt has "):
            BigFile(folder).read("v")


@pytest.mark.parametrize(
    "attack",
    [
        "__import__('pathlib').Path('{}').touch()",
        "{{'a': [__import__('pathlib').Path('{}').touch()]}}",
        "{{'a': ['vid0_0'], **__import__('pathlib').Path('{}').touch()}}",
        "{{__import__('pathlib').Path('{}').touch(): ['vid0_0']}}",
        "{{'a': [f'{{open(\"{}\", \"w\")}}']}}",
        "{{'a': ['vid0_0']}} or __import__('pathlib').Path('{}').touch()",
        "(lambda: __import__('pathlib').Path('{}').touch())()",
    ],
)
def test_code_is_never_executed(folder: Path, tmp_path: Path, attack: str) -> None:
    proof = tmp_path / "executed"
    (folder / "video2frames.txt").write_text(attack.format(proof))
    with pytest.raises(BadStore, match=r"at character \d+"):
        BigFile(folder).read("vid0")
    assert not proof.exists()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{'a': " * 100_000,
        "{'a': [" + "(" * 100_000 + ")" * 100_000 + "]}",
        "{'a': [" + "9" * 100_000 + "]}",
        "{'a': [9**9**9**9]}",
        "{'a': ['b' * 10**12]}",
        "{'a': ['" + "b" * 1_000_000,
        "{'a': [" + "'b', " * 100_000,
        "{'a': ['" + "\\n" * 100_000,
        "{" + " " * 1_000_000,
    ],
)
def test_huge_and_deeply_nested_input_is_rejected_fast(text: str) -> None:
    with pytest.raises(BadStore, match="at character") as refused:
        list(parse_videos(text.encode(), SOMEWHERE))
    assert len(str(refused.value)) < 400


def test_a_file_that_is_not_utf8() -> None:
    with pytest.raises(BadStore, match=r"somewhere\.txt is not UTF-8"):
        list(parse_videos(b"{'a\xff': []}", SOMEWHERE))
