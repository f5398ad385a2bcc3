from collections.abc import Callable
from pathlib import Path

import pytest

from midreel.datasets import find_annotations, is_dataset, open_annotations
from midreel.errors import BadAnnotation, BadLibrary
from midreel.library.layout import Layout
from midreel.types import Split
from tests.datasets import trees


def write_own(folder: Path) -> dict[str, Split]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "annotations.csv").write_text("video,query,split,id\nbeach,a dog,train,q\n")
    return {"train": trees.split_of([trees.Video("beach", 1, (trees.Sentence("a dog"),))], ["q"])}


LAYOUTS: dict[tuple[str, str], Callable[[Path], dict[str, Split]]] = {
    ("own", "own"): write_own,
    ("qvhighlights", "original"): trees.write_qvhighlights,
    ("tvr", "original"): trees.write_tvr,
    ("activitynet", "original"): trees.write_activitynet,
    ("charades", "original"): trees.write_charades,
    ("qvhighlights", "release"): lambda folder: trees.write_captions(
        folder, "qvhighlight", {"val": trees.QVHIGHLIGHTS_JOINED["val"]}
    ),
    ("tvr", "release"): lambda folder: trees.write_captions(folder, "tvr", trees.TVR),
    ("activitynet", "release"): lambda folder: trees.write_captions(folder, "activitynet", trees.ACTIVITYNET),
    ("charades", "release"): lambda folder: trees.write_captions(folder, "charades", trees.CHARADES),
    ("cooking", "release"): lambda folder: trees.write_captions(folder, "cooking", trees.CHARADES),
}
each_layout = pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids="-".join)


@each_layout
def test_a_layout_is_recognised_in_its_folder_and_from_above(tmp_path: Path, name: str, layout: str) -> None:
    folder = tmp_path / "some folder"
    splits = LAYOUTS[name, layout](folder)
    for root in (folder, tmp_path):
        for asked in (None, name):
            annotations = open_annotations(root, asked)
            assert (annotations.name, annotations.layout, annotations.folder) == (name, layout, folder)
            assert annotations.splits == splits
            assert annotations.files
            assert all(path.is_file() for path in annotations.files)


def test_the_name_chooses_among_several_datasets(tmp_path: Path) -> None:
    for name in ("tvr", "charades"):
        trees.write_captions(tmp_path / name, name, trees.WORLDS[name])
    assert open_annotations(tmp_path, "charades").name == "charades"
    with pytest.raises(BadAnnotation, match="contains charades, tvr, expected one dataset"):
        open_annotations(tmp_path)
    with pytest.raises(BadAnnotation, match="contains charades, tvr, expected qvhighlights"):
        open_annotations(tmp_path, "qvhighlights")
    assert [place.name for place in find_annotations(tmp_path)] == ["charades", "tvr"]


def test_a_folder_takes_precedence_over_its_subfolders(tmp_path: Path) -> None:
    trees.write_tvr(tmp_path)
    trees.write_captions(tmp_path / "tvr", "tvr", trees.TVR)
    write_own(tmp_path / "mine")
    assert open_annotations(tmp_path).layout == "original"
    assert open_annotations(tmp_path, "own").folder == tmp_path / "mine"


def test_captions_of_a_release_take_precedence_over_original_files(tmp_path: Path) -> None:
    trees.write_tvr(tmp_path)
    trees.write_captions(tmp_path, "tvr", trees.TVR)
    assert open_annotations(tmp_path, "tvr").layout == "release"
    assert [place.layout for place in find_annotations(tmp_path)] == ["release", "original"]


def test_an_error_lists_the_expected_files(tmp_path: Path) -> None:
    with pytest.raises(BadAnnotation) as caught:
        open_annotations(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path} contains no dataset")
    names = ("annotations.jsonl", "annotations.csv", "activitynet", "charades", "qvhighlights", "tvr")
    for name in (*names, "TextData/*train.caption.txt"):
        assert name in message
    assert message.endswith(f"midreel data new {tmp_path}")
    with pytest.raises(BadAnnotation) as caught:
        open_annotations(tmp_path, "tvr")
    assert "tvr_train_release.jsonl" in str(caught.value)
    assert "TextData/tvrtrain.caption.txt" in str(caught.value)
    assert "highlight" not in str(caught.value)
    with pytest.raises(BadAnnotation, match="nowhere does not exist"):
        open_annotations(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(BadAnnotation, match="file is not a folder"):
        open_annotations(tmp_path / "file")


def test_libraries_and_datasets_are_distinguished(tmp_path: Path) -> None:
    library, dataset = tmp_path / "library", tmp_path / "dataset"
    for folder, name in ((library, "library.json"), (dataset, "annotations.csv")):
        folder.mkdir()
        (folder / name).write_text("{}")
    with pytest.raises(BadAnnotation, match=f"midreel search {library}"):
        find_annotations(library)
    with pytest.raises(BadLibrary, match="midreel train"):
        Layout(dataset).settings()
    assert [is_dataset(folder) for folder in (dataset, library, tmp_path / "absent")] == [True, False, False]
