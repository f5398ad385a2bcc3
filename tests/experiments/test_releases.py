"""Training and evaluation on released benchmarks, in their own layouts."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from midreel.datasets import open_annotations
from midreel.datasets.dataset import Dataset
from midreel.datasets.release import NAMES
from midreel.datasets.sources import Source
from midreel.datasets.verify import verify_dataset
from midreel.errors import BadAnnotation, BadSetting, MissingFeatures, UnknownName
from midreel.experiments import paper_results, runs
from midreel.features.extract import extract_texts
from midreel.features.kinds import find_kind
from midreel.features.stores.store import FeatureStore
from midreel.recipes.recipe import Recipe
from midreel.training.data import FeatureSet
from midreel.types import VideoFeatures
from tests.conftest import Command
from tests.datasets import trees
from tests.experiments.small import SETTINGS, as_options
from tests.features.fakes import FINGERPRINT, FakeBackbone
from tests.features.published_trees import EVERY_LAYOUT, WIDTHS, Release, write_flat, write_release

pytestmark = pytest.mark.slow


def write_tree(root: Path, name: str, features: str) -> Release:
    """Write a release with captions and features: two videos in train, one in val."""
    release = write_release(root, name, features)
    (release.folder / "TextData").mkdir(exist_ok=True)
    splits = {"train": list(release.videos)[:2], "val": list(release.videos)[2:]}
    for split, video_ids in splits.items():
        lines = [f"{name} a sentence\n" for name in release.texts if name.split("#")[0] in video_ids]
        (release.folder / "TextData" / f"{name}{split}.caption.txt").write_text("".join(lines))
    return release


@pytest.mark.parametrize(("name", "features"), EVERY_LAYOUT)
def test_every_release_can_be_trained_on(tmp_path: Path, midreel: Command, name: str, features: str) -> None:
    write_tree(tmp_path, name, features)
    video_width, text_width = WIDTHS[features]
    name = NAMES.get(name, name)
    options = as_options(epochs=1, video_width=video_width, text_width=text_width)
    ended = midreel("train", "--recipe", name, "--dataset", tmp_path, "--out", tmp_path / "run", *options)
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(midreel("evaluate", tmp_path / "run", "--recipe", name, "--dataset", tmp_path, "--json").out)
    assert (found["split"], found["figures"]["R@1"]) == ("val", 100.0)
    assert (
        found["paper"]["MSC"]["SumR"]
        == {"qvhighlights": 234.6, "tvr": 263.1, "activitynet": 202.1, "charades": 99.7}[name]
    )
    zero_shot = midreel("evaluate", "zero-shot", "--recipe", name, "--dataset", tmp_path)
    if features.startswith("i3d"):  # RoBERTa sentences and I3D frames have no joint space
        assert zero_shot.code == 1
        assert "joint" in zero_shot.err or "compare" in zero_shot.err
    else:
        assert zero_shot.code == 0


SMALL = {"epochs": 1, "width": 8, "num_heads": 2, "num_frames": 12, "num_clips": 6}


@pytest.mark.parametrize("objective", ["iccv", "plus_plus"])
def test_the_original_features_of_dl_dkd(tmp_path: Path, midreel: Command, objective: str) -> None:
    """The student reads I3D frames and RoBERTa words, the teacher CLIP frames and CLIP sentences."""
    student = write_tree(tmp_path, "tvr", "i3d_resnet")
    teacher = write_release(tmp_path, "tvr", "clip_b32", seed=1)
    options = ["--dataset", tmp_path, "--features", "i3d_resnet+clip_b32"]
    changes = [
        word for name, value in (SMALL | {"objective": objective}).items() for word in ("--set", f"{name}={value}")
    ]
    ended = midreel("train", "--method", "dl_dkd", *options, "--out", tmp_path / "run", *changes)
    assert (ended.code, ended.err) == (0, "")
    assert "i3d-roberta" in ended.out
    config = json.loads((tmp_path / "run/best/config.json").read_text())
    assert (config["video_width"], config["text_width"], config["teacher_width"]) == (3072, 768, 512)
    assert config["max_words"] == 30
    dataset = Dataset.open(tmp_path, features="i3d_resnet+clip_b32")
    method = runs.load(str(tmp_path / "run"), dataset)
    data = FeatureSet.of(method, dataset, "train")
    video, query = data.video_ids[0], data.queries[0].id
    assert data.videos.teacher is not None
    num_frames = len(student.videos[video])
    rows = teacher.videos[video]
    expected = rows[[int((frame + 0.5) / num_frames * len(rows)) for frame in range(num_frames)]]
    np.testing.assert_array_equal(data.videos.teacher[0, :num_frames], expected)
    np.testing.assert_array_equal(data.videos.frames[0, :num_frames], student.videos[video])
    np.testing.assert_array_equal(data.texts[0].words, student.texts[query])
    np.testing.assert_array_equal(data.texts[0].sentence, teacher.texts[query][-1])
    assert midreel("evaluate", tmp_path / "run", *options, "--json").code == 0


def test_dl_dkd_without_a_teacher(tmp_path: Path, midreel: Command) -> None:
    write_tree(tmp_path, "tvr", "i3d_resnet")
    ended = midreel("train", "--method", "dl_dkd", "--dataset", tmp_path, "--out", tmp_path / "run")
    assert ended.code == 1
    assert "--sentences" in ended.err
    write_release(tmp_path, "tvr", "clip_b32", seed=1)
    options = ("--features", "clip_b32+i3d_resnet", "--out", tmp_path / "run")
    swapped = midreel("train", "--method", "dl_dkd", "--dataset", tmp_path, *options)
    assert swapped.code == 1
    assert "last" in swapped.err


@pytest.mark.parametrize(("features", "query"), [("i3d_resnet", "words"), ("clip_b32", "sentence")])
def test_amdnet_reads_words_where_there_are_no_sentences(
    tmp_path: Path, midreel: Command, features: str, query: str
) -> None:
    write_tree(tmp_path, "tvr", features)
    changes = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    ended = midreel("train", "--method", "amdnet", "--dataset", tmp_path, "--out", tmp_path / "run", *changes)
    assert (ended.code, ended.err) == (0, "")
    assert json.loads((tmp_path / "run/best/config.json").read_text())["query"] == query
    assert midreel("evaluate", tmp_path / "run", "--dataset", tmp_path).code == 0


ORIGINALS = {
    "qvhighlights": trees.write_qvhighlights,
    "tvr": trees.write_tvr,
    "activitynet": trees.write_activitynet,
    "charades": trees.write_charades,
}


def write_features(folder: Path, lasting: Mapping[str, float] | None = None) -> None:
    """Write features of all videos and queries. Durations are those of the annotations or of `lasting`."""
    annotations = open_annotations(folder)
    seconds = {part.id: part.duration for parts in annotations.parts.values() for part in parts}
    with FeatureStore.create(folder / "features.h5", FINGERPRINT) as store:
        for number, name in enumerate(Source.of(annotations).video_ids):
            duration = (annotations.durations | seconds | (lasting or {}))[name]
            times = torch.arange(math.ceil(duration * 2)) / 2
            frames = torch.full((len(times), 4), float(number + 1))
            store.add_video(name, VideoFeatures(frames=frames, times=times, duration=duration))
        extract_texts(Source.of(annotations).queries, FakeBackbone(), store)


@pytest.mark.parametrize("name", ORIGINALS)
def test_every_original_can_be_trained_on(tmp_path: Path, midreel: Command, name: str) -> None:
    """The epoch is chosen, and evaluated, on the split that the paper reports."""
    ORIGINALS[name](tmp_path)
    write_features(tmp_path)
    words = ["--recipe", name, "--dataset", tmp_path]
    options = as_options(epochs=1, video_width=4, text_width=6, max_words=64)
    ended = midreel("train", *words, "--out", tmp_path / "run", *options)
    assert (ended.code, ended.err) == (0, "")
    split = "test" if name == "charades" else "val"
    assert ("val is missing" in ended.out) == (split == "test")
    found = json.loads(midreel("evaluate", tmp_path / "run", *words, "--json").out)
    assert found["split"] == split
    assert split in found["remarks"][0]
    best = json.loads((tmp_path / "run/best/metrics.json").read_text())
    assert found["figures"]["SumR"] == pytest.approx(best["metrics"]["SumR"])


def test_evaluate_shows_the_table_of_the_paper(tmp_path: Path, midreel: Command) -> None:
    write_tree(tmp_path, "tvr", "clip_l14")
    lines = midreel("evaluate", "zero-shot", "--recipe", "tvr", "--dataset", tmp_path).out.splitlines()
    assert lines[0].startswith("val: 1 video, ")
    assert max(map(len, lines[2:])) <= 80
    assert ["the", "paper,", "tvr", "R@1", "R@5", "R@10", "R@100", "SumR"] in [line.split() for line in lines]
    assert lines[-2].split() == ["MSC", "35.1", "61.6", "71.5", "94.9", "263.1"]
    assert "paper" in midreel("evaluate", "--help").out
    markdown = midreel("evaluate", "zero-shot", "--recipe", "tvr", "--dataset", tmp_path, "--format", "markdown").out
    assert markdown.splitlines()[-1] == "| here: zero-shot | 100.0 | 100.0 | 100.0 | 100.0 | 400.0 |"
    assert "paper" not in midreel("evaluate", "zero-shot", "--dataset", tmp_path, "--split", "train").out


def test_each_row_of_the_paper_adds_up() -> None:
    """Except for rounding. One printed sum is off by 0.2."""
    for rows in paper_results.PRINTED.values():
        for figures in rows.values():
            *recalls, total = figures.values()
            assert sum(recalls) == pytest.approx(total, abs=0.25)


@pytest.mark.parametrize(("name", "features"), EVERY_LAYOUT)
def test_a_release_is_verified_with_its_features(tmp_path: Path, midreel: Command, name: str, features: str) -> None:
    release = write_tree(tmp_path, name, features)
    found = json.loads(midreel("data", "verify", tmp_path, "--json").out)["datasets"][0]
    assert found["features"]["ok"]
    assert found["features_misfits"] == []
    assert found["features"]["videos"]["orphans"]["count"] == 0
    text = midreel("data", "verify", tmp_path)
    assert text.code == 3  # three videos are no benchmark
    assert f"videos: 3 of 3 have features, width {WIDTHS[features][0]}\n" in text.out
    (release.folder / "TextData" / f"{name}val.caption.txt").write_text("nobody#enc#0 a stranger\n")
    found = midreel("data", "verify", tmp_path).out
    off = [line.split()[-1] for line in found.splitlines() if line.startswith("problem: ")]
    assert {"nobody", "nobody#enc#0"} <= set(off)


def test_verify_reports_wrong_widths(tmp_path: Path, midreel: Command) -> None:
    release = write_tree(tmp_path, "charades", "clip_l14")
    (video_file,) = (release.folder / "FeatureData").iterdir()
    video_file.unlink()
    write_flat(video_file, {name: rows[:, :100] for name, rows in release.videos.items()})
    (found,) = json.loads(midreel("data", "verify", tmp_path, "--json").out)["datasets"]
    assert not found["ok"]
    (line,) = found["features_misfits"]
    assert str(video_file) in line
    assert "100, expected 768" in line
    assert f"problem: {line}\n" in midreel("data", "verify", tmp_path).out


def test_one_of_several_features_is_chosen(tmp_path: Path) -> None:
    write_tree(tmp_path, "tvr", "clip_l14")
    write_release(tmp_path, "tvr", "clip_b32")
    with pytest.raises(BadSetting, match="clip_b32, clip_l14"):
        Dataset.open(tmp_path)
    assert Dataset.open(tmp_path, features="clip_b32").store.fingerprint.width == 512
    FeatureStore.create(tmp_path / "tvr/features.h5", FINGERPRINT).close()
    assert Dataset.open(tmp_path).store.fingerprint == FINGERPRINT  # what was extracted comes first
    assert Dataset.open(tmp_path, features="clip_b32").store.fingerprint.width == 512


@pytest.mark.parametrize(("name", "features"), EVERY_LAYOUT)
def test_the_kind_of_features_is_found(tmp_path: Path, midreel: Command, name: str, features: str) -> None:
    """Without options for widths, a run takes the widths of the release. An own store of this kind is found as well."""
    write_tree(tmp_path, name, features)
    name = NAMES.get(name, name)
    sizes = {"video_width", "text_width", "max_words"}
    options = [
        word for key in SETTINGS.keys() - sizes for word in ("--set", f"{key}={(SETTINGS | {'epochs': 1})[key]}")
    ]
    words = ["train", "--dataset", tmp_path, *options]
    ended = midreel(*words, "--out", tmp_path / "run")
    assert (ended.code, ended.err) == (0, "")
    kind = find_kind(name, *WIDTHS[features])
    assert ended.out.splitlines()[0] == f"features: {kind}"
    recipe = Recipe.from_json((tmp_path / "run/recipe.json").read_text())
    assert (recipe.features, recipe.config.max_words) == (kind, 30 if kind == "i3d-roberta" else 77)
    assert (recipe.config.video_width, recipe.config.text_width) == WIDTHS[features]
    found = json.loads(midreel(*words, "--out", tmp_path / "chosen", "--features", kind, "--json").out)
    assert found["features"] == kind
    ended = midreel(*words, "--out", tmp_path / "run", "--resume", "--features", kind)
    assert ended.out.splitlines()[:2] == ["the run is already finished", f"features: {kind}"]
    other = "clip-b32" if kind != "clip-b32" else "clip-l14"
    ended = midreel(*words, "--out", tmp_path / "other", "--features", other)
    assert ended.code == 1
    assert other in ended.err or other.replace("-", "_") in ended.err or "L14" in ended.err or "clip_vit" in ended.err


def test_a_kind_of_features_and_an_own_store(tmp_path: Path) -> None:
    """A store of this kind comes before published features. A store of another kind is ignored in a release."""
    write_tree(tmp_path, "tvr", "clip_l14")
    path = tmp_path / "tvr/features.h5"
    FeatureStore.create(path, replace(FINGERPRINT, width=512, word_width=512)).close()
    assert Dataset.open(tmp_path, features="clip-b32").store.path == path
    assert Dataset.open(tmp_path, features="clip-l14").store.fingerprint.width == 768
    with pytest.raises(MissingFeatures, match="i3d_resnet"):
        Dataset.open(tmp_path, features="i3d-roberta")
    with pytest.raises(UnknownName, match="tiny-clip"):
        Dataset.open(tmp_path, features="tiny-clip")


def test_a_kind_that_contradicts_the_store(tmp_path: Path) -> None:
    trees.write_charades(tmp_path)
    write_features(tmp_path)
    with pytest.raises(BadSetting, match=r"768 .* 4 and 6"):
        Dataset.open(tmp_path, features="clip-l14")


def test_choosing_features_needs_a_release(tmp_path: Path, midreel: Command) -> None:
    trees.write_charades(tmp_path)
    write_features(tmp_path)
    with pytest.raises(BadSetting, match=r"clip_l14.*clip-l14"):
        Dataset.open(tmp_path, features="clip_l14")
    assert midreel("data", "verify", tmp_path, "--features", "clip_l14").code == 3


def test_choosing_among_several_datasets(tmp_path: Path) -> None:
    write_tree(tmp_path, "tvr", "clip_l14")
    assert Dataset.open(tmp_path, "playhouse").annotations.name == "tvr"
    with pytest.raises(BadAnnotation, match="expected charades"):
        Dataset.open(tmp_path, "charades")
    write_tree(tmp_path, "charades", "clip_l14")
    assert Dataset.open(tmp_path, "charades").annotations.name == "charades"
    with pytest.raises(BadAnnotation, match="expected playhouse"):
        Dataset.open(tmp_path, "playhouse")


def test_the_card_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    for place in ("here", "there"):
        write_tree(tmp_path / place, "charades", "clip_l14")
    assert Dataset.open(tmp_path / "here").card() == Dataset.open(tmp_path / "there").card()


def test_a_table_without_a_joint_space_has_no_zero_shot(tmp_path: Path, midreel: Command) -> None:
    write_tree(tmp_path, "charades", "i3d_rgb_lgi")
    write_release(tmp_path, "charades", "clip_b32")
    rows = "zero-shot,base"
    words = ["--recipe", "charades", "--dataset", tmp_path, "--seeds", 1, "--rows", rows, "--out", tmp_path / "out"]
    options = as_options(epochs=1, video_width=1024, text_width=1024)
    ended = midreel("reproduce", 1, *words, "--features", "i3d_rgb_lgi", *options, "--json")
    assert list(json.loads(ended.out)["rows"]) == ["(a) base"]
    options = as_options(epochs=1, video_width=512, text_width=512)
    ended = midreel("reproduce", 1, *words, "--features", "clip_b32", *options, "--json")
    assert list(json.loads(ended.out)["rows"]) == ["CLIP zero-shot", "(a) base"]


def test_videos_in_parts_are_joined(tmp_path: Path) -> None:
    """QVHighlights has features per segment, and videos of several segments."""
    expected = trees.write_qvhighlights(tmp_path)
    annotations = open_annotations(tmp_path)
    with pytest.raises(MissingFeatures, match="midreel extract"):
        Dataset.open(tmp_path)
    write_features(tmp_path)
    found = Dataset.open(tmp_path)
    assert found.splits == expected
    video = found.store.video("aBc_dEfGh12")
    assert (len(video.frames), video.duration) == (552, 276.0)
    method = runs.load("zero-shot", found)
    data = FeatureSet.of(method, found, "train")
    assert data.durations[0] == 276
    assert data.queries[0].moments[1].end == 276
    assert len(Source.of(annotations).video_ids) == 5
    assert found.card()["videos"] == {"train": 2, "val": 1, "test": 1}


@pytest.mark.parametrize("seconds", [90.0, 125.3, 128.6])
def test_parts_start_where_the_annotations_say(tmp_path: Path, seconds: float) -> None:
    """The second part starts at 126 s, as annotated, whatever the length of the first file."""
    trees.write_qvhighlights(tmp_path)
    first, _ = open_annotations(tmp_path).parts["aBc_dEfGh12"]
    write_features(tmp_path, {first.id: seconds})
    video = Dataset.open(tmp_path).store.video("aBc_dEfGh12")
    assert (video.duration, len(video.frames), len(video.times)) == (276.0, 552, 552)
    assert video.times.tolist() == pytest.approx([k / 2 for k in range(552)])
    begins = int(np.argmax(video.frames[:, 0] != video.frames[0, 0]))
    assert begins == 252
    off = "parts of videos whose features are longer or shorter than annotated: 1, such as"
    line = f"problem: {off} {first.id} ({seconds:.1f} s, annotated 126 s)"
    assert (line in verify_dataset(open_annotations(tmp_path)).to_text()) == (abs(seconds - 126) > 2)
