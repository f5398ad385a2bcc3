import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import UInt8

from midreel.datasets import dataset, open_annotations, playhouse
from midreel.datasets.dataset import Dataset
from midreel.datasets.own import find_file, write
from midreel.datasets.sources import Source
from midreel.errors import BadFeatures, BadSetting, FingerprintMismatch, MissingFeatures, UnknownName
from midreel.features.extract import ExtractionReport, Outcome
from midreel.features.stores.store import FeatureStore
from midreel.media.decode import Image, write_video
from midreel.types import Query, Split
from tests import zoo
from tests.features.fakes import FINGERPRINT, FakeBackbone


class Backbone(FakeBackbone):
    """A backbone without a frame rate and a precision, like the real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.fingerprint = replace(FINGERPRINT, frame_rate=None, dtype=None)

    def prepare(self, image: Image) -> UInt8[np.ndarray, "3 H W"]:
        """Return an image of a fixed size with the mean colour."""
        return np.broadcast_to(image.mean((0, 1)).round().astype(np.uint8)[:, None, None], (3, 8, 8))


def pictures(value: int, count: int = 8) -> Iterator[Image]:
    return (np.full((16, 16, 3), value, np.uint8) for _ in range(count))


def describe(folder: Path, *video_ids: str) -> None:
    """Write annotations with one sentence per video."""
    queries = tuple(Query(id=f"q{k}", text=f"sentence {k}", video_id=video) for k, video in enumerate(video_ids))
    write(folder, {"train": Split(video_ids=video_ids, queries=queries)})


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with two annotated videos. The annotations of one omit its ending."""
    write_video(tmp_path / "beach.mp4", pictures(200), rate=4)
    write_video(tmp_path / "pool.mkv.mp4", pictures(40, 4), rate=4)
    describe(tmp_path, "beach", "pool.mkv.mp4")
    return tmp_path


def test_extract_a_folder(own: Path) -> None:
    outcomes: list[Outcome] = []
    videos, texts = dataset.extract(open_annotations(own), Backbone(), rate=2.0, progress=outcomes.append)
    assert (videos.done, texts.done) == (["beach", "pool.mkv.mp4"], ["q0", "q1"])
    found = Dataset.open(own)
    assert [outcome.of for outcome in outcomes] == ["text", "text", "video", "video"]
    assert found.store.fingerprint == replace(FINGERPRINT, frame_rate=2.0, dtype="float16")
    assert found.store.video("beach").frames.shape == (4, 4)
    assert found.store.video("beach").frames[:, 0].mean() == pytest.approx(200, abs=3)
    assert found.store.video("beach").duration == 2.0
    assert found.store.video("pool.mkv.mp4").frames[:, 0].mean() == pytest.approx(40, abs=3)


def test_a_second_extraction_adds_new_videos_and_queries(own: Path) -> None:
    dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    describe(own, "beach", "pool.mkv.mp4", "desert")
    write_video(own / "desert.mp4", pictures(90), rate=4)
    videos, texts = dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    assert (videos.done, videos.skipped) == (["desert"], ["beach", "pool.mkv.mp4"])
    assert (texts.done, texts.skipped) == (["q2"], ["q0", "q1"])


def test_another_rate_is_rejected(own: Path) -> None:
    dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    with pytest.raises(FingerprintMismatch, match=r"frame_rate 2.0 != 1.0.* --rate 2"):
        dataset.extract(open_annotations(own), Backbone(), rate=1.0)


def test_the_card_changes_with_the_features(own: Path) -> None:
    dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    card = Dataset.open(own).card()
    write_video(own / "beach.mp4", pictures(10), rate=4)
    (own / "features.h5").unlink()
    dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    assert {name for name, value in Dataset.open(own).card().items() if value != card[name]} == {"features"}


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e6, float("nan"), float("inf")])
def test_an_invalid_rate_is_rejected_before_a_store_is_created(own: Path, rate: float) -> None:
    with pytest.raises(BadSetting, match=re.escape(f"rate is {rate}") + ".*240"):
        dataset.extract(open_annotations(own), Backbone(), rate=rate)
    assert not (own / "features.h5").exists()


