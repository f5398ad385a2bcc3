"""Merged parts have the features of a store that one run made."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from midreel.datasets import dataset
from midreel.datasets.sources import Source
from midreel.errors import FingerprintMismatch
from midreel.features.shards import Shard
from midreel.features.stores.merge import merge_stores
from midreel.features.stores.store import FeatureStore
from midreel.types import VideoFeatures
from tests.features.fakes import FINGERPRINT
from tests.library.small import Eye, film


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    folder = tmp_path / "clips"
    for number in range(6):
        film(folder / f"{number}.mp4", *(["grey"] * number), "red")
    (folder / "broken.mp4").write_text("this is no video\n" * 9)
    return folder


def test_parts_merge_into_the_store_of_one_run(clips: Path, tmp_path: Path) -> None:
    source = Source.find(clips)
    dataset.extract(source, Eye(), rate=2.0, out=tmp_path / "whole.h5")
    parts = [source.shard(Shard(number=number, count=3)) for number in (1, 2, 3)]
    assert sorted(video_id for part in parts for video_id in part.video_ids) == sorted(source.video_ids)
    failed = [dataset.extract(part, Eye(), rate=2.0)[0].failed for part in parts]
    assert [list(each) for each in failed if each] == [["broken"]]
    videos, texts = merge_stores([part.store for part in parts], tmp_path / "merged.h5")
    assert (len(videos.done), videos.skipped, texts.done) == (6, [], [])
    again, _ = merge_stores([part.store for part in parts], tmp_path / "merged.h5")
    assert (again.done, len(again.skipped)) == ([], 6)
    with FeatureStore.open(tmp_path / "whole.h5") as whole, FeatureStore.open(tmp_path / "merged.h5") as merged:
        assert set(merged.video_ids()) == set(whole.video_ids())
        for video_id in whole.video_ids():
            one, other = whole.video(video_id), merged.video(video_id)
            assert np.array_equal(one.frames, other.frames)
            assert np.array_equal(one.times, other.times)
            assert whole.video_origin(video_id) == merged.video_origin(video_id)


def test_parts_of_another_backbone(tmp_path: Path) -> None:
    frames = np.ones((2, 4), np.float32)
    for name, weights in (("one", "a"), ("other", "b")):
        with FeatureStore.create(tmp_path / f"{name}.h5", replace(FINGERPRINT, weights=weights)) as store:
            store.add_video(name, VideoFeatures(frames=frames, times=np.arange(2.0), duration=2.0))
    with pytest.raises(FingerprintMismatch, match="weights"):
        merge_stores([tmp_path / "one.h5", tmp_path / "other.h5"], tmp_path / "merged.h5")
