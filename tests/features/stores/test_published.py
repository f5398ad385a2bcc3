import multiprocessing
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from midreel.errors import BadFeatures, BadSetting, BadStore, FingerprintMismatch, MissingFeatures, UnknownName
from midreel.features.stores.base import Features
from midreel.features.stores.published import LAYOUTS, PublishedFeatures, find_published
from midreel.features.stores.store import FeatureStore
from midreel.training.streaming import FeatureSource
from midreel.types import TextFeatures
from tests import ROOT
from tests.features.fakes import FINGERPRINT, text_features
from tests.features.published_trees import EVERY_LAYOUT, VIDEO_IDS, WIDTHS, write_bigfile, write_flat, write_release

every_layout = pytest.mark.parametrize(("dataset", "features"), EVERY_LAYOUT)


# ---------------------------------------------------------------- every layout


@every_layout
def test_a_release_is_read_from_its_files(tmp_path: Path, dataset: str, features: str) -> None:
    release = write_release(tmp_path, dataset, features)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found = find_published(tmp_path, dataset)
    assert isinstance(found, FeatureSource)
    assert isinstance(found, Features)
    for video_id, expected in release.videos.items():
        assert found.has_video(video_id)
        assert np.array_equal(found.video(video_id).frames, expected)
    for text_id, expected in release.texts.items():
        assert found.has_text(text_id)
        text = found.text(text_id)
        assert np.array_equal(text.words, expected)
        assert np.array_equal(text.sentence, expected[-1])
    found.close()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@every_layout
def test_the_fingerprint_describes_the_files(tmp_path: Path, dataset: str, features: str) -> None:
    write_release(tmp_path, dataset, features)
    fingerprint = find_published(tmp_path, dataset).fingerprint
    width, word_width = WIDTHS[features]
    assert (fingerprint.width, fingerprint.word_width, fingerprint.sentence_width) == (width, word_width, word_width)
    assert fingerprint.backbone.startswith("published ")
    assert len(fingerprint.weights) == 64
    assert fingerprint.source == ""  # no backbone can be loaded from published files
    rates = {"i3d_resnet": 1 / 1.5, "slowfast_clip": 0.5}
    assert fingerprint.frame_rate == rates.get(features)


def test_names_in_the_fingerprint(tmp_path: Path) -> None:
    for features, name in (("clip_l14", "tvr_clip_L14.h5"), ("i3d_resnet", "i3d_resnet + roberta_tvr_query_feat.hdf5")):
        write_release(tmp_path, "tvr", features)
        assert find_published(tmp_path, "tvr", features=features).fingerprint.backbone == f"published {name}"


def test_the_fingerprint_depends_on_the_content_and_not_on_the_path(tmp_path: Path) -> None:
    write_release(tmp_path, "charades", "clip_l14")
    shutil.copytree(tmp_path / "charades", tmp_path / "copy/charades")
    write_release(tmp_path / "other", "charades", "clip_l14", seed=1)
    first, copy, other = (
        find_published(root, "charades").fingerprint for root in (tmp_path, tmp_path / "copy", tmp_path / "other")
    )
    assert first == copy
    assert first.difference(other) == [f"weights {first.weights[:12]}… != {other.weights[:12]}…"]
    assert type(first).from_json(first.to_json()) == first


def test_float16_is_read_as_float32(tmp_path: Path) -> None:
    release = write_release(tmp_path, "tvr", "clip_l14", dtype="<f2")
    found = find_published(tmp_path, "tvr")
    assert found.fingerprint.dtype == "float16"
    for video_id, expected in release.videos.items():
        assert np.array_equal(found.video(video_id).frames, expected.astype(np.float32))


# ---------------------------------------------------------------- zero-shot search