def test_a_playhouse_needs_no_files(tmp_path: Path) -> None:
    """Drawn and decoded frames have the same features, except for compression loss."""
    drawn, filmed = tmp_path / "drawn", tmp_path / "filmed"
    playhouse.write_dataset(drawn, seed=3, num_test=1, files=())
    playhouse.write_dataset(filmed, seed=3, num_test=1)
    for folder in (drawn, filmed):
        dataset.extract(open_annotations(folder), Backbone(), rate=0.5)
    one, other = (Dataset.open(folder).store.video("playhouse-test-00000") for folder in (drawn, filmed))
    assert one.times.tolist() == other.times.tolist()
    assert one.duration == other.duration
    assert np.abs(one.frames - other.frames).max() < 8


def test_a_missing_video_does_not_stop_the_others(own: Path) -> None:
    describe(own, "desert", "beach")
    (own / "desert").mkdir()
    videos, _ = dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    assert videos.done == ["beach"]
    assert list(videos.failed) == ["desert"]
    assert videos.failed["desert"].startswith(f"{own} has no file desert")


def test_a_missing_video_in_a_playhouse(tmp_path: Path) -> None:
    playhouse.write_dataset(tmp_path, seed=3, num_train=1, files=())
    describe(tmp_path, "desert", "playhouse-train-00000")
    videos, _ = dataset.extract(open_annotations(tmp_path), Backbone(), rate=0.1)
    assert (videos.done, list(videos.failed)) == (["playhouse-train-00000"], ["desert"])


# ---------------------------------------------------------------- videos without annotations


