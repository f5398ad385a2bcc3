"""Extraction and indexing on a real Ray cluster, of which a node is killed in the middle."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from midreel.errors import BadPackage, BadSetting, Unreachable
from midreel.features import cluster
from midreel.features.cluster import Cluster, NodeWork, connected
from midreel.features.extract import Encoded, VideoItem, extract_videos
from midreel.features.stores.quarantine import Quarantine
from midreel.features.stores.store import FeatureStore
from midreel.media.decode import Damage, read_frames
from midreel.types import VideoFeatures
from tests import ROOT
from tests.features.fakes import FINGERPRINT
from tests.library.small import Eye, film


@pytest.mark.slow
def test_a_node_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.features.ray_cluster", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    videos = [f"{number:02}" for number in range(24)]
    assert found["done"] == found["stored"] == videos  # nothing lost, nothing twice
    assert sorted(found["outcomes"]) == [*videos, "broken"]
    assert found["failed"] == ["broken"]
    assert found["same"]  # the bits of one machine
    assert sorted(lost for _, lost in found["work"]) == [False, True]
    assert sum(count for count, _ in found["work"]) == 25
    assert found["again"] == [0, 24, ["broken"]]  # a second run resumes, and leaves the quarantine alone
    assert len(found["indexed"]["new"]) == 24
    assert len(found["indexed"]["quarantined"]) == 1
    assert "frames/s" in found["nodes"]


def features_of(item: VideoItem) -> Encoded:
    """Encode a video in this process, in the place of a cluster."""
    assert item.path is not None
    eye, reading = Eye(), read_frames(item.path, 2.0)
    times, images = zip(*reading, strict=True)
    frames = eye.encode_images(images)
    return Encoded(
        features=VideoFeatures(frames=frames, times=np.array(times), duration=reading.duration), damage=Damage()
    )


def test_videos_that_are_encoded_elsewhere_are_stored_here(tmp_path: Path) -> None:
    paths = [film(tmp_path / f"{name}.mp4", name, "grey") for name in ("red", "green")]
    items = [VideoItem(id=path.stem, frames=(), duration=0.0, path=path) for path in paths]
    store = FeatureStore.create(tmp_path / "features.h5", replace(Eye().fingerprint, frame_rate=2.0, dtype="float32"))
    eye, quarantine = Eye(), Quarantine(tmp_path / "features.h5")
    options = {"rate": 2.0, "quarantine": quarantine, "encode": features_of, "workers": 2}
    assert extract_videos(items, eye, store, **options).done == ["red", "green"]
    assert eye.num_images == 0
    assert extract_videos(items, eye, store, **options).skipped == ["red", "green"]
    assert len(store.video("red").frames) == 8


def test_the_loss_of_all_nodes_ends_the_run(tmp_path: Path) -> None:
    def lost(item: VideoItem) -> Encoded:
        raise Unreachable("all nodes are lost")

    path = film(tmp_path / "red.mp4", "red")
    store = FeatureStore.create(tmp_path / "features.h5", replace(Eye().fingerprint, frame_rate=2.0, dtype="float32"))
    item = VideoItem(id="red", frames=(), duration=0.0, path=path)
    with pytest.raises(Unreachable):
        extract_videos([item], Eye(), store, rate=2.0, encode=lost)
    assert store.video_ids() == []


def test_a_video_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "_start", lambda self, workers: [])
    monkeypatch.setattr(cluster, "_places", lambda device: [])
    actors = Cluster("tiny-clip", FINGERPRINT, 2.0, "cpu", "auto")
    with pytest.raises(BadSetting, match="no file"):
        actors.encode(VideoItem(id="drawn", frames=(), duration=0.0))


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadPackage, match="midreel\\[ray\\]"), connected("auto", "tiny-clip", FINGERPRINT, rate=2.0):
        pass


def test_the_throughput_of_a_node() -> None:
    work = NodeWork(videos=3, frames=120, seconds=6.0, actors=2, lost=True)
    assert "40.0 frames/s" in work.text("a")  # two actors, of which each works three seconds
    assert "lost" in work.text("a")
    assert "0.0 frames/s" in NodeWork(actors=1).text("b")