def test_zero_shot_search_needs_one_clip_for_videos_and_texts(tmp_path: Path) -> None:
    for dataset, features in EVERY_LAYOUT:
        write_release(tmp_path / features, dataset, features)
        fingerprint = find_published(tmp_path / features, dataset, features=features).fingerprint
        if features.startswith("i3d"):
            assert not fingerprint.joint
            with pytest.raises(FingerprintMismatch, match="published i3d"):
                _ = fingerprint.joint_width
        else:
            assert fingerprint.joint_width == WIDTHS[features][1]


def test_a_store_of_sentences_and_frames_in_different_spaces(tmp_path: Path) -> None:
    apart = replace(FINGERPRINT, joint=False, sentence_width=6)
    store = FeatureStore.create(tmp_path / "features.h5", apart)
    text = TextFeatures(words=text_features().words, sentence=text_features().words[-1])
    store.add_text("text", text)
    assert np.array_equal(FeatureStore.open(store.path).text("text").sentence, text.sentence)
    assert store.fingerprint.difference(FINGERPRINT) == ["sentence_width 6 != None", "joint False != True"]


# ---------------------------------------------------------------- ids


def test_ids_with_and_without_the_prefix(tmp_path: Path) -> None:
    release = write_release(tmp_path, "activitynet", "clip_l14")
    found = find_published(tmp_path, "activitynet")
    assert sorted(found.video_ids()) == sorted(name[2:] for name in release.videos)
    for video_id, expected in release.videos.items():
        for spelling in (video_id, video_id[2:]):
            assert found.has_video(spelling)
            assert np.array_equal(found.video(spelling).frames, expected)
    write_release(tmp_path / "full", "activitynet", "i3d")
    full = find_published(tmp_path / "full", "activitynet")
    assert full.video_ids() == list(release.videos)
    assert full.has_video("AbCdEfGhIjK")


def test_the_exact_id_comes_first(tmp_path: Path) -> None:
    ours, theirs = np.zeros((1, 2), "<f4"), np.ones((1, 2), "<f4")
    write_flat(tmp_path / "videos.h5", {"v_x": ours, "x": theirs, "v_v_x": theirs})
    found = PublishedFeatures(tmp_path / "videos.h5")
    assert np.array_equal(found.video("v_x").frames, np.zeros((1, 2), np.float32))
    assert np.array_equal(found.video("x").frames, np.ones((1, 2), np.float32))


@pytest.mark.parametrize("keep_enc", [True, False])
def test_texts_with_and_without_enc(tmp_path: Path, keep_enc: bool) -> None:
    release = write_release(tmp_path, "tvr", "clip_b32", keep_enc=keep_enc)
    found = find_published(tmp_path, "tvr")
    assert ("#enc#" in found.text_ids()[0]) == keep_enc
    for text_id, expected in release.texts.items():
        assert np.array_equal(found.text(text_id).words, expected)


def test_missing_ids(tmp_path: Path) -> None:
    write_release(tmp_path, "charades", "clip_l14")
    found = find_published(tmp_path, "charades")
    assert not found.has_video("nobody")
    assert not found.has_text("AB1CD#enc#9")
    with pytest.raises(MissingFeatures, match=r"FeatureData/charades_clip_L14\.h5 .*'nobody' or 'v_nobody'"):
        found.video("nobody")
    with pytest.raises(MissingFeatures, match=r"TextData/charades_clip_L14\.h5 .*'AB1CD#enc#9' or 'AB1CD#9'"):
        found.text("AB1CD#enc#9")


def test_videos_without_texts(tmp_path: Path) -> None:
    write_bigfile(tmp_path / "i3d", {"v": np.zeros((2, 3), "<f4")})
    found = PublishedFeatures(tmp_path / "i3d")
    assert (found.path, found.video_ids(), found.text_ids()) == (tmp_path / "i3d", ["v"], [])
    assert not found.has_text("v#enc#0")
    assert (found.fingerprint.word_width, found.fingerprint.sentence_width) == (None, None)
    with pytest.raises(MissingFeatures, match="texts="):
        found.text("v#enc#0")