def test_annotations_use_features_extracted_before(tmp_path: Path) -> None:
    for name in ("beach.mp4", "summer/beach.mkv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_video(tmp_path / name, pictures(len(name)), rate=4)
    videos, texts = dataset.extract(Source.find(tmp_path), Backbone(), rate=2.0)
    assert (videos.done, texts.done) == (["beach", "summer/beach"], [])
    describe(tmp_path, "summer/beach", "beach")
    assert dataset.extract(Source.find(tmp_path), Backbone(), rate=2.0)[0].skipped == ["summer/beach", "beach"]


def test_features_are_found_under_another_name_of_their_file(own: Path) -> None:
    """`data new` writes names with endings, `extract` of a folder without annotations uses names without."""
    (own / "annotations.jsonl").unlink()
    dataset.extract(Source.find(own), Backbone(), rate=2.0)
    describe(own, "beach.mp4", "pool.mkv.mp4")
    backbone = Backbone()
    videos, _ = dataset.extract(Source.find(own), backbone, rate=2.0)
    assert (videos.done, backbone.batch_sizes) == (["beach.mp4", "pool.mkv.mp4"], [2])  # the sentences
    with FeatureStore.open(own / "features.h5") as store:
        for one, other in (("beach", "beach.mp4"), ("pool.mkv", "pool.mkv.mp4")):
            assert np.array_equal(store.video(one).frames, store.video(other).frames)
            assert np.array_equal(store.video(one).times, store.video(other).times)
            assert store.video_origin(one) == store.video_origin(other) != 0


def test_a_single_video_and_a_store_elsewhere(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep/er/features.h5"
    assert dataset.extract(Source.find(own / "beach.mp4"), Backbone(), rate=2.0, out=out)[0].done == ["beach"]
    assert FeatureStore.open(out).video("beach").duration == 2.0
    assert dataset.extract(Source.find(own / "beach.mp4"), Backbone(), rate=2.0)[0].done == ["beach"]
    assert FeatureStore.open(own / "beach.h5").video_ids() == ["beach"]


@pytest.mark.parametrize("workers", [1, 3])
def test_good_and_bad_videos(tmp_path: Path, workers: int) -> None:
    """Good videos are stored, bad ones reported. A second run does nothing, a third adds the repaired ones."""
    good, bad = zoo.good(tmp_path), zoo.bad(tmp_path)
    zoo.hit_in_the_middle(tmp_path / "hit.mp4")
    names = sorted([*good, *bad, "hit.mp4", "gone.mp4", "folder.mp4"])
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "zoo.txt").write_text("\n".join(names))

    def run(retry: bool = False) -> ExtractionReport:
        source = Source.find(tmp_path / "zoo.txt")
        return dataset.extract(source, Backbone(), rate=2.0, workers=workers, retry=retry)[0]

    first = run()
    assert len(first.done) == len(good) + 1
    path_of = {video_id: find_file(tmp_path, video_id) for video_id in first.done}
    assert [path_of[video_id] for video_id in first.done] == [
        tmp_path / name for name in names if name in {*good, "hit.mp4"}
    ]
    assert first.damaged == {"hit": "12 packets could not be decoded"}
    for name, reason in bad.items():
        assert re.search(rf"{name}.* {reason}\b", first.failed[name.removesuffix(".mp4")])
    assert set(first.failed) == {*(name.removesuffix(".mp4") for name in bad), "gone.mp4", "folder.mp4"}
    with FeatureStore.open(tmp_path / "zoo.h5") as store:
        for video_id, path in path_of.items():
            if path is not None and path.name in good:
                assert store.video(video_id).duration == pytest.approx(good[path.name].end, abs=0.11)
    before = (tmp_path / "zoo.h5").read_bytes()
    again = run()
    assert (again.done, again.skipped, again.failed) == ([], first.done, first.failed)
    assert sorted(again.not_retried) == sorted(name.removesuffix(".mp4") for name in bad)
    assert (tmp_path / "zoo.h5").read_bytes() == before
    for name in ("notes.mp4", "gone.mp4"):
        shutil.copy(tmp_path / "plain.mp4", tmp_path / name)
    repaired = run()
    assert sorted(repaired.done) == ["gone", "notes"]
    retried = run(retry=True)
    assert (retried.not_retried, len(retried.failed)) == ([], len(bad))


# ---------------------------------------------------------------- files, splits, features


def test_a_dataset_without_features(own: Path) -> None:
    with pytest.raises(MissingFeatures, match=rf"features.h5.* midreel extract {own}"):
        Dataset.open(own)


def test_splits(dataset_folder: Path) -> None:
    found = Dataset.open(dataset_folder)
    assert len(found.split("test").video_ids) == 3
    with pytest.raises(UnknownName, match=r"'tests'; did you mean 'test'\?"):
        found.split("tests")


def test_an_unreadable_video_is_named_with_the_reason(own: Path) -> None:
    (own / "notes.mp4").write_text("no video")
    describe(own, "beach", "notes")
    dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    with pytest.raises(MissingFeatures, match=rf"'notes' of train .*notes.mp4.* midreel extract {own}, .*jsonl"):
        Dataset.open(own).split("train")


def test_missing_features_are_counted(own: Path) -> None:
    dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    describe(own, "beach", "pool.mkv.mp4", "desert")
    with pytest.raises(MissingFeatures, match=rf"1 of the 3 videos of train, .*'desert'.* midreel extract {own}"):
        Dataset.open(own).split("train")
    describe(own, "beach", "pool.mkv.mp4", "beach")
    with pytest.raises(MissingFeatures, match=r"1 of the 3 queries of train, .*'q2'"):
        Dataset.open(own).split("train")


def test_sentences_edited_after_extraction_are_rejected(own: Path) -> None:
    """A new first line changes the line numbers of all others, which are their ids."""
    (own / "annotations.jsonl").unlink()
    (own / "annotations.csv").write_text("video,query,split\nbeach,a dog,train\npool.mkv.mp4,a cat,train\n")
    dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    (own / "annotations.csv").write_text("video,query,split\nbeach,it is new,train\nbeach,a dog,train\n")
    with pytest.raises(BadFeatures, match=rf"2 of the 2 queries .*'2', now 'it is new'.*extract {own}"):
        Dataset.open(own).split("train")
    dataset.extract(open_annotations(own), Backbone(), rate=2.0)
    assert len(Dataset.open(own).split("train").queries) == 2


def test_the_card_identifies_a_dataset(dataset_folder: Path, tmp_path: Path) -> None:
    card = Dataset.open(dataset_folder).card()
    assert card["videos"] == {"train": 6, "val": 3, "test": 3}
    assert card["fingerprint"]["frame_rate"] == 0.5
    copy = tmp_path / "copy"
    shutil.copytree(dataset_folder, copy)
    assert Dataset.open(copy).card() == card
    lines = (copy / "annotations.jsonl").read_text().splitlines()
    (copy / "annotations.jsonl").write_text("\n".join(lines[::-1]))
    assert Dataset.open(copy).card() != card
    (copy / "features.h5").unlink()
    FeatureStore.create(copy / "features.h5", FINGERPRINT)
    assert Dataset.open(copy).card()["fingerprint"] != card["fingerprint"]
