import json
from pathlib import Path

import pytest
import torch

from midreel.datasets import open_annotations
from midreel.datasets.checkup import check_up
from midreel.features.extract import extract_texts
from midreel.features.stores.store import FeatureStore
from midreel.types import VideoFeatures
from tests.conftest import Command
from tests.features.fakes import FINGERPRINT, FakeBackbone


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Two videos of one's own, of 30 and of 20 s by their features."""
    lines = ["beach.mp4,a dog jumps,3.5,12,val", "pool.mp4,a cat,1,20.6,train"]
    (tmp_path / "annotations.csv").write_text("\n".join(["video,query,start,end,split", *lines]))
    for name in ("beach.mp4", "pool.mp4"):
        (tmp_path / name).touch()
    with FeatureStore.create(tmp_path / "features.h5", FINGERPRINT) as store:
        for name, seconds in (("beach.mp4", 30), ("pool.mp4", 20)):
            times = torch.arange(float(seconds))
            store.add_video(name, VideoFeatures(frames=torch.ones(seconds, 4), times=times, duration=float(seconds)))
        extract_texts([("2", "a dog jumps"), ("3", "a cat")], FakeBackbone(), store)
    return tmp_path


def test_features_tell_how_long_videos_last(clips: Path) -> None:
    found = check_up(open_annotations(clips))
    assert found.ok
    assert {name: split.seconds for name, split in found.survey.splits.items()} == {"train": 20.0, "val": 30.0}
    (clips / "features.h5").unlink()
    without = check_up(open_annotations(clips))
    assert {split.seconds for split in without.survey.splits.values()} == {None}


def test_a_moment_after_the_end_is_off(midreel: Command, clips: Path) -> None:
    path = clips / "annotations.csv"
    path.write_text(path.read_text().replace("20.6", "21.5"))
    ended = midreel("data", "verify", clips)
    line = "moments that end after their video: 1, such as query '3': 1 to 21.5 s in pool.mp4, which lasts 20.0 s"
    assert ended.code == 3
    assert f"off: {line}" in ended.out.splitlines()
    rows = ended.out.splitlines()[1:4]
    assert [row.split()[0] for row in rows] == ["split", "train", "val"]
    assert [row.split()[-1] for row in rows] == ["seconds/video", "20.0", "30.0"]
    (found,) = json.loads(midreel("data", "verify", clips, "--json").out)["datasets"]
    assert found["problems"] == [line]
    assert set(found["features"]) == {"videos", "queries", "stranded", "changed", "stretched", "ok"}