def test_an_error_contains_the_damaged_file(tmp_path: Path) -> None:
    release = write_release(tmp_path, "tvr", "clip_l14")
    for part in ("FeatureData", "TextData"):
        path = release.folder / part / "tvr_clip_L14.h5"
        path.write_bytes(path.read_bytes()[:-1000])
    found = find_published(tmp_path, "tvr")
    with pytest.raises(BadStore, match=r"FeatureData/tvr_clip_L14\.h5 .* truncated"):
        found.video(VIDEO_IDS["tvr"][0])
    with pytest.raises(BadStore, match=r"TextData/tvr_clip_L14\.h5 .* truncated"):
        found.text("x")


# ---------------------------------------------------------------- time


def test_times_with_a_documented_rate(tmp_path: Path) -> None:
    for dataset, seconds in (("tvr", 1.5), ("qvhighlight", 2.0)):
        features = next(iter(LAYOUTS[dataset]))
        release = write_release(tmp_path, dataset, features)
        (video_id, rows), *_ = release.videos.items()
        video = find_published(tmp_path, dataset).video(video_id)
        assert video.duration == pytest.approx(seconds * len(rows))
        assert video.times.tolist() == pytest.approx([seconds * row for row in range(len(rows))])
        given = find_published(tmp_path, dataset, durations={video_id: 17.25}).video(video_id)
        assert given.duration == 17.25
        assert np.array_equal(given.times, video.times)


def test_rows_divide_the_duration_if_the_rate_is_unknown(tmp_path: Path) -> None:
    release = write_release(tmp_path, "activitynet", "clip_l14")
    known, unknown, *_ = release.videos
    found = find_published(tmp_path, "activitynet", durations={known: 82.7})
    for spelling in (known, known[2:]):
        video, count = found.video(spelling), len(release.videos[known])
        assert video.duration == 82.7
        assert video.times.tolist() == pytest.approx([82.7 / count * row for row in range(count)])
    video = found.video(unknown)
    assert video.duration == len(release.videos[unknown])
    assert video.times.tolist() == list(range(len(release.videos[unknown])))


@pytest.mark.parametrize("duration", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_duration(tmp_path: Path, duration: float) -> None:
    write_release(tmp_path, "charades", "clip_l14")
    found = find_published(tmp_path, "charades", durations={"AB1CD": duration})
    with pytest.raises(BadFeatures, match=rf"video 'AB1CD' is {duration} s"):
        found.video("AB1CD")


# ---------------------------------------------------------------- finding


def test_the_root_may_be_the_dataset_itself(tmp_path: Path) -> None:
    write_release(tmp_path, "tvr", "clip_l14")
    for root in (tmp_path, tmp_path / "tvr", str(tmp_path)):
        assert find_published(root, "tvr").path == tmp_path / "tvr"


def test_choosing_one_of_several_releases(tmp_path: Path) -> None:
    for features in ("clip_b32", "i3d_resnet"):
        write_release(tmp_path, "tvr", features)
    with pytest.raises(
        BadSetting,
        match=r"2 kinds of features of tvr.*: i3d_resnet, clip_b32$",
    ):
        find_published(tmp_path, "tvr")
    assert find_published(tmp_path, "tvr", features="clip_b32").fingerprint.width == 512
    assert find_published(tmp_path, "tvr", features="i3d_resnet").fingerprint.width == 3072


def test_the_folder_of_the_dataset_comes_before_the_root(tmp_path: Path) -> None:
    write_release(tmp_path, "tvr", "clip_l14")
    shutil.copytree(tmp_path / "tvr", tmp_path, dirs_exist_ok=True)
    assert find_published(tmp_path, "tvr").path == tmp_path / "tvr"


def test_nothing_found(tmp_path: Path) -> None:
    with pytest.raises(MissingFeatures) as empty:
        find_published(tmp_path, "tvr")
    places = f"{tmp_path / 'tvr'} or {tmp_path},"
    assert places in str(empty.value)
    for layout in LAYOUTS["tvr"].values():
        assert f"{layout.videos} with {layout.texts}" in str(empty.value)
    release = write_release(tmp_path, "tvr", "clip_l14")
    (release.folder / "TextData/tvr_clip_L14.h5").unlink()
    with pytest.raises(MissingFeatures) as half:
        find_published(tmp_path, "tvr", features="clip_l14")
    assert places in str(half.value)
    assert "expected FeatureData/tvr_clip_L14.h5 with TextData/tvr_clip_L14.h5." in str(half.value)
    assert f"Found {release.folder / 'FeatureData/tvr_clip_L14.h5'}." in str(half.value)
    for number in range(30):
        (release.folder / f"FeatureData/{number}.npz").touch()
    with pytest.raises(MissingFeatures, match=r"17\.npz, …\."):
        find_published(tmp_path, "tvr")


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(
        UnknownName,
        match=r"'tv'.*'tvr'.*: tvr, activitynet",
    ):
        find_published(tmp_path, "tv")
    with pytest.raises(UnknownName, match=r"qvhighlight 'i3d'.*: slowfast_clip"):
        find_published(tmp_path, "qvhighlight", features="i3d")


# ---------------------------------------------------------------- processes


class _Pairs(torch.utils.data.Dataset[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]):
    def __init__(self, features: PublishedFeatures) -> None:
        self.features, self.ids = features, features.video_ids()

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        name = self.ids[number]
        return self.features.video(name).frames, self.features.text(f"{name}#enc#0").words


@pytest.mark.parametrize("features", ["i3d_resnet", "clip_b32"])
def test_data_loader_workers_read_the_features(tmp_path: Path, features: str) -> None:
    release = write_release(tmp_path, "tvr", features)
    found = find_published(tmp_path, "tvr")
    pairs = _Pairs(found)
    found.video(pairs.ids[0])  # opens the file in this process; each worker opens it again
    found.text(f"{pairs.ids[0]}#enc#0")
    context = multiprocessing.get_context("fork")
    loader = DataLoader(pairs, batch_size=1, num_workers=2, multiprocessing_context=context)
    for video_id, (frames, words) in zip(pairs.ids, loader, strict=True):
        assert np.array_equal(frames[0], release.videos[video_id])
        assert np.array_equal(words[0], release.texts[f"{video_id}#enc#0"])


def test_pickled_features_can_be_read(tmp_path: Path) -> None:
    write_release(tmp_path, "tvr", "clip_l14")
    found = find_published(tmp_path, "tvr", durations={VIDEO_IDS["tvr"][0]: 9.0})
    found.video(VIDEO_IDS["tvr"][0])
    copy = pickle.loads(pickle.dumps(found))
    assert copy.fingerprint == found.fingerprint
    assert copy.video(VIDEO_IDS["tvr"][0]).duration == 9.0
    assert repr(copy) == repr(found)
    assert "TextData/tvr_clip_L14.h5" in repr(found)


# ---------------------------------------------------------------- docs/features.md


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/features.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for dataset, features in (("tvr", "clip_l14"), ("tvr", "i3d_resnet"), ("activitynet", "clip_l14")):
        write_release(tmp_path / "data", dataset, features)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert capsys.readouterr().out.splitlines() == re.findall(r"^print\(.*\)\s+# (.+)$", "".join(blocks), re.MULTILINE)
    with pytest.raises(BadSetting) as several:
        find_published("data", "tvr")
    assert f"BadSetting: {several.value}" in page


def test_the_table_of_the_page_has_every_layout() -> None:
    page = (ROOT / "docs/features.md").read_text(encoding="utf-8")
    for dataset, layouts in LAYOUTS.items():
        for features, layout in layouts.items():
            for path in (layout.videos, layout.texts):
                name = path.split("/", 1)[1]
                assert {name, f"{name}/", name.replace(dataset, "C")} & set(re.findall(r"`([^`\n]+)`", page)), path
            assert f"`{features}`" in page
            assert f"{WIDTHS[features][0]} / {WIDTHS[features][1]} |" in page
